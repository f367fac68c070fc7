//! Clock fits, against planted truth and real traces.

mod collectives;
mod jumps;
mod pings;
mod properties;
pub(crate) mod support;
