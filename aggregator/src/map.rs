//! The map: everything of one rank, reduced to a part that is small enough to hold for every rank of a large run.

use trace::{
    AnnotationStatsRow, BucketRow, ClockSampleRow, CollectiveRow, CommRow, CounterRow, CriticalPathRow, DeviceRow,
    HtaTemporalRow, IdleBreakdownRow, KernelStatsRow, MemoryCurveRow, MemoryPeakRow, OmissionRow, OpStatsRow,
    StepBreakdownRow, StepRow,
};

use crate::breakdown::{Activity, Parts, breakdown, hta_temporal};
use crate::critical::critical_path;
use crate::device::{DeviceTables, Launches, View, device_tables};
use crate::idle::idle_breakdown;
use crate::intervals::Interval;
use crate::memory::{memory_curve, memory_peaks};
use crate::model::{RankData, RankInfo};
use crate::options::Options;
use crate::select::{Scope, narrow_to_time, select_steps};
use crate::stats::{Stats, stats};
use crate::steps::{active_numbers, mark_steps, one_step_if_none, recorded};
use crate::straggler;

/// What is left of a rank after the map: its collectives and steps, and sums. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankPart {
    /// Who it is.
    pub info: RankInfo,
    /// Rows of `events` that were read.
    pub rows: u64,
    /// From the first start to the last end of everything that was read.
    pub recorded: Option<Interval>,
    /// Whether some rows are a device's.
    pub has_device_rows: bool,
    /// Its collectives, sorted by start.
    pub collectives: Vec<CollectiveRow>,
    /// Kineto's `Comms Id` of each, or empty.
    pub comms_ids: Vec<Option<u64>>,
    /// |[start, end) \ K| of each collective; `None` where it has no start or end.
    pub exposed_ns: Vec<Option<i64>>,
    /// Its steps.
    pub steps: Vec<StepRow>,
    /// Numbers of its active steps, those that were not chosen included; ascending.
    pub recorded_steps: Vec<i32>,
    /// Its clock comparisons.
    pub clock_samples: Vec<ClockSampleRow>,
    /// Its gradient buckets.
    pub buckets: Vec<BucketRow>,
    /// Its communicators.
    pub comms: Vec<CommRow>,
    /// Its devices.
    pub devices: Vec<DeviceRow>,
    /// What its recorder counted.
    pub counters: Vec<CounterRow>,
    /// Where its time went.
    pub step_breakdown: Vec<StepBreakdownRow>,
    /// Why its streams were idle.
    pub idle_breakdown: Vec<IdleBreakdownRow>,
    /// Operators and ranges by name; not yet compared with other ranks.
    pub op_stats: Vec<OpStatsRow>,
    /// Annotations by name.
    pub annotation_stats: Vec<AnnotationStatsRow>,
    /// Kernels by name; not yet compared with other devices.
    pub kernel_stats: Vec<KernelStatsRow>,
    /// The critical path of each of its steps.
    pub critical_path: Vec<CriticalPathRow>,
    /// Its highest use of memory.
    pub memory_peaks: Vec<MemoryPeakRow>,
    /// Its use of memory over time.
    pub memory_curve: Vec<MemoryCurveRow>,
    /// What its devices did, and what its host did to keep them busy.
    pub device: DeviceTables,
    /// HTA's temporal breakdown.
    pub hta_temporal: Option<HtaTemporalRow>,
    /// Its own work between collectives, and where in the program it was.
    pub straggler: straggler::RankPart,
    /// What was left out of it.
    pub omissions: Vec<OmissionRow>,
}

/// Reduces a rank to its part. `time` is the span that was asked for, in the rank's clock.
pub fn map_rank(mut data: RankData, options: &Options, time: Option<Interval>) -> RankPart {
    if let Some(marker) = &options.step_marker {
        mark_steps(&mut data, marker);
    }
    one_step_if_none(&mut data);
    let recorded_steps = active_numbers(&data.steps);
    let scope = Scope::of(&data, options, time);
    data.memory.retain(|m| scope.keeps_host_time(&data.steps, m.ts_ns));
    narrow_to_time(&mut data.steps, &mut data.collectives, &mut data.comms_ids, &scope);
    let events = &data.events;
    let keep = |row: usize| scope.keeps_row(events, row);

    let rank = data.info.rank;
    let launches = Launches::collect(&data.events);
    // Two halves that take about as long: a single rank, too, should keep more than one core busy.
    let (
        (step_breakdown, exposed_ns, hta_temporal, device, idle_breakdown),
        (stats, straggler, critical_path, peaks, curve),
    ) = rayon::join(
        || {
            let found = breakdown(&data, &scope);
            let (parts, chosen) = (&*found.parts, found.chosen());
            let exposed_ns: Vec<Option<i64>> = data.collectives.iter().map(|c| exposed_ns(c, parts)).collect();
            let sequences_of = options.sequences_of.as_ref();
            let view =
                View { data: &data, keep: &keep, scope: &scope, launches: &launches, sequences_of, parts, chosen };
            let (device, idle) = (device_tables(&view), idle_breakdown(&data, &launches, &keep));
            let hta_temporal = hta_temporal(rank, chosen);
            (found.rows, exposed_ns, hta_temporal, device, idle)
        },
        || {
            let straggler = straggler::map_rank(&data, &options.thresholds);
            let (peaks, curve) = (memory_peaks(rank, &data.memory), memory_curve(rank, &data.memory));
            (stats(&data, &keep), straggler, critical_path(&data, &launches, &scope), peaks, curve)
        },
    );
    let Stats { ops, annotations, kernels } = stats;
    let mut part = RankPart {
        rows: data.events.len() as u64,
        recorded: recorded(&data),
        has_device_rows: data.events.kind.iter().any(|k| k.is_device_work()),
        exposed_ns,
        step_breakdown,
        idle_breakdown,
        op_stats: ops,
        annotation_stats: annotations,
        kernel_stats: kernels,
        critical_path,
        memory_peaks: peaks,
        memory_curve: curve,
        device,
        hta_temporal,
        straggler,
        info: data.info,
        collectives: data.collectives,
        comms_ids: data.comms_ids,
        steps: data.steps,
        recorded_steps,
        clock_samples: data.clock_samples,
        buckets: data.buckets,
        comms: data.comms,
        devices: data.devices,
        counters: data.counters,
        omissions: data.omissions,
    };
    // Only now: the steps around the chosen ones say where these begin and end.
    select_steps(&mut part, &scope);
    part
}

/// The part of a collective that no compute of its device hides.
fn exposed_ns(collective: &CollectiveRow, parts: &[(Activity, Parts)]) -> Option<i64> {
    let window = Interval::new(collective.start_ns?, collective.end_ns?);
    let own = parts.iter().find(|(a, _)| a.device.is_some() && a.device == collective.device_id);
    let (_, parts) = own.or(parts.first())?;
    Some(window.len_ns() - parts.compute.within_ns(window))
}
