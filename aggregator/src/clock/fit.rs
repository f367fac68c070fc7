//! One fit between two clocks: the map, and what its error is in a window.

use super::affine::Affine;
use super::lines::{Feasible, Line};

/// How a fit came about, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// By round trips.
    Ping,
    /// Equal clock domains.
    SameHost,
    /// By the barrier rule of collectives.
    Collective,
    /// The same, where only all-to-alls connect the ranks.
    CollectiveWeak,
    /// By wall clocks.
    Utc,
    /// Not at all.
    None,
}

impl Method {
    /// The word in the `method` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::SameHost => "same_host",
            Self::Collective => "collective",
            Self::CollectiveWeak => "collective_weak",
            Self::Utc => "utc",
            Self::None => "none",
        }
    }
}

/// How much two clocks that nobody has compared for long may be thought to drift apart: quartzes are sold as ±50 ppm,
/// and differ by 5 to 30 ppm (Geng et al., Huygens, NSDI 2018). Enters `error_ns`, never `bound_ns`.
const USUAL_DRIFT: f64 = 100e-6;

/// Where in time the samples of a fit lie, in ns from its origin: what its error does away from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Support {
    pub(crate) first: f64,
    pub(crate) last: f64,
    n: f64,
    mean: f64,
    sxx: f64,
}

impl Support {
    pub(crate) fn of(times: &[f64]) -> Self {
        let n = times.len().max(1) as f64;
        let mean = times.iter().sum::<f64>() / n;
        Self {
            first: times.iter().copied().fold(f64::INFINITY, f64::min),
            last: times.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            n,
            mean,
            sxx: times.iter().map(|t| (t - mean) * (t - mean)).sum(),
        }
    }

    /// Error of a fitted line at `t` over that of one sample (least squares); within the samples never less than one.
    fn lever(&self, t: f64) -> f64 {
        if self.sxx > 0.0 { (1.0 / self.n + (t - self.mean) * (t - self.mean) / self.sxx).sqrt().max(1.0) } else { 1.0 }
    }

    /// Σ (t − mean)².
    pub(crate) fn sum_of_squares(&self) -> f64 {
        self.sxx
    }

    /// How far `t` lies outside the samples.
    fn beyond(&self, t: f64) -> f64 {
        (self.first - t).max(t - self.last).max(0.0)
    }
}

/// A fit from one clock to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    pub(crate) method: Method,
    pub(crate) map: Affine,
    /// Whether the evidence says anything about drift.
    pub(crate) drift_known: bool,
    /// Comparisons used.
    pub(crate) samples: i64,
    pub(crate) residual_p95_ns: Option<i64>,
    errors: Errors,
}

#[derive(Clone, Debug, PartialEq)]
enum Errors {
    /// There is none.
    Exact,
    Unknown,
    Lines {
        /// `map` as a line over `base_ns`.
        line: Line,
        /// The lines that the evidence allows over `base_ns`; none: it contradicts itself.
        feasible: Option<Feasible>,
        /// 95 % of the error near the samples; none: there are too few to tell, only the bound holds.
        spread_ns: Option<f64>,
        /// The part of it that the samples show, and that no other fit has in common with this one.
        scatter_ns: Option<f64>,
        support: Support,
    },
    /// Those of a fit between two other clocks, and how far each of these may be off the clock that it stands for,
    /// which nothing guarantees.
    Borrowed {
        errors: Box<Errors>,
        each_ns: i64,
    },
}

/// What a line fit is made of; times in ns from `origin_ns`, offsets in ns over `base_ns`.
pub(crate) struct Estimate {
    pub(crate) method: Method,
    pub(crate) origin_ns: i64,
    pub(crate) base_ns: i64,
    pub(crate) line: Line,
    pub(crate) drift_known: bool,
    pub(crate) feasible: Option<Feasible>,
    pub(crate) spread_ns: Option<f64>,
    /// The part of `spread_ns` that the samples show.
    pub(crate) scatter_ns: Option<f64>,
    pub(crate) support: Support,
    pub(crate) samples: i64,
    pub(crate) residual_p95_ns: Option<i64>,
}

impl Fit {
    /// Both clocks are one.
    pub(crate) fn identity(method: Method) -> Self {
        Self {
            method,
            map: Affine::IDENTITY,
            drift_known: true,
            samples: 0,
            residual_p95_ns: None,
            errors: Errors::Exact,
        }
    }

    /// A map of which nobody knows how good it is.
    pub(crate) fn unknown(method: Method, offset_ns: i64, samples: i64) -> Self {
        let map = Affine { offset_ns, ..Affine::IDENTITY };
        Self { method, map, drift_known: false, samples, residual_p95_ns: None, errors: Errors::Unknown }
    }

    pub(crate) fn of(estimate: Estimate) -> Self {
        let Estimate { method, origin_ns, base_ns, line, drift_known, feasible, spread_ns, support, .. } = estimate;
        // The error is that of the map as it will be used, so of the rounded offset.
        let line = Line { offset: line.offset.round(), ..line };
        let map = Affine { offset_ns: base_ns.saturating_add(line.offset as i64), drift: line.drift, origin_ns };
        let Estimate { samples, residual_p95_ns, scatter_ns, .. } = estimate;
        let errors = Errors::Lines { line, feasible, spread_ns, scatter_ns, support };
        Self { method, map, drift_known, samples, residual_p95_ns, errors }
    }

    /// The same map for two clocks that are each tied to one of these within `each_ns`; without a guarantee.
    pub(crate) fn borrowed(&self, each_ns: i64) -> Self {
        let errors = Errors::Borrowed { errors: Box::new(self.errors.clone()), each_ns };
        Self { errors, ..self.clone() }
    }

    /// Guaranteed error between two times of the clock that is mapped; `None`: no guarantee.
    pub(crate) fn bound_ns(&self, window: (i64, i64)) -> Option<i64> {
        self.errors.bound_ns(self.since_origin(window))
    }

    /// 95 % of the error between two times of the clock that is mapped, never above the bound; `None`: unknown.
    pub(crate) fn error_ns(&self, window: (i64, i64)) -> Option<i64> {
        self.errors.error_ns(self.since_origin(window), self.drift_known)
    }

    /// The part of [`error_ns`](Self::error_ns) that another fit to the same clock does not have in common with this
    /// one; `None`: nothing tells the parts apart.
    pub(crate) fn unshared_ns(&self, window: (i64, i64)) -> Option<i64> {
        let unshared = self.errors.unshared_ns(self.since_origin(window), self.drift_known)?;
        Some(self.error_ns(window).map_or(unshared, |error| error.min(unshared)))
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
            Self::Lines { line, feasible, .. } => {
                // One for the rounding of what drift adds; the sums in f64 are good to far less.
                feasible.as_ref()?.deviation(*line, from, to).map(|d| d.ceil() as i64 + 1)
            }
        }
    }

    fn error_ns(&self, window: (f64, f64), drift_known: bool) -> Option<i64> {
        let bound = self.bound_ns(window);
        match self {
            Self::Exact | Self::Unknown | Self::Lines { spread_ns: None, .. } => bound,
            Self::Borrowed { errors, each_ns } => {
                errors.error_ns(window, drift_known).map(|error| error.saturating_add(2 * each_ns))
            }
            Self::Lines { spread_ns: Some(spread), support, .. } => {
                let error = in_window(*spread, support, window, drift_known);
                Some(bound.map_or(error, |b| b.min(error)))
            }
        }
    }

    fn unshared_ns(&self, window: (f64, f64), drift_known: bool) -> Option<i64> {
        match self {
            Self::Exact => Some(0),
            Self::Lines { scatter_ns: Some(scatter), support, .. } => {
                Some(in_window(*scatter, support, window, drift_known))
            }
            // The clock that both are fitted to is off by the same for both.
            Self::Borrowed { errors, each_ns } => {
                errors.unshared_ns(window, drift_known).map(|unshared| unshared.saturating_add(*each_ns))
            }
            Self::Unknown | Self::Lines { scatter_ns: None, .. } => None,
        }
    }
}

/// What an error near the samples grows to in a window.
fn in_window(near_ns: f64, support: &Support, (from, to): (f64, f64), drift_known: bool) -> i64 {
    let at = |t: f64| if drift_known { near_ns * support.lever(t) } else { near_ns + USUAL_DRIFT * support.beyond(t) };
    (at(from).max(at(to)).ceil() as i64).saturating_add(1)
}

/// The value below which a share `p` of the values lies; zero of nothing.
pub(crate) fn quantile(values: &mut [f64], p: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let position = (p * values.len() as f64).ceil().max(1.0) as usize - 1;
    let position = position.min(values.len() - 1);
    *values.select_nth_unstable_by(position, f64::total_cmp).1
}

/// The middle, or the mean of the two in the middle; zero of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let (odd, middle) = (values.len() % 2 == 1, values.len() / 2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return *upper;
    }
    0.5 * (below.iter().copied().fold(f64::NEG_INFINITY, f64::max) + *upper)
}
