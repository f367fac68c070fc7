//! The fuzzer's corpus and a bounded number of mutations of it, on every toolchain.

use std::path::Path;

use aggregator::kineto::check_any_blocks;

const MUTATIONS_PER_FILE: u64 = 500;

/// Sizes of blocks, in bytes, that must all give what one block gives.
const BLOCKS: [usize; 4] = [16, 37, 150, 1000];

/// Marsaglia's xorshift: mutations are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Bytes that mean something to a parser.
const TOKENS: [&[u8]; 12] =
    [b"{", b"}", b"[", b"]", b"\"", b"\\", b",", b":", b"{\"ph\":", b"\"traceEvents\":[", b"1e99", b"\x00"];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
            2 => drop(bytes.drain(at..(at + random.below(40)).min(bytes.len()))),
            3 => {
                let piece = bytes[at..(at + random.below(200)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.below(256) as u8;
                }
            }
        }
    }
}

#[test]
fn the_corpus_and_its_mutations_are_read_alike_in_any_blocks() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/kineto");
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 12);
    for file in files {
        let original = std::fs::read(&file).unwrap();
        check_any_blocks(&original, &BLOCKS);
        for seed in 1..=MUTATIONS_PER_FILE {
            let mut bytes = original.clone();
            mutate(&mut bytes, &mut Random(seed));
            let outcome = std::panic::catch_unwind(|| check_any_blocks(&bytes, &BLOCKS));
            assert!(outcome.is_ok(), "{} with seed {seed}: {}", file.display(), bytes.escape_ascii());
        }
    }
}
