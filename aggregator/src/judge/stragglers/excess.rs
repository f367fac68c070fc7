//! Own excess by rank and step.

use std::collections::BTreeMap;

use crate::base::stats::lower_median;
use crate::judge::stragglers::join::{Join, Joined};
use crate::judge::stragglers::per_step::PerStep;

/// E(rank, step): a rank's own time before each collective of the step, minus the lower median of the ranks, summed
/// over these collectives.
///
/// Ranks are compared only at collectives in which all ranks have the same role, because before these they do the same
/// work. The peer of a send or a receive is another stage of a pipeline, so own time before it is added to the next
/// collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Excess {
    /// Steps in which at least two ranks can be compared, ascending.
    pub(super) steps: Vec<i32>,
    /// The excess of each rank in each of `steps`, per step of the job; `None` if the rank did not take part, or its own
    /// stretches are unknown.
    pub(super) ns: Vec<Vec<Option<i64>>>,
    /// The number of collectives in active steps that were not compared, because a rank that took part in the step is
    /// missing.
    pub(super) skipped: i64,
}

impl Excess {
    /// Computes the excess of `ranks` ranks.
    pub(super) fn of(join: &Join, ranks: usize, per_step: PerStep) -> Self {
        let mut groups: BTreeMap<(i32, i64), Vec<&Joined>> = BTreeMap::new();
        for instance in join.instances.iter().filter(|i| i.symmetric) {
            if let Some(step) = instance.step {
                groups.entry((step, instance.comm_id)).or_default().push(instance);
            }
        }
        let mut sums: BTreeMap<i32, Vec<Option<i64>>> = BTreeMap::new();
        let mut skipped = 0;
        for ((step, _), instances) in groups {
            let participants = participants(&instances);
            if participants.len() < 2 {
                continue;
            }
            for instance in instances {
                let is_timed = |rank: &usize| instance.arrival_of(*rank).is_some_and(|a| a.rolled_ns.is_some());
                if !participants.iter().all(is_timed) {
                    skipped += 1;
                    continue;
                }
                let Some(median_ns) = lower_median(instance.arrivals.iter().filter_map(|a| a.rolled_ns)) else {
                    continue;
                };
                let row = sums.entry(step).or_insert_with(|| vec![None; ranks]);
                for a in &instance.arrivals {
                    if let Some(own_ns) = a.rolled_ns {
                        *row[a.rank].get_or_insert(0) += own_ns - median_ns;
                    }
                }
            }
        }
        let steps: Vec<i32> = sums.keys().copied().collect();
        let of_rank = |rank: usize| sums.values().map(|row| row[rank].map(|ns| per_step.ns(ns))).collect();
        let ns = (0..ranks).map(of_rank).collect();
        Self { steps, ns, skipped }
    }

    /// The steps in which one rank was compared, ascending.
    pub(super) fn steps_of(&self, rank: usize) -> impl Iterator<Item = i32> {
        self.steps.iter().zip(&self.ns[rank]).filter(|(_, ns)| ns.is_some()).map(|(step, _)| *step)
    }

    /// The known excesses of one rank, in the order of steps.
    pub(super) fn of_rank(&self, rank: usize) -> Vec<i64> {
        self.ns[rank].iter().flatten().copied().collect()
    }
}

/// The ranks that took part in a communicator's step: those with at least half of its instances. This rule ignores an
/// instance that only some ranks recorded, and a rank that recorded only the beginning of the step.
fn participants(instances: &[&Joined]) -> Vec<usize> {
    let mut ranks: Vec<usize> = instances.iter().flat_map(|i| &i.arrivals).map(|a| a.rank).collect();
    ranks.sort_unstable();
    let often = ranks.chunk_by(|a, b| a == b).filter(|same| 2 * same.len() >= instances.len());
    often.map(|same| same[0]).collect()
}
