//! Kernels and operators by name, summed over all ranks, and their roofline.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{DeviceRow, KernelStatsRow, OpStatsRow};

use crate::base::units::{ns, plural};
use crate::model::analysis::Tables;
use crate::render::html::collectives::five_digits;
use crate::render::html::page_limits::{Limits, Shortenings};
use crate::render::html::string_pool::StringPool;

/// Sums over ranks and devices for one name.
#[derive(Debug, Serialize)]
pub(super) struct NameRow {
    name: usize,
    /// `compute`, `communication` or `memory`; empty for operators.
    work: String,
    /// Number of ranks with this name.
    ranks: usize,
    calls: i64,
    total_ns: i64,
    self_ns: i64,
    mean_ns: f64,
    min_ns: i64,
    max_ns: i64,
    bytes: Option<i64>,
    flops: Option<i64>,
    /// The rank whose calls take longest, and the ratio to the median device or rank.
    slowest: Option<(i32, f64)>,
}

/// The common columns of kernels and operators.
struct Work<'a> {
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

impl<'a> From<&'a KernelStatsRow> for Work<'a> {
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

impl<'a> From<&'a OpStatsRow> for Work<'a> {
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
pub(super) fn kernels(
    tables: &Tables,
    names: &mut StringPool,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Vec<NameRow> {
    by_name(tables.kernel_stats.iter().map(Work::from), ("kernels", "kernel"), names, limits, notes)
}

/// Operators and ranges of the host.
pub(super) fn operators(
    tables: &Tables,
    names: &mut StringPool,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Vec<NameRow> {
    by_name(tables.op_stats.iter().map(Work::from), ("operators", "operator"), names, limits, notes)
}

fn by_name<'a>(
    rows: impl Iterator<Item = Work<'a>>,
    (section, noun): (&'static str, &str),
    names: &mut StringPool,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Vec<NameRow> {
    let mut by_name: BTreeMap<(&str, &str), Vec<Work<'a>>> = BTreeMap::new();
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
        notes.add(
            section,
            format!(
                "Only the {} with the most time are listed; the other {} take {} in total. analysis/{}.parquet has them all by rank.",
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

fn name_row((name, work): &(&str, &str), rows: &[Work<'_>], names: &mut StringPool) -> NameRow {
    let sum = |f: fn(&Work<'_>) -> i64| rows.iter().map(f).fold(0, i64::saturating_add);
    let sum_of_known = |f: fn(&Work<'_>) -> Option<i64>| rows.iter().filter_map(f).reduce(i64::saturating_add);
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
        bytes: sum_of_known(|r| r.bytes),
        flops: sum_of_known(|r| r.flops),
        slowest: ratios.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(rank, ratio)| (rank, five_digits(ratio))),
    }
}

/// Points and limits of a roofline: arithmetic by memory traffic.
#[derive(Debug, Default, Serialize)]
pub(super) struct Roofline {
    /// `kernel` or `operator`.
    of: &'static str,
    points: Vec<Point>,
    /// Distinct models of devices with a known limit.
    devices: Vec<Device>,
    /// Number of rows with FLOPs but without bytes, which have no place in the roofline.
    without_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Point {
    name: usize,
    /// FLOPs per byte.
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

    /// Names the data that the roofline lacks.
    pub(super) fn missing(&self) -> Option<String> {
        let of = if self.of == "kernel" { "kernel" } else { "operator" };
        if self.points.is_empty() {
            return Some(match self.without_bytes {
                0 => {
                    "No kernel or operator has a FLOP count. torch.profiler records FLOP counts of some operators with \
                      `with_flops=True`."
                        .into()
                }
                n => format!(
                    "{} a FLOP count but no byte count, so arithmetic intensity is unknown.",
                    if n == 1 { format!("1 {of} has") } else { format!("{n} {of}s have") }
                ),
            });
        }
        self.devices.is_empty().then(|| {
            "No roof is drawn, because no row of `devices` has peak_flops or peak_bytes_per_s: the peak rates of the devices \
             are unknown."
                .into()
        })
    }
}

/// Computes the roofline of kernels, or of operators if no kernel has a FLOP count.
pub(super) fn roofline(
    kernels: &[NameRow],
    operators: &[NameRow],
    rows: &[DeviceRow],
    names: &mut StringPool,
) -> Roofline {
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
    fn ranks_are_summed_and_the_slowest_is_named() {
        let tables =
            Tables { op_stats: vec![op(0, "mm", 2, 10), op(1, "mm", 1, 30), op(1, "relu", 9, 9)], ..Tables::default() };
        let mut notes = Shortenings::default();
        let rows =
            operators(&tables, &mut StringPool::default(), &Limits { names: 1, ..Limits::default() }, &mut notes);
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.ranks, row.calls, row.total_ns, row.max_ns, row.flops), (2, 3, 40, 30, Some(2000)));
        assert_eq!(row.slowest, Some((1, 30.0)));
        assert!(!notes.is_empty(), "the omission of relu is listed");
    }

    #[test]
    fn a_roofline_names_the_missing_data() {
        let tables = Tables { op_stats: vec![op(0, "mm", 2, 10)], ..Tables::default() };
        let mut names = StringPool::default();
        let mut rows = operators(&tables, &mut names, &Limits::default(), &mut Shortenings::default());
        let none = roofline(&[], &[], &[], &mut names).missing().unwrap();
        assert!(none.contains("with_flops"), "{none}");
        let no_bytes = roofline(&[], &rows, &[], &mut names).missing().unwrap();
        assert!(no_bytes.contains("no byte count"), "{no_bytes}");
        rows[0].bytes = Some(100);
        let placed = roofline(&[], &rows, &[], &mut names);
        assert_eq!((placed.points[0].intensity, placed.points[0].flops_per_s), (10.0, 1e11));
        assert!(placed.missing().unwrap().contains("peak rates of the devices"));
        let device = DeviceRow { peak_flops: Some(1e12), ..DeviceRow::default() };
        let roofed = roofline(&[], &rows, &[device.clone(), device], &mut names);
        assert_eq!((roofed.devices.len(), roofed.missing()), (1, None));
    }
}
