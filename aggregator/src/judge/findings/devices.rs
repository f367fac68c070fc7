//! Findings about devices that are not busy enough, and about hosts that wait for their device.

use std::collections::BTreeMap;

use trace::{FindingRow, GpuUtilizationRow, IdleCategory, KernelStatsRow, Severity, Verdict};

use crate::base::units::{ns, plural};
use crate::judge::findings::{
    DeviceTime, Devices, Limits, devices_named, devices_of, finding, most_idle, place, saving, share, short_name,
};
use crate::measure::device::FULL_QUEUE_LENGTH;
use crate::model::analysis::Analysis;

/// All findings about devices, in a fixed order.
pub(super) fn findings(analysis: &Analysis, limits: &Limits) -> Vec<FindingRow> {
    let devices = devices_of(analysis);
    let found = [
        idle_devices(analysis, limits, &devices),
        launch_bound(analysis, limits, &devices),
        stalls(analysis, limits, &devices),
        narrow_kernels(analysis, limits, &devices),
        full_queue(analysis, limits),
    ];
    found.into_iter().flatten().collect()
}

/// Devices that compute less than half of the time.
fn idle_devices(analysis: &Analysis, limits: &Limits, devices: &Devices) -> Option<FindingRow> {
    let slack: Vec<(&(i32, i64), &DeviceTime)> =
        devices.iter().filter(|(_, time)| time.compute_pct() < limits.device_busy_pct).collect();
    let (least, _) = slack.iter().min_by(|(_, a), (_, b)| a.compute_pct().total_cmp(&b.compute_pct()))?;
    let ((rank, device), time) = most_idle(analysis, slack.iter().copied())?;
    let keys: Vec<(i32, i64)> = slack.iter().map(|(key, _)| **key).collect();
    let (verb, most) = match keys.len() {
        1 => ("computes", "it is idle for".into()),
        _ => ("compute", format!("{} is idle most,", place(*rank, Some(*device)))),
    };
    let overhead_ns: i64 = slack.iter().map(|(_, time)| time.overhead_ns).sum();
    let overhead = if overhead_ns > 0 {
        format!("; {} of overhead of the profiler and the driver is not counted as idle", ns(overhead_ns))
    } else {
        String::new()
    };
    let found = finding(
        Severity::Warning,
        format!(
            "{} {verb} less than half of the time: {most} {} of a {} step",
            devices_named(&keys, devices),
            ns(time.own_idle_ns()),
            ns(time.wall_ns / time.steps.max(1))
        ),
        (
            "idle_breakdown",
            format!(
                "{} of {}; least: {} with {:.0} %; threshold {} % (TensorBoard plugin, GPU utilization){overhead}",
                keys.len(),
                plural(devices.len(), "device"),
                place(least.0, Some(least.1)),
                devices.get(*least).map_or(0.0, DeviceTime::compute_pct),
                limits.device_busy_pct
            ),
        ),
        idle_advice(analysis, *rank, *device),
    );
    Some(saving(time.own_idle_ns(), found))
}

/// The advice on the idle time of a device: it depends on the most frequent reason that its streams wait.
fn idle_advice(analysis: &Analysis, rank: i32, device: i64) -> &'static str {
    let rows = analysis.tables.idle_breakdown.iter().filter(|r| r.rank == rank && r.device_id == Some(device));
    let mut of_category: BTreeMap<&str, i64> = BTreeMap::new();
    rows.for_each(|row| *of_category.entry(&row.category).or_default() += row.idle_ns);
    let most = of_category.into_iter().max_by_key(|(_, ns)| *ns);
    match most.and_then(|(word, _)| IdleCategory::ALL.iter().find(|category| category.as_str() == word)) {
        Some(IdleCategory::HostWait) => {
            "its streams wait mostly for the host to launch work: profile the host's code, and launch fewer, larger kernels"
        }
        Some(IdleCategory::KernelWait) => {
            "its streams have mostly short gaps between kernels: fewer, larger kernels or CUDA graphs shorten them"
        }
        Some(IdleCategory::Other) => {
            "its streams wait mostly for other streams: look in the timeline for the stream that they wait for"
        }
        None => "look in the timeline at what its host does while the device idles",
    }
}

/// Many kernels are shorter than their launch calls, and the device is idle most of the time: the host sets the pace.
fn launch_bound(analysis: &Analysis, limits: &Limits, all: &Devices) -> Option<FindingRow> {
    let idle = |rank: i32, device: Option<i64>| {
        all.get_key_value(&(rank, device?)).filter(|(_, time)| time.compute_pct() < limits.device_busy_pct)
    };
    let rows = analysis.tables.launch_stats.iter().filter_map(|row| Some((row, idle(row.rank, row.device_id)?)));
    let (total, named): (Vec<_>, Vec<_>) = rows.partition(|(row, _)| row.name.is_none());
    let (short, launches) = total.iter().fold((0, 0), |(s, n), (row, _)| (s + row.short_kernels, n + row.launches));
    let short_pct = share(&(short, launches));
    if short_pct <= limits.short_kernels_pct {
        return None;
    }
    let calls: i64 = total.iter().map(|(row, _)| row.cpu_total_ns).sum();
    let work: i64 = total.iter().map(|(row, _)| row.gpu_total_ns).sum();
    let keys: Vec<(i32, i64)> = total.iter().map(|(_, (key, _))| **key).collect();
    let most_ns =
        most_idle(analysis, total.iter().map(|(_, device)| *device)).map_or(0, |(_, time)| time.own_idle_ns());
    let mut by_name: BTreeMap<&str, i64> = BTreeMap::new();
    for (row, _) in &named {
        *by_name.entry(row.name.as_deref().unwrap_or_default()).or_default() += row.short_kernels;
    }
    let most = by_name.iter().max_by_key(|(_, short)| **short).filter(|(_, short)| **short > 0);
    let most = most
        .map_or(String::new(), |(name, short)| format!(", most often `{}` ({short} of {launches})", short_name(name)));
    let found = finding(
        Severity::Info,
        format!(
            "on {}, which mostly {}, {short_pct:.0} % of the kernels are shorter than the calls that launch \
             them{most}",
            devices_named(&keys, all),
            if keys.len() == 1 { "is idle or communicates" } else { "are idle or communicate" }
        ),
        (
            "launch_stats",
            format!(
                "launch_stats.short_kernels: {short} of {launches} (HTA's definition, which excludes graphs) where compute takes less \
                 than {} % of the time; launch calls take {}, kernels {}; threshold {} % (this program's)",
                limits.device_busy_pct,
                ns(calls),
                ns(work),
                limits.short_kernels_pct
            ),
        ),
        "the host may set the pace: CUDA graphs, fused operators or a compiler make fewer and longer kernels",
    );
    Some(saving(most_ns, found))
}

/// The host waits for a device that is idle most of the time, so it launches late. Victims are excluded: their host
/// waits for another rank.
fn stalls(analysis: &Analysis, limits: &Limits, devices: &Devices) -> Option<FindingRow> {
    // Time in waits, and the device with the longest steps.
    let mut by_rank: BTreeMap<i32, (i64, DeviceTime)> = BTreeMap::new();
    for ((rank, _), time) in devices.iter().filter(|(_, time)| time.compute_pct() < limits.device_busy_pct) {
        let (_, longest) = by_rank.entry(*rank).or_default();
        if time.wall_ns > longest.wall_ns {
            *longest = *time;
        }
    }
    for victim in analysis.tables.stragglers.iter().filter(|s| s.verdict == Verdict::Victim) {
        by_rank.remove(&victim.rank);
    }
    for row in &analysis.tables.sync_stalls {
        if let Some((total, _)) = by_rank.get_mut(&row.rank) {
            *total += row.in_steps_ns;
        }
    }
    let pct = |(stalled, time): &(i64, DeviceTime)| share(&(*stalled, time.wall_ns));
    let (rank, sums) = by_rank.iter().max_by(|(_, a), (_, b)| pct(a).total_cmp(&pct(b)))?;
    let longest = analysis.tables.sync_stalls.iter().filter(|r| r.rank == *rank).max_by_key(|r| r.in_steps_ns)?;
    let within = [&longest.outer_operator, &longest.annotation].into_iter().flatten().next();
    let within = within.map_or("outside any operator".to_string(), |name| format!("in `{name}`"));
    let (stalled_ns, time) = *sums;
    (pct(sums) > limits.sync_stall_pct).then(|| {
        let per_step_ns = stalled_ns / time.steps.max(1);
        let found = finding(
            Severity::Info,
            format!(
                "the host of rank {rank} waits for its device {:.0} % of the time, {} of a {} step, most of it {within}",
                pct(sums),
                ns(per_step_ns),
                ns(time.wall_ns / time.steps.max(1))
            ),
            ("sync_stalls", format!(
                "sync_stalls.in_steps_ns: {} on that rank; {} in {} of {}; threshold {} % (this program's), where compute takes less \
                 than {} % of the time",
                ns(stalled_ns),
                ns(longest.in_steps_ns),
                plural(usize::try_from(longest.calls).unwrap_or(usize::MAX), "call"),
                longest.api_call,
                limits.sync_stall_pct,
                limits.device_busy_pct
            )),
            "copies to the host, .item() and printed tensors block the host: move them out of the step, or copy asynchronously",
        );
        // The work that the host waits for stays.
        saving(per_step_ns.min(time.own_idle_ns()), found)
    })
}

/// Devices that compute most of the time, but with kernels that are too small to fill them.
fn narrow_kernels(analysis: &Analysis, limits: &Limits, devices: &Devices) -> Option<FindingRow> {
    let busy = |row: &GpuUtilizationRow| {
        devices.get(&(row.rank, row.device_id)).filter(|time| time.compute_pct() >= limits.device_busy_pct)
    };
    let rows = analysis.tables.gpu_utilization.iter().filter(|r| r.step.is_none());
    let narrow: Vec<_> = rows
        .filter_map(|row| Some((row, busy(row)?, row.sm_efficiency_pct?)))
        .filter(|(row, _, efficiency)| *efficiency < limits.sm_share_pct / 100.0 * row.utilization_pct)
        .collect();
    let (worst, time, efficiency) = narrow.iter().min_by(|(_, _, a), (_, _, b)| a.total_cmp(b))?;
    let keys: Vec<(i32, i64)> = narrow.iter().map(|(row, ..)| (row.rank, row.device_id)).collect();
    let of_worst = |k: &&KernelStatsRow| k.rank == worst.rank && k.device_id == Some(worst.device_id);
    let kernel = analysis.tables.kernel_stats.iter().filter(of_worst).max_by_key(|kernel| kernel.total_ns);
    let kernel = kernel.map_or(String::new(), |kernel| {
        let blocks = kernel.mean_blocks.map_or(String::new(), |blocks| format!(" with {blocks:.0} blocks"));
        format!("; of its kernels, `{}`{blocks} takes most time", kernel.name)
    });
    let full = efficiency / worst.utilization_pct.max(f64::MIN_POSITIVE);
    let saving_ns = (time.compute_ns / time.steps.max(1)) as f64 * (1.0 - full);
    let what = match keys.len() {
        1 => "runs kernels that leave most of it idle".into(),
        _ => format!("run kernels that leave most of them idle, most so {}", place(worst.rank, Some(worst.device_id))),
    };
    let found = finding(
        Severity::Info,
        format!("{} {what}", devices_named(&keys, devices)),
        (
            "gpu_utilization",
            format!(
                "{}: a kernel runs {:.0} % of the time, but estimated SM efficiency is {efficiency:.0} % (the TensorBoard \
                 plugin's definitions){kernel}; threshold {} % of the busy time (this program's)",
                place(worst.rank, Some(worst.device_id)),
                worst.utilization_pct,
                limits.sm_share_pct
            ),
        ),
        "larger batches or fused kernels fill the device",
    );
    Some(saving(saving_ns.round() as i64, found))
}

/// A launch queue that is full, so that further launches block the host.
fn full_queue(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let full = analysis.tables.queue_length.iter().filter(|r| r.full_pct > limits.full_queue_pct);
    let worst = full.max_by(|a, b| a.full_pct.total_cmp(&b.full_pct))?;
    let stream = worst.stream_id.map_or("a stream without a number".to_string(), |stream| format!("stream {stream}"));
    // No prediction: while the queue is full, the device sets the pace.
    Some(finding(
        Severity::Info,
        format!(
            "the launch queue of {stream} on {} is full for {:.1} % of the time",
            place(worst.rank, worst.device_id),
            worst.full_pct
        ),
        (
            "queue_length",
            format!(
                "queue_length.full_ns: {} with {FULL_QUEUE_LENGTH} or more launches waiting (HTA's limit); \
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
    /// each; the profiler covers 10 ms of rank 1's idle time, and communication is exposed on rank 2. On rank 1, 6 of 10 kernels are short, and the host waits 30 ms per step. The host of rank 2 waits 90 ms,
    /// but rank 2 is a victim.
    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        let step = |rank, compute_ns| StepBreakdownRow {
            rank,
            device_id: Some(0),
            step: Some(1),
            wall_ns: 100_000_000,
            compute_ns,
            idle_ns: if rank == 2 { 10_000_000 } else { 100_000_000 - compute_ns },
            overhead_ns: if rank == 1 { 10_000_000 } else { 0 },
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
            vec![launches(0, 900, 900, None), launches(1, 6, 10, None), launches(1, 5, 900, Some("gemm"))];
        tables.queue_length = vec![QueueLengthRow {
            device_id: Some(0),
            stream_id: Some(7),
            full_ns: 2_000_000,
            full_pct: 2.0,
            ..Default::default()
        }];
        tables.kernel_stats = vec![KernelStatsRow {
            device_id: Some(0),
            name: "gemm".into(),
            total_ns: 50,
            mean_blocks: Some(12.0),
            ..Default::default()
        }];
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
                "the devices of ranks 1–2 compute less than half of the time: device 0 of rank 1 is idle most, 70.0 ms of a 100 ms step",
                "on device 0 of rank 1, which mostly is idle or communicates, 60 % of the kernels are shorter than the calls that \
                 launch them, most often `gemm` (5 of 10)",
                "the host of rank 1 waits for its device 30 % of the time, 30.0 ms of a 100 ms step, most of it in `aten::item`",
                "device 0 of rank 0 runs kernels that leave most of it idle",
                "the launch queue of stream 7 on device 0 of rank 0 is full for 2.0 % of the time",
            ]
        );
        let savings: Vec<Option<i64>> = found.iter().map(|f| f.saving_ns.map(|ns| ns / 1_000_000)).collect();
        assert_eq!(savings, [Some(70), Some(70), Some(30), Some(60), None]);
        assert!(found.iter().all(|f| f.evidence.contains("threshold") && !f.suggestion.is_empty()));
        assert!(found[0].evidence.contains("10.0 ms of overhead"), "{}", found[0].evidence);
        assert!(found[2].evidence.contains("28.0 ms in 3 calls of cudaStreamSynchronize"), "{}", found[2].evidence);
        assert!(found[3].evidence.contains("`gemm` with 12 blocks takes most time"), "{}", found[3].evidence);
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
        let found = findings(&analysis(), &limits);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].title.contains("compute less than half of the time"), "{found:?}");
        let idle = |device_busy_pct| {
            idle_devices(&analysis(), &Limits { device_busy_pct, ..Limits::default() }, &devices_of(&analysis()))
        };
        // Rank 2 computes 20 % of the time, rank 1 20 of the 90 ms without overhead.
        assert_eq!(idle(20.0), None);
        assert!(idle(22.0).unwrap().title.starts_with("device 0 of rank 2 computes"));
        assert_eq!(findings(&Analysis::default(), &Limits::default()), []);
    }
}
