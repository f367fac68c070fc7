//! The replay of a run for questions of what would be if something were different.

use std::collections::BTreeSet;

use crate::judge::stragglers::per_step::PerStep;
use crate::judge::stragglers::replay::{Change, Replay};

/// What is different.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Different {
    /// The ranks that work as a typical rank of their role does.
    pub(crate) typical: BTreeSet<i32>,
    /// Communicators, and the factor by which the time of their transfers changes. An earlier entry wins.
    pub(crate) scales: Vec<(CommChoice, f64)>,
    /// Whether every collective blocks its ranks, so that nothing overlaps.
    pub(crate) blocks: bool,
}

/// Communicators whose transfers change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommChoice {
    All,
    Only(i64),
}

impl CommChoice {
    fn is(self, comm_id: i64) -> bool {
        self == Self::All || self == Self::Only(comm_id)
    }
}

/// A replay, with the ranks that it was made of.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(super) replay: Replay,
    /// Ascending.
    pub(super) ranks: Vec<i32>,
    pub(super) per_step: PerStep,
}

impl Replayed {
    /// The ranks that were replayed, ascending.
    pub(crate) fn ranks(&self) -> &[i32] {
        &self.ranks
    }

    /// The lengths of the steps with collectives, to the ends of their last ones; per step of the job, if only some of them have
    /// collectives.
    pub(crate) fn step_lengths_ns(&self, different: &Different) -> Vec<i64> {
        let is_typical = |rank: usize| self.ranks.get(rank).is_some_and(|rank| different.typical.contains(rank));
        let scale_of = |comm_id: i64| {
            let found = different.scales.iter().find(|(choice, _)| choice.is(comm_id));
            found.map_or(1.0, |(_, scale)| *scale)
        };
        let earlier_ns = if different.scales.is_empty() { Vec::new() } else { self.replay.scaled_ns(&scale_of) };
        let change = Change { is_typical: &is_typical, earlier_ns, blocks: different.blocks };
        self.replay.step_lengths_ns(&change).into_iter().map(|ns| self.per_step.ns(ns)).collect()
    }

    /// By how much the replay with nothing changed differs from the recording, for each of `steps` steps.
    pub(crate) fn error_ns(&self, steps: usize) -> i64 {
        self.replay.discrepancy_ns() / steps.max(1) as i64
    }
}
