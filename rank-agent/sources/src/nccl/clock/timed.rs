//! The offset of the GPU's timer by the kernels of NCCL that CUPTI timed. Each kernel bounds it from both sides.
//!
//! ```text
//!  host − gpu
//!     │  ┬                         end of the kernel: at most
//!     │  ●──────────┬_             the middle; between two kernels a line, which is the drift
//!     │  ┴          ●──────┬──
//!     │             ┴      ●───    after the last one, the drift of the longest time
//!     │                    ┴       start of the kernel: at least
//!     └──────────────────────── gpu
//! ```
//!
//! Measured on an H200: a kernel is 2.5 µs longer than its channels, and the timer drifts by 10 ppm.

use std::collections::VecDeque;

/// Length of a window: its kernels count once. The drift is known after two.
const WINDOW_NS: i64 = 125_000_000;
/// The most windows: two minutes.
const MAX_WINDOWS: usize = 960;
/// Limit of the drift between a GPU's timer and the host's clock: two quartz oscillators at ±50 ppm.
pub(super) const DRIFT_LIMIT: f64 = 100e-6;
/// By how much a drift changes: that of a quartz oscillator whose temperature changes by 10 °C.
const DRIFT_CHANGE: f64 = 1e-6;

/// The kernel of a window that bounds the timer best.
#[derive(Clone, Copy, Debug)]
struct Timed {
    window: i64,
    /// The middle of the channels' stamps.
    gpu_ns: i64,
    /// host − gpu.
    offset_ns: i64,
    error_ns: i64,
}

/// One kernel for each window that has some, ascending.
#[derive(Clone, Debug, Default)]
pub(super) struct TimedKernels(VecDeque<Timed>);

impl TimedKernels {
    /// Adds the stamps `gpu` of channels, from the start of the first to the end of the last, whose kernel ran in `host`. The
    /// kernel must not be shorter.
    pub(super) fn add(&mut self, gpu: (i64, i64), host: (i64, i64)) {
        let (least, most) = (host.0.saturating_sub(gpu.0), host.1.saturating_sub(gpu.1));
        let length = gpu.1.saturating_sub(gpu.0);
        let gpu_ns = gpu.0.saturating_add(length / 2);
        let half_ns = most.saturating_sub(least) / 2;
        let error_ns = half_ns + by_drift(DRIFT_LIMIT, length / 2) + 1;
        let window = gpu_ns.div_euclid(WINDOW_NS);
        let new = Timed { window, gpu_ns, offset_ns: least.saturating_add(half_ns), error_ns };
        match self.0.binary_search_by_key(&window, |timed| timed.window) {
            Ok(at) if self.0[at].error_ns > error_ns => self.0[at] = new,
            Ok(_) => {}
            Err(at) => {
                self.0.insert(at, new);
                if self.0.len() > MAX_WINDOWS {
                    self.0.pop_front();
                }
            }
        }
    }

    /// The offset host − gpu at a stamp, and the bound of its error; `None` without kernels.
    pub(super) fn offset(&self, gpu_ns: i64) -> Option<(i64, i64)> {
        let after = self.0.partition_point(|timed| timed.gpu_ns <= gpu_ns);
        let (before, after) = (after.checked_sub(1).and_then(|at| self.0.get(at)), self.0.get(after));
        let Some((a, b)) = before.zip(after) else {
            let edge = before.or(after)?;
            let (drift, drift_error) = self.drift_at(edge);
            let away = gpu_ns.saturating_sub(edge.gpu_ns);
            let offset_ns = edge.offset_ns.saturating_add((drift * away as f64).round() as i64);
            return Some((offset_ns, edge.error_ns.saturating_add(by_drift(drift_error, away))));
        };
        let apart = b.gpu_ns.saturating_sub(a.gpu_ns).max(1);
        let since = gpu_ns.saturating_sub(a.gpu_ns);
        let share = since as f64 / apart as f64;
        let rise = b.offset_ns.saturating_sub(a.offset_ns) as f64;
        let nearest = since.min(apart - since);
        let error_ns = a.error_ns.max(b.error_ns).saturating_add(by_drift(DRIFT_CHANGE, nearest));
        Some((a.offset_ns.saturating_add((share * rise).round() as i64), error_ns))
    }

    /// The drift at the first or last kernel, and its error: by the kernel that is farthest away.
    fn drift_at(&self, edge: &Timed) -> (f64, f64) {
        let unknown = (0.0, DRIFT_LIMIT);
        let ends = [self.0.front(), self.0.back()];
        let Some(other) = ends.into_iter().flatten().find(|other| other.gpu_ns != edge.gpu_ns) else { return unknown };
        let apart = other.gpu_ns.saturating_sub(edge.gpu_ns) as f64;
        let error = other.error_ns.saturating_add(edge.error_ns) as f64 / apart.abs() + DRIFT_CHANGE;
        let drift = other.offset_ns.saturating_sub(edge.offset_ns) as f64 / apart;
        if error < DRIFT_LIMIT { (drift, error) } else { unknown }
    }
}

/// The change of an offset in `ns` by this drift, without its sign.
pub(super) fn by_drift(drift: f64, ns: i64) -> i64 {
    (drift * ns as f64).abs().ceil() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const EPOCH_NS: i64 = 1_756_135_989_000_000_000;

    /// The host's time, for a timer that drifts by −10 ppm.
    fn host(gpu_ns: i64) -> i64 {
        gpu_ns - EPOCH_NS + 7_000 - (gpu_ns - EPOCH_NS) / 100_000
    }

    /// ```text
    /// host   [kernel             ]   22 ms, each 300 ms
    /// gpu     [channels         ]    1.5 µs later, 2.5 µs shorter
    /// ```
    fn timed(seconds: std::ops::Range<i64>) -> TimedKernels {
        let mut kernels = TimedKernels::default();
        for at in seconds.flat_map(|s| [s * 1000, s * 1000 + 300, s * 1000 + 600]) {
            let gpu = (EPOCH_NS + at * MS, EPOCH_NS + (at + 22) * MS);
            kernels.add(gpu, (host(gpu.0) - 1_500, host(gpu.1) + 1_000));
        }
        kernels
    }

    #[test]
    fn a_drifting_timer_is_mapped_within_the_stated_error() {
        let kernels = timed(2..5);
        for at in (0..9_000).step_by(50) {
            let gpu_ns = EPOCH_NS + at * MS;
            let (offset, error) = kernels.offset(gpu_ns).unwrap();
            let off = (gpu_ns + offset - host(gpu_ns)).abs();
            let inside = (2_022..4_600).contains(&at);
            assert!(off <= error && error < if inside { 4_000 } else { 20_000 }, "{at} ms: off {off}, error {error}");
        }
    }

    #[test]
    fn one_kernel_shows_no_drift() {
        let mut kernels = TimedKernels::default();
        assert_eq!(kernels.offset(EPOCH_NS), None);
        kernels.add((EPOCH_NS, EPOCH_NS), (100, 104));
        assert_eq!(kernels.offset(EPOCH_NS), Some((102 - EPOCH_NS, 3)));
        let (offset, error) = kernels.offset(EPOCH_NS + 10 * MS).unwrap();
        assert_eq!((offset, error), (102 - EPOCH_NS, 3 + 1_000), "100 ppm of 10 ms");
    }

    #[test]
    fn the_tightest_kernel_of_a_window_counts() {
        let mut kernels = TimedKernels::default();
        kernels.add((EPOCH_NS, EPOCH_NS + 10), (0, 5_000));
        kernels.add((EPOCH_NS + 20, EPOCH_NS + 30), (20, 32));
        kernels.add((EPOCH_NS + 40, EPOCH_NS + 50), (0, 5_000));
        let (offset, error) = kernels.offset(EPOCH_NS + 25).unwrap();
        assert_eq!((EPOCH_NS + 25 + offset, error), (26, 3));
    }
}
