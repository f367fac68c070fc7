//! Clocks and matching against planted truth and against real traces.

mod collectives;
mod pings;
mod properties;
pub(crate) mod support;
