//! The command `rank-agent`: the reference workload, `exec` and `ctl`.
//!
//! The work is in three crates below: [`agent`] records programs and connects ranks, [`train`] is the workload, and
//! `rankscope-mpi` (feature `mpi`) carries the workload's messages. This crate has the command line, and it alone
//! has both MPI and the workload.

mod cli;

#[cfg(test)]
mod tests;

pub use crate::cli::main_impl;
