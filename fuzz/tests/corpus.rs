//! The corpora of the fuzz targets and a bounded number of mutations of each file, on every toolchain and without libFuzzer.

use std::io;
use std::path::{Path, PathBuf};

use fixtures::mutate::{Insert, check_corpus};
use fixtures::random::Random;
use rankscope_fuzz::CHECKS;

/// Byte sequences with a meaning for a parser of JSON.
const TOKENS: [&[u8]; 12] =
    [b"{", b"}", b"[", b"]", b"\"", b"\\", b",", b":", b"{\"ph\":", b"\"traceEvents\":[", b"1e99", b"\x00"];

fn insert_token(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    drop(bytes.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied()));
}

/// Replaces four bytes by the number of another kind of CUPTI's records, known or not.
fn insert_kind(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let kind = random.below(64) as u32;
    drop(bytes.splice(at..(at + 4).min(bytes.len()), kind.to_ne_bytes()));
}

/// Overwrites bytes with a value at the edge of a type.
fn insert_extreme(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let value = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
    let end = (at + 1 + random.below(8)).min(bytes.len());
    drop(bytes.splice(at..end, std::iter::repeat_n(value, end - at)));
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn check_all(names: &[&str], least_files: usize, insert: Insert) -> io::Result<()> {
    for (name, check) in CHECKS.iter().filter(|(name, _)| names.contains(name)) {
        check_corpus(&folder("corpus").join(name), least_files, insert, check)?;
    }
    Ok(())
}

/// Invariant (input): A trace gives the same rows whatever the size of the blocks that it is read in.
#[test]
fn the_corpus_and_its_mutations_are_read_alike_in_any_blocks() -> io::Result<()> {
    check_all(&["kineto"], 12, insert_token)
}

/// Invariant (input): No bytes from outside make a reader panic or break its promise: traces, shards, `run.json`,
/// messages between ranks, requests of `ctl`, NVTX ranges, calls of NCCL, pickles. `tests/fuzz` looks for such bytes.
#[test]
fn no_bytes_make_the_parser_of_cupti_records_panic() -> io::Result<()> {
    check_all(&["cupti"], 9, insert_kind)
}

/// Invariant (input): No bytes from outside make a reader panic or break its promise: traces, shards, `run.json`,
/// messages between ranks, requests of `ctl`, NVTX ranges, calls of NCCL, pickles. `tests/fuzz` looks for such bytes.
#[test]
fn texts_and_their_mutations_break_no_promise() -> io::Result<()> {
    check_all(&["manifest", "ctl"], 2, insert_token)
}

/// Invariant (input): No bytes from outside make a reader panic or break its promise: traces, shards, `run.json`,
/// messages between ranks, requests of `ctl`, NVTX ranges, calls of NCCL, pickles. `tests/fuzz` looks for such bytes.
#[test]
fn messages_calls_and_shards_and_their_mutations_break_no_promise() -> io::Result<()> {
    check_all(&["shards", "exec", "nvtx", "plugin", "snapshot", "flight_recorder"], 4, insert_extreme)
}

#[test]
fn a_changed_export_of_nsight_systems_is_an_error_or_rows() -> io::Result<()> {
    check_all(&["nsys"], 2, insert_extreme)
}

#[test]
fn a_changed_profile_of_xla_is_an_error_or_rows() -> io::Result<()> {
    check_all(&["xplane"], 3, insert_extreme)
}

#[test]
fn a_changed_dump_of_the_inspector_is_an_error_or_rows() -> io::Result<()> {
    check_all(&["inspector"], 2, insert_token)
}

#[test]
fn changed_json_of_rocprofv3_is_an_error_or_rows() -> io::Result<()> {
    check_all(&["rocprof"], 2, insert_token)
}

#[test]
fn a_changed_file_of_columns_is_an_error_or_batches() -> io::Result<()> {
    check_all(&["columns"], 4, insert_extreme)
}

#[test]
fn each_check_has_a_target_and_a_test_of_its_corpus() -> io::Result<()> {
    let tests = include_str!("corpus.rs");
    let untested = CHECKS.iter().map(|(name, _)| name).filter(|name| !tests.contains(&format!("\"{name}\"")));
    assert_eq!(untested.count(), 0, "each of CHECKS is named in a test of this file");
    let mut found: Vec<String> = std::fs::read_dir(folder("fuzz_targets"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().trim_end_matches(".rs").to_string()))
        .collect::<io::Result<_>>()?;
    found.sort();
    let mut names = CHECKS.map(|(name, _)| name);
    names.sort_unstable();
    assert_eq!(found, names);
    Ok(())
}
