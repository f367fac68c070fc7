//! The deviation of one rank from the others, in a quantity that each rank has once per step.
//!
//! Ranks differ for two reasons even if none of them is slow. First, steps vary. This variation averages out over
//! steps, and the *standard error* of a median is the remainder. Second, ranks vary: on an oversubscribed machine the
//! scheduler favours some ranks for seconds, which does not average out. The medians of the other ranks show this
//! variation, and a rank is an *outlier* if its own median stands out from them.

use crate::base::stats::{MEDIAN_SE_PER_MEAN_SE, at_least, median, robust_sigma};
use crate::judge::stragglers::outliers::{is_positive, upper_outliers};

/// The distance of one rank from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Deviation {
    /// The rank's median over steps, minus the median of all steps of the other ranks.
    pub(super) effect_ns: f64,
    /// Standard deviation of a single step of the other ranks.
    pub(super) sigma_ns: f64,
    /// Standard deviation of the rank's own steps.
    pub(super) own_sigma_ns: f64,
    /// Standard error of a median over the same number of steps, if steps are independent.
    pub(super) error_ns: f64,
    /// The largest distance of another rank's median from the median of all other ranks; 0 with one other rank.
    pub(super) spread_ns: f64,
    /// Whether the rank's median stands out from the medians of the other ranks.
    pub(super) outlier: bool,
    /// The share of steps that show more than half of the effect; 0 without an effect.
    pub(super) persistence: f64,
    /// The probability that a rank like the others shows half of the effect in as many steps. Unlike the medians and
    /// deviations above, this includes single slow steps of other ranks, as preemption makes them.
    pub(super) chance: f64,
    /// The number of the rank's steps.
    pub(super) steps: usize,
}

impl Deviation {
    /// The effect in standard errors; `None` if the standard error is 0.
    pub(super) fn z(&self) -> Option<f64> {
        (self.error_ns > 0.0).then(|| self.effect_ns / self.error_ns)
    }

    /// Whether the effect is at least `min_z` standard errors. If the standard error is 0, any positive effect is.
    pub(super) fn exceeds_error(&self, min_z: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_z * self.error_ns
    }

    /// Whether the effect is at least `min_z` standard deviations of a single step. This is the stricter test for steps
    /// that vary together: then averaging over steps does not reduce the error.
    pub(super) fn exceeds_sigma(&self, min_z: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_z * self.sigma_ns.max(self.own_sigma_ns)
    }

    /// Returns this deviation with a standard deviation of at least `sigma_ns`, and the standard error that follows
    /// from it.
    pub(super) fn with_least_sigma(mut self, sigma_ns: f64) -> Self {
        self.sigma_ns = self.sigma_ns.max(sigma_ns);
        self.error_ns = standard_error(self.sigma_ns, self.steps);
        self
    }
}

/// The deviation of each rank in `series`, which holds the values of each rank's steps. The result is `None` for a rank
/// without values, and for all ranks if only one rank has values.
///
/// If exactly two ranks have values, `series` must hold the signed differences between them. Then the variation comes
/// from the rank's own steps, because the other rank's series holds the same numbers with the other sign.
pub(super) fn deviations(series: &[Vec<f64>]) -> Vec<Option<Deviation>> {
    let medians: Vec<Option<f64>> = series.iter().map(|v| median(v.iter().copied())).collect();
    let compared = medians.iter().flatten().count();
    let outliers = upper_outliers(&medians);
    let deviation_of = |rank: usize| {
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
                // The excess is the distance from the lower median of the ranks. Of three ranks, that is one of the two
                // others, whose excess is then 0 in every step. So the variation is taken from the late rank's own
                // steps.
                let least_ns = if compared == 3 { deviation.own_sigma_ns } else { 0.0 };
                Some(Deviation { spread_ns, outlier: outliers[rank], ..deviation.with_least_sigma(least_ns) })
            }
        }
    };
    (0..series.len()).map(deviation_of).collect()
}

/// The deviation of `own` from other steps, which have the median `center` and the standard deviation `sigma`.
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
    // Jeffreys' estimate of a share: it is above 0 even if no step of another rank shows the effect.
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
