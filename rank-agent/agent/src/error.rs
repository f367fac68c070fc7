//! The errors of a rank, and their exit codes.

use std::path::PathBuf;

/// An error of this crate. Messages name the rank, the step or the option, and a way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value is invalid, by itself or together with other options.
    #[error("{0}")]
    Usage(String),
    /// An option needs something that this build or machine does not have.
    #[error("{0}")]
    Unavailable(String),
    /// The launcher's environment is unreadable or disagrees with the library that carries messages.
    #[error(transparent)]
    Launch(#[from] launch::Error),
    /// The run directory is not empty.
    #[error("{}: exists and is not empty; give --out another name, or remove it", .0.display())]
    RunExists(PathBuf),
    /// A rank could not prepare its part of the run and has printed why. Every other rank gets this error.
    #[error("rank {rank} could not begin: {message}")]
    Peer {
        /// The first rank that failed.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// A signal stopped the process.
    #[error("signal {} stopped this process", signal_text(*.0))]
    Stopped(i32),
    /// Another rank has given up, so that collectives can no longer complete.
    #[error("another rank has given up")]
    Abandoned,
    /// A fabric of another crate failed.
    #[error(transparent)]
    Fabric(Box<dyn std::error::Error + Send + Sync>),
    /// The network failed.
    #[error("{what}: {source}")]
    Network {
        /// The operation or the peer.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The peer that answered does not belong to this job: wrong token, rank or size.
    #[error("{0}")]
    WrongPeer(String),
    /// The ranks run on several hosts, and share no secret.
    #[error(
        "the ranks run on several hosts and share no secret: give all of them the same --out on a shared file system, or the \
         same RANKSCOPE_TOKEN"
    )]
    NoSecret,
    /// Rank 0 left no secret that this rank may use.
    #[error("{}, the secret of the job: {why}; is --out shared by all hosts? RANKSCOPE_TOKEN replaces it", path.display())]
    NoSecretFile {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Ranks of the job did not connect in time.
    #[error(
        "{} did not connect to {place} within {limit_s} s{}",
        ranks_text(ranks),
        refused.as_ref().map(|peer| format!("; refused {peer}")).unwrap_or_default()
    )]
    Missing {
        /// The missing ranks.
        ranks: Vec<usize>,
        /// The address that they were to connect to.
        place: String,
        /// The time that they had, in s.
        limit_s: u64,
        /// The last peer that was refused, and why.
        refused: Option<String>,
    },
    /// The program to be recorded could not be started.
    #[error("the program {program} could not be started: {source}")]
    Program {
        /// Its name.
        program: String,
        /// 127 if there is none, else 126.
        code: u8,
        /// The system's error.
        source: std::io::Error,
    },
    /// `ctl` found no running `exec`, found several, or was refused.
    #[error("ctl: {0}")]
    Control(String),
    /// The communication thread is gone.
    #[error("the communication thread has ended")]
    EngineGone,
    /// A file operation failed.
    #[error("{}: {}", path.display(), trace::io_reason(path, source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The process could not install its signal handlers.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Spawn(std::io::Error),
    /// The run's manifest could not be written.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// The recorder could not be started.
    #[error(transparent)]
    Recorder(#[from] recorder::Error),
}

impl Error {
    /// Whether the network or other ranks failed, and not this one.
    pub(crate) fn is_of_peers(&self) -> bool {
        matches!(
            self,
            Self::Network { .. }
                | Self::WrongPeer(_)
                | Self::Missing { .. }
                | Self::NoSecret
                | Self::NoSecretFile { .. }
        )
    }
}

/// `rank 3`, or `ranks 1, 2, 3, … (7 in all)`.
pub(crate) fn ranks_text(ranks: &[usize]) -> String {
    const NAMED: usize = 8;
    let named: Vec<String> = ranks.iter().take(NAMED).map(ToString::to_string).collect();
    match ranks.len() {
        1 => format!("rank {}", named[0]),
        n if n > NAMED => format!("ranks {}, … ({n} in all)", named.join(", ")),
        _ => format!("ranks {}", named.join(", ")),
    }
}

/// `2 (SIGINT)`.
pub fn signal_text(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("{signal} ({name})"),
        None => signal.to_string(),
    }
}

/// What a command does with an error: its exit code, and which ranks print it.
pub trait Failure: std::error::Error {
    /// The exit code: 2 for wrong usage, 128 + n for signal n as shells expect it, otherwise 1.
    fn exit_code(&self) -> u8;

    /// Whether every rank ends with this same error at the same place, so that one message is enough and MPI can be
    /// left in order.
    fn is_collective(&self) -> bool;

    /// Whether the error only follows from another one, which is printed elsewhere.
    fn is_aftermath(&self) -> bool;
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Program { code, .. } => *code,
            Self::Stopped(signal) => 128_u8.wrapping_add(*signal as u8),
            _ => 1,
        }
    }

    fn is_collective(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Unavailable(_) | Self::RunExists(_) | Self::Peer { .. })
    }

    fn is_aftermath(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Abandoned)
    }
}
