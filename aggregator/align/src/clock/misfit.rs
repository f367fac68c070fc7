//! How far a fitted line may lie from the true offset, by the distances of its samples.
//!
//! Samples scatter around the true offset, and their mean is more accurate than one of them. So the samples are taken together in a
//! few blocks of time. What remains in the medians of the blocks is the error of the line: scatter that has not averaged out,
//! and the bend of the clock, which no line follows.
//!
//! ```text
//! distance │   ·  ·       ·    ·  ·      ·   ·
//!          │ ·  ──── · ·  · ───── ·  · · ·     ·     medians of blocks
//!          │─·──·────·──────·──·─────·─────────────  line
//!          │  ·    · ────  ·   ·    ·  ── · ·
//!          └───────────────────────────────── time
//! ```
//!
//! An error that all samples share does not show here.

use model::stats::{MEDIAN_SE_PER_MEAN_SE, SIGMA_PER_MAD, median_in_place};

/// Blocks of time. Scatter averages out in few long blocks, and a clock that swings once in half the time is seen in eight.
const BLOCKS: usize = 8;
/// Share by which a bent clock is farther from the line between the middles of the blocks. Calibrated with drifts that swing as a
/// sine once in half the time to twice the time: it covers 95 %.
const BETWEEN_BLOCKS: f64 = 0.4;
/// A median this many standard errors from the line is scatter; this many more, and it is a bend.
const SCATTER_SE: f64 = 2.0;
const BEND_SE: f64 = 3.0;

/// 95 % of the largest distance between the true offset and a line, from the time of the first sample to the last one's. `samples`
/// are (time, distance from the line). `None`: fewer than three samples.
pub(crate) fn of_line(mut samples: Vec<(f64, f64)>) -> Option<f64> {
    let n = samples.len();
    if n < 3 {
        return None;
    }
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = n.min(BLOCKS);
    let blocks: Vec<(f64, f64)> =
        (0..count).filter_map(|k| middle(&samples[k * n / count..(k + 1) * n / count])).collect();
    let ends = [(samples[0].0, &blocks[0], &blocks[1]), (samples[n - 1].0, &blocks[count - 1], &blocks[count - 2])];
    let at_ends = ends.map(|(t, last, before)| {
        let apart = last.0 - before.0;
        if apart == 0.0 { last.1 } else { last.1 + (last.1 - before.1) * (t - last.0) / apart }
    });
    let farthest = blocks.iter().map(|b| b.1).chain(at_ends).map(f64::abs).fold(0.0, f64::max);
    // The drift between two blocks may change as from block to block: the arc of a parabola above its chord.
    let turns = blocks.windows(3).map(|b| (b[2].1 - 2.0 * b[1].1 + b[0].1).abs());
    let arc = turns.fold(0.0, f64::max) / 8.0;
    // Differences of neighbours hold no bend.
    let mut steps: Vec<f64> = samples.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).collect();
    let sigma = SIGMA_PER_MAD * median_in_place(&mut steps)? / std::f64::consts::SQRT_2;
    let error = MEDIAN_SE_PER_MEAN_SE * sigma / (n as f64 / count as f64).sqrt();
    let bent = if error > 0.0 { ((farthest / error - SCATTER_SE) / BEND_SE).clamp(0.0, 1.0) } else { 1.0 };
    let few = 1.0 + 1.0 / n as f64;
    Some((farthest + arc) * (1.0 + BETWEEN_BLOCKS * bent) * few)
}

/// The mean time and the median distance of a block.
fn middle(block: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mean = block.iter().map(|sample| sample.0).sum::<f64>() / block.len().max(1) as f64;
    let mut distances: Vec<f64> = block.iter().map(|sample| sample.1).collect();
    Some((mean, median_in_place(&mut distances)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances that alternate around `bend`, which is given at times from 0 to 1.
    fn error(samples: usize, bend: impl Fn(f64) -> f64) -> f64 {
        let sample = |k: usize| {
            let t = k as f64 / (samples - 1) as f64;
            (t, bend(t) + [1000.0, -1000.0, 300.0, -400.0, 100.0, -200.0, 900.0][k % 7])
        };
        of_line((0..samples).map(sample).collect()).unwrap()
    }

    #[test]
    fn scatter_averages_out() {
        let (few, many) = (error(12, |_| 0.0), error(1200, |_| 0.0));
        assert!(few < 2_000.0 && many < 0.3 * few, "{few} {many}");
    }

    #[test]
    fn a_bend_does_not_average_out() {
        let swing = |t: f64| 50_000.0 * (std::f64::consts::TAU * 2.0 * t).cos();
        let found = error(400, swing);
        assert!((50_000.0..120_000.0).contains(&found), "{found}");
    }

    #[test]
    fn two_samples_show_no_error() {
        assert_eq!(of_line(vec![(0.0, 1.0), (1.0, -1.0)]), None);
        assert_eq!(of_line(vec![(5.0, 0.0); 3]), Some(0.0));
    }
}
