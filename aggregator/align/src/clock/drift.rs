//! The drift of a clock, from points that scatter.

use crate::clock::fit::Support;
use model::stats::{MEDIAN_SE_PER_MEAN_SE, SIGMA_PER_MAD, median_in_place};

/// Drift is not estimated over shorter spans: 10 ppm of a second are 10 µs, about the scatter of departures.
const DRIFT_SPAN_NS: f64 = 1e9;
/// Minimum number of instances for an estimate of drift.
const DRIFT_SAMPLES: usize = 8;
/// Resolution of times in whole microseconds.
pub(super) const GRAIN_NS: f64 = 1_000.0;

/// The drift of (time, offset) points: the median slope of pairs half the length apart (Theil's incomplete method).
/// `None` unless it exceeds four standard errors, or one standard error is below 1 ppm.
pub(super) fn drift_of(points: &[(f64, f64)]) -> Option<f64> {
    let support = Support::of(&points.iter().map(|p| p.0).collect::<Vec<_>>());
    if points.len() < DRIFT_SAMPLES || support.last - support.first < DRIFT_SPAN_NS {
        return None;
    }
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = sorted.len() / 2;
    let pairs = sorted.iter().zip(&sorted[half..]).filter(|(p, q)| q.0 > p.0);
    let mut slopes: Vec<f64> = pairs.map(|(p, q)| (q.1 - p.1) / (q.0 - p.0)).collect();
    let drift = median_in_place(&mut slopes).unwrap_or(0.0);
    let offset = median_in_place(&mut sorted.iter().map(|p| p.1 - drift * p.0).collect::<Vec<_>>()).unwrap_or(0.0);
    let mut distances: Vec<f64> = sorted.iter().map(|p| (p.1 - drift * p.0 - offset).abs()).collect();
    let sigma = (SIGMA_PER_MAD * median_in_place(&mut distances).unwrap_or(0.0)).max(GRAIN_NS);
    let error = MEDIAN_SE_PER_MEAN_SE * sigma / support.sum_of_squares().sqrt();
    (drift.abs() > 4.0 * error || error < 1e-6).then_some(drift)
}
