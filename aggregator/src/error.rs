//! What ends an analysis. What only shortens it is an omission instead, and stands in the result.

use std::path::PathBuf;

/// An error of this crate. Messages name the file, the rank or the option, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A run, its manifest or a shard.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Output could not be written.
    #[error("output: {0}")]
    Output(#[from] std::io::Error),
    /// A value could not be printed as JSON.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A path holds nothing that is read.
    #[error("{}: {why}", path.display())]
    NoInput {
        /// The path.
        path: PathBuf,
        /// What it lacks, and what to do.
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
    /// An option's value is not what it must be.
    #[error("--{option} {value}: {why}")]
    Option {
        /// The option, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
        /// What it must be.
        why: String,
    },
    /// No rank could be read, or none is left after `--ranks`.
    #[error("{}: no rank to analyze: {why}", path.display())]
    NoRank {
        /// The input.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// No rank has any of the steps of `--steps`.
    #[error("{}: no step to analyze: {why}", path.display())]
    NoStep {
        /// The input.
        path: PathBuf,
        /// Which steps there are.
        why: String,
    },
    /// The evidence that was chosen for the clocks joins no two ranks.
    #[error("{}: --clock {choice}: {why}", path.display())]
    Clock {
        /// The input.
        path: PathBuf,
        /// What was chosen.
        choice: &'static str,
        /// Why it cannot be, and what to do.
        why: String,
    },
    /// The pool of threads could not be made.
    #[error("threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl Error {
    /// Whether the reader of the output went away, as `head` does. That is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
        match self {
            Self::Output(source) | Self::Io { source, .. } => broken(source),
            Self::Json(source) => source.io_error_kind() == Some(std::io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}
