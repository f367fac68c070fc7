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

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use trace::OmissionRow;

use crate::memory::default_max_memory_bytes;
use crate::ranks::of_rank;
use crate::run_source::check_any_source;
use model::Error;
use model::RankData;
use model::source::{Source, SourceInfo};

use processes::{Process, processes};
pub(crate) use table::is_table;

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
        Self::open_beside(paths, None, &BTreeSet::new())
    }

    /// As [`open`](Self::open), with a limit of memory; `None`: three quarters of the machine's. No process whose rank is not stated gets
    /// one that is `taken`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_beside(
        paths: &[PathBuf],
        max_memory_bytes: Option<u64>,
        taken: &BTreeSet<i32>,
    ) -> Result<Self, Error> {
        let found = processes(paths, taken)?;
        let all = max_memory_bytes.unwrap_or_else(default_max_memory_bytes);
        let at_once = rayon::current_num_threads().min(found.processes.len()).max(1) as u64;
        Ok(Self {
            path: paths.first().cloned().unwrap_or_default(),
            processes: found.processes,
            world_size: found.world_size,
            problems: found.problems,
            max_memory_bytes: all / at_once,
        })
    }

    /// The file of each rank.
    pub(crate) fn files(&self) -> impl Iterator<Item = (i32, &Path)> {
        self.processes.iter().map(|process| (process.rank, process.file.as_path()))
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

/// For fuzzing: reads a file of any bytes. Panics if a rank is not the same twice, or if its columns are out of order.
pub fn check_any_dump(path: &Path) {
    if let Ok(source) = InspectorSource::open(&[path.to_path_buf()]) {
        check_any_source(&source);
    }
}
