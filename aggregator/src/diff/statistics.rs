//! The statistics of a difference between runs.
//!
//! The value of a row in one run is the median over its steps, so that warm-up, a checkpoint or a step in which
//! something else took the processor do not decide. How far it may be off has two parts:
//!
//! - *Within the run*: the standard error of that median by a circular block bootstrap (Politis & Romano 1992) with
//!   blocks of ⌈n^⅓⌉ steps, which keeps the dependence of neighbouring steps; at least that of n independent steps.
//! - *Between runs*: a run's steps share what that run had of luck: placement, clocks, neighbours. With one run a side
//!   nothing in the data tells how much that is, so an allowance stands for it: a run may be off by as much as one of
//!   its steps is ([`Method::between_runs`] = 1), and by 2 % of the row's own value besides. With several runs a side
//!   their spread is measured, and the allowance counts as [`Method::prior_df`] runs more, as in the moderated t of
//!   limma (Smyth 2004); a spread that is larger than the allowance is taken as it is.
//!
//! The interval is Student's. The test is of the hypothesis that the change is no larger than the smallest that
//! matters; over all rows, false discoveries are controlled by Benjamini & Yekutieli (2001), which holds for rows that
//! depend on each other, as these do.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::Method;
use crate::straggler::median;

/// σ of a normal distribution / its median absolute deviation.
const SIGMA_PER_MAD: f64 = 1.4826;
/// σ of a normal distribution / the distance of its 10th and 90th percentile.
const SIGMA_PER_DECILES: f64 = 0.390_15;
/// Standard error of a median / standard error of a mean, for a normal distribution: √(π/2).
const MEDIAN_SE: f64 = 1.253_3;
const RESAMPLES: usize = 100;

/// A row in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// Median over steps of what is compared.
    pub(crate) location_ns: f64,
    /// Median over steps of the row's own value.
    pub(crate) level_ns: f64,
    /// Spread from step to step, as σ of a normal distribution.
    pub(crate) sigma_ns: f64,
    /// Standard error of the location within the run.
    pub(crate) within_ns: f64,
}

impl Estimate {
    /// Of the values that are compared, with the row's own values.
    pub(crate) fn of(values: &[f64], own: &[f64]) -> Option<Self> {
        let known: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
        let location_ns = median(known.iter().copied())?;
        let sigma_ns = spread(&known, location_ns);
        let independent = MEDIAN_SE * sigma_ns / (known.len() as f64).sqrt();
        Some(Self {
            location_ns,
            level_ns: median(own.iter().copied().filter(|v| !v.is_nan()))?,
            sigma_ns,
            within_ns: independent.max(block_bootstrap(&known)),
        })
    }

    /// Variance of the run's value as a sample of what such runs have, by the allowance alone.
    fn prior_variance(&self, method: &Method) -> f64 {
        let relative_ns = method.between_runs_relative * self.level_ns.abs();
        self.within_ns.powi(2) + method.between_runs * self.sigma_ns.powi(2) + relative_ns.powi(2)
    }
}

/// The larger of two robust measures: the median deviation, which half of the steps may not disturb, and the distance
/// of the deciles, which sees that steps fall into two kinds.
fn spread(values: &[f64], center: f64) -> f64 {
    let mad = median(values.iter().map(|v| (v - center).abs())).unwrap_or(0.0);
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let small_sample = values.len() as f64 / (values.len() as f64 - 0.8).max(0.2);
    let deciles = quantile(&sorted, 0.9) - quantile(&sorted, 0.1);
    (SIGMA_PER_MAD * mad * small_sample).max(SIGMA_PER_DECILES * deciles)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Standard error of the median by a circular block bootstrap. The resamples are the same in every call, so that rows
/// that move together are resampled together, and two calls agree.
fn block_bootstrap(values: &[f64]) -> f64 {
    let n = values.len();
    if n < 2 {
        return 0.0;
    }
    let block = (n as f64).cbrt().ceil() as usize;
    let mut random = SplitMix(0x5eed);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut resample = Vec::with_capacity(n + block);
    for _ in 0..RESAMPLES {
        resample.clear();
        while resample.len() < n {
            let first = random.below(n);
            resample.extend((0..block).map(|i| values[(first + i) % n]));
        }
        resample.truncate(n);
        let middle = n / 2;
        let (below, upper, _) = resample.select_nth_unstable_by(middle, f64::total_cmp);
        let lower = if n % 2 == 1 { *upper } else { below.iter().copied().fold(f64::NEG_INFINITY, f64::max) };
        medians.push((lower + *upper) / 2.0);
    }
    let mean = medians.iter().sum::<f64>() / RESAMPLES as f64;
    let squares: f64 = medians.iter().map(|m| (m - mean).powi(2)).sum();
    (squares / (RESAMPLES - 1) as f64).sqrt()
}

/// Steele, Lea & Flood's SplitMix64: enough to choose blocks, and the same everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A change between two sides, and how far it can be off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Value of B − value of A.
    pub delta_ns: f64,
    /// Its standard error, between-run variance included.
    pub se_ns: f64,
    /// Degrees of freedom of Student's t.
    pub df: f64,
    /// Lower end of the interval.
    pub low_ns: f64,
    /// Upper end.
    pub high_ns: f64,
    /// Probability of such a change if the true one is no larger than the smallest that matters.
    pub p: f64,
}

/// The change from the runs of A to those of B; `None` if a side has none.
pub(crate) fn change(a: &[Estimate], b: &[Estimate], smallest_ns: f64, method: &Method) -> Option<Change> {
    let mean = |side: &[Estimate]| side.iter().map(|e| e.location_ns).sum::<f64>() / side.len() as f64;
    let prior = |side: &[Estimate]| side.iter().map(|e| e.prior_variance(method)).sum::<f64>() / side.len() as f64;
    let squares = |side: &[Estimate], mean: f64| side.iter().map(|e| (e.location_ns - mean).powi(2)).sum::<f64>();
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let (mean_a, mean_b) = (mean(a), mean(b));
    let measured_df = (a.len() + b.len() - 2) as f64;
    let measured = (squares(a, mean_a) + squares(b, mean_b)) / measured_df.max(1.0);
    let moderate = |prior: f64| {
        if measured_df > 0.0 {
            (method.prior_df * prior + measured_df * measured) / (method.prior_df + measured_df)
        } else {
            prior
        }
    };
    let (prior_a, prior_b) = (prior(a), prior(b));
    let as_measured = measured_df > 0.0 && measured > (prior_a + prior_b) / 2.0;
    let variance = |prior: f64, runs: usize| {
        let of_a_run = if as_measured { measured } else { moderate(prior) };
        of_a_run / runs as f64
    };
    let df = if as_measured { measured_df } else { method.prior_df + measured_df };
    let se_ns = (variance(prior_a, a.len()) + variance(prior_b, b.len())).sqrt();
    let delta_ns = mean_b - mean_a;
    let half_ns = quantile_of_t(1.0 - (1.0 - method.confidence) / 2.0, df) * se_ns;
    let p = tail(delta_ns.abs() - smallest_ns, se_ns, df);
    Some(Change { delta_ns, se_ns, df, low_ns: delta_ns - half_ns, high_ns: delta_ns + half_ns, p })
}

/// Two-sided probability of Student's t beyond `distance_ns`; 1 where the change is below the smallest that matters.
fn tail(distance_ns: f64, se_ns: f64, df: f64) -> f64 {
    if distance_ns <= 0.0 {
        return 1.0;
    }
    if se_ns <= 0.0 {
        return 0.0;
    }
    StudentsT::new(0.0, 1.0, df).map_or(1.0, |t| (2.0 * t.sf(distance_ns / se_ns)).min(1.0))
}

/// Quantile of Student's t.
pub(crate) fn quantile_of_t(q: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::INFINITY, |t| t.inverse_cdf(q))
}

/// Σ 1/i up to `m`: what Benjamini & Yekutieli pay for rows that depend on each other.
pub(crate) fn harmonic(m: usize) -> f64 {
    (1..=m).map(|i| 1.0 / i as f64).sum()
}

/// Adjusted p-values by Benjamini & Yekutieli: rows at or below q have a false discovery rate of at most q.
pub(crate) fn adjusted(p: &[f64]) -> Vec<f64> {
    let m = p.len();
    let price = m as f64 * harmonic(m);
    let mut order: Vec<usize> = (0..m).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]).then(a.cmp(b)));
    let mut adjusted = vec![1.0; m];
    let mut least = 1.0_f64;
    for (place, row) in order.iter().enumerate().rev() {
        least = least.min(p[*row] * price / (place + 1) as f64);
        adjusted[*row] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn false_discoveries_are_adjusted_as_published() {
        // R: p.adjust(c(0.001, 0.02, 0.03, 0.5), "BY")
        let found = adjusted(&[0.03, 0.001, 0.5, 0.02]);
        let expected = [0.083_333_3, 0.008_333_3, 1.0, 0.083_333_3];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn students_quantiles_are_those_of_the_tables() {
        assert!((quantile_of_t(0.975, 8.0) - 2.306).abs() < 1e-3);
        assert!((tail(2.306, 1.0, 8.0) - 0.05).abs() < 1e-4);
        assert_eq!((tail(-1.0, 1.0, 8.0), tail(1.0, 0.0, 8.0)), (1.0, 0.0));
    }

    /// Steps that depend on each other say less: blocks see it, single steps would not.
    #[test]
    fn dependent_steps_have_a_larger_error() {
        let independent: Vec<f64> = (0..64).map(|i| f64::from((i * 37) % 64)).collect();
        let mut dependent = independent.clone();
        dependent.sort_unstable_by(f64::total_cmp);
        assert!(block_bootstrap(&dependent) > 1.3 * block_bootstrap(&independent));
    }

    #[test]
    fn the_spread_sees_two_kinds_of_steps_and_forgives_one_outlier() {
        let two_kinds: Vec<f64> = (0..20).map(|i| if i % 3 == 0 { 12.0 } else { 0.1 }).collect();
        assert!(spread(&two_kinds, 0.1) > 4.0);
        let mut outlier = vec![10.0; 30];
        outlier[7] = 5_000.0;
        assert_eq!(spread(&outlier, 10.0), 0.0);
    }

    /// One run a side: only the allowance. Three that agree: a smaller error. Three that do not: a larger one.
    #[test]
    fn runs_that_differ_widen_the_interval() {
        let method = Method::default();
        let run = |location_ns: f64| Estimate { location_ns, level_ns: 100.0, sigma_ns: 4.0, within_ns: 1.0 };
        let se = |a: &[f64], b: &[f64]| {
            let side = |s: &[f64]| s.iter().map(|l| run(*l)).collect::<Vec<_>>();
            change(&side(a), &side(b), 0.0, &method).unwrap()
        };
        let one = se(&[100.0], &[110.0]);
        assert!((one.se_ns - (2.0_f64 * (1.0 + 16.0 + 4.0)).sqrt()).abs() < 1e-9, "{one:?}");
        assert_eq!(one.df, method.prior_df);
        let agree = se(&[100.0, 101.0, 99.0], &[110.0, 111.0, 109.0]);
        assert!(agree.se_ns < one.se_ns && agree.df > one.df);
        let differ = se(&[80.0, 100.0, 120.0], &[90.0, 110.0, 130.0]);
        assert!(differ.se_ns > one.se_ns && differ.df == 4.0, "{differ:?}");
        assert_eq!(change(&[], &[run(1.0)], 0.0, &method), None);
    }
}
