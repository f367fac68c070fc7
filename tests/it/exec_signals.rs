//! Signals around the program that `rank-agent exec` runs: those that its user has it ignore, and those that come before
//! it has begun.

use std::fs;
use std::process::{Child, Command, Stdio};

use fixtures::wait::wait_until;

use crate::support::{RANK_AGENT, finish, master_port, scratch};

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
