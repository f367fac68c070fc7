//! Tests of the recorder through files: what it records is what a run then holds.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap, as tests do")]

mod common;
mod faults;
mod parts;
mod rows;
