//! The fuzzer's corpus of CUPTI buffers and a bounded number of mutations of it, on every toolchain.

use std::io;
use std::path::Path;

use fixtures::mutate::check_corpus;
use fixtures::random::Random;
use sources::cupti::record::check_any_bytes;

/// Replaces four bytes by the number of another kind of record, known or not.
fn insert_kind(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let kind = random.below(64) as u32;
    drop(bytes.splice(at..(at + 4).min(bytes.len()), kind.to_ne_bytes()));
}

#[test]
fn no_bytes_make_the_parser_of_cupti_records_panic() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/cupti");
    check_corpus(&corpus, 9, insert_kind, check_any_bytes)
}
