//! `aggregator export` as a user runs it: what `--ranks`, `--steps`, `--from` and `--to` leave of Chrome traces.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fixtures::planted::{self, Plan};
use serde_json::Value;

use crate::support::{aggregator, files, scratch};

/// The files that an export with these options writes, by name.
fn export(run: &Path, to: &str, options: &[&str], code: i32) -> BTreeMap<String, Vec<u8>> {
    let out = run.with_file_name(to);
    let pattern = out.join("rank{rank}.json");
    let mut arguments = vec!["export", run.to_str().unwrap(), "--format", "chrome", "-o", pattern.to_str().unwrap()];
    arguments.extend(options);
    aggregator(&arguments).expect_code(code);
    if !out.exists() {
        return BTreeMap::new();
    }
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files(&out).into_iter().map(|(path, bytes)| (name(&path), bytes)).collect()
}

/// Intervals of a trace: name, start and length in ns.
fn spans(trace: &[u8]) -> Vec<(String, i64, i64)> {
    let document: Value = serde_json::from_slice(trace).unwrap();
    let ns = |us: &Value| (us.as_f64().unwrap() * 1000.0).round() as i64;
    let events = document["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    events.map(|e| (e["name"].as_str().unwrap().into(), ns(&e["ts"]), ns(&e["dur"]))).collect()
}

/// Steps of a trace, by number.
fn steps(trace: &[u8]) -> BTreeMap<i32, (i64, i64)> {
    let step = |(name, ts, dur): (String, i64, i64)| {
        let number = name.strip_prefix("ProfilerStep#")?.parse().ok()?;
        Some((number, (ts, ts + dur)))
    };
    spans(trace).into_iter().filter_map(step).collect()
}

/// ```text
///  step     |--0--| |--1--| |--2--| |--3--| |--4--|
///  --steps 1..3     ###############
///  --from, --to    ~###############~                   in global time, on clocks that are far apart
/// ```
#[test]
fn a_part_of_a_chrome_trace_is_the_same_by_steps_by_time_and_by_rank() {
    let place = scratch("export_cut");
    let run = place.join("run");
    let offset_ns = vec![0, 250_000_000, -40_000, 7];
    planted::write(&Plan { offset_ns: offset_ns.clone(), ..Plan::default() }, &run).unwrap();
    let whole = export(&run, "whole", &[], 0);
    assert_eq!(whole.len(), 4);

    let by_steps = export(&run, "by_steps", &["--steps", "1..3"], 0);
    for (name, trace) in &by_steps {
        assert_eq!(steps(trace).into_keys().collect::<Vec<_>>(), [1, 2], "{name}");
        let in_whole = steps(&whole[name]);
        let (from, to) = (in_whole[&1].0, in_whole[&2].1);
        let expected: Vec<_> = spans(&whole[name]).into_iter().filter(|(_, ts, _)| (from..to).contains(ts)).collect();
        assert_eq!(spans(trace), expected, "{name}");
        assert!(expected.len() > 20 && expected.len() < spans(&whole[name]).len() / 2, "{name}: {}", expected.len());
    }

    // Rank 0 is the reference: its clock is global time. The borders lie between steps.
    let of_reference = steps(&whole["rank0.json"]);
    let between = |a: i32, b: i32| ((of_reference[&a].1 + of_reference[&b].0) / 2).to_string();
    let (from, to) = (between(0, 1), between(2, 3));
    let by_time = export(&run, "by_time", &["--from", &from, "--to", &to], 0);
    assert!(by_time == by_steps, "a part by time is that by its steps, on every rank's own clock");

    let by_rank = export(&run, "by_rank", &["--ranks", "1,3", "--steps", "1..=2"], 0);
    assert_eq!(by_rank.keys().collect::<Vec<_>>(), ["rank1.json", "rank3.json"]);
    assert!(by_rank.iter().all(|(name, trace)| *trace == by_steps[name]));
    let both = export(&run, "both", &["--ranks", "3", "--from", &from, "--to", &to, "--steps", "2"], 0);
    assert_eq!(both.len(), 1);
    assert_eq!(steps(&both["rank3.json"]).into_keys().collect::<Vec<_>>(), [2]);
}

#[test]
fn exporting_a_missing_part_is_an_error_and_writes_nothing() {
    let place = scratch("export_wrong_cut");
    let run = place.join("run");
    planted::write(&Plan::default(), &run).unwrap();
    assert!(export(&run, "no_rank", &["--ranks", "9"], 1).is_empty());
    for wrong in [["--steps", "5..2"], ["--from", "noon"], ["--ranks", "a"]] {
        assert!(export(&run, "usage", &wrong, 2).is_empty());
    }
    for format in ["chrome", "perfetto"] {
        let out = place.join(format);
        let arguments = ["--format", format, "--steps", "77", "--ranks", "2", "-o", out.to_str().unwrap()];
        let run = ["export", run.to_str().unwrap()];
        let error = aggregator(&[run.as_slice(), &arguments].concat()).expect_code(1).stderr;
        assert!(error.contains("--steps 77 selects nothing: the recorded steps are 0–4"), "{error}");
        assert!(!out.exists());
    }
}

/// The name of the file decides the format, and a name that cannot be right is refused before anything is written.
#[test]
fn the_format_of_an_export_follows_its_name() {
    let place = scratch("export_names");
    let run = place.join("run");
    planted::write(&Plan::default(), &run).unwrap();
    let export = |name: &str, options: &[&str], code: i32| {
        let out = place.join(name);
        let arguments = [&["export", run.to_str().unwrap(), "-o", out.to_str().unwrap()], options].concat();
        (aggregator(&arguments).expect_code(code).stderr, out)
    };
    let (_, perfetto) = export("job.pftrace", &[], 0);
    assert_ne!(fs::read(perfetto).unwrap()[0], b'{');
    let (_, one) = export("one.json", &["--ranks", "2"], 0);
    assert!(serde_json::from_slice::<Value>(&fs::read(one).unwrap()).unwrap()["traceEvents"].is_array());
    let (_, one) = export("one.json.gz", &["--ranks", "2"], 0);
    assert_eq!(fs::read(one).unwrap()[..2], [0x1f, 0x8b]);
    export("each-{rank}.json", &[], 0);
    assert!(place.join("each-3.json").is_file());
    export("several", &["--format", "chrome"], 0);
    assert!(place.join("several/rank3.json.gz").is_file());
    for (name, options, why) in [
        ("all.json", &[][..], "4 ranks are 4 files: put {rank} into the name, as in "),
        ("all.json.gz", &["--format", "chrome"], "all-{rank}.json.gz, or name a directory"),
        ("job.json", &["--format", "perfetto"], "a Perfetto trace is not JSON"),
        ("job2.pftrace", &["--format", "chrome"], "Chrome's traces are JSON"),
        ("job.csv", &[], "export writes timelines for Perfetto"),
    ] {
        let (said, out) = export(name, options, 2);
        assert!(said.contains(why), "{said}");
        assert!(!out.exists(), "{name}");
    }
}

/// Formats that are not a run's are told apart before anything is written.
#[test]
fn traces_are_no_input_of_the_chrome_export() {
    let place = scratch("export_traces");
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo4_slow2_stack");
    let out = place.join("out");
    let said =
        aggregator(&[Path::new("export"), &traces, Path::new("--format"), Path::new("chrome"), Path::new("-o"), &out]);
    let said = said.expect_code(1).stderr;
    assert!(said.contains("a Chrome trace already") && said.contains("rankscope ingest"), "{said}");
    assert!(fs::metadata(&out).is_err());
}
