//! How full the devices were: the TensorBoard plugin's GPU utilization, estimated SM efficiency and estimated achieved
//! occupancy.
//!
//! ```text
//!  kernel 1  half the SMs     ########........
//!  kernel 2  all the SMs      ......######....
//!  utilization                ############         12 of 16
//!  SM efficiency              ½½½½½½111111....     the sum is capped at 1: (6·½ + 6) / 16
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;
use trace::GpuUtilizationRow;

use super::View;
use crate::intervals::{Coverage, Interval, IntervalSet};
use crate::model::{KernelUse, Kind, NONE, RankData};
use crate::steps::{device_windows, host_windows};

/// One row for all active steps of each device, and one for each of them.
pub(super) fn gpu_utilization(view: &View<'_>) -> Vec<GpuUtilizationRow> {
    let data = view.data;
    let host = host_windows(&data.steps);
    let mut rows = Vec::new();
    for device in view.parts.iter().filter_map(|(activity, _)| activity.device) {
        let windows: Vec<(i32, IntervalSet)> = device_windows(&host, &data.events, device)
            .into_iter()
            .map(|step| (step.step, clipped(step.window, view.scope)))
            .filter(|(_, window)| !window.is_empty())
            .collect();
        let kernels = Kernels::of(data, device);
        let every: IntervalSet = windows.iter().flat_map(|(_, window)| window.intervals().iter().copied()).collect();
        let row = |step: Option<i32>, window: &IntervalSet| kernels.row(data.info.rank, device, step, window);
        rows.extend(row(None, &every));
        rows.extend(windows.iter().filter_map(|(step, window)| row(Some(*step), window)));
    }
    rows
}

fn clipped(window: Interval, scope: Option<&IntervalSet>) -> IntervalSet {
    match scope {
        Some(scope) => scope.clip(window),
        None => [window].into_iter().collect(),
    }
}

/// A value that holds from one time to the next; zero after the last.
#[derive(Debug, Default)]
struct Curve {
    /// Times, ascending, and the integral of the value up to each.
    until: Vec<(i64, f64)>,
    values: Vec<f64>,
}

impl Curve {
    fn push(&mut self, ts_ns: i64, value: f64) {
        let before = match (self.until.last(), self.values.last()) {
            (Some((since, sum)), Some(held)) => sum + held * ts_ns.saturating_sub(*since) as f64,
            _ => 0.0,
        };
        self.until.push((ts_ns, before));
        self.values.push(value);
    }

    /// The integral up to a time.
    fn integral(&self, ts_ns: i64) -> f64 {
        let after = self.until.partition_point(|(t, _)| *t <= ts_ns);
        let Some(at) = after.checked_sub(1) else { return 0.0 };
        let (since, sum) = self.until[at];
        sum + self.values[at] * ts_ns.saturating_sub(since) as f64
    }

    fn within(&self, window: &IntervalSet) -> f64 {
        window.intervals().iter().map(|i| self.integral(i.end_ns) - self.integral(i.start_ns)).sum()
    }
}

/// The kernels of a device, ready for any window.
struct Kernels {
    busy: Coverage,
    /// Share of the SMs in use; `None` if it is not known of any kernel.
    sm_share: Option<Curve>,
    /// Σ occupancy over running kernels, and how many of them have one, and how many there are.
    occupancy: Curve,
    with_occupancy: Curve,
    running: Curve,
}

impl Kernels {
    fn of(data: &RankData, device: i64) -> Self {
        let events = &data.events;
        let own = |row: &usize| {
            let on = Some(events.device[*row]).filter(|id| *id != NONE).unwrap_or(0);
            events.kind[*row] == Kind::Kernel && on == device
        };
        let rows: Vec<usize> = (0..events.len()).filter(own).collect();
        let by_id: FxHashMap<i64, &KernelUse> = data.kernel_use.iter().map(|kernel| (kernel.id, kernel)).collect();
        let sm_count = data.devices.iter().find(|d| d.device_id == device).and_then(|d| d.sm_count).filter(|n| *n > 0);
        // Looked up once a kernel; the curves below ask again and again.
        let uses: Vec<Option<KernelUse>> = rows.iter().map(|row| by_id.get(&events.id[*row]).map(|u| **u)).collect();
        let share = |at: usize| {
            let blocks = uses[at].map(|u| u.blocks).filter(|blocks| *blocks > 0)?;
            Some((blocks as f64 / f64::from(sm_count?)).min(1.0))
        };
        // What no device can be is not known.
        let possible = |pct: &f64| (0.0..=100.0).contains(pct);
        let occupancy = |at: usize| uses[at]?.occupancy_pct.map(f64::from).filter(possible);
        let span = |row: &usize| Interval::new(events.ts_ns[*row], events.end_ns(*row));
        let curve = |value: &dyn Fn(usize) -> f64, cap: f64| {
            summed(rows.iter().enumerate().map(|(at, row)| (span(row), value(at))), cap)
        };
        let knows_share = (0..rows.len()).any(|at| share(at).is_some());
        let ((busy, sm_share), (occupancy, with_occupancy, running)) = rayon::join(
            || {
                let mut busy = IntervalSet::new();
                rows.iter().for_each(|row| busy.push(span(row)));
                let sm_share = knows_share.then(|| curve(&|at| share(at).unwrap_or(0.0), 1.0));
                (Coverage::new(busy), sm_share)
            },
            || {
                let known = curve(&|at| f64::from(u8::from(occupancy(at).is_some())), f64::INFINITY);
                let running = curve(&|_| 1.0, f64::INFINITY);
                (curve(&|at| occupancy(at).unwrap_or(0.0), f64::INFINITY), known, running)
            },
        );
        Self { busy, sm_share, occupancy, with_occupancy, running }
    }

    fn row(&self, rank: i32, device_id: i64, step: Option<i32>, window: &IntervalSet) -> Option<GpuUtilizationRow> {
        let window_ns = window.len_ns();
        if window_ns == 0 {
            return None;
        }
        let kernel_ns: i64 = window.intervals().iter().map(|interval| self.busy.within_ns(*interval)).sum();
        let known = self.with_occupancy.within(window);
        let running = self.running.within(window);
        Some(GpuUtilizationRow {
            rank,
            device_id,
            step,
            window_ns,
            kernel_ns,
            utilization_pct: 100.0 * kernel_ns as f64 / window_ns as f64,
            sm_efficiency_pct: self.sm_share.as_ref().map(|share| 100.0 * share.within(window) / window_ns as f64),
            occupancy_pct: (known >= 1.0).then(|| self.occupancy.within(window) / known),
            occupancy_known_pct: (running >= 1.0).then(|| 100.0 * known / running),
        })
    }
}

/// The sum of the values of all intervals that hold a point, at most `cap`. Intervals come in the order of their
/// starts.
fn summed(intervals: impl Iterator<Item = (Interval, f64)>, cap: f64) -> Curve {
    // Each interval is a step up and a step down.
    let most = intervals.size_hint().1.unwrap_or(0).saturating_mul(2);
    let mut curve = Curve { until: Vec::with_capacity(most), values: Vec::with_capacity(most) };
    let mut open: BinaryHeap<Reverse<(i64, u64)>> = BinaryHeap::new();
    let mut sum = 0.0;
    let close = |until_ns: i64, open: &mut BinaryHeap<Reverse<(i64, u64)>>, sum: &mut f64, curve: &mut Curve| {
        while let Some(Reverse((end_ns, bits))) = open.peek().copied().filter(|Reverse((end, _))| *end <= until_ns) {
            open.pop();
            *sum = if open.is_empty() { 0.0 } else { *sum - f64::from_bits(bits) };
            curve.push(end_ns, sum.min(cap));
        }
    };
    for (interval, value) in intervals.filter(|(interval, _)| !interval.is_empty()) {
        close(interval.start_ns, &mut open, &mut sum, &mut curve);
        sum += value;
        open.push(Reverse((interval.end_ns, value.to_bits())));
        curve.push(interval.start_ns, sum.min(cap));
    }
    close(i64::MAX, &mut open, &mut sum, &mut curve);
    curve
}
