//! The result of a comparison.

use serde::Serialize;
use trace::OmissionRow;

use crate::kernel_counts::KernelCounts;
use crate::method::{Change, Method};
use crate::profile::{Group, Key};

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

impl DiffRow {
    /// Whether the row is about the length of the step.
    pub(crate) fn is_step(&self) -> bool {
        self.key.group == Group::Step && &*self.key.name == "wall"
    }
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

/// The answer of the comparison as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// The row of the sentence is significantly slower.
    Slower,
    /// The row of the sentence is significantly faster.
    Faster,
    /// No row is significant, and the interval of the step's change holds 0.
    NoChange,
    /// A run has too few steps, so no row can be significant.
    TooFewSteps,
    /// No row is significant, but the interval of the step's change excludes 0, or the step was not compared.
    Undecided,
}

impl Heading {
    /// The heading in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Slower => "Slower",
            Self::Faster => "Faster",
            Self::NoChange => "No significant change",
            Self::TooFewSteps => "Too few steps to judge",
            Self::Undecided => "Undecided",
        }
    }
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
    /// The heading. It never says that nothing changed where the interval of the step's change excludes 0.
    pub fn heading(&self) -> Heading {
        match self.verdict.row.and_then(|at| self.rows.get(at)).map(|row| row.judgement) {
            Some(Judgement::Slower) => Heading::Slower,
            Some(Judgement::Faster) => Heading::Faster,
            _ if self.verdict.too_few_steps => Heading::TooFewSteps,
            _ if self.step().is_some_and(|row| row.change.may_be_none()) => Heading::NoChange,
            _ => Heading::Undecided,
        }
    }

    /// The row of the step of all ranks.
    pub(crate) fn step(&self) -> Option<&DiffRow> {
        self.rows.iter().find(|row| row.place == Place::AllRanks && row.is_step())
    }

    /// Slowdowns above `percent` of A's step that are significant: of the step itself, of own work, of transfers.
    pub fn slower_than(&self, percent: f64) -> impl Iterator<Item = &DiffRow> {
        let slower = |row: &&DiffRow| row.judgement == Judgement::Slower && row.key.is_cost();
        self.rows.iter().filter(slower).filter(move |row| row.step_pct > percent)
    }
}
