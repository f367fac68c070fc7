//! Sentences about devices that are not kept busy, and about hosts that wait for them.

use std::collections::BTreeMap;

use trace::FindingRow;

use super::{Limits, finding};
use crate::analysis::Analysis;
use crate::device::FULL_QUEUE_LENGTH;
use crate::render::text::{ns, plural};

/// All findings about devices.
pub(super) fn findings(analysis: &Analysis, limits: &Limits) -> Vec<FindingRow> {
    let walls = walls(analysis);
    let found = [
        launch_bound(analysis, limits),
        stalls(analysis, limits, &walls),
        narrow_kernels(analysis, limits),
        full_queue(analysis, limits),
    ];
    found.into_iter().flatten().collect()
}

/// Everything recorded of each rank.
fn walls(analysis: &Analysis) -> BTreeMap<i32, i64> {
    let mut walls: BTreeMap<i32, i64> = BTreeMap::new();
    for row in analysis.tables.step_breakdown.iter().filter(|r| r.step.is_none()) {
        let wall = walls.entry(row.rank).or_default();
        *wall = (*wall).max(row.wall_ns);
    }
    walls
}

fn pct(part: i64, whole: i64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Kernels that are over before the call returns that launches the next: the host sets the pace.
fn launch_bound(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let devices = || analysis.tables.launch_stats.iter().filter(|r| r.name.is_none());
    let (short, all) = devices().fold((0, 0), |(s, n), r| (s + r.short_kernels, n + r.launches));
    let share = pct(short, all);
    if all == 0 || share <= limits.short_kernels_pct {
        return None;
    }
    let calls: i64 = devices().map(|r| r.cpu_total_ns).sum();
    let work: i64 = devices().map(|r| r.gpu_total_ns).sum();
    Some(finding(
        "info",
        format!("{share:.0} % of the kernels are shorter than the calls that launch them"),
        format!(
            "launch_stats.short_kernels: {short} of {all} (HTA's definition); {} in launching calls, {} of work; threshold {} % \
             (this program's)",
            ns(calls),
            ns(work),
            limits.short_kernels_pct
        ),
        "the host sets the pace: CUDA graphs, fused operators or a compiler make fewer and longer kernels",
    ))
}

/// The host waits for the device.
fn stalls(analysis: &Analysis, limits: &Limits, walls: &BTreeMap<i32, i64>) -> Option<FindingRow> {
    let mut by_rank: BTreeMap<i32, i64> = BTreeMap::new();
    for row in &analysis.tables.sync_stalls {
        *by_rank.entry(row.rank).or_default() += row.total_ns;
    }
    let share = |rank: &i32, total: &i64| pct(*total, walls.get(rank).copied().unwrap_or(0));
    let (rank, total) = by_rank.iter().max_by(|a, b| share(a.0, a.1).total_cmp(&share(b.0, b.1)))?;
    let worst = share(rank, total);
    let longest = analysis.tables.sync_stalls.iter().filter(|r| r.rank == *rank).max_by_key(|r| r.total_ns)?;
    let made_by = [&longest.outer_operator, &longest.annotation].into_iter().flatten().next();
    let made_by = made_by.map_or("no operator".to_string(), |name| format!("`{name}`"));
    (worst > limits.sync_stall_pct).then(|| {
        finding(
            "info",
            format!("the host of rank {rank} waits for its device {worst:.0} % of the time, most of it in {made_by}"),
            format!(
                "sync_stalls.total_ns: {} on that rank; {} in {} of {}; threshold {} % (this program's)",
                ns(*total),
                ns(longest.total_ns),
                plural(usize::try_from(longest.calls).unwrap_or(usize::MAX), "call"),
                longest.api_call,
                limits.sync_stall_pct
            ),
            "copies to the host, .item() and prints of tensors stop the host: take them out of the step, or copy without waiting",
        )
    })
}

/// Devices that are busy with kernels too small for them.
fn narrow_kernels(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let devices = || analysis.tables.gpu_utilization.iter().filter(|r| r.step.is_none());
    let narrow: Vec<_> = devices()
        .filter_map(|r| Some((r, r.sm_efficiency_pct?)))
        .filter(|(r, efficiency)| {
            r.utilization_pct >= limits.device_busy_pct && *efficiency < limits.sm_share_pct / 100.0 * r.utilization_pct
        })
        .collect();
    let (worst, efficiency) = narrow.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(finding(
        "info",
        format!("{} busy with kernels that leave most of the device idle", plural(narrow.len(), "device")),
        format!(
            "rank {} device {}: a kernel runs {:.0} % of the time, but estimated SM efficiency is {efficiency:.0} % (the TensorBoard \
             plugin's definitions); threshold {} % of the busy time (this program's)",
            worst.rank, worst.device_id, worst.utilization_pct, limits.sm_share_pct
        ),
        "larger batches or fused kernels fill the device; communication kernels count here too",
    ))
}

/// Launches that had to wait for room in a queue.
fn full_queue(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let full = analysis.tables.queue_length.iter().filter(|r| r.full_pct > limits.full_queue_pct);
    let worst = full.max_by(|a, b| a.full_pct.total_cmp(&b.full_pct))?;
    let stream = worst.stream_id.map_or("without a number".to_string(), |stream| stream.to_string());
    Some(finding(
        "info",
        format!("the launch queue of rank {} is full for {:.1} % of the time", worst.rank, worst.full_pct),
        format!(
            "queue_length.full_ns of stream {stream}: {} with {FULL_QUEUE_LENGTH} or more launches waiting (HTA's limit); \
             threshold {} % (this program's)",
            ns(worst.full_ns),
            limits.full_queue_pct
        ),
        "the host is far ahead of the device, and launches block: nothing is lost unless the host had other work to do",
    ))
}

#[cfg(test)]
mod tests {
    use trace::{GpuUtilizationRow, LaunchStatsRow, QueueLengthRow, StepBreakdownRow, SyncStallRow};

    use super::*;

    /// Rank 1 waits for its device 30 of 100 ms; 6 of 10 kernels are short; rank 0's queue is full for 2 %; its device is busy and
    /// narrow.
    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        let wall = |rank| StepBreakdownRow { rank, wall_ns: 100_000_000, ..Default::default() };
        let tables = &mut analysis.tables;
        tables.step_breakdown = vec![wall(0), wall(1)];
        let stall = |rank, total_ns, operator: &str| SyncStallRow {
            rank,
            api_call: "cudaStreamSynchronize".into(),
            outer_operator: Some(operator.into()),
            calls: 3,
            total_ns,
            ..Default::default()
        };
        tables.sync_stalls = vec![stall(0, 5_000_000, "aten::item"), stall(1, 28_000_000, "aten::item")];
        tables.sync_stalls.push(stall(1, 2_000_000, "aten::copy_"));
        let launches = |short_kernels, launches, name: Option<&str>| LaunchStatsRow {
            short_kernels,
            launches,
            name: name.map(Into::into),
            ..Default::default()
        };
        tables.launch_stats = vec![launches(6, 10, None), launches(0, 900, Some("gemm"))];
        tables.queue_length = vec![QueueLengthRow { full_ns: 2_000_000, full_pct: 2.0, ..Default::default() }];
        tables.gpu_utilization =
            vec![GpuUtilizationRow { utilization_pct: 80.0, sm_efficiency_pct: Some(20.0), ..Default::default() }];
        analysis
    }

    #[test]
    fn each_has_its_numbers_and_its_threshold() {
        let found = findings(&analysis(), &Limits::default());
        let titles: Vec<&str> = found.iter().map(|f| &*f.title).collect();
        assert_eq!(
            titles,
            [
                "60 % of the kernels are shorter than the calls that launch them",
                "the host of rank 1 waits for its device 30 % of the time, most of it in `aten::item`",
                "1 device busy with kernels that leave most of the device idle",
                "the launch queue of rank 0 is full for 2.0 % of the time",
            ]
        );
        assert!(found.iter().all(|f| f.evidence.contains("threshold") && !f.suggestion.is_empty()));
        assert!(found[1].evidence.contains("28.0 ms in 3 calls of cudaStreamSynchronize"), "{}", found[1].evidence);
    }

    #[test]
    fn below_the_limits_nothing_is_said() {
        let limits = Limits {
            short_kernels_pct: 60.0,
            sync_stall_pct: 30.0,
            sm_share_pct: 25.0,
            full_queue_pct: 2.0,
            ..Limits::default()
        };
        assert_eq!(findings(&analysis(), &limits), []);
        assert_eq!(findings(&Analysis::default(), &Limits::default()), []);
    }
}
