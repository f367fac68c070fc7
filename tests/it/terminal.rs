//! No text of a trace, a name or a path controls the terminal, whatever a command prints.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixtures::planted::{self, Plan};
use serde_json::{Value, json};
use trace::terminal::is_control;
use trace::{CounterRow, Run, ShardMeta, batch_from_rows, write_shard};

use crate::support::{AGGREGATOR, RANK_AGENT, RANKSCOPE, finish, inject_library, scratch, skipped};

/// A title, a colour, both kinds of CSI, a forged line, directions, a separator of lines.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[31m\u{9b}2J\r\nBALANCED \u{202e}\u{2067}\u{61c}\u{2028}\u{7f}";

/// The same as a file's name, with bytes that are no UTF-8.
fn hostile_name(end: &str) -> PathBuf {
    OsStr::from_bytes(&[b"a", HOSTILE.as_bytes(), b"\xff\x9b31m", end.as_bytes()].concat()).into()
}

/// Appends the hostile text to every string of a document, also to keys of objects that no reader knows.
fn poison(value: &mut Value) {
    match value {
        Value::String(text) => text.push_str(HOSTILE),
        Value::Array(values) => values.iter_mut().for_each(poison),
        Value::Object(values) => values.values_mut().for_each(poison),
        _ => {}
    }
}

/// The events of one rank on a device: a collective with its kernel, and a kernel.
fn device_events(rank: i32) -> Vec<Value> {
    let at = |ts: i32| 4_379_189_622_951.0 + f64::from(ts);
    let kernel = |name: &str, ts, dur, args: Value| json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at(ts), "dur": dur, "args": args});
    let collective = json!({"device": 0, "stream": 7, "correlation": 2, "Collective name": "allreduce", "dtype": "Float",
        "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 4, "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1, 2, 3]", "Seq": 1});
    vec![
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100 + rank, 50, collective),
        kernel(
            "ampere_sgemm_128x64_tn",
            10,
            80,
            json!({"device": 0, "stream": 7, "correlation": 1, "grid": [1, 1, 1]}),
        ),
    ]
}

/// Traces of which every string is hostile, apart from those that make them traces, beside a file that is none.
fn hostile_traces(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo4_slow2_stack");
    for rank in 0..4 {
        let mut text = String::new();
        let file = fs::File::open(example.join(format!("rank{rank}.json.gz"))).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let mut events = document["traceEvents"].as_array_mut().map(std::mem::take).unwrap();
        events.extend(device_events(rank));
        events[0]["name"] = "long".repeat(100_000).into();
        for event in &mut events {
            poison(&mut event["args"]);
            let name = event["name"].as_str().unwrap();
            if !name.starts_with("ProfilerStep") && event["ph"] != "M" {
                poison(&mut event["name"]);
            }
        }
        poison(&mut document);
        document["traceEvents"] = events.into();
        let name = if rank == 0 { hostile_name("0.json") } else { format!("rank{rank}.json").into() };
        fs::write(directory.join(name), document.to_string()).unwrap();
    }
    fs::write(directory.join(hostile_name(".txt")), "no trace").unwrap();
    fs::write(directory.join(hostile_name(".json")), "{\"traceEvents\": [{\"ph\"").unwrap();
}

/// A run whose shards are claimed by hosts with hostile names, whose counters have a hostile reason, and which has a shard
/// and a file with hostile names.
fn hostile_run(run: &Path) {
    planted::write(&Plan { ops: 40, ..Plan::default() }, run).unwrap();
    let sound = (*Run::open(run).unwrap().shards(1, "counters")[0].meta).clone();
    let row = |rank| CounterRow {
        rank,
        source: HOSTILE.into(),
        recorded: 1,
        dropped: 1,
        why: Some(HOSTILE.into()),
        ..CounterRow::default()
    };
    let table = <CounterRow as trace::Row>::table();
    let write = |meta: &ShardMeta, part| {
        write_shard(run, &table, meta, part, &[batch_from_rows(&[row(meta.rank)]).unwrap()]).unwrap();
    };
    write(&sound, 7);
    let hostile = |text: &String| format!("{text}{HOSTILE}");
    write(&ShardMeta { host: hostile(&sound.host), session: hostile(&sound.session), ..sound.clone() }, 8);
    write(&ShardMeta { run_id: hostile(&sound.run_id), ..sound }, 9);
    fs::write(run.join("events").join(hostile_name(".parquet")), "no shard").unwrap();
}

/// Arguments of a command: words and paths.
fn words(list: &[&dyn AsRef<OsStr>]) -> Vec<PathBuf> {
    list.iter().map(|word| PathBuf::from(word.as_ref())).collect()
}

/// The commands that read `input`, in every format that is text.
fn reading(input: &Path, out: &Path) -> Vec<Vec<PathBuf>> {
    let mut all = vec![
        words(&[&"analyze", &input]),
        words(&[&"analyze", &input, &"--full", &"--top", &"1000"]),
        words(&[&"analyze", &input, &"--json"]),
        words(&[&"analyze", &input, &"--out", &out.join(hostile_name(""))]),
        words(&[&"table", &input, &"--ranks", &"all", &"--row-limit", &"-1"]),
        words(&[&"table", &input, &"--json"]),
        words(&[&"table", &input, &"--ranks", &"77"]),
        words(&[&"stacks", &input]),
        words(&[&"stacks", &input, &"--on", &"device"]),
        words(&[&"report", &input, &"-o", &out.join(hostile_name(".html"))]),
        words(&[&"export", &input, &"-o", &out.join(hostile_name(".pftrace"))]),
        words(&[&"export", &input, &"--format", &"chrome", &"-o", &out.join(hostile_name(""))]),
        words(&[&"diff", &input, &input]),
        words(&[&"diff", &input, &input, &"--json", &"--fail-over", &"0"]),
        words(&[&"ingest", &input, &"--out", &out.join(hostile_name(""))]),
    ];
    for group in ["input-shape", "module", "stack"] {
        all.push(words(&[&"table", &input, &"--group-by", &group]));
    }
    all
}

/// Checks that both outputs are UTF-8 without a control but line breaks, and returns them.
#[track_caller]
fn expect_harmless(command: &mut Command) -> String {
    let output = command.env_remove("COLUMNS").output().unwrap();
    let mut said = String::new();
    for (name, bytes) in [("stdout", output.stdout), ("stderr", output.stderr)] {
        let text = String::from_utf8(bytes).unwrap_or_else(|error| panic!("{command:?} {name}: {error}"));
        let found = text.char_indices().find(|(_, c)| *c != '\n' && is_control(*c));
        let near = found.map(|(at, c)| (c, text[..at].chars().rev().take(60).collect::<Vec<_>>()));
        assert_eq!(near.map(|(c, near)| (c, near.into_iter().rev().collect::<String>())), None, "{command:?} {name}");
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        // JSON and stacks are data, and no line of them is shortened.
        assert!(text.starts_with('{') || name == "stdout" || longest < 20_000, "{command:?} {name}: {longest}");
        assert!(!text.lines().any(|line| line.starts_with("BALANCED \\")), "{command:?} {name} has a forged line");
        said += &text;
    }
    assert!(!said.contains("panicked at"), "{said}");
    said
}

/// Invariant (output): No string of a trace controls a terminal.
#[test]
fn no_string_of_a_trace_controls_the_terminal() {
    let here = scratch("terminal").join(hostile_name(""));
    let (traces, run, ingested) = (here.join("traces"), here.join("run"), here.join("ingested"));
    hostile_traces(&traces);
    hostile_run(&run);
    let said = expect_harmless(Command::new(AGGREGATOR).args(words(&[&"ingest", &traces, &"--out", &ingested])));
    assert!(said.contains(r"\u{1b}]0;owned\u{7}"), "{said}");
    for input in [&traces, &run, &ingested] {
        let mut shown = 0;
        for (number, arguments) in reading(input, &here.join("out")).iter().enumerate() {
            let out = here.join("out");
            fs::create_dir_all(&out).unwrap();
            let program = [AGGREGATOR, RANKSCOPE][number % 2];
            let said = expect_harmless(Command::new(program).args(arguments));
            shown += usize::from(said.contains(r"\u{1b}") || said.contains(r"\u001b"));
            fs::remove_dir_all(out).unwrap();
        }
        assert!(shown >= 12, "only {shown} commands show a hostile string of {}", input.display());
    }
}

/// Invariant (output): No name, path or other argument controls a terminal.
///
/// Arguments come from file names where the shell expands a pattern.
#[test]
fn no_argument_controls_the_terminal() {
    let here = scratch("terminal_arguments");
    let name = hostile_name("");
    let option = OsStr::from_bytes(&[b"--", name.as_os_str().as_bytes()].concat()).to_os_string();
    let text = format!("a{HOSTILE}");
    for arguments in [
        words(&[&"analyze", &name]),
        words(&[&option]),
        words(&[&text]),
        words(&[&"analyze", &here, &option]),
        words(&[&"analyze", &here, &"--steps", &text]),
        words(&[&"table", &here, &"--sort-by", &text]),
        words(&[&"schema", &text]),
        words(&[&"diff", &text, &text]),
    ] {
        for program in [AGGREGATOR, RANKSCOPE] {
            expect_harmless(Command::new(program).args(&arguments));
        }
    }
    let out = here.join(format!("run{HOSTILE}"));
    for arguments in [
        words(&[&option]),
        words(&[&"--inject", &text]),
        words(&[&"--schedule", &text]),
        words(&[&"ctl", &"status", &"--out", &name]),
        words(&[&"exec", &"--out", &here.join("absent"), &"--", &name]),
        words(&[&"exec", &"--out", &here.join(&name), &"--", &"true"]),
        words(&[&"exec", &"--out", &out, &"--", &"true"]),
        words(&[&"exec", &"--out", &out, &"--", &"true"]),
        words(&[
            &"--out",
            &here.join(format!("train{HOSTILE}")),
            &"--steps",
            &"2",
            &"--layers",
            &"1",
            &"--hidden",
            &"8",
        ]),
    ] {
        for program in [RANK_AGENT, RANKSCOPE] {
            if program == RANK_AGENT || arguments[0] == Path::new("exec") || arguments[0] == Path::new("ctl") {
                let mut command = Command::new(program);
                expect_harmless(command.args(&arguments).env("RANKSCOPE_INJECT_LIB", inject_library()));
            }
        }
    }
}

/// On a terminal the program's colours stay, and those of a trace do not appear.
#[test]
fn colours_of_the_program_survive_on_a_terminal() {
    let what = "colours_of_the_program_survive_on_a_terminal";
    let here = scratch("terminal_colours");
    let traces = here.join("traces");
    hostile_traces(&traces);
    let on_terminal = |words: &str| {
        let script = format!("cd '{}' && '{AGGREGATOR}' {words}", here.display());
        let mut command = Command::new("script");
        command.args(["-qec", &script, "/dev/null"]).env_remove("NO_COLOR").env("TERM", "xterm");
        command.output().is_ok().then(|| finish(&mut command))
    };
    let Some(done) = on_terminal("analyze traces 2>/dev/null") else {
        return skipped(what, "there is no script(1) of util-linux");
    };
    let said = done.stdout.replace("\r\n", "\n");
    assert!(said.contains("\u{1b}[1m") && said.contains(r"\u{1b}[31m"), "{said}");
    // Each sequence is a style, and it stands at the edges of a line or of a title: none is inside of a name.
    let mut rest = said.as_str();
    while let Some(at) = rest.find('\u{1b}') {
        let end = rest[at..].find('m').unwrap();
        assert!(rest[at + 1..at + end].chars().all(|c| matches!(c, '[' | ';' | '0'..='9')), "{}", &rest[at..at + end]);
        rest = &rest[at + end..];
    }
    assert!(!said.contains("owned\u{1b}") && !said.contains("\u{7}") && !said.contains('\u{9b}'), "{said}");
    let refused = on_terminal("report traces -o -").unwrap();
    assert!(refused.code == Some(2) && refused.stdout.contains("stdout is a terminal"), "{}", refused.said());
}
