//! Ingest, align, match, analyze, render.

pub mod analysis;
mod breakdown;
mod buckets;
mod cli;
pub mod clock;
mod critical;
pub mod details;
pub mod device;
pub mod diff;
#[cfg(test)]
mod drawn;
pub mod error;
mod findings;
mod idle;
mod instances;
pub mod intervals;
pub mod kineto;
pub mod load;
mod map;
pub mod matching;
mod memory;
pub mod model;
pub mod names;
pub mod options;
mod ordered;
pub mod outline;
mod peers;
mod plausible;
mod reduce;
pub mod render;
mod select;
pub mod source;
pub mod stacks;
mod stats;
mod step_numbers;
pub mod steps;
pub mod straggler;
pub mod table;
mod unfinished;
mod verdict;

pub use analysis::Analysis;
pub use cli::main_impl;
pub use error::Error;
pub use map::{RankPart, map_rank};
pub use options::Options;
pub use reduce::{analyze, reduce};
