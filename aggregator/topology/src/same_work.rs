//! Who does the same work: the ranks that are compared with each other, and those that show how long the work takes.
//!
//! | question | answer |
//! |---|---|
//! | Which ranks have the same role? | those of one stage of the pipeline: [`SameWork::stages`] |
//! | Before which collectives do they do the same? | before those of communicators that are replicas: [`Replicas`] |
//! | Which ranks show how long it takes? | the [`Baseline`] |
//! | Which transfers are alike? | those of [`replicas_by_count`] |
//! | What do the tables of an analysis say? | [`pipeline_stages`], [`dimensions`] |

mod baseline;
mod replicas;
mod roles;
mod stages;

use std::collections::{BTreeMap, BTreeSet};

use crate::arrivals::{Arrival, Joined};

pub use baseline::Baseline;
pub use replicas::{Communicator, Replicas, replicas_by_count};
pub use roles::{Dimension, dimensions, each_rank_is_a_stage, pipeline_stages, stages_by_rank};

/// Who does the same work. Ranks are positions among the parts.
pub struct SameWork {
    /// For each rank, its stage of the pipeline. Ranks of one stage do the same work.
    pub stages: Vec<usize>,
    /// The collectives before which ranks do the same work.
    pub replicas: Replicas,
    /// The ranks whose work counts for that of a typical rank.
    pub baseline: Baseline,
}

impl SameWork {
    /// Decides it by the collectives of a run; all ranks are the baseline. `has_unmatched` says of each rank whether some of its
    /// collectives were matched with those of no other rank.
    pub(crate) fn of(instances: &[Joined], has_unmatched: &[bool]) -> Self {
        let stages = stages::stages(instances, has_unmatched);
        let replicas = Replicas::of(instances, &stages);
        Self { stages, replicas, baseline: Baseline::all(has_unmatched.len()) }
    }

    /// Arrivals, apart for each stage.
    pub fn by_stage<'a>(&self, arrivals: impl Iterator<Item = &'a Arrival>) -> Vec<Vec<&'a Arrival>> {
        let mut stages: BTreeMap<usize, Vec<&Arrival>> = BTreeMap::new();
        for a in arrivals {
            stages.entry(self.stages[a.rank]).or_default().push(a);
        }
        stages.into_values().collect()
    }

    /// The ranks that show the typical work of a stage most of whose ranks are slow.
    pub fn faster_group(&self) -> impl Iterator<Item = usize> {
        let slow = (0..self.stages.len()).filter(|rank| !self.baseline.is_member[*rank]);
        let stages: BTreeSet<usize> = slow.map(|rank| self.stages[rank]).collect();
        (0..self.stages.len())
            .filter(move |rank| self.baseline.is_member[*rank] && stages.contains(&self.stages[*rank]))
    }
}
