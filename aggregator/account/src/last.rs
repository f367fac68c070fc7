//! The rank that arrived last most often, by step.

use rustc_hash::FxHashMap;

use topology::join::Join;

/// Last arrivals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Last {
    times: FxHashMap<(usize, i32), u32>,
    /// For each step the rank that arrived last most often; `None` if two ranks tie.
    rank: FxHashMap<i32, Option<usize>>,
}

impl Last {
    pub(super) fn of(join: &Join) -> Self {
        let mut last = Self::default();
        last.count(join);
        last
    }

    fn count(&mut self, join: &Join) {
        let mut steps = Vec::new();
        for instance in join.instances.iter().filter(|i| i.arrivals.len() > 1) {
            if let Some(step) = instance.step {
                let rank = instance.blocker().rank;
                let count = self.times.entry((rank, step)).or_default();
                *count += 1;
                steps.push((step, rank));
            }
        }
        steps.sort_unstable();
        steps.dedup();
        for ranks in steps.chunk_by(|a, b| a.0 == b.0) {
            let step = ranks[0].0;
            let count = |rank: usize| self.times.get(&(rank, step)).copied().unwrap_or(0);
            let most = ranks.iter().map(|&(_, rank)| count(rank)).max();
            let mut holders = ranks.iter().filter(|&&(_, rank)| Some(count(rank)) == most);
            let holder = holders.next().map(|&(_, rank)| rank);
            self.rank.insert(step, if holders.next().is_some() { None } else { holder });
        }
    }

    /// Whether `rank` arrived last in `step` more often than any other rank.
    pub(super) fn was_last(&self, rank: usize, step: i32) -> bool {
        self.rank.get(&step) == Some(&Some(rank))
    }
}
