//! Ingest, align, match, analyze, render.

pub mod clock;
pub mod intervals;
pub mod kineto;
pub mod matching;
pub mod model;

use std::process::ExitCode;

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    ExitCode::SUCCESS
}
