//! Tests of the crate from outside, in one binary: linking Parquet twice takes longer than running them.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap, as tests do")]

mod common;
mod faults;
mod growing;
mod parts;
mod tables;
