//! The parts of ranks on disk: `map` writes those of its share of the ranks, `reduce` reads those of all shares.
//!
//! ```text
//! PARTS/share-00000-of-00002.json                 what was mapped, how, and the files of it
//! PARTS/share-00001-of-00002.json
//! PARTS/collectives/0123456789abcdef.parquet      named by the content: equal parts are equal files
//! PARTS/op_stats/…
//! ```
//!
//! A share is a range of ranks with about the same bytes as every other. All processes find it in the list of the input's
//! files without a word between them. A share is cut into chunks, so that its memory is bounded; a chunk has one file for
//! each table that has rows.

pub mod contract;
pub mod division;
pub mod input;
pub mod kept;
pub mod processes;
mod read;
mod rows;
mod write;

pub use read::{Shares, read_shares};
pub use write::Mapper;
