//! Tools that every stage uses and that know no trace: intervals, statistics, units for people, ordered output.

#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "options and calls of the C library's allocator"))]
pub(crate) mod ffi;
pub mod in_order;
pub mod intervals;
pub mod stats;
pub mod units;
