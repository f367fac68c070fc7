//! Rules of the house that no lint holds.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file and longest function, in lines.
const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] = &["/home/", "/Users/", "/root/", "/work/", "/mnt/"];

pub(crate) struct Source {
    /// Relative to the workspace.
    pub(crate) path: String,
    pub(crate) text: String,
}

pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every text file of the repository, in the order of their paths.
pub(crate) fn sources() -> Vec<Source> {
    let root = workspace_root();
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 40, "only {} files found under {}", found.len(), root.display());
    found
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | ".git" | ".venv" | "runs" | "shared" | "traces") {
                walk(root, &path, found);
            }
            continue;
        }
        // A worktree's `.git` is a file, and Cargo.lock is cargo's.
        if name == ".git" || name == "Cargo.lock" || name == "proptest-regressions" {
            continue;
        }
        // A file that is not text (a captured shard) has no style.
        if let Ok(text) = fs::read_to_string(&path) {
            let path = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

fn rust_sources() -> Vec<Source> {
    sources().into_iter().filter(|s| s.path.ends_with(".rs")).collect()
}

/// `(line, name, lines)` of every function, in source that rustfmt formatted: a function ends at the first `}` that
/// stands as far to the left as its `fn`.
fn functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let depth = indent(line);
        for (end, last) in lines.iter().enumerate().skip(start) {
            let one_line = end == start && (last.ends_with('}') || last.ends_with(';'));
            let closed = end > start && indent(last) == depth && (last.trim() == "}" || last.trim().ends_with(';'));
            if one_line || closed {
                found.push((start + 1, name.to_string(), end - start + 1));
                break;
            }
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    while let Some((word, after)) = rest.split_once(' ') {
        if word == "fn" {
            return after.split(['(', '<']).next();
        }
        let qualifier = matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"" | "default")
            || (word.starts_with("pub(") && word.ends_with(')'));
        if !qualifier {
            return None;
        }
        rest = after;
    }
    None
}

#[test]
fn function_lengths_are_measured_right() {
    let text = "\
pub(crate) fn one() {}
impl X {
    const fn two(
        self,
    ) -> u32 {
        if self.x {
            1
        }
    }
    fn declared(&self) -> u32;
}
// fn no() {
";
    let expected = [(1, "one".to_string(), 1), (3, "two".to_string(), 7), (10, "declared".to_string(), 1)];
    assert_eq!(functions(text), expected);
}

/// Invariant (code): Every file states its purpose.
#[test]
fn every_file_begins_with_a_module_comment() {
    let silent: Vec<String> =
        rust_sources().into_iter().filter(|s| !s.text.starts_with("//!")).map(|s| s.path).collect();
    assert_eq!(silent, Vec::<String>::new(), "these files do not begin with //!");
}

/// The gate builds no harness for the unit tests of programs.
#[test]
fn programs_have_no_unit_tests() {
    let is_program =
        |path: &str| path.ends_with("src/main.rs") || path.contains("src/bin/") || path.contains("fuzz_targets/");
    let tested = rust_sources().into_iter().filter(|s| is_program(&s.path) && s.text.contains("#[test]"));
    assert_eq!(tested.map(|s| s.path).collect::<Vec<_>>(), Vec::<String>::new(), "the gate does not run their tests");
}

/// Invariant (code): Files and functions are short.
#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for source in rust_sources() {
        let lines = source.text.lines().count();
        if lines > MAX_FILE_LINES {
            long.push(format!("{}: {lines} lines", source.path));
        }
        for (line, name, length) in functions(&source.text) {
            if length > MAX_FUNCTION_LINES {
                long.push(format!("{}:{line}: fn {name} has {length} lines", source.path));
            }
        }
    }
    assert_eq!(long, Vec::<String>::new());
}

/// Invariant (code): `unsafe` code lives in modules called `ffi`.
#[test]
fn unsafe_code_lives_in_ffi_modules() {
    // Spelled in two parts, or this file would find itself.
    let keyword = concat!("uns", "afe ");
    let mut outside = Vec::new();
    for source in rust_sources() {
        let in_ffi = source.path.split('/').any(|part| part == "ffi" || part == "ffi.rs");
        for (number, line) in source.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let used =
                [format!("{keyword}{{"), format!("{keyword}impl"), format!("{keyword}fn"), format!("{keyword}extern")];
            if !in_ffi && used.iter().any(|u| code.contains(u.as_str())) {
                outside.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    assert_eq!(outside, Vec::<String>::new());
}

/// The lints deny `unwrap`; no code outside tests may switch them off.
#[test]
fn unwrap_lints_stay_on_outside_tests() {
    let mut off = Vec::new();
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "benches" || part == "tests.rs");
    for source in rust_sources().iter().filter(|s| !is_test(&s.path)) {
        for (number, line) in source.text.lines().enumerate() {
            let lint = [concat!("clippy::unw", "rap_used"), concat!("clippy::exp", "ect_used")];
            if lint.iter().any(|l| line.contains(l)) {
                off.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    assert_eq!(off, Vec::<String>::new());
}

#[test]
fn no_path_of_one_machine_and_no_stray_blank() {
    let mut wrong = Vec::new();
    for source in sources() {
        if source.path == "tests/it/tidy.rs" {
            continue;
        }
        for (number, line) in source.text.lines().enumerate() {
            let at = format!("{}:{}", source.path, number + 1);
            for path in MACHINE_PATHS.iter().filter(|p| line.contains(**p)) {
                wrong.push(format!("{at}: {path}"));
            }
            if line.ends_with([' ', '\t', '\r']) {
                wrong.push(format!("{at}: blank at the end of the line"));
            }
        }
        if !source.text.is_empty() && !source.text.ends_with('\n') {
            wrong.push(format!("{}: no newline at the end", source.path));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Invariant (code): Every test that the guide of GPU clusters names exists.
///
/// A name in backticks with two underscores is a test that holds the sentence before it, or the row of a table.
#[test]
fn the_guide_of_gpus_names_tests_that_exist() {
    let sources = rust_sources();
    let python = |entry: std::io::Result<fs::DirEntry>| {
        Some(entry.unwrap().path()).filter(|path| path.extension().is_some_and(|extension| extension == "py"))
    };
    let in_python = fs::read_dir(workspace_root().join("python/tests")).unwrap().filter_map(python);
    let in_python: Vec<String> = in_python.map(|path| fs::read_to_string(path).unwrap()).collect();
    let exists = |name: &&str| {
        sources.iter().any(|s| s.text.contains(&format!("fn {name}(")))
            || in_python.iter().any(|text| text.contains(&format!("def {name}(")))
    };
    let page = fs::read_to_string(workspace_root().join("docs/guide/gpu-cluster.md")).unwrap();
    let part = page.split("## What it does to the program").nth(1).unwrap().split("\n## ").next().unwrap();
    let quoted = part.split('`').skip(1).step_by(2);
    let is_test = |q: &&str| q.matches('_').count() >= 2 && !q.contains(['.', ' ', '/']) && q.to_lowercase() == *q;
    let named: Vec<&str> = quoted.filter(is_test).collect();
    assert!(named.len() >= 12, "only {} tests are named", named.len());
    let missing: Vec<&str> = named.into_iter().filter(|name| !exists(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn the_guide_lists_the_claims_that_tests_gpu_checks() {
    let claims = fs::read_to_string(workspace_root().join("tests/gpu/claims.tsv")).unwrap();
    let guide = fs::read_to_string(workspace_root().join("docs/guide/gpu-cluster.md")).unwrap();
    for line in claims.lines() {
        let [name, claim, stand_in] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(guide.contains(&format!("| `{name}` | {claim} | {stand_in} |\n")), "{name}");
    }
}

/// Invariant (output): One module prints to the terminal.
///
/// Text of traces, names and paths must not control a terminal, so one module prints.
#[test]
fn only_the_door_to_the_terminal_prints() {
    const DOOR: &str = "trace/src/terminal.rs";
    const PRINTS: [&str; 5] = ["io::stdout", "io::stderr", "println!(", "print!(", "dbg!("];
    let is_of_a_command = |s: &Source| {
        let test = ["/tests/", "/tests.rs", "/examples/", "/benches/", "_loom.rs", "/build.rs"];
        !["tests/", "fixtures/"].iter().any(|begin| s.path.starts_with(begin))
            && !test.iter().any(|t| s.path.contains(t))
    };
    let mut checked = 0;
    for source in rust_sources().into_iter().filter(is_of_a_command) {
        let code = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines =
            code.lines().filter(|line| !line.trim_start().starts_with("//") && !line.contains(".is_terminal()"));
        let found: Vec<&str> = lines.filter(|line| PRINTS.iter().any(|print| line.contains(print))).collect();
        assert_eq!(found.is_empty(), source.path != DOOR, "{}: {found:?} prints past {DOOR}", source.path);
        checked += 1;
    }
    assert!(checked > 200, "only {checked} files");
}

/// The text of a key in a line of TOML.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{key} = \""))?;
    Some(rest.split_once('"')?.0)
}

/// The exceptions for advisories in a policy of cargo-deny: each id, and the date at which it ends if one is stated.
fn exceptions(policy: &str) -> Vec<(&str, Option<&str>)> {
    let lines = policy.lines().filter(|line| !line.trim_start().starts_with('#'));
    let ids = lines.filter_map(|line| Some((quoted(line, "id").filter(|id| id.starts_with("RUSTSEC-"))?, line)));
    let date = |line| Some(quoted(line, "reason")?.strip_prefix("until ")?.split_once(':')?.0);
    ids.map(|(id, line)| (id, date(line))).collect()
}

/// The exceptions that have no date, or are past it. `today` is as `2027-05-31`.
fn ended<'a>(policy: &'a str, today: &str) -> Vec<&'a str> {
    let is_date = |date: &str| date.len() == 10 && date.split('-').all(|part| part.parse::<u32>().is_ok());
    let stands = |date: Option<&str>| date.is_some_and(|date| is_date(date) && date >= today);
    exceptions(policy).into_iter().filter(|(_, date)| !stands(*date)).map(|(id, _)| id).collect()
}

#[test]
fn exceptions_end_with_their_dates() {
    let policy = r#"ignore = [
        { id = "RUSTSEC-2025-0001", reason = "until 2027-05-31: a reason" },
        { id = "RUSTSEC-2025-0002", reason = "no date" },
        # { id = "RUSTSEC-2025-0003", reason = "until 2020-01-01: a comment" },
    ]"#;
    assert_eq!(ended(policy, "2027-05-31"), ["RUSTSEC-2025-0002"]);
    assert_eq!(ended(policy, "2027-06-01"), ["RUSTSEC-2025-0001", "RUSTSEC-2025-0002"]);
}

/// Invariant (code): No exception for an advisory is past its date.
#[test]
fn exceptions_for_advisories_have_not_ended() {
    let policy = fs::read_to_string(workspace_root().join("deny.toml")).unwrap();
    let date = std::process::Command::new("date").args(["-u", "+%F"]).output().unwrap();
    let today = String::from_utf8(date.stdout).unwrap();
    let named = policy.lines().filter(|line| line.contains("\"RUSTSEC-")).count();
    assert_eq!(exceptions(&policy).len(), named, "each is on a line of its own");
    assert_eq!(ended(&policy, today.trim()), Vec::<&str>::new(), "mend them, or look again and give them a new date");
}

/// Invariant (code): Every fuzz target was run, and says for how long.
#[test]
fn the_hours_of_every_fuzz_target_are_listed() {
    let fuzz = workspace_root().join("fuzz");
    let hours = fs::read_to_string(fuzz.join("hours.tsv")).unwrap();
    let listed: Vec<&str> = hours.lines().skip(1).filter_map(|line| line.split('\t').nth(2)).collect();
    let targets = fs::read_dir(fuzz.join("fuzz_targets")).unwrap();
    let names = targets.map(|target| target.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned());
    let names: Vec<String> = names.collect();
    assert!(names.len() > 10, "{names:?}");
    let missing: Vec<&String> = names.iter().filter(|name| !listed.contains(&name.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "tests/fuzz --keep-results SECONDS adds their lines");
}

fn workflows() -> Vec<Source> {
    let found: Vec<Source> = sources().into_iter().filter(|s| s.path.starts_with(".github/workflows/")).collect();
    assert!(found.len() >= 3, "only {} workflows", found.len());
    found
}

/// If what a step uses has a commit, and its version as a comment.
fn is_pinned(uses: &str) -> bool {
    let Some((action, version)) = uses.split_once(" # v") else { return false };
    let Some((_, commit)) = action.split_once('@') else { return false };
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    commit.len() == 40 && commit.bytes().all(is_hex) && version.starts_with(|first: char| first.is_ascii_digit())
}

#[test]
fn workflows_name_actions_by_commit_and_keep_no_token() {
    assert!(!is_pinned("a/b@v4") && !is_pinned("a/b@v4 # v4.2.2"));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Source { path, text } in workflows() {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(uses) = line.trim_start_matches("- ").strip_prefix("uses: ") else { continue };
            let mut rest_of_step = lines[index + 1..].iter().take_while(|line| !line.starts_with("- "));
            let keeps_token = uses.starts_with("actions/checkout@")
                && !rest_of_step.any(|line| *line == "persist-credentials: false");
            if !is_pinned(uses) || keeps_token {
                wrong.push(format!("{path}:{}: {uses}", index + 1));
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} actions");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn workflows_may_write_only_where_no_code_of_ours_runs() {
    // A job begins with its name, two blanks from the left.
    let begins = |line: &str| line.strip_prefix("  ").is_some_and(|rest| !rest.starts_with([' ', '#']));
    for Source { path, text } in workflows() {
        let (head, all_jobs) = text.split_once("\njobs:\n").unwrap();
        assert!(head.contains("\npermissions:") && !head.contains(": write"), "{path}: all of its jobs may write");
        let mut jobs: Vec<Vec<&str>> = Vec::new();
        for line in all_jobs.lines() {
            match jobs.last_mut() {
                Some(job) if !begins(line) => job.push(line),
                _ => jobs.push(vec![line]),
            }
        }
        for job in jobs.iter().filter(|job| job.iter().any(|line| line.contains(": write"))) {
            let is_ours = |line: &&&str| ["checkout@", "cargo", "pip", "./"].iter().any(|word| line.contains(word));
            let ours: Vec<&&str> = job.iter().filter(is_ours).collect();
            assert!(ours.is_empty(), "{path}: {} may write and runs {ours:?}", job[0].trim());
        }
    }
}

#[test]
fn what_pip_installs_has_hashes() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Source { path, text } in sources() {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.contains("requirements") && name.ends_with(".txt") {
            let whole = text.replace("\\\n", " ");
            let packages = whole.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
            for package in packages {
                if !(package.contains("==") && package.contains(" --hash=sha256:")) {
                    wrong.push(format!("{path}: {package}"));
                }
                checked += 1;
            }
        }
        if path.starts_with(".github/workflows/") {
            let installs = |line: &&str| line.contains("pip install") || line.contains("pip\" install");
            let unchecked = text.lines().filter(installs).filter(|line| !line.contains("--require-hashes"));
            wrong.extend(unchecked.map(|line| format!("{path}: {}", line.trim())));
        }
    }
    assert!(checked > 100, "only {checked} packages");
    assert_eq!(wrong, Vec::<String>::new());
}
