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
    /// The network failed.
    #[error("{what}: {source}")]
    Network {
        /// What was to be done, or with whom.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Who answers is not who should.
    #[error("{0}")]
    Stranger(String),
    /// Ranks of the job did not come in time.
    #[error("{} did not come in time{}", ranks_text(ranks), refused.as_ref().map(|who| format!("; refused: {who}")).unwrap_or_default())]
    Missing {
        /// Which.
        ranks: Vec<usize>,
        /// Who came and was turned away last, and why.
        refused: Option<String>,
    },
    /// The program to be recorded could not be started.
    #[error("{program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// 127 if there is none, else 126.
        code: u8,
        /// Why not.
        source: std::io::Error,
    },
    /// `rank-agent ctl` found nobody to talk to, or several, or was refused.
    #[error("ctl: {0}")]
    Control(String),
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

/// `rank 3`, or `ranks 1, 2, 3, … (7 in all)`.
fn ranks_text(ranks: &[usize]) -> String {
    const NAMED: usize = 8;
    let named: Vec<String> = ranks.iter().take(NAMED).map(ToString::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", named[0]),
        n if n > NAMED => format!("ranks {}, … ({n} in all)", named.join(", ")),
        _ => format!("ranks {}", named.join(", ")),
    }
}

impl Error {
    /// The exit code: 2 for wrong usage, 128 + n for signal n as shells expect it, otherwise 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Program { code, .. } => *code,
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
