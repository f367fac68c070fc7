//! A source of ranks: a recorded run, or any other format that converts to [`RankData`].

use std::any::Any;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use trace::rank::Details;
use trace::{OmissionRow, Text, place};

use crate::options::Options;
use crate::units::{self, omission};
use crate::{Error, RankData, RankOutline};

/// Properties of the whole source, known before any rank is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceInfo {
    /// Path of the source.
    pub path: PathBuf,
    /// Id of the run; empty for traces.
    pub run_id: String,
    /// Tool that wrote the source.
    pub tool: String,
    /// Number of ranks in the job; `None` if the source does not record it.
    pub world_size: Option<i32>,
    /// UTC at the start of the recording, in ns since 1970; `None` if the source does not record it.
    pub created_utc_ns: Option<i64>,
    /// Command line of the job; empty if the source does not record it.
    pub command: Vec<String>,
    /// Files of a run's tables that are not read, by their paths in it: damaged ones, altered ones and those of other runs.
    pub left_out_files: BTreeSet<String>,
}

/// The ranks of a job that a source does not have. A manifest or a trace may claim any number of ranks, so only the first are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRanks {
    /// The first of them, ascending.
    pub listed: Vec<i32>,
    /// The number of all of them.
    pub count: i64,
}

/// Maximum number of missing ranks in a list.
const MOST_LISTED: usize = 1 << 14;

impl MissingRanks {
    /// Of a job of `world_size` ranks. `present` ascend.
    pub fn of(world_size: i32, present: &[i32]) -> Self {
        let is_missing = |rank: &i32| present.binary_search(rank).is_err();
        let held = present.iter().filter(|rank| (0..world_size).contains(rank)).count();
        let listed = (0..world_size).filter(is_missing).take(MOST_LISTED).collect();
        Self { listed, count: i64::from(world_size.max(0)) - held as i64 }
    }

    /// The omission for those beyond the list.
    pub fn unlisted(&self) -> Option<OmissionRow> {
        let why = format!("only the first {MOST_LISTED} of them are listed");
        (self.count > self.listed.len() as i64).then(|| OmissionRow::note("missing ranks", why).amount(self.count))
    }
}

/// A file of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankFile {
    /// The rank.
    pub rank: i32,
    /// The file.
    pub path: PathBuf,
    /// The name of a trace of torch.profiler. The path of an archive's member is temporary.
    pub name: Option<Text>,
    /// Its size; of a directory 0.
    pub size_bytes: u64,
}

impl RankFile {
    /// A file with its size.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of(rank: i32, path: &Path) -> Result<Self, Error> {
        let size_bytes = match place::kind(path) {
            Ok(place::Kind::File { bytes }) => bytes,
            Ok(place::Kind::Directory | place::Kind::Other) => 0,
            Err(source) => return Err(Error::Io { path: path.into(), source }),
        };
        Ok(Self { rank, path: path.into(), name: None, size_bytes })
    }
}

/// A set of ranks that can be loaded one by one, from several threads: the door for every format.
///
/// A source states its ranks, and turns each into a [`RankData`]: rows sorted by time with an index of names, steps, collectives, and a
/// clock domain. Columns that the format lacks hold `NONE`, tables that it lacks are empty, and the analysis says what is missing.
/// Ranks of one clock domain share a clock; the clocks of others are compared by their collectives. What cannot be read of a rank
/// is an omission in its data, with the rank and the file, and an unreadable file is a [problem](Self::problems) of the source. A rank is
/// loaded more than once, and gives the same data each time.
pub trait Source: Any + Send + Sync {
    /// The properties of the whole source.
    fn info(&self) -> SourceInfo;
    /// The ranks that can be loaded, ascending.
    fn ranks(&self) -> Vec<i32>;
    /// The files of the ranks, ascending by rank; a rank may have several, and one file several ranks. A run has none: its shards are listed
    /// in its manifest.
    ///
    /// # Errors
    /// [`Error::Io`] if the size of a file is unknown.
    fn files(&self) -> Result<Vec<RankFile>, Error> {
        Ok(Vec::new())
    }
    /// Problems of the whole source: unreadable files, missing ranks.
    fn problems(&self) -> Vec<OmissionRow>;
    /// Loads one rank.
    ///
    /// # Errors
    /// Only if nothing of the rank is usable. Smaller problems are listed in [`RankData::omissions`].
    fn load(&self, rank: i32) -> Result<RankData, Error>;
    /// Loads only the data that aligns one rank's clock. This is cheaper than loading the rows, if the source can avoid
    /// them. Omissions are listed by the next load.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn outline(&self, rank: i32) -> Result<RankOutline, Error> {
        let mut data = self.load(rank)?;
        data.measure_outline();
        Ok(data.outline)
    }
    /// The data that this format never records although a run of rankscope has them. A job of several formats lists them by rank.
    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }
    /// Loads one rank for a reader of its rows, steps and collectives only. This is cheaper, if the source can avoid the rest: rows may
    /// have no FLOPs, and other tables may be empty. The omissions do not list losses of these.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_rows(&self, rank: i32) -> Result<RankData, Error> {
        self.load(rank)
    }
    /// Loads one rank with its shapes, stacks and modules, if the source has them.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        Ok((self.load(rank)?, Details::default()))
    }
}

/// The error of a command without a rank to use: `wanted` are none of the recorded ones, or a problem hides all of them.
pub fn no_rank(source: &dyn Source, wanted: Option<&BTreeSet<i32>>) -> Error {
    let (all, problems, path) = (source.ranks(), source.problems(), source.info().path);
    if let Some(wanted) = wanted
        && !all.is_empty()
    {
        let selection = Options { ranks: Some(wanted.clone()), ..Options::default() }.selection().unwrap_or_default();
        return Error::NothingSelected {
            path,
            selection,
            why: format!("the recorded ranks are {}", units::ranks(&all)),
        };
    }
    let why = match problems.first() {
        None => "there are no rows of any rank".to_string(),
        Some(only) if problems.len() == 1 => omission(only),
        Some(first) => format!("{} reasons, the first: {}", problems.len(), omission(first)),
    };
    Error::NoRank { path, why }
}
