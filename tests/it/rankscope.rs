//! The `rankscope` command: it has all subcommands, prints what the other commands print, and links no MPI.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::commands::subcommands;
use crate::support::{RANK_AGENT, RANKSCOPE, aggregator, finish, gloo8, inject_library, scratch};

#[test]
fn rankscope_lists_the_subcommands_of_both_programs() {
    let expected = "analyze map reduce ingest table stacks report export diff what-if hang watch schema exec ctl demo doctor simulate \
         completions man";
    assert_eq!(subcommands(RANKSCOPE).join(" "), expected);
}

#[test]
fn rankscope_analyze_prints_what_aggregator_analyze_prints() {
    let traces = gloo8();
    let expected = aggregator(&[Path::new("analyze"), &traces]).expect_code(0).stdout;
    let mut command = Command::new(RANKSCOPE);
    let printed = finish(command.arg("analyze").arg(&traces).env("NO_COLOR", "1")).expect_code(0).stdout;
    assert_eq!(printed, expected);
    let error = finish(Command::new(RANKSCOPE).args(["analyze", "no_such_run"])).expect_code(1).stderr;
    assert!(error.starts_with("rankscope: "), "{error}");
}

#[test]
fn one_process_of_a_launcher_says_that_a_program_without_mpi_divides_nothing() {
    let said = |rank: &str, variables: [&str; 2]| {
        let mut command = Command::new(RANKSCOPE);
        command.arg("analyze").arg(gloo8()).env(variables[0], rank).env(variables[1], "8");
        finish(&mut command).expect_code(0).stderr
    };
    let open_mpi = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
    let first = said("0", open_mpi);
    assert!(first.contains("the launcher of Open MPI started 8 processes, and this program has no MPI"), "{first}");
    assert_eq!(said("3", open_mpi), "");
    assert_eq!(said("0", ["RANK", "WORLD_SIZE"]), "", "no launcher of MPI");
}

#[test]
fn rankscope_exec_runs_a_program_and_keeps_its_exit_code() {
    let here = scratch("rankscope_exec");
    for (script, code) in [("true", 0), ("exit 3", 3)] {
        let out = here.join(code.to_string());
        let mut command = Command::new(RANKSCOPE);
        command.env("RANKSCOPE_INJECT_LIB", inject_library());
        let done = finish(command.args(["exec", "--out"]).arg(&out).args(["--", "sh", "-c", script])).expect_code(code);
        assert!(done.stderr.contains("next: rankscope analyze"), "{}", done.stderr);
        assert!(trace::Run::open(&out).is_ok());
    }
}

#[test]
fn the_demo_names_its_slow_rank_and_runs_twice() {
    let here = scratch("demo");
    for _ in 0..2 {
        let mut command = Command::new(RANKSCOPE);
        let done = finish(command.arg("demo").current_dir(&here).env("NO_COLOR", "1")).expect_code(0);
        assert!(done.stdout.starts_with("SLOW RANK 5 — node1"), "{}", done.stdout);
        assert!(done.stderr.contains("Next:"), "{}", done.stderr);
        assert!(here.join("rankscope-demo/analysis/views.sql").is_file());
    }
    let mut command = Command::new(RANKSCOPE);
    // Another job with a truth, such as one of `simulate`.
    fs::write(here.join("rankscope-demo.truth.json"), "{}").unwrap();
    let refused = finish(command.arg("demo").current_dir(&here)).expect_code(1);
    assert!(refused.stderr.contains("it is not empty"), "{}", refused.stderr);
}

/// The stand-in takes the place of CUPTI.
#[test]
fn the_doctor_says_what_is_recorded_and_what_is_not() {
    let here = scratch("doctor");
    let doctor = |variables: &[(&str, &Path)]| {
        let mut command = Command::new(RANKSCOPE);
        command.args(["doctor", "--out"]).arg(&here).envs(variables.iter().copied());
        finish(command.env("XDG_RUNTIME_DIR", &here)).expect_code(1).stdout
    };
    let nowhere = here.join("none.so");
    let said = doctor(&[("RANKSCOPE_INJECT_LIB", &nowhere), ("RANKSCOPE_CUPTI", &nowhere)]);
    for line in ["NO  library ", "set RANKSCOPE_INJECT_LIB", "NO  CUPTI ", "ok  disk ", "ok  launcher "] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let said = doctor(&[
        ("RANKSCOPE_INJECT_LIB", &inject_library()),
        ("RANKSCOPE_CUPTI", &inject_library().with_file_name("libstand_in_cupti.so")),
        ("CUDA_INJECTION64_PATH", Path::new("/opt/nsys.so")),
    ]);
    for line in ["ok  library ", "ok  CUPTI ", "NO  other tools ", "/opt/nsys.so", "ok  ctl "] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

/// The dynamic section names needed libraries as strings, so a binary without the string does not need the library.
#[test]
fn rankscope_does_not_link_mpi() {
    let names_mpi = |program: &str| fs::read(program).unwrap().windows(9).any(|bytes| bytes == b"libmpi.so");
    assert!(!names_mpi(RANKSCOPE), "rankscope links MPI");
    if cfg!(feature = "mpi") {
        assert!(names_mpi(RANK_AGENT), "the check looks for the wrong name");
    }
}
