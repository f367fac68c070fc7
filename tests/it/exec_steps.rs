//! A program under `rank-agent exec` that marks its training steps with NVTX.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use trace::{CollectiveRow, CounterRow, EventRow, Row, Run, StepRow};

use crate::support::{Finished, RANK_AGENT, analyze, finish, inject_library, scratch, skipped};

const DRIVER: &str = env!("CARGO_BIN_EXE_cupti-driver");

fn exec(name: &str, arguments: &[&str]) -> (PathBuf, Command) {
    let run = scratch(name).join("run");
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--out"]).arg(&run).args(arguments).arg("--").env("RANKSCOPE_INJECT_LIB", inject_library());
    (run, command)
}

fn record(name: &str, arguments: &[&str]) -> (PathBuf, Finished) {
    let (run, mut command) = exec(name, arguments);
    command.env("RANKSCOPE_CUPTI", inject_library().with_file_name("libstand_in_cupti.so"));
    command.env("STAND_IN_CUPTI", "version=130001").args([DRIVER, "steps", "6"]);
    let done = finish(&mut command).expect_code(0);
    assert!(done.stdout.contains("nvtx 1"), "{}", done.said());
    (run, done)
}

fn rows<R: Row>(run: &Path) -> Vec<R> {
    let (rows, problems) = Run::open(run).unwrap().rows::<R>(0);
    assert_eq!(problems, []);
    rows
}

/// Names and steps of ranges, in their order.
fn ranges(run: &Path) -> Vec<(String, Option<i32>)> {
    let mut events = rows::<EventRow>(run);
    events.retain(|event| &*event.kind == "user_annotation");
    events.sort_by_key(|event| (event.ts_ns, -event.dur_ns));
    events.iter().map(|event| (event.name.to_string(), event.step)).collect()
}

fn drawn(steps: std::ops::Range<i32>) -> Vec<(String, Option<i32>)> {
    steps.flat_map(|n| [(format!("ProfilerStep#{n}"), Some(n)), ("forward".into(), Some(n))]).collect()
}

fn schedule_said(run: &Path) -> String {
    let counters = rows::<CounterRow>(run);
    let why = counters.iter().find(|row| &*row.source == "schedule").and_then(|row| row.why.clone());
    why.unwrap_or_default().to_string()
}

#[test]
fn steps_that_a_program_marks_are_steps_of_the_run() {
    let (run, _) = record("exec_steps", &[]);
    assert_eq!(ranges(&run), drawn(0..6));
    let steps: Vec<(i32, String)> = rows::<StepRow>(&run).iter().map(|s| (s.step, s.phase.to_string())).collect();
    assert_eq!(steps, (0..6).map(|n| (n, "active".into())).collect::<Vec<_>>());
    let mut seen: Vec<(Option<i64>, Option<i32>)> =
        rows::<CollectiveRow>(&run).iter().map(|row| (row.seq, row.step)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..6).map(|n| (Some(i64::from(n)), Some(n))).collect::<Vec<_>>());
    assert_eq!(schedule_said(&run), "");
    let said = analyze(&run, &[], 0).stdout;
    assert!(said.contains("6 steps"), "{said}");
}

/// Invariant (recorder): Recording can be started and stopped on all ranks while the program runs, and the run lists
/// what was left out.
///
/// ```text
/// step      0 1 2 3 4 5
/// phase     . w A A . .
/// ```
#[test]
fn a_schedule_records_the_steps_that_it_names() {
    let (run, _) = record("exec_steps_schedule", &["--schedule", "wait=1,warmup=1,active=2,repeat=1"]);
    assert_eq!(ranges(&run), drawn(2..4));
    let steps: Vec<(i32, String)> = rows::<StepRow>(&run).iter().map(|s| (s.step, s.phase.to_string())).collect();
    assert_eq!(steps, [(1, "warmup".into()), (2, "active".into()), (3, "active".into())]);
    // The last one's channels were told in a step that is not recorded: it must not seem to hang.
    let seqs: BTreeSet<(Option<i64>, String)> =
        rows::<CollectiveRow>(&run).iter().map(|row| (row.seq, row.state.to_string())).collect();
    assert_eq!(seqs, BTreeSet::from([(Some(2), "done".into()), (Some(3), "done".into())]));
    let kernels = rows::<EventRow>(&run).iter().filter(|event| &*event.kind == "kernel").count();
    assert_eq!(kernels, 4, "a matrix product and a collective in each");
    assert!(
        schedule_said(&run).starts_with("4 of 6 steps were not recorded: --schedule wait=1"),
        "{}",
        schedule_said(&run)
    );
    let said = analyze(&run, &[], 0).stdout;
    assert!(said.contains("2 steps") && said.contains("part of the program was not recorded"), "{said}");
}

#[test]
fn a_schedule_without_steps_says_so() {
    let (run, mut command) = exec("exec_steps_none", &["--schedule", "active=2"]);
    command.env("RANKSCOPE_CUPTI", inject_library().with_file_name("libstand_in_cupti.so"));
    finish(command.env("STAND_IN_CUPTI", "version=130001").args([DRIVER, "injected"])).expect_code(0);
    assert!(
        rows::<EventRow>(&run).is_empty() && schedule_said(&run).contains("marked no step"),
        "{}",
        schedule_said(&run)
    );
    let (_, mut command) = exec("exec_steps_wrong", &["--schedule", "active=0"]);
    finish(command.arg("true")).expect_code(2);
}

/// NVIDIA's own NVTX, as Python programs use it.
#[test]
fn ranges_of_the_real_nvtx_are_recorded() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/python");
    let has = Command::new(&python).args(["-c", "import nvtx"]).output().is_ok_and(|output| output.status.success());
    if !has {
        return skipped("NVIDIA's own NVTX", "no nvtx in .venv; tests/all installs it");
    }
    const SCRIPT: &str = "\
import nvtx
for n in range(3):
    with nvtx.annotate(f'ProfilerStep#{n}'):
        nvtx.push_range('forward')
        nvtx.pop_range()
";
    let (run, mut command) = exec("exec_steps_real", &[]);
    finish(command.arg(&python).args(["-c", SCRIPT])).expect_code(0);
    assert_eq!(ranges(&run), drawn(0..3));
    let steps: Vec<i32> = rows::<StepRow>(&run).iter().map(|s| s.step).collect();
    assert_eq!(steps, [0, 1, 2]);
    println!("NVTX: {} ranges of NVIDIA's own", ranges(&run).len());
}
