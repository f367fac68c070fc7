//! Compares two runs, or two sets of runs: rows that got slower or faster, with intervals, and rows that appeared or
//! vanished.
//!
//! There are two kinds of rows. A row of *all ranks* is the mean over ranks. Its change is that of the job; only
//! several runs a side can separate it from a change of the machine. A row of *one rank* compares that rank with the
//! median of the others in the same step. Effects that hit all ranks alike, such as a neighbour's processor load or a
//! slower network, cancel in it.
//!
//! ```text
//!  run A, step s     rank 0 ####      rank 1 ####      rank 2 #####       rank 2 − median of 0, 1:  +1
//!  run B, step s     rank 0 ######    rank 1 ######    rank 2 ##########  rank 2 − median of 0, 1:  +4
//!                    all ranks: +3                     rank 2: +3 more than the others
//! ```
//!
//! The statistics are in `inference.rs`.

mod inference;
mod judge;
mod kernel_counts;
mod profile;
mod same_job;
mod sample;
mod series;
#[cfg(test)]
mod tests;

use serde::Serialize;
use trace::OmissionRow;

use crate::Error;
use crate::ingest::source::Source;
use crate::model::options::Options;

pub use inference::Change;
pub use kernel_counts::{KernelCounts, NameCount, SideKernels};
pub use profile::{Group, Key, Measure};

pub(crate) use judge::plain_name;

pub(crate) use profile::{RunProfile, profile_run};

/// The method of the comparison and its parameters. The result contains all of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Method {
    /// The method in words.
    pub words: String,
    /// Share of the step below which a change does not matter.
    pub smallest_share: f64,
    /// Allowance for the variation between runs: variance of a run / variance of its steps.
    pub between_runs: f64,
    /// The allowance as a share of the row's own value (standard deviation).
    pub between_runs_relative: f64,
    /// Degrees of freedom that the allowance contributes.
    pub prior_df: f64,
    /// Confidence level of each interval.
    pub confidence: f64,
    /// Highest false discovery rate over all rows.
    pub false_discoveries: f64,
    /// Minimum number of steps of a run to estimate the variation of its steps. With fewer, nothing is significant
    /// unless at least three runs a side show the variation between runs.
    pub least_steps: usize,
    /// Whether runs of different world sizes or programs are compared.
    pub unlike_runs: bool,
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
            unlike_runs: false,
        }
    }
}

/// One of the compared runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunFacts {
    /// Path of the run.
    pub path: String,
    /// Id of the run; empty for traces.
    pub run_id: String,
    /// Ranks that were read.
    pub ranks: Vec<i32>,
    /// Number of steps that all ranks have.
    pub steps: usize,
    /// Median step, mean over ranks.
    pub step_ns: f64,
    /// Verdict of the run's own analysis, as a sentence.
    pub verdict: String,
}

/// The rank or ranks that a row describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The mean over ranks.
    AllRanks,
    /// One rank against the median of the others.
    Rank(i32),
}

/// The judgement of a row.
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

/// One compared row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// The compared quantity.
    pub key: Key,
    /// The rank or ranks that the row describes.
    pub place: Place,
    /// Value in A: median over steps, mean over runs.
    pub a_ns: f64,
    /// Value in B: median over steps, mean over runs.
    pub b_ns: f64,
    /// The change from A to B. For one rank: its change beyond that of the other ranks.
    pub change: Change,
    /// The change as a percentage of A's step.
    pub step_pct: f64,
    /// p-value, adjusted for the number of rows.
    pub p_adjusted: f64,
    /// Whether the change is significant.
    pub judgement: Judgement,
}

/// A row that only one side has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSided {
    /// The quantity that only one side has.
    pub key: Key,
    /// Time per step, mean over ranks and runs.
    pub step_ns: f64,
}

/// The verdict of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffVerdict {
    /// Whether something changed significantly.
    pub changed: bool,
    /// The verdict as a sentence.
    pub sentence: String,
    /// Whether there are too few steps for any significant result.
    pub too_few_steps: bool,
    /// Index in `rows` of the row that the sentence describes.
    pub row: Option<usize>,
    /// The smallest change of all ranks' step that these runs can detect, in percent of A's step.
    pub detectable_step_pct: Option<f64>,
}

/// The comparison of two sides: one value that every renderer prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The runs of side A (before).
    pub a: Vec<RunFacts>,
    /// The runs of side B (after).
    pub b: Vec<RunFacts>,
    /// The method of the comparison.
    pub method: Method,
    /// The verdict of the comparison.
    pub verdict: DiffVerdict,
    /// All compared rows: significant ones first, then by size.
    pub rows: Vec<DiffRow>,
    /// Number of rows that were not compared, because their time is below the smallest relevant change on both sides.
    pub too_small: usize,
    /// Kernels and launches per step; `None` if neither side has kernels.
    pub kernels: Option<KernelCounts>,
    /// Rows that only B has.
    pub appeared: Vec<OneSided>,
    /// Rows that only A has.
    pub vanished: Vec<OneSided>,
    /// Input that was left out.
    pub omissions: Vec<OmissionRow>,
}

impl Diff {
    /// Slowdowns above `percent` of A's step that are significant: of the step itself, of own work, of transfers.
    pub fn slower_than(&self, percent: f64) -> impl Iterator<Item = &DiffRow> {
        let slower = |row: &&DiffRow| row.judgement == Judgement::Slower && row.key.is_cost();
        self.rows.iter().filter(slower).filter(move |row| row.step_pct > percent)
    }
}

/// Compares the runs of two sides. Calls `progress` after each rank of each run, with the number of finished ranks and
/// the total.
///
/// # Errors
/// The errors of [`analyze`](crate::analyze); [`Error::NoInput`] if the sides have no common rank, or a run has no
/// step; [`Error::UnlikeRuns`] if the runs have different world sizes or programs, unless [`Method::unlike_runs`] allows
/// that.
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
                // File names repeat between runs, so add the run.
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
