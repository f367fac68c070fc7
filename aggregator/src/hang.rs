//! Who holds a hung job up: from dumps of torch's Flight Recorder, or from the rows of a run.
//!
//! ```text
//!              group a: all_reduce 7     group b: all_gather 3
//!  rank 0      called, waits             called, waits              ranks 0 and 1 wait for 2
//!  rank 1      called, waits
//!  rank 2      not called                                           rank 2 waits for nobody: the culprit
//! ```
//!
//! A rank waits for another if it called an operation that has not ended and that the other has not called. Ranks that others wait for
//! and that wait for nobody are the culprits. The stages: what is known of each rank (`state`), of all of them (`job`), the graph
//! of waits (`graph`), the verdict (`verdict`), and operations on which ranks disagree (`mismatch`).

pub(crate) mod dumps;
pub(crate) mod graph;
pub(crate) mod job;
pub(crate) mod mismatch;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub(crate) mod verdict;

pub use dumps::check_any_dump;
