//! Profiles of XLA: every device with events is a rank, with the events that an independent decoder counts.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod hostile;
mod jobs;
mod profiles;
mod real;
mod writer;
