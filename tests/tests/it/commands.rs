//! The commands from outside: exit codes, messages, and that nothing depends on threads or order.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{AGGREGATOR, RANK_AGENT, aggregator, files, finish, scratch, sound_run};

#[test]
fn usage_errors_end_with_2_and_help_with_0() {
    for program in [RANK_AGENT, AGGREGATOR] {
        finish(Command::new(program).arg("--help")).expect_code(0);
        finish(Command::new(program).arg("--version")).expect_code(0);
        finish(Command::new(program).arg("--no-such-flag")).expect_code(2);
    }
    aggregator(&["analyze"]).expect_code(2);
    aggregator(&["frobnicate"]).expect_code(2);
    for wrong in ["slow", "slow:rank=x,ms=1", "slow:rank=0", "slow:rank=0,ms=1,phase=lunch", "quick:rank=0"] {
        let said = finish(Command::new(RANK_AGENT).args(["--inject", wrong])).expect_code(2).stderr;
        assert!(said.contains("--inject"), "{wrong}: {said}");
    }
    for wrong in ["active=0x", "wait=1;active=2", "warmup=-1"] {
        finish(Command::new(RANK_AGENT).args(["--schedule", wrong])).expect_code(2);
    }
}

#[test]
fn wrong_input_ends_with_1_and_names_it() {
    let here = scratch("wrong_input");
    let missing = here.join("no_such_run");
    let said = aggregator(&[Path::new("analyze"), &missing]).expect_code(1).stderr;
    assert!(said.contains("no_such_run"), "{said}");
    let empty = here.join("empty");
    fs::create_dir(&empty).unwrap();
    let said = aggregator(&[Path::new("analyze"), &empty]).expect_code(1).stderr;
    assert!(said.contains("empty"), "{said}");
    let file = here.join("notes.txt");
    fs::write(&file, "not a run").unwrap();
    let said = aggregator(&[Path::new("analyze"), &file]).expect_code(1).stderr;
    assert!(said.contains("notes.txt"), "{said}");
}

#[test]
fn a_format_that_is_not_read_is_named_with_what_to_do_instead() {
    let here = scratch("unread");
    for name in ["report.nsys-rep", "report.sqlite", "host.xplane.pb"] {
        let path = here.join(name);
        fs::write(&path, b"SQLite format 3\0").unwrap();
        let said = aggregator(&[Path::new("analyze"), &path]).expect_code(1).stderr;
        assert!(said.contains(name) && said.contains("not read"), "{said}");
    }
}

/// What was chosen for the clocks is used or nothing is: an error, or a rank that is listed, but never another method.
#[test]
fn a_chosen_clock_is_used_or_refused() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo4_slow2_stack");
    let by = |choice: &str| aggregator(&[Path::new("analyze"), &traces, Path::new("--clock"), Path::new(choice)]);
    for method in ["collective", "same_host", "utc"] {
        let said = by(method).expect_code(0).stdout;
        assert!(said.contains(&format!("4 host clocks by {method}:")), "{said}");
    }
    let auto = by("auto").expect_code(0).stdout;
    assert!(auto.contains("4 host clocks by same_host:"), "{auto}");
    let refused = by("ping").expect_code(1);
    assert!(refused.stderr.contains("--clock ping") && refused.stderr.contains("round trips"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    by("best").expect_code(2);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let Some(run) = sound_run("broken_pipe") else { return };
    let mut child = Command::new(AGGREGATOR)
        .args([Path::new("analyze"), &run, Path::new("--json")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn json_goes_to_stdout_and_is_json() {
    let Some(run) = sound_run("json") else { return };
    let out = aggregator(&[Path::new("analyze"), &run, Path::new("--json")]).expect_code(0).stdout;
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let stragglers = value["tables"]["stragglers"].as_array().unwrap();
    assert_eq!(stragglers.len(), 2, "{stragglers:?}");
}

/// One thread or many, ranks in any order, once or twice: the same bytes.
#[test]
fn threads_and_order_change_nothing() {
    let Some(run) = sound_run("same_bytes") else { return };
    let analyze = |threads: &str, extra: &[&str]| {
        let mut command = Command::new(AGGREGATOR);
        command.arg("analyze").arg(&run).arg("--json").args(extra).env("RAYON_NUM_THREADS", threads);
        let out = finish(&mut command).expect_code(0).stdout;
        (out, files(&run.join(trace::ANALYSIS_DIR)))
    };
    let serial = analyze("1", &[]);
    assert!(serial.1.len() > 8, "{} analysis files", serial.1.len());
    assert!(analyze("8", &[]) == serial, "eight threads differ from one");
    assert!(analyze("3", &[]) == serial, "a second analysis differs from the first");
    let ordered = analyze("2", &["--ranks", "0,1"]);
    assert!(analyze("2", &["--ranks", "1,0"]) == ordered, "the order of --ranks matters");
}

/// The subcommands that `--help` lists.
fn subcommands() -> Vec<String> {
    let help = aggregator(&["--help"]).expect_code(0).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(String::from).collect()
}

/// Completions know the subcommands and options, and a man page says what each is for.
#[test]
fn shells_and_man_know_both_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let said = aggregator(&["completions", shell]).expect_code(0).stdout;
        assert!(said.contains("aggregator") && said.contains("fail-over"), "{shell}: {said}");
        let said = finish(Command::new(RANK_AGENT).args(["--completions", shell])).expect_code(0).stdout;
        assert!(said.contains("rank-agent") && said.contains("bucket-mb"), "{shell}: {said}");
    }
    aggregator(&["completions", "cmd.exe"]).expect_code(2);
    let pages = scratch("man");
    aggregator(&[Path::new("man"), &pages]).expect_code(0);
    let subcommands = subcommands();
    assert!(subcommands.len() >= 9, "{subcommands:?}");
    let whole = fs::read_to_string(pages.join("aggregator.1")).unwrap();
    let completions = ["bash", "zsh", "fish"].map(|shell| aggregator(&["completions", shell]).expect_code(0).stdout);
    for command in &subcommands {
        assert!(whole.contains(&format!("aggregator\\-{command}(1)")), "{command} is not in aggregator.1: {whole}");
        let text = fs::read_to_string(pages.join(format!("aggregator-{command}.1"))).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{command}: {text}");
        for known in &completions {
            assert!(known.split(|c: char| !c.is_alphanumeric()).any(|word| word == command), "{command}: {known}");
        }
    }
    let page = finish(Command::new(RANK_AGENT).arg("--man")).expect_code(0).stdout;
    assert!(page.contains(".SH OPTIONS") && page.contains("bucket"), "{page}");
}
