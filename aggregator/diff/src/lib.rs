//! Compares two runs, or two sets of runs: rows that got slower or faster, with intervals, and rows that appeared or
//! vanished.
//!
//! There are two kinds of rows. A row of *all ranks* is the mean over ranks. Its change is that of the job; only
//! several runs a side can separate it from a change of the machine. A row of *one rank* compares that rank with the
//! median of the others in the same step. Effects that hit all ranks alike, such as a neighbour's processor load or a
//! slower network, cancel in it.
//!
//! ```text
//!  run A, step s     rank 0 ####      rank 1 ####      rank 2 #####       rank 2 − median of 0, 1:  +1
//!  run B, step s     rank 0 ######    rank 1 ######    rank 2 ##########  rank 2 − median of 0, 1:  +4
//!                    all ranks: +3                     rank 2: +3 more than the others
//! ```
//!
//! Runs that are unlike, such as an eager and a compiled one, are compared as far as it has a meaning: the step and its parts, names
//! that both have, and sums of work (`cuts.rs`). `unlike.rs` says what differs and what is refused.
//!
//! The statistics are in `inference.rs`.

mod cuts;
mod inference;
mod judge;
mod kernel_counts;
mod key;
#[cfg(test)]
mod laws;
mod method;
mod one_sided;
mod profile;
mod rank_kernels;
mod result;
mod same_job;
mod sample;
mod series;
#[cfg(test)]
mod tests;
mod unlike;

pub use kernel_counts::{KernelCounts, NameCount, SideKernels};
pub use method::{Change, Method};
pub use profile::{Group, Key, Measure};
pub use result::{Diff, DiffRow, DiffVerdict, Heading, Judgement, OneSided, Place, RunFacts};
pub use unlike::{Aspect, Difference, OtherShapes};

pub use judge::{compare, plain_name};
pub use profile::{RankProfile, RunProfile, profile_rank};
