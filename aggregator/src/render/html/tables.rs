//! Kernels and operators by name, all ranks together, and the roofline that their counts make.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{DeviceRow, KernelStatsRow, OpStatsRow};

use super::collectives::five_digits;
use super::names::Names;
use super::size::{Limits, Notes};
use crate::analysis::Tables;
use crate::render::text::{ns, plural};

/// A name with its sums over ranks and devices.
#[derive(Debug, Serialize)]
pub(super) struct NameRow {
    name: usize,
    /// `compute`, `communication` or `memory`; empty for operators.
    work: String,
    /// Ranks that have it.
    ranks: usize,
    calls: i64,
    total_ns: i64,
    self_ns: i64,
    mean_ns: f64,
    min_ns: i64,
    max_ns: i64,
    bytes: Option<i64>,
    flops: Option<i64>,
    /// The rank where a call takes longest, compared with the median device's or rank's, and how much longer.
    slowest: Option<(i32, f64)>,
}

/// What kernels and operators have in common.
struct One<'a> {
    rank: i32,
    name: &'a str,
    work: &'a str,
    calls: i64,
    total_ns: i64,
    self_ns: i64,
    min_ns: i64,
    max_ns: i64,
    bytes: Option<i64>,
    flops: Option<i64>,
    ratio: Option<f64>,
}

impl<'a> From<&'a KernelStatsRow> for One<'a> {
    fn from(row: &'a KernelStatsRow) -> Self {
        Self {
            rank: row.rank,
            name: &row.name,
            work: &row.work,
            calls: row.calls,
            total_ns: row.total_ns,
            self_ns: row.self_ns,
            min_ns: row.min_ns,
            max_ns: row.max_ns,
            bytes: row.bytes,
            flops: row.flops,
            ratio: row.vs_median_device,
        }
    }
}

impl<'a> From<&'a OpStatsRow> for One<'a> {
    fn from(row: &'a OpStatsRow) -> Self {
        Self {
            rank: row.rank,
            name: &row.name,
            work: "",
            calls: row.calls,
            total_ns: row.total_ns,
            self_ns: row.self_ns,
            min_ns: row.min_ns,
            max_ns: row.max_ns,
            bytes: row.bytes,
            flops: row.flops,
            ratio: row.vs_median_rank,
        }
    }
}

/// Kernels, copies and fills.
pub(super) fn kernels(tables: &Tables, names: &mut Names, limits: &Limits, notes: &mut Notes) -> Vec<NameRow> {
    by_name(tables.kernel_stats.iter().map(One::from), ("kernels", "kernel"), names, limits, notes)
}

/// Operators and ranges of the host.
pub(super) fn operators(tables: &Tables, names: &mut Names, limits: &Limits, notes: &mut Notes) -> Vec<NameRow> {
    by_name(tables.op_stats.iter().map(One::from), ("operators", "operator"), names, limits, notes)
}

fn by_name<'a>(
    rows: impl Iterator<Item = One<'a>>,
    (section, noun): (&'static str, &str),
    names: &mut Names,
    limits: &Limits,
    notes: &mut Notes,
) -> Vec<NameRow> {
    let mut by_name: BTreeMap<(&str, &str), Vec<One<'a>>> = BTreeMap::new();
    for row in rows {
        by_name.entry((row.name, row.work)).or_default().push(row);
    }
    let mut order: Vec<(i64, (&str, &str))> = by_name
        .iter()
        .map(|(key, rows)| (rows.iter().map(|r| r.total_ns).fold(0, i64::saturating_add), *key))
        .collect();
    order.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    if order.len() > limits.names {
        let rest: i64 = order.iter().skip(limits.names).map(|(total, _)| *total).sum();
        notes.say(
            section,
            format!(
                "The {} with the most time are listed; {} with {} in all are not. analysis/{}.parquet has them all, by rank.",
                plural(limits.names, noun),
                order.len() - limits.names,
                ns(rest),
                if section == "kernels" { "kernel_stats" } else { "op_stats" }
            ),
        );
    }
    order.truncate(limits.names);
    order.iter().filter_map(|(_, key)| Some(name_row(key, by_name.get(key)?, names))).collect()
}

fn name_row((name, work): &(&str, &str), rows: &[One<'_>], names: &mut Names) -> NameRow {
    let sum = |f: fn(&One<'_>) -> i64| rows.iter().map(f).fold(0, i64::saturating_add);
    let known = |f: fn(&One<'_>) -> Option<i64>| rows.iter().filter_map(f).reduce(i64::saturating_add);
    let mut ranks: Vec<i32> = rows.iter().map(|r| r.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let ratios = rows.iter().filter_map(|r| Some((r.rank, r.ratio.filter(|ratio| ratio.is_finite())?)));
    let (calls, total_ns) = (sum(|r| r.calls), sum(|r| r.total_ns));
    NameRow {
        name: names.id(name),
        work: (*work).to_string(),
        ranks: ranks.len(),
        calls,
        total_ns,
        self_ns: sum(|r| r.self_ns),
        mean_ns: five_digits(total_ns as f64 / calls.max(1) as f64),
        min_ns: rows.iter().map(|r| r.min_ns).min().unwrap_or(0),
        max_ns: rows.iter().map(|r| r.max_ns).max().unwrap_or(0),
        bytes: known(|r| r.bytes),
        flops: known(|r| r.flops),
        slowest: ratios.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(rank, ratio)| (rank, five_digits(ratio))),
    }
}

/// Arithmetic against memory traffic.
#[derive(Debug, Default, Serialize)]
pub(super) struct Roofline {
    /// `kernel` or `operator`.
    of: &'static str,
    points: Vec<Point>,
    /// Distinct kinds of device with a known limit.
    devices: Vec<Device>,
    /// Rows with FLOPs but no bytes: they cannot be placed.
    without_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Point {
    name: usize,
    /// FLOPs by byte.
    intensity: f64,
    flops_per_s: f64,
    total_ns: i64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Device {
    name: usize,
    peak_flops: Option<f64>,
    peak_bytes_per_s: Option<f64>,
}

impl Roofline {
    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// What is not known, in a sentence.
    pub(super) fn missing(&self) -> Option<String> {
        let of = if self.of == "kernel" { "kernel" } else { "operator" };
        if self.points.is_empty() {
            return Some(match self.without_bytes {
                0 => "No kernel or operator says how many FLOPs it computes; torch.profiler does with `with_flops=True`, for \
                      some operators."
                    .into(),
                n => format!(
                    "{} how many FLOPs it computes, but none how many bytes it moves: arithmetic intensity is not known.",
                    if n == 1 { format!("1 {of} says") } else { format!("Each of {n} {of}s says") }
                ),
            });
        }
        self.devices.is_empty().then(|| {
            "The peaks of the devices are not known, so no roof is drawn: no row of `devices` has peak_flops or \
             peak_bytes_per_s."
                .into()
        })
    }
}

/// The roofline of kernels, or, where none says what it computes, of operators.
pub(super) fn roofline(kernels: &[NameRow], operators: &[NameRow], rows: &[DeviceRow], names: &mut Names) -> Roofline {
    let counts = |rows: &[NameRow]| rows.iter().any(|r| r.flops.is_some_and(|f| f > 0));
    let (of, chosen) = if counts(kernels) { ("kernel", kernels) } else { ("operator", operators) };
    let mut found = Roofline { of, ..Roofline::default() };
    for row in chosen {
        let (Some(flops), total_ns) = (row.flops.filter(|f| *f > 0), row.total_ns) else { continue };
        match row.bytes.filter(|b| *b > 0) {
            Some(bytes) if total_ns > 0 => found.points.push(Point {
                name: row.name,
                intensity: five_digits(flops as f64 / bytes as f64),
                flops_per_s: five_digits(flops as f64 / (total_ns as f64 * 1e-9)),
                total_ns,
            }),
            Some(_) => {}
            None => found.without_bytes += 1,
        }
    }
    for row in rows {
        let positive = |peak: Option<f64>| peak.filter(|p| p.is_finite() && *p > 0.0);
        let (peak_flops, peak_bytes_per_s) = (positive(row.peak_flops), positive(row.peak_bytes_per_s));
        if peak_flops.is_none() && peak_bytes_per_s.is_none() {
            continue;
        }
        let name = names.id(row.name.as_deref().unwrap_or("device"));
        let device = Device { name, peak_flops, peak_bytes_per_s };
        if !found.devices.contains(&device) {
            found.devices.push(device);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(rank: i32, name: &str, calls: i64, total_ns: i64) -> OpStatsRow {
        OpStatsRow {
            rank,
            name: name.into(),
            calls,
            total_ns,
            min_ns: 1,
            max_ns: total_ns,
            flops: Some(1000),
            vs_median_rank: Some(total_ns as f64),
            ..Default::default()
        }
    }

    #[test]
    fn ranks_are_summed_and_the_slowest_named() {
        let tables =
            Tables { op_stats: vec![op(0, "mm", 2, 10), op(1, "mm", 1, 30), op(1, "relu", 9, 9)], ..Tables::default() };
        let mut notes = Notes::default();
        let rows = operators(&tables, &mut Names::default(), &Limits { names: 1, ..Limits::default() }, &mut notes);
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.ranks, row.calls, row.total_ns, row.max_ns, row.flops), (2, 3, 40, 30, Some(2000)));
        assert_eq!(row.slowest, Some((1, 30.0)));
        assert!(!notes.is_empty(), "relu is not listed, and that is said");
    }

    #[test]
    fn a_roofline_says_what_it_lacks() {
        let tables = Tables { op_stats: vec![op(0, "mm", 2, 10)], ..Tables::default() };
        let mut names = Names::default();
        let mut rows = operators(&tables, &mut names, &Limits::default(), &mut Notes::default());
        let none = roofline(&[], &[], &[], &mut names).missing().unwrap();
        assert!(none.contains("with_flops"), "{none}");
        let no_bytes = roofline(&[], &rows, &[], &mut names).missing().unwrap();
        assert!(no_bytes.contains("how many bytes"), "{no_bytes}");
        rows[0].bytes = Some(100);
        let placed = roofline(&[], &rows, &[], &mut names);
        assert_eq!((placed.points[0].intensity, placed.points[0].flops_per_s), (10.0, 1e11));
        assert!(placed.missing().unwrap().contains("peaks of the devices"));
        let device = DeviceRow { peak_flops: Some(1e12), ..DeviceRow::default() };
        let roofed = roofline(&[], &rows, &[device.clone(), device], &mut names);
        assert_eq!((roofed.devices.len(), roofed.missing()), (1, None));
    }
}
