//! Two runs compared, or two sets of runs: what got slower or faster, with an interval, and what is new or gone.
//!
//! Two kinds of rows. A row of *all ranks* is the mean over ranks: its change is that of the job, and cannot be told
//! from that of the machine unless several runs a side show how much runs differ. A row of *one rank* is that rank
//! against the median of the others in the same step: what befalls all ranks alike, a neighbour that takes processor
//! time or a slower network, is not in it.
//!
//! ```text
//!  run A, step s     rank 0 ####      rank 1 ####      rank 2 #####       rank 2 − median of 0, 1:  +1
//!  run B, step s     rank 0 ######    rank 1 ######    rank 2 ##########  rank 2 − median of 0, 1:  +4
//!                    all ranks: +3                     rank 2: +3 more than the others
//! ```
//!
//! How sure all that is, `statistics.rs` says.

mod judge;
mod profile;
mod sample;
mod statistics;
#[cfg(test)]
mod tests;

use serde::Serialize;
use trace::OmissionRow;

use crate::Error;
use crate::options::Options;
use crate::source::Source;

pub use profile::{Group, Key, Measure};
pub use statistics::Change;

pub(crate) use judge::plain_name;

pub(crate) use profile::{RunProfile, profile_run};

/// How a difference is judged. All of it stands in the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// In words.
    pub words: String,
    /// Share of the step below which a change does not matter.
    pub smallest_share: f64,
    /// Allowance for runs that differ, as variance of a run / variance of its steps.
    pub between_runs: f64,
    /// The same as a share of the row's own value (standard deviation).
    pub between_runs_relative: f64,
    /// Degrees of freedom that the allowance counts for.
    pub prior_df: f64,
    /// Of each interval.
    pub confidence: f64,
    /// Highest false discovery rate over all rows.
    pub false_discoveries: f64,
    /// Steps that a run must have to say how much its steps vary. With fewer nothing is significant, unless three
    /// runs a side show how much runs do.
    pub least_steps: usize,
}

impl Default for Method {
    fn default() -> Self {
        Self {
            words: "median over steps; standard error by circular block bootstrap over steps, plus variance between \
                    runs (an allowance with one run a side, measured with several); Student's t; false discoveries by \
                    Benjamini and Yekutieli"
                .into(),
            smallest_share: 0.01,
            between_runs: 1.0,
            between_runs_relative: 0.02,
            prior_df: 8.0,
            confidence: 0.95,
            false_discoveries: 0.05,
            least_steps: 5,
        }
    }
}

/// One of the runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunFacts {
    /// Where it is.
    pub path: String,
    /// Its id; empty for traces.
    pub run_id: String,
    /// Ranks that were read.
    pub ranks: Vec<i32>,
    /// Steps that all ranks have.
    pub steps: usize,
    /// Median step, mean over ranks.
    pub step_ns: f64,
    /// Its own verdict: who slowed whom down.
    pub verdict: String,
}

/// Whose row it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The mean over ranks.
    AllRanks,
    /// One rank against the median of the others.
    Rank(i32),
}

/// What is said of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Significantly slower.
    Slower,
    /// Significantly faster.
    Faster,
    /// No significant change.
    Unclear,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// What is compared.
    pub key: Key,
    /// Whose.
    pub place: Place,
    /// Its value in A: median over steps, mean over runs.
    pub a_ns: f64,
    /// Its value in B.
    pub b_ns: f64,
    /// The change; of one rank that beyond the other ranks.
    pub change: Change,
    /// The change / A's step, in percent.
    pub step_pct: f64,
    /// Adjusted for all rows.
    pub p_adjusted: f64,
    /// What is said of it.
    pub judgement: Judgement,
}

/// Something that only one side has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSided {
    /// What.
    pub key: Key,
    /// Time a step, mean over ranks and runs.
    pub step_ns: f64,
}

/// What is said in the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffVerdict {
    /// Something changed significantly.
    pub changed: bool,
    /// In a sentence.
    pub sentence: String,
    /// There are too few steps to call anything significant.
    pub too_few_steps: bool,
    /// Position in `rows` of what it is about.
    pub row: Option<usize>,
    /// The smallest change of all ranks' step that these runs can tell from noise; percent of A's step.
    pub detectable_step_pct: Option<f64>,
}

/// Two sides compared. One value that every renderer prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// Runs before.
    pub a: Vec<RunFacts>,
    /// Runs after.
    pub b: Vec<RunFacts>,
    /// How it was judged.
    pub method: Method,
    /// What is said.
    pub verdict: DiffVerdict,
    /// All comparisons: significant ones first, largest first.
    pub rows: Vec<DiffRow>,
    /// Rows whose time in both sides is below the smallest change that matters; they are not compared.
    pub too_small: usize,
    /// What only B has.
    pub appeared: Vec<OneSided>,
    /// What only A has.
    pub vanished: Vec<OneSided>,
    /// What was left out.
    pub omissions: Vec<OmissionRow>,
}

impl Diff {
    /// Significant slowdowns of more than `percent` of A's step: of the step itself, of own work, of transfers.
    pub fn slower_than(&self, percent: f64) -> impl Iterator<Item = &DiffRow> {
        let slower = |row: &&DiffRow| row.judgement == Judgement::Slower && row.key.is_cost();
        self.rows.iter().filter(slower).filter(move |row| row.step_pct > percent)
    }
}

/// Compares the runs of two sides. `progress` is called after each rank of each run, with the number done and the
/// number to do.
///
/// # Errors
/// As [`analyze`](crate::analyze); [`Error::NoInput`] if the sides have no rank in common, or a run has no step.
pub fn diff(
    a: &[&dyn Source],
    b: &[&dyn Source],
    options: &Options,
    method: &Method,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Diff, Error> {
    let total = a.iter().chain(b).map(|s| s.ranks().len()).sum();
    let done = std::sync::atomic::AtomicUsize::new(0);
    let tick = || progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, total);
    let mut omissions = Vec::new();
    let mut side = |sources: &[&dyn Source]| -> Result<Vec<(String, RunProfile)>, Error> {
        let mut runs = Vec::new();
        for source in sources {
            let path = source.info().path.display().to_string();
            let mut run = profile_run(*source, options, &tick)?;
            for mut omission in run.omissions.drain(..) {
                // Several runs have files of one name.
                omission.file = Some(match &omission.file {
                    Some(file) => format!("{path}: {file}").into(),
                    None => path.as_str().into(),
                });
                omissions.push(omission);
            }
            runs.push((path, run));
        }
        Ok(runs)
    };
    let (a, b) = (side(a)?, side(b)?);
    judge::compare(&a, &b, method, omissions)
}
