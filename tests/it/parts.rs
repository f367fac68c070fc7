//! `map` and `reduce` give what `analyze` gives, however many shares there are, and whatever happens to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fixtures::planted::{self, Plan};
use fixtures::random::Random;
use trace::OmissionRow;

use crate::support::{
    AGGREGATOR, Finished, aggregator, copy_directory, files, finish, gloo8, have_mpirun, mpirun, number_of, scratch,
    seed,
};
use crate::tables;

/// Files and standard output of an analysis.
type Result = (Vec<(PathBuf, Vec<u8>)>, String);

/// Maps all shares of an input, the last one first.
fn map(inputs: &[PathBuf], shares: usize, parts: &Path, options: &[&str], code: i32) {
    for share in (0..shares).rev() {
        let mut command = Command::new(AGGREGATOR);
        command.arg("map").args(inputs).args(["--part", &format!("{share}/{shares}"), "-o"]).arg(parts).args(options);
        finish(&mut command).expect_code(code);
    }
}

fn reduce(parts: &Path, out: &Path) -> Finished {
    aggregator(&[Path::new("reduce"), parts, Path::new("-o"), out, Path::new("--json")])
}

/// Reduces, and prints the short summary: some tables are read only when they are written.
fn reduce_briefly(parts: &Path, out: &Path) -> Finished {
    finish(Command::new(AGGREGATOR).arg("reduce").arg(parts).arg("-o").arg(out).env("COLUMNS", WIDE))
}

/// So many columns that the names of paths change no other line.
const WIDE: &str = "1000";

/// A summary without the line that names its input.
fn without_input(summary: &str) -> String {
    summary.lines().filter(|line| !line.starts_with("More: ")).collect::<Vec<_>>().join("\n")
}

/// The result of `analyze`, which ends with `code` as every reduction must.
fn analyzed(inputs: &[PathBuf], out: &Path, options: &[&str], code: i32) -> Result {
    let mut command = Command::new(AGGREGATOR);
    command.arg("analyze").args(inputs).args(["--json", "--out"]).arg(out).args(options);
    let stdout = finish(&mut command).expect_code(code).stdout;
    (files(&out.join("analysis")), stdout)
}

#[track_caller]
fn assert_same(found: &Result, expected: &Result, what: &str) {
    assert!(found.1 == expected.1, "{what}: the JSON differs");
    for (found, expected) in found.0.iter().zip(&expected.0) {
        assert!(found == expected, "{what}: {} differs from {}", found.0.display(), expected.0.display());
    }
    assert_eq!(found.0.len(), expected.0.len(), "{what}");
}

/// Checks that 1, 2, 3 and 8 shares give the bytes of `analyze`. The input may come in another order.
fn check(inputs: &[PathBuf], place: &Path, options: &[&str], code: i32) {
    // Views are of the shards of a run only where its manifest is.
    let out = if inputs[0].join("run.json").exists() { inputs[0].clone() } else { place.join("out") };
    let expected = analyzed(inputs, &out, options, code);
    let mut command = Command::new(AGGREGATOR);
    command.arg("analyze").args(inputs).arg("--out").arg(&out).args(options).env("COLUMNS", WIDE);
    let brief = finish(&mut command).expect_code(code).stdout;
    let reversed: Vec<PathBuf> = inputs.iter().rev().cloned().collect();
    for shares in [1, 2, 3, 8] {
        let parts = place.join(format!("parts-{shares}"));
        map(if shares > 2 { &reversed } else { inputs }, shares, &parts, options, code);
        let stdout = reduce(&parts, &out).expect_code(code).stdout;
        let what = format!("{inputs:?} {options:?} {shares} shares");
        assert_same(&(files(&out.join("analysis")), stdout), &expected, &what);
        let stdout = reduce_briefly(&parts, &out).expect_code(code).stdout;
        assert_eq!(without_input(&stdout), without_input(&brief), "{what}");
        assert!(brief.lines().count() > 2, "{brief}");
        assert_same(&(files(&out.join("analysis")), expected.1.clone()), &expected, &what);
    }
}

/// A run of nine ranks on bent clocks, of which one is slow.
fn planted_run(place: &Path) -> PathBuf {
    let plan = Plan {
        ranks: 9,
        slow: vec![(4, 400_000)],
        offset_ns: (0..9).map(|rank| rank * 1_000_003).collect(),
        drift_ppb: (0..9).map(|rank| rank % 3 * 20_000).collect(),
        ..Plan::default()
    };
    let run = place.join("run");
    planted::write(&plan, &run).unwrap();
    run
}

/// Invariant (same): `map` and `reduce` give the bytes of `analyze`, however many processes share the ranks.
#[test]
fn any_number_of_shares_gives_the_bytes_of_analyze() {
    let place = scratch("parts/same");
    let run = planted_run(&place);
    check(std::slice::from_ref(&run), &place.join("whole"), &[], 0);
    check(
        std::slice::from_ref(&run),
        &place.join("some"),
        &["--steps", "1..4", "--ranks", "0,2,4..8", "--min-z", "2.5"],
        0,
    );
    check(&[run], &place.join("ranges"), &["--range", "forward|backward", "--clock", "ping"], 0);
    let traces: Vec<PathBuf> = fs::read_dir(gloo8()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut traces: Vec<PathBuf> = traces.into_iter().filter(|path| path.to_string_lossy().contains(".json")).collect();
    traces.sort();
    check(&traces, &place.join("traces"), &[], 0);
    check(&traces, &place.join("steps"), &["--step-marker", "^ProfilerStep", "--comm", "gemm", "--not-comm", "x"], 0);
}

/// Invariant (same): `map` and `reduce` give the bytes of `analyze`, however many processes share the ranks.
#[test]
fn damaged_shards_and_missing_ranks_are_listed_as_by_analyze() {
    let place = scratch("parts/damaged");
    let run = planted_run(&place);
    fs::write(run.join("collectives/rank-00002-0000.parquet"), "no Parquet").unwrap();
    fs::write(run.join("collectives/other.parquet"), "of no rank").unwrap();
    for table in fs::read_dir(&run).unwrap() {
        let table = table.unwrap().path();
        // Rank 6 has no file, and rank 7 none that can be read.
        let _ = fs::remove_file(table.join("rank-00006-0000.parquet"));
        if table.join("rank-00007-0000.parquet").exists() {
            fs::write(table.join("rank-00007-0000.parquet"), "").unwrap();
        }
    }
    // Which of the shares lists a loss depends on the ranks in it; all of them list what concerns no rank.
    check(&[run], &place, &[], 3);
}

/// Invariant (same): `map` and `reduce` give the bytes of `analyze`, however many processes share the ranks.
#[test]
#[ignore = "reads real traces"]
fn real_traces_give_the_bytes_of_analyze() {
    for name in ["torchrec4_long_a2a", "megatron_tp2", "alexnet_cp"] {
        let traces = fixtures::data::folder(name);
        check(&[traces], &scratch(&format!("parts/real/{name}")), &[], 0);
    }
    // Of this one, only the collectives show who was late.
    let traces = fixtures::data::real_traces().join("../public/stream_sync_virtual_tid/input");
    check(&[traces], &scratch("parts/real/of_collectives"), &[], 0);
}

/// Invariant (same): The processes of an MPI job give the bytes of `analyze`.
#[test]
fn the_processes_of_an_mpi_job_give_the_bytes_of_analyze() {
    let what = "the_processes_of_an_mpi_job_give_the_bytes_of_analyze";
    if !have_mpirun(what) {
        return;
    }
    let place = scratch("parts/processes");
    let run = planted_run(&place);
    // One damaged shard: each process lists the problems of its ranks.
    let shard = run.join("counters/rank-00003-0000.parquet");
    fs::write(&shard, &fs::read(&shard).unwrap()[..60]).unwrap();
    for (inputs, code) in [(vec![run.clone()], 3), (vec![gloo8()], 0)] {
        let out = if code == 3 { run.clone() } else { place.join("out") };
        let expected = analyzed(&inputs, &out, &[], code);
        for (processes, resume) in [(2, false), (3, false), (12, false), (3, true)] {
            let mut job = mpirun(processes);
            job.arg(AGGREGATOR).arg("analyze").args(&inputs).args(["--json", "--out"]).arg(&out);
            if resume {
                job.arg("--resume").arg(place.join(format!("parts-{code}")));
            }
            // The launcher says that a process ended with another code than 0.
            let stdout = finish(&mut job).expect_code(code).stdout;
            let stdout = stdout.split("\n-----").next().unwrap_or_default().trim_end().to_string() + "\n";
            let found = (files(&out.join("analysis")), stdout);
            assert_same(&found, &expected, &format!("{inputs:?} {processes} processes, resume {resume}"));
        }
    }
}

/// Invariant (same): A lost result of `map` is listed.
#[test]
fn a_share_that_is_missing_or_damaged_is_a_loss() {
    let place = scratch("parts/missing");
    let (run, parts, out) = (planted_run(&place), place.join("parts"), place.join("out"));
    map(&[run], 3, &parts, &[], 0);
    fs::rename(parts.join("share-00001-of-00003.json"), place.join("kept")).unwrap();
    let finished = reduce(&parts, &out).expect_code(3);
    assert!(finished.stdout.contains("share 1/3: it was not mapped"), "{}", finished.stdout);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let share = json(&fs::read_to_string(place.join("kept")).unwrap());
    assert_eq!(json(&finished.stdout)["facts"]["missing_ranks"], share["ranks"]);

    fs::write(parts.join("share-00001-of-00003.json"), "{").unwrap();
    let finished = reduce(&parts, &out).expect_code(3);
    assert!(finished.stdout.contains("share 1/3: ") && finished.stdout.contains("map the share again"));

    fs::rename(place.join("kept"), parts.join("share-00001-of-00003.json")).unwrap();
    reduce(&parts, &out).expect_code(0);
    let flip_a_bit = |file: &Path| {
        let mut bytes = fs::read(file).unwrap();
        bytes[200] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    let files_of = |table: &str| fs::read_dir(parts.join(table)).unwrap().map(|entry| entry.unwrap().path());
    files_of("path_cuts").for_each(|file| flip_a_bit(&file));
    let finished = reduce(&parts, &out).expect_code(3);
    assert!(finished.stdout.contains("work of ranks on critical paths"), "{}", finished.stdout);
    files_of("path_cuts").for_each(|file| flip_a_bit(&file));

    files_of("op_stats").for_each(|file| flip_a_bit(&file));
    let finished = reduce(&parts, &out).expect_code(3);
    assert!(finished.stdout.contains("tables of ranks"), "{}", finished.stdout);
    let finished = reduce_briefly(&parts, &out).expect_code(3);
    assert!(finished.stderr.contains("tables of ranks") && finished.stderr.contains("op_stats"), "{}", finished.stderr);
    let omissions = tables::analysis::<OmissionRow>(&out);
    assert!(omissions.iter().any(|row| &*row.what == "tables of ranks"), "it was found last: {omissions:?}");
    files_of("op_stats").for_each(|file| flip_a_bit(&file));

    let damaged = files_of("own_stretches").next().unwrap();
    flip_a_bit(&damaged);
    let finished = reduce(&parts, &out).expect_code(3);
    let name = damaged.file_name().unwrap().to_string_lossy().into_owned();
    assert!(finished.stdout.contains("own time of ranks") && finished.stdout.contains(&name), "{}", finished.stdout);
    fs::remove_file(&damaged).unwrap();
    let finished = reduce(&parts, &out).expect_code(3);
    assert!(finished.stdout.contains("parts of ranks") && finished.stdout.contains(&name), "{}", finished.stdout);
}

/// Invariant (same): `reduce` refuses results of `map` that do not belong together.
#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let place = scratch("parts/refused");
    let (run, parts, out) = (planted_run(&place), place.join("parts"), place.join("out"));
    let refused = |part: &str| {
        let said = reduce(&parts, &out).expect_code(1).stderr;
        assert!(said.contains(part), "{said:?} lacks {part:?}");
    };
    refused("No such file");
    fs::create_dir_all(&parts).unwrap();
    refused("there are no parts in it");
    map(std::slice::from_ref(&run), 2, &parts, &[], 0);
    let share = |input: &Path, options: &[&str]| {
        let mut command = Command::new(AGGREGATOR);
        command.arg("map").arg(input).args(["--part", "1/2", "-o"]).arg(&parts).args(options);
        finish(&mut command)
    };
    share(&run, &["--steps", "1..3"]).expect_code(0);
    refused("other options");
    let other = place.join("other");
    planted::write(&Plan::default(), &other).unwrap();
    share(&other, &[]).expect_code(0);
    refused("another input");
    map(std::slice::from_ref(&run), 3, &parts, &[], 0);
    refused("shares of 2 and of 3");
    for (options, part) in [(&["--from", "+1ms"][..], "use --steps"), (&["--window", "1"], "use --steps")] {
        let said = share(&run, options).stderr;
        assert!(said.contains(part), "{said}");
    }
    share(&run, &["--part", "2/2"]).expect_code(2);
}

/// Parts beside the tables of a run would be taken for its rows, and for the input beside traces.
#[test]
fn parts_do_not_go_into_a_run_or_among_traces() {
    let place = scratch("parts/refused-places");
    let (run, traces) = (planted_run(&place), place.join("traces"));
    copy_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo8_slow5"), &traces);
    for (input, why) in [(&run, "it is a run"), (&traces, "it holds files of the input")] {
        let before = files(input);
        for arguments in [&["map", "--part", "0/1", "-o"][..], &["analyze", "--resume"]] {
            let mut command = Command::new(AGGREGATOR);
            let said = finish(command.args(arguments).arg(input).arg(input)).expect_code(1).stderr;
            assert!(said.contains(why), "{arguments:?}: {said}");
        }
        assert!(files(input) == before, "{}", input.display());
    }
}

/// Invariant (same): Equal results of `map` are equal files.
#[test]
fn a_share_that_was_mapped_is_kept_and_equal_parts_are_equal_files() {
    let place = scratch("parts/kept");
    let (run, parts) = (planted_run(&place), place.join("parts"));
    let share = |run: &Path, parts: &Path| {
        let mut command = Command::new(AGGREGATOR);
        command.arg("map").arg(run).args(["--part", "0/2", "-o"]).arg(parts);
        finish(&mut command).expect_code(0).stderr
    };
    assert!(!share(&run, &parts).contains("mapped before"));
    let before = files(&parts);
    assert!(share(&run, &parts).contains("mapped before"));
    // The same input elsewhere, and later, gives the same files.
    let copy = place.join("copy");
    copy_directory(&run, &copy);
    assert!(share(&copy, &parts).contains("mapped before"));
    share(&copy, &place.join("again"));
    assert!(files(&place.join("again")) == before && files(&parts) == before);
    // A file that is gone is written again.
    fs::remove_file(parts.join(&before[0].0)).unwrap();
    assert!(!share(&run, &parts).contains("mapped before"));
    assert!(files(&parts) == before);
    // Other rows are mapped again.
    fs::remove_dir_all(&copy).unwrap();
    planted::write(&Plan { ranks: 9, slow: vec![(2, 900_000)], ..Plan::default() }, &copy).unwrap();
    assert!(!share(&copy, &parts).contains("mapped before"));
}

/// Invariant (same): A killed analysis is resumed.
///
/// Kills analyses that keep their parts, each at a random moment, until one ends.
#[test]
fn a_killed_analysis_is_resumed() {
    let place = scratch("parts/resumed");
    let run = place.join("run");
    // More ranks than a share has, so that there are several.
    planted::write(&Plan { ranks: 600, steps: 3, ops: 2, ..Plan::default() }, &run).unwrap();
    let out = place.join("out");
    let begin = Instant::now();
    let expected = analyzed(std::slice::from_ref(&run), &out, &[], 0);
    let length = begin.elapsed();
    let mut random = Random(seed("resumed"));
    let parts = place.join("parts");
    let resume = || {
        let mut command = Command::new(AGGREGATOR);
        command.arg("analyze").arg(&run).args(["--json", "--out"]).arg(&out).arg("--resume").arg(&parts);
        command
    };
    for _ in 0..number_of("RANKSCOPE_KILLS", 5) {
        let mut child = resume().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(length.mul_f64(random.below(1000) as f64 / 1000.0).max(Duration::from_millis(1)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let finished = finish(&mut resume()).expect_code(0);
    assert_same(&(files(&out.join("analysis")), finished.stdout), &expected, "after kills");
    assert!(finish(&mut resume()).expect_code(0).stderr.contains("3 of 3 shares mapped before"));
    let left = files(&parts).into_iter().filter(|(path, _)| path.to_string_lossy().contains("rankscope"));
    assert_eq!(left.map(|(path, _)| path).collect::<Vec<_>>(), Vec::<PathBuf>::new(), "temporary files");
}
