//! The what-if analysis of pipelined jobs by Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis"
//! (OSDI 2025), on the traces of its authors: one row for each operation of each data-parallel rank, stage and step.
//!
//! The results have the names and the values of the authors' program, so that both can be compared key by key.

mod dependencies;
mod operations;
mod replay;
mod slowdown;

#[cfg(test)]
mod tests;

use std::path::Path;

use model::{Error, Room};

pub(crate) use operations::JobMeta;
pub use slowdown::{Ordered, Slowdown};

/// Analyzes the operations in a Parquet file of a job that `meta` describes. What they take in memory is taken of `room`.
///
/// # Errors
/// [`Error::Io`], [`Error::NoInput`] if the files are not such a trace, if its operations do not form a pipeline, or if they have no room.
pub fn analyze(trace: &Path, meta: &Path, room: Room) -> Result<Slowdown, Error> {
    let meta = JobMeta::read(meta)?;
    let operations = operations::Operations::read(trace, &meta, room)?;
    let wrong = |why: String| Error::NoInput { path: trace.into(), why };
    let dependencies = dependencies::Dependencies::of(&operations, &meta).map_err(wrong)?;
    let replay = replay::Replay::of(&operations, &dependencies).map_err(wrong)?;
    Ok(slowdown::measure(meta, &operations, &dependencies, &replay))
}
