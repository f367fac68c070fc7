//! The result of a comparison.

use serde::Serialize;
use trace::OmissionRow;

use crate::kernel_counts::KernelCounts;
use crate::method::{Change, Method};
use crate::profile::Key;

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
