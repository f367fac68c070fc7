//! Invariants of fits and matching.
