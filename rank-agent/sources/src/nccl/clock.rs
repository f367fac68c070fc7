//! Maps the GPU's `globaltimer` to the host's clock, by the lower envelope of the samples.
//!
//! ```text
//!  seen − gpu
//!     │  ·      ·            ·        a callback follows its stamp after some time: each sample is too high
//!     │    ·  ·    · ·  ·
//!     │ ·________________·_____ the lowest of each second; a line under them: offset and drift
//!     │     ×    ×   ×    ×           launch − gpu: a launch precedes its kernel, so each sample is too low
//!     └──────────────────────── gpu
//! ```
//!
//! The true offset lies between the two clouds. The mapping is the line under the upper cloud. Its error is the distance to
//! the lower cloud in the second of the stamp; without launches the error is unknown.
//!
//! If CUPTI timed kernels of NCCL, they map the stamps far better ([`timed`]), because the channels fill the kernel except for
//! some µs. The error of CUPTI's own times is not included: all device rows have these times.

mod timed;

use std::collections::VecDeque;

use timed::{DRIFT_LIMIT, TimedKernels, by_drift};

/// Length of a window: its stamps share one lowest sample.
const WINDOW_NS: i64 = 1_000_000_000;
/// The most windows: the drift is fitted over the last two minutes.
const MAX_WINDOWS: usize = 120;
/// Over a shorter span, the noise of the samples exceeds the drift, which is then taken as zero.
const MIN_SPAN_NS: i64 = 10_000_000_000;
/// Without a drift, a stamp uses the lowest sample of its own window and of this many windows on each side.
const NEAR: i64 = 2;
/// The largest step of a GPU's timer: 1 µs before Hopper, which has 32 ns.
const MAX_TIMER_STEP_NS: u64 = 1_024;
/// A sample this far below the last window is an invalid stamp, not a faster callback.
const MAX_STEP_NS: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    gpu_ns: i64,
    /// host − gpu.
    offset_ns: i64,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    index: i64,
    upper: Sample,
    lower: Option<Sample>,
}

/// The clock of a communicator's GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuClock {
    windows: VecDeque<Window>,
    timed: TimedKernels,
    /// The last sample that was refused as too low. A second similar one shows that the earlier samples were too high.
    refused: Option<Sample>,
    first_ns: Option<i64>,
    /// The greatest common divisor of all times since the first stamp: the timer's step, or with few stamps more.
    step_ns: u64,
}

/// A time in the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostTime {
    pub(super) ns: i64,
    /// Bound of the error, ±; `None` if it is unknown.
    pub(super) error_ns: Option<i64>,
    /// A launch came after the latest possible start of its kernel, so that the error is more than that of the samples.
    pub(super) is_contradicted: bool,
}

/// offset = base + slope·(gpu − origin). The base is an integer, because stamps count from 1970, where a double has a
/// resolution of 256 ns.
#[derive(Clone, Copy, Debug)]
struct Line {
    origin_ns: i64,
    base_ns: i64,
    slope: f64,
}

impl Line {
    fn at(&self, gpu_ns: i64) -> i64 {
        self.base_ns.saturating_add((self.slope * gpu_ns.saturating_sub(self.origin_ns) as f64).round() as i64)
    }
}

impl GpuClock {
    /// Adds the stamp `gpu_ns` of a callback at `host_ns`. Returns `false` for an invalid stamp.
    pub(super) fn seen(&mut self, gpu_ns: i64, host_ns: i64) -> bool {
        let Some(offset_ns) = host_ns.checked_sub(gpu_ns).filter(|_| gpu_ns > 0) else { return false };
        let sample = Sample { gpu_ns, offset_ns };
        if self.windows.back().is_some_and(|last| offset_ns < last.upper.offset_ns.saturating_sub(MAX_STEP_NS)) {
            let agrees = |other: Sample| offset_ns.abs_diff(other.offset_ns) <= MAX_STEP_NS.unsigned_abs();
            if !self.refused.replace(sample).is_some_and(agrees) {
                return false;
            }
            self.windows.retain(|window| agrees(window.upper));
        }
        self.refused = None;
        self.step_ns = gcd(self.step_ns, gpu_ns.abs_diff(*self.first_ns.get_or_insert(gpu_ns)));
        let index = gpu_ns / WINDOW_NS;
        match self.windows.iter_mut().rev().find(|window| window.index == index) {
            Some(window) if offset_ns < window.upper.offset_ns => window.upper = sample,
            Some(_) => {}
            None => {
                self.windows.push_back(Window { index, upper: sample, lower: None });
                if self.windows.len() > MAX_WINDOWS {
                    self.windows.pop_front();
                }
            }
        }
        true
    }

    /// Adds a kernel that began at `gpu_ns` and was launched at `host_ns`.
    pub(super) fn launched(&mut self, gpu_ns: i64, host_ns: i64) {
        let sample = Sample { gpu_ns, offset_ns: host_ns.saturating_sub(gpu_ns) };
        let index = gpu_ns / WINDOW_NS;
        if let Some(window) = self.windows.iter_mut().rev().find(|window| window.index == index)
            && window.lower.is_none_or(|lower| sample.offset_ns > lower.offset_ns)
        {
            window.lower = Some(sample);
        }
    }

    /// Adds the stamps `gpu` of channels, whose kernel ran in `host` according to CUPTI.
    pub(super) fn inside(&mut self, gpu: (i64, i64), host: (i64, i64)) {
        // A kernel cannot be shorter than its channels.
        if host.1.saturating_sub(host.0) >= gpu.1.saturating_sub(gpu.0) && self.seen(gpu.1, host.1) {
            self.timed.add(gpu, host);
        }
    }

    /// A stamp in the host's clock; `None` without samples. It has the mapping with the smaller error.
    pub(super) fn host_time(&self, gpu_ns: i64) -> Option<HostTime> {
        let by_samples = self.by_samples(gpu_ns)?;
        let timed = self.timed.offset(gpu_ns);
        let better = timed.filter(|(_, error_ns)| by_samples.error_ns.is_none_or(|other_ns| *error_ns < other_ns));
        let Some((offset_ns, error_ns)) = better else { return Some(by_samples) };
        let error_ns = Some(error_ns.saturating_add(self.resolution_ns()));
        Some(HostTime { ns: gpu_ns.checked_add(offset_ns)?, error_ns, ..by_samples })
    }

    fn by_samples(&self, gpu_ns: i64) -> Option<HostTime> {
        let line = self.line(gpu_ns)?;
        let ns = gpu_ns.checked_add(line.at(gpu_ns))?;
        let index = gpu_ns / WINDOW_NS;
        let nearest = self.windows.iter().filter_map(|window| Some((window, window.lower?)));
        let nearest = nearest.min_by_key(|(window, _)| (window.index - index).abs());
        let bounds = nearest.map(|(Window { upper, .. }, lower)| {
            let below = line.at(lower.gpu_ns).saturating_sub(lower.offset_ns);
            let above = upper.offset_ns.saturating_sub(line.at(upper.gpu_ns)).saturating_abs();
            // The timer drifts between the two samples.
            let may_drift = by_drift(DRIFT_LIMIT, upper.gpu_ns.saturating_sub(lower.gpu_ns));
            (below, above, below.saturating_add(may_drift) < 0)
        });
        let error = |(below, above, _): (i64, i64, bool)| {
            // If the bounds contradict each other, each of them may be the wrong one.
            let within = if below < 0 {
                below.saturating_abs().saturating_mul(2).saturating_add(above)
            } else {
                below.max(above)
            };
            within.saturating_add(self.resolution_ns())
        };
        let is_contradicted = bounds.is_some_and(|(_, _, contradicted)| contradicted);
        Some(HostTime { ns, error_ns: bounds.map(error), is_contradicted })
    }

    fn resolution_ns(&self) -> i64 {
        self.step_ns.min(MAX_TIMER_STEP_NS) as i64
    }

    fn line(&self, gpu_ns: i64) -> Option<Line> {
        let mut points: Vec<Sample> = self.windows.iter().map(|window| window.upper).collect();
        points.sort_unstable_by_key(|point| point.gpu_ns);
        let (first, last) = (points.first()?, points.last()?);
        if points.len() < 3 || last.gpu_ns - first.gpu_ns < MIN_SPAN_NS {
            let index = gpu_ns / WINDOW_NS;
            let near = self.windows.iter().filter(|window| (window.index - index).abs() <= NEAR);
            let near = near.map(|window| window.upper.offset_ns).min();
            let lowest = near.or_else(|| points.iter().map(|point| point.offset_ns).min())?;
            return Some(Line { origin_ns: gpu_ns, base_ns: lowest, slope: 0.0 });
        }
        Some(supporting_line(&points))
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The line under all points with the smallest mean distance: the edge of the lower hull at their mean time. It needs at
/// least two points in ascending order.
fn supporting_line(points: &[Sample]) -> Line {
    let Sample { gpu_ns: origin_ns, offset_ns: origin_offset_ns } = points[0];
    let x = |point: &Sample| (point.gpu_ns - origin_ns) as f64;
    let y = |point: &Sample| (point.offset_ns - origin_offset_ns) as f64;
    let mut hull: Vec<Sample> = Vec::with_capacity(points.len());
    for point in points {
        while let [.., a, b] = hull[..] {
            let turn = (x(&b) - x(&a)) * (y(point) - y(&a)) - (y(&b) - y(&a)) * (x(point) - x(&a));
            if turn > 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(*point);
    }
    let mean = points.iter().map(x).sum::<f64>() / points.len() as f64;
    let edge = hull.windows(2).find(|edge| x(&edge[1]) >= mean).unwrap_or(&hull[hull.len().saturating_sub(2)..]);
    let (a, b) = (edge[0], edge[edge.len() - 1]);
    let slope = if x(&b) > x(&a) { (y(&b) - y(&a)) / (x(&b) - x(&a)) } else { 0.0 };
    Line { origin_ns: a.gpu_ns, base_ns: a.offset_ns, slope }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts from 1970, like `globaltimer`.
    const EPOCH_NS: i64 = 1_756_135_989_724_672_000;

    fn true_host(gpu_ns: i64, drift_ppb: i64) -> i64 {
        let since = gpu_ns - EPOCH_NS;
        5_000_000_000 + since + (i128::from(since) * i128::from(drift_ppb) / 1_000_000_000) as i64
    }

    /// `seconds` of kernels every 10 ms, with callbacks 20 µs to 2 ms after their stamps and launches 8 µs to 5 ms before.
    fn clock(seconds: i64, drift_ppb: i64) -> GpuClock {
        let mut clock = GpuClock::default();
        let mut dice = 88_172_645_463_325_252_u64;
        let mut below = |limit: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice % limit) as i64
        };
        for i in 0..seconds * 100 {
            // A timer in steps of 32 ns.
            let gpu_ns = EPOCH_NS + i * 10_000_000 + 32 * below(1000);
            let host_ns = true_host(gpu_ns, drift_ppb);
            assert!(clock.seen(gpu_ns, host_ns + 20_000 + below(2_000_000)));
            clock.launched(gpu_ns, host_ns - 8_000 - below(5_000_000));
        }
        clock
    }

    #[test]
    fn offset_and_drift_are_found_within_the_stated_error() {
        for (seconds, drift_ppb) in [(1, 0), (3, 40_000), (30, 0), (30, 40_000), (119, -25_000)] {
            let clock = clock(seconds, drift_ppb);
            let mut worst = 0;
            for i in 0..seconds * 10 {
                let gpu_ns = EPOCH_NS + i * 100_000_000 + 3;
                let time = clock.host_time(gpu_ns).unwrap();
                let off = (time.ns - true_host(gpu_ns, drift_ppb)).abs();
                let error = time.error_ns.unwrap();
                // The error is that of the window's samples; the drift adds up to one second of drift.
                assert!(off <= error + drift_ppb.abs(), "{seconds} s, {drift_ppb} ppb: off by {off}, error {error}");
                worst = worst.max(off);
            }
            assert!(worst < 250_000, "{seconds} s, {drift_ppb} ppb: {worst} ns");
        }
    }

    /// ```text
    /// host   [kernel        ]   10 ms, each second
    /// gpu     [channel     ]    2 µs later, 3 µs shorter
    /// ```
    #[test]
    fn timed_kernels_bound_the_clock_from_both_sides() {
        let mut clock = clock(30, 4_000);
        let before = clock.host_time(EPOCH_NS + 15_000_000_000).unwrap().error_ns.unwrap();
        for second in 0..30 {
            let gpu = (EPOCH_NS + second * 1_000_000_000 + 1_000_000, EPOCH_NS + second * 1_000_000_000 + 11_000_000);
            let host = (true_host(gpu.0, 4_000) - 2_000, true_host(gpu.1, 4_000) + 1_000);
            clock.inside(gpu, host);
            // Another kernel, shorter than the channels.
            clock.inside(gpu, (host.0 + 5_000_000, host.1));
        }
        // The last second of stamps reaches half a second beyond the last kernel.
        for second in 0..29 {
            let gpu_ns = EPOCH_NS + second * 1_000_000_000 + 500_000_000;
            let time = clock.host_time(gpu_ns).unwrap();
            let (off, error) = ((time.ns - true_host(gpu_ns, 4_000)).abs(), time.error_ns.unwrap());
            assert!(
                off <= error + 4_000 && error < 10_000 && before > 20_000,
                "off {off}, error {error}, was {before}"
            );
        }
    }

    /// ```text
    /// seen − gpu    ·     ·     ·
    /// launch − gpu     ×            5 µs above the line: a launch after the start of its kernel
    /// ```
    #[test]
    fn a_launch_after_its_kernel_makes_the_error_larger_and_is_said() {
        let mut clock = GpuClock::default();
        for stamp in [0, 32, 96] {
            assert!(clock.seen(EPOCH_NS + stamp, true_host(EPOCH_NS + stamp, 0) + 1000));
        }
        clock.launched(EPOCH_NS, true_host(EPOCH_NS, 0) - 3000);
        let before = clock.host_time(EPOCH_NS).unwrap();
        assert_eq!((before.error_ns, before.is_contradicted), (Some(4000 + 32), false), "and a step of the timer");
        clock.launched(EPOCH_NS, true_host(EPOCH_NS, 0) + 6000);
        let after = clock.host_time(EPOCH_NS).unwrap();
        assert_eq!((after.error_ns, after.is_contradicted), (Some(2 * 5000 + 32), true));
    }

    #[test]
    fn without_launches_the_error_is_unknown() {
        let mut clock = GpuClock::default();
        assert_eq!(clock.host_time(EPOCH_NS), None);
        clock.launched(EPOCH_NS, 1);
        assert!(clock.seen(EPOCH_NS, 1000));
        let expected = HostTime { ns: 1000, error_ns: None, is_contradicted: false };
        assert_eq!(clock.host_time(EPOCH_NS), Some(expected));
    }

    #[test]
    fn an_invalid_stamp_is_refused() {
        let mut clock = clock(2, 0);
        let before = clock.host_time(EPOCH_NS);
        for broken in [0, -1, i64::MIN, i64::MAX, EPOCH_NS + 3_600_000_000_000] {
            assert!(!clock.seen(broken, true_host(EPOCH_NS, 0)), "{broken}");
        }
        assert_eq!(clock.host_time(EPOCH_NS), before);
    }

    /// ```text
    /// seen − gpu    × seen 5 s late (the process was stopped), the first of its second
    ///                  · · · · ·      true from then on
    /// ```
    #[test]
    fn one_very_late_callback_does_not_affect_later_stamps() {
        for (late_ns, gpu_ns) in [(5_000_000_000, EPOCH_NS + 1_000_000), (0, 1)] {
            let mut clock = GpuClock::default();
            assert!(clock.seen(gpu_ns, true_host(EPOCH_NS, 0) + late_ns));
            let stamps: Vec<i64> = (1..50).map(|k| EPOCH_NS + k * 100_000_000).collect();
            let taken = stamps.iter().filter(|gpu_ns| clock.seen(**gpu_ns, true_host(**gpu_ns, 0) + 30_000)).count();
            assert_eq!(taken, stamps.len() - 1, "all but the first, which stands alone against the one before");
            let time = clock.host_time(stamps[20]).unwrap();
            assert_eq!(time.ns, true_host(stamps[20], 0) + 30_000);
        }
    }
}
