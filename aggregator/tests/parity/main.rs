//! Compares the aggregator's tables with those of HTA for the same real traces (`RANKSCOPE_DATA`, default
//! `../shared/data`).
//!
//! The test makes three comparisons for every file, number by number:
//!
//! 1. HTA's file with the [`oracle`], which recomputes the table from the raw JSON by HTA's rules, including its known
//!    errors. Both must be equal, which proves that these errors are understood.
//! 2. Our table with the oracle by the definitions alone. Both must be equal.
//! 3. Our table with HTA's file. Each difference that HTA's rounding cannot explain is listed in `differences.md`, with the
//!    smallest set of HTA's errors that turns our number into HTA's. The list is checked both ways.
//!
//! The tolerance is derived, not fitted. Traces of whole µs have none. Elsewhere HTA rounds every start up and every
//! end down to whole µs. Each duration is therefore short by less than 2 µs, and a sum of n rows by less than 2·n µs
//! (`raw::Rank::slack_us`).

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod collectives;
mod oracle;
mod ours;
mod raw;
mod sequences;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use fixtures::data::real_traces;
use oracle::Folder;
use ours::Ours;
use raw::{HTA, Rank, Rules, SWITCHES, Switch};
use table::{Number, Table, hta_file};

pub(crate) fn children(path: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Whether two numbers are equal up to the precision of doubles in long sums.
fn equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0)
}

/// The rounding of shares that HTA prints with one or two digits.
fn printed_digits(column: &str) -> f64 {
    match column {
        "percentage" => 0.05,
        "idle_time_ratio" => 0.005,
        _ if column.ends_with("pctg") => 0.005,
        _ => 0.0,
    }
}

fn cell(table: &Table, key: &(String, String)) -> Option<f64> {
    table.get(key).map(|number| number.value)
}

/// Adds missing idle categories as 0, because HTA omits categories without gaps.
fn filled(mut table: Table, like: &Table) -> Table {
    for key in like.keys().filter(|(_, column)| column.starts_with("idle_time") && !column.contains("pctg")) {
        if !key.1.contains("(us)") {
            table.entry(key.clone()).or_insert(Number { value: 0.0, slack: 0.0 });
        }
    }
    table
}

/// One difference between our table and HTA's.
struct Difference {
    row: String,
    column: String,
    ours: Option<f64>,
    hta: Option<f64>,
    why: String,
}

struct Comparison {
    numbers: usize,
    exact: usize,
    differences: Vec<Difference>,
    /// Violations: HTA's file differs from its rules, or our table from the definitions.
    faults: Vec<String>,
}

fn near(a: Option<f64>, b: Option<f64>, slack: f64) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => equal(a, b) || (a - b).abs() <= slack * (1.0 + 1e-9),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn compare(folder: &Folder, ours: &Table, hta: &Table, file: &str) -> Comparison {
    let by_hta = folder.table(file, HTA);
    let by_definition = folder.table(file, Rules::default());
    let hta = &filled(hta.clone(), &by_hta);
    let slack_of = |table: &Table, key: &(String, String)| table.get(key).map_or(0.0, |n| n.slack);
    // Where doubles cannot represent the trace's ns, the oracle cannot either.
    let coarse = folder.ranks.iter().any(|rank| rank.grid > 1e-3);
    let mut comparison = Comparison { numbers: 0, exact: 0, differences: Vec::new(), faults: Vec::new() };
    let mut explanations = None;
    let keys: BTreeSet<&(String, String)> = ours.keys().chain(hta.keys()).collect();
    for key in keys {
        comparison.numbers += 1;
        let (our, their) = (cell(ours, key), cell(hta, key));
        let (made, defined) = (cell(&by_hta, key), cell(&by_definition, key));
        let printed = printed_digits(&key.1);
        // HTA's rules do not determine the order of changes within one µs.
        let sorted = file.starts_with("queue") || file.starts_with("memory_bw");
        let open = if sorted { slack_of(&by_hta, key) } else { 0.0 };
        if !near(made, their, open + printed) {
            comparison.faults.push(format!("{key:?}: HTA's {their:?}, by its rules {made:?}"));
        }
        let slack = slack_of(&by_definition, key);
        if !near(our, defined, if coarse { slack } else { 2e-3 * slack }) {
            comparison.faults.push(format!("{key:?}: ours {our:?}, by definition {defined:?}"));
        }
        comparison.exact += usize::from(near(our, their, printed));
        let slack = slack.max(slack_of(&by_hta, key)) + printed;
        if !near(our, their, slack) {
            let explained = explanations.get_or_insert_with(|| explanations_of(folder, file, &by_definition, &by_hta));
            let fits = |(_, table): &&(String, Table)| near(cell(table, key), their, open + printed);
            let why = explained.iter().find(fits).map_or("UNEXPLAINED".into(), |(why, _)| why.clone());
            let (row, column) = key.clone();
            comparison.differences.push(Difference { row, column, ours: our, hta: their, why });
        }
    }
    comparison
}

/// The table by the definitions plus some of HTA's errors, for every combination of errors that changes it, smaller
/// ones first.
fn explanations_of(folder: &Folder, file: &str, by_definition: &Table, by_hta: &Table) -> Vec<(String, Table)> {
    let with = |rules: Rules, switches: &[Switch], on: bool| {
        let mut rules = rules;
        switches.iter().for_each(|(_, switch)| *switch(&mut rules) = on);
        folder.table(file, rules)
    };
    let matters =
        |s: &Switch| with(Rules::default(), &[*s], true) != *by_definition || with(HTA, &[*s], false) != *by_hta;
    let relevant: Vec<Switch> = SWITCHES.into_iter().filter(matters).collect();
    let mut choices: Vec<Vec<Switch>> = (1_usize..1 << relevant.len())
        .map(|bits| (0..relevant.len()).filter(|i| bits >> i & 1 == 1).map(|i| relevant[i]).collect())
        .collect();
    choices.sort_by_key(Vec::len);
    let why = |choice: &[Switch]| choice.iter().map(|(why, _)| *why).collect::<Vec<_>>().join("; ");
    choices.iter().map(|choice| (why(choice), with(Rules::default(), choice, true))).collect()
}

/// Rows of one column with the same reason beyond this number are counted and summed instead of listed.
const LISTED: usize = 8;

fn render(differences: &[Difference], text: &mut String) {
    let mut groups: BTreeMap<(&str, &str, bool, bool), Vec<&Difference>> = BTreeMap::new();
    for d in differences {
        groups.entry((&d.column, &d.why, d.ours.is_some(), d.hta.is_some())).or_default().push(d);
    }
    let number = |value: Option<f64>| value.map_or("–".to_string(), |v| format!("{}", (v * 1e4).round() / 1e4));
    let plain = |row: &str| row.replace('|', "/").chars().take(100).collect::<String>();
    for ((column, why, _, _), group) in groups {
        let sum = |of: fn(&Difference) -> Option<f64>| group.iter().filter_map(|d| of(d)).reduce(|a, b| a + b);
        if group.len() > LISTED {
            let (ours, hta) = (number(sum(|d| d.ours)), number(sum(|d| d.hta)));
            writeln!(text, "| {} rows, summed | {column} | {ours} | {hta} | {why} |", group.len()).unwrap();
            continue;
        }
        for d in group {
            let (ours, hta) = (number(d.ours), number(d.hta));
            writeln!(text, "| {} | {column} | {ours} | {hta} | {why} |", plain(&d.row)).unwrap();
        }
    }
}

const HEAD: &str = "\
Every number whose difference from HTA's files exceeds HTA's truncation of times to whole µs, with the reason. Written by the test
`parity`, which fails if a line is missing or superfluous. Values are in the units of HTA's files.
";

#[test]
#[ignore = "reads real traces"]
fn every_table_equals_htas_except_for_htas_errors() {
    let data = real_traces();
    let (mut text, mut summary, mut faults) = (HEAD.to_string(), String::new(), Vec::new());
    for expected in children(&data.join("expected_hta")) {
        let name = file_name(&expected);
        let traces = data.join("kineto").join(&name);
        let ours = Ours::new(&traces);
        ours.launch_sums_agree();
        let folder = Folder::new(raw_ranks(&traces));
        for path in children(&expected) {
            let file = file_name(&path);
            // The critical path has its own test. HTA gives no numbers for stragglers, see below.
            if file.starts_with("critical_path") || file.ends_with(".json") {
                continue;
            }
            let found = compare(&folder, &ours.table(&file), &hta_file(&path), &file);
            let listed = found.differences.len();
            let near = found.numbers - found.exact.min(found.numbers - listed) - listed;
            writeln!(summary, "| {name} | {file} | {} | {} | {near} | {listed} |", found.numbers, found.exact).unwrap();
            faults.extend(found.faults.iter().map(|fault| format!("{name}/{file} {fault}")));
            if listed > 0 {
                write!(text, "\n## {name}/{file}\n\n| row | column | ours | HTA's | why |\n|---|---|---|---|---|\n")
                    .unwrap();
                render(&found.differences, &mut text);
            }
        }
    }
    let _ = write!(
        text,
        "\n## All files\n\n| trace | file | numbers | equal | within rounding | listed above |\n|---|---|---|---|---|---|\n{summary}"
    );
    fixtures::generated::check_text("aggregator/tests/parity/differences.md", &text);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(60)].join("\n"));
    assert!(!text.contains("UNEXPLAINED"));
}

/// The ranks of a folder, read by serde_json. The aggregator's plan determines the rank numbers.
pub(crate) fn raw_ranks(traces: &Path) -> Vec<Rank> {
    let plan = kineto::plan(&[traces.to_path_buf()], kineto::PlanOptions::default()).unwrap();
    plan.files.iter().map(|file| Rank::read(&file.path, file.rank.into())).collect()
}

/// HTA always reports two stragglers, however small their lateness. dlrm8 has one step, and sampled_2of128 lacks 126
/// ranks: no rank may be blamed.
#[test]
#[ignore = "reads real traces"]
fn htas_stragglers_are_not_our_verdict() {
    let data = real_traces();
    for (name, candidates) in [("dlrm8", "[2, 7]"), ("sampled_2of128", "[0, 1]")] {
        let path = data.join("expected_hta").join(name).join("potential_stragglers.json");
        let printed = std::fs::read_to_string(path).unwrap();
        let ours = Ours::new(&data.join("kineto").join(name));
        let blamed = ours.tables.stragglers.iter().filter(|s| &*s.verdict == "cause").count();
        assert_eq!((printed.trim(), blamed), (candidates, 0), "{name}");
    }
}
