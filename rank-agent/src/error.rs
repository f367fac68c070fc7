//! What can go wrong in a rank, and the exit code that says so.

use std::path::PathBuf;

use crate::checksum;

/// An error of this crate. Messages name the rank, the step or the option, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value makes no sense, by itself or together with the others.
    #[error("{0}")]
    Usage(String),
    /// An option asks for something that this build or version does not have.
    #[error("{0}")]
    Unavailable(String),
    /// The launcher's environment is unreadable or disagrees with the MPI library.
    #[error(transparent)]
    Launch(#[from] launch::Error),
    /// An MPI call failed.
    #[error("{call} failed: {message}")]
    Mpi {
        /// The function.
        call: &'static str,
        /// What the library says.
        message: String,
    },
    /// A message is longer than MPI can count.
    #[error("{call}: {elements} elements are more than an MPI count holds")]
    TooLong {
        /// The function.
        call: &'static str,
        /// How many.
        elements: usize,
    },
    /// Ranks hold different parameters although they applied the same updates.
    #[error("{0}; an all-reduce gave different sums, or a rank's memory is damaged")]
    Diverged(#[from] checksum::Mismatch),
    /// The model could not be allocated, or one of its operations refused its operands.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
    /// A back end's results lie outside their bounds.
    #[error("selftest: {failed} of {count} checks failed")]
    Selftest {
        /// How many.
        failed: usize,
        /// Of how many.
        count: usize,
    },
    /// The run directory holds something already.
    #[error("{}: exists and is not empty; give --out another name, or remove it", .0.display())]
    RunExists(PathBuf),
    /// Some rank could not prepare its part of the run and has said why. Every rank gets this.
    #[error("rank {rank} could not begin: {message}")]
    Peer {
        /// The first rank that failed.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// A signal told the process to stop.
    #[error("stopped by signal {0} before the last step; what was recorded until then is kept")]
    Stopped(i32),
    /// Another rank has given up, so that collectives can no longer complete.
    #[error("another rank has given up")]
    Abandoned,
    /// The communication thread is gone.
    #[error("the communication thread has ended")]
    EngineGone,
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The process could not listen for signals.
    #[error("signals cannot be listened for: {0}")]
    Signals(std::io::Error),
    /// A thread could not be started.
    #[error("the communication thread could not be started: {0}")]
    Spawn(std::io::Error),
    /// The run's manifest could not be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// The recorder could not be started.
    #[error(transparent)]
    Recorder(#[from] recorder::Error),
}

impl Error {
    /// The exit code: 2 for wrong usage, 128 + n for signal n as shells expect it, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Stopped(signal) => 128_u8.wrapping_add(*signal as u8),
            _ => 1,
        }
    }

    /// Whether every rank ends with this same error at the same place, so that one message is enough and MPI can be
    /// left in order.
    pub fn is_collective(&self) -> bool {
        matches!(
            self,
            Self::Usage(_) | Self::Unavailable(_) | Self::Diverged(_) | Self::RunExists(_) | Self::Peer { .. }
        )
    }

    /// Whether it only says that the job is being ended, for a reason that was told elsewhere.
    pub fn is_aftermath(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Abandoned)
    }
}
