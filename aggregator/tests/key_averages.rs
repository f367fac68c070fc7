//! Compares `table` with torch.profiler: every number of `key_averages()`, for traces that torch.profiler wrote.
//!
//! `data/key_averages/make.py` made the traces and tables with PyTorch 2.15. Torch adds and subtracts floating-point µs
//! that are multiples of 1 ns. The comparison is therefore exact after rounding to 1 ns.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::ingest::ingest;
use formats::kineto::KinetoSource;
use formats::run_source::RunSource;
use key_averages::table::{Average, GroupBy, KeyAverages, SortKey, TableOptions, key_averages};
use model::source::Source;
use model::{NONE, RankData};

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/key_averages").join(file)
}

/// Splits a line of CSV written by Python's `csv`.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
    }
    fields
}

/// Name, whether it is a user annotation, group.
type Key = (String, bool, String);
/// Calls, four times in ns, four memory sizes in bytes, FLOPs.
type Numbers = [i64; 10];

fn expected(file: &str) -> BTreeMap<Key, Numbers> {
    let text = std::fs::read_to_string(data(file)).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields = fields(line);
        let group = format!("{}{}", fields[2], fields[3]);
        let mut numbers = [0; 10];
        for (i, (number, field)) in numbers.iter_mut().zip(&fields[4..]).enumerate() {
            let scale = if (1..5).contains(&i) { 1e3 } else { 1.0 };
            *number = (field.parse::<f64>().unwrap() * scale).round() as i64;
        }
        assert!(rows.insert((fields[0].clone(), fields[1] == "1", group), numbers).is_none(), "twice: {line}");
    }
    rows
}

fn found(table: &KeyAverages) -> BTreeMap<Key, Numbers> {
    let numbers = |row: &Average| {
        [
            row.calls,
            row.cpu_time_total_ns,
            row.self_cpu_time_total_ns,
            row.device_time_total_ns,
            row.self_device_time_total_ns,
            row.cpu_memory_usage_bytes.unwrap(),
            row.self_cpu_memory_usage_bytes.unwrap(),
            row.device_memory_usage_bytes.unwrap(),
            row.self_device_memory_usage_bytes.unwrap(),
            row.flops.unwrap_or(0),
        ]
    };
    let key = |row: &Average| (row.name.to_string(), row.is_user_annotation, row.group.to_string());
    table.rows.iter().map(|row| (key(row), numbers(row))).collect()
}

fn table(source: &dyn Source, group_by: GroupBy) -> KeyAverages {
    let (rank, details) = source.load_detailed(0).unwrap();
    key_averages(&rank, &details, &TableOptions { group_by, stack_frames: 3, ..TableOptions::default() })
}

fn compare(source: &dyn Source, of: &str, name: &str) {
    let groups = [(GroupBy::Name, "by_name"), (GroupBy::InputShape, "by_input_shape"), (GroupBy::Stack, "by_stack")];
    for (group_by, file) in groups {
        let file = format!("{name}_{file}.csv");
        if !data(&file).is_file() {
            continue;
        }
        let (found, expected) = (found(&table(source, group_by)), expected(&file));
        for (key, numbers) in &expected {
            let ours = found.get(key).unwrap_or_else(|| panic!("{of} {file}: no row {key:?}"));
            // Torch counts FLOPs even if they were not requested. Without shapes, nothing can count them.
            let but_flops = if name == "gloo" { 9 } else { 10 };
            assert_eq!(ours[..but_flops], numbers[..but_flops], "{of} {file}: {key:?}");
        }
        let more: Vec<_> = found.keys().filter(|key| !expected.contains_key(key)).collect();
        assert!(more.is_empty(), "{of} {file}: extra rows: {more:?}");
    }
}

fn traces(name: &str) -> KinetoSource {
    KinetoSource::open(&[data(&format!("{name}.json.gz"))]).unwrap()
}

/// Invariant (numbers): The `table` command prints torch.profiler's own numbers.
#[test]
fn every_number_equals_torchs() {
    for name in ["stack", "plain", "gloo"] {
        compare(&traces(name), "trace", name);
    }
}

/// An ingested trace gives the same tables.
#[test]
fn every_number_survives_ingestion() {
    for name in ["stack", "plain", "gloo"] {
        let run = tempfile::tempdir().unwrap();
        ingest(&[data(&format!("{name}.json.gz"))], run.path(), &|_, _| ()).unwrap();
        compare(&RunSource::open(run.path()).unwrap(), "run", name);
    }
}

/// Torch's printed table: our rows are in the same order, and the totals are equal. (`gloo` was printed without FLOPs,
/// although its shapes determine them.)
#[test]
fn the_printed_table_is_that_of_torch() {
    for name in ["stack", "plain"] {
        let mut table = table(&traces(name), GroupBy::Name);
        let key = SortKey::SelfCpuTimeTotal;
        key.sort(&mut table.rows);
        let style = report_text::key_averages::TableStyle { width: None, colour: false, rows: Some(8) };
        let ours = report_text::key_averages::render(&table, Some(("self_cpu_time_total", key)), &style);
        let torchs = std::fs::read_to_string(data(&format!("{name}_table.txt"))).unwrap();
        let torchs: Vec<&str> = torchs.lines().filter(|line| !line.starts_with("---")).collect();
        let ours: Vec<&str> = ours.lines().skip(1).collect();
        assert_eq!(ours.len(), torchs.len());
        for (ours, torchs) in ours.iter().zip(torchs) {
            let (ours, torchs) = (ours.split_whitespace(), torchs.split_whitespace());
            assert_eq!(ours.clone().count(), torchs.clone().count());
            for (ours, torchs) in ours.zip(torchs) {
                assert!(same(ours, torchs), "{name}: {ours}, torch {torchs}");
            }
        }
    }
}

/// Equal words, or numbers of one unit that differ by one in the last of three digits, because torch's floating-point
/// sums round half-way cases either way.
fn same(ours: &str, torchs: &str) -> bool {
    let split = |text: &str| {
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-').to_string();
        (text.strip_suffix(unit.as_str()).and_then(|number| number.parse::<f64>().ok()), unit)
    };
    match (split(ours), split(torchs)) {
        ((Some(a), unit), (Some(b), other)) if unit == other && ours.contains('.') => (a - b).abs() < 0.0011,
        _ => ours == torchs,
    }
}

/// The FLOPs of each operator that multiplies matrices, summed over all rows.
fn products(rank: &RankData) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    let events = &rank.events;
    for row in (0..events.len()).filter(|row| events.flops[*row] != NONE) {
        *sums.entry(rank.names[events.name[row] as usize].to_string()).or_default() += events.flops[row];
    }
    sums
}

/// Torch's profiler and its FlopCounterMode agree on products of matrices. In these traces, no product is inside of
/// another, so the rows of `analyze` and `table` have the same sums, as a trace and as a run.
#[test]
fn products_have_the_flops_of_torchs_table() {
    let mut folders = vec![vec![data("gloo.json.gz")]];
    folders.push(vec![fixtures::data::folder("gloo8_slow5")]);
    for paths in folders {
        let run = tempfile::tempdir().unwrap();
        ingest(&paths, run.path(), &|_, _| ()).unwrap();
        let traces = KinetoSource::open(&paths).unwrap();
        let rank = traces.load(0).unwrap();
        let found = products(&rank);
        assert!(found.keys().all(|name| name.ends_with("mm")) && !found.is_empty(), "{found:?}");
        assert_eq!(products(&RunSource::open(run.path()).unwrap().load(0).unwrap()), found);
        let table = table(&traces, GroupBy::Name);
        let torchs =
            table.rows.iter().filter(|row| row.name.ends_with("mm")).map(|row| (row.name.to_string(), row.flops));
        assert_eq!(torchs.collect::<BTreeMap<_, _>>(), found.into_iter().map(|(name, f)| (name, Some(f))).collect());
    }
}
