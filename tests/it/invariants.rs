//! Collects the invariants that tests hold, and compares them with the page that lists them.
//!
//! ```text
//!  /// Invariant (recorder): A forked child does not call CUPTI.       above the test, in Rust
//!  #[test]
//!  fn a_forked_child_does_not_call_cupti() {                  ────►    docs/method/invariants.md
//!
//!  def test_no_buffer_is_copied():
//!      """Invariant (python): Python gets …"""                         in the test, in Python
//! ```
//!
//! The sentence ends at the first blank line. Tests that hold one invariant together repeat its sentence. A Python
//! script that is a check by itself has the sentence in its own docstring.

use std::collections::BTreeMap;

use crate::tidy::sources;

/// The word in brackets, and the heading of the page. The page has them in this order.
const GROUPS: [(&str, &str); 14] = [
    ("files", "Files of a run are whole and are not lost"),
    ("input", "Bytes from outside do no harm"),
    ("formats", "Every format gives its own numbers"),
    ("recorder", "The recorder never fails or slows the job"),
    ("clocks", "A time is never better than its error bar"),
    ("numbers", "Parts sum to the whole, and numbers are those of other tools"),
    ("verdicts", "No rank is blamed without a cause"),
    ("sentences", "No sentence claims what is unknown, and no two contradict each other"),
    ("hang", "The cause of a hang is named"),
    ("watch", "`watch` is bounded and raises no false alarm"),
    ("output", "Every output tells the same story and harms no reader"),
    ("same", "The same input gives the same bytes"),
    ("python", "Python gets what the command prints, and misuse does not crash it"),
    ("code", "The source code keeps its layout"),
];

const HEAD: &str = "\
# Invariants

Each sentence holds for every change, and a test holds it. The sentences stand at the tests; this page is generated from them:
`INSTA_UPDATE=always cargo test -p rankscope-tests --test it -- invariants`.
";

/// Where a sentence stands.
#[derive(Debug, PartialEq)]
struct Held {
    group: String,
    sentence: String,
    /// The name of the test. A script has none.
    test: Option<String>,
}

/// The invariants of one file, or the line that breaks the form.
fn invariants(text: &str, is_python: bool) -> Result<Vec<Held>, String> {
    let begin = if is_python { "Invariant (" } else { "/// Invariant (" };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = line.trim_start_matches("\"\"\"").strip_prefix(begin) else { continue };
        let (group, first) = rest.split_once("): ").ok_or_else(|| format!("no group: {line}"))?;
        let mut sentence = first.to_string();
        for more in &lines[at + 1..] {
            let more = if is_python { Some(*more) } else { more.strip_prefix("/// ") };
            let is_ended = is_python && sentence.ends_with("\"\"\"");
            let Some(more) = more.filter(|more| !is_ended && !more.is_empty() && *more != "\"\"\"") else { break };
            sentence = format!("{sentence} {more}");
        }
        let test = if is_python { python_test(text, at) } else { Some(rust_test(&lines[at..])?) };
        let sentence = sentence.trim_end_matches("\"\"\"").to_string();
        found.push(Held { group: group.to_string(), sentence, test });
    }
    Ok(found)
}

/// The function below a doc comment, which must be a test.
fn rust_test(lines: &[&str]) -> Result<String, String> {
    let name = |line: &&str| line.strip_prefix("fn ").and_then(|rest| rest.split('(').next()).map(str::to_string);
    let is_above = |line: &&&str| line.starts_with("//") || line.starts_with("#[");
    let above = lines.iter().take_while(is_above).count();
    let is_test = lines[..above].contains(&"#[test]");
    lines.get(above).and_then(name).filter(|_| is_test).ok_or_else(|| format!("not at a test: {}", lines[0]))
}

/// The function whose docstring has the line; `None` in the docstring of a script.
fn python_test(text: &str, at: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(at + 1).collect();
    if !lines[at].starts_with(' ') {
        return None;
    }
    let above = lines.iter().rev().find_map(|line| line.strip_prefix("def "));
    above.and_then(|rest| rest.split('(').next()).map(str::to_string)
}

/// The tests of each sentence, by file.
type Tests = BTreeMap<String, Vec<Option<String>>>;

/// The page over all files, which are `(path, text)`.
fn page(files: &[(String, String)]) -> Result<String, String> {
    let mut by_group: BTreeMap<String, BTreeMap<String, Tests>> = BTreeMap::new();
    for (path, text) in files {
        let found = invariants(text, path.ends_with(".py")).map_err(|why| format!("{path}: {why}"))?;
        for Held { group, sentence, test } in found {
            by_group.entry(group).or_default().entry(sentence).or_default().entry(path.clone()).or_default().push(test);
        }
    }
    let mut text = HEAD.to_string();
    for (group, heading) in GROUPS {
        text += &format!("\n## {heading}\n\n");
        for (sentence, files) in by_group.remove(group).unwrap_or_default() {
            text += &format!("- {sentence}\n");
            for (path, tests) in files {
                let tests: Vec<String> = tests.iter().flatten().map(|test| format!("`{test}`")).collect();
                let colon = if tests.is_empty() { "" } else { ": " };
                text += &format!("  - [{path}](../../{path}){colon}{}\n", tests.join(", "));
            }
        }
    }
    match by_group.keys().next() {
        Some(unknown) => Err(format!("no group is called {unknown}")),
        None => Ok(text),
    }
}

#[test]
fn the_page_of_invariants_is_current() {
    let is_read = |path: &str| (path.ends_with(".rs") || path.ends_with(".py")) && path != "tests/it/invariants.rs";
    let files: Vec<_> = sources().into_iter().filter(|s| is_read(&s.path)).map(|s| (s.path, s.text)).collect();
    let expected = page(&files).unwrap();
    assert!(expected.lines().filter(|line| line.starts_with("- ")).count() > 100, "{expected}");
    fixtures::generated::check_text("docs/method/invariants.md", &expected);
}

#[test]
fn an_invariant_is_read_with_its_test() {
    let rust = "
    /// Invariant (same): Threads and
    /// order change nothing.
    ///
    /// One thread or many.
    #[test]
    fn threads_change_nothing() {}
";
    let held = |group: &str, sentence: &str, test: Option<&str>| Held {
        group: group.into(),
        sentence: sentence.into(),
        test: test.map(str::to_string),
    };
    let expected = held("same", "Threads and order change nothing.", Some("threads_change_nothing"));
    assert_eq!(invariants(rust, false), Ok(vec![expected]));
    let python = "\"\"\"A check.\n\nInvariant (clocks): The bound\nholds.\n\"\"\"
def test_one():
    \"\"\"Invariant (python): One.\"\"\"
    call()
def test_two(
    a,
):
    \"\"\"Invariant (python): Two
    lines.
    \"\"\"
";
    let expected = vec![
        held("clocks", "The bound holds.", None),
        held("python", "One.", Some("test_one")),
        held("python", "Two lines.", Some("test_two")),
    ];
    assert_eq!(invariants(python, true), Ok(expected));
}

#[test]
fn an_invariant_without_a_test_or_a_group_is_an_error() {
    let not_a_test = "/// Invariant (same): One.\nfn helper() {}\n";
    assert_eq!(invariants(not_a_test, false), Err("not at a test: /// Invariant (same): One.".to_string()));
    let files = [("a.rs".to_string(), "/// Invariant (other): One.\n#[test]\nfn one() {}\n".to_string())];
    assert_eq!(page(&files), Err("no group is called other".to_string()));
}
