//! One process per rank: the reference workload, clock synchronisation, and recording.
//!
//! * [`exec`] records an unmodified program on every rank; `ctl` switches that recording while the program runs.
//! * [`train`] (feature `train`) is the reference workload: a data-parallel training whose gradients travel in buckets
//!   while the backward pass goes on.
//! * [`fabric`] connects the ranks of a job: over MPI (feature `mpi`), over TCP, or between threads.
//!
//! Without its default features this crate is `exec`, `ctl` and what they need: it links neither MPI nor the workload.
//!
//! The ranks of a job agree on one run before the first row. Here the job has one rank:
//!
//! ```
//! use rank_agent::fabric::Solo;
//! use rank_agent::fabric::agree::{RunRequest, agree_on_run};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let out = std::env::temp_dir().join(format!("rankscope-agent-doc-{}", std::process::id()));
//! let request = RunRequest { out: Some(out), world_size: 1, ..RunRequest::default() };
//! let place = agree_on_run(&Solo, &request)?;
//! assert_eq!(trace::Run::open(&place.path)?.manifest.world_size, 1);
//! assert!(agree_on_run(&Solo, &request).is_err(), "a run is never overwritten");
//! # std::fs::remove_dir_all(&place.path)?;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "train")]
mod cli;
mod console;
mod error;
pub mod exec;
pub mod fabric;
#[cfg(feature = "train")]
pub mod train;

#[cfg(test)]
#[cfg(feature = "train")]
mod tests;

#[cfg(feature = "train")]
pub use crate::cli::main_impl;
pub use crate::console::print_usage;
pub use crate::error::Error;
