//! Helpers of the crossing tests: the checker of imports and its tables.

pub mod layers;
pub mod rooms;
