//! Whether all own work of a rank stands out from that of the other ranks: a moderated t over steps.
//!
//! The median over steps of a rank's excess differs from that of the others for two reasons even if no rank is slow. Steps
//! vary, which averages out: v = π/2 · σ²/S · (1 + ρ)/(1 − ρ) for S steps whose neighbours are correlated by ρ. And ranks
//! differ, which does not average out. A few ranks give only a poor estimate of the variance s² between them, so it is shrunk
//! towards the expected one, v + τ², which counts as four more ranks (Smyth, "Linear models and empirical Bayes methods",
//! SAGMB 3(1), 2004):
//!
//! ```text
//!   t² = distance² / ((1 + 1/n) · (4 (v + τ²) + (n − 1) s²) / (4 + n − 1))       against n other ranks, 3 + n degrees of freedom
//! ```
//!
//! Slow ranks do not hide each other, because the i-th largest median is compared with all smaller ones, as in
//! [`outliers`](super::outliers).

use model::stats::{MEDIAN_SE_PER_MEAN_SE, median, student_quantile};

/// The standard deviation τ between equal ranks, as a share of a step.
pub(super) const RANK_SIGMA: f64 = 0.005;
/// The degrees of freedom of τ.
const RANK_FREEDOM: f64 = 4.0;
/// The probability that a clean job has a rank that is [`Standing::Certain`].
const CERTAIN: f64 = 5e-4;
/// The probability that a clean job has a rank that is [`Standing::Likely`].
const LIKELY: f64 = 1e-2;
/// The probability that an excess is beyond one end of its interval.
const BEYOND: f64 = 0.025;
/// Collectives that take the place of steps must be at least this many.
const LEAST_COLLECTIVES: usize = 30;
/// Neighbouring steps are correlated by no more than this: a rank that is slow for a while would else never be certain.
const MOST_CORRELATED: f64 = 0.9;

/// How far all own work of a rank stands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// By no more than ranks usually do.
    #[default]
    Usual,
    /// By more than in one of a hundred clean jobs.
    Likely,
    /// By more than in one of two thousand clean jobs.
    Certain,
}

/// The excess of a rank, and its variance over steps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    center_ns: f64,
    variance: f64,
}

/// The medians of all ranks.
pub(super) struct Medians {
    /// `None` for ranks without values.
    estimates: Vec<Option<Estimate>>,
    /// The degrees of freedom of the variance of a rank's own values.
    freedom: usize,
    /// The variance τ² between equal ranks.
    between: f64,
    /// The number of ranks that may be slow. Half of all ranks may always be.
    slow: usize,
}

/// The standing of each rank by the values of its steps. If exactly two ranks have values, these must be the signed
/// differences between them.
pub(super) fn over_steps(series: &[Vec<f64>], step_ns: i64) -> Vec<Standing> {
    Medians::over_steps(series, step_ns).standings()
}

/// Whether some ranks have larger or smaller values than the others, by the values of their steps.
pub fn differ(values: &[Vec<f64>], step_ns: i64) -> bool {
    let signed = |sign: f64| -> Vec<Vec<f64>> {
        let mut series: Vec<Vec<f64>> = values.iter().map(|v| v.iter().map(|value| sign * value).collect()).collect();
        if let [a, b] = &mut series[..] {
            a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a - *b, *b - *a));
        }
        series
    };
    [1.0, -1.0].iter().any(|sign| over_steps(&signed(*sign), step_ns).contains(&Standing::Certain))
}

impl Medians {
    /// The medians of `series`, as in [`over_steps`].
    pub(super) fn over_steps(series: &[Vec<f64>], step_ns: i64) -> Self {
        let noise = Noise::of(series);
        let estimate = |values: &Vec<f64>| {
            let center_ns = median(values.iter().copied())?;
            let variance = MEDIAN_SE_PER_MEAN_SE.powi(2) * noise.variance(values)? / values.len() as f64;
            Some(Estimate { center_ns, variance })
        };
        let steps = series.iter().map(Vec::len).max().unwrap_or(0);
        Self::new(series.iter().map(estimate).collect(), steps.saturating_sub(1), step_ns)
    }

    /// The mean excess in `steps` steps, which are too few, by the excess at each of their collectives; `None` with too
    /// few collectives. The largest excess of each rank does not count, because one pause is no slow rank.
    pub(super) fn over_collectives(pieces: &[Vec<f64>], steps: usize, step_ns: i64) -> Option<Self> {
        let with = || pieces.iter().filter(|of_rank| !of_rank.is_empty());
        if steps == 0 || with().any(|of_rank| of_rank.len() < LEAST_COLLECTIVES) {
            return None;
        }
        let without_largest = |of_rank: &Vec<f64>| {
            let mut rest = of_rank.clone();
            if let Some(largest) = (0..rest.len()).max_by(|a, b| rest[*a].total_cmp(&rest[*b])) {
                rest.remove(largest);
            }
            rest
        };
        let pieces: Vec<Vec<f64>> = pieces.iter().map(without_largest).collect();
        let noise = Noise::of(&pieces);
        let estimate = |of_rank: &Vec<f64>| {
            let (n, steps) = (of_rank.len() as f64, steps as f64);
            let center_ns = of_rank.iter().sum::<f64>() / steps;
            (n > 0.0).then_some(Estimate { center_ns, variance: n * noise.typical / (steps * steps) })
        };
        let least = pieces.iter().map(Vec::len).filter(|n| *n > 0).min().unwrap_or(0);
        Some(Self::new(pieces.iter().map(estimate).collect(), least.saturating_sub(1), step_ns))
    }

    fn new(estimates: Vec<Option<Estimate>>, freedom: usize, step_ns: i64) -> Self {
        Self { estimates, freedom, between: (RANK_SIGMA * step_ns as f64).powi(2), slow: 0 }
    }

    /// These medians. More than half of the ranks may stand out, but no more than `slow`.
    pub(super) fn with_slow(self, slow: usize) -> Self {
        Self { slow, ..self }
    }

    /// The standing of each rank.
    pub(super) fn standings(&self) -> Vec<Standing> {
        let ranked = self.estimates.iter().enumerate();
        let mut sorted: Vec<(Estimate, usize)> =
            ranked.filter_map(|(rank, estimate)| Some(((*estimate)?, rank))).collect();
        sorted.sort_unstable_by(|a, b| b.0.center_ns.total_cmp(&a.0.center_ns).then(a.1.cmp(&b.1)));
        let mut found = vec![Standing::Usual; self.estimates.len()];
        for (standing, p) in [(Standing::Likely, LIKELY), (Standing::Certain, CERTAIN)] {
            let outliers = match sorted.as_slice() {
                [] | [_] => 0,
                [(first, _), _] => {
                    let error_ns = pair_error_ns(first.variance, self.freedom, self.between, p / 2.0);
                    usize::from(first.center_ns > error_ns)
                }
                _ => largest_passing(&sorted, self.slow.max(sorted.len() / 2), self.between, p),
            };
            sorted[..outliers].iter().for_each(|(_, rank)| found[*rank] = standing);
        }
        found
    }

    /// By how much the excess of a rank may be off, at 95 %, by the same variance as its standing; `None` without another rank
    /// that is not slow.
    pub(super) fn error_ns(&self, rank: usize, is_slow: &dyn Fn(usize) -> bool) -> Option<f64> {
        let own = self.estimates[rank]?;
        let compared = self.estimates.iter().flatten().count();
        let others = self.estimates.iter().enumerate().filter(|(other, _)| *other != rank && !is_slow(*other));
        let others: Vec<f64> = others.filter_map(|(_, estimate)| Some((*estimate)?.center_ns)).collect();
        match others.len() {
            0 => None,
            // The values of two ranks are differences, which hold the variation of both.
            1 if compared == 2 => Some(pair_error_ns(own.variance, self.freedom, self.between, BEYOND)),
            1 => Some(pair_error_ns(2.0 * own.variance, self.freedom, self.between, BEYOND)),
            n => {
                let mean_ns = mean(&others);
                let squares = others.iter().map(|ns| (ns - mean_ns).powi(2)).sum();
                Some(error_ns(own.variance + self.between, squares, n as f64, BEYOND))
            }
        }
    }
}

/// The distance from the mean of `n` ranks that an equal rank exceeds with probability `p`. `expected` is the expected variance,
/// `squares` the sum of the squared distances of the others from their mean.
fn error_ns(expected: f64, squares: f64, n: f64, p: f64) -> f64 {
    let freedom = RANK_FREEDOM + n - 1.0;
    let variance = (1.0 + 1.0 / n) * (RANK_FREEDOM * expected + squares) / freedom;
    student_quantile(p, freedom) * variance.sqrt()
}

/// The difference between two ranks that equal ones exceed with probability `p`; its variance over steps has `freedom` degrees
/// of freedom. Those of the sum of both variances are Satterthwaite's.
fn pair_error_ns(steps: f64, freedom: usize, between: f64, p: f64) -> f64 {
    let ranks = 2.0 * between;
    let variance = ranks + steps;
    if variance == 0.0 {
        return 0.0;
    }
    let freedom = variance * variance / (ranks * ranks / RANK_FREEDOM + steps * steps / freedom.max(1) as f64);
    student_quantile(p, freedom) * variance.sqrt()
}

/// The variation of single values, with the correlation of neighbours as a factor.
struct Noise {
    /// The median of the ranks' variances.
    typical: f64,
    correlation: f64,
}

impl Noise {
    fn of(series: &[Vec<f64>]) -> Self {
        let known = || series.iter().filter(|values| values.len() > 1);
        let freedom = median(known().map(|values| (values.len() - 1) as f64)).unwrap_or(1.0);
        // The median of χ²/k is below 1 (Wilson and Hilferty, PNAS 17, 1931).
        let median_of_chi = (1.0 - 2.0 / (9.0 * freedom)).powi(3);
        let correlation = median(known().filter_map(|values| correlation(values))).unwrap_or(0.0);
        let correlation = correlation.clamp(0.0, MOST_CORRELATED);
        let factor = (1.0 + correlation) / (1.0 - correlation);
        let typical = median(known().map(|values| sample_variance(values))).unwrap_or(0.0) / median_of_chi;
        Self { typical: factor * typical, correlation: factor }
    }

    /// The variance of one of `values`, but at least the typical one: a few values may be alike by chance.
    fn variance(&self, values: &[f64]) -> Option<f64> {
        match values.len() {
            0 => None,
            1 => Some(self.typical),
            _ => Some(self.typical.max(self.correlation * sample_variance(values))),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The variance of two values or more.
fn sample_variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

/// The correlation of neighbours, without the bias of few values; `None` if the values do not vary.
fn correlation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let products: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let found = products / squares;
    (squares > 0.0).then(|| found + (1.0 + 3.0 * found) / values.len() as f64)
}

/// The largest i, up to `most`, for which the i-th of `sorted`, which descends, stands out from all smaller ones.
fn largest_passing(sorted: &[(Estimate, usize)], most: usize, between: f64, p: f64) -> usize {
    let p = p / sorted.len() as f64;
    let mut passing = 0;
    // Welford's sums over the smaller ones.
    let (mut n, mut mean_ns, mut squares) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (at, (estimate, _)) in sorted.iter().enumerate().rev() {
        let above_ns = estimate.center_ns - mean_ns;
        let can_pass = at < most && n >= 2.0 && above_ns > 0.0;
        if can_pass && above_ns > error_ns(estimate.variance + between, squares, n, p) {
            passing = passing.max(at + 1);
        }
        n += 1.0;
        mean_ns += above_ns / n;
        squares += above_ns * (estimate.center_ns - mean_ns);
    }
    passing
}
