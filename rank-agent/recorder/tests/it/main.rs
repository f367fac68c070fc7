//! Tests of the recorder through the files of a run.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap, as tests do")]

mod common;
mod faults;
mod hanging_disk;
mod parts;
mod rows;
