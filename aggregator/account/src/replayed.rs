//! The replay of a run for questions of what would be if something were different.

use std::collections::BTreeSet;

use crate::foreseen::Foreseen;
use crate::graph::NONE;
use crate::lost_time::Accounted;
use crate::prices::ERROR_OF_STEP;
use crate::rebucket::{Bound, Buckets, Gradients};
use crate::scaled::{Scaled, Unaccounted, inner};
use measure::own_time::OwnTime;
use topology::join::Join;

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

/// A run that can be replayed with something different.
#[derive(Debug)]
pub struct Replayed {
    /// The graph of the run; else why there is none.
    accounted: Result<Accounted, Unaccounted>,
    /// Ascending.
    ranks: Vec<i32>,
    buckets: Vec<Buckets>,
    /// The sizes of the gradients in each bucket.
    pub gradients: Gradients,
}

impl Replayed {
    pub(super) fn of(accounted: Result<Accounted, Unaccounted>, parts: &[&OwnTime], join: &Join) -> Self {
        let ranks = parts.iter().map(|part| part.rank).collect();
        Self { accounted, ranks, buckets: Buckets::of(join), gradients: Gradients::default() }
    }

    /// A half of the steps by the lengths of the other half; `None` without an account, or of few steps.
    pub fn foreseen(&self) -> Option<Foreseen> {
        self.accounted.as_ref().ok()?.lost_time.foreseen
    }

    /// Why the run cannot be replayed, in words; `None` if it can.
    pub fn unaccounted(&self) -> Option<&'static str> {
        self.accounted.as_ref().err().map(|why| why.why())
    }

    /// The ranks that were replayed, ascending.
    pub fn ranks(&self) -> &[i32] {
        &self.ranks
    }

    /// The lengths of the steps as recorded, and with something different; of four steps or more, of the inner ones. `None` if the
    /// replay cannot follow: there is no account, no step has two buckets, which show when gradients are ready, or ranks would wait for
    /// each other for ever.
    pub fn step_lengths_ns(&self, different: &Different) -> Option<[Vec<i64>; 2]> {
        let Accounted { run, lengths, .. } = self.accounted.as_ref().ok()?;
        let mut changed: Option<Scaled> = None;
        if let Some(bytes) = different.bucket_bytes {
            let known = (&self.gradients, different.bound);
            changed = Some(run.rebucketed(&self.buckets, bytes, known, self.ranks.len())?);
        }
        if different.blocks {
            changed = Some(changed.as_ref().unwrap_or(run).blocked(self.ranks.len())?);
        }
        let changed = changed.as_ref().unwrap_or(run);
        let is_typical = |rank: u32| {
            rank != NONE && self.ranks.get(rank as usize).is_some_and(|rank| different.typical.contains(rank))
        };
        let typical_ns = (0..).zip(&changed.graph.spans).map(|(at, span): (usize, _)| {
            let typical = lengths.typical_ns.get(at).filter(|_| is_typical(span.rank));
            typical.copied().unwrap_or(span.len_ns)
        });
        let mut spans_ns: Vec<i64> = typical_ns.collect();
        changed.scale_transfers(&mut spans_ns, &|comm_id| different.scale_of(comm_id));
        let lengths_of = |run: &Scaled, spans_ns: &[i64]| inner(&run.lengths_ns(spans_ns)).to_vec();
        Some([lengths_of(run, &lengths.recorded_ns), lengths_of(changed, &spans_ns)])
    }

    /// The error of a replayed step: the time that the graph does not explain.
    pub fn error_ns(&self, different: &Different) -> i64 {
        let Ok(Accounted { lost_time, .. }) = &self.accounted else { return 0 };
        // Only the order of calls says which work waits for a collective.
        let of_order = if different.blocks { ERROR_OF_STEP * lost_time.step_ns() as f64 } else { 0.0 };
        lost_time.unexplained_ns + of_order.round() as i64
    }
}
