//! The ranks that hold a hung job up, found from dumps of torch's Flight Recorder, or from the rows of a run.
//!
//! ```text
//!              group a: all_reduce 7     group b: all_gather 3
//!  rank 0      called, waits             called, waits              ranks 0 and 1 wait for 2
//!  rank 1      called, waits
//!  rank 2      not called                                           rank 2 waits for no rank: the culprit
//! ```
//!
//! Rows of a run alone tell less: `unfinished` lists the collectives that did not end, and `stuck` decides whether that is a
//! hang and who is blamed.
//!
//! A rank waits for another if it called an operation that has not ended and that the other has not called. A rank is
//! a culprit if others wait for it and it waits for no rank. `state` holds the knowledge of each rank, `posted` its sends and receives,
//! `job` that of all ranks, `graph` the waits, `verdict` the culprits, `odd` those of a deadlock, and `mismatch` the operations on
//! which ranks disagree.

pub mod dumps;
pub mod graph;
pub mod job;
pub mod mismatch;
pub mod odd;
pub mod posted;
pub mod report;
pub mod rows;
pub mod run;
pub mod state;
pub mod stuck;
#[cfg(test)]
mod tests;
pub mod unfinished;
pub mod verdict;
