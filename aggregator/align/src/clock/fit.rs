//! A fit between two clocks: the map, and its error within a window of time.

use trace::ClockMethod;

use crate::clock::affine::Affine;
use crate::clock::bend::Bend;
use crate::clock::curve::Curve;
use crate::clock::lines::Line;

/// Assumed drift between two clocks that have not been compared for long. Quartz oscillators are sold as ±50 ppm and
/// differ by 5 to 30 ppm (Geng et al., Huygens, NSDI 2018). Enters `error_ns`, never `bound_ns`.
const USUAL_DRIFT: f64 = 100e-6;

/// Assumed change of drift between two comparisons, per second and at most: a quartz oscillator near room temperature changes
/// by up to 0.1 ppm for each °C, and a server warms by 0.1 °C in a second and by 10 °C in all. Enters `error_ns`, never
/// `bound_ns`.
const USUAL_WANDER_PER_S: f64 = 0.01e-6;
const USUAL_WANDER: f64 = 1e-6;

/// 95 % of the difference of two errors, as a share of the largest one: 1 − √0.05, if each is anywhere within its limit.
const SHARE_OF_TWO: f64 = 0.776_393;

/// The distribution of a fit's samples over time, in ns from its origin. It determines the error away from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Support {
    pub(crate) first: f64,
    pub(crate) last: f64,
    n: f64,
    mean: f64,
    sxx: f64,
    /// The longest time without a sample between two samples.
    gap: f64,
}

impl Support {
    pub(crate) fn of(times: &[f64]) -> Self {
        let n = times.len().max(1) as f64;
        let mean = times.iter().sum::<f64>() / n;
        let mut ascending = times.to_vec();
        ascending.sort_by(f64::total_cmp);
        Self {
            first: times.iter().copied().fold(f64::INFINITY, f64::min),
            last: times.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            n,
            mean,
            sxx: times.iter().map(|t| (t - mean) * (t - mean)).sum(),
            gap: ascending.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max),
        }
    }

    /// Error of a fitted line at `t`, relative to its error at the nearest sample (least squares). Between the samples 1.
    fn lever(&self, t: f64) -> f64 {
        let at = |t: f64| (1.0 / self.n + (t - self.mean) * (t - self.mean) / self.sxx).sqrt();
        if self.sxx > 0.0 { (at(t) / at(t.clamp(self.first, self.last))).max(1.0) } else { 1.0 }
    }

    /// The same samples, if their distances show how the clock bends in their gaps.
    pub(crate) fn shown(self) -> Self {
        Self { gap: 0.0, ..self }
    }

    /// Σ (t − mean)².
    pub(crate) fn sum_of_squares(&self) -> f64 {
        self.sxx
    }

    /// Error between two samples by a drift that changes evenly: the arc of a parabola above its chord.
    fn wander(&self) -> f64 {
        (USUAL_WANDER_PER_S * self.gap / 1e9).min(USUAL_WANDER) * self.gap / 8.0
    }

    /// Distance of `t` from the time span of the samples; 0 inside it.
    fn beyond(&self, t: f64) -> f64 {
        (self.first - t).max(t - self.last).max(0.0)
    }
}

/// A fit from one clock to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    pub(crate) method: ClockMethod,
    pub(crate) map: Affine,
    /// Whether the evidence determines the drift.
    pub(crate) drift_known: bool,
    /// Number of comparisons used.
    pub(crate) samples: i64,
    pub(crate) residual_p95_ns: Option<i64>,
    errors: Errors,
    /// The distance of the estimate from `map`, if the clock bends; with its errors.
    curve: Option<(Curve, Errors)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Errors {
    /// Both clocks are the same: no error.
    Exact,
    Unknown,
    Lines {
        /// The offsets around `map` that the evidence allows. `None`: the evidence contradicts itself or sets no limit.
        bend: Option<Bend>,
        /// 95 % of the error within the time of the samples, as far as they show it. It is independent of the errors of other
        /// fits. `None`: too few samples for an estimate, only the bound holds.
        spread_ns: Option<f64>,
        /// The largest error that all samples share.
        bias_ns: f64,
        support: Support,
    },
    /// Errors of a fit between two other clocks. Each of them may differ by `each_ns` from the clock that it stands
    /// for, without a guarantee, and independently of the other one.
    Borrowed {
        errors: Box<Errors>,
        each_ns: i64,
    },
}

/// An estimate that follows the bend of a clock: its distance from the line, and its errors as in [`Estimate`].
pub(crate) struct Curved {
    pub(crate) curve: Curve,
    pub(crate) bend: Option<Bend>,
    pub(crate) spread_ns: f64,
}

/// Inputs of a line fit. Times are in ns from `origin_ns`, offsets in ns above `base_ns`. The line has a rounded offset,
/// because errors apply to the map as used.
pub(crate) struct Estimate {
    pub(crate) method: ClockMethod,
    pub(crate) origin_ns: i64,
    pub(crate) base_ns: i64,
    pub(crate) line: Line,
    pub(crate) drift_known: bool,
    pub(crate) bend: Option<Bend>,
    pub(crate) spread_ns: Option<f64>,
    /// The largest error that all samples share.
    pub(crate) bias_ns: f64,
    pub(crate) support: Support,
    pub(crate) curved: Option<Curved>,
    pub(crate) samples: i64,
    pub(crate) residual_p95_ns: Option<i64>,
}

impl Fit {
    /// A fit between two names of one clock.
    pub(crate) fn identity(method: ClockMethod) -> Self {
        Self {
            method,
            map: Affine::IDENTITY,
            drift_known: true,
            samples: 0,
            residual_p95_ns: None,
            errors: Errors::Exact,
            curve: None,
        }
    }

    /// A map with an unknown error.
    pub(crate) fn unknown(method: ClockMethod, offset_ns: i64, samples: i64) -> Self {
        let map = Affine { offset_ns, ..Affine::IDENTITY };
        Self { method, map, drift_known: false, samples, residual_p95_ns: None, errors: Errors::Unknown, curve: None }
    }

    pub(crate) fn of(estimate: Estimate) -> Self {
        let Estimate { method, origin_ns, base_ns, line, drift_known, bend, spread_ns, support, .. } = estimate;
        let map = Affine { offset_ns: base_ns.saturating_add(line.offset as i64), drift: line.drift, origin_ns };
        let Estimate { samples, residual_p95_ns, bias_ns, curved, .. } = estimate;
        let errors = Errors::Lines { bend, spread_ns, bias_ns, support };
        let curve = curved.map(|Curved { curve, bend, spread_ns }| {
            (curve, Errors::Lines { bend, spread_ns: Some(spread_ns), bias_ns, support: support.shown() })
        });
        Self { method, map, drift_known, samples, residual_p95_ns, errors, curve }
    }

    /// The same map for two other clocks, each within `each_ns` of one of these; without a guarantee.
    pub(crate) fn borrowed(&self, each_ns: i64) -> Self {
        let errors = Errors::Borrowed { errors: Box::new(self.errors.clone()), each_ns };
        Self { errors, curve: None, ..self.clone() }
    }

    /// Converts a time to the target clock by the best estimate: by the curve, if there is one.
    pub(crate) fn apply(&self, t_ns: i64) -> i64 {
        self.map.apply(t_ns).saturating_add(self.above_map_ns(t_ns))
    }

    /// Converts a time of the target clock back. The curve is so flat that its distance is the same a distance away.
    pub(crate) fn apply_back(&self, t_ns: i64) -> i64 {
        let back = self.map.inverse();
        back.apply(t_ns.saturating_sub(self.above_map_ns(back.apply(t_ns))))
    }

    /// The times of the source clock between which the best estimate is a line.
    pub(crate) fn knots_ns(&self) -> impl Iterator<Item = i64> {
        let since_origin = self.curve.iter().flat_map(|(curve, _)| curve.times());
        since_origin.map(|t| self.map.origin_ns.saturating_add(t as i64))
    }

    fn above_map_ns(&self, t_ns: i64) -> i64 {
        let t = t_ns.saturating_sub(self.map.origin_ns) as f64;
        self.curve.as_ref().map_or(0, |(curve, _)| curve.at(t).round() as i64)
    }

    /// Guaranteed error of [`apply`](Self::apply) within a window of the source clock; `None`: no guarantee.
    pub(crate) fn best_bound_ns(&self, window: (i64, i64)) -> Option<i64> {
        let errors = self.curve.as_ref().map_or(&self.errors, |(_, errors)| errors);
        errors.bound_ns(self.since_origin(window))
    }

    /// 95 % of the error of [`apply`](Self::apply) within a window of the source clock, as [`error_ns`](Self::error_ns).
    pub(crate) fn best_error_ns(&self, window: (i64, i64)) -> Option<i64> {
        let Some((curve, errors)) = &self.curve else { return self.error_ns(window) };
        let since_origin = self.since_origin(window);
        let error_ns = errors.error_ns(since_origin, self.drift_known)?;
        let beyond_ns = curve.steepest() * errors.beyond(since_origin);
        let error_ns = error_ns.saturating_add(beyond_ns.ceil() as i64);
        Some(self.best_bound_ns(window).map_or(error_ns, |bound| bound.min(error_ns)))
    }

    /// Guaranteed error of `map` within a window of the source clock; `None`: no guarantee.
    pub(crate) fn bound_ns(&self, window: (i64, i64)) -> Option<i64> {
        self.errors.bound_ns(self.since_origin(window))
    }

    /// 95 % of the error of `map` within a window of the source clock, without its bias, never above the bound; `None`: unknown.
    pub(crate) fn error_ns(&self, window: (i64, i64)) -> Option<i64> {
        self.errors.error_ns(self.since_origin(window), self.drift_known)
    }

    /// The largest error that all samples share, so that none shows it, never above the bound; `None`: unknown.
    pub(crate) fn bias_ns(&self, window: (i64, i64)) -> Option<i64> {
        let bias = self.errors.bias_ns()?;
        Some(self.bound_ns(window).map_or(bias, |bound| bias.min(bound)))
    }

    fn since_origin(&self, window: (i64, i64)) -> (f64, f64) {
        let t = |t: i64| t.saturating_sub(self.map.origin_ns) as f64;
        (t(window.0), t(window.1))
    }
}

impl Errors {
    fn bound_ns(&self, (from, to): (f64, f64)) -> Option<i64> {
        match self {
            Self::Exact => Some(0),
            Self::Unknown | Self::Borrowed { .. } => None,
            // Add one ns because drift's contribution is rounded; the f64 sums are far more accurate.
            Self::Lines { bend, .. } => Some(bend.as_ref()?.deviation(from, to).ceil() as i64 + 1),
        }
    }

    fn error_ns(&self, window: (f64, f64), drift_known: bool) -> Option<i64> {
        let bound = self.bound_ns(window);
        match self {
            Self::Exact | Self::Unknown | Self::Lines { spread_ns: None, .. } => bound,
            Self::Borrowed { errors, each_ns } => {
                let own = errors.error_ns(window, drift_known)? as f64;
                Some(own.hypot(2.0 * SHARE_OF_TWO * *each_ns as f64).ceil() as i64)
            }
            Self::Lines { spread_ns: Some(spread), support, .. } => {
                let error = in_window(*spread, support, window, drift_known);
                Some(bound.map_or(error, |b| b.min(error)))
            }
        }
    }

    /// The longest time between a window and the samples.
    fn beyond(&self, (from, to): (f64, f64)) -> f64 {
        match self {
            Self::Lines { support, .. } => support.beyond(from).max(support.beyond(to)),
            _ => 0.0,
        }
    }

    fn bias_ns(&self) -> Option<i64> {
        match self {
            Self::Exact => Some(0),
            Self::Unknown => None,
            Self::Lines { bias_ns, .. } => Some(bias_ns.ceil() as i64),
            Self::Borrowed { errors, .. } => errors.bias_ns(),
        }
    }
}

/// Extrapolates an error near the samples to a window.
fn in_window(near_ns: f64, support: &Support, (from, to): (f64, f64), drift_known: bool) -> i64 {
    let near_ns = near_ns + support.wander();
    let at = |t: f64| if drift_known { near_ns * support.lever(t) } else { near_ns + USUAL_DRIFT * support.beyond(t) };
    (at(from).max(at(to)).ceil() as i64).saturating_add(1)
}
