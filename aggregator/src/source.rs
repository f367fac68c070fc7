//! Where ranks come from: a run, or whatever else can be turned into [`RankData`].

use std::path::{Path, PathBuf};

use trace::{OmissionRow, Run};

use crate::Error;
use crate::details::Details;
use crate::load::{load_rank, load_rank_detailed, omission_of, outline_rank};
use crate::model::RankData;
use crate::outline::Outline;

/// What is known of the whole before any rank is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// Where it is.
    pub path: PathBuf,
    /// Id of the run; empty for traces.
    pub run_id: String,
    /// What wrote it.
    pub tool: String,
    /// Ranks in the job, where known.
    pub world_size: Option<i32>,
}

/// A set of ranks that can be loaded one by one, from several threads.
pub trait Source: Sync {
    /// What is known of the whole.
    fn info(&self) -> SourceInfo;
    /// Ranks that can be loaded, ascending.
    fn ranks(&self) -> Vec<i32>;
    /// What is wrong with the whole: files that cannot be read, ranks that are missing.
    fn problems(&self) -> Vec<OmissionRow>;
    /// Loads one rank.
    ///
    /// # Errors
    /// Only if nothing of the rank can be used; less than that stands in [`RankData::omissions`].
    fn load(&self, rank: i32) -> Result<RankData, Error>;
    /// Loads what puts one rank on the clock of all: cheaper than its rows, where the source can do without them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn outline(&self, rank: i32) -> Result<Outline, Error> {
        Ok(Outline::of(self.load(rank)?))
    }
    /// Loads one rank with shapes, stacks and modules, as far as the source has them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        Ok((self.load(rank)?, Details::default()))
    }
}

/// A run that ranks recorded.
#[derive(Clone, Debug)]
pub struct RunSource {
    run: Run,
}

impl RunSource {
    /// Opens a run.
    ///
    /// # Errors
    /// As [`Run::open`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { run: Run::open(path)? })
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }
}

impl Source for RunSource {
    fn info(&self) -> SourceInfo {
        let manifest = &self.run.manifest;
        SourceInfo {
            path: self.run.path.clone(),
            run_id: manifest.run_id.clone(),
            tool: manifest.tool.clone(),
            world_size: Some(manifest.world_size),
        }
    }

    fn ranks(&self) -> Vec<i32> {
        self.run.ranks()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        self.run.problems.iter().cloned().map(|p| omission_of(p, &self.run.path)).collect()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Ok(load_rank(&self.run, rank))
    }

    fn outline(&self, rank: i32) -> Result<Outline, Error> {
        Ok(outline_rank(&self.run, rank))
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        Ok(load_rank_detailed(&self.run, rank))
    }
}
