//! Exports of Nsight Systems: every process with a device is a rank, with the rows that SQL counts.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod export;
mod formats;
mod hostile;
mod jobs;
mod mpi;
mod real;
mod schemas;
