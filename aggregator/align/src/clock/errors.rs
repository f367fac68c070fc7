//! Errors of several fits in a row.

use model::stats::student_quantile;

/// The degrees of freedom of the error of a fit with the fewest bursts that show a bend.
const ERROR_FREEDOM: f64 = 4.0;

/// 95 % of the sum of independent errors: their squares add up. Each holds a margin because few samples tell its variance; those
/// of several errors tell more (Satterthwaite). 1 ns per error is for rounding, and later maps stretch an earlier error by their
/// drift, which is below one part in a thousand.
pub(super) fn independent(errors: &[i64]) -> i64 {
    let stretched = |error: &i64| error.saturating_add(error / 1_000 + 1) as f64;
    let squares: Vec<f64> = errors.iter().filter(|error| **error != 0).map(|error| stretched(error).powi(2)).collect();
    let sum: f64 = squares.iter().sum();
    if squares.len() < 2 {
        return sum.sqrt().ceil() as i64;
    }
    let freedom = ERROR_FREEDOM * sum * sum / squares.iter().map(|square| square * square).sum::<f64>();
    let quantile = |freedom: f64| student_quantile(0.025, freedom);
    (sum.sqrt() * quantile(freedom) / quantile(ERROR_FREEDOM)).ceil() as i64
}

/// Adds up the errors along a path, with 1 ns per joint for rounding. The sum is unknown if any error is.
pub(super) fn along(errors: impl Iterator<Item = Option<i64>>) -> Option<i64> {
    let mut sum: i64 = 0;
    for error in errors {
        let error = error?;
        // Later maps stretch an earlier error by their drift, which is below one part in a thousand.
        let stretched = if error == 0 { 0 } else { error.saturating_add(error / 1_000 + 1) };
        sum = sum.saturating_add(stretched);
    }
    Some(sum)
}
