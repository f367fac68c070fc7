//! The time of devices in their steps, which several findings look at.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{place, share, step_rows};
use model::analysis::Analysis;
use model::units::ranks_named;

/// The time of one device in its steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceTime {
    pub steps: i64,
    pub wall_ns: i64,
    pub compute_ns: i64,
    pub idle_ns: i64,
    pub overhead_ns: i64,
    pub unknown_ns: i64,
}

impl DeviceTime {
    /// The share of the time in which the device computes, in percent. Time of the profiler does not count.
    pub(super) fn compute_pct(&self) -> f64 {
        share(&(self.compute_ns, self.wall_ns - self.overhead_ns))
    }

    /// The mean compute in a step.
    pub(super) fn compute_ns_per_step(&self) -> i64 {
        self.compute_ns / self.steps.max(1)
    }

    /// The share of the time in which the device idles, in percent. Time of the profiler does not count.
    pub(super) fn idle_pct(&self) -> f64 {
        share(&(self.idle_ns - self.overhead_ns - self.unknown_ns, self.wall_ns - self.overhead_ns))
    }

    /// The mean idle time in a step, without that of the profiler, and without time whose rows are missing.
    pub(super) fn own_idle_ns(&self) -> i64 {
        (self.idle_ns - self.overhead_ns - self.unknown_ns).max(0) / self.steps.max(1)
    }
}

/// Devices by rank and number.
pub(super) type Devices = BTreeMap<(i32, i64), DeviceTime>;

/// The time of each device, summed over its steps.
pub(super) fn devices_of(analysis: &Analysis) -> Devices {
    let mut devices = Devices::new();
    for row in step_rows(analysis) {
        if let Some(device) = row.device_id {
            let sum = devices.entry((row.rank, device)).or_default();
            sum.steps += 1;
            sum.wall_ns = sum.wall_ns.saturating_add(row.wall_ns);
            sum.compute_ns = sum.compute_ns.saturating_add(row.compute_ns + row.overlap_ns);
            sum.idle_ns = sum.idle_ns.saturating_add(row.idle_ns);
            sum.overhead_ns = sum.overhead_ns.saturating_add(row.overhead_ns);
            sum.unknown_ns = sum.unknown_ns.saturating_add(row.unknown_ns);
        }
    }
    devices
}

/// The device that is idle most, and its time. Ranks that the verdict names as a cause count only if there are no others:
/// their idle time is the saving of the verdict.
pub(super) fn most_idle<'a>(
    analysis: &Analysis,
    devices: impl Iterator<Item = (&'a (i32, i64), &'a DeviceTime)>,
) -> Option<(&'a (i32, i64), &'a DeviceTime)> {
    let causes: BTreeSet<i32> = analysis.verdict.causes.iter().copied().collect();
    devices.max_by_key(|((rank, device), time)| (!causes.contains(rank), time.own_idle_ns(), Reverse((*rank, *device))))
}

/// Some of `all` devices in words: `the devices of ranks 0–3`, `device 1 of rank 0 and 2 more`.
pub(super) fn devices_named(chosen: &[(i32, i64)], all: &Devices) -> String {
    let by_rank = |keys: &mut dyn Iterator<Item = &(i32, i64)>| {
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        keys.for_each(|(rank, _)| *counts.entry(*rank).or_default() += 1);
        counts
    };
    let (of_chosen, of_all) = (by_rank(&mut chosen.iter()), by_rank(&mut all.keys()));
    let mut whole = of_chosen.iter().map(|(rank, devices)| of_all.get(rank) == Some(devices));
    match chosen {
        [] => "no device".into(),
        [(rank, device)] => place(*rank, Some(*device)),
        many if whole.all(|is_whole| is_whole) => {
            let mut of_ranks: Vec<i32> = many.iter().map(|(rank, _)| *rank).collect();
            of_ranks.dedup();
            format!("the devices of {}", ranks_named(&of_ranks))
        }
        [(rank, device), rest @ ..] => format!("{} and {} more", place(*rank, Some(*device)), rest.len()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use trace::{
        FindingRow, GpuUtilizationRow, KernelStatsRow, LaunchStatsRow, QueueLengthRow, StepBreakdownRow, StragglerRow,
        SyncStallRow,
    };

    use super::*;
    use crate::{FindingKind, full_queue, idle_devices, launch_bound, narrow_kernels, sync_stalls};
    use model::limits::Limits;
    use model::options::Options;

    /// The findings about devices.
    static KINDS: [&FindingKind; 5] = [
        &idle_devices::IDLE_DEVICES,
        &launch_bound::LAUNCH_BOUND,
        &sync_stalls::SYNC_STALLS,
        &narrow_kernels::NARROW_KERNELS,
        &full_queue::FULL_LAUNCH_QUEUE,
    ];

    fn findings(analysis: &Analysis, limits: Limits) -> Vec<FindingRow> {
        let options = Options { limits, ..Options::default() };
        KINDS.iter().flat_map(|kind| kind.within(analysis, &options)).collect()
    }

    /// Rank 0 computes 80 of 100 ms with narrow kernels, and its queue is full for 2 ms. Ranks 1 and 2 compute 20 ms
    /// each; the profiler covers 10 ms of rank 1's idle time, and communication is exposed on rank 2. On rank 1, 6 of 10 kernels are short, and the host waits 30 ms per step. The host of rank 2 waits 90 ms,
    /// but rank 2 is a victim.
    pub(in super::super) fn analysis() -> Analysis {
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
            device_busy_ns: 60_000_000,
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
        let found = findings(&analysis(), Limits::default());
        let titles: Vec<&str> = found.iter().map(|f| &*f.title).collect();
        assert_eq!(
            titles,
            [
                "device 0 of rank 1 is idle for more than half of the time: 70.0 ms of a 100 ms step",
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
    fn a_host_that_is_blocked_while_its_device_does_nothing_waits_for_no_work() {
        let mut analysis = analysis();
        analysis.tables.sync_stalls[1].device_busy_ns = 0;
        analysis.tables.sync_stalls[2].device_busy_ns = 0;
        let found = sync_stalls::SYNC_STALLS.in_tables(&analysis).pop().unwrap();
        let title = "the host of rank 1 is blocked in calls such as cudaStreamSynchronize while its device does nothing, 30 % of";
        assert!(found.title.starts_with(title), "{}", found.title);
        assert!(!found.suggestion.contains(".item()"), "{}", found.suggestion);
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
        let found = findings(&analysis(), limits);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(&*found[0].id, "idle-devices");
        let idle = |device_busy_pct| {
            let options = Options { limits: Limits { device_busy_pct, ..Limits::default() }, ..Options::default() };
            idle_devices::IDLE_DEVICES.within(&analysis(), &options).pop()
        };
        // Rank 1 is idle for 70 of the 90 ms without overhead.
        assert_eq!(idle(22.0), None);
        assert!(idle(23.0).unwrap().title.starts_with("device 0 of rank 1 is idle"));
        assert_eq!(findings(&Analysis::default(), Limits::default()), []);
    }
}
