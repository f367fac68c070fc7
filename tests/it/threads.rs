//! Where the system makes no thread, the analysis runs on the one that there is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{AGGREGATOR, Finished, files, finish, is_root, skipped};

/// A user without processes. The limit counts all processes and threads of a user, and does not hold for root.
const UNUSED_USER: u32 = 64_917;

/// Runs the command under a limit of so many threads of its user, or without a limit.
fn limited(threads: Option<u32>, arguments: &[&Path]) -> Finished {
    let mut command = Command::new("prlimit");
    command.args(threads.map(|threads| format!("--nproc={threads}"))).arg(AGGREGATOR).args(arguments);
    if is_root() {
        command.uid(UNUSED_USER).gid(UNUSED_USER);
    }
    finish(command.env("NO_COLOR", "1").env("RAYON_NUM_THREADS", "4"))
}

/// Invariant (same): If the system makes no threads, one thread gives the same results.
#[test]
fn without_threads_every_command_gives_the_same_result() {
    let what = "without_threads_every_command_gives_the_same_result";
    // The other user must reach the files.
    let place = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let traces = place.path().join("traces");
    fs::create_dir(&traces).unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo8_slow5")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), traces.join(entry.file_name())).unwrap();
    }
    if Command::new("prlimit").arg("--version").output().is_err() {
        return skipped(what, "there is no prlimit of util-linux");
    }
    let reached = limited(None, &[Path::new("analyze"), &traces]);
    if reached.code != Some(0) {
        return skipped(what, &format!("another user cannot run the command here: {}", reached.said()));
    }
    // The limit works: a shell cannot fork.
    let mut shell = Command::new("prlimit");
    if is_root() {
        shell.uid(UNUSED_USER).gid(UNUSED_USER);
    }
    let forked = finish(shell.args(["--nproc=1", "sh", "-c", "true & wait; exit 0"]));
    assert!(forked.stderr.contains("fork"), "the limit does not work: {}", forked.said());
    let run = [place.path().join("with"), place.path().join("without")];
    let ingest = |limit, run: &Path| limited(limit, &[Path::new("ingest"), &traces, Path::new("--out"), run]);
    ingest(None, &run[0]).expect_code(0);
    ingest(Some(1), &run[1]).expect_code(0);
    assert!(files(&run[0]) == files(&run[1]), "the runs differ");
    for input in [&traces, &run[0]] {
        for words in [
            &["analyze", "--json"][..],
            &["table", "--ranks", "all"],
            &["stacks"],
            &["report", "-o", "-"],
            &["export", "-o", "-"],
        ] {
            let mut arguments: Vec<&Path> = words.iter().map(Path::new).collect();
            arguments.insert(1, input);
            let [with, without] = [None, Some(1)].map(|limit| limited(limit, &arguments).expect_code(0));
            assert!(with.stdout == without.stdout && !with.stdout.is_empty(), "{words:?} differs");
        }
        limited(Some(1), &[Path::new("diff"), input, input]).expect_code(0);
    }
    // Some threads, but fewer than wanted: the same.
    let [few, all] =
        [Some(3), None].map(|limit| limited(limit, &[Path::new("analyze"), &traces]).expect_code(0).stdout);
    assert_eq!(few, all);
}
