//! Thresholds between normal variation and a straggler verdict.

use serde::{Deserialize, Serialize};

/// The limits between `ok`, `undecided`, `victim` and `cause`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Minimum number of steps for a cause, because a median of two values is not robust.
    pub min_steps: usize,
    /// Smallest effect, in percent of the median step. Without this limit, a few microseconds on a quiet machine make a
    /// rank a cause: certain, but irrelevant.
    pub min_effect_pct: f64,
    /// Smallest effect, in multiples of the timing error.
    pub min_effect_errors: f64,
    /// Smallest delay of a step, in percent of the median step. A rank that costs less is no cause, however certain its
    /// excess is.
    pub min_delay_pct: f64,
    /// Error of a duration taken from one host clock: the resolution of a Kineto trace.
    pub host_error_ns: i64,
    /// Error of a duration from a host row to a device row: the error of CUPTI's conversion of device times.
    pub device_error_ns: i64,
    /// A collective that begins at most this long after the previous one of its communicator waited in the queue of the
    /// communicator: the time between two kernels of one stream.
    pub max_queue_gap_ns: i64,
    /// Smallest distance from the other ranks, in standard errors.
    pub min_z: f64,
    /// Smallest share of steps that show at least half the effect.
    pub min_persistence: f64,
    /// Smallest distance of a host range's excess, in standard errors, if the verdict is based on the range and not on
    /// the whole stretch. Higher than [`min_z`](Self::min_z), because the range is the maximum of many.
    pub min_range_z: f64,
    /// Largest probability that a normal rank shows half the effect in as many steps, given how often the other ranks
    /// show it.
    pub max_chance: f64,
    /// Assumed minimum variation of a range's self time between steps, in percent of it. With few steps and ranks, the
    /// measured variation may be small by chance.
    pub range_noise_pct: f64,
    /// Host ranges kept for each rank; further ranges are counted.
    pub max_ranges: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            min_steps: 3,
            min_effect_pct: 2.0,
            min_effect_errors: 3.0,
            min_delay_pct: 1.0,
            host_error_ns: 1_000,
            device_error_ns: 30_000,
            max_queue_gap_ns: 20_000,
            min_z: 4.0,
            min_persistence: 0.8,
            min_range_z: 8.0,
            max_chance: 5e-4,
            range_noise_pct: 40.0,
            max_ranges: 400,
        }
    }
}
