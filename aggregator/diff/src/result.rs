//! The result of a comparison.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trace::OmissionRow;

use crate::kernel_counts::KernelCounts;
use crate::method::{Change, Method};
use crate::profile::Key;
use crate::unlike::{Difference, OtherShapes};

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
    /// Length of a step: mean over ranks, and over the middle half of the steps.
    pub step_ns: f64,
    /// Verdict of the run's own analysis, as a sentence.
    pub verdict: String,
    /// The ranks that it names as causes, each with where its time goes.
    pub causes: BTreeMap<i32, String>,
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
    /// Value in A: median over steps, mean over runs. Of the step and its parts: mean over the middle half of the steps by
    /// length, so that the parts sum to the step.
    pub a_ns: f64,
    /// Value in B, likewise.
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
        self.key.is_step()
    }
}

/// A name that only one side has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSided {
    /// The quantity that only one side has. Its shape is `None` if there are several.
    pub key: Key,
    /// Number of rows per step, mean over ranks and runs; `None` where rows are not counted.
    pub calls: Option<f64>,
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
    /// The properties in which the sides differ, beside times.
    pub differences: Vec<Difference>,
    /// The comparisons that would have no meaning, each with its reason.
    pub not_compared: Vec<String>,
    /// All compared rows: significant ones first, then by size.
    pub rows: Vec<DiffRow>,
    /// Number of rows that were not compared, because their time is below the smallest relevant change on both sides.
    pub too_small: usize,
    /// Kernels and launches per step; `None` if neither side has kernels.
    pub kernels: Option<KernelCounts>,
    /// Names that only B has.
    pub appeared: Vec<OneSided>,
    /// Names that only A has.
    pub vanished: Vec<OneSided>,
    /// Names that both sides have, with other shapes: the longest time first.
    pub other_shapes: Vec<OtherShapes>,
    /// Input that was left out.
    pub omissions: Vec<OmissionRow>,
}

impl Diff {
    /// The heading. It never says that nothing changed where the interval of the step's change excludes 0.
    pub fn heading(&self) -> Heading {
        match self.verdict.row.and_then(|at| self.rows.get(at)).map(|row| row.judgement) {
            Some(Judgement::Slower) => Heading::Slower,
            Some(Judgement::Faster) => Heading::Faster,
            _ if self.sides_are_equal() => Heading::NoChange,
            _ if self.verdict.too_few_steps => Heading::TooFewSteps,
            _ if self.step().is_some_and(|row| row.change.may_be_none()) => Heading::NoChange,
            _ => Heading::Undecided,
        }
    }

    /// Whether nothing differs at all, as when a run is compared with itself.
    pub(crate) fn sides_are_equal(&self) -> bool {
        let one_sided = self.appeared.len() + self.vanished.len() + self.other_shapes.len() + self.differences.len();
        let counts = self.kernels.as_ref().map_or(0, |kernels| kernels.changes.len());
        let equal = |row: &DiffRow| row.change.delta_ns == 0.0 && row.a_ns == row.b_ns;
        one_sided + counts == 0 && self.step().is_some() && self.rows.iter().all(equal)
    }

    /// The row of the step of all ranks.
    pub(crate) fn step(&self) -> Option<&DiffRow> {
        self.rows.iter().find(|row| row.place == Place::AllRanks && row.is_step())
    }

    /// Slowdowns above `percent` of A's step that are significant: of the step itself, of own work, of transfers, of what a rank costs.
    pub fn slower_than(&self, percent: f64) -> impl Iterator<Item = &DiffRow> {
        let slower = |row: &&DiffRow| row.judgement == Judgement::Slower && row.key.is_cost();
        self.rows.iter().filter(slower).filter(move |row| row.step_pct > percent)
    }

    /// Whether a row shows more than how the machine was in that hour: ranks of one run are compared with each other, but that all
    /// ranks changed shows only over several runs a side. So does a change of one of two ranks, because its only peer does not show how
    /// much ranks differ from run to run.
    pub fn is_proof(&self, row: &DiffRow) -> bool {
        let rank_of = |row: &DiffRow| match row.place {
            Place::Rank(rank) => Some(rank),
            Place::AllRanks => None,
        };
        let ranks: BTreeSet<i32> = self.rows.iter().filter_map(rank_of).collect();
        self.a.len().min(self.b.len()) > 1 || (rank_of(row).is_some() && ranks.len() > 2)
    }
}
