//! Dumps of NCCL's Inspector plugin (format v4.0, NCCL 2.28 and later) as a source of ranks: each process is a rank with its
//! collectives, and nothing else.
//!
//! The plugin writes a file for each process. It dumps how long each operation took; only with `NCCL_INSPECTOR_DUMP_VERBOSE=1` also
//! when, in µs of the host's wall clock. Without these times collectives are listed, and nothing can be said of waits.

mod load;
mod objects;
mod processes;
mod read;
mod table;

use std::path::PathBuf;

use trace::OmissionRow;

use crate::format::{Beside, Format, Head};
use crate::memory::share;
use crate::ranks::of_rank;
use model::Error;
use model::RankData;
use model::source::{RankFile, Source, SourceInfo};

use processes::{Found, Process, processes};

/// The format.
pub(crate) const FORMAT: Format = Format {
    name: "a dump of NCCL's Inspector",
    files: "dumps of NCCL's Inspector",
    instead: "`rankscope analyze` reads it as a file of this machine",
    recognise,
    open: |paths, beside| Ok(Box::new(InspectorSource::open_beside(paths, beside)?)),
    is_table: Format::NO_TABLES,
    is_twin: Format::NO_TWINS,
};

/// How a dump begins, without spaces: an object that begins with its communicator.
const BEGIN: &[u8] = b"{\"header\":{\"id\":\"0x";

fn recognise(head: &Head<'_>) -> bool {
    if head.bytes.starts_with(b"PAR1") {
        return head.path.is_some_and(table::is_table);
    }
    let words = head.text().iter().copied().filter(|byte| !byte.is_ascii_whitespace());
    words.take(BEGIN.len()).eq(BEGIN.iter().copied())
}

/// The processes of one job, by their dumps.
#[derive(Clone, Debug)]
pub struct InspectorSource {
    path: PathBuf,
    /// By rank.
    processes: Vec<Process>,
    world_size: Option<i32>,
    problems: Vec<OmissionRow>,
    /// Memory that the rows of a rank may take.
    max_memory_bytes: u64,
}

impl InspectorSource {
    /// Finds the processes of dumps and their ranks.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::NoInput`] if no file has an operation, or if two processes are of one rank.
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

impl Source for InspectorSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            tool: "NCCL Inspector".into(),
            world_size: self.world_size,
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
        &["kernels, copies and operators", "steps", "devices and memory"]
    }
}
