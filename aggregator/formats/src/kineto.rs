//! Traces of torch.profiler as a source of ranks. The crate `kineto` reads and writes the format.

use std::path::PathBuf;

use kineto::{Plan, PlanOptions, TraceFile, load_windows, load_windows_detailed, load_windows_rows, plan};
use trace::OmissionRow;
use trace::rank::Details;

use crate::format::OpenOptions;
use crate::memory::max_memory_bytes;
use crate::registry::other_format;
use model::Error;
use model::RankData;
use model::source::{RankFile, Source, SourceInfo};

/// Traces of the ranks of one job.
#[derive(Clone, Debug)]
pub struct KinetoSource {
    path: PathBuf,
    plan: Plan,
}

impl KinetoSource {
    /// Finds the trace files and their ranks and windows, with the default options.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        Self::open_with(paths, OpenOptions::default())
    }

    /// Finds the trace files and their ranks and windows.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn open_with(paths: &[PathBuf], options: OpenOptions) -> Result<Self, Error> {
        Self::of_plan(paths, plan_options(options))
    }

    /// As [`open_with`](Self::open_with), for traces beside files of other formats, which are read too.
    ///
    /// # Errors
    /// As [`plan`].
    pub(crate) fn open_among_others(paths: &[PathBuf], options: OpenOptions) -> Result<Self, Error> {
        Self::of_plan(paths, PlanOptions { others_are_read: true, ..plan_options(options) })
    }

    fn of_plan(paths: &[PathBuf], options: PlanOptions) -> Result<Self, Error> {
        Ok(Self { path: paths.first().cloned().unwrap_or_default(), plan: plan(paths, options)? })
    }

    /// The windows of a rank.
    pub(crate) fn files_of(&self, rank: i32) -> Result<&[TraceFile], Error> {
        let all = &self.plan.files;
        let files = &all[all.partition_point(|file| file.rank < rank)..all.partition_point(|file| file.rank <= rank)];
        (!files.is_empty())
            .then_some(files)
            .ok_or_else(|| Error::NoRank { path: self.path.clone(), why: format!("there is no trace of rank {rank}") })
    }
}

impl Source for KinetoSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            run_id: String::new(),
            tool: "torch.profiler".into(),
            world_size: Some(self.plan.world_size),
            ..SourceInfo::default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        by_rank(&self.plan).map(|files| files[0].rank).collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        let file = |file: &TraceFile| RankFile {
            rank: file.rank,
            path: file.path.clone(),
            name: Some(file.name.clone()),
            size_bytes: file.size_bytes,
        };
        Ok(self.plan.files.iter().map(file).collect())
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.plan.omissions.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Ok(load_windows(self.files_of(rank)?)?)
    }

    fn load_rows(&self, rank: i32) -> Result<RankData, Error> {
        Ok(load_windows_rows(self.files_of(rank)?)?)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        Ok(load_windows_detailed(self.files_of(rank)?)?)
    }
}

fn plan_options(options: OpenOptions) -> PlanOptions {
    let OpenOptions { window, force, max_memory_bytes: limit } = options;
    let max_memory_bytes = Some(max_memory_bytes(limit));
    PlanOptions { window, force, max_memory_bytes, other_format: Some(other_format), others_are_read: false }
}

/// The files of each rank.
fn by_rank(plan: &Plan) -> impl Iterator<Item = &[TraceFile]> {
    plan.files.chunk_by(|a, b| a.rank == b.rank)
}
