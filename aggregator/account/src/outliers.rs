//! Finds the ranks that stand out from the others, although the others differ too.
//!
//! A few values give only a poor estimate of their spread, and the test must account for that. The test is Rosner's
//! generalised extreme studentised deviate (Technometrics 25(2), 1983), one-sided, with the candidate excluded from the
//! spread that it is compared with. It compares the i-th largest value with all smaller values. For the largest i that
//! passes, the i largest values are outliers, so two slow ranks do not hide each other.

use model::stats::student_quantile;

/// Marks the ranks whose value is too large for chance: if all values were normally distributed, a clean rank would
/// pass at most once in a thousand tests.
///
/// Each run has one test per rank, of a median over several steps. Eight clean ranks therefore give a false outlier in
/// less than one of a hundred runs, before any other condition.
///
/// With fewer than three values the spread is unknown, and no value is an outlier. Less than half of the ranks can be outliers, or
/// `slow` ranks, if these are more than half.
pub(super) fn upper_outliers(values: &[Option<f64>], slow: usize) -> Vec<bool> {
    let mut sorted: Vec<(f64, usize)> = values.iter().enumerate().filter_map(|(i, v)| Some(((*v)?, i))).collect();
    sorted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let n = sorted.len();
    let most = if slow > n / 2 { slow.min(n.saturating_sub(2)) } else { n.saturating_sub(1) / 2 };
    let rough = rough_distances(&sorted, most);
    let passes = |&i: &usize| {
        let rest = &sorted[i..];
        // The exact sums take time, and most candidates are far from the limit.
        if rough[i - 1] < 0.99 * critical(rest.len() - 1) {
            return false;
        }
        studentized(sorted[i - 1].0, rest.iter().map(|v| v.0)).is_some_and(|t| t > critical(rest.len() - 1))
    };
    let outliers = (1..=most).rev().find(passes).unwrap_or(0);
    let mut is_outlier = vec![false; values.len()];
    for &(_, i) in &sorted[..outliers] {
        is_outlier[i] = true;
    }
    is_outlier
}

/// About the distance of each of the first `most` values above the mean of the smaller ones, in standard errors, in one
/// pass (Welford). `sorted` descends.
fn rough_distances(sorted: &[(f64, usize)], most: usize) -> Vec<f64> {
    let mut distances = vec![f64::INFINITY; most];
    let (mut n, mut mean, mut squares) = (0.0_f64, 0.0_f64, 0.0_f64);
    for at in (0..sorted.len()).rev() {
        let from_mean = sorted[at].0 - mean;
        let error = (squares / (n - 1.0) * (1.0 + 1.0 / n)).sqrt();
        if let Some(distance) = distances.get_mut(at).filter(|_| n >= 2.0) {
            *distance = match error > 1e-6 * from_mean {
                true => from_mean / error,
                // Many ranks may have one value, such as none of a range that only others have.
                false if from_mean <= 0.0 => 0.0,
                false => f64::INFINITY,
            };
        }
        n += 1.0;
        mean += from_mean / n;
        squares += from_mean * (sorted[at].0 - mean);
    }
    distances
}

/// Whether the mean of `differences` between two ranks is above 0, with the same confidence as in [`upper_outliers`].
pub(super) fn is_positive(differences: &[f64]) -> bool {
    let n = differences.len();
    let Some((mean, sigma)) = mean_and_sigma(differences.iter().copied()) else { return false };
    mean > 0.0 && mean > critical(n - 1) * sigma / (n as f64).sqrt()
}

/// The distance of `value` above the mean of `rest`, in standard errors; `None` if `rest` has fewer than two values.
fn studentized(value: f64, rest: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let n = rest.clone().count() as f64;
    let (mean, sigma) = mean_and_sigma(rest)?;
    let error = sigma * (1.0 + 1.0 / n).sqrt();
    let above = value - mean;
    Some(if error > 0.0 {
        above / error
    } else if above > 0.0 {
        f64::INFINITY
    } else {
        0.0
    })
}

fn mean_and_sigma(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let n = values.clone().count() as f64;
    if n < 2.0 {
        return None;
    }
    let mean = values.clone().sum::<f64>() / n;
    let squares: f64 = values.map(|v| (v - mean).powi(2)).sum();
    Some((mean, (squares / (n - 1.0)).sqrt()))
}

/// The 99.9th percentile of Student's t with `freedom` degrees of freedom, but at most 30.
///
/// With one degree of freedom it is 318, which only a hundredfold difference would exceed. So three ranks are tested
/// against 30, the 99th percentile.
fn critical(freedom: usize) -> f64 {
    student_quantile(1e-3, freedom as f64).min(30.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn positions(values: &[f64]) -> Vec<usize> {
        let values: Vec<Option<f64>> = values.iter().copied().map(Some).collect();
        (0..values.len()).filter(|&i| upper_outliers(&values, 0)[i]).collect()
    }

    #[test]
    fn two_slow_ranks_do_not_hide_each_other() {
        let noise = [0.3, -0.1, 0.0, 0.2, -0.3, 0.1];
        assert_eq!(positions(&noise), [] as [usize; 0]);
        assert_eq!(positions(&[&noise[..], &[9.0]].concat()), [6]);
        assert_eq!(positions(&[&[9.0], &noise[..], &[8.0]].concat()), [0, 7]);
        assert_eq!(positions(&[&noise[..], &[-9.0]].concat()), [] as [usize; 0], "a fast rank is no straggler");
        let most = [0.1, 9.0, 9.1, -0.1, 9.2, 8.9, 9.0].map(Some);
        assert!(!upper_outliers(&most, 0).contains(&true));
        assert_eq!(upper_outliers(&most, 5), [false, true, true, false, true, true, true]);
    }

    /// The exact sums of all candidates would take 10¹⁰ additions.
    #[test]
    fn many_ranks_take_little_time() {
        let mut values: Vec<Option<f64>> = (0..200_000).map(|rank| Some(f64::from(rank))).collect();
        assert!(!upper_outliers(&values, 0).contains(&true));
        values[7] = Some(1e9);
        assert_eq!(upper_outliers(&values, 0).iter().position(|is_outlier| *is_outlier), Some(7));
        values[8..].fill(Some(100.0));
        let equal = upper_outliers(&values, 0);
        assert_eq!((equal[7], equal.iter().filter(|is_outlier| **is_outlier).count()), (true, 1));
    }

    proptest! {
        #[test]
        fn rough_distances_are_near_the_exact_ones(values in prop::collection::vec(-1e6..1e9_f64, 5..40)) {
            let mut sorted: Vec<(f64, usize)> = values.into_iter().map(|value| (value, 0)).collect();
            sorted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            for (at, rough) in rough_distances(&sorted, (sorted.len() - 1) / 2).into_iter().enumerate() {
                let exact = studentized(sorted[at].0, sorted[at + 1..].iter().map(|v| v.0)).unwrap();
                prop_assert!(rough == f64::INFINITY || (rough - exact).abs() <= 1e-3 * exact.abs() + 1e-6);
            }
        }
    }

    #[test]
    fn few_ranks_need_a_large_difference() {
        assert_eq!(positions(&[0.0, 1.0, 5.0]), [] as [usize; 0]);
        assert_eq!(positions(&[0.0, 1.0, 50.0]), [2]);
        assert_eq!(positions(&[0.0, 50.0]), [] as [usize; 0]);
        assert_eq!(positions(&[3.0, 3.0, 3.1]), [2], "the other values do not vary");
        assert_eq!(upper_outliers(&[Some(0.0), None, Some(1.0), Some(50.0)], 0), [false, false, false, true]);
        assert!(is_positive(&[30.0, 31.0, 29.0]) && !is_positive(&[3.0, -1.0, 4.0]) && !is_positive(&[3.0]));
    }

    /// The expected values are from a table of Student's t, for 30, 60 and 120 degrees of freedom.
    #[test]
    fn critical_values_beyond_the_table_are_accurate() {
        for (freedom, t) in [(30, 3.385), (60, 3.232), (120, 3.160)] {
            assert!((critical(freedom) - t).abs() < 0.003, "{freedom}: {}", critical(freedom));
        }
    }
}
