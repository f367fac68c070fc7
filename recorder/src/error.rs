//! What can go wrong when a recorder starts. Once it runs, nothing is an error of the program that it watches.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shard could not be written, or rows break a fact of their table.
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
        /// The shard that is in the way.
        path: PathBuf,
        /// The rank.
        rank: i32,
    },
    /// A variable of the environment does not say what it should.
    #[error("the environment variable {name} is {value:?}: {why}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it holds; empty if it is not set.
        value: String,
        /// What it should be.
        why: &'static str,
    },
    /// A table whose rows must be sorted over the whole part takes rows from the queues only.
    #[error("rows of table {table} are recorded through a thread's recorder, not handed over")]
    QueuedTable {
        /// The table.
        table: &'static str,
    },
}
