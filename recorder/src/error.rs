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
    /// There is no libcupti, or none that can be loaded.
    #[error(
        "libcupti was not found; looked for {}; install CUDA 12.4 or newer (or `pip install nvidia-cuda-cupti`), or say \
         where it is in {}",
        list(searched),
        crate::cupti::LIBRARY_VARIABLE
    )]
    CuptiNotFound {
        /// Where it was looked for, in this order.
        searched: Vec<PathBuf>,
    },
    /// There is no NVIDIA driver, without which CUPTI cannot do anything.
    #[error("{} needs the NVIDIA driver, whose {driver} was not found: there is no GPU to record", library.display())]
    CuptiWithoutDriver {
        /// The library.
        library: PathBuf,
        /// The driver's library.
        driver: &'static str,
    },
    /// The records of this version are not known, or it lacks a function that is needed.
    #[error("{} is too old: {why}; CUPTI of CUDA 12.4 or newer is needed", library.display())]
    CuptiTooOld {
        /// The library.
        library: PathBuf,
        /// Its version, or what it lacks.
        why: String,
    },
    /// Only one profiler at a time can use CUPTI.
    #[error(
        "another profiler{} holds CUPTI (Nsight, torch.profiler, cuda-gdb, …): the devices are not recorded",
        by.as_ref().map_or(String::new(), |by| format!(" ({by})"))
    )]
    CuptiBusy {
        /// Its name, where CUPTI tells (CUDA 13.0).
        by: Option<String>,
    },
    /// CUPTI refused a call.
    #[error("CUPTI refused {call}: {message} ({code}); the devices are not recorded")]
    CuptiCall {
        /// The function.
        call: &'static str,
        /// Its result.
        code: u32,
        /// CUPTI's name of it.
        message: String,
    },
    /// This process has started a session before.
    #[error("this process has started a CUPTI session before; there can be one per process")]
    CuptiTwice,
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
