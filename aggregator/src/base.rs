//! Tools that every stage uses and that know no trace: intervals, statistics, units for people, ordered output.

pub mod in_order;
pub mod intervals;
pub mod stats;
pub mod units;
