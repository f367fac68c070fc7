//! Errors that end the reading or writing of a trace. Smaller damage becomes an omission in the result.

use std::path::{Path, PathBuf};

/// A format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFormat {
    /// Its name, with an article.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
    /// Whether the caller has a reader of it.
    pub is_read: bool,
}

/// An error of this crate. Messages name the file, and what to do where there is something to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shard of a run could not be read or written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// The file could not be opened, listed or read.
    #[error("{}: {}", path.display(), trace::io_reason(path, source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// JSON could not be written.
    #[error("output: {0}")]
    Output(#[from] std::io::Error),
    /// The file holds no trace, or the directory holds no file with one.
    #[error("{}: {why}", path.display())]
    NotATrace {
        /// The file or directory.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// The file is JSON without events, such as a configuration, or another text that begins with a bracket.
    #[error("{}: it is not a trace of torch.profiler: {why}", path.display())]
    OtherJson {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: &'static str,
    },
    /// The files have too little in common for one job.
    #[error(
        "{}: the files look like those of {jobs} different jobs: {named}. Name the files of one job, or put them \
         together with --force",
        path.display()
    )]
    DifferentJobs {
        /// The first path.
        path: PathBuf,
        /// Number of jobs.
        jobs: usize,
        /// Files of each job.
        named: String,
    },
    /// There is no such window.
    #[error("--window {number}: the files hold {}", windows_text(*windows))]
    NoWindow {
        /// The window that was asked for.
        number: i32,
        /// Number of windows.
        windows: i32,
    },
    /// The file has a known format that this crate does not read.
    #[error("{}: {} is not read; {}", path.display(), format.name, format.instead)]
    UnreadFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: OtherFormat,
    },
}

fn windows_text(windows: i32) -> String {
    if windows == 1 { "one window of the profiler".into() } else { format!("windows 1 to {windows} of the profiler") }
}

impl Error {
    /// The file or directory that the error is about, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::NotATrace { path, .. }
            | Self::OtherJson { path, .. }
            | Self::DifferentJobs { path, .. }
            | Self::UnreadFormat { path, .. } => Some(path),
            Self::Trace(error) => error.path(),
            Self::Output(_) | Self::NoWindow { .. } => None,
        }
    }

    /// The error of a file without a trace.
    pub(crate) fn not_a_trace(path: &Path, why: &str) -> Self {
        Self::NotATrace { path: path.into(), why: format!("it is not a trace of torch.profiler: {why}") }
    }

    /// The message without the path, for a list that names the file already.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Io { path, source } => trace::io_reason(path, source),
            Self::NotATrace { why, .. } => why.clone(),
            Self::OtherJson { why, .. } => (*why).into(),
            Self::UnreadFormat { format, .. } => format!("{} is not read; {}", format.name, format.instead),
            other => other.to_string(),
        }
    }
}
