//! What every command says of the small inputs, as snapshots: a changed word is a changed file.
//!
//! `INSTA_UPDATE=always cargo test -p rankscope-tests --test it snapshots` accepts what is new. JSON and the data of pages
//! are shown with the first item of each list.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::commands::subcommands;
use crate::support::{AGGREGATOR, RANK_AGENT, RANKSCOPE, copy_directory, finish, scratch};

/// Compares a text with `snapshots/FOLDER/NAME.snap`.
fn assert_same(folder: &str, name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new("snapshots").join(folder));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let text: String = text.lines().map(|line| line.trim_end().to_string() + "\n").collect();
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// An input of the repository, copied to a place where commands may write beside it.
struct Input {
    name: &'static str,
    place: PathBuf,
    /// What commands are given: the folder, or files of it.
    given: String,
}

impl Input {
    fn new(name: &'static str, path: &str) -> Self {
        let place = scratch(&format!("snapshots_{name}"));
        copy_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path), &place.join(name));
        Self { name, place, given: name.into() }
    }

    /// Runs a command in which `@` is the input.
    fn run(&self, words: &str) -> crate::support::Finished {
        let words = words.replace('@', &self.given);
        finish(Command::new(AGGREGATOR).args(words.split(' ')).current_dir(&self.place).env("NO_COLOR", "1"))
    }

    /// Compares all that a command prints, and its exit code.
    fn check(&self, name: &str, words: &str) {
        let done = self.run(words);
        // The size of a page changes with its scripts.
        let without_size = |line: &str| match line.split_once(", ") {
            Some((before, _)) if before.starts_with("page.html: ") => format!("{before}, …\n"),
            _ => format!("{line}\n"),
        };
        let stderr: String = done.stderr.lines().map(without_size).collect();
        let said = if stderr.is_empty() { stderr } else { format!("\n--- stderr\n{stderr}") };
        let command = words.replace('@', &self.given);
        assert_same(
            self.name,
            name,
            &format!("$ aggregator {command}\n{}{said}\n--- exit {:?}\n", done.stdout, done.code),
        );
    }

    fn check_json(&self, name: &str, words: &str) {
        let done = self.run(words);
        let value: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.said()));
        assert_same(self.name, name, &format!("{:#}", shortened(value)));
    }

    /// Compares the text of the report's page and its data.
    fn check_page(&self) {
        self.check("report", "report @ -o page.html");
        let page = fs::read_to_string(self.place.join("page.html")).unwrap();
        let (text, data) = parts_of_page(&page);
        assert_same(self.name, "report_page", &text);
        assert_same(self.name, "report_data", &format!("{:#}", Value::from_iter(data.into_iter().map(shortened))));
    }
}

/// The first item of each list, and how many more there are.
fn shortened(value: Value) -> Value {
    match value {
        Value::Array(items) if items.len() > 2 => {
            let more = format!("and {} more", items.len() - 1);
            Value::Array(items.into_iter().take(1).map(shortened).chain([json!(more)]).collect())
        }
        Value::Array(items) => items.into_iter().map(shortened).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, shortened(value))).collect(),
        other => other,
    }
}

/// The text of a page, a line for each block, with the names of its sections; and the values of its scripts of data.
fn parts_of_page(page: &str) -> (String, Vec<Value>) {
    let (mut text, mut data, mut rest) = (String::new(), Vec::new(), page);
    while let Some((before, after)) = rest.split_once('<') {
        text += before;
        let (tag, after) = after.split_once('>').unwrap();
        rest = after;
        let element = tag.split([' ', '\n']).next().unwrap();
        if matches!(element, "script" | "style") {
            let (content, after) = rest.split_once(&format!("</{element}>")).unwrap();
            if tag.contains("application/json") {
                data.push(serde_json::from_str(content).unwrap());
            }
            rest = after;
        } else if element == "section" {
            let id = tag.split_once("id=\"").map_or("", |(_, rest)| rest.split('"').next().unwrap());
            text += &format!("\n# {id}\n");
        } else if !matches!(element.trim_start_matches('/'), "bdi" | "span" | "b" | "a" | "code") {
            text.push('\n');
        }
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    (lines.flat_map(|line| [line.strip_prefix("# ").map_or("", |_| "\n"), line, "\n"]).collect(), data)
}

/// What can be asked of every job.
fn check_job(input: &Input) {
    input.check("analyze", "analyze @");
    input.check("analyze_full", "analyze @ --full");
    input.check_json("analyze_json", "analyze @ --json");
    input.check_page();
    input.check("what_if", "what-if @");
    input.check("table", "table @");
    input.check("export", "export @ -o job.pftrace");
    if input.place.join(input.name).join(trace::MANIFEST_FILE).exists() {
        input.check("hang", "hang @");
    } else {
        input.check("ingest", "ingest @ --out ingested");
    }
}

macro_rules! jobs {
    ($($name:ident: $folder:literal,)*) => {
        $(#[test]
        fn $name() {
            check_job(&Input::new(stringify!($name), concat!($folder, "/", stringify!($name))));
        })*
    };
}

jobs! {
    gloo8_slow5: "examples/traces",
    gloo4_slow2_stack: "examples/traces",
    torch_plain: "fixtures/inputs",
    torch_merged: "fixtures/inputs",
    run_slow: "fixtures/inputs",
    ddp_balanced: "fixtures/inputs",
    ddp_slow_host: "fixtures/inputs",
    ddp_slow_device: "fixtures/inputs",
    ddp_slow_link: "fixtures/inputs",
    ddp_two_ranks_lost: "fixtures/inputs",
    fsdp_slow_loader: "fixtures/inputs",
    pipeline_slow_stage: "fixtures/inputs",
    tensor_slow_launches: "fixtures/inputs",
    nsys_sqlite: "fixtures/inputs",
    nsys_parquet: "fixtures/inputs",
    xplane_gpus: "fixtures/inputs",
    xplane_tpus: "fixtures/inputs",
    inspector: "fixtures/inputs",
    rocprof: "fixtures/inputs",
}

#[test]
fn memory_of_two_ranks() {
    let mut input = Input::new("memory_snapshots", "aggregator/tests/data/snapshot");
    input.given = "memory_snapshots/rank0.pickle memory_snapshots/rank3.pickle".into();
    check_job(&input);
}

#[test]
fn hung_jobs() {
    for name in ["hang_missing_call", "hang_stuck_device"] {
        let input = Input::new(name, &format!("fixtures/inputs/{name}"));
        input.check("hang", "hang @");
        input.check_json("hang_json", "hang @ --json");
        input.check("analyze", "analyze @");
    }
}

#[test]
fn two_jobs() {
    let input = Input::new("ddp_two_jobs", "fixtures/inputs/ddp_slow_device");
    let before = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs/ddp_balanced");
    copy_directory(&before, &input.place.join("before"));
    input.check("diff", "diff before @ --force");
    input.check_json("diff_json", "diff before @ --force --json");
    input.check("diff_with_itself", "diff @ @");
    input.check_json("what_if_json", "what-if @ --json");
    input.check("what_if_perfect", "what-if @ --perfect");
    input.check("stacks", "stacks @ --on device");
    input.check("map", "map @ -o parts");
    input.check("reduce", "reduce parts --out reduced");
}

/// The lines of `watch` begin with the time of day.
#[test]
fn a_run_that_has_ended_is_watched() {
    let input = Input::new("run_watched", "fixtures/inputs/run_slow");
    let done = input.run("watch @ --plain --metrics metrics.prom").expect_code(0);
    let lines = done.stdout.lines().map(|line| line.split_once(' ').map_or(line, |(_, said)| said).to_string() + "\n");
    assert_same(input.name, "watch", &lines.collect::<String>());
}

#[test]
fn help_of_every_command_and_the_schema() {
    let programs = [(AGGREGATOR, "aggregator"), (RANK_AGENT, "rank-agent"), (RANKSCOPE, "rankscope")];
    for (program, name) in programs {
        let help = |words: &[&str]| finish(Command::new(program).args(words)).expect_code(0).stdout;
        let all = subcommands(program);
        let texts = all.iter().map(|subcommand| format!("\n==== {subcommand}\n\n{}", help(&[subcommand, "--help"])));
        assert_same("commands", &format!("help_{name}"), &(help(&["--help"]) + &texts.collect::<String>()));
    }
    let schema = |words: &[&str]| finish(Command::new(AGGREGATOR).arg("schema").args(words)).expect_code(0).stdout;
    assert_same("commands", "schema", &(schema(&[]) + &schema(&["stragglers"])));
}
