//! Kernels and operators by name, summed over all ranks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::{KernelStatsRow, OpStatsRow, RooflineBound, Row, Text, Word, WorkType};

use crate::columns::{Columns, columns};
use crate::page_limits::Limits;
use crate::string_pool::StringPool;
use model::Error;
use model::analysis::Tables;
use model::stats::covered_mean;
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

/// A row of a rank.
struct Timed {
    row: KernelStatsRow,
    /// The time in which its FLOPs were computed.
    flops_ns: Option<i64>,
    /// The limit of its speed.
    bound: Option<Word<RooflineBound>>,
}

/// The sum of all rows with a name.
#[derive(Debug)]
struct Sum {
    row: KernelStatsRow,
    /// Number of ranks with this name.
    ranks: usize,
    /// Time in which the FLOPs were computed: that of the kernel, or of the kernels below an operator.
    flops_ns: Option<i64>,
    /// The limit of the FLOPs by the roofline model; the words of all ranks.
    bound: Option<String>,
}

/// Sums over ranks and devices by name, the longest first. Each row is that of the slowest rank, with the sums of all ranks;
/// operators have no type of work.
#[derive(Debug, Default)]
pub(crate) struct ByName {
    sums: Vec<Sum>,
    /// Says what the page does not list.
    pub(crate) note: Option<String>,
}

impl ByName {
    /// Whether no row has a name.
    pub(crate) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The columns of the page.
    pub(crate) fn columns(&self, names: &mut StringPool) -> Result<Columns, Error> {
        let wanted = columns!(KernelStatsRow: name work calls total_ns self_ns mean_ns min_ns max_ns bytes flops rank
            vs_median_device occupancy_pct occupancy_limit blocks_per_sm block_threads registers shared_mem_bytes);
        Ok(Columns::of(self.sums.iter().map(|sum| &sum.row), wanted, names)?
            .with("ranks", self.sums.iter().map(|sum| sum.ranks))
            .with("flops_ns", self.sums.iter().map(|sum| sum.flops_ns))
            .with("bound", self.sums.iter().map(|sum| sum.bound.clone())))
    }
}

/// Kernels, copies and fills.
pub(crate) fn kernels(tables: &Tables, limits: &Limits) -> ByName {
    let steps = Steps::of(tables);
    let row = |row: &KernelStatsRow| {
        let vs_median_device = steps.ratio(row.rank, row.total_ns, row.vs_median_device);
        let flops_ns = row.flops.map(|_| row.total_ns);
        Timed { row: KernelStatsRow { vs_median_device, ..row.clone() }, flops_ns, bound: None }
    };
    by_name(tables.kernel_stats.iter().map(row), "kernel", KernelStatsRow::table().name, limits)
}

/// Operators and ranges of the host.
pub(crate) fn operators(tables: &Tables, limits: &Limits) -> ByName {
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
        Timed { row: kernel, flops_ns: row.flops_ns, bound: row.bound.clone() }
    };
    by_name(tables.op_stats.iter().map(row), "operator", OpStatsRow::table().name, limits)
}

fn by_name(rows: impl Iterator<Item = Timed>, noun: &str, table: &str, limits: &Limits) -> ByName {
    let mut groups: BTreeMap<(Text, Word<WorkType>), Vec<Timed>> = BTreeMap::new();
    for timed in rows {
        groups.entry((timed.row.name.clone(), timed.row.work.clone())).or_default().push(timed);
    }
    let mut sums: Vec<Sum> = groups.into_values().filter_map(sum).collect();
    sums.sort_by_key(|sum| Reverse(sum.row.total_ns));
    let note = (sums.len() > limits.names).then(|| {
        let rest_ns: i64 = sums.iter().skip(limits.names).map(|sum| sum.row.total_ns).sum();
        format!(
            "Only the {} with the most time are listed; the other {} take {} in total. The table {table} has them all by rank.",
            plural(limits.names, noun),
            sums.len() - limits.names,
            ns(rest_ns),
        )
    });
    sums.truncate(limits.names);
    ByName { sums, note }
}

fn sum(rows: Vec<Timed>) -> Option<Sum> {
    let ranks: BTreeSet<i32> = rows.iter().map(|timed| timed.row.rank).collect();
    let flops_ns = rows.iter().filter_map(|timed| timed.flops_ns).reduce(i64::saturating_add);
    let bounds: BTreeSet<&str> = rows.iter().filter_map(|timed| timed.bound.as_deref()).collect();
    let bound = bounds.into_iter().map(String::from).reduce(|all, bound| format!("{all} or {bound}"));
    let mean = |value: fn(&KernelStatsRow) -> Option<f64>| {
        covered_mean(rows.iter().map(|timed| (value(&timed.row), timed.row.total_ns.max(1) as f64)))
    };
    let (occupancy_pct, blocks_per_sm) = (mean(|row| row.occupancy_pct), mean(|row| row.blocks_per_sm));
    let row = rows.into_iter().map(|timed| timed.row).reduce(add)?;
    let mean_ns = row.total_ns as f64 / row.calls.max(1) as f64;
    let row = KernelStatsRow { mean_ns, occupancy_pct, blocks_per_sm, ..row };
    Some(Sum { row, ranks: ranks.len(), flops_ns, bound })
}

/// Adds two rows but for means; the rank is the slower one.
fn add(a: KernelStatsRow, b: KernelStatsRow) -> KernelStatsRow {
    let known = |a: Option<i64>, b: Option<i64>| [a, b].into_iter().flatten().reduce(i64::saturating_add);
    let ratio = |row: &KernelStatsRow| row.vs_median_device.filter(|ratio| ratio.is_finite());
    let slower = if ratio(&b) >= ratio(&a) { &b } else { &a };
    let longer = if b.max_ns > a.max_ns { &b } else { &a };
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
        occupancy_limit: longer.occupancy_limit.clone(),
        block_threads: longer.block_threads,
        registers: longer.registers,
        shared_mem_bytes: longer.shared_mem_bytes,
        ..a
    }
}

/// Names that have FLOPs, for the roofline.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    /// Names that have a place in the roofline: FLOPs, bytes and a time.
    pub(crate) placed: usize,
    /// Names without bytes.
    pub(crate) without_bytes: usize,
}

impl ByName {
    /// Counts the names with FLOPs.
    pub(crate) fn counted(&self) -> Counted {
        let is_known = |number: Option<i64>| number.is_some_and(|n| n > 0);
        let mut counted = Counted::default();
        for sum in self.sums.iter().filter(|sum| is_known(sum.row.flops)) {
            let has_bytes = is_known(sum.row.bytes);
            counted.placed += usize::from(has_bytes && is_known(sum.flops_ns));
            counted.without_bytes += usize::from(!has_bytes);
        }
        counted
    }

    /// Whether a name has FLOPs.
    pub(crate) fn has_flops(&self) -> bool {
        self.sums.iter().any(|sum| sum.row.flops.is_some_and(|n| n > 0))
    }
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
        let found = operators(&tables, &Limits { names: 1, ..Limits::default() });
        assert_eq!((found.sums.len(), found.sums[0].ranks), (1, 2));
        let row = &found.sums[0].row;
        assert_eq!((row.calls, row.total_ns, row.max_ns, row.flops), (3, 40, 30, Some(2000)));
        assert_eq!((row.rank, row.vs_median_device), (1, Some(30.0)));
        assert!(found.note.is_some(), "the omission of relu is listed");
    }

    #[test]
    fn a_short_operator_is_not_called_slowest() {
        let step = |rank| trace::StepBreakdownRow { rank, step: Some(1), wall_ns: 1_000, ..Default::default() };
        let ratio_of = |total_ns| {
            let op_stats = vec![op(0, "mm", 1, 1), op(1, "mm", 1, total_ns)];
            let tables = Tables { op_stats, step_breakdown: vec![step(0), step(1)], ..Tables::default() };
            let row = operators(&tables, &Limits::default()).sums.remove(0).row;
            (row.rank, row.vs_median_device)
        };
        assert_eq!(ratio_of(10), (1, Some(10.0)));
        assert_eq!(ratio_of(9).1, None);
    }
}
