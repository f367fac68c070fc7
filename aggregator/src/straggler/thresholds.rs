//! When lateness is a verdict.

/// The limits between `ok`, `undecided`, `victim` and `cause`.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// Steps below which no rank is called a cause: a median of two is not robust.
    pub min_steps: usize,
    /// Smallest effect, as a share of the median step, in percent. Without it a rank of a quiet machine becomes a cause
    /// for a few microseconds that are as certain as they are irrelevant.
    pub min_effect_pct: f64,
    /// Smallest effect in timing errors.
    pub min_effect_errors: f64,
    /// Error of a duration taken from one host clock: the resolution of a Kineto trace.
    pub host_error_ns: i64,
    /// Error of a duration from a host row to a device row: CUPTI converts device times with about this error.
    pub device_error_ns: i64,
    /// Smallest distance from the other ranks in standard errors.
    pub min_z: f64,
    /// Smallest share of steps that show at least half of the effect.
    pub min_persistence: f64,
    /// Smallest distance of a host range's excess in standard errors, where the range and not the whole stretch makes
    /// the case. Higher than [`min_z`](Self::min_z), because the range is the best of many.
    pub min_range_z: f64,
    /// Largest probability that a rank like the others shows half of the effect in as many steps, by how often they do.
    pub max_chance: f64,
    /// How much a range's self time is taken to vary from step to step at least, in percent of it. With few steps and
    /// ranks the measured variation may be small by chance.
    pub range_noise_pct: f64,
    /// Host ranges kept for each rank; the rest is counted.
    pub max_ranges: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            min_steps: 3,
            min_effect_pct: 2.0,
            min_effect_errors: 3.0,
            host_error_ns: 1_000,
            device_error_ns: 30_000,
            min_z: 4.0,
            min_persistence: 0.8,
            min_range_z: 8.0,
            max_chance: 5e-4,
            range_noise_pct: 40.0,
            max_ranges: 400,
        }
    }
}
