//! Ingest, align, match, analyze, render.

pub mod error;
pub mod intervals;
pub mod load;
pub mod model;
pub mod names;

use std::process::ExitCode;

pub use error::Error;

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    ExitCode::SUCCESS
}
