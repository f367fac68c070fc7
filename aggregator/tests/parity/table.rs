//! A table of numbers by row and column, and a reader of CSV files.

use std::collections::BTreeMap;
use std::path::Path;

/// A number, and its possible error in HTA's file due to truncation to whole µs. 0 if the trace holds whole µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number {
    pub(crate) value: f64,
    pub(crate) slack: f64,
}

/// Numbers by row and column.
pub(crate) type Table = BTreeMap<(String, String), Number>;

pub(crate) fn put(table: &mut Table, row: &str, column: &str, value: f64) {
    put_loose(table, row, column, value, 0.0);
}

pub(crate) fn put_loose(table: &mut Table, row: &str, column: &str, value: f64, slack: f64) {
    // Skip undefined numbers, such as the overlap without communication: HTA leaves the cell empty.
    if value.is_finite() {
        table.insert((row.into(), column.into()), Number { value, slack });
    }
}

/// The lines of a file as fields. Quoted fields may contain commas and line breaks.
pub(crate) fn lines(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let (mut lines, mut line, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                field.push('"');
                chars.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => line.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                line.push(std::mem::take(&mut field));
                lines.push(std::mem::take(&mut line));
            }
            '\r' if !quoted => {}
            c => field.push(c),
        }
    }
    if !field.is_empty() || !line.is_empty() {
        line.push(field);
        lines.push(line);
    }
    lines
}

/// Reads a file of HTA. Its first lines are `heads`; the last one with content in all fields names the columns.
pub(crate) fn hta_file(path: &Path) -> Table {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let rows = lines(path);
    let described = name.starts_with("queue_length") || name.starts_with("memory_bw");
    let (heads, columns) = if described { (3, &rows[1]) } else { (1, &rows[0]) };
    let mut table = Table::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for line in &rows[heads..] {
        let field = |column: &str| {
            let at = columns.iter().position(|c| c == column);
            at.and_then(|at| line.get(at)).map_or("", String::as_str)
        };
        let keys: Vec<&str> = match name.as_str() {
            "kernel_breakdown_full.0.csv" => vec![field("kernel_type")],
            "kernel_breakdown_full.1.csv" => vec![field("rank"), field("kernel_type"), field("name")],
            "idle_time.0.csv" => vec![field("rank"), field("stream"), field("idle_category")],
            "kernel_launch_stats.csv" => vec![&line[0], field("correlation")],
            _ if described => vec![&line[0], &line[1]],
            _ if name.contains("annotation") => vec![field("rank"), field("name")],
            _ => vec![field("rank")],
        };
        let row = numbered(&keys.join(" | "), &mut seen);
        const KEYS: [&str; 7] = ["", "rank", "name", "kernel_type", "stream", "idle_category", "correlation"];
        for (column, cell) in columns.iter().zip(line).filter(|(column, _)| !KEYS.contains(&column.as_str())) {
            put(&mut table, &row, column, cell.parse().unwrap_or(f64::NAN));
        }
    }
    if name.contains("annotation") { steps_folded(table) } else { table }
}

/// Merges HTA's rows `ProfilerStep#N` into `ProfilerStep*`, as in torch.profiler's tables and ours.
fn steps_folded(table: Table) -> Table {
    let mut folded = Table::new();
    let mut steps: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for ((row, column), number) in table {
        match row.split_once("ProfilerStep#") {
            // A step occurs once, so its sum is its duration.
            Some((rank, _)) if column == "sum (us)" => steps.entry(rank.into()).or_default().push(number.value),
            Some(_) => {}
            None => {
                folded.insert((row, column), number);
            }
        }
    }
    for (rank, lengths) in steps {
        let row = format!("{rank}ProfilerStep*");
        let summary = describe(lengths.clone());
        put(&mut folded, &row, "sum (us)", lengths.iter().sum());
        put(&mut folded, &row, "mean (us)", summary[1].1);
        put(&mut folded, &row, "stddev", if lengths.len() > 1 { summary[2].1 } else { 0.0 });
        put(&mut folded, &row, "min (us)", summary[3].1);
        put(&mut folded, &row, "max (us)", summary[7].1);
    }
    folded
}

/// Numbers repeated keys.
pub(crate) fn numbered(key: &str, seen: &mut BTreeMap<String, usize>) -> String {
    let times = seen.entry(key.to_string()).or_default();
    *times += 1;
    if *times == 1 { key.to_string() } else { format!("{key} #{times}") }
}

/// pandas' `describe`.
pub(crate) fn describe(mut values: Vec<f64>) -> [(&'static str, f64); 8] {
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let quantile = |share: f64| {
        let at = share * (n - 1.0);
        let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
        low + (high - low) * at.fract()
    };
    let (min, max) = (values[0], values[values.len() - 1]);
    [
        ("count", n),
        ("mean", mean),
        ("std", std),
        ("min", min),
        ("25%", quantile(0.25)),
        ("50%", quantile(0.5)),
        ("75%", quantile(0.75)),
        ("max", max),
    ]
}
