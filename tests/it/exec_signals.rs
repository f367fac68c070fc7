//! Signals around the program that `rank-agent exec` runs: those that its user has it ignore, and those that come before
//! it has begun.

use std::fs;
use std::process::{Child, Command, Stdio};

use fixtures::wait::wait_until;

use crate::support::{RANK_AGENT, aggregator, finish, master_port, scratch};

/// Waits until the process catches SIGTERM itself; earlier the signal would end it.
fn wait_until_it_listens(agent: &Child) {
    const SIGTERM_BIT: u64 = 1 << 14;
    wait_until("rank-agent catches SIGTERM", || {
        let status = fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & SIGTERM_BIT != 0
    });
}

/// `nohup`, and background jobs of a shell that is no terminal's.
#[test]
fn signals_that_the_user_ignores_are_ignored_by_the_program() {
    let run = scratch("exec_nohup").join("run");
    let script =
        r#"trap "" HUP; exec "$0" exec --out "$1" -- sh -c 'kill -HUP $$; echo alive; kill -TERM $$; echo never'"#;
    let done = finish(Command::new("sh").args(["-c", script, RANK_AGENT]).arg(&run)).expect_code(128 + 15);
    assert_eq!(done.stdout, "alive\n", "{}", done.said());
}

#[test]
fn a_rank_stopped_while_it_waits_for_others_starts_nothing() {
    for rank in ["0", "1"] {
        let here = scratch("exec_interrupted");
        let mut command = Command::new(RANK_AGENT);
        command.args(["exec", "--join-timeout", "600", "--out"]).arg(here.join("run"));
        command.args(["--", "touch"]).arg(here.join("started"));
        command.env("TORCHELASTIC_RUN_ID", "a test").env("RANK", rank).env("WORLD_SIZE", "2");
        command.env("LOCAL_RANK", rank).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", master_port().to_string());
        let mut agent = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until_it_listens(&agent);
        finish(Command::new("kill").args(["-TERM", &agent.id().to_string()])).expect_code(0);
        assert_eq!(agent.wait().unwrap().code(), Some(128 + 15), "rank {rank}");
        assert!(!here.join("started").exists(), "rank {rank}");
    }
}

/// A launcher stops a job: both programs get SIGTERM. The job hangs nowhere, and the run says who stopped it.
#[test]
fn a_job_whose_programs_get_sigterm_was_cancelled() {
    let here = scratch("exec_cancelled");
    let (run, port) = (here.join("run"), master_port().to_string());
    let started = |rank: &str| here.join(format!("started-{rank}"));
    let spawn = |rank: &str| {
        let mut command = Command::new(RANK_AGENT);
        command.args(["exec", "--join-timeout", "600", "--out"]).arg(&run).args([
            "--",
            "sh",
            "-c",
            "touch \"$0\"; exec sleep 600",
        ]);
        command.arg(started(rank)).env("TORCHELASTIC_RUN_ID", "a test").env("RANK", rank).env("WORLD_SIZE", "2");
        command
            .env("LOCAL_RANK", rank)
            .env("LOCAL_WORLD_SIZE", "2")
            .env("MASTER_ADDR", "localhost")
            .env("MASTER_PORT", &port);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut agents = ["0", "1"].map(spawn);
    wait_until("both programs run", || ["0", "1"].iter().all(|rank| started(rank).exists()));
    for agent in &mut agents {
        finish(Command::new("kill").args(["-TERM", &agent.id().to_string()])).expect_code(0);
    }
    for agent in &mut agents {
        assert_eq!(agent.wait().unwrap().code(), Some(128 + 15));
    }
    let hang = aggregator(&["hang".as_ref(), run.as_os_str()]);
    assert!(hang.said().contains("cancelled") && hang.said().contains("SIGTERM"), "{}", hang.said());
    assert!(!hang.said().contains("hold the job up"), "{}", hang.said());
}
