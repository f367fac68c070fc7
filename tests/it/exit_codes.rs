//! Exit codes: 3 if something recorded was lost or cannot be read, and with `--strict` if anything was left out.

use std::fs;
use std::path::{Path, PathBuf};

use fixtures::planted::{self, Plan};
use trace::{CounterRow, OmissionKind, OmissionRow, Run, batch_from_rows, shard_path, write_shard};

use crate::support::{AGGREGATOR, Finished, aggregator, files, finish, gloo8, scratch};
use crate::tables::analysis;

/// Every subcommand that reads a run or traces, with a scratch directory for its output.
fn commands(input: &Path, scratch: &Path) -> Vec<Vec<PathBuf>> {
    let out = |name: &str| scratch.join(name);
    let command = |words: &[&str], paths: &[PathBuf]| -> Vec<PathBuf> {
        words.iter().map(PathBuf::from).chain([input.into()]).chain(paths.iter().cloned()).collect()
    };
    let is_run = input.join(trace::MANIFEST_FILE).exists();
    let mut all = vec![
        command(&["analyze"], &[]),
        command(&["report"], &["-o".into(), out("report.html")]),
        command(&["table", "--ranks", "all"], &[]),
        command(&["stacks", "--on", "host"], &["-o".into(), out("folded")]),
        command(&["export"], &["-o".into(), out("job.pftrace")]),
        command(&["diff"], &[input.into()]),
    ];
    if is_run {
        all.push(command(&["export", "--format", "chrome"], &["-o".into(), out("chrome")]));
    } else {
        all.push(command(&["ingest"], &["--out".into(), out("ingested")]));
    }
    all
}

/// Whether a command ended with `code`. Which rows exceed the memory depends on how fast the ranks are read; without all steps of
/// a rank, `diff` has nothing to compare.
fn has_ended(finished: &Finished, code: i32) -> bool {
    finished.code == Some(code) || (code == 3 && finished.said().contains("no active step"))
}

/// Every subcommand ends with `code`, and with `strict` under `--strict`.
#[track_caller]
fn expect(input: &Path, code: i32, strict: i32) {
    for (given, wanted) in [(&[][..], code), (&["--strict"][..], strict)] {
        let place = tempfile::tempdir().unwrap();
        for arguments in commands(input, place.path()) {
            let finished = finish(std::process::Command::new(AGGREGATOR).args(&arguments).args(given));
            assert!(
                has_ended(&finished, wanted),
                "{wanted} {arguments:?} {given:?} {:?}: {}",
                finished.code,
                finished.said()
            );
        }
    }
}

fn traces(name: &str) -> PathBuf {
    let place = scratch(name).join("traces");
    fs::create_dir(&place).unwrap();
    for file in fs::read_dir(gloo8()).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&file, place.join(file.file_name().unwrap())).unwrap();
    }
    place
}

fn run(name: &str) -> PathBuf {
    let run = scratch(name).join("run");
    planted::write(&Plan { ops: 40, part_rows: 100, ..Plan::default() }, &run).unwrap();
    run
}

#[test]
fn nothing_is_left_out_of_sound_input() {
    expect(&gloo8(), 0, 0);
    expect(&run("exit_sound"), 0, 0);
}

#[test]
fn other_files_and_missing_ranks_are_left_out_and_not_lost() {
    let place = traces("exit_left_out");
    fs::write(place.join("README.md"), "# Traces").unwrap();
    fs::write(place.join("events.out.tfevents.1790857026.host"), [24, 0, 0, 0]).unwrap();
    expect(&place, 0, 3);

    let place = traces("exit_some_ranks");
    for rank in 2..8 {
        fs::remove_file(place.join(format!("rank{rank}.json.gz"))).unwrap();
    }
    expect(&place, 0, 3);
    // A run of these traces lacks no rank that was put into it.
    let run = place.with_file_name("run");
    let ingest = ["ingest".as_ref(), place.as_os_str(), "--out".as_ref(), run.as_os_str()];
    aggregator(&ingest).expect_code(0);
    expect(&run, 0, 3);
    assert!(shard_path(&run, "events", 1, 0).exists());
    for (shard, _) in files(&run).into_iter().filter(|(path, _)| path.to_string_lossy().contains("rank-00001-")) {
        fs::remove_file(run.join(shard)).unwrap();
    }
    expect(&run, 3, 3);
}

/// A cut trace stays cut when it has become a run.
#[test]
fn a_cut_trace_is_a_loss() {
    let place = traces("exit_cut");
    let file = place.join("rank3.json.gz");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    expect(&place, 3, 3);
    let run = place.with_file_name("run");
    let ingest = ["ingest".as_ref(), place.as_os_str(), "--out".as_ref(), run.as_os_str()];
    aggregator(&ingest).expect_code(3);
    expect(&run, 3, 3);
}

/// Invariant (files): A loss ends every command with exit code 3, and only a loss does.
#[test]
fn a_damaged_or_missing_shard_is_a_loss() {
    let damaged = run("exit_damaged");
    let shard = shard_path(&damaged, "events", 2, 0);
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    expect(&damaged, 3, 3);

    let missing = run("exit_missing");
    let parts = Run::open(&missing).unwrap().shards(2, "events").to_vec();
    assert!(parts.len() > 2, "{} parts", parts.len());
    fs::remove_file(&parts[1].path).unwrap();
    expect(&missing, 3, 3);
    let omissions = analysis::<OmissionRow>(&missing);
    let found: Vec<_> = omissions.iter().map(|o| (o.kind.known(), o.rank, &*o.what, o.amount)).collect();
    let rows = parts[1].rows as i64;
    assert_eq!(found, [(Some(OmissionKind::Lost), Some(2), "rows of events", Some(rows))]);
}

/// Rank 1 of a run that lists its shards.
fn listed(name: &str) -> (PathBuf, Vec<PathBuf>) {
    let run = scratch(name).join("run");
    aggregator(&["ingest".as_ref(), gloo8().as_os_str(), "--out".as_ref(), run.as_os_str()]).expect_code(0);
    let of_rank = |path: &PathBuf| path.to_string_lossy().contains("rank-00001-");
    let shards = files(&run).into_iter().map(|(path, _)| run.join(path)).filter(of_rank).collect();
    (run, shards)
}

#[test]
fn each_lost_shard_is_a_loss_in_every_command() {
    let (run, shards) = listed("exit_each_lost");
    assert!(shards.len() > 6, "{shards:?}");
    let away = run.with_file_name("away");
    for shard in shards {
        fs::rename(&shard, &away).unwrap();
        let place = tempfile::tempdir().unwrap();
        for arguments in commands(&run, place.path()) {
            let finished = finish(std::process::Command::new(AGGREGATOR).args(&arguments));
            // A difference needs steps: without them, it is an error.
            let is_said = finished.code == Some(3) || finished.said().contains("no active step");
            assert!(is_said, "{shard:?} {arguments:?} {:?}: {}", finished.code, finished.said());
        }
        fs::rename(&away, &shard).unwrap();
    }
}

/// Invariant (input): Input that exceeds its limit of memory is listed as an omission.
#[test]
fn shards_beyond_the_memory_are_a_loss() {
    let (run, _) = listed("exit_memory");
    let analyze =
        |limit: &str| aggregator(&["analyze".as_ref(), run.as_os_str(), "--max-memory".as_ref(), limit.as_ref()]);
    analyze("1GiB").expect_code(0);
    let finished = analyze("400KB").expect_code(3);
    let omissions = analysis::<OmissionRow>(&run);
    let rows: Vec<_> = omissions.iter().filter(|row| &*row.what == "rows of events").collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.amount > Some(100)), "{}", finished.said());
    assert!(rows[0].why.contains("give more with --max-memory"), "{}", rows[0].why);
}

/// Invariant (input): Input that exceeds its limit of memory is listed as an omission.
#[test]
fn traces_beyond_the_memory_are_a_loss_in_every_command() {
    let traces = traces("exit_memory_traces");
    for (limit, code) in [("1GiB", 0), ("500KB", 3)] {
        let place = tempfile::tempdir().unwrap();
        for arguments in commands(&traces, place.path()) {
            let limited = finish(std::process::Command::new(AGGREGATOR).args(&arguments).args(["--max-memory", limit]));
            assert!(has_ended(&limited, code), "{limit} {arguments:?} {:?}: {}", limited.code, limited.said());
        }
    }
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    let ingested = aggregator(&[
        "ingest".as_ref(),
        traces.as_os_str(),
        "--out".as_ref(),
        run.as_os_str(),
        "--max-memory".as_ref(),
        // So much that the rows of some ranks find room.
        "517KB".as_ref(),
    ])
    .expect_code(3);
    let said = ingested.said().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("(517000 bytes for") && said.contains("give more with --max-memory"), "{said}");
    // The run keeps the omission.
    expect(&run, 3, 3);
}

/// Invariant (files): A loss ends every command with exit code 3, and only a loss does.
#[test]
fn rows_that_a_recorder_dropped_are_a_loss() {
    let run = run("exit_dropped");
    let meta = Run::open(&run).unwrap().shards(1, "counters")[0].meta.clone();
    let counter = |source: &str, dropped, omitted| CounterRow {
        rank: 1,
        source: source.into(),
        dropped,
        omitted,
        why: Some("its queue of 8 records was full".into()),
        ..CounterRow::default()
    };
    let write = |part, rows: &[CounterRow]| {
        let table = <CounterRow as trace::Row>::table();
        write_shard(&run, &table, &meta, part, &[batch_from_rows(rows).unwrap()]).unwrap();
    };
    // The recorder left out rows on purpose: nothing is lost, and the analysis uses all that there is.
    write(1, &[counter("schedule", 0, 5)]);
    expect(&run, 0, 0);
    write(2, &[counter("host:main", 3, 0), counter("memory:main", 4, 0)]);
    expect(&run, 3, 3);
    let omissions = analysis::<OmissionRow>(&run);
    let found: Vec<_> = omissions.iter().map(|o| (o.kind.as_str(), o.rank, &*o.what, o.amount, &*o.why)).collect();
    assert_eq!(found, [("lost", Some(1), "rows lost while recording", Some(7), "its queue of 8 records was full")]);
}

/// Invariant (files): A loss ends every command with exit code 3, and only a loss does.
///
/// Real traces are sound, whatever ranks and peers they lack.
#[test]
#[ignore = "reads real traces"]
fn folders_of_real_traces_have_their_exit_codes() {
    let folders = fixtures::data::real_traces().join("kineto");
    let complete = [
        "alexnet_cp",
        "dlrm8",
        "event_sync",
        "gloo4_slow2_stack",
        "gloo8_slow5",
        "gpu_user_anno",
        "megatron_tp2",
        "ns_resolution",
        "resnet50_2021",
        "simple_add",
    ];
    for folder in fs::read_dir(folders).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let (code, strict) = match &*name {
            // Files of several jobs.
            "odd" => (1, 1),
            _ if complete.contains(&&*name) => (0, 0),
            _ => (0, 3),
        };
        for (given, wanted) in [(None, code), (Some("--strict"), strict)] {
            let analyze = ["analyze".as_ref(), folder.as_os_str()];
            let finished = finish(std::process::Command::new(AGGREGATOR).args(analyze).args(given));
            assert_eq!(finished.code, Some(wanted), "{name} {given:?}: {}", finished.said());
        }
    }
}
