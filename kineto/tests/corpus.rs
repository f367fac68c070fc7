//! Reads the fuzzer's corpus and a bounded number of its mutations, on every toolchain.

use std::io;
use std::path::Path;

use fixtures::mutate::check_corpus;
use fixtures::random::Random;
use kineto::check_any_blocks;

/// Sizes of blocks, in bytes. All of them must give the result of one block.
const BLOCKS: [usize; 4] = [16, 37, 150, 1000];

/// Byte sequences with a meaning for a parser.
const TOKENS: [&[u8]; 12] =
    [b"{", b"}", b"[", b"]", b"\"", b"\\", b",", b":", b"{\"ph\":", b"\"traceEvents\":[", b"1e99", b"\x00"];

fn insert_token(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied()));
}

#[test]
fn the_corpus_and_its_mutations_are_read_alike_in_any_blocks() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/kineto");
    check_corpus(&corpus, 12, insert_token, |bytes| check_any_blocks(bytes, &BLOCKS))
}
