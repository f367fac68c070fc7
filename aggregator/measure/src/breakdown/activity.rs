//! The activity of a device, and the parts of any window of time.

use rustc_hash::FxHashMap;
use trace::StepBreakdownRow;
use trace::name_rules::is_communication_by_hta;

use crate::lost_launches::LostLaunches;
use crate::own_time::operating;
use model::intervals::{Coverage, Interval, IntervalSet};
use model::{Events, Kind, NONE, RankData};

/// The activity of one device, or of the CPU of a rank without a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// The device; `None` means the CPU.
    pub(crate) device: Option<i64>,
    /// The set K: compute.
    pub(crate) compute: IntervalSet,
    /// The set C: communication.
    pub(crate) comm: IntervalSet,
    /// The set M: copies and fills.
    pub(crate) memory: IntervalSet,
    /// Work of the profiler and of the driver, on the host.
    pub(super) overhead: IntervalSet,
    /// Time in which work whose rows were lost may have run.
    pub(super) unknown: IntervalSet,
    /// The set K by HTA's definition of communication; `None` if it is the same.
    pub(super) hta_compute: Option<IntervalSet>,
}

impl Activity {
    /// The activity of each device of a rank, or of its CPU if no row is device work. If the rank launched work and all of it was lost,
    /// nothing is known of its device, and its CPU is not what computes.
    pub(crate) fn of(data: &RankData, lost: &LostLaunches) -> Vec<Self> {
        let mut all = devices(data);
        if all.is_empty() {
            all.push(if lost.are_all() { Self::default() } else { Self::of_cpu(data) });
        }
        let overhead = overhead(&data.events);
        for activity in &mut all {
            activity.overhead.clone_from(&overhead);
            activity.unknown.clone_from(&lost.unknown);
        }
        all
    }

    /// The activity of a CPU: K = operators that neither communicate nor wait for communication, without the waits inside of
    /// them, C = collectives, M = ∅.
    fn of_cpu(data: &RankData) -> Self {
        let comm =
            data.outline.collectives.iter().filter_map(|c| Some(Interval::new(c.start_ns()?, c.end_ns()?))).collect();
        Self { compute: operating(data), comm, ..Self::default() }
    }

    /// Limits all sets to `time`.
    pub(super) fn clipped(&self, time: &IntervalSet) -> Self {
        let clip = |set: &IntervalSet| set.intersection(time);
        let Self { device, compute, comm, memory, overhead, unknown, hta_compute } = self;
        Self {
            device: *device,
            compute: clip(compute),
            comm: clip(comm),
            memory: clip(memory),
            overhead: clip(overhead),
            unknown: clip(unknown),
            hta_compute: hta_compute.as_ref().map(clip),
        }
    }
}

/// The time of all rows of kind `overhead`.
pub(crate) fn overhead(events: &Events) -> IntervalSet {
    let mut set = IntervalSet::new();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Overhead) {
        set.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
    }
    set
}

fn devices(data: &RankData) -> Vec<Activity> {
    let events = &data.events;
    let by_hta: Vec<bool> = data.names.iter().map(|name| is_communication_by_hta(name)).collect();
    let computes_by_hta = |row: usize| events.kind[row] == Kind::Kernel && !by_hta[events.name[row] as usize];
    let computes = |row: usize| events.kind[row] == Kind::Kernel && !events.is_comm[row];
    let differs = (0..events.len()).any(|row| computes(row) != computes_by_hta(row));
    let mut devices: Vec<Activity> = Vec::new();
    let mut positions: FxHashMap<i64, usize> = FxHashMap::default();
    let mut current = 0;
    for row in 0..events.len() {
        if !events.kind[row].is_device_work() {
            continue;
        }
        let device = Some(events.device[row]).filter(|d| *d != NONE).unwrap_or(0);
        if devices.get(current).is_none_or(|d| d.device != Some(device)) {
            current = *positions.entry(device).or_insert_with(|| {
                devices.push(Activity { device: Some(device), ..Activity::default() });
                devices.len() - 1
            });
        }
        let activity = &mut devices[current];
        let set = match events.kind[row] {
            _ if events.is_comm[row] => &mut activity.comm,
            Kind::Kernel => &mut activity.compute,
            _ => &mut activity.memory,
        };
        let interval = Interval::new(events.ts_ns[row], events.end_ns(row));
        set.push(interval);
        if differs {
            let hta_compute = activity.hta_compute.get_or_insert_default();
            if computes_by_hta(row) {
                hta_compute.push(interval);
            }
        }
    }
    devices.sort_by_key(|d| d.device);
    devices
}

/// Running sums over the sets of an [`Activity`], which make the five parts of any window cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) compute: Coverage,
    pub(super) comm: Coverage,
    pub(super) overlap: Coverage,
    pub(super) compute_or_comm: Coverage,
    pub(crate) busy: Coverage,
    /// Overhead outside of `busy`.
    pub(super) overhead: Coverage,
    /// Unknown time outside of `busy` and `overhead`.
    pub(super) unknown: Coverage,
}

impl Parts {
    /// Computes the running sums of an activity.
    pub(crate) fn new(activity: &Activity) -> Self {
        let Activity { compute, comm, memory, overhead, unknown, .. } = activity;
        let compute_or_comm = compute.union(comm);
        let busy = compute_or_comm.union(memory);
        Self {
            overlap: Coverage::new(compute.intersection(comm)),
            overhead: Coverage::new(overhead.difference(&busy)),
            unknown: Coverage::new(unknown.difference(&busy).difference(overhead)),
            busy: Coverage::new(busy),
            compute_or_comm: Coverage::new(compute_or_comm),
            compute: Coverage::new(compute.clone()),
            comm: Coverage::new(comm.clone()),
        }
    }

    /// The five parts of `window`.
    pub(crate) fn split(&self, window: Interval) -> Split {
        let within = |coverage: &Coverage| coverage.within_ns(window);
        let (compute, comm, overlap) = (within(&self.compute), within(&self.comm), within(&self.overlap));
        let (compute_or_comm, busy) = (within(&self.compute_or_comm), within(&self.busy));
        Split {
            wall_ns: window.len_ns(),
            compute_ns: compute - overlap,
            overlap_ns: overlap,
            exposed_comm_ns: comm - overlap,
            memory_ns: busy - compute_or_comm,
            idle_ns: window.len_ns() - busy,
            overhead_ns: within(&self.overhead),
            unknown_ns: within(&self.unknown),
        }
    }
}

/// The five parts of a window, their sum `wall_ns`, and the parts of the idle time that overhead covers and that are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) wall_ns: i64,
    pub(crate) compute_ns: i64,
    pub(crate) overlap_ns: i64,
    pub(crate) exposed_comm_ns: i64,
    pub(crate) memory_ns: i64,
    pub(crate) idle_ns: i64,
    pub(crate) overhead_ns: i64,
    pub(crate) unknown_ns: i64,
}

impl Split {
    pub(super) fn combine(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            wall_ns: f(self.wall_ns, other.wall_ns),
            compute_ns: f(self.compute_ns, other.compute_ns),
            overlap_ns: f(self.overlap_ns, other.overlap_ns),
            exposed_comm_ns: f(self.exposed_comm_ns, other.exposed_comm_ns),
            memory_ns: f(self.memory_ns, other.memory_ns),
            idle_ns: f(self.idle_ns, other.idle_ns),
            overhead_ns: f(self.overhead_ns, other.overhead_ns),
            unknown_ns: f(self.unknown_ns, other.unknown_ns),
        }
    }

    pub(super) fn row(self, rank: i32, device_id: Option<i64>, step: Option<i32>) -> StepBreakdownRow {
        let comm_total_ns = self.overlap_ns + self.exposed_comm_ns;
        StepBreakdownRow {
            rank,
            device_id,
            step,
            wall_ns: self.wall_ns,
            compute_ns: self.compute_ns,
            overlap_ns: self.overlap_ns,
            exposed_comm_ns: self.exposed_comm_ns,
            // Only all ranks together tell waits.
            exposed_wait_ns: None,
            memory_ns: self.memory_ns,
            idle_ns: self.idle_ns,
            overhead_ns: self.overhead_ns,
            unknown_ns: self.unknown_ns,
            comm_total_ns,
            overlap_pct: (comm_total_ns > 0).then(|| 100.0 * self.overlap_ns as f64 / comm_total_ns as f64),
        }
    }
}
