//! The delays from launch to kernel, summed by kernel, as in HTA's `trace_analysis.get_cuda_kernel_launch_stats`.
//!
//! ```text
//!  host     [launch]                         cpu duration
//!  device            ......[ kernel ]        launch delay, gpu duration
//! ```
//!
//! A call may launch several kernels, such as the call of a CUDA graph. It counts as one call, with its first kernel,
//! which alone has a launch delay: the others wait for the kernels before them, not for the launch. The length of the
//! call cannot be compared with one kernel, so the kernels of such a call never count as short.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{LaunchStatsRow, Text};

use model::{NONE, RankData};
use trace::rank::Launch;

/// HTA's `runtime_cutoff`: a launching call that takes longer is an outlier.
pub const RUNTIME_CUTOFF_NS: i64 = 50_000;
/// HTA's `launch_delay_cutoff`: a longer delay is an outlier.
pub const LAUNCH_DELAY_CUTOFF_NS: i64 = 100_000;

/// The place of a piece of work among those of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Only,
    FirstOfSeveral,
    Later,
}

/// The place of each piece of `launched`, which is sorted by start, within its call. `rows` is the number of rows of the rank.
pub(super) fn places(launched: &[Launch], rows: usize) -> Vec<Place> {
    // A place for each row costs less than a search among the calls.
    let mut calls = vec![None; rows];
    for launch in launched {
        let call = &mut calls[launch.host as usize];
        *call = Some(if call.is_none() { Place::Only } else { Place::FirstOfSeveral });
    }
    launched.iter().map(|launch| calls[launch.host as usize].replace(Place::Later).unwrap_or(Place::Later)).collect()
}

/// Makes one row for each device, and one row for each of its kernels.
pub(super) fn launch_stats(data: &RankData, launched: &[Launch], places: &[Place]) -> Vec<LaunchStatsRow> {
    let events = &data.events;
    let mut tallies: FxHashMap<(i64, u32), Tally> = FxHashMap::default();
    for (launch, place) in launched.iter().zip(places) {
        let (host, device) = (launch.host as usize, launch.device as usize);
        let tally = tallies.entry((events.device[device], events.name[device])).or_default();
        let (cpu_ns, gpu_ns) = (events.dur_ns[host], events.dur_ns[device]);
        if *place != Place::Later {
            tally.add_call(cpu_ns, events.ts_ns[device].saturating_sub(events.end_ns(host)).max(0));
        }
        tally.add_work(gpu_ns);
        tally.short_kernels += i64::from(*place == Place::Only && gpu_ns < cpu_ns);
    }
    let mut tallies: Vec<((i64, u32), Tally)> = tallies.into_iter().collect();
    tallies.sort_unstable_by_key(|(place, _)| *place);
    let mut devices: BTreeMap<i64, Vec<(u32, Tally)>> = BTreeMap::new();
    for ((device, name), tally) in tallies {
        devices.entry(device).or_default().push((name, tally));
    }
    devices.into_iter().flat_map(|(device, tallies)| device_rows(data, device, tallies)).collect()
}

/// The row of the whole device, then the rows of its kernels by summed delay, the longest first.
fn device_rows(data: &RankData, device: i64, tallies: Vec<(u32, Tally)>) -> Vec<LaunchStatsRow> {
    let mut all = Tally::default();
    let mut named: Vec<(Text, Tally)> = Vec::new();
    for (name, tally) in tallies {
        all.merge(&tally);
        named.push((data.names[name as usize].clone(), tally));
    }
    named.sort_by(|(a, x), (b, y)| y.delay_total_ns.cmp(&x.delay_total_ns).then_with(|| a.cmp(b)));
    let device_id = Some(device).filter(|id| *id != NONE);
    let row = |(name, tally): (Option<Text>, Tally)| tally.row(data.outline.info.rank, device_id, name);
    std::iter::once((None, all)).chain(named.into_iter().map(|(name, tally)| (Some(name), tally))).map(row).collect()
}

/// Sums over the launches of one kernel name or of a device.
#[derive(Clone, Debug, Default)]
struct Tally {
    launches: i64,
    cpu_total_ns: i64,
    cpu_max_ns: i64,
    gpu_total_ns: i64,
    gpu_max_ns: i64,
    delay_total_ns: i64,
    /// One for each call.
    delays: Vec<i64>,
    short_kernels: i64,
    runtime_outliers: i64,
    delay_outliers: i64,
}

impl Tally {
    fn add_call(&mut self, cpu_ns: i64, delay_ns: i64) {
        self.cpu_total_ns = self.cpu_total_ns.saturating_add(cpu_ns);
        self.cpu_max_ns = self.cpu_max_ns.max(cpu_ns);
        self.runtime_outliers += i64::from(cpu_ns > RUNTIME_CUTOFF_NS);
        self.delay_total_ns = self.delay_total_ns.saturating_add(delay_ns);
        self.delays.push(delay_ns);
        self.delay_outliers += i64::from(delay_ns > LAUNCH_DELAY_CUTOFF_NS);
    }

    fn add_work(&mut self, gpu_ns: i64) {
        self.launches += 1;
        self.gpu_total_ns = self.gpu_total_ns.saturating_add(gpu_ns);
        self.gpu_max_ns = self.gpu_max_ns.max(gpu_ns);
    }

    fn merge(&mut self, other: &Self) {
        self.launches += other.launches;
        self.cpu_total_ns = self.cpu_total_ns.saturating_add(other.cpu_total_ns);
        self.cpu_max_ns = self.cpu_max_ns.max(other.cpu_max_ns);
        self.gpu_total_ns = self.gpu_total_ns.saturating_add(other.gpu_total_ns);
        self.gpu_max_ns = self.gpu_max_ns.max(other.gpu_max_ns);
        self.delay_total_ns = self.delay_total_ns.saturating_add(other.delay_total_ns);
        self.delays.extend_from_slice(&other.delays);
        self.short_kernels += other.short_kernels;
        self.runtime_outliers += other.runtime_outliers;
        self.delay_outliers += other.delay_outliers;
    }

    fn row(mut self, rank: i32, device_id: Option<i64>, name: Option<Text>) -> LaunchStatsRow {
        let calls = self.delays.len();
        LaunchStatsRow {
            rank,
            device_id,
            name,
            launches: self.launches,
            calls: calls as i64,
            cpu_total_ns: self.cpu_total_ns,
            cpu_mean_ns: self.cpu_total_ns as f64 / calls.max(1) as f64,
            cpu_max_ns: self.cpu_max_ns,
            gpu_total_ns: self.gpu_total_ns,
            gpu_mean_ns: self.gpu_total_ns as f64 / self.launches.max(1) as f64,
            gpu_max_ns: self.gpu_max_ns,
            delay_total_ns: self.delay_total_ns,
            delay_mean_ns: (calls > 0).then(|| self.delay_total_ns as f64 / calls as f64),
            delay_p50_ns: nearest_rank(&mut self.delays, 50),
            delay_p95_ns: nearest_rank(&mut self.delays, 95),
            delay_max_ns: self.delays.iter().copied().max(),
            short_kernels: self.short_kernels,
            runtime_outliers: self.runtime_outliers,
            delay_outliers: self.delay_outliers,
        }
    }
}

/// The percentile by nearest rank: the smallest value that at least `percent` of the values do not exceed; `None` without
/// values.
fn nearest_rank(values: &mut [i64], percent: usize) -> Option<i64> {
    let rank = (values.len() * percent).div_ceil(100).max(1) - 1;
    (rank < values.len()).then(|| *values.select_nth_unstable(rank).1)
}
