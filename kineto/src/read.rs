//! Traces of a job: which file holds which rank, and one file to one [`RankData`](trace::rank::RankData).

mod files;
pub(crate) mod load;
#[cfg(test)]
mod tests;

pub use files::{Plan, RankSource, TraceFile, file_name, plan};
pub use load::{Parsed, check_any_blocks, load, load_detailed, parse_only};
