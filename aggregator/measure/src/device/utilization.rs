//! The utilization of devices, as the TensorBoard plugin defines it: GPU utilization, estimated SM efficiency and
//! estimated achieved occupancy.
//!
//! ```text
//!  kernel 1  half the SMs     ########........
//!  kernel 2  all the SMs      ......######....
//!  utilization                ############         12 of 16
//!  SM efficiency              ½½½½½½111111....     the sum is capped at 1: (6·½ + 6) / 16
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use trace::GpuUtilizationRow;
use trace::rank::DevicesById;

use crate::device::View;
use crate::occupancy::Uses;
use model::intervals::{Interval, IntervalSet};
use model::stats::is_covered;
use model::steps::{DeviceEnds, device_windows, host_windows};
use model::{Events, Kind, NONE, RankData};

/// Makes one row for all active steps of each device together, and one row for each active step.
pub(super) fn gpu_utilization(view: &View<'_>) -> Vec<GpuUtilizationRow> {
    let data = view.data;
    let host = host_windows(&data.outline.steps);
    let ends = DeviceEnds::of(&data.events);
    let devices = DevicesById::of(&data.devices);
    let kernels = kernels_by_device(&data.events);
    let mut rows = Vec::new();
    for device in view.parts.iter().filter_map(|(activity, _)| activity.device) {
        let windows = view.scope.chosen(device_windows(&host, &ends, device));
        let time = view.scope.time.as_ref();
        let mut steps: Vec<Step> = windows
            .into_iter()
            .map(|step| Step { number: step.step, window: clipped(step.window, time), sums: Sums::default() })
            .filter(|step| !step.window.is_empty())
            .collect();
        let sm_count = devices.get(device).and_then(|d| d.sm_count).filter(|n| *n > 0);
        let of_device =
            kernels.partition_point(|(on, _)| *on < device)..kernels.partition_point(|(on, _)| *on <= device);
        add_kernels(data, &kernels[of_device], sm_count, &mut steps);
        let row = |step, window_ns, sums: &Sums| sums.row(data.outline.info.rank, device, step, window_ns);
        let mut all = Sums::default();
        steps.iter().for_each(|step| all.add(&step.sums));
        let all_ns: i64 = steps.iter().map(|step| step.window.len_ns()).sum();
        if all_ns > 0 {
            rows.push(row(None, all_ns, &all));
        }
        rows.extend(steps.iter().map(|step| row(Some(step.number), step.window.len_ns(), &step.sums)));
    }
    rows
}

fn clipped(window: Interval, scope: Option<&IntervalSet>) -> IntervalSet {
    match scope {
        Some(scope) => scope.clip(window),
        None => [window].into_iter().collect(),
    }
}

/// A step in its window on the device. Windows do not overlap.
struct Step {
    number: i32,
    window: IntervalSet,
    sums: Sums,
}

/// Integrals over time of the state between two changes of the running kernels.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// The time in which at least one kernel runs.
    busy_ns: i64,
    /// The integral of the share of SMs in use by the kernels whose share is known, at most 1.
    sm_share_ns: f64,
    /// The time in which at least one kernel of known share runs, and the summed time of all such kernels.
    sm_busy_ns: i64,
    sm_known_ns: f64,
    /// The summed time of all running kernels.
    running_ns: f64,
    /// The summed time of the running kernels whose occupancy is known.
    known_ns: f64,
    /// The integral of the summed occupancies of the running kernels.
    occupancy_pct_ns: f64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.busy_ns += other.busy_ns;
        self.sm_share_ns += other.sm_share_ns;
        self.sm_busy_ns += other.sm_busy_ns;
        self.sm_known_ns += other.sm_known_ns;
        self.running_ns += other.running_ns;
        self.known_ns += other.known_ns;
        self.occupancy_pct_ns += other.occupancy_pct_ns;
    }

    fn row(&self, rank: i32, device_id: i64, step: Option<i32>, window_ns: i64) -> GpuUtilizationRow {
        let Self { busy_ns, sm_share_ns, sm_busy_ns, sm_known_ns, running_ns, known_ns, occupancy_pct_ns } = *self;
        let percent_of_window = |value: f64| 100.0 * value / window_ns as f64;
        let known_pct = |known_ns: f64| (running_ns >= 1.0).then(|| 100.0 * known_ns / running_ns);
        // Kernels of unknown share count as the mean of the others.
        let sm_share = || sm_share_ns * (busy_ns as f64 / sm_busy_ns as f64);
        GpuUtilizationRow {
            rank,
            device_id,
            step,
            window_ns,
            kernel_ns: busy_ns,
            utilization_pct: percent_of_window(busy_ns as f64),
            sm_efficiency_pct: is_covered(sm_known_ns, running_ns).then(|| percent_of_window(sm_share())),
            sm_known_pct: known_pct(sm_known_ns),
            occupancy_pct: is_covered(known_ns, running_ns).then(|| occupancy_pct_ns / known_ns),
            occupancy_known_pct: known_pct(known_ns),
        }
    }
}

/// A running kernel, ordered by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    end_ns: i64,
    row: usize,
    /// The bits of its share of the SMs. The type is an integer because floats have no total order.
    sm_share: Option<u64>,
    /// The bits of its occupancy.
    occupancy_pct: Option<u64>,
}

/// The kernels that run at one time.
#[derive(Debug, Default)]
struct Now {
    open: BinaryHeap<Reverse<Running>>,
    sm_share: f64,
    sm_known: u32,
    known: f64,
    occupancy_pct: f64,
}

impl Now {
    fn begin(&mut self, kernel: Running) {
        if let Some(share) = kernel.sm_share {
            self.sm_known += 1;
            self.sm_share += f64::from_bits(share);
        }
        if let Some(pct) = kernel.occupancy_pct {
            self.known += 1.0;
            self.occupancy_pct += f64::from_bits(pct);
        }
        self.open.push(Reverse(kernel));
    }

    fn first_end_ns(&self) -> Option<i64> {
        self.open.peek().map(|Reverse(kernel)| kernel.end_ns)
    }

    fn end_first(&mut self) {
        let Some(Reverse(kernel)) = self.open.pop() else { return };
        if self.open.is_empty() {
            // No kernel runs, so rounding remainders in the sums are discarded.
            *self = Self { open: std::mem::take(&mut self.open), ..Self::default() };
            return;
        }
        if let Some(share) = kernel.sm_share {
            self.sm_known -= 1;
            self.sm_share -= f64::from_bits(share);
        }
        if let Some(pct) = kernel.occupancy_pct {
            self.known -= 1.0;
            self.occupancy_pct -= f64::from_bits(pct);
        }
    }

    /// Adds the current state to the sums, for `length_ns`.
    fn integrate(&self, length_ns: i64, sums: &mut Sums) {
        let length = length_ns as f64;
        sums.busy_ns += length_ns;
        sums.sm_share_ns += length * self.sm_share.min(1.0);
        sums.sm_busy_ns += if self.sm_known > 0 { length_ns } else { 0 };
        sums.sm_known_ns += length * f64::from(self.sm_known);
        sums.running_ns += length * self.open.len() as f64;
        sums.known_ns += length * self.known;
        sums.occupancy_pct_ns += length * self.occupancy_pct;
    }
}

/// The kernels with their devices, by device, then by start.
fn kernels_by_device(events: &Events) -> Vec<(i64, u32)> {
    let device = |row: usize| Some(events.device[row]).filter(|id| *id != NONE).unwrap_or(0);
    let kernels = (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel);
    let mut kernels: Vec<(i64, u32)> = kernels.map(|row| (device(row), row as u32)).collect();
    kernels.sort();
    kernels
}

/// Adds the kernels of a device to the steps in which they ran.
///
/// This is one pass over kernels and steps, both sorted by start. Memory depends only on the number of kernels that run
/// at the same time.
fn add_kernels(data: &RankData, kernels: &[(i64, u32)], sm_count: Option<i32>, steps: &mut [Step]) {
    let events = &data.events;
    let mut uses = Uses::of(&data.kernel_use);
    let mut now = Now::default();
    let (mut at_ns, mut first) = (i64::MIN, 0);
    let mut until = |end_ns: i64, now: &Now, at_ns: &mut i64| {
        let stretch = Interval::new(*at_ns, end_ns);
        *at_ns = end_ns;
        if !now.open.is_empty() {
            integrate(stretch, now, steps, &mut first);
        }
    };
    for (_, row) in kernels {
        let row = *row as usize;
        let span = Interval::new(events.ts_ns[row], events.end_ns(row));
        let used = uses.find(events.id[row]).map(|at| data.kernel_use[at]);
        let blocks = used.and_then(|used| used.blocks());
        let share = blocks.zip(sm_count).map(|(blocks, sms)| (blocks as f64 / f64::from(sms)).min(1.0));
        if span.is_empty() {
            continue;
        }
        while let Some(end_ns) = now.first_end_ns().filter(|end_ns| *end_ns <= span.start_ns) {
            until(end_ns, &now, &mut at_ns);
            now.end_first();
        }
        until(span.start_ns, &now, &mut at_ns);
        // An impossible occupancy counts as unknown.
        let occupancy = used.and_then(|u| u.occupancy_pct).map(f64::from).filter(|pct| (0.0..=100.0).contains(pct));
        let (sm_share, occupancy_pct) = (share.map(f64::to_bits), occupancy.map(f64::to_bits));
        now.begin(Running { end_ns: span.end_ns, row, sm_share, occupancy_pct });
    }
    while let Some(end_ns) = now.first_end_ns() {
        until(end_ns, &now, &mut at_ns);
        now.end_first();
    }
}

/// Adds the current state to the steps that overlap `stretch`. `first` is the first step that has not ended when the
/// stretch begins. Stretches must ascend.
fn integrate(stretch: Interval, now: &Now, steps: &mut [Step], first: &mut usize) {
    let ended = |step: &Step| step.window.hull().is_none_or(|hull| hull.end_ns <= stretch.start_ns);
    while steps.get(*first).is_some_and(ended) {
        *first += 1;
    }
    for step in &mut steps[*first..] {
        if step.window.hull().is_some_and(|hull| hull.start_ns >= stretch.end_ns) {
            return;
        }
        let windows = step.window.intervals();
        let from = windows.partition_point(|window| window.end_ns <= stretch.start_ns);
        for window in windows[from..].iter().take_while(|window| window.start_ns < stretch.end_ns) {
            now.integrate(window.intersection(stretch).len_ns(), &mut step.sums);
        }
    }
}
