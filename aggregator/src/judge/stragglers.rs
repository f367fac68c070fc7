//! Finds the rank that makes the others wait (the cause), the ranks that only wait (the victims), how certain that is,
//! and the place in the program.
//!
//! "Arrived last" is not a verdict: a rank may be late because another rank delayed it. The verdict uses a rank's *own*
//! time between collectives. Ranks leave a collective together, and until the next collective each rank works on its
//! own.
//!
//! ```text
//!            step begins                                    step begins
//!   rank 0   |##########[~~~~~~~~AAA]####[BBB]##optimizer##|####...        # own stretch
//!   rank 1   |##################[AAA]####[BBB]##optimizer##|####...        [ ] collective
//!            |<---- own before A --->|   |<->| own before B                ~ waiting for the last
//! ```
//!
//! Here rank 1 is the cause: its own stretch before `A` is longer. Rank 0 is the victim: it waits inside `A`.
//!
//! Computation that overlaps a collective is own time too. The other ranks do such work while they wait for a late
//! rank, and without counting it, a rank that is late once would seem late at every later collective of the step.
//!
//! The work is a map and a reduction. [`own_time`](crate::measure::own_time) turns the rows of one rank into a small
//! [`OwnTime`](crate::measure::own_time::OwnTime); [`reduce`] takes the parts of all ranks and the matched collectives. Own
//! stretches are measured in the rank's own clock, so clock alignment does not affect a verdict. It affects only the waits and the
//! costs.

mod charge;
mod classify;
mod deviation;
mod evidence;
mod excess;
mod families;
mod faultless;
mod job_path;
mod join;
mod kin;
mod last;
mod measured;
mod messages;
mod nodes;
mod occasional;
mod order;
mod outliers;
mod per_step;
mod rebucket;
mod reduce;
mod replay;
mod replayed;
mod rows;
mod shares;
mod stages;
mod standing;
mod transfers;
mod usual;
mod variation;

use trace::{JobPathRow, OmissionRow, PipelineRow, StragglerRow, StragglerStepRow, WaitRow};

pub(crate) use job_path::critical_path_of_job;
pub use occasional::{Moving, Period};
pub(crate) use rebucket::{Bound, Gradients};
pub use reduce::reduce;
pub(crate) use reduce::reduce_replayed;
pub(crate) use replayed::{CommChoice, Different, Replayed};
pub(crate) use standing::differ;

/// Maps a time of a rank (in its host or, if the flag is set, its device clock) to global time.
pub type ToGlobal<'a> = &'a dyn Fn(i32, bool, i64) -> i64;

/// The error of global times of a rank's host or, if the flag is set, device clock, at 95 %; `None` if it is unknown.
pub type ClockError<'a> = &'a dyn Fn(i32, bool) -> Option<i64>;

/// By how much a step would be shorter without all causes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// Per step.
    pub ns: i64,
    /// The 95 % interval; `None` if that of a cause is unknown.
    pub interval_ns: Option<(i64, i64)>,
}

/// The collective in which a rank waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Its position among the collectives of the rank.
    pub collective: u32,
    /// Whether all its ranks wait for each other.
    pub symmetric: bool,
    /// Whether every expected rank took part, and has left it.
    pub complete: bool,
}

/// The result of the reduction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stragglers {
    /// One row for each rank, ascending.
    pub stragglers: Vec<StragglerRow>,
    /// One row for each rank and compared step, in that order.
    pub steps: Vec<StragglerStepRow>,
    /// One row for each instance and rank, in that order.
    pub waits: Vec<WaitRow>,
    /// The collective of each of `waits`.
    pub waited: Vec<Waited>,
    /// The critical path of the job, by time.
    pub job_path: Vec<JobPathRow>,
    /// The bubbles of a pipeline.
    pub pipeline: Vec<PipelineRow>,
    /// The sum of all waits. The charges add up to it exactly: `waited_ns` = Σ `charged_ns` + `before_recording_ns`.
    pub waited_ns: i64,
    /// Waits charged to each rank, in the order of `stragglers`. Divided by the steps, this is `caused_wait_ns`.
    pub charged_ns: Vec<i64>,
    /// Waits for ranks that were already late at the first recorded collective.
    pub before_recording_ns: i64,
    /// By how much a step would be shorter without all causes; `None` if there are not several.
    pub together: Option<Together>,
    /// A delay that moves from rank to rank.
    pub moving: Option<Moving>,
    /// The ranks that show the typical work, ascending, if most of the ranks that do the same work as these are slow; else none.
    pub usual: Vec<i32>,
    /// Steps and collectives that could not be used, with the reason.
    pub omissions: Vec<OmissionRow>,
}

#[cfg(test)]
mod tests;
