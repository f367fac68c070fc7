//! What a trace that is not in order does to the command: exit code, rows that are kept, and what is said.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use fixtures::data::folder;
use fixtures::small_trace::{EVENTS, document, gzip};
use kineto::{PlanOptions, load, plan};

fn with_event(event: &str) -> Vec<u8> {
    document().replace("[\n", &format!("[\n{event},\n")).into_bytes()
}

const KERNEL_FAR: &str = r#"{"ph": "X", "cat": "kernel", "name": "far", "pid": 0, "tid": 7, "ts": 60, "dur": 1, "args": {"stream": 99999999999, "device": -5}}"#;

fn base_time(value: &str) -> Vec<u8> {
    document().replace("\"schemaVersion\": 1", &format!("\"baseTimeNanoseconds\": {value}")).into_bytes()
}

fn before(mark: &str) -> Vec<u8> {
    let text = document();
    text.as_bytes()[..text.find(mark).unwrap()].to_vec()
}

/// Members of 64 MiB of one byte after the first bytes of a trace: 1.6 GB out of 1.6 MB.
fn bomb(head: &[u8], byte: u8) -> Vec<u8> {
    let filling = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![byte; 64 << 20]).unwrap();
        encoder.finish().unwrap()
    };
    [gzip(head), filling.repeat(24)].concat()
}

fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let text = document();
    let mut cases = cuts();
    cases.extend(garbage());
    for more in [sizes, times, info, values] {
        cases.extend(more());
    }
    let packed = gzip(text.as_bytes());
    let mut damaged = gzip(text.repeat(50).as_bytes());
    let middle = damaged.len() / 2;
    damaged[middle..middle + 4].fill(0xff);
    let mut wrong_sum = packed.clone();
    let end = wrong_sum.len() - 6;
    wrong_sum[end] ^= 1;
    cases.extend([
        ("gzip, in order", packed.clone()),
        ("gzip, cut", packed[..packed.len() - 60].to_vec()),
        ("gzip, header only", packed[..10].to_vec()),
        ("gzip, damaged", damaged),
        ("gzip, wrong checksum", wrong_sum),
        ("gzip, garbage behind", [packed.as_slice(), b"garbage"].concat()),
        ("gzip of gzip", gzip(&packed)),
        ("gzip of nothing", gzip(b"")),
        ("gzip, two members", [gzip(&text.as_bytes()[..200]), gzip(&text.as_bytes()[200..])].concat()),
        ("gzip bomb: blanks in the list", bomb(&before("],"), b' ')),
        ("gzip bomb: blanks at the start", bomb(b"", b' ')),
        ("gzip bomb: a string in an event", bomb(&before("mm \\"), b'x')),
        ("gzip bomb: a string at the top", bomb(b"{\"x\": \"", b'x')),
    ]);
    cases
}

/// Cut at every structural place.
fn cuts() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("whole", document().into_bytes()),
        ("cut: nothing left", Vec::new()),
        ("cut: after the first brace", b"{".to_vec()),
        ("cut: in a top-level key", b"{\"schemaV".to_vec()),
        ("cut: before a top-level value", b"{\"schemaVersion\":".to_vec()),
        ("cut: in distributedInfo", before("\"world_size\"")),
        ("cut: after the list's key", before(": [\n")),
        ("cut: after the list's bracket", before("{\"ph\"")),
        ("cut: in an event's key", before("cat\": \"cpu_op\"")),
        ("cut: before an event's value", before(" 1.5")),
        ("cut: in a number", before(".5")),
        ("cut: in an escape", before("\"q")),
        ("cut: in a string", before("mm \\")),
        ("cut: in the arguments", before("\"External id\"")),
        ("cut: after an event", before(",\n{\"ph\": \"X\", \"cat\": \"cuda_runtime\"")),
        ("cut: after a comma", before("{\"ph\": \"X\", \"cat\": \"cuda_runtime\"")),
        ("cut: after the last event", before("\n],")),
        ("cut: after the list", before(", \"traceName\"")),
        ("cut: before the last brace", document().trim_end().strip_suffix('}').unwrap().as_bytes().to_vec()),
    ]
}

fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let text = document();
    vec![
        ("garbage: text", b"hello, world".to_vec()),
        ("garbage: HTML", b"<!DOCTYPE html><html></html>".to_vec()),
        ("garbage: zeros", vec![0; 4096]),
        ("garbage: SQLite", b"SQLite format 3\0 and more".to_vec()),
        ("garbage: Parquet", b"PAR1....PAR1".to_vec()),
        ("garbage: UTF-16", text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("garbage: Python's quotes", text.replace('"', "'").into_bytes()),
        ("garbage between events", text.replacen(",\n{", ",\n%%%\n{", 1).into_bytes()),
        ("garbage in an event", text.replacen("\"ts\": 1.5", "\"ts\" 1.5", 1).into_bytes()),
        ("no comma between events", text.replacen(",\n{", "\n{", 1).into_bytes()),
        ("a comma too many", text.replacen(",\n{", ",,\n{", 1).into_bytes()),
        ("a comma at the end", text.replace("\n],", ",\n],").into_bytes()),
        ("brackets that do not fit", text.replace("\n],", "\n},").into_bytes()),
        ("text behind the document", [text.as_bytes(), b"and more"].concat()),
        ("zeros behind the document", [text.as_bytes(), &[0; 100]].concat()),
        ("two documents", text.repeat(2).into_bytes()),
        ("a byte-order mark", [b"\xEF\xBB\xBF", text.as_bytes()].concat()),
        ("a bare list", format!("[{}]", EVENTS.join(",")).into_bytes()),
        ("JSON of something else", br#"{"name": "a", "version": [1, 2]}"#.to_vec()),
        ("traceEvents is an object", br#"{"traceEvents": {"a": 1}}"#.to_vec()),
        ("traceEvents is null", br#"{"traceEvents": null}"#.to_vec()),
        ("an empty list", br#"{"traceEvents": []}"#.to_vec()),
        (
            "two lists of events",
            text.replace("\"traceName\": \"t\"", &format!("\"traceEvents\": [{}]", EVENTS[1])).into_bytes(),
        ),
    ]
}

/// A document with one more operator.
fn op(members: &str) -> Vec<u8> {
    with_event(&format!("{{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"odd\", \"pid\": 9, \"tid\": 9, {members}}}"))
}

/// Much of something.
fn sizes() -> Vec<(&'static str, Vec<u8>)> {
    let long = "x".repeat(100 << 20);
    vec![
        ("deep objects in arguments", op(&format!("\"ts\": 60, \"dur\": 1, \"args\": {}", "{\"a\": ".repeat(100_000)))),
        (
            "deep lists in arguments",
            op(&format!("\"ts\": 60, \"dur\": 1, \"args\": {{\"a\": {}}}", "[".repeat(100_000))),
        ),
        ("deep nesting at the top", document().replace("\"t\"", &"{\"a\":".repeat(100_000)).into_bytes()),
        ("a string of 100 MB in an event", op(&format!("\"ts\": 60, \"dur\": 1, \"args\": {{\"a\": \"{long}\"}}"))),
        (
            "a string of 100 MB at the top",
            document().replace("\"schemaVersion\": 1", &format!("\"x\": \"{long}\"")).into_bytes(),
        ),
        ("ts of a million digits", op(&format!("\"ts\": {}, \"dur\": 1", "7".repeat(1_000_000)))),
    ]
}

fn times() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("ts beyond all bounds", op("\"ts\": 1e400, \"dur\": 1")),
        ("ts of 20 digits", op("\"ts\": 99999999999999999999, \"dur\": 1")),
        ("dur beyond all bounds", op("\"ts\": 60, \"dur\": 9e18")),
        ("negative dur", op("\"ts\": 60, \"dur\": -5")),
        ("ts is null", op("\"ts\": null, \"dur\": 1")),
        ("ts is NaN", op("\"ts\": NaN, \"dur\": 1")),
        ("ts is an object", op("\"ts\": {\"a\": 1}, \"dur\": 1")),
        ("no ts", op("\"dur\": 1")),
        ("no dur", op("\"ts\": 60")),
        ("baseTimeNanoseconds beyond 64 bits", base_time("99999999999999999999999")),
        ("baseTimeNanoseconds is text", base_time("\"now\"")),
        ("baseTimeNanoseconds of the year 2255", base_time("9000000000000000000")),
        ("dur of 292 years", op("\"ts\": 60, \"dur\": 9.2e15")),
        ("ts of 292 years ago", op("\"ts\": -9.2e15, \"dur\": 1")),
        ("ts of another clock", op("\"ts\": 1700000000000000.123, \"dur\": 1")),
        ("ts of the same clock, years later", op("\"ts\": 200000000000000.123, \"dur\": 1")),
        ("ts at the end of time", op("\"ts\": 9223372036854775.807, \"dur\": 9223372036854775.807")),
    ]
}

/// What the file says of itself.
fn info() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "distributedInfo twice",
            document()
                .replace("\"traceName\": \"t\"", "\"distributedInfo\": {\"rank\": 0, \"world_size\": 1}")
                .into_bytes(),
        ),
        (
            "distributedInfo is a list",
            document().replace("{\"backend\"", "[{\"backend\"").replacen("1}", "1}]", 1).into_bytes(),
        ),
        (
            "distributedInfo too deep",
            document().replace("\"nccl\"", &format!("{}{}", "[".repeat(40), "]".repeat(40))).into_bytes(),
        ),
        ("rank is a string", document().replace("\"rank\": 0", "\"rank\": \"0\"").into_bytes()),
        ("rank beyond 32 bits", document().replace("\"rank\": 0", "\"rank\": 4294967296").into_bytes()),
        ("rank beyond all jobs", document().replace("\"rank\": 0", "\"rank\": 2147483647").into_bytes()),
        (
            "world_size beyond all jobs",
            document().replace("\"world_size\": 1", "\"world_size\": 100000000").into_bytes(),
        ),
        ("world_size is 0", document().replace("\"world_size\": 1", "\"world_size\": 0").into_bytes()),
        ("rank is negative", document().replace("\"rank\": 0", "\"rank\": -1").into_bytes()),
    ]
}

fn values() -> Vec<(&'static str, Vec<u8>)> {
    let raw = |name: &[u8]| {
        let text = String::from_utf8(op("\"ts\": 60, \"dur\": 1")).unwrap();
        let (head, tail) = text.split_once("odd").unwrap();
        [head.as_bytes(), name, tail.as_bytes()].concat()
    };
    vec![
        ("a key twice", op("\"ts\": 1, \"ts\": 60, \"dur\": 1")),
        (
            "arguments twice",
            op("\"ts\": 60, \"dur\": 1, \"args\": {\"External id\": 5}, \"args\": {\"External id\": 6}"),
        ),
        ("a phase twice", op("\"ts\": 60, \"dur\": 1, \"ph\": \"M\"")),
        ("a thread of 30 digits", op("\"ts\": 60, \"dur\": 1, \"tid\": 123456789012345678901234567890")),
        ("stream beyond 32 bits", with_event(KERNEL_FAR)),
        (
            "NaN, Infinity and N/A in arguments",
            op("\"ts\": 60, \"dur\": 1, \"args\": {\"a\": NaN, \"b\": -Infinity, \"c\": N/A}"),
        ),
        ("a quote is missing", with_event("{\"ph\": \"X\", \"name: \"odd\", \"ts\": 60, \"dur\": 1}")),
        ("Windows line ends", document().replace('\n', "\r\n").into_bytes()),
        ("arguments are a list", op("\"ts\": 60, \"dur\": 1, \"args\": [1, 2]")),
        ("arguments are a string", op("\"ts\": 60, \"dur\": 1, \"args\": \"a\"")),
        ("ids beyond 64 bits", op("\"ts\": 60, \"dur\": 1, \"args\": {\"External id\": 99999999999999999999999}")),
        ("no phase", with_event("{\"name\": \"odd\", \"ts\": 60, \"dur\": 1}")),
        ("begin and end events", with_event("{\"ph\": \"B\", \"name\": \"b\", \"ts\": 1}, {\"ph\": \"E\", \"ts\": 2}")),
        ("items that are no objects", with_event("1, \"a\", null, [2]")),
        ("invalid UTF-8 in a name", raw(b"\xff\xfe")),
        ("a lone surrogate in a name", raw(b"\\ud800")),
        ("control characters in a name", raw(b"\x00\x1b[31m\n")),
    ]
}

/// Exit code of the command, and what the library keeps and says.
fn outcome(path: &Path) -> String {
    let command = Command::new(env!("CARGO_BIN_EXE_aggregator")).arg("analyze").arg(path).output().unwrap();
    let exit = command.status.code().unwrap();
    let stderr = String::from_utf8_lossy(&command.stderr);
    if let Some(message) = stderr.lines().next() {
        return format!("exit {exit}: {message}");
    }
    let plan = plan(&[path.to_path_buf()], PlanOptions::default()).unwrap();
    let rank = load(&plan.files[0]).unwrap();
    let omissions = plan.omissions.iter().chain(&rank.omissions);
    let said: Vec<String> = omissions.map(|o| format!("{}: {}", o.what, o.why)).collect();
    format!("exit {exit}: {} rows; {}", rank.events.len(), said.join("; "))
}

#[test]
fn every_disorder_has_its_exit_code_and_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = String::new();
    for (name, bytes) in cases() {
        let path = dir.path().join("rank0.json");
        std::fs::write(&path, bytes).unwrap();
        let said = outcome(&path).replace(&path.display().to_string(), "FILE");
        writeln!(table, "{name:34} {}", said.trim_end_matches("; ")).unwrap();
    }
    insta::assert_snapshot!("every_disorder", table);
}

/// The odd files beside the repository, each by itself.
#[test]
#[ignore = "reads real traces"]
fn every_odd_file_has_its_exit_code_and_its_words() {
    let odd = folder("odd");
    let mut paths: Vec<_> = std::fs::read_dir(odd).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut table = String::new();
    for path in paths {
        let said = outcome(&path).replace(&path.display().to_string(), "FILE");
        let name = path.file_name().unwrap().to_string_lossy();
        writeln!(table, "{name:52} {}", said.trim_end_matches("; ")).unwrap();
    }
    insta::assert_snapshot!("every_odd_file", table);
}

/// A job may have very many ranks: the list of the missing ones stays short.
#[test]
fn the_list_of_missing_ranks_ends() {
    let dir = tempfile::tempdir().unwrap();
    let text = document().replace("\"rank\": 0", "\"rank\": 5").replace("\"world_size\": 1", "\"world_size\": 1000000");
    std::fs::write(dir.path().join("a.json"), text).unwrap();
    let output = analyzed(dir.path(), &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = json.to_string();
    assert!(said.contains("no file of rank 0, 1, 2, 3, 4, 6, 7, 8, …") && said.contains("999999"), "{said:.2000}");
    assert!(said.len() < 1 << 20, "{} bytes", said.len());
}

fn analyzed(path: &Path, options: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_aggregator")).arg("analyze").arg(path).args(options).output().unwrap()
}

/// Two ranks, one of which says an impossible time of a collective: no command panics, and what is left out is said.
#[test]
fn impossible_times_are_left_out_and_stop_no_command() {
    const NCCL: &str = r#"{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": 9, "ts": 70, "dur": 9, "args": {"stream": 9, "device": 0, "correlation": 3}}"#;
    let rank = |number: u32, more: &str| {
        let text = String::from_utf8(with_event(&format!("{NCCL},\n{more}"))).unwrap();
        text.replace("\"rank\": 0", &format!("\"rank\": {number}")).replace("\"world_size\": 1", "\"world_size\": 2")
    };
    for times in ["\"ts\": 70, \"dur\": 9.2e15", "\"ts\": -9.2e15, \"dur\": 9", "\"ts\": 9.2e15, \"dur\": 9"] {
        let dir = tempfile::tempdir().unwrap();
        let wrong = NCCL.replace("\"ts\": 70, \"dur\": 9", times);
        std::fs::write(dir.path().join("rank0.json"), rank(0, NCCL)).unwrap();
        std::fs::write(dir.path().join("rank1.json"), rank(1, &format!("{wrong},\n{wrong}"))).unwrap();
        let said = String::from_utf8_lossy(&analyzed(dir.path(), &["--json"]).stdout).into_owned();
        assert!(said.contains("longer than a year") || said.contains("more than ten years"), "{times}: {said}");
        for command in [&["analyze"] as &[&str], &["table"], &["export", "-o", "/dev/null"]] {
            let mut process = Command::new(env!("CARGO_BIN_EXE_aggregator"));
            let output = process.arg(command[0]).arg(dir.path()).args(&command[1..]).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 3)), "{command:?} {times}: {:?} {stderr}", output.status);
        }
    }
}
