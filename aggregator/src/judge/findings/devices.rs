//! Findings about devices that are not busy enough, and about hosts that wait for their device.

use std::collections::BTreeMap;

use trace::{FindingRow, Severity, Verdict};

use crate::base::units::{ns, plural};
use crate::judge::findings::{Limits, compute_of_devices, finding, share};
use crate::measure::device::FULL_QUEUE_LENGTH;
use crate::model::analysis::Analysis;

/// Compute time and wall time of each device, by rank and device.
type Compute = BTreeMap<(i32, i64), (i64, i64)>;

/// All findings about devices, in a fixed order.
pub(super) fn findings(analysis: &Analysis, limits: &Limits) -> Vec<FindingRow> {
    let compute = compute_of_devices(analysis);
    let found = [
        launch_bound(analysis, limits, &compute),
        stalls(analysis, limits, &compute),
        narrow_kernels(analysis, limits, &compute),
        full_queue(analysis, limits),
    ];
    found.into_iter().flatten().collect()
}

/// Many kernels are shorter than their launch calls, and the device is idle most of the time: the host sets the pace.
fn launch_bound(analysis: &Analysis, limits: &Limits, compute: &Compute) -> Option<FindingRow> {
    let is_idle = |rank: i32, device: Option<i64>| {
        let sums = device.and_then(|device| compute.get(&(rank, device)));
        sums.is_some_and(|sums| share(sums) < limits.device_busy_pct)
    };
    let devices: Vec<_> =
        analysis.tables.launch_stats.iter().filter(|r| r.name.is_none() && is_idle(r.rank, r.device_id)).collect();
    let (short, all) = devices.iter().fold((0, 0), |(s, n), r| (s + r.short_kernels, n + r.launches));
    let short_pct = share(&(short, all));
    if short_pct <= limits.short_kernels_pct {
        return None;
    }
    let calls: i64 = devices.iter().map(|r| r.cpu_total_ns).sum();
    let work: i64 = devices.iter().map(|r| r.gpu_total_ns).sum();
    Some(finding(
        Severity::Info,
        format!(
            "on {}, {short_pct:.0} % of the kernels are shorter than the calls that launch them",
            plural(devices.len(), "idle device")
        ),
        (
            "launch_stats",
            format!(
                "launch_stats.short_kernels: {short} of {all} (HTA's definition, which excludes graphs) where compute takes less than {} % of \
             the time; launch calls take {}, kernels {}; threshold {} % (this program's)",
                limits.device_busy_pct,
                ns(calls),
                ns(work),
                limits.short_kernels_pct
            ),
        ),
        "the host may set the pace: CUDA graphs, fused operators or a compiler make fewer and longer kernels",
    ))
}

/// The host waits for a device that is idle most of the time, so it launches late. Victims are excluded: their host
/// waits for another rank.
fn stalls(analysis: &Analysis, limits: &Limits, compute: &Compute) -> Option<FindingRow> {
    let mut by_rank: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
    for ((rank, _), sums) in compute.iter().filter(|(_, sums)| share(sums) < limits.device_busy_pct) {
        let (_, wall) = by_rank.entry(*rank).or_default();
        *wall = (*wall).max(sums.1);
    }
    let is_victim =
        |rank: i32| analysis.tables.stragglers.iter().any(|s| s.rank == rank && s.verdict == Verdict::Victim);
    by_rank.retain(|rank, _| !is_victim(*rank));
    for row in &analysis.tables.sync_stalls {
        if let Some((total, _)) = by_rank.get_mut(&row.rank) {
            *total += row.in_steps_ns;
        }
    }
    let (rank, sums) = by_rank.iter().max_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)))?;
    let longest = analysis.tables.sync_stalls.iter().filter(|r| r.rank == *rank).max_by_key(|r| r.in_steps_ns)?;
    let place = [&longest.outer_operator, &longest.annotation].into_iter().flatten().next();
    let place = place.map_or("outside any operator".to_string(), |name| format!("in `{name}`"));
    (share(sums) > limits.sync_stall_pct).then(|| {
        finding(
            Severity::Info,
            format!("the host of rank {rank} waits for its device {:.0} % of the time, most of it {place}", share(sums)),
            ("sync_stalls", format!(
                "sync_stalls.in_steps_ns: {} on that rank; {} in {} of {}; threshold {} % (this program's), where compute takes less \
                 than {} % of the time",
                ns(sums.0),
                ns(longest.in_steps_ns),
                plural(usize::try_from(longest.calls).unwrap_or(usize::MAX), "call"),
                longest.api_call,
                limits.sync_stall_pct,
                limits.device_busy_pct
            )),
            "copies to the host, .item() and printed tensors block the host: move them out of the step, or copy asynchronously",
        )
    })
}

/// Devices that compute most of the time, but with kernels that are too small to fill them.
fn narrow_kernels(analysis: &Analysis, limits: &Limits, compute: &Compute) -> Option<FindingRow> {
    let computes = |key: (i32, i64)| compute.get(&key).is_some_and(|sums| share(sums) >= limits.device_busy_pct);
    let devices = analysis.tables.gpu_utilization.iter().filter(|r| r.step.is_none());
    let narrow: Vec<_> = devices
        .filter(|r| computes((r.rank, r.device_id)))
        .filter_map(|r| Some((r, r.sm_efficiency_pct?)))
        .filter(|(r, efficiency)| *efficiency < limits.sm_share_pct / 100.0 * r.utilization_pct)
        .collect();
    let (worst, efficiency) = narrow.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(finding(
        Severity::Info,
        format!(
            "{} {} kernels that leave most of the device idle",
            plural(narrow.len(), "device"),
            if narrow.len() == 1 { "runs" } else { "run" }
        ),
        (
            "gpu_utilization",
            format!(
                "rank {} device {}: a kernel runs {:.0} % of the time, but estimated SM efficiency is {efficiency:.0} % (the TensorBoard \
             plugin's definitions); threshold {} % of the busy time (this program's)",
                worst.rank, worst.device_id, worst.utilization_pct, limits.sm_share_pct
            ),
        ),
        "larger batches or fused kernels fill the device",
    ))
}

/// A launch queue that is full, so that further launches block the host.
fn full_queue(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let full = analysis.tables.queue_length.iter().filter(|r| r.full_pct > limits.full_queue_pct);
    let worst = full.max_by(|a, b| a.full_pct.total_cmp(&b.full_pct))?;
    let stream = worst.stream_id.map_or("without a number".to_string(), |stream| stream.to_string());
    Some(finding(
        Severity::Info,
        format!("the launch queue of rank {} is full for {:.1} % of the time", worst.rank, worst.full_pct),
        (
            "queue_length",
            format!(
                "queue_length.full_ns of stream {stream}: {} with {FULL_QUEUE_LENGTH} or more launches waiting (HTA's limit); \
             threshold {} % (this program's)",
                ns(worst.full_ns),
                limits.full_queue_pct
            ),
        ),
        "the host is far ahead of the device, so launches block; this costs time only if the host has other work to do",
    ))
}

#[cfg(test)]
mod tests {
    use trace::{GpuUtilizationRow, LaunchStatsRow, QueueLengthRow, StepBreakdownRow, StragglerRow, SyncStallRow};

    use super::*;

    /// Rank 0 computes 80 of 100 ms with narrow kernels, and its queue is full for 2 ms. Ranks 1 and 2 compute 20 ms
    /// each. On rank 1, 6 of 10 kernels are short, and the host waits 30 ms per step. The host of rank 2 waits 90 ms,
    /// but rank 2 is a victim.
    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        let step = |rank, compute_ns| StepBreakdownRow {
            rank,
            device_id: Some(0),
            step: Some(1),
            wall_ns: 100_000_000,
            compute_ns,
            ..Default::default()
        };
        let tables = &mut analysis.tables;
        tables.step_breakdown = vec![step(0, 80_000_000), step(1, 20_000_000), step(2, 20_000_000)];
        let stall = |rank, in_steps_ns, operator: &str| SyncStallRow {
            rank,
            api_call: "cudaStreamSynchronize".into(),
            outer_operator: Some(operator.into()),
            calls: 3,
            total_ns: 99_000_000,
            in_steps_ns,
            ..Default::default()
        };
        tables.sync_stalls = vec![stall(0, 95_000_000, "aten::item"), stall(1, 28_000_000, "aten::item")];
        tables.sync_stalls.extend([stall(1, 2_000_000, "aten::copy_"), stall(2, 90_000_000, "aten::index")]);
        tables.stragglers = vec![StragglerRow { rank: 2, verdict: "victim".into(), ..Default::default() }];
        let launches = |rank, short_kernels, launches, name: Option<&str>| LaunchStatsRow {
            rank,
            device_id: Some(0),
            short_kernels,
            launches,
            name: name.map(Into::into),
            ..Default::default()
        };
        tables.launch_stats =
            vec![launches(0, 900, 900, None), launches(1, 6, 10, None), launches(1, 0, 900, Some("gemm"))];
        tables.queue_length = vec![QueueLengthRow { full_ns: 2_000_000, full_pct: 2.0, ..Default::default() }];
        let device = |rank| GpuUtilizationRow {
            rank,
            utilization_pct: 80.0,
            sm_efficiency_pct: Some(20.0),
            ..Default::default()
        };
        tables.gpu_utilization = vec![device(0), device(1)];
        analysis
    }

    #[test]
    fn every_finding_has_its_numbers_and_its_threshold() {
        let found = findings(&analysis(), &Limits::default());
        let titles: Vec<&str> = found.iter().map(|f| &*f.title).collect();
        assert_eq!(
            titles,
            [
                "on 1 idle device, 60 % of the kernels are shorter than the calls that launch them",
                "the host of rank 1 waits for its device 30 % of the time, most of it in `aten::item`",
                "1 device runs kernels that leave most of the device idle",
                "the launch queue of rank 0 is full for 2.0 % of the time",
            ]
        );
        assert!(found.iter().all(|f| f.evidence.contains("threshold") && !f.suggestion.is_empty()));
        assert!(found[1].evidence.contains("28.0 ms in 3 calls of cudaStreamSynchronize"), "{}", found[1].evidence);
        assert!(found[2].evidence.starts_with("rank 0 device 0"), "{}", found[2].evidence);
    }

    #[test]
    fn values_at_the_limits_give_no_finding() {
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
