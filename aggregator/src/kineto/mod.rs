//! Reads torch.profiler's traces: Kineto's Chrome JSON, gzip or not, to [`RankData`](crate::model::RankData).
//!
//! ```text
//! files ─ plan: which file is which rank
//! source ─ blocks ─ chunk: cut at event starts ─ event: columns     (stream: one thread reads, all threads parse)
//! rows: one table ─ steps ─ collectives ─ tables ─ load: RankData ─ ranks: a source for the analysis
//!                                                                 └ write, ingest: a run
//! ```
//!
//! The format has changed since 2021 and is written by many hands; what is read, and how, stands where it is read.
//! Nothing of it is trusted: a byte that is no JSON ends the reading and is reported by its position, and what came
//! before stays.

mod args;
mod chunk;
mod collectives;
mod columns;
mod comm_size;
mod context;
mod details;
mod event;
mod files;
mod groups;
mod gunzip;
mod ingest;
mod input;
mod json;
mod layout;
mod load;
mod names;
mod number;
mod ranks;
mod rows;
mod steps;
mod stream;
mod tables;
mod text;
mod top;
mod value;
mod write;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::Error;

pub use files::{Plan, RankSource, TraceFile, plan};
pub use ingest::{Ingested, ingest};
pub use load::{Parsed, check_any_blocks, load, load_detailed, parse_only};
pub use ranks::KinetoSource;

/// The error of a file that holds no trace.
fn not_a_trace(path: &Path, why: &str) -> Error {
    Error::NoInput { path: path.into(), why: format!("it is no trace of torch.profiler: {why}") }
}

/// The error without the path, for a list that names the file already.
fn reason(error: &Error) -> String {
    match error {
        Error::Io { source, .. } => source.to_string(),
        Error::NoInput { why, .. } => why.clone(),
        Error::UnreadFormat { format, instead, .. } => format!("{format} is not read; {instead}"),
        other => other.to_string(),
    }
}
