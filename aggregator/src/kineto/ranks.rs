//! A set of traces as a source of ranks.

use std::path::PathBuf;

use trace::OmissionRow;

use crate::Error;
use crate::details::Details;
use crate::kineto::{Plan, TraceFile, load, load_detailed, plan};
use crate::model::RankData;
use crate::source::{Source, SourceInfo};

/// Traces of the ranks of one job.
#[derive(Clone, Debug)]
pub struct KinetoSource {
    path: PathBuf,
    plan: Plan,
}

impl KinetoSource {
    /// Finds out which files are traces, and of which ranks.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let path = paths.first().cloned().unwrap_or_default();
        Ok(Self { path, plan: plan(paths)? })
    }

    /// The files, one a rank.
    pub fn files(&self) -> &[TraceFile] {
        &self.plan.files
    }

    fn file(&self, rank: i32) -> Result<&TraceFile, Error> {
        let file = self.plan.files.iter().find(|file| file.rank == rank);
        file.ok_or_else(|| Error::NoRank { path: self.path.clone(), why: format!("there is no trace of rank {rank}") })
    }
}

impl Source for KinetoSource {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            path: self.path.clone(),
            run_id: String::new(),
            tool: "torch.profiler".into(),
            world_size: Some(self.plan.world_size),
        }
    }

    fn ranks(&self) -> Vec<i32> {
        self.plan.files.iter().map(|file| file.rank).collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.plan.omissions.clone()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        load(self.file(rank)?)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        load_detailed(self.file(rank)?)
    }
}
