//! Finds the rank that makes the others wait (the cause), the ranks that only wait (the victims), how certain that is,
//! and the place in the program.
//!
//! "Arrived last" is not a verdict: a rank may be late because another rank delayed it. All work of all ranks is one
//! graph, and a rank costs what a replay of the graph is shorter by without its excess (`lost_time`). Its *own*
//! time between collectives shows where in the program the excess is: ranks leave a collective together, and until the
//! next collective each rank works on its own.
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
//! The work is a map and a reduction. [`own_time`](measure::own_time) turns the rows of one rank into a small
//! [`OwnTime`](measure::own_time::OwnTime) with the rank's graph; [`reduce`] takes the parts of all ranks and the matched
//! collectives. Own stretches are measured in the rank's own clock. Clock alignment affects the waits, and the graph where
//! ranks meet.

mod bubbles;
pub mod buckets;
mod charge;
mod classify;
mod contention;
mod deviation;
mod evidence;
pub mod exposed_waits;
mod foreseen;
mod graph;
mod job_path;
mod judgement;
mod last;
mod lengths;
mod lines;
mod lost_time;
mod measured;
mod outliers;
mod patterns;
mod places;
mod prices;
mod rebucket;
mod reduce;
mod reordered;
mod replayed;
mod rows;
mod scaled;
mod shares;
mod stragglers;
mod work;

pub use foreseen::Foreseen;
pub use lost_time::{Group, Line, LostTime, Part, Period};
pub use prices::Cost;
pub use rebucket::{Bound, Gradients};
pub use reduce::{reduce, reduce_replayed};
pub use replayed::{CommChoice, Different, Replayed};
pub use scaled::ACCOUNT;
pub use stragglers::{AnalyzedReplay, Stragglers, Together, Waited};

#[cfg(test)]
mod tests;
