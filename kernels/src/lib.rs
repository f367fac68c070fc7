//! The mathematics of the reference workload.
