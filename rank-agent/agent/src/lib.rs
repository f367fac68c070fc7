//! The agent of a rank: records a program, switches its recording, and compares its clock with those of the other ranks.
//!
//! * [`exec`] records an unmodified program on every rank; `ctl` switches that recording while the program runs.
//! * [`fabric`] connects the ranks of a job: over TCP, between threads, or by an implementation of another crate.
//!
//! This crate has no features: whatever links it gets the same code, and neither MPI nor the workload.
//!
//! The ranks of a job agree on one run before the first row. Here the job has one rank:
//!
//! ```
//! use agent::fabric::agree::{RunRequest, agree_on_run};
//! use agent::fabric::solo::Solo;
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

pub mod console;
mod error;
pub mod exec;
pub mod fabric;

pub use crate::error::{Error, Failure, signal_text};
