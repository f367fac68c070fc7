//! Own excess by rank and step, and how far one rank stands from the others.

use std::collections::BTreeMap;

use super::join::{Join, Joined};
use super::stats::lower_median;

/// E(rank, step): the sum over a step's collectives of a rank's own time before it above the lower median of the ranks.
///
/// Ranks are compared where they do the same work: at collectives in which all take the same part. Own time before a
/// send or a receive, whose other side is another stage of a pipeline, counts towards the next such collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Excess {
    /// Steps in which at least two ranks can be compared, ascending.
    pub(super) steps: Vec<i32>,
    /// For each rank and each of `steps` its excess; `None` where the rank did not take part, or its stretches are
    /// unknown.
    pub(super) ns: Vec<Vec<Option<i64>>>,
    /// Collectives of active steps that could not be compared, because a rank that took part in the step is missing
    /// there.
    pub(super) skipped: i64,
}

impl Excess {
    /// The excess of `ranks` ranks.
    pub(super) fn of(join: &Join, ranks: usize) -> Self {
        let mut groups: BTreeMap<(i32, i64), Vec<&Joined>> = BTreeMap::new();
        for instance in join.instances.iter().filter(|i| i.symmetric) {
            if let Some(step) = instance.step {
                groups.entry((step, instance.comm_id)).or_default().push(instance);
            }
        }
        let mut sums: BTreeMap<i32, Vec<Option<i64>>> = BTreeMap::new();
        let mut skipped = 0;
        for ((step, _), instances) in groups {
            let participants = participants(&instances, ranks);
            if participants.len() < 2 {
                continue;
            }
            for instance in instances {
                let known = |rank: &usize| instance.arrivals.iter().any(|a| a.rank == *rank && a.rolled_ns.is_some());
                if !participants.iter().all(known) {
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
        let ns = (0..ranks).map(|rank| sums.values().map(|row| row[rank]).collect()).collect();
        Self { steps, ns, skipped }
    }

    /// The excess of one rank in the steps in which it has one.
    pub(super) fn of_rank(&self, rank: usize) -> Vec<i64> {
        self.ns[rank].iter().flatten().copied().collect()
    }
}

/// The ranks that took part in a communicator's step: those in at least half of its instances. One instance that only
/// some ranks recorded then drops out, and so does a rank that recorded only the beginning of the step.
fn participants(instances: &[&Joined], ranks: usize) -> Vec<usize> {
    let mut counts = vec![0; ranks];
    for a in instances.iter().flat_map(|i| &i.arrivals) {
        counts[a.rank] += 1;
    }
    (0..ranks).filter(|&rank| counts[rank] > 0 && 2 * counts[rank] >= instances.len()).collect()
}
