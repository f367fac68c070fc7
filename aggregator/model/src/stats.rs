//! Medians, quantiles and spreads. They stay robust with five steps and heavy tails.
//!
//! | function               | even number of values          | for                                                |
//! |------------------------|--------------------------------|----------------------------------------------------|
//! | `lower_median`         | the lower of the middle two    | integers that must be the value of a real rank     |
//! | `median`               | the mean of the middle two     | values in any order                                |
//! | `median_of_sorted`     | the mean of the middle two     | values that are sorted already                     |
//! | `median_in_place`      | the mean of the middle two     | many values: it selects and does not sort          |
//! | `weighted_median`      | the mean, at half the weight   | samples of unequal accuracy                        |
//! | `median_of_others`     | the mean of the middle two     | one rank against the others                        |
//! | `quantile_of_sorted`   | interpolates linearly          | as pandas and HTA print them                       |
//! | `nearest_rank`         | takes an element of the sample | bounds: a share of the values does not exceed them |
//!
//! The constants are those of a normal distribution (Rousseeuw & Croux, "Alternatives to the Median Absolute Deviation",
//! JASA 88, 1993; Kendall & Stuart, "The Advanced Theory of Statistics", vol. 1, §14).

/// σ of a normal distribution / its median absolute deviation: 1 / Φ⁻¹(¾).
pub const SIGMA_PER_MAD: f64 = 1.4826;
/// σ of a normal distribution / the distance of its 10th and 90th percentile: 1 / (2 Φ⁻¹(0.9)).
pub const SIGMA_PER_DECILES: f64 = 0.390_15;
/// Standard error of a median / standard error of a mean, for a normal distribution: √(π/2).
pub const MEDIAN_SE_PER_MEAN_SE: f64 = 1.2533;

/// A mean or a share over rows of which some lack the quantity is stated if the others hold this share of the weight.
/// With less, what is unknown could change it too much.
pub const LEAST_KNOWN: f64 = 0.9;

/// Whether the rows that have a quantity hold enough of the weight of all rows ([`LEAST_KNOWN`]).
pub fn is_covered(known: f64, all: f64) -> bool {
    known > 0.0 && known >= LEAST_KNOWN * all
}

/// The mean of the known values by their weights. `None` if too many are unknown ([`is_covered`]).
pub fn covered_mean(values: impl IntoIterator<Item = (Option<f64>, f64)>) -> Option<f64> {
    let (mut sum, mut known, mut all) = (0.0, 0.0, 0.0);
    for (value, weight) in values {
        all += weight;
        if let Some(value) = value {
            sum += value * weight;
            known += weight;
        }
    }
    is_covered(known, all).then(|| sum / known)
}

/// The lower median. It is always an element of the sample, so integers stay exact and belong to a real rank.
pub fn lower_median(values: impl IntoIterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<i64> = values.into_iter().collect();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// The median of values in any order.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&values)
}

/// The median of sorted values.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    let upper = *sorted.get(n / 2)?;
    Some(if n % 2 == 1 { upper } else { (sorted[n / 2 - 1] + upper) / 2.0 })
}

/// The median, by selection, which reorders the values.
pub fn median_in_place(values: &mut [f64]) -> Option<f64> {
    let (n, middle) = (values.len(), values.len() / 2);
    if n == 0 {
        return None;
    }
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if n % 2 == 1 {
        return Some(*upper);
    }
    Some((below.iter().copied().fold(f64::NEG_INFINITY, f64::max) + *upper) / 2.0)
}

/// [`median`] of integers, rounded.
pub fn median_ns(values: &[i64]) -> Option<i64> {
    median(values.iter().map(|&v| v as f64)).map(|m| m.round() as i64)
}

/// The weighted median; the mean of two values if half the weight falls between them. 0 for an empty list.
pub fn weighted_median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = 0.5 * values.iter().map(|v| v.1).sum::<f64>();
    let mut below = 0.0;
    for (i, (value, weight)) in values.iter().enumerate() {
        below += weight;
        if below > half * (1.0 + 1e-12) {
            return *value;
        }
        if below >= half * (1.0 - 1e-12) {
            return values.get(i + 1).map_or(*value, |next| 0.5 * (value + next.0));
        }
    }
    0.0
}

/// The median of all values except one that equals `value`; NaN if any value is unknown.
pub fn median_of_others(sorted: &[f64], value: f64) -> f64 {
    if value.is_nan() || sorted.last().is_none_or(|last| last.is_nan()) {
        return f64::NAN;
    }
    let own = sorted.partition_point(|v| v.total_cmp(&value).is_lt());
    let other = |at: usize| sorted[if at < own { at } else { at + 1 }];
    let others = sorted.len() - 1;
    if others % 2 == 1 { other(others / 2) } else { (other(others / 2 - 1) + other(others / 2)) / 2.0 }
}

/// The quantile of sorted values with linear interpolation. There must be at least one value.
pub fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    quantile_of(sorted.len() as u64, share, |place| sorted[place as usize])
}

/// The quantile of `n` ≥ 1 sorted values, which `value` returns by index.
fn quantile_of(n: u64, share: f64, value: impl Fn(u64) -> f64) -> f64 {
    let position = share * (n - 1) as f64;
    let below = position.floor();
    let (low, high) = (value(below as u64), value(position.ceil() as u64));
    low + (high - low) * (position - below)
}

/// The smallest value that at least a `share` of the values does not exceed; it reorders the values.
pub fn nearest_rank(values: &mut [f64], share: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let position = (share * values.len() as f64).ceil().max(1.0) as usize - 1;
    Some(*values.select_nth_unstable_by(position.min(last), f64::total_cmp).1)
}

/// The median absolute deviation from `center`.
pub fn mad(values: impl IntoIterator<Item = f64>, center: f64) -> Option<f64> {
    median(values.into_iter().map(|v| (v - center).abs()))
}

/// The spread around `center`, as the σ of a normal distribution with the same median absolute deviation.
pub fn robust_sigma(values: impl IntoIterator<Item = f64>, center: f64) -> Option<f64> {
    mad(values, center).map(|mad| SIGMA_PER_MAD * mad)
}

/// [`robust_sigma`] of sorted values, in logarithmic time. There must be at least one value.
pub fn robust_sigma_of_sorted(sorted: &[i64], center: i64) -> f64 {
    let below = sorted.partition_point(|value| *value < center);
    robust_sigma_by_place(sorted.len(), below, |place| sorted[place] as f64, center as f64)
}

/// [`robust_sigma`] of `n` ≥ 1 values, which `value` returns by their place in ascending order. The first `below` of them
/// are less than `center`.
pub fn robust_sigma_by_place(n: usize, below: usize, value: impl Fn(usize) -> f64, center: f64) -> f64 {
    // The distances below and above the center are two ascending lists.
    let distance = |place: usize| (value(place) - center).abs();
    let of_below = |at: usize| distance(below - 1 - at);
    let of_above = |at: usize| distance(below + at);
    let above = n - below;
    let nth = |n: usize| {
        // The number of the n smaller distances that lie below.
        let (mut from, mut to) = (n.saturating_sub(above), n.min(below));
        while from < to {
            let middle = (from + to) / 2;
            if of_below(middle) < of_above(n - middle - 1) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let next_below = if from < below { of_below(from) } else { f64::INFINITY };
        if n - from < above { next_below.min(of_above(n - from)) } else { next_below }
    };
    let middle = if n % 2 == 1 { nth(n / 2) } else { (nth(n / 2 - 1) + nth(n / 2)) / 2.0 };
    SIGMA_PER_MAD * middle
}

/// A 95 % interval of the median by order statistics. It assumes independent steps, but no distribution.
///
/// The interval [x₍ₖ₎, x₍ₙ₊₁₋ₖ₎] covers the median with probability 1 − 2·P(Bin(n, ½) < k). `None` below six values,
/// because then even the whole range covers the median with less than 95 %.
pub fn median_interval_ns(values: &[i64]) -> Option<(i64, i64)> {
    let n = values.len();
    let k = interval_rank(n)?;
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    Some((sorted[k - 1], sorted[n - k]))
}

/// The largest k for which the k-th smallest and the k-th largest of n values enclose the median with at least 95 %.
fn interval_rank(n: usize) -> Option<usize> {
    // P(Bin(n, ½) = j) by recurrence, in logarithms so that thousands of steps do not underflow.
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
pub fn at_least(k: usize, n: usize, p: f64) -> f64 {
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

/// The value that a standard normal variable exceeds with probability `p` ≤ ½, with an error below 5 · 10⁻⁴ (Abramowitz and
/// Stegun 26.2.23).
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * p.ln()).sqrt();
    let below = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    t - below / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

/// The value that Student's t exceeds with probability `p`; `freedom` ≥ 1 degrees of freedom need not be whole. The
/// relative error is below 10⁻³ (Hill, algorithm 396, CACM 13(10), 1970).
pub fn student_quantile(p: f64, freedom: f64) -> f64 {
    if p > 0.5 {
        return -student_quantile(1.0 - p, freedom);
    }
    let (n, both) = (freedom, 2.0 * p);
    if n < 2.5 {
        // Exact for one and for two degrees of freedom, and too large between them.
        let angle = both * std::f64::consts::FRAC_PI_2;
        let two = (2.0 / (both * (2.0 - both)) - 2.0).sqrt();
        return if n < 2.0 { angle.cos() / angle.sin() } else { two };
    }
    let a = 1.0 / (n - 0.5);
    let b = 48.0 / (a * a);
    let c = ((20_700.0 * a / b - 98.0) * a - 16.0) * a + 96.36;
    let d = ((94.5 / (b + c) - 3.0) / b + 1.0) * (a * std::f64::consts::FRAC_PI_2).sqrt() * n;
    let tail = (d * both).powf(2.0 / n);
    let squared = if tail > 0.05 + a {
        let x = -normal_quantile(p);
        let c = if n < 5.0 { c + 0.3 * (n - 4.5) * (x + 0.6) } else { c };
        let c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c;
        let y = x * x;
        let y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x;
        (a * y * y).exp_m1()
    } else {
        let inverse = ((n + 6.0) / (n * tail) - 0.089 * d - 0.822) * (n + 2.0) * 3.0;
        ((1.0 / inverse + 0.5 / (n + 4.0)) * tail - 1.0) * (n + 1.0) / (n + 2.0) + 1.0 / tail
    };
    (n * squared).sqrt()
}

/// The summary of a list of values, with the definitions of pandas' `describe`, which HTA prints.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub count: i64,
    pub mean: f64,
    /// Standard deviation of the sample; `None` for a single value.
    pub std: Option<f64>,
    pub min: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub max: f64,
}

/// Describes values in any order; `None` for an empty list.
pub fn describe(mut values: Vec<f64>) -> Option<Summary> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    Some(Summary {
        count: values.len() as i64,
        mean,
        std: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
        min,
        p25: quantile_of_sorted(&values, 0.25),
        p50: quantile_of_sorted(&values, 0.5),
        p75: quantile_of_sorted(&values, 0.75),
        max,
    })
}

/// Describes small integers by their counts: `counts[v]` values equal `v`. `None` if all counts are 0.
pub fn describe_counts(counts: &[u64]) -> Option<Summary> {
    let (min, max) = (counts.iter().position(|n| *n > 0)?, counts.iter().rposition(|n| *n > 0)?);
    let values = || counts.iter().enumerate().map(|(value, n)| (value as f64, *n as f64));
    let count: u64 = counts.iter().sum();
    let n = count as f64;
    let mean = values().map(|(value, n)| value * n).sum::<f64>() / n;
    let squares: f64 = values().map(|(value, n)| n * (value - mean) * (value - mean)).sum();
    let at = |place: u64| {
        let mut before = 0;
        let holds = |n: &u64| {
            before += n;
            before > place
        };
        counts.iter().position(holds).unwrap_or(max) as f64
    };
    Some(Summary {
        count: count as i64,
        mean,
        std: (count > 1).then(|| (squares / (n - 1.0)).sqrt()),
        min: min as f64,
        p25: quantile_of(count, 0.25, at),
        p50: quantile_of(count, 0.5, at),
        p75: quantile_of(count, 0.75, at),
        max: max as f64,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mean_is_unknown_where_too_many_values_are() {
        assert_eq!(covered_mean([(Some(2.0), 9.0), (None, 1.0)]), Some(2.0));
        assert_eq!(covered_mean([(Some(2.0), 8.9), (None, 1.1)]), None);
        assert_eq!(covered_mean([(Some(2.0), 1.0), (Some(4.0), 3.0)]), Some(3.5));
        assert_eq!(covered_mean([]), None);
    }

    proptest! {
        #[test]
        fn the_spread_of_sorted_values_is_that_of_any(
            mut values in prop::collection::vec(-20..20_i64, 1..30),
            center in -25..25_i64,
        ) {
            values.sort_unstable();
            let expected = robust_sigma(values.iter().map(|value| *value as f64), center as f64).unwrap();
            prop_assert_eq!(robust_sigma_of_sorted(&values, center), expected);
        }
    }

    #[test]
    fn medians_are_elements_or_means() {
        assert_eq!(lower_median([4, 1, 3, 2]), Some(2));
        assert_eq!(lower_median([3, 1, 2]), Some(2));
        assert_eq!(lower_median([]), None);
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median_ns(&[5]), Some(5));
        assert_eq!(robust_sigma([1.0, 2.0, 4.0], 2.0), Some(SIGMA_PER_MAD));
        assert_eq!(nearest_rank(&mut [4.0, 1.0, 3.0, 2.0], 0.5), Some(2.0));
    }

    #[test]
    fn sorting_and_selecting_give_the_same_median() {
        let values = [7.5, -2.0, 3.25, 11.0, 0.1, 3.25, 8.0];
        for n in 0..=values.len() {
            let mut some = values[..n].to_vec();
            assert_eq!(median_in_place(&mut some), median(values[..n].iter().copied()), "{n} values");
        }
    }

    #[test]
    fn the_median_of_the_others_leaves_one_out() {
        let sorted = [1.0, 2.0, 2.0, 5.0];
        assert_eq!(median_of_others(&sorted, 1.0), 2.0);
        assert_eq!(median_of_others(&sorted, 2.0), 2.0);
        assert_eq!(median_of_others(&sorted, 5.0), 2.0);
        assert_eq!(median_of_others(&[3.0, 9.0], 3.0), 9.0);
        assert_eq!(median_of_others(&[1.0, 3.0, 9.0], 9.0), 2.0);
        assert!(median_of_others(&[1.0, f64::NAN], 1.0).is_nan());
    }

    #[test]
    fn as_pandas_describes() {
        let found = describe(vec![4.0, 1.0, 2.0, 9.0]).unwrap();
        assert_eq!((found.count, found.mean, found.min, found.max), (4, 4.0, 1.0, 9.0));
        assert_eq!((found.p25, found.p50, found.p75), (1.75, 3.0, 5.25));
        assert!((found.std.unwrap() - 3.559_026_084_010_437).abs() < 1e-12);
        assert_eq!(describe(vec![3.0]).unwrap().std, None);
        assert_eq!(describe(Vec::new()), None);
    }

    #[test]
    fn counted_values_are_described_like_listed_ones() {
        let listed = describe(vec![1.0, 1.0, 2.0, 4.0, 4.0, 4.0, 9.0]).unwrap();
        let counted = describe_counts(&[0, 2, 1, 0, 3, 0, 0, 0, 0, 1, 0]).unwrap();
        assert!((listed.std.unwrap() - counted.std.unwrap()).abs() < 1e-12);
        assert_eq!(Summary { std: None, ..counted }, Summary { std: None, ..listed });
        assert_eq!(describe_counts(&[0, 0]), None);
        assert_eq!(describe_counts(&[1]).map(|s| (s.count, s.std, s.p50)), Some((1, None, 0.0)));
    }

    #[test]
    fn binomial_tails_are_accurate() {
        for (k, n, p, expected) in [(0, 5, 0.3, 1.0), (5, 5, 0.1, 1e-5), (4, 5, 0.1, 4.6e-4), (1, 2, 0.5, 0.75)] {
            assert!((at_least(k, n, p) - expected).abs() < 1e-12, "{k} of {n}: {}", at_least(k, n, p));
        }
        assert!(at_least(9_000, 10_000, 0.5) < 1e-300);
    }

    /// The expected values are from tables.
    #[test]
    fn quantiles_of_students_t_are_accurate() {
        let table = [
            (1e-3, 1.0, 318.31),
            (1e-3, 2.0, 22.327),
            (1e-3, 3.0, 10.215),
            (5e-4, 5.0, 6.869),
            (1e-4, 5.0, 9.678),
            (1e-3, 10.0, 4.144),
            (5e-4, 10.0, 4.587),
            (5e-4, 30.0, 3.646),
            (1e-3, 120.0, 3.160),
            (0.05, 8.0, 1.860),
            (0.025, 9.0, 2.262),
            (0.975, 9.0, -2.262),
        ];
        for (p, freedom, t) in table {
            let found = student_quantile(p, freedom);
            assert!((found / t - 1.0).abs() < 2e-3, "{p} {freedom}: {found}");
        }
    }

    /// The expected values are from tables of the sign test (two-sided, 95 %).
    #[test]
    fn interval_ranks_match_the_sign_test() {
        let expected = [(1, None), (5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (12, Some(3)), (20, Some(6))];
        for (n, k) in expected {
            assert_eq!(interval_rank(n), k, "n = {n}");
        }
        assert_eq!(interval_rank(100_000).map(|k| k / 100), Some(496));
        assert_eq!(median_interval_ns(&[6, 5, 4, 3, 2, 1]), Some((1, 6)));
    }
}
