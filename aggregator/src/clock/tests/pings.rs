//! Fits by round trips.
