//! Kernels that take time and fill few warps.

use std::collections::{BTreeMap, BTreeSet};

use trace::{KernelCategory, KernelStatsRow, OccupancyLimit, Severity, Word, WorkType};

use crate::finding::{Found, finding, short_name, step_rows};
use crate::kernels::SLOW_KERNEL_SHARE;
use crate::registry::Context;
use model::analysis::Analysis;
use model::claim::{Claim, Quantity, Relation, Value};
use model::limits::Limits;
use model::units::{ns, plural, ranks};

kind! {
    /// A kernel that takes time fills few warps.
    LOW_OCCUPANCY: "low-occupancy", by findings
}

/// The most kernels with a finding each. Kernels with less time are counted.
const MOST_KERNELS: usize = 3;

/// Kernels of one name with a low occupancy, on all devices where they take a real share of the time.
struct LowOccupancy<'a> {
    rows: Vec<&'a KernelStatsRow>,
    /// The mean over the devices of the time per step.
    step_ns: i64,
}

/// The kernels with the most time come first.
fn findings(context: &Context<'_>) -> Vec<Found> {
    let limits = context.limits();
    let kernels = low_occupancy(context.analysis, limits);
    let more = kernels.len().saturating_sub(MOST_KERNELS);
    kernels.iter().take(MOST_KERNELS).filter_map(|kernel| kernel.finding(limits, more)).collect()
}

/// The reason why a kernel has few warps although more would help; `None` if few warps are no fault, or the reason is unknown.
///
/// Products and attention hide latency by asynchronous copies: cuBLAS's persistent kernels, at 19 % of the warps, reach 75 % of the
/// peak of an H200. A persistent kernel has one block for each multiprocessor, so its grid limits its warps by design.
fn limit_of(row: &KernelStatsRow) -> Option<OccupancyLimit> {
    let is_by_design = matches!(
        row.category.known(),
        Some(KernelCategory::Gemm | KernelCategory::Attention | KernelCategory::Convolution)
    );
    let limit = row.occupancy_limit.as_ref().and_then(Word::known);
    let has_many_blocks = row.blocks_per_sm.is_some_and(|blocks| blocks > 1.0);
    limit.filter(|limit| !is_by_design && !row.tensor_cores && has_many_blocks && *limit != OccupancyLimit::Grid)
}

/// Kernels below the limit that take more than [`SLOW_KERNEL_SHARE`] of their device's time.
fn low_occupancy<'a>(analysis: &'a Analysis, limits: &Limits) -> Vec<LowOccupancy<'a>> {
    let mut steps: BTreeMap<i32, BTreeSet<Option<i32>>> = BTreeMap::new();
    for row in step_rows(analysis) {
        steps.entry(row.rank).or_default().insert(row.step);
    }
    let mut totals: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
    for row in &analysis.tables.kernel_stats {
        let total = totals.entry((row.rank, row.device_id)).or_default();
        *total = total.saturating_add(row.total_ns);
    }
    let mut by_name: BTreeMap<&str, Vec<&KernelStatsRow>> = BTreeMap::new();
    for row in &analysis.tables.kernel_stats {
        let total = totals.get(&(row.rank, row.device_id)).copied().unwrap_or(0);
        let is_low = row.occupancy_pct.is_some_and(|pct| pct < limits.occupancy_pct);
        if is_low
            && row.work == WorkType::Compute
            && limit_of(row).is_some()
            && row.total_ns as f64 > SLOW_KERNEL_SHARE * total as f64
        {
            by_name.entry(&row.name).or_default().push(row);
        }
    }
    let per_step = |row: &&KernelStatsRow| {
        let steps = steps.get(&row.rank).map_or(1, BTreeSet::len).max(1);
        row.total_ns / steps as i64
    };
    let kernel = |rows: Vec<&'a KernelStatsRow>| {
        let sum = rows.iter().map(per_step).fold(0, i64::saturating_add);
        LowOccupancy { step_ns: sum / rows.len().max(1) as i64, rows }
    };
    let mut found: Vec<_> = by_name.into_values().map(kernel).collect();
    found.sort_by_key(|kernel| std::cmp::Reverse(kernel.step_ns));
    found
}

impl LowOccupancy<'_> {
    fn finding(&self, limits: &Limits, more: usize) -> Option<Found> {
        let worst = self.rows.iter().max_by_key(|row| row.total_ns)?;
        let (occupancy, limit) = (worst.occupancy_pct?, limit_of(worst)?);
        let also = if more > 0 {
            format!("; {} like this, with less time", plural(more, "more kernel"))
        } else {
            String::new()
        };
        let claim = Claim::new(Quantity::Occupancy, Relation::Below, "kernel_stats").of(worst.rank, worst.device_id);
        Some(finding(
            claim.named(&worst.name).value(Value::Pct(occupancy)),
            Severity::Info,
            format!(
                "kernel `{}` fills {occupancy:.0} % of the warps of {} and takes {} of a step: {}",
                short_name(&worst.name),
                self.devices(),
                ns(self.step_ns),
                why(limit),
            ),
            format!(
                "{}: rank {} has occupancy_pct {occupancy:.1}{}; threshold {} % (this program's), kernels above {:.0} % of the \
                 device's kernel time{also}",
                worst.name,
                worst.rank,
                launch(worst),
                limits.occupancy_pct,
                100.0 * SLOW_KERNEL_SHARE,
            ),
            suggestion(limit),
        ))
    }

    /// The ranks, and the device where a rank has several.
    fn devices(&self) -> String {
        let places: BTreeSet<(i32, Option<i64>)> = self.rows.iter().map(|row| (row.rank, row.device_id)).collect();
        let of_ranks: BTreeSet<i32> = places.iter().map(|(rank, _)| *rank).collect();
        let list: Vec<i32> = of_ranks.iter().copied().collect();
        match places.first() {
            Some((rank, Some(device))) if places.len() == 1 => format!("rank {rank} device {device}"),
            _ if list.len() == 1 => format!("rank {} on {}", list[0], plural(places.len(), "device")),
            _ => format!("ranks {}", ranks(&list)),
        }
    }
}

/// The launch parameters, as far as they are known.
fn launch(row: &KernelStatsRow) -> String {
    let known = [
        row.blocks_per_sm.map(|n| format!("{n:.2} blocks per SM")),
        row.block_threads.map(|n| format!("{n} threads per block")),
        row.registers.map(|n| format!("{n} registers per thread")),
        row.shared_mem_bytes.map(|n| format!("{n} B of shared memory per block")),
    ];
    known.into_iter().flatten().map(|text| format!(", {text}")).collect()
}

fn why(limit: OccupancyLimit) -> &'static str {
    match limit {
        OccupancyLimit::Grid => "its grid has too few blocks",
        OccupancyLimit::Registers => "its registers leave no room for more",
        OccupancyLimit::SharedMemory => "its shared memory leaves no room for more",
        OccupancyLimit::RegistersAndSharedMemory => "its registers and its shared memory leave no room for more",
        OccupancyLimit::BlockSize => "its blocks are too small",
    }
}

fn suggestion(limit: OccupancyLimit) -> &'static str {
    match limit {
        OccupancyLimit::BlockSize => "choose more threads per block",
        _ => {
            "if the kernel waits for memory, use fewer registers or less shared memory per block, or another tile size"
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;
    use model::options::Options;

    fn kernel(rank: i32, name: &str, total_ns: i64, occupancy_pct: Option<f64>) -> KernelStatsRow {
        KernelStatsRow {
            rank,
            device_id: Some(0),
            name: name.into(),
            work: WorkType::Compute.into(),
            total_ns,
            occupancy_pct,
            ..KernelStatsRow::default()
        }
    }

    /// Two ranks of two steps. `thin` takes 20 of 100 ms on both, the others are short, full, unknown or communicate.
    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        for rank in [0, 1] {
            let thin = KernelStatsRow {
                occupancy_limit: Some(OccupancyLimit::BlockSize.into()),
                blocks_per_sm: Some(8.0),
                block_threads: Some(32),
                ..kernel(rank, "thin", 20_000_000, Some(3.0))
            };
            let nccl =
                KernelStatsRow { work: WorkType::Communication.into(), ..kernel(rank, "nccl", 20_000_000, Some(3.0)) };
            analysis.tables.kernel_stats.extend([
                thin,
                nccl,
                kernel(rank, "full", 30_000_000, Some(30.0)),
                kernel(rank, "unknown", 26_000_000, None),
                kernel(rank, "short", 4_000_000, Some(1.0)),
            ]);
            analysis.tables.step_breakdown.extend([1, 2].map(|step| StepBreakdownRow {
                rank,
                step: Some(step),
                wall_ns: 50_000_000,
                ..Default::default()
            }));
        }
        analysis
    }

    #[test]
    fn a_kernel_that_fills_little_and_takes_time_is_named() {
        let found = LOW_OCCUPANCY.in_tables(&analysis());
        assert_eq!(found.len(), 1);
        assert_eq!(
            &*found[0].title,
            "kernel `thin` fills 3 % of the warps of ranks 0–1 and takes 10.0 ms of a step: its blocks are too small"
        );
        let evidence = "thin: rank 1 has occupancy_pct 3.0, 8.00 blocks per SM, 32 threads per block; threshold 30 %";
        assert!(found[0].evidence.starts_with(evidence), "{}", found[0].evidence);
        assert!(found[0].suggestion.starts_with("choose more threads"));
    }

    #[test]
    fn kernels_at_the_limits_have_no_finding() {
        let limits = Limits { occupancy_pct: 3.0, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        assert_eq!(LOW_OCCUPANCY.within(&analysis(), &options), []);
        assert_eq!(LOW_OCCUPANCY.in_tables(&Analysis::default()), []);
    }

    #[test]
    fn one_device_is_named_and_tensor_cores_are_no_fault() {
        let mut analysis = analysis();
        analysis.tables.kernel_stats.retain(|row| row.rank == 0);
        let mut found = |limit: OccupancyLimit, category: KernelCategory, blocks_per_sm| {
            let thin = &mut analysis.tables.kernel_stats[0];
            (thin.occupancy_limit, thin.category) = (Some(limit.into()), category.into());
            thin.blocks_per_sm = Some(blocks_per_sm);
            LOW_OCCUPANCY.in_tables(&analysis)
        };
        let by_registers = found(OccupancyLimit::Registers, KernelCategory::Reduction, 8.0);
        assert!(by_registers[0].title.contains("of rank 0 device 0 and takes 10.0 ms"), "{}", by_registers[0].title);
        assert_eq!(found(OccupancyLimit::Registers, KernelCategory::Gemm, 8.0), [], "full by design");
        assert_eq!(found(OccupancyLimit::Grid, KernelCategory::Reduction, 0.85), [], "a persistent kernel");
        assert_eq!(found(OccupancyLimit::SharedMemory, KernelCategory::Reduction, 1.0), [], "a persistent kernel");
    }
}
