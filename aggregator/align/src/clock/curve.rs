//! Estimates that follow the bend of a clock from burst to burst.
//!
//! ```text
//! distance │      ,●---●,
//! from the │   ,●´       `●,                 ● median of a few bursts
//! line     │ ●´─────────────`●───────        - curve
//!          │                   `●---●
//!          └──────────────────────────── time
//! ```
//!
//! The error between two knots is not visible. It follows from the errors that are: each knot is compared with the curve
//! without it, and with the curve without it and its neighbours. If a smooth bend makes both, leaving out knots makes the error
//! grow by a factor, and adding knots would make it shrink by the same factor (Richardson's extrapolation). If scatter makes
//! both, they are equal, and so is the error of a knot. A clock may also turn at once, as by a correction of NTP. Then few knots
//! have a larger error than the others, and it does not shrink.

use model::stats::median_in_place;

/// Knots at most: each is a row of `clock_fit` for each clock.
const KNOTS_MAX: usize = 32;
/// Knots at least.
const KNOTS_MIN: usize = 5;
/// A curve is used if its error is below this share of the error of the line.
const BETTER: f64 = 0.33;
/// Least factor between the error that is visible and the one between knots: halving the distance of knots divides the arc of
/// a parabola by four. The rest is a margin, calibrated with drifts that swing as a sine in 10 s to 200 s.
const SMOOTH: f64 = 0.4;

/// Distances from a line, linear between knots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Time and distance, by ascending time.
    knots: Vec<(f64, f64)>,
}

impl Curve {
    /// The curve through samples (time, distance from the line) that ascend, and 95 % of its error between the first and the last
    /// one, which is at least `least_ns`. `None` if it is not much better than the line, whose error is `line_ns`.
    pub(crate) fn through(samples: &[(f64, f64)], line_ns: f64, least_ns: f64) -> Option<(Self, f64)> {
        let (n, count) = (samples.len(), samples.len().min(KNOTS_MAX));
        let knots: Vec<(f64, f64)> =
            (0..count).filter_map(|k| middle(&samples[k * n / count..(k + 1) * n / count])).collect();
        if knots.len() < KNOTS_MIN || knots.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return None;
        }
        let (near_ns, most_ns) = without(&knots, 1)?;
        let (_, far_ns) = without(&knots, 2)?;
        let curve = Self { knots };
        // A few bursts make a knot; they scatter around it.
        let scatter_ns = samples.iter().map(|(t, ns)| (ns - curve.at(*t)).abs()).fold(0.0, f64::max);
        let factor = if far_ns > 0.0 { (most_ns / far_ns).clamp(SMOOTH, 1.0) } else { 1.0 };
        let error_ns = (most_ns - near_ns + near_ns * factor).max(scatter_ns).max(least_ns);
        (error_ns < BETTER * line_ns).then_some((curve, error_ns))
    }

    /// The distance from the line.
    pub(crate) fn at(&self, t: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= t);
        match (after.checked_sub(1).and_then(|at| self.knots.get(at)), self.knots.get(after)) {
            (Some(a), Some(b)) => between(*a, *b, t),
            (Some(end), None) | (None, Some(end)) => end.1,
            (None, None) => 0.0,
        }
    }

    /// The times of the knots.
    pub(crate) fn times(&self) -> impl Iterator<Item = f64> {
        self.knots.iter().map(|knot| knot.0)
    }

    /// The largest drift against the line.
    pub(crate) fn steepest(&self) -> f64 {
        let drifts = self.knots.windows(2).map(|pair| ((pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0)).abs());
        drifts.fold(0.0, f64::max)
    }
}

/// The median time and distance of some samples.
fn middle(samples: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut times: Vec<f64> = samples.iter().map(|sample| sample.0).collect();
    let mut distances: Vec<f64> = samples.iter().map(|sample| sample.1).collect();
    Some((median_in_place(&mut times)?, median_in_place(&mut distances)?))
}

/// The median and the largest distance of a knot from the line between the knots that are `apart` places before and after it.
fn without(knots: &[(f64, f64)], apart: usize) -> Option<(f64, f64)> {
    let rows = knots.windows(2 * apart + 1);
    let distance = |row: &[(f64, f64)]| (row[apart].1 - between(row[0], row[2 * apart], row[apart].0)).abs();
    let mut distances: Vec<f64> = rows.map(distance).collect();
    Some((median_in_place(&mut distances)?, distances.iter().copied().fold(0.0, f64::max)))
}

/// The line through two knots.
fn between(a: (f64, f64), b: (f64, f64), t: f64) -> f64 {
    a.1 + (b.1 - a.1) * (t - a.0) / (b.0 - a.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: usize, of: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..count).map(|k| k as f64 / (count - 1) as f64).map(|t| (t, of(t))).collect()
    }

    #[test]
    fn a_bend_is_followed() {
        let swing = |t: f64| 50_000.0 * (std::f64::consts::TAU * t).cos();
        let (curve, error) = Curve::through(&samples(21, swing), 60_000.0, 100.0).unwrap();
        let off = (0..=1000).map(|k| f64::from(k) / 1e3).map(|t| (curve.at(t) - swing(t)).abs()).fold(0.0, f64::max);
        assert!(off <= error && error < 3.0 * off, "{off} {error}");
        assert_eq!((curve.at(-1.0), curve.at(2.0)), (50_000.0, 50_000.0));
    }

    // distance ───┐
    //              `-,      the clock turns between two bursts
    #[test]
    fn a_turn_at_once_is_inside_the_error() {
        for turn in [0.5, 0.51, 0.525, 0.54, 0.55] {
            let turned = |t: f64| -100_000.0 * (t - turn).max(0.0);
            let (curve, error) = Curve::through(&samples(21, turned), 20_000.0, 10.0).unwrap();
            assert!((curve.at(turn) - turned(turn)).abs() <= error + 1e-6 && error < 3_000.0, "{turn}: {error}");
        }
    }

    #[test]
    fn scatter_is_no_bend() {
        let scatter = [1000.0, -1000.0, 300.0, -400.0, 100.0, -200.0, 900.0];
        let samples: Vec<(f64, f64)> = (0..20).map(|k| (k as f64, scatter[k % 7])).collect();
        assert_eq!(Curve::through(&samples, 1_500.0, 100.0), None);
    }

    #[test]
    fn few_bursts_make_no_curve() {
        assert_eq!(Curve::through(&samples(4, |t| t * t), 1.0, 0.0), None);
        assert_eq!(Curve::through(&[(3.0, 1.0); 9], 1e9, 0.0), None);
    }
}
