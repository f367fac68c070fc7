//! Messages of errors: each names the file, the rank or the option first, and what to do. No message shows a temporary name.

use std::fs;
use std::path::Path;
use std::process::Command;

use fixtures::planted::{self, Plan};

use crate::support::{RANK_AGENT, RANKSCOPE, finish, gloo8, scratch};

/// Runs `rankscope` in `here` and returns the exit code and what it printed on stderr.
fn rankscope(here: &Path, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new(RANKSCOPE);
    let done = finish(command.args(line.split(' ')).current_dir(here).env("NO_COLOR", "1"));
    assert!(!done.stderr.contains(".tmp") && !done.stderr.contains("panicked at"), "{line}: {}", done.stderr);
    (done.code, done.stderr)
}

/// A run and traces of eight ranks, and files that are neither.
fn place(name: &str) -> std::path::PathBuf {
    let here = scratch(name);
    planted::write(&Plan::default(), &here.join("run")).unwrap();
    std::os::unix::fs::symlink(fs::canonicalize(gloo8()).unwrap(), here.join("traces")).unwrap();
    fs::create_dir(here.join("empty")).unwrap();
    fs::create_dir(here.join("readme")).unwrap();
    fs::write(here.join("readme/README.md"), "# notes").unwrap();
    fs::write(here.join("text"), "text").unwrap();
    fs::create_dir(here.join("damaged")).unwrap();
    fs::write(here.join("damaged/run.json"), "{").unwrap();
    here
}

#[test]
fn a_wrong_input_is_named_with_what_to_do() {
    let here = place("messages_input");
    for (line, code, message) in [
        ("analyze nowhere", 1, "rankscope: nowhere: there is no such file or directory\n"),
        ("analyze empty", 1, "rankscope: empty: no trace of torch.profiler here; the directory is empty\n"),
        ("analyze readme", 1, "rankscope: readme: no trace of torch.profiler here; found: README.md"),
        ("analyze text", 1, "rankscope: text: it is not a trace of torch.profiler: byte 0: expected a JSON"),
        (
            "analyze damaged",
            1,
            "rankscope: damaged/run.json: not valid, so the file is damaged or of another program (",
        ),
        ("analyze text/run", 1, "rankscope: text/run: text is a file, not a directory"),
        ("analyze traces --max-memory lots", 2, "expected a number of bytes with a unit, as in 8GiB or 500MB"),
        ("analyze traces --min-z -3", 2, "'--min-z <Z>': expected 0 or more"),
        ("what-if traces --comm-scale -1", 2, "expected a number of at least 0, as in 0.5"),
        ("analyze traces --window 9", 1, "rankscope: --window 9: the files hold one window of the profiler\n"),
        (
            "diff traces,run traces",
            1,
            "rankscope: traces and run are not runs of one job: their jobs have 8 and 4 ranks; --force",
        ),
        ("export traces --format chrome -o out", 1, "convert it to a run first (rankscope ingest)"),
        ("watch traces", 1, "rankscope: traces: it has files and no run.json: only a run can be watched"),
    ] {
        let (ended, said) = rankscope(&here, line);
        assert_eq!(ended, Some(code), "{line}: {said}");
        assert!(said.contains(message), "{line}: {said}");
    }
}

/// A selection that holds nothing is an error in every command, repeats the option as it was given, and says what there is.
#[test]
fn a_selection_of_nothing_is_an_error_that_says_what_there_is() {
    let here = place("messages_selection");
    for command in [
        "analyze traces",
        "report traces -o page.html",
        "table traces",
        "stacks traces",
        "stacks traces -o stacks.txt",
        "export traces -o all.pftrace",
        "diff traces traces",
        "what-if traces",
    ] {
        for (selection, why) in
            [("--steps 99", "the recorded steps are 3–8"), ("--ranks 99", "the recorded ranks are 0–7")]
        {
            if command.starts_with("stacks") && selection == "--ranks 99" {
                continue;
            }
            let (ended, said) = rankscope(&here, &format!("{command} {selection}"));
            assert_eq!(ended, Some(1), "{command} {selection}: {said}");
            assert!(
                said.contains(&format!("traces: {selection} selects nothing: {why}")),
                "{command} {selection}: {said}"
            );
        }
    }
    for (options, why) in [
        ("--from +100s", "nothing was recorded then"),
        ("--range nothing_like_this", "no host range in that time matches"),
        ("--step-marker nothing_like_this", "no host range matches"),
    ] {
        let (ended, said) = rankscope(&here, &format!("analyze traces {options}"));
        assert_eq!((ended, said), (Some(1), format!("rankscope: traces: {options} selects nothing: {why}\n")));
    }
    assert!(["page.html", "stacks.txt", "all.pftrace"].iter().all(|file| !here.join(file).exists()));
}

#[test]
fn an_output_that_cannot_be_written_names_the_directory_or_the_file() {
    let here = place("messages_output");
    for (line, code, message) in [
        (
            "report run -o nowhere/deep/page.html",
            1,
            "nowhere/deep/page.html: directory nowhere does not exist (os error 2)",
        ),
        ("export run -o nowhere/all.pftrace", 1, "nowhere/all.pftrace: directory nowhere does not exist (os error 2)"),
        ("stacks run -o nowhere/stacks.txt", 1, "nowhere/stacks.txt: directory nowhere does not exist (os error 2)"),
        ("report run -o empty", 1, "empty: this is a directory; name a file (os error 21)"),
        ("analyze run --out text", 1, "text is a file, not a directory"),
        ("ingest traces --out text", 1, "text: text is a file, not a directory"),
        (
            "report run -o /dev/full",
            1,
            "/dev/full: No space left on device (os error 28); free some, or name another place",
        ),
        (
            "export run --format chrome -o x.json",
            2,
            "4 ranks are 4 files: put {rank} into the name, as in x-{rank}.json",
        ),
        ("export run --format perfetto -o x.json", 2, "a Perfetto trace is not JSON; name the file .pftrace"),
    ] {
        let (ended, said) = rankscope(&here, line);
        assert_eq!(ended, Some(code), "{line}: {said}");
        assert!(said.contains(message), "{line}: {said}");
    }
    let (ended, said) = rankscope(&here, "stacks traces -o stacks.txt");
    assert_eq!(ended, Some(0));
    assert!(said.starts_with("stacks.txt: ") && said.ends_with("stacks of ranks 0–7, times in ns\n"), "{said}");
    let (ended, said) = rankscope(&here, "table traces --group-by stack");
    assert_eq!(ended, Some(0));
    assert!(said.contains("the trace has no Python stacks, so the rows are grouped by name only"), "{said}");
    assert!(said.contains("`rankscope analyze` names the slow one"), "{said}");
}

/// An interrupted training says where the run is and what to type, and its analysis says first that it was cut.
#[test]
fn an_interrupted_training_says_where_its_run_is() {
    let here = scratch("messages_interrupted");
    let mut command = Command::new("timeout");
    // Without --foreground, `timeout` sends the signal twice: to the program, and to its group. A second one ends it at once.
    command.args(["--foreground", "--preserve-status", "-s", "INT", "4"]);
    command.args([RANK_AGENT, "--out", "run", "--steps", "1000000"]);
    command.args(["--layers", "2", "--hidden", "128", "--schedule", "wait=1,warmup=1,active=1000000"]);
    let done = finish(command.current_dir(&here)).expect_code(130);
    let said = done.stderr;
    assert!(said.contains("rank-agent: signal 2 (SIGINT) stopped the training in step "), "{said}");
    assert!(said.contains(" of 1000000; what was recorded until step "), "{said}");
    assert!(said.trim_end().ends_with(" is in run; next: rankscope analyze run"), "{said}");
    let mut command = Command::new(RANKSCOPE);
    let summary = finish(command.args(["analyze", "run"]).current_dir(&here)).expect_code(0).stdout;
    assert!(summary.contains("  first   the recording was cut on rank 0: these numbers are"), "{summary}");
    let mut command = Command::new(RANKSCOPE);
    let json = finish(command.args(["analyze", "run", "--json"]).current_dir(&here)).expect_code(0).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["facts"]["recording_was_cut"], serde_json::json!([0]));
    let omissions = json["tables"]["omissions"].as_array().unwrap();
    assert!(omissions.iter().any(|row| row["what"] == "rest of the program"), "{omissions:?}");
}
