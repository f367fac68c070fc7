//! Errors of starting a recorder. A running recorder never returns an error to the program that it records.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shard could not be written, or rows violate a constraint of their table.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// The writer thread could not be started.
    #[error("the recorder's writer thread could not be started: {0}")]
    Thread(std::io::Error),
    /// The run already holds shards of this rank.
    #[error(
        "{}: rank {rank} was already recorded there, by another process or an earlier job; choose another run directory",
        path.display()
    )]
    RankTaken {
        /// The existing shard.
        path: PathBuf,
        /// The rank.
        rank: i32,
    },
    /// Rows of this table come from the threads' queues only, because a part must be sorted as a whole.
    #[error("rows of table {table} are recorded through a thread's recorder, not handed over")]
    QueuedTable {
        /// The table.
        table: &'static str,
    },
}
