//! Helpers of the crossing tests.
