//! Reads torch.profiler's traces: Kineto's Chrome JSON, gzip or not, to [`RankData`](crate::model::RankData).
//!
//! ```text
//! files ─ plan: which file is which rank
//! source ─ blocks ─ chunk: cut at event starts ─ event: columns     (stream: one thread reads, all threads parse)
//! rows: one table ─ steps ─ collectives ─ tables ─ load: RankData
//! ```
//!
//! The format has changed since 2021 and is written by many hands; what is read, and how, stands where it is read. Nothing of
//! it is trusted: a byte that is no JSON ends the reading and is reported by its position, and what came before stays.

mod chunk;
mod collectives;
mod columns;
mod comm_size;
mod context;
mod event;
mod files;
mod groups;
mod json;
mod load;
mod names;
mod number;
mod rows;
mod source;
mod steps;
mod stream;
mod tables;
mod text;
mod top;
mod value;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use files::{Plan, RankSource, TraceFile, plan};
pub use load::load;

/// Why a trace cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no trace.
    #[error("{}: not a trace of torch.profiler: {why}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// A known format that is not read.
    #[error("{}: {format} is not read; {instead}", path.display())]
    UnreadFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// Nothing in a directory is a trace.
    #[error("{}: no trace of torch.profiler here: {why}", path.display())]
    NoTrace {
        /// The path.
        path: PathBuf,
        /// What was found instead.
        why: String,
    },
}

impl Error {
    /// The error without the path, for a list that names the file already.
    fn reason(&self) -> String {
        match self {
            Self::Io { source, .. } => source.to_string(),
            Self::NotATrace { why, .. } => format!("not a trace of torch.profiler: {why}"),
            Self::UnreadFormat { format, instead, .. } => format!("{format} is not read; {instead}"),
            Self::NoTrace { why, .. } => why.clone(),
        }
    }
}
