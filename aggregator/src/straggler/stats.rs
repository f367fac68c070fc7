//! Order statistics: what is robust with five steps and heavy tails.

/// σ of a normal distribution / its median absolute deviation.
pub(crate) const SIGMA_PER_MAD: f64 = 1.4826;
/// Standard error of a median / standard error of a mean, for a normal distribution: √(π/2).
pub(crate) const MEDIAN_SE_PER_MEAN_SE: f64 = 1.2533;

/// A distance in standard errors, in words. Beyond a hundred nobody doubts, and nobody should believe the digits: the
/// standard error of a few steps is not known that well.
pub(crate) fn spoken_z(z: f64) -> String {
    if z.abs() < 100.0 { format!("z {z:.1}") } else { format!("z {}100", if z > 0.0 { "above " } else { "below −" }) }
}

/// The lower median: an element of the sample, so that integers stay integers and no average of two ranks is invented.
pub(crate) fn lower_median(values: impl IntoIterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<i64> = values.into_iter().collect();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// The median; of an even number of values the mean of the middle two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    let upper = *values.get(n / 2)?;
    Some(if n % 2 == 1 { upper } else { (values[n / 2 - 1] + upper) / 2.0 })
}

/// [`median`] of integers, rounded.
pub(crate) fn median_ns(values: &[i64]) -> Option<i64> {
    median(values.iter().map(|&v| v as f64)).map(|m| m.round() as i64)
}

/// Spread around `center` as σ of a normal distribution with the same median absolute deviation.
pub(crate) fn robust_sigma(values: impl IntoIterator<Item = f64>, center: f64) -> Option<f64> {
    median(values.into_iter().map(|v| (v - center).abs())).map(|mad| SIGMA_PER_MAD * mad)
}

/// A 95 % interval of the median by order statistics, which assumes independent steps and no distribution.
///
/// The interval [x₍ₖ₎, x₍ₙ₊₁₋ₖ₎] covers the median with probability 1 − 2·P(Bin(n, ½) < k). `None` below six values:
/// there even the whole range covers it with less than 95 %.
pub(crate) fn median_interval_ns(values: &[i64]) -> Option<(i64, i64)> {
    let n = values.len();
    let k = interval_rank(n)?;
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    Some((sorted[k - 1], sorted[n - k]))
}

/// The largest k for which the k-th smallest and k-th largest of n values enclose the median with at least 95 %.
fn interval_rank(n: usize) -> Option<usize> {
    // P(Bin(n, ½) = j), by recurrence in logarithms so that many thousand steps do not underflow.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut k = 0;
    while k < n / 2 {
        below += log_term.exp();
        if 2.0 * below > 0.05 {
            break;
        }
        log_term += ((n - k) as f64 / (k + 1) as f64).ln();
        k += 1;
    }
    (k > 0).then_some(k)
}

/// The probability of at least `k` successes in `n` trials of probability `p`, 0 < p < 1.
pub(crate) fn at_least(k: usize, n: usize, p: f64) -> f64 {
    let mut log_term = n as f64 * (1.0 - p).ln();
    let mut sum = 0.0;
    for j in 0..=n {
        if j >= k {
            sum += log_term.exp();
        }
        log_term += ((n - j) as f64 / (j + 1) as f64).ln() + (p / (1.0 - p)).ln();
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(lower_median([4, 1, 3, 2]), Some(2));
        assert_eq!(lower_median([3, 1, 2]), Some(2));
        assert_eq!(lower_median([]), None);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median_ns(&[5]), Some(5));
        assert_eq!(robust_sigma([1.0, 2.0, 4.0], 2.0), Some(SIGMA_PER_MAD));
    }

    #[test]
    fn distances_are_spoken_as_far_as_they_mean_something() {
        assert_eq!([12.34, 99.9, 118_024.2, -300.0].map(spoken_z), ["z 12.3", "z 99.9", "z above 100", "z below −100"]);
    }

    #[test]
    fn binomial_tails() {
        for (k, n, p, expected) in [(0, 5, 0.3, 1.0), (5, 5, 0.1, 1e-5), (4, 5, 0.1, 4.6e-4), (1, 2, 0.5, 0.75)] {
            assert!((at_least(k, n, p) - expected).abs() < 1e-12, "{k} of {n}: {}", at_least(k, n, p));
        }
        assert!(at_least(9_000, 10_000, 0.5) < 1e-300);
    }

    /// The ranks printed in tables of the sign test (two-sided, 95 %).
    #[test]
    fn interval_ranks_are_those_of_the_sign_test() {
        let expected = [(1, None), (5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (12, Some(3)), (20, Some(6))];
        for (n, k) in expected {
            assert_eq!(interval_rank(n), k, "n = {n}");
        }
        assert_eq!(interval_rank(100_000).map(|k| k / 100), Some(496));
        assert_eq!(median_interval_ns(&[6, 5, 4, 3, 2, 1]), Some((1, 6)));
    }
}
