//! Matching of planted and of real collectives.
