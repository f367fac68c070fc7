//! Kernels and operators by name, summed over all ranks, and their roofline.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::{DeviceRow, KernelStatsRow, OpStatsRow, RooflineBound, Text, Word, WorkType};

use crate::columns::Columns;
use crate::page_limits::{Limits, Shortenings};
use crate::string_pool::StringPool;
use model::Error;
use model::analysis::Tables;
use model::peaks::Peaks;
use model::units::{ns, plural};

/// Smallest share of its rank's steps, in percent, with which a row is called slowest: the ratio of shorter ones is noise.
const LEAST_SLOWEST_PCT: i64 = 1;

/// The time of each rank's steps.
struct Steps(BTreeMap<i32, i64>);

impl Steps {
    fn of(tables: &Tables) -> Self {
        let mut devices: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
        for row in tables.step_breakdown.iter().filter(|row| row.step.is_some_and(|step| step >= 0)) {
            let sum = devices.entry((row.rank, row.device_id)).or_default();
            *sum = sum.saturating_add(row.wall_ns);
        }
        let mut ranks: BTreeMap<i32, i64> = BTreeMap::new();
        for ((rank, _), wall_ns) in devices {
            let longest = ranks.entry(rank).or_default();
            *longest = wall_ns.max(*longest);
        }
        Self(ranks)
    }

    /// The ratio of a row that takes enough of its rank's steps.
    fn ratio(&self, rank: i32, total_ns: i64, ratio: Option<f64>) -> Option<f64> {
        let wall_ns = self.0.get(&rank).copied().unwrap_or(0);
        ratio.filter(|_| total_ns.saturating_mul(100 / LEAST_SLOWEST_PCT) >= wall_ns)
    }
}

/// A row, the time in which its FLOPs were computed, and what limits it.
type Timed = (KernelStatsRow, Option<i64>, Option<Word<RooflineBound>>);

/// Sums over ranks and devices by name. Each row is that of the slowest rank, with the sums of all ranks; operators have
/// no type of work.
#[derive(Debug, Default)]
pub(super) struct ByName {
    rows: Vec<KernelStatsRow>,
    /// Number of ranks with this name, for each row.
    ranks: Vec<usize>,
    /// Time in which the FLOPs were computed, for each row: that of the kernel, or of the kernels below an operator.
    flops_ns: Vec<Option<i64>>,
    /// The limit of the FLOPs by the roofline model, for each row; the words of all ranks.
    bounds: Vec<Option<String>>,
}

impl ByName {
    /// The columns of the page.
    pub(super) fn columns(&self, names: &mut StringPool) -> Result<Columns, Error> {
        let wanted = "name work calls total_ns self_ns mean_ns min_ns max_ns bytes flops rank vs_median_device \
                      occupancy_pct occupancy_limit blocks_per_sm block_threads registers shared_mem_bytes";
        Ok(Columns::of(&self.rows, wanted, names)?
            .with("ranks", self.ranks.iter().copied())
            .with("flops_ns", self.flops_ns.iter().copied())
            .with("bound", self.bounds.iter().cloned()))
    }
}

/// Kernels, copies and fills.
pub(super) fn kernels(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> ByName {
    let steps = Steps::of(tables);
    let row = |row: &KernelStatsRow| {
        let vs_median_device = steps.ratio(row.rank, row.total_ns, row.vs_median_device);
        (KernelStatsRow { vs_median_device, ..row.clone() }, row.flops.map(|_| row.total_ns), None)
    };
    by_name(tables.kernel_stats.iter().map(row), ("kernels", "kernel"), limits, notes)
}

/// Operators and ranges of the host.
pub(super) fn operators(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> ByName {
    let steps = Steps::of(tables);
    let row = |row: &OpStatsRow| {
        let kernel = KernelStatsRow {
            rank: row.rank,
            name: row.name.clone(),
            calls: row.calls,
            total_ns: row.total_ns,
            self_ns: row.self_ns,
            min_ns: row.min_ns,
            max_ns: row.max_ns,
            // The least bytes that its calls with FLOPs move, if the recording does not state them.
            bytes: row.bytes.or(row.min_bytes),
            flops: row.flops,
            vs_median_device: steps.ratio(row.rank, row.total_ns, row.vs_median_rank),
            ..KernelStatsRow::default()
        };
        (kernel, row.flops_ns, row.bound.clone())
    };
    by_name(tables.op_stats.iter().map(row), ("operators", "operator"), limits, notes)
}

fn by_name(
    rows: impl Iterator<Item = Timed>,
    (section, noun): (&'static str, &str),
    limits: &Limits,
    notes: &mut Shortenings,
) -> ByName {
    let mut groups: BTreeMap<(Text, Word<WorkType>), Vec<Timed>> = BTreeMap::new();
    for timed in rows {
        groups.entry((timed.0.name.clone(), timed.0.work.clone())).or_default().push(timed);
    }
    let sum = |rows: Vec<Timed>| {
        let ranks: BTreeSet<i32> = rows.iter().map(|(row, ..)| row.rank).collect();
        let flops_ns = rows.iter().filter_map(|(_, flops_ns, _)| *flops_ns).reduce(i64::saturating_add);
        let bounds: BTreeSet<&str> = rows.iter().filter_map(|(.., bound)| bound.as_deref()).collect();
        let bound = bounds.into_iter().map(String::from).reduce(|all, bound| format!("{all} or {bound}"));
        let sum = rows.into_iter().map(|(row, ..)| row).reduce(add)?;
        let mean_ns = sum.total_ns as f64 / sum.calls.max(1) as f64;
        Some((KernelStatsRow { mean_ns, ..sum }, ranks.len(), flops_ns, bound))
    };
    let mut order: Vec<_> = groups.into_values().filter_map(sum).collect();
    order.sort_by_key(|(sum, ..)| Reverse(sum.total_ns));
    if order.len() > limits.names {
        let rest: i64 = order.iter().skip(limits.names).map(|(sum, ..)| sum.total_ns).sum();
        notes.add(
            section,
            format!(
                "Only the {} with the most time are listed; the other {} take {} in total. The table {} has them all by rank.",
                plural(limits.names, noun),
                order.len() - limits.names,
                ns(rest),
                if section == "kernels" { "kernel_stats" } else { "op_stats" }
            ),
        );
    }
    order.truncate(limits.names);
    let ranks = order.iter().map(|(_, ranks, ..)| *ranks).collect();
    let flops_ns = order.iter().map(|(_, _, flops_ns, _)| *flops_ns).collect();
    let bounds = order.iter().map(|(.., bound)| bound.clone()).collect();
    ByName { rows: order.into_iter().map(|(sum, ..)| sum).collect(), ranks, flops_ns, bounds }
}

/// Adds two rows; the rank is the slower one.
fn add(a: KernelStatsRow, b: KernelStatsRow) -> KernelStatsRow {
    let known = |a: Option<i64>, b: Option<i64>| [a, b].into_iter().flatten().reduce(i64::saturating_add);
    let ratio = |row: &KernelStatsRow| row.vs_median_device.filter(|ratio| ratio.is_finite());
    let slower = if ratio(&b) >= ratio(&a) { &b } else { &a };
    let longer = if b.max_ns > a.max_ns { &b } else { &a };
    let mean = |value: fn(&KernelStatsRow) -> Option<f64>| match (value(&a), value(&b)) {
        (Some(x), Some(y)) => {
            let (of_a, of_b) = (a.total_ns.max(1) as f64, b.total_ns.max(1) as f64);
            Some((x * of_a + y * of_b) / (of_a + of_b))
        }
        (one, other) => one.or(other),
    };
    KernelStatsRow {
        rank: slower.rank,
        vs_median_device: ratio(slower),
        calls: a.calls.saturating_add(b.calls),
        total_ns: a.total_ns.saturating_add(b.total_ns),
        self_ns: a.self_ns.saturating_add(b.self_ns),
        min_ns: a.min_ns.min(b.min_ns),
        max_ns: a.max_ns.max(b.max_ns),
        bytes: known(a.bytes, b.bytes),
        flops: known(a.flops, b.flops),
        occupancy_pct: mean(|row| row.occupancy_pct),
        blocks_per_sm: mean(|row| row.blocks_per_sm),
        occupancy_limit: longer.occupancy_limit.clone(),
        block_threads: longer.block_threads,
        registers: longer.registers,
        shared_mem_bytes: longer.shared_mem_bytes,
        ..a
    }
}

/// What a roofline can show. The scripts place its points: arithmetic by memory traffic.
#[derive(Debug, Default)]
pub(super) struct Roofline {
    /// `kernel` or `operator`.
    pub(super) of: &'static str,
    /// Number of points.
    points: usize,
    /// Distinct models of devices with a known limit.
    pub(super) devices: Vec<DeviceRow>,
    /// Number of rows with FLOPs but without bytes, which have no place in the roofline.
    without_bytes: usize,
}

impl Roofline {
    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// Names the data that the roofline lacks.
    pub(super) fn missing(&self) -> Option<String> {
        let of = if self.of == "kernel" { "kernel" } else { "operator" };
        if self.points == 0 {
            return Some(match self.without_bytes {
                0 => {
                    "No kernel or operator has a FLOP count. FLOPs of operators are computed from their shapes, which \
                     torch.profiler records with `record_shapes=True`."
                        .into()
                }
                n => format!(
                    "{} a FLOP count but no byte count, so arithmetic intensity is unknown.",
                    if n == 1 { format!("1 {of} has") } else { format!("{n} {of}s have") }
                ),
            });
        }
        self.devices.is_empty().then(|| "No roof is drawn, because the peak rates of the devices are unknown.".into())
    }
}

/// Describes the roofline of kernels, or of operators if no kernel has a FLOP count.
pub(super) fn roofline(kernels: &ByName, operators: &ByName, devices: &[DeviceRow]) -> Roofline {
    let positive = |n: &i64| *n > 0;
    let counted = |of: &ByName| of.rows.iter().any(|r| r.flops.is_some_and(|n| n > 0));
    let (of, chosen) = if counted(kernels) { ("kernel", kernels) } else { ("operator", operators) };
    let rows = chosen.rows.iter().zip(&chosen.flops_ns).filter(|(r, _)| r.flops.filter(positive).is_some());
    let (with_bytes, without_bytes): (Vec<_>, Vec<_>) = rows.partition(|(r, _)| r.bytes.filter(positive).is_some());
    let points = with_bytes.iter().filter(|(_, flops_ns)| flops_ns.filter(positive).is_some()).count();
    let mut found = Roofline { of, points, devices: Vec::new(), without_bytes: without_bytes.len() };
    for row in devices {
        let positive = |peak: Option<f64>| peak.filter(|p| p.is_finite() && *p > 0.0);
        let known = row.name.as_deref().and_then(Peaks::of);
        let peak_flops = positive(row.peak_flops).or_else(|| Some(known?.roof_flops_per_s()));
        let peak_bytes_per_s = positive(row.peak_bytes_per_s).or_else(|| known?.bytes_per_s());
        let name = Some(row.name.clone().unwrap_or_else(|| "device".into()));
        let device = DeviceRow { name, peak_flops, peak_bytes_per_s, ..DeviceRow::default() };
        if (peak_flops.is_some() || peak_bytes_per_s.is_some()) && !found.devices.contains(&device) {
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
            flops_ns: Some(total_ns),
            vs_median_rank: Some(total_ns as f64),
            ..Default::default()
        }
    }

    #[test]
    fn ranks_are_summed_and_the_slowest_is_named() {
        let tables =
            Tables { op_stats: vec![op(0, "mm", 2, 10), op(1, "mm", 1, 30), op(1, "relu", 9, 9)], ..Tables::default() };
        let mut notes = Shortenings::default();
        let found = operators(&tables, &Limits { names: 1, ..Limits::default() }, &mut notes);
        assert_eq!(found.ranks, [2]);
        let row = &found.rows[0];
        assert_eq!((row.calls, row.total_ns, row.max_ns, row.flops), (3, 40, 30, Some(2000)));
        assert_eq!((row.rank, row.vs_median_device), (1, Some(30.0)));
        assert!(!notes.is_empty(), "the omission of relu is listed");
    }

    #[test]
    fn a_short_operator_is_not_called_slowest() {
        let step = |rank| trace::StepBreakdownRow { rank, step: Some(1), wall_ns: 1_000, ..Default::default() };
        let ratio_of = |total_ns| {
            let op_stats = vec![op(0, "mm", 1, 1), op(1, "mm", 1, total_ns)];
            let tables = Tables { op_stats, step_breakdown: vec![step(0), step(1)], ..Tables::default() };
            let row = operators(&tables, &Limits::default(), &mut Shortenings::default()).rows.remove(0);
            (row.rank, row.vs_median_device)
        };
        assert_eq!(ratio_of(10), (1, Some(10.0)));
        assert_eq!(ratio_of(9).1, None);
    }

    #[test]
    fn a_roofline_names_the_missing_data() {
        let tables = Tables { op_stats: vec![op(0, "mm", 2, 10)], ..Tables::default() };
        let (none, mut rows) = (ByName::default(), operators(&tables, &Limits::default(), &mut Shortenings::default()));
        let no_flops = roofline(&none, &none, &[]).missing().unwrap();
        assert!(no_flops.contains("record_shapes"), "{no_flops}");
        let no_bytes = roofline(&none, &rows, &[]).missing().unwrap();
        assert!(no_bytes.contains("no byte count"), "{no_bytes}");
        rows.rows[0].bytes = Some(100);
        let placed = roofline(&none, &rows, &[]);
        assert_eq!((placed.points, placed.of), (1, "operator"));
        assert!(placed.missing().unwrap().contains("peak rates of the devices"));
        let device = DeviceRow { peak_flops: Some(1e12), ..DeviceRow::default() };
        let roofed = roofline(&none, &rows, &[device.clone(), device]);
        assert_eq!((roofed.devices.len(), roofed.missing()), (1, None));
    }
}
