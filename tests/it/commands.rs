//! The commands from outside: exit codes, messages, and that nothing depends on threads or order.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use fixtures::planted::{self, Plan};

use crate::support::{
    AGGREGATOR, RANK_AGENT, RANKSCOPE, aggregator, files, finish, is_root, scratch, skipped, sound_run,
};

#[test]
fn usage_errors_end_with_2_and_help_with_0() {
    for program in [RANK_AGENT, AGGREGATOR, RANKSCOPE] {
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

/// Invariant (files): Of several analyses of one run at once, each ends well, and the tables are those of one of them.
#[test]
fn analyses_of_one_run_at_once_do_not_disturb_each_other() {
    let run = scratch("at_once").join("run");
    planted::write(&Plan { ops: 20, ..Plan::default() }, &run).unwrap();
    aggregator(&[Path::new("analyze"), &run]).expect_code(0);
    let before = files(&run.join("analysis"));
    for _ in 0..8 {
        let start = |_| {
            let mut command = Command::new(AGGREGATOR);
            command.arg("analyze").arg(&run).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let started: Vec<_> = (0..6).map(start).collect();
        for analysis in started {
            let done = analysis.wait_with_output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        assert!(files(&run.join("analysis")) == before);
    }
    assert_eq!(fs::read_dir(&run).unwrap().filter(|entry| is_left(entry.as_ref().unwrap())).count(), 0);
}

/// Whether a writer has left it under a temporary name.
fn is_left(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().contains(".rankscope-")
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
    // A directory without traces: the error names what is in it.
    let said = aggregator(&[Path::new("analyze"), &here]).expect_code(1).stderr;
    assert!(said.contains("wrong_input: no trace of torch.profiler here") && said.contains("notes.txt"), "{said}");
}

#[test]
fn a_run_of_which_no_rank_can_be_read_says_why() {
    let run = scratch("no_rank").join("run");
    planted::write(&Plan { ops: 20, ..Plan::default() }, &run).unwrap();
    let manifest = fs::read_to_string(run.join(trace::MANIFEST_FILE)).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let was = other["run_id"].as_str().unwrap().to_string();
    other["run_id"] = "other".into();
    fs::write(run.join(trace::MANIFEST_FILE), other.to_string()).unwrap();
    let out = run.with_file_name("out");
    for words in [
        &["analyze"][..],
        &["table"],
        &["stacks"],
        &["report", "-o", out.to_str().unwrap()],
        &["export", "--format", "chrome", "-o", out.to_str().unwrap()],
        &["diff", run.to_str().unwrap()],
    ] {
        let said = aggregator(&[words, &[run.to_str().unwrap()]].concat()).expect_code(1).stderr;
        assert!(said.contains(&format!("it belongs to run {was:?}, the manifest says \"other\"")), "{words:?}: {said}");
        assert!(!out.exists(), "{words:?}");
    }
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let run = scratch("full").join("run");
    planted::write(&Plan::default(), &run).unwrap();
    for words in [["report", "-o"], ["export", "-o"], ["stacks", "-o"]] {
        let arguments = [words[0].as_ref(), run.as_os_str(), words[1].as_ref(), "/dev/full".as_ref()];
        let said = aggregator(&arguments).expect_code(1).stderr;
        assert!(said.contains("/dev/full: No space left on device"), "{words:?}: {said}");
    }
}

/// A run that belongs to another user, or lies on a read-only mount. Root may write everywhere but there.
#[test]
fn a_read_only_run_is_analyzed_and_not_saved() {
    let what = "a_read_only_run_is_analyzed_and_not_saved";
    let run = scratch("read_only").join("run");
    planted::write(&Plan::default(), &run).unwrap();
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        let user: &[&str] = if is_root() { &[] } else { &["--user", "--map-root-user"] };
        command.arg("--mount").args(user).args(["sh", "-c", script, "sh"]).arg(&run).arg(AGGREGATOR);
        finish(&mut command)
    };
    let read_only = r#"mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99"#;
    if in_namespace(read_only).code != Some(0) {
        skipped(what, "this kernel allows no mounts here");
        return;
    }
    let said = in_namespace(&format!(r#"{read_only}; exec "$2" analyze "$1""#)).expect_code(0);
    let note = "is read-only; --out DIR saves it there";
    assert!(said.stdout.starts_with("LOST") && said.stderr.contains(note), "{}", said.said());
    assert!(!run.join("analysis").exists());
}

#[test]
fn a_format_that_is_not_read_is_named_with_what_to_do_instead() {
    let here = scratch("unread");
    for name in ["report.nsys-rep", "trace.pftrace"] {
        let path = here.join(name);
        fs::write(&path, b"").unwrap();
        // Without a PATH there is no `nsys`.
        let mut command = Command::new(AGGREGATOR);
        let said = finish(command.arg("analyze").arg(&path).env("PATH", &here)).expect_code(1).stderr;
        assert!(said.contains(name) && said.contains("not read"), "{said}");
    }
}

/// A report is exported by `nsys` where there is one. A script stands for it here: it knows no `--include-blobs`, as older
/// releases, and copies an export.
#[test]
fn a_report_of_nsight_systems_is_exported_and_read() {
    let export = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs/nsys_sqlite/job.sqlite");
    let here = scratch("nsys_report");
    let nsys = here.join("nsys");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\nwhile [ $# -gt 0 ]; do case $1 in\n--include-blobs*) echo 'unknown option' >&2; \
         exit 1 ;;\n--output) out=$2; shift ;;\n*/broken.nsys-rep) echo 'not a report' >&2; exit 1 ;;\nesac; shift; done\n\
         /bin/cat '{}' > \"$out\"\n",
        export.display()
    );
    fs::write(&nsys, script).unwrap();
    fs::set_permissions(&nsys, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let temporary = here.join("tmp");
    fs::create_dir(&temporary).unwrap();
    let analyzed = |path: &Path, code: i32| {
        let mut command = Command::new(AGGREGATOR);
        let command = command.arg("analyze").arg(path).args(["--json", "--out"]).arg(here.join("out"));
        finish(command.env("PATH", &here).env("TMPDIR", &temporary)).expect_code(code)
    };
    let report = here.join("a.nsys-rep");
    fs::write(&report, b"").unwrap();
    // A row of the input is lost.
    let of_report = analyzed(&report, 3).stdout;
    assert!(of_report.contains("`nsys export` wrote it as SQLite"), "{of_report}");
    let events = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["facts"]["events"].clone();
    assert_eq!(events(&of_report), events(&analyzed(&export, 3).stdout));
    let broken = here.join("broken.nsys-rep");
    fs::write(&broken, b"").unwrap();
    let said = analyzed(&broken, 1).stderr;
    assert!(said.contains("broken.nsys-rep") && said.contains("not a report"), "{said}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "the exports are removed");
}

/// What was chosen for the clocks is used or nothing is: an error, or a rank that is listed, but never another method.
#[test]
fn a_chosen_clock_is_used_or_refused() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo4_slow2_stack");
    let by = |choice: &str| {
        aggregator(&[Path::new("analyze"), &traces, Path::new("--full"), Path::new("--clock"), Path::new(choice)])
    };
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

/// A trace with a kernel of NCCL, one of DeepEP, and one of which nothing is known.
fn trace_of_three_exchanges(file: &Path) {
    let kernel = |name: &str, stream: i32, ts: i32, dur: i32| {
        let args = format!(r#"{{"device":0,"stream":{stream},"correlation":{ts}}}"#);
        let place = format!(r#""pid":0,"tid":{stream},"ts":{ts},"dur":{dur}"#);
        format!(r#"{{"ph":"X","cat":"kernel","name":"{name}",{place},"args":{args}}}"#)
    };
    let rows = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, 100, 100),
        kernel("void deep_ep::intranode::combine<2>(int4*)", 21, 100, 300),
        kernel("void my_exchange<float>(float*)", 22, 100, 600),
        kernel("ampere_sgemm_128x64_tn", 7, 100, 800),
    ];
    fs::write(file, format!(r#"{{"traceEvents":[{}]}}"#, rows.join(","))).unwrap();
}

/// What counts as communication is decided again from the names, for traces and for runs; HTA's table never changes.
#[test]
fn comm_and_not_comm_say_what_communicates() {
    let here = scratch("what_communicates");
    let (traces, run) = (here.join("rank0.json"), here.join("run"));
    trace_of_three_exchanges(&traces);
    aggregator(&[Path::new("ingest"), &traces, Path::new("--out"), &run]).expect_code(0);
    for input in [&traces, &run] {
        let analyzed = |options: &[&str]| {
            let mut words = vec![Path::new("analyze"), input, Path::new("--json")];
            words.extend(options.iter().map(Path::new));
            let said = aggregator(&words).expect_code(0).stdout;
            serde_json::from_str::<serde_json::Value>(&said).unwrap()
        };
        for (options, us) in [
            (&[][..], 300),
            (&["--comm", "hta"], 100),
            (&["--comm", "my_exch"], 600),
            (&["--comm", "my_exch", "--not-comm", "exchange|deep_ep"], 100),
            (&["--not-comm", "."], 0),
        ] {
            let analysis = analyzed(options);
            let tables = &analysis["tables"];
            assert_eq!(tables["step_breakdown"][0]["comm_total_ns"], us * 1_000, "{options:?}");
            assert_eq!(tables["hta_temporal_breakdown"][0]["compute_time_ns"], 800_000, "{options:?}");
            let facts = &analysis["facts"];
            assert_eq!(facts["communication"].as_str().unwrap_or_default(), options.join(" "));
        }
        let analysis = analyzed(&[]);
        let sentence = analysis["facts"]["communication_by_name"].as_str().unwrap();
        assert!(sentence.ends_with("1 kernel, 75 % of communication time: deep_ep::intranode::combine"), "{sentence}");
        let findings = analysis["tables"]["findings"].as_array().unwrap();
        let possible = findings.iter().find(|row| row["id"] == "possible-communication").unwrap();
        assert!(possible["title"].as_str().unwrap().contains(": my_exchange on"), "{possible}");
    }
    let summary =
        aggregator(&[Path::new("analyze"), &traces, Path::new("--full"), Path::new("--comm"), Path::new("my_exch")]);
    let summary = summary.expect_code(0).stdout;
    assert!(summary.contains("communication as --comm my_exch says"), "{summary}");
    assert!(summary.contains("communication by kernel name alone"), "{summary}");
    let refused = aggregator(&[Path::new("analyze"), &traces, Path::new("--not-comm"), Path::new("(")]);
    let refused = refused.expect_code(2);
    assert!(refused.stderr.contains("not-comm"), "{}", refused.stderr);
}

#[test]
fn a_closed_output_pipe_is_no_failure() {
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

#[test]
fn schema_prints_tables_and_their_columns() {
    let schema = |arguments: &[&str]| aggregator(&[&["schema"], arguments].concat());
    let list = schema(&[]).expect_code(0).stdout;
    for name in ["events", "stragglers", "global_events_utc", "step_breakdown_total", "nccl_proxy"] {
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}:\n{list}");
    }
    let events = schema(&["events"]).expect_code(0).stdout;
    let line = events.lines().find(|line| line.trim_start().starts_with("dur_ns")).unwrap();
    assert_eq!(line.split_whitespace().take(4).collect::<Vec<_>>(), ["dur_ns*", "BIGINT", "ns", "Length"]);
    let json: serde_json::Value =
        serde_json::from_str(&schema(&["clock_fit", "--json"]).expect_code(0).stdout).unwrap();
    let column = &json["tables"][0]["columns"][1];
    assert_eq!((&column["name"], &column["words"][0]["word"]), (&"clock".into(), &"host".into()));
    let error = schema(&["no_such_table"]).expect_code(2).stderr;
    assert!(error.contains("no_such_table"), "{error}");
}

/// Invariant (same): The number of threads and the order of ranks change no byte.
///
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
pub(crate) fn subcommands(program: &str) -> Vec<String> {
    let help = finish(Command::new(program).arg("--help")).expect_code(0).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(String::from).collect()
}

/// Completions and man pages have one form for all commands, and list every subcommand.
#[test]
fn completions_and_man_pages_list_every_subcommand() {
    let programs = [(AGGREGATOR, "aggregator", "fail-over"), (RANK_AGENT, "rank-agent", "bucket-mb")];
    for (program, name, option) in programs.into_iter().chain([(RANKSCOPE, "rankscope", "nccl-detail")]) {
        let completions = ["bash", "zsh", "fish"].map(|shell| {
            let text = finish(Command::new(program).args(["completions", shell])).expect_code(0).stdout;
            assert!(text.contains(name) && text.contains(option), "{shell}: {text}");
            text
        });
        finish(Command::new(program).args(["completions", "cmd.exe"])).expect_code(2);
        let pages = scratch(&format!("man_{name}"));
        finish(Command::new(program).arg("man").arg(&pages)).expect_code(0);
        let whole = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(whole.contains(".SH NAME"), "{whole}");
        let subcommands = subcommands(program);
        assert!(subcommands.len() >= 4, "{subcommands:?}");
        for command in &subcommands {
            let reference = format!("{name}-{command}(1)").replace('-', "\\-");
            assert!(whole.contains(&reference), "{command} is not in {name}.1: {whole}");
            let text = fs::read_to_string(pages.join(format!("{name}-{command}.1"))).unwrap();
            assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{command}: {text}");
            for text in &completions {
                let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '-');
                assert!(words.any(|word| word == command), "{command}: {text}");
            }
        }
        let page = finish(Command::new(program).arg("man")).expect_code(0).stdout;
        assert!(page.contains(".SH NAME"), "{page}");
    }
}

/// Scripts use the options that the subcommands of rank-agent have replaced.
#[test]
fn the_old_options_for_completions_and_man_pages_still_work() {
    let old = finish(Command::new(RANK_AGENT).args(["--completions", "bash"])).expect_code(0).stdout;
    let new = finish(Command::new(RANK_AGENT).args(["completions", "bash"])).expect_code(0).stdout;
    assert_eq!(old, new);
    let page = finish(Command::new(RANK_AGENT).arg("--man")).expect_code(0).stdout;
    assert!(page.contains(".SH OPTIONS") && page.contains("bucket"), "{page}");
}

/// Rank 2 works 5 ms longer in each step, and all others wait for it.
#[test]
fn what_if_names_the_change_that_saves_most() {
    let run = scratch("what_if").join("run");
    planted::write(&Plan { slow: vec![(2, 5_000_000)], ..Plan::default() }, &run).unwrap();
    let asked = |options: &[&str]| {
        let arguments = [&["what-if", run.to_str().unwrap(), "--json"], options].concat();
        let printed = aggregator(&arguments).expect_code(0).stdout;
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()
    };
    let listed = asked(&[]);
    let saved_ns = |found: &serde_json::Value| found["changes"][0]["saved_ns"].as_i64().unwrap();
    let without = asked(&["--without", "rank=2"]);
    assert!((4_900_000..=5_100_000).contains(&saved_ns(&without)), "{without}");
    assert!(saved_ns(&listed) >= saved_ns(&without), "{listed}");
    assert_eq!(saved_ns(&asked(&["--without", "rank=1"])), 0);
    assert_eq!(saved_ns(&asked(&["--comm-scale", "1"])), 0);
    assert!(saved_ns(&asked(&["--no-overlap"])) <= 0);
    assert!(saved_ns(&asked(&["--perfect"])) >= saved_ns(&asked(&["--role-median"])));
    let text = aggregator(&["what-if", run.to_str().unwrap()]).expect_code(0).stdout;
    assert!(text.contains("without the excess of rank 2"), "{text}");
    for wrong in [["--without", "5"], ["--without", "rank=x"], ["--comm-scale", "-1"], ["--without", "rank=99"]] {
        aggregator(&["what-if", run.to_str().unwrap(), wrong[0], wrong[1]]).expect_code(2);
    }
}

/// Each option is asked for where the recording is what it asks for. The first planted bucket is larger than one of
/// DistributedDataParallel, so the recorded buckets are asked for by a test of the replay.
#[test]
fn what_if_saves_nothing_of_what_was_recorded() {
    let even = Plan::default();
    let instant = Plan { transfer_ns: 0, ..Plan::default() };
    let blocking = Plan { buckets: 1, ..Plan::default() };
    let cases: [(&str, &[&str], &Plan); 5] = [
        ("without", &["rank=1"], &even),
        ("role-median", &[], &even),
        ("comm-scale", &["1"], &even),
        ("no-overlap", &[], &blocking),
        ("perfect", &[], &instant),
    ];
    let page = include_str!("../../docs/method/what-if.md").lines().filter_map(|line| line.strip_prefix("| `--"));
    let options = page.filter_map(|line| line.split([' ', '`']).next());
    let documented: Vec<&str> = options.filter(|option| *option != "bucket-mb").collect();
    assert_eq!(documented, cases.map(|(option, ..)| option));
    for (option, value, plan) in cases {
        let run = scratch(&format!("what_if_{option}")).join("run");
        planted::write(plan, &run).unwrap();
        let option = format!("--{option}");
        let arguments = [&["what-if", run.to_str().unwrap(), "--json", &option], value].concat();
        let found: serde_json::Value = serde_json::from_str(&aggregator(&arguments).expect_code(0).stdout).unwrap();
        let ns = |key: &str| found["changes"][0][key].as_i64().unwrap();
        let holds_zero = ns("saved_low_ns") <= 0 && 0 <= ns("saved_high_ns");
        assert!(ns("saved_ns") == 0 || holds_zero, "{option}: {found}");
    }
}

#[test]
fn what_if_knows_no_other_buckets_on_devices() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs/ddp_slow_device");
    let traces = traces.to_str().unwrap();
    let said = aggregator(&["what-if", traces, "--bucket-mb", "25"]).expect_code(1).stderr;
    assert!(said.contains("unknown for a job on devices"), "{said}");
    let listed = aggregator(&["what-if", traces]).expect_code(0).stdout;
    assert!(!listed.contains("bucket"), "{listed}");
}

#[test]
fn a_file_that_is_no_pipeline_is_refused_with_its_name() {
    let directory = scratch("wia");
    let (trace, meta) = (directory.join("trace.parquet"), directory.join("meta.yaml"));
    fs::write(&trace, "PAR1 but nothing else").unwrap();
    fs::write(&meta, "dp_size: 2\nworld_size: 4\n").unwrap();
    let said = || {
        let arguments = ["what-if", "--wia", trace.to_str().unwrap(), "--meta", meta.to_str().unwrap()];
        aggregator(&arguments).expect_code(1).stderr
    };
    assert!(said().contains("meta.yaml: world_size 4 is not"), "{}", said());
    fs::write(&meta, "dp_size: 2\nworld_size: 2\n").unwrap();
    assert!(said().contains("trace.parquet: Parquet error: Invalid Parquet file"), "{}", said());
}
