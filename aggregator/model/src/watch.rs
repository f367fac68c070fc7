//! The state of a run that is being watched.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trace::OmissionRow;

use crate::analysis::{Analysis, RankIdentity, Verdict};

/// The state of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no run yet, for this reason.
    Waiting(String),
    /// Ranks write it.
    Recording,
    /// No rank has written for this long.
    Silent(Duration),
    /// All ranks that recorded have closed their recording, or their processes are gone.
    Ended {
        /// Whether all of them closed it.
        clean: bool,
    },
}

/// A rank that slows the job down, by the rule of `analyze` on the newest steps.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowRank {
    /// Where it runs.
    pub identity: RankIdentity,
    /// By how much it delays a step.
    pub step_delay_ns: i64,
    /// The 95 % interval of that delay, if it is known.
    pub interval_ns: Option<(i64, i64)>,
    /// Where the time goes, in words.
    pub location: String,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The run exists, and ranks write it.
    Began,
    /// Ranks are slow from now on.
    Slow(Vec<SlowRank>),
    /// These ranks are not slow any more.
    Cleared(Vec<i32>),
    /// Collectives do not end; the first in words.
    Hang(String),
    /// The job goes on after a hang.
    HangOver,
    /// Recorders lost rows.
    Lost {
        /// Number of rows.
        rows: i64,
        /// The reason.
        why: String,
    },
    /// A shard cannot be read.
    Unreadable(OmissionRow),
    /// No rank writes any more.
    Silent,
    /// Ranks write again.
    Resumed,
    /// The run has ended.
    Ended,
}

/// The state of a run after a refresh.
#[derive(Clone, Debug)]
pub struct State {
    /// The run.
    pub path: PathBuf,
    /// Id of the run; empty before it exists.
    pub run_id: String,
    /// Number of ranks in the job.
    pub world_size: i32,
    /// Ranks that record, ascending.
    pub ranks: Vec<i32>,
    /// The state of the run.
    pub phase: Phase,
    /// The newest active step that all of these ranks have written.
    pub step: Option<i32>,
    /// The newest steps of all ranks and their lengths (the lower median over the ranks), ascending.
    pub recent: Vec<(i32, i64)>,
    /// Lengths of all steps since the watch began.
    pub histogram: Histogram,
    /// The steps that were judged last.
    pub window: Range<i32>,
    /// Their analysis.
    pub analysis: Option<Analysis>,
    /// Why the newest steps could not be judged.
    pub not_judged: Option<String>,
    /// Ranks with an alarm.
    pub slow: Vec<SlowRank>,
    /// The collective that does not end, in words.
    pub hang: Option<String>,
    /// Ranks that are missing from it.
    pub missing: Vec<i32>,
    /// Why a rank was stopped before the end of its program.
    pub stopped: Option<String>,
    /// Rows that the recorders lost.
    pub lost_rows: i64,
    /// Shards that could not be read.
    pub unreadable: u64,
}

impl State {
    /// A run that need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            run_id: String::new(),
            world_size: 0,
            ranks: Vec::new(),
            phase: Phase::Waiting("it does not exist yet".into()),
            step: None,
            recent: Vec::new(),
            histogram: Histogram::default(),
            window: 0..0,
            analysis: None,
            not_judged: None,
            slow: Vec::new(),
            hang: None,
            missing: Vec::new(),
            stopped: None,
            lost_rows: 0,
            unreadable: 0,
        }
    }

    /// The verdict on the newest steps.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.analysis.as_ref().map(|analysis| &analysis.verdict)
    }
}

/// Upper bounds of the histogram's buckets, in seconds.
pub const BOUNDS_S: [f64; 13] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A histogram of the lengths of steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Steps by the first bound that they do not exceed; the last number is of those beyond all bounds.
    pub counts: [u64; BOUNDS_S.len() + 1],
    /// Sum of the lengths.
    pub sum_ns: i64,
}

impl Histogram {
    /// Adds a step.
    pub fn add(&mut self, step_ns: i64) {
        let at = BOUNDS_S.partition_point(|bound| *bound < step_ns as f64 / 1e9);
        self.counts[at] += 1;
        self.sum_ns = self.sum_ns.saturating_add(step_ns.max(0));
    }
}
