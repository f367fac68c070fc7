//! How far one rank stands from the others in a quantity that each has once a step.
//!
//! Two things make ranks differ without any of them being slow. Steps vary: that averages away over steps, and the *standard
//! error* of a median tells how much is left. And ranks vary: on an oversubscribed machine the scheduler favours some for
//! seconds, which no number of steps averages away. That shows as the *spread* of the other ranks' medians. A rank stands out
//! if it does so against both.

use super::stats::{MEDIAN_SE_PER_MEAN_SE, median, robust_sigma};

/// The distance of one rank from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Deviation {
    /// Median over steps, less the median of all others' steps.
    pub(super) effect_ns: f64,
    /// Standard error of a median over as many steps.
    pub(super) error_ns: f64,
    /// Largest distance of another rank's median from that of all others; 0 with one other rank.
    pub(super) spread_ns: f64,
    /// Share of steps that show at least half of the effect; 0 without an effect.
    pub(super) persistence: f64,
    /// Steps.
    pub(super) steps: usize,
}

impl Deviation {
    /// The effect in standard errors; `None` where nothing varies.
    pub(super) fn z(&self) -> Option<f64> {
        (self.error_ns > 0.0).then(|| self.effect_ns / self.error_ns)
    }

    /// Whether the effect is at least `min_z` standard errors; where nothing varies, any effect is.
    pub(super) fn exceeds_error(&self, min_z: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_z * self.error_ns
    }

    /// Whether the effect is at least `min_spread` times as large as the differences among the other ranks.
    pub(super) fn exceeds_spread(&self, min_spread: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_spread * self.spread_ns
    }

    /// The same with an error of at least what steps of standard deviation `sigma_ns` have.
    pub(super) fn with_least_sigma(mut self, sigma_ns: f64) -> Self {
        self.error_ns = self.error_ns.max(standard_error(sigma_ns, self.steps));
        self
    }
}

/// The deviation of rank `rank` in `series`, the values of each rank's steps. `None` where it or all others have no value.
///
/// With one other rank, `series` must hold signed differences to it: then only the steps of `rank` itself tell how much they
/// vary, and the other's median says nothing new.
pub(super) fn deviation(series: &[Vec<f64>], rank: usize) -> Option<Deviation> {
    let own = &series[rank];
    let others = || series.iter().enumerate().filter(|(r, v)| *r != rank && !v.is_empty()).map(|(_, v)| v);
    let own_median = median(own.iter().copied())?;
    let (center, sigma, spread_ns) = if others().count() == 1 {
        (0.0, robust_sigma(own.iter().copied(), own_median)?, 0.0)
    } else {
        let pool = || others().flatten().copied();
        let center = median(pool())?;
        let medians = others().filter_map(|v| median(v.iter().copied()));
        (center, robust_sigma(pool(), center)?, medians.map(|m| (m - center).abs()).fold(0.0, f64::max))
    };
    let effect_ns = own_median - center;
    let over = own.iter().filter(|&&v| v > center + effect_ns / 2.0).count();
    Some(Deviation {
        effect_ns,
        error_ns: standard_error(sigma, own.len()),
        spread_ns,
        persistence: if effect_ns > 0.0 { over as f64 / own.len() as f64 } else { 0.0 },
        steps: own.len(),
    })
}

fn standard_error(sigma: f64, steps: usize) -> f64 {
    MEDIAN_SE_PER_MEAN_SE * sigma / (steps as f64).sqrt()
}
