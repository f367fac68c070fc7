//! The replay of a run for questions of what would be if something were different.

use std::collections::BTreeSet;

use trace::PipelineRow;

use crate::foreseen::Foreseen;
use crate::graph::NONE;
use crate::lost_time::Accounted;
use crate::prices::ERROR_OF_STEP;
use crate::rebucket::{Bound, Gradients};
use crate::replay::{Change, Replay};
use crate::scaled::{Scaled, inner};
use measure::own_time::OwnTime;
use topology::per_step::PerStep;

/// What is different.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Different {
    /// The ranks that work as a typical rank of their role does.
    pub typical: BTreeSet<i32>,
    /// Communicators, and the factor by which the time of their transfers changes. An earlier entry wins.
    pub scales: Vec<(CommChoice, f64)>,
    /// Whether every collective blocks its ranks, so that nothing overlaps.
    pub blocks: bool,
    /// The bytes at which gradient buckets close.
    pub bucket_bytes: Option<i64>,
    /// The assumption about values that the recording does not hold.
    pub bound: Bound,
}

impl Different {
    /// Whether the graph of the run can replay it: it has no other collectives.
    fn has_same_collectives(&self) -> bool {
        self.bucket_bytes.is_none()
    }

    /// The factor of the transfers of a communicator.
    fn scale_of(&self, comm_id: i64) -> f64 {
        let found = self.scales.iter().find(|(choice, _)| choice.is(comm_id));
        found.map_or(1.0, |(_, scale)| *scale)
    }
}

/// Communicators whose transfers change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommChoice {
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
pub struct Replayed {
    pub(super) replay: Replay,
    /// The graph of the run, for other lengths of its work and transfers.
    accounted: Option<Accounted>,
    /// Ascending.
    pub(super) ranks: Vec<i32>,
    /// For each of them, the position of the lowest rank of its stage.
    pub(super) stages: Vec<usize>,
    pub(super) per_step: PerStep,
    /// The sizes of the gradients in each bucket.
    pub gradients: Gradients,
}

impl Replayed {
    pub(super) fn of(
        (replay, accounted): (Replay, Option<Accounted>),
        parts: &[&OwnTime],
        stages: &[usize],
        per_step: PerStep,
    ) -> Self {
        let ranks = parts.iter().map(|part| part.rank).collect();
        Self { replay, accounted, ranks, stages: stages.to_vec(), per_step, gradients: Gradients::default() }
    }

    /// A half of the steps by the lengths of the other half; `None` without an account, or of few steps.
    pub fn foreseen(&self) -> Option<Foreseen> {
        self.accounted.as_ref()?.lost_time.foreseen
    }

    /// The ranks that were replayed, ascending.
    pub fn ranks(&self) -> &[i32] {
        &self.ranks
    }

    /// The lengths of the steps as recorded, and with something different. `None` if the replay cannot follow: no step has two buckets,
    /// which show when gradients are ready, or ranks call collectives in orders that contradict each other.
    ///
    /// Other buckets are replayed by the collectives: of the steps that have some, to the ends of their last ones; per step of the job, if
    /// only some of them have collectives. All else is replayed by the graph of the run.
    pub fn step_lengths_ns(&self, different: &Different) -> Option<[Vec<i64>; 2]> {
        if let Some(accounted) = self.accounted.as_ref().filter(|_| different.has_same_collectives()) {
            let Accounted { run, lengths, .. } = accounted;
            let is_typical = |rank: u32| {
                rank != NONE && self.ranks.get(rank as usize).is_some_and(|rank| different.typical.contains(rank))
            };
            let spans = run.graph.spans.iter().zip(lengths.recorded_ns.iter().zip(&lengths.typical_ns));
            let of_span = spans.map(|(span, (o, m))| if is_typical(span.rank) { *m } else { *o });
            let mut spans_ns: Vec<i64> = of_span.collect();
            run.scale_transfers(&mut spans_ns, &|comm_id| different.scale_of(comm_id));
            let lengths_of = |run: &Scaled, spans_ns: &[i64]| inner(&run.lengths_ns(spans_ns)).to_vec();
            let changed = match different.blocks {
                true => lengths_of(&run.blocked(self.ranks.len())?, &spans_ns),
                false => lengths_of(run, &spans_ns),
            };
            return Some([lengths_of(run, &lengths.recorded_ns), changed]);
        }
        Some([self.by_collectives_ns(&Different::default())?, self.by_collectives_ns(different)?])
    }

    fn by_collectives_ns(&self, different: &Different) -> Option<Vec<i64>> {
        let rebucketed = match different.bucket_bytes {
            Some(bytes) => Some(self.replay.rebucketed(bytes, &self.gradients, different.bound)?),
            None => None,
        };
        let replay = rebucketed.as_ref().unwrap_or(&self.replay);
        let is_typical = |rank: usize| self.ranks.get(rank).is_some_and(|rank| different.typical.contains(rank));
        let scale_of = |comm_id: i64| different.scale_of(comm_id);
        let mut earlier_ns = if different.scales.is_empty() { Vec::new() } else { replay.scaled_ns(&scale_of) };
        if different.bound == Bound::Long && !different.typical.is_empty() {
            earlier_ns.resize(replay.nodes.len(), 0);
            earlier_ns.iter_mut().zip(replay.after_waits_ns()).for_each(|(earlier, later)| *earlier += later);
        }
        let change = Change { is_typical: &is_typical, earlier_ns };
        Some(replay.step_lengths_ns(&change).into_iter().map(|ns| self.per_step.ns(ns)).collect())
    }

    /// The bubbles of a pipeline: the idle time if every rank works as is typical of its role and transfers take no time. Empty if
    /// ranks send nothing to each other.
    pub(crate) fn pipeline(&self) -> Vec<PipelineRow> {
        if !self.replay.has_sends {
            return Vec::new();
        }
        let earlier_ns = self.replay.scaled_ns(&|_| 0.0);
        let change = Change { is_typical: &|_| true, earlier_ns };
        let rows = self.replay.idle_ns(&change).into_iter();
        let ns = |ns| self.per_step.ns(ns);
        rows.filter_map(|(at, step, step_ns, bubble_ns)| {
            let (rank, stage) = (*self.ranks.get(at)?, *self.ranks.get(*self.stages.get(at)?)?);
            Some(PipelineRow { rank, stage, step, step_ns: ns(step_ns), bubble_ns: ns(bubble_ns) })
        })
        .collect()
    }

    /// The error of a replayed step: by how much the replay with nothing changed differs from the recording, for each of `steps` steps.
    /// The graph of the run does not differ; its error is the time that it does not explain.
    pub fn error_ns(&self, different: &Different, steps: usize) -> i64 {
        match self.accounted.as_ref().filter(|_| different.has_same_collectives()) {
            Some(Accounted { lost_time, .. }) => {
                // Only the order of calls says which work waits for a collective.
                let of_order = if different.blocks { ERROR_OF_STEP * lost_time.step_ns() as f64 } else { 0.0 };
                lost_time.unexplained_ns + of_order.round() as i64
            }
            None => self.replay.discrepancy_ns() / steps.max(1) as i64,
        }
    }
}
