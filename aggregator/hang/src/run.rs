//! The ranks of a run: by the dumps of those that were stalled, or by rows.

use std::any::Any;
use std::path::{Path, PathBuf};

use trace::{IN_FLIGHT_DIR, OmissionRow, RECORDED_BY, UnfinishedRow, place};

use crate::job::Job;
use crate::report::Hang;
use crate::state::RankState;
use crate::stuck::Stuck;
use crate::{dumps, rows};
use formats::run_source::RunSource;
use model::Error;
use model::source::Source;

impl Hang {
    /// Judges a job that is [stuck](Stuck) in one of the `unfinished` collectives, or that has stalled ranks; `None` for other jobs, and
    /// for formats that do not record what is in flight.
    ///
    /// # Errors
    /// As [`of_run`](Self::of_run).
    pub fn of_source(source: &dyn Source, unfinished: &[UnfinishedRow]) -> Result<Option<Self>, Error> {
        let source: &dyn Any = source;
        let is_hung =
            |run: &&RunSource| Stuck::of(unfinished).is_some() || !matches!(stalled(&run.info().path), Ok(None));
        source.downcast_ref::<RunSource>().filter(is_hung).map(Self::of_run).transpose()
    }

    /// Judges the job of a run.
    ///
    /// # Errors
    /// [`Error::Io`], and those of the dumps of its ranks.
    pub fn of_run(source: &RunSource) -> Result<Self, Error> {
        let info = source.info();
        let (states, omissions) = match stalled(&info.path)? {
            Some(stalled) => dumps::read(&[stalled], source.limit_bytes())?,
            None => recorded(source),
        };
        Ok(Self::of(Job::of(states, omissions, info.world_size)))
    }
}

/// The dumps of the ranks of a run that were stalled when it ended. They say more than its rows: they have what is in flight outside
/// of windows, and lines of the program.
pub(crate) fn stalled(run: &Path) -> Result<Option<PathBuf>, Error> {
    let directory = run.join(IN_FLIGHT_DIR);
    let io = |source| Error::Io { path: directory.clone(), source };
    if !place::is_directory(&directory).map_err(io)? {
        return Ok(None);
    }
    let entries = place::entries(&directory).map_err(io)?;
    Ok((!entries.is_empty()).then_some(directory))
}

/// The states of ranks by the rows of their run.
fn recorded(source: &RunSource) -> (Vec<RankState>, Vec<OmissionRow>) {
    let (states, mut omissions) = rows::read(source);
    if source.run().manifest.config.contains_key(RECORDED_BY) {
        let why = "the run has windows of a profiler, and no dump of a rank that was stalled";
        omissions.push(OmissionRow::left_out("operations outside of windows", why));
    }
    (states, omissions)
}
