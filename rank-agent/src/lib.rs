//! One process a rank: reference workload, clock sync, recording.

pub mod bucket_plan;
pub mod checksum;
pub mod data;
pub mod model;
pub mod observer;

use std::process::ExitCode;

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    ExitCode::SUCCESS
}
