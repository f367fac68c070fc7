//! Who made the others wait, who only suffered, how sure that is, and where in the program it happened.
//!
//! "Arrived last" is not a verdict: a rank may be late because somebody made it late. What counts is a rank's *own*
//! time between collectives. A collective equalises the ranks: they leave together, and until the next one each is
//! alone.
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
//! Where computation goes on while a collective is on its way, that computation is own time too. Else a rank that is
//! late once would seem late at every later collective of the step, where the others arrive with work that they did
//! while they waited.
//!
//! The work is a map and a reduction. [`map_rank`] sees one rank's rows and leaves a small [`RankPart`]; [`reduce`]
//! sees the parts of all ranks and the matched collectives. Own stretches are measured in the rank's own clock, so no
//! verdict depends on how well the clocks are aligned; only waits and the blocking chain do.

mod chain;
mod charge;
mod deviation;
mod evidence;
mod excess;
mod join;
mod map;
mod outliers;
mod ranges;
mod reduce;
mod stats;
mod thresholds;
mod verdict;

use trace::{OmissionRow, StragglerRow, Text, WaitRow};

pub use map::map_rank;
pub use reduce::reduce;
pub(crate) use stats::{median, spoken_z};
pub use thresholds::Thresholds;

/// What the reduction needs of one rank. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankPart {
    /// Global rank.
    pub rank: i32,
    /// One for each row of [`RankData::collectives`](crate::model::RankData::collectives), in the same order.
    pub stretches: Vec<Stretch>,
    /// The rank's steps, ascending; those of warm-up are not here.
    pub steps: Vec<StepPart>,
    /// Host ranges by time inside the rank's own stretches, largest first; at most [`Thresholds::max_ranges`].
    pub ranges: Vec<RangePart>,
    /// Ranges beyond that limit.
    pub ranges_dropped: usize,
    /// The most that any of them held in one step: how wrong it is to take a range that is not here for absent.
    pub dropped_max_ns: i64,
    /// Whether the rank has rows of a device.
    pub has_device: bool,
}

/// The time that a rank had to itself before one of its collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// When the rank entered the collective before, or the start of the first step of the recording.
    pub since_ns: i64,
    /// The latest end of an earlier collective, or the start of the first step of the recording.
    pub from_ns: i64,
    /// The rank enters the collective.
    pub start_ns: i64,
    /// The rank leaves the collective; `None` while it is not done.
    pub end_ns: Option<i64>,
    /// From `since_ns` to `start_ns` without exposed communication: what the rank did by itself, be it after the
    /// collective before or while that was on its way. `None` where nothing says when it began.
    pub own_ns: Option<i64>,
    /// The collective whose end is `from_ns`, as position in the same list; `None` for a step's start.
    pub previous: Option<u32>,
    /// Step of the collective; `None` outside of active steps.
    pub step: Option<i32>,
}

/// One active step of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepPart {
    /// Step number.
    pub step: i32,
    /// Its length.
    pub dur_ns: i64,
    /// Time within the own stretches of its collectives in which a device of the rank worked.
    pub device_busy_ns: i64,
}

/// Self time of one host range inside own stretches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangePart {
    /// The range; the number of a `ProfilerStep#12` is cut off.
    pub name: Text,
    /// It brings in data: a data loader's range, or inside the `input` phase.
    pub input: bool,
    /// It is a frame of Python's stack that fills a range which the user named: that range.
    pub fills: Option<Text>,
    /// Self time, net of blocking synchronisation calls, for each of [`RankPart::steps`].
    pub self_ns: Vec<i64>,
}

/// Maps a time of a rank (in its host or, if the flag is set, its device clock) to global time.
pub type ToGlobal<'a> = &'a dyn Fn(i32, bool, i64) -> i64;

/// The result of the reduction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stragglers {
    /// One row for each rank, ascending.
    pub stragglers: Vec<StragglerRow>,
    /// One row for each instance and rank, in that order.
    pub waits: Vec<WaitRow>,
    /// All waits. The charges sum to it exactly: `waited_ns` = Σ `charged_ns` + `before_recording_ns`.
    pub waited_ns: i64,
    /// Waits charged to each rank, in the order of `stragglers`; its `caused_wait_ns` is this per step.
    pub charged_ns: Vec<i64>,
    /// Waits for lateness that ranks brought with them into the first collective that was recorded.
    pub before_recording_ns: i64,
    /// Steps and collectives that could not be used, and why.
    pub omissions: Vec<OmissionRow>,
}

#[cfg(test)]
mod tests;
