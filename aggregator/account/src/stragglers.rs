//! The results of the reduction.

use std::collections::BTreeMap;

use model::analysis::Analysis;
use trace::{
    JobPathRow, LostTimeLineRow, LostTimeRow, OmissionRow, PipelineRow, StragglerRow, StragglerStepRow, WaitRow,
};

use crate::replayed::Replayed;

/// By how much a step would be shorter without all causes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// Per step.
    pub ns: i64,
    /// The 95 % interval.
    pub interval_ns: (i64, i64),
}

/// The collective in which a rank waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Its position among the collectives of the rank.
    pub collective: u32,
    /// Whether all its ranks wait for each other.
    pub symmetric: bool,
    /// Whether every expected rank took part, and has left it.
    pub complete: bool,
}

/// The result of the reduction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stragglers {
    /// One row for each rank, ascending.
    pub stragglers: Vec<StragglerRow>,
    /// One row for each rank and compared step, in that order.
    pub steps: Vec<StragglerStepRow>,
    /// One row for each instance and rank, in that order.
    pub waits: Vec<WaitRow>,
    /// The collective of each of `waits`.
    pub waited: Vec<Waited>,
    /// The critical path of the job, by time.
    pub job_path: Vec<JobPathRow>,
    /// The bubbles of a pipeline.
    pub pipeline: Vec<PipelineRow>,
    /// The sum of all waits. The charges add up to it exactly: `waited_ns` = Σ `charged_ns` + `before_recording_ns`.
    pub waited_ns: i64,
    /// Waits charged to each rank, in the order of `stragglers`. Divided by the steps, this is `caused_wait_ns`.
    pub charged_ns: Vec<i64>,
    /// Waits for ranks that were already late at the first recorded collective.
    pub before_recording_ns: i64,
    /// By how much a step would be shorter without all causes; `None` if there are not several.
    pub together: Option<Together>,
    /// The ranks that show the typical work, ascending, if most of the ranks that do the same work as these are slow; else none.
    pub usual: Vec<i32>,
    /// The account of lost time; empty without a graph of the run.
    pub lost_time: Vec<LostTimeRow>,
    /// What takes time in it.
    pub lost_time_lines: Vec<LostTimeLineRow>,
    /// By how much a step is shorter if each all-gather is called with the one before it; `None` without such, or without an account.
    pub early_gathers_ns: Option<i64>,
    /// Steps and collectives that could not be used, with the reason.
    pub omissions: Vec<OmissionRow>,
}

/// An analysis with the replay that stated its costs.
pub struct AnalyzedReplay {
    /// The analysis.
    pub analysis: Analysis,
    /// Names of communicators.
    pub comm_names: BTreeMap<i64, String>,
    /// The run, which can be replayed with something different.
    pub replayed: Replayed,
}
