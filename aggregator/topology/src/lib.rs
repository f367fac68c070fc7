//! Which ranks meet in which collectives, and which ranks do the same work.
//!
//! * [`join`] puts each collective together with the own stretches of its ranks.
//! * [`same_work`] finds the ranks whose work is compared: the stages of a pipeline, the collectives before which ranks do the same,
//!   the ranks that show how long it takes. [`excess`] is what a rank takes longer.
//! * [`rank_groups`] and [`communicators`] fill tables of an analysis.

pub mod arrivals;
pub mod communicators;
pub mod excess;
pub mod join;
pub mod per_step;
pub mod rank_groups;
pub mod same_work;

/// Maps a time of a rank (in its host or, if the flag is set, its device clock) to global time.
pub type ToGlobal<'a> = &'a dyn Fn(i32, bool, i64) -> i64;

/// The error of global times of a rank's host or, if the flag is set, device clock, at 95 %; `None` if it is unknown.
pub type ClockError<'a> = &'a dyn Fn(i32, bool) -> Option<i64>;
