//! The fuzzer's corpus of CUPTI buffers and a bounded number of mutations of it, on every toolchain.

use std::path::Path;

use recorder::cupti::record::check_any_bytes;

const MUTATIONS_PER_FILE: u64 = 500;

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

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(at),
            // Another kind, known or not, in the middle of things.
            1 => {
                let kind = random.below(64) as u32;
                drop(bytes.splice(at..(at + 4).min(bytes.len()), kind.to_ne_bytes()));
            }
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
fn no_bytes_make_the_parser_of_cupti_records_panic() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/cupti");
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 9);
    for file in files {
        let original = std::fs::read(&file).unwrap();
        check_any_bytes(&original);
        for seed in 1..=MUTATIONS_PER_FILE {
            let mut bytes = original.clone();
            mutate(&mut bytes, &mut Random(seed));
            let outcome = std::panic::catch_unwind(|| check_any_bytes(&bytes));
            assert!(outcome.is_ok(), "{} with seed {seed}: {}", file.display(), bytes.escape_ascii());
        }
    }
}
