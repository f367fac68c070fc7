//! The statistics of a difference between runs.
//!
//! The value of a row in one run is the median over its steps, so that warm-up, a checkpoint or a preempted step does
//! not decide. Its error has two parts:
//!
//! - *Within the run*: the standard error of that median, by a circular block bootstrap (Politis & Romano 1992) with
//!   blocks of ⌈n^⅓⌉ steps, which keeps the dependence of neighbouring steps; at least that of n independent steps.
//! - *Between runs*: all steps of a run share its conditions: placement, clocks, neighbours. With one run a side the data
//!   cannot show this variation, so an allowance takes its place: a run may deviate by as much as one of its steps
//!   ([`Method::between_runs`] = 1), plus 2 % of the row's own value. With several runs a side their variation is measured,
//!   and the allowance counts as [`Method::prior_df`] additional runs, as in the moderated t of limma (Smyth 2004). A
//!   variation larger than the allowance is used as measured.
//!
//! The interval is Student's. The test's hypothesis is that the change does not exceed the smallest relevant one. Over
//! all rows, the procedure of Benjamini & Yekutieli (2001) controls false discoveries; it holds for dependent rows, and
//! these rows are dependent.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::method::{Change, Method};
use model::stats::{
    MEDIAN_SE_PER_MEAN_SE, SIGMA_PER_DECILES, SIGMA_PER_MAD, mad, median, median_in_place, quantile_of_sorted,
};
use trace::random::SplitMix64;

const RESAMPLES: usize = 100;

/// The estimates of one row in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// Median over steps of the compared value.
    pub(crate) location_ns: f64,
    /// Median over steps of the row's own value.
    pub(crate) level_ns: f64,
    /// Variation between steps, as σ of a normal distribution.
    pub(crate) sigma_ns: f64,
    /// Standard error of the location within the run.
    pub(crate) within_ns: f64,
}

impl Estimate {
    /// Estimates from the compared values and the row's own values. NaN marks an unknown value.
    pub(crate) fn of(values: &[f64], own: &[f64]) -> Option<Self> {
        let present: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
        let location_ns = median(present.iter().copied())?;
        let sigma_ns = spread(&present, location_ns);
        let independent = MEDIAN_SE_PER_MEAN_SE * sigma_ns / (present.len() as f64).sqrt();
        Some(Self {
            location_ns,
            level_ns: median(own.iter().copied().filter(|v| !v.is_nan()))?,
            sigma_ns,
            within_ns: independent.max(block_bootstrap(&present)),
        })
    }

    /// Estimates of a value that may be large in some steps only: its mean over steps.
    pub(crate) fn of_mean(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean_ns = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean_ns).powi(2)).sum();
        let error_ns = (squares / (n - 1.0).max(1.0) / n).sqrt();
        (n > 0.0 && mean_ns.is_finite()).then(|| Self {
            location_ns: mean_ns,
            level_ns: mean_ns,
            sigma_ns: spread(values, median(values.iter().copied()).unwrap_or(mean_ns)),
            within_ns: error_ns,
        })
    }

    /// The cost of a rank, and its standard error, by the account of its run. The account compares ranks of the same steps, so the variation
    /// between runs is not added.
    pub(crate) fn of_cost((cost_ns, error_ns): (f64, f64)) -> Self {
        Self { location_ns: cost_ns, level_ns: cost_ns, sigma_ns: 0.0, within_ns: error_ns }
    }

    /// Variance of the run's value among such runs, according to the allowance alone.
    fn prior_variance(&self, method: &Method) -> f64 {
        let relative_ns = method.between_runs_relative * self.level_ns.abs();
        self.within_ns.powi(2) + method.between_runs * self.sigma_ns.powi(2) + relative_ns.powi(2)
    }
}

/// The larger of two robust measures: the median deviation, which tolerates outliers in half of the steps, and the
/// distance of the deciles, which detects two kinds of steps.
fn spread(values: &[f64], center: f64) -> f64 {
    let mad = mad(values.iter().copied(), center).unwrap_or(0.0);
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let small_sample = values.len() as f64 / (values.len() as f64 - 0.8).max(0.2);
    let deciles = quantile_of_sorted(&sorted, 0.9) - quantile_of_sorted(&sorted, 0.1);
    (SIGMA_PER_MAD * mad * small_sample).max(SIGMA_PER_DECILES * deciles)
}

/// Standard error of the median by a circular block bootstrap. Every call uses the same resamples. Rows that vary
/// together are therefore resampled together, and two calls return the same value.
fn block_bootstrap(values: &[f64]) -> f64 {
    let n = values.len();
    if n < 2 {
        return 0.0;
    }
    let block = (n as f64).cbrt().ceil() as usize;
    let mut random = SplitMix64(0x5eed);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut resample = Vec::with_capacity(n + block);
    for _ in 0..RESAMPLES {
        resample.clear();
        while resample.len() < n {
            let first = (random.next_u64() % n as u64) as usize;
            resample.extend((0..block).map(|i| values[(first + i) % n]));
        }
        resample.truncate(n);
        medians.extend(median_in_place(&mut resample));
    }
    let mean = medians.iter().sum::<f64>() / RESAMPLES as f64;
    let squares: f64 = medians.iter().map(|m| (m - mean).powi(2)).sum();
    (squares / (RESAMPLES - 1) as f64).sqrt()
}

/// The change from the runs of A to those of B; `None` if a side has no run.
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

/// Two-sided probability of Student's t beyond `distance_ns`; 1 if the change is below the smallest relevant one.
fn tail(distance_ns: f64, se_ns: f64, df: f64) -> f64 {
    if distance_ns <= 0.0 {
        return 1.0;
    }
    if se_ns <= 0.0 {
        return 0.0;
    }
    StudentsT::new(0.0, 1.0, df).map_or(1.0, |t| (2.0 * t.sf(distance_ns / se_ns)).min(1.0))
}

/// A quantile of Student's t.
pub(crate) fn quantile_of_t(q: f64, df: f64) -> f64 {
    StudentsT::new(0.0, 1.0, df).map_or(f64::INFINITY, |t| t.inverse_cdf(q))
}

/// Σ 1/i up to `m`: the factor by which Benjamini & Yekutieli allow for dependent rows.
pub(crate) fn harmonic(m: usize) -> f64 {
    (1..=m).map(|i| 1.0 / i as f64).sum()
}

/// Adjusted p-values by Benjamini & Yekutieli. Rows at or below q have a false discovery rate of at most q.
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
    fn students_quantiles_equal_those_of_the_tables() {
        assert!((quantile_of_t(0.975, 8.0) - 2.306).abs() < 1e-3);
        assert!((tail(2.306, 1.0, 8.0) - 0.05).abs() < 1e-4);
        assert_eq!((tail(-1.0, 1.0, 8.0), tail(1.0, 0.0, 8.0)), (1.0, 0.0));
    }

    /// Dependent steps hold less information. Blocks account for this; single steps would not.
    #[test]
    fn dependent_steps_have_a_larger_error() {
        let independent: Vec<f64> = (0..64).map(|i| f64::from((i * 37) % 64)).collect();
        let mut dependent = independent.clone();
        dependent.sort_unstable_by(f64::total_cmp);
        assert!(block_bootstrap(&dependent) > 1.3 * block_bootstrap(&independent));
    }

    #[test]
    fn the_spread_detects_two_kinds_of_steps_and_tolerates_one_outlier() {
        let two_kinds: Vec<f64> = (0..20).map(|i| if i % 3 == 0 { 12.0 } else { 0.1 }).collect();
        assert!(spread(&two_kinds, 0.1) > 4.0);
        let mut outlier = vec![10.0; 30];
        outlier[7] = 5_000.0;
        assert_eq!(spread(&outlier, 10.0), 0.0);
    }

    /// With one run a side only the allowance counts. Three runs that agree give a smaller error, three that differ a
    /// larger one.
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
