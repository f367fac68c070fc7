//! Exports of Nsight Systems (`nsys export --type sqlite`, `parquetdir` or `arrowdir`) as a source of ranks: each process that used a
//! device is a rank.
//!
//! Schemas 2.9 to 3.25 were seen. Tables and columns are looked up by name, because each version adds some, an export leaves out empty
//! tables, and other tools add columns. What is missing counts as unknown.
//!
//! ```text
//!  globalTid   0x 01 00 PPPPPP TTTTTT       process P and thread T; without T, it is the globalPid of a kernel
//! ```
//!
//! Correlation ids count per process, so a launch and its kernel are joined within one process only.

mod collectives;
mod database;
mod devices;
mod host;
mod load;
mod metrics;
mod mpi;
mod nccl;
mod owners;
mod processes;
pub(crate) mod reports;
mod rows;
mod session;
mod sqlite;
mod table_files;
mod tables;
mod wanted;

use std::path::PathBuf;

use trace::OmissionRow;
use trace::place;

use crate::format::{Beside, Format, Head};
use crate::memory::share;
use crate::ranks::of_rank;
use model::Error;
use model::RankData;
use model::source::{RankFile, Source, SourceInfo};

use processes::{Found, Process, processes};

/// A database of AMD's rpd, whose tables are `rocpd_…`.
pub(crate) fn is_rpd(head: &Head<'_>) -> bool {
    const SCHEMA_BYTES: u64 = 64 << 10;
    if !head.bytes.starts_with(b"SQLite format 3\0") {
        return false;
    }
    let schema = head.path.and_then(|path| place::first_bytes(path, SCHEMA_BYTES).ok());
    let has_table = schema.as_deref().unwrap_or(head.bytes).windows(6).any(|six| six == b"rocpd_");
    has_table || head.name.ends_with(".rpd") || head.name.ends_with(".rpd.gz")
}

/// The format.
pub(crate) const FORMAT: Format = Format {
    name: "an SQLite export of Nsight Systems",
    files: "exports of Nsight Systems (SQLite, Parquet, Arrow)",
    instead: "`rankscope analyze` reads it as a file of this machine",
    recognise: |head| head.bytes.starts_with(b"SQLite format 3\0") && !is_rpd(head),
    open: |paths, beside| Ok(Box::new(NsysSource::open_beside(paths, beside)?)),
    is_table: table_files::marks_export,
    is_twin: Format::NO_TWINS,
};

/// The processes of one job, in one export or several.
#[derive(Clone, Debug)]
pub struct NsysSource {
    path: PathBuf,
    /// By rank.
    processes: Vec<Process>,
    world_size: Option<i32>,
    problems: Vec<OmissionRow>,
    /// Memory that the rows of a rank may take.
    max_memory_bytes: u64,
}

impl NsysSource {
    /// Finds the processes of exports and their ranks.
    ///
    /// # Errors
    /// [`Error::NoInput`] if a file is no export of Nsight Systems, if no file has a process with rows, or if two processes claim
    /// one rank.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_beside(paths, &Beside::alone())
    }

    /// As [`open`](Self::open), as a part of a job.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_beside(paths: &[PathBuf], beside: &Beside<'_>) -> Result<Self, Error> {
        let Found { processes, world_size, problems } = processes(paths, beside.taken)?;
        let max_memory_bytes = share(beside.options.max_memory_bytes, processes.len()).rank_bytes();
        Ok(Self { path: paths.first().cloned().unwrap_or_default(), processes, world_size, problems, max_memory_bytes })
    }
}

impl Source for NsysSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            tool: "Nsight Systems".into(),
            world_size: self.world_size,
            created_utc_ns: self.processes.iter().filter_map(|process| process.session.utc_ns).min(),
            ..SourceInfo::default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        self.processes.iter().map(|process| process.rank).collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        self.processes.iter().map(|process| RankFile::of(process.rank, &process.file)).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.problems.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let process = of_rank(&self.processes, rank, |process| process.rank, &self.path)?;
        load::load(process, self.world_size, self.max_memory_bytes)
    }

    fn lacks(&self) -> &'static [&'static str] {
        &["shapes and FLOPs of operators", "stacks and modules", "allocations of memory", "numbers of collectives"]
    }
}
