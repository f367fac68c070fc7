//! Errors that end a command. Problems that only shorten the result are omissions and are listed in it.

use std::path::{Path, PathBuf};

/// An error of this crate. Messages name the file, the rank or the option, and a way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A run, its manifest or a shard could not be read or written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// A trace of torch.profiler could not be read or written.
    #[error(transparent)]
    Kineto(#[from] kineto::Error),
    /// A file could not be read or written.
    #[error("{}: {}", path.display(), trace::io_reason(path, source))]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The output could not be written.
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
    /// A value could not be printed as JSON.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A path holds no run and no trace.
    #[error("{}: {why}", path.display())]
    NoInput {
        /// The path.
        path: PathBuf,
        /// Reason and remedy.
        why: String,
    },
    /// A known format that is not read.
    #[error("{}: {format} is not read; {instead}", path.display())]
    UnreadFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: &'static str,
        /// Alternative.
        instead: &'static str,
    },
    /// The value of an option does not fit the input.
    #[error("--{option} {value}: {why}")]
    Option {
        /// The option, without dashes.
        option: &'static str,
        /// The given value.
        value: String,
        /// Reason and remedy.
        why: String,
    },
    /// An option that does not exist, or a value that does not fit it, in a call of the library.
    #[error("{why}")]
    Usage {
        /// The option and the reason.
        why: String,
    },
    /// No rank could be read.
    #[error("{}: no rank can be read: {why}", path.display())]
    NoRank {
        /// The input.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The selected steps, time or ranges hold nothing of any rank.
    #[error("{}: {selection} selects nothing: {why}", path.display())]
    NothingSelected {
        /// The input.
        path: PathBuf,
        /// The selection, as on the command line.
        selection: String,
        /// The reason, with the recorded steps if `--steps` is wrong.
        why: String,
    },
    /// Two runs of one side of a comparison have different world sizes or programs.
    #[error("{} and {} are not runs of one job: {why}; --force compares them anyway", a.display(), b.display())]
    UnlikeRuns {
        /// The first run.
        a: PathBuf,
        /// The other run.
        b: PathBuf,
        /// The difference.
        why: String,
    },
    /// The method chosen for the clocks joins no two ranks.
    #[error("{}: --clock {choice}: {why}", path.display())]
    Clock {
        /// The input.
        path: PathBuf,
        /// The chosen method.
        choice: &'static str,
        /// Reason and remedy.
        why: String,
    },
    /// No table and no view has the name that `schema` is asked for.
    #[error("schema: no table or view is called {name}; without a name, `schema` lists all")]
    UnknownTable {
        /// The name.
        name: String,
    },
    /// The processes of a job could not be joined.
    #[error("{0}")]
    Processes(String),
    /// The thread pool could not be created.
    #[error("threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

impl Error {
    /// Whether a file could not be written because its directory is read-only.
    pub fn is_read_only(&self) -> bool {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let read_only = |e: &std::io::Error| matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem);
        match self {
            Self::Io { source, .. } | Self::Trace(trace::Error::Io { source, .. }) => read_only(source),
            _ => false,
        }
    }

    /// The file or directory that the error is about, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::NoInput { path, .. }
            | Self::UnreadFormat { path, .. }
            | Self::NoRank { path, .. }
            | Self::NothingSelected { path, .. }
            | Self::Clock { path, .. } => Some(path),
            Self::Trace(error) | Self::Kineto(kineto::Error::Trace(error)) => error.path(),
            Self::Kineto(error) => error.path(),
            Self::UnlikeRuns { a, .. } => Some(a),
            Self::Output(_)
            | Self::Json(_)
            | Self::Option { .. }
            | Self::Usage { .. }
            | Self::UnknownTable { .. }
            | Self::Processes(_)
            | Self::Threads(_) => None,
        }
    }

    /// The error with the path of its file after a directory was renamed, or would have been: the temporary name says
    /// nothing to a user.
    #[must_use]
    pub fn moved(mut self, from: &Path, to: &Path) -> Self {
        use trace::Error::{Io, Parquet};
        if let Self::Io { path, .. }
        | Self::Trace(Io { path, .. } | Parquet { path, .. })
        | Self::Kineto(
            kineto::Error::Io { path, .. } | kineto::Error::Trace(Io { path, .. } | Parquet { path, .. }),
        ) = &mut self
            && let Ok(inside) = path.strip_prefix(from)
        {
            *path = to.join(inside);
        }
        self
    }

    /// Whether the reader closed the output early, as `head` does. Commands end without an error then.
    pub fn is_broken_pipe(&self) -> bool {
        let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
        match self {
            Self::Output(source) | Self::Io { source, .. } => broken(source),
            Self::Trace(trace::Error::Io { source, .. }) => broken(source),
            Self::Kineto(kineto::Error::Output(source) | kineto::Error::Io { source, .. }) => broken(source),
            Self::Json(source) => source.io_error_kind() == Some(std::io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}
