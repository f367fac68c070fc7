//! The `rankscope` command: it has all subcommands, prints what the other commands print, and links no MPI.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::commands::subcommands;
use crate::support::{RANK_AGENT, RANKSCOPE, aggregator, finish, gloo8, inject_library, scratch};

#[test]
fn rankscope_lists_the_subcommands_of_both_programs() {
    let expected =
        "analyze map reduce ingest table stacks report export diff what-if hang watch schema exec ctl completions man";
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

/// The dynamic section names needed libraries as strings, so a binary without the string does not need the library.
#[test]
fn rankscope_does_not_link_mpi() {
    let names_mpi = |program: &str| fs::read(program).unwrap().windows(9).any(|bytes| bytes == b"libmpi.so");
    assert!(!names_mpi(RANKSCOPE), "rankscope links MPI");
    if cfg!(feature = "mpi") {
        assert!(names_mpi(RANK_AGENT), "the check looks for the wrong name");
    }
}
