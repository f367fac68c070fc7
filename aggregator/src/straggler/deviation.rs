//! How far one rank stands from the others in a quantity that each has once a step.
//!
//! Two things make ranks differ without any of them being slow. Steps vary: that averages away over steps, and the
//! *standard error* of a median tells how much is left. And ranks vary: on an oversubscribed machine the scheduler
//! favours some for seconds, which no number of steps averages away. That shows in the other ranks' medians, and a rank
//! is an *outlier* if its own median stands out from them.

use super::outliers::{is_positive, upper_outliers};
use super::stats::{MEDIAN_SE_PER_MEAN_SE, at_least, median, robust_sigma};

/// The distance of one rank from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Deviation {
    /// Median over steps, less the median of all others' steps.
    pub(super) effect_ns: f64,
    /// Standard deviation of a single step of the other ranks.
    pub(super) sigma_ns: f64,
    /// Standard deviation of the rank's own steps.
    pub(super) own_sigma_ns: f64,
    /// Standard error of a median over as many steps, if they are independent.
    pub(super) error_ns: f64,
    /// Largest distance of another rank's median from that of all others; 0 with one other rank.
    pub(super) spread_ns: f64,
    /// The rank's median stands out from how the other ranks' medians differ.
    pub(super) outlier: bool,
    /// Share of steps that show at least half of the effect; 0 without an effect.
    pub(super) persistence: f64,
    /// Probability that a rank like the others shows half of the effect in as many steps. Where single steps of other
    /// ranks show it now and then (preemption), the medians and deviations above do not see that, but this does.
    pub(super) chance: f64,
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

    /// Whether the effect is at least `min_z` standard errors even if all steps vary together, be it the rank's or the
    /// others'.
    pub(super) fn exceeds_sigma(&self, min_z: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_z * self.sigma_ns.max(self.own_sigma_ns)
    }

    /// The same with a standard deviation of at least `sigma_ns`.
    pub(super) fn with_least_sigma(mut self, sigma_ns: f64) -> Self {
        self.sigma_ns = self.sigma_ns.max(sigma_ns);
        self.error_ns = standard_error(self.sigma_ns, self.steps);
        self
    }
}

/// The deviation of each rank in `series`, the values of each rank's steps. `None` for a rank that has no value, and
/// for all if only one has.
///
/// If only two have, `series` must hold signed differences to the other: then only the steps of a rank itself tell how
/// much they vary, and the other's median says nothing new.
pub(super) fn deviations(series: &[Vec<f64>]) -> Vec<Option<Deviation>> {
    let medians: Vec<Option<f64>> = series.iter().map(|v| median(v.iter().copied())).collect();
    let compared = medians.iter().flatten().count();
    let outliers = upper_outliers(&medians);
    let of_rank = |rank: usize| {
        let own = &series[rank];
        let own_median = medians[rank]?;
        match compared {
            0 | 1 => None,
            2 => {
                let deviation = against(own, own_median, 0.0, 0.0, own.iter().map(|d| -d));
                Some(Deviation { outlier: is_positive(own), ..deviation.with_least_sigma(deviation.own_sigma_ns) })
            }
            _ => {
                let others = || series.iter().enumerate().filter(|(r, _)| *r != rank).flat_map(|(_, v)| v).copied();
                let center = median(others())?;
                let sigma = robust_sigma(others(), center)?;
                let other_medians = medians.iter().enumerate().filter(|(r, _)| *r != rank).filter_map(|(_, m)| *m);
                let spread_ns = other_medians.map(|m| (m - center).abs()).fold(0.0, f64::max);
                let deviation = against(own, own_median, center, sigma, others());
                // The lower median of three that a late rank is compared with is one of the other two, so the excess of
                // one of these is 0 in every step; the late rank's own steps must tell how much steps vary.
                let least_ns = if compared == 3 { deviation.own_sigma_ns } else { 0.0 };
                Some(Deviation { spread_ns, outlier: outliers[rank], ..deviation.with_least_sigma(least_ns) })
            }
        }
    };
    (0..series.len()).map(of_rank).collect()
}

fn against(
    own: &[f64],
    own_median: f64,
    center: f64,
    sigma: f64,
    others: impl Iterator<Item = f64> + Clone,
) -> Deviation {
    let effect_ns = own_median - center;
    let shows = |v: f64| v > center + effect_ns / 2.0;
    let over = own.iter().filter(|&&v| shows(v)).count();
    // Jeffreys' estimate of a share, which is above 0 even if no other step shows it.
    let usual = (others.clone().filter(|&v| shows(v)).count() as f64 + 0.5) / (others.count() as f64 + 1.0);
    Deviation {
        effect_ns,
        sigma_ns: sigma,
        error_ns: standard_error(sigma, own.len()),
        persistence: if effect_ns > 0.0 { over as f64 / own.len() as f64 } else { 0.0 },
        chance: if effect_ns > 0.0 { at_least(over, own.len(), usual) } else { 1.0 },
        own_sigma_ns: robust_sigma(own.iter().copied(), own_median).unwrap_or(0.0),
        steps: own.len(),
        ..Deviation::default()
    }
}

fn standard_error(sigma: f64, steps: usize) -> f64 {
    MEDIAN_SE_PER_MEAN_SE * sigma / (steps as f64).sqrt()
}
