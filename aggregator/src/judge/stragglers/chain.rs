//! The blocking chain: the own stretches that determine the length of the run, and the length that the run would have
//! without one rank's excess.

use std::cmp::Reverse;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::judge::stragglers::join::Join;

/// Own excess of each rank on the blocking chain, by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    delay_ns: FxHashMap<(usize, i32), i64>,
    times_last: FxHashMap<(usize, i32), u32>,
    /// For each step the rank that arrived last most often; `None` if two ranks tie.
    last_rank: FxHashMap<i32, Option<usize>>,
}

impl Chain {
    /// Walks back from the end of the recording. Each instance leads to the rank that arrived last (the blocker), and
    /// the blocker's own stretch leads to the instance at which that stretch began. If the stretch began before the
    /// recording, the walk continues at the previous instance.
    pub(super) fn of(join: &Join) -> Self {
        let mut chain = Self::default();
        let order = join.latest_first();
        let mut place = vec![0; order.len()];
        for (at, &i) in order.iter().enumerate() {
            place[i] = at;
        }
        let mut at = 0;
        while let Some(&i) = order.get(at) {
            let instance = &join.instances[i];
            let blocker = instance.blocker();
            if let Some(step) = instance.step {
                let excess_ns = instance.own_excess_ns(blocker);
                *chain.delay_ns.entry((blocker.rank, step)).or_default() += excess_ns;
            }
            let previous = join.previous(blocker).map(|i| place[i]).filter(|&place| place > at);
            at = previous.unwrap_or(at + 1);
        }
        chain.count_last(join);
        chain
    }

    fn count_last(&mut self, join: &Join) {
        let mut steps = Vec::new();
        for instance in join.instances.iter().filter(|i| i.arrivals.len() > 1) {
            if let Some(step) = instance.step {
                let rank = instance.blocker().rank;
                let count = self.times_last.entry((rank, step)).or_default();
                *count += 1;
                steps.push((step, rank));
            }
        }
        steps.sort_unstable();
        steps.dedup();
        for ranks in steps.chunk_by(|a, b| a.0 == b.0) {
            let step = ranks[0].0;
            let count = |rank: usize| self.times_last.get(&(rank, step)).copied().unwrap_or(0);
            let most = ranks.iter().map(|&(_, rank)| count(rank)).max();
            let mut holders = ranks.iter().filter(|&&(_, rank)| Some(count(rank)) == most);
            let holder = holders.next().map(|&(_, rank)| rank);
            self.last_rank.insert(step, if holders.next().is_some() { None } else { holder });
        }
    }

    /// Own excess of `rank` on the chain in `step`.
    ///
    /// The sum keeps the sign of each excess. Ranks that wait for a late rank do work for several collectives ahead, so
    /// the late rank has a smaller excess at the next collective and a larger one at the collectives after it.
    pub(super) fn delay_ns(&self, rank: usize, step: i32) -> i64 {
        self.delay_ns.get(&(rank, step)).copied().unwrap_or(0).max(0)
    }

    /// Whether `rank` arrived last in `step` more often than any other rank.
    pub(super) fn was_last(&self, rank: usize, step: i32) -> bool {
        self.last_rank.get(&step) == Some(&Some(rank))
    }
}

/// For each rank and step, the time by which its own excess makes it later than all `others`. It needs no common clock: ranks
/// leave a collective together, so the last rank has the shortest duration.
///
/// ```text
///   rank 0   ####[~~~~~~~~~~AA]
///   rank 1   ##########[~~~~AA]     6 columns later than rank 0, if rank 2 does not count
///   rank 2   ##############[AA]     4 columns later than rank 1
/// ```
pub(super) fn later_than(join: &Join, others: &dyn Fn(usize) -> bool) -> FxHashMap<(usize, i32), i64> {
    let mut later_ns = FxHashMap::default();
    for instance in join.instances.iter().filter(|i| i.symmetric) {
        let durations: Option<Vec<(i64, usize)>> =
            instance.arrivals.iter().map(|a| Some((a.dur_ns?, a.rank))).collect();
        let (Some(step), Some(mut last)) = (instance.step, durations) else { continue };
        last.retain(|(_, rank)| others(*rank));
        last.sort_unstable();
        for a in &instance.arrivals {
            let other = last.iter().find(|(_, rank)| *rank != a.rank);
            if let (Some(&(other_ns, _)), Some(dur_ns)) = (other, a.dur_ns) {
                let ns = instance.own_excess_ns(a).min(other_ns - dur_ns).max(0);
                *later_ns.entry((a.rank, step)).or_default() += ns;
            }
        }
    }
    later_ns
}

/// Own stretches that are replayed at most: the replayed ranks × the arrivals of all ranks. Each takes about 5 ns.
const REPLAYED_MAX: usize = 1 << 30;
/// The number of ranks that are replayed however many arrivals there are.
const REPLAYED_RANKS: usize = 64;

/// The number of ranks that [`slowdowns`] replays at most.
pub(super) fn most_replayed(join: &Join) -> usize {
    let arrivals: usize = join.instances.iter().map(|i| i.arrivals.len()).sum();
    (REPLAYED_MAX / arrivals.max(1)).max(REPLAYED_RANKS)
}

/// For each rank, the length of the run divided by its length if every own stretch of that rank were as long as the
/// lower median of the ranks. `None` without any collective.
///
/// The run is replayed as a graph of own stretches and collectives:
///
/// * A rank arrives at a collective its own time after it left the previous one. The part of its own time that
///   overlapped the previous collective counts from the entry into that collective.
/// * A rank leaves as long after the last arrival as in the recording. A rank that left before the last arrival in the
///   recording leaves as long after its own arrival.
///
/// Each replay passes all arrivals. If more than `most` ranks would change the run, those whose own time exceeds the
/// lower median most are replayed. The others have `None`, and their number is returned too.
pub(super) fn slowdowns(join: &Join, ranks: usize, most: usize) -> (Vec<Option<f64>>, usize) {
    let mut order = join.latest_first();
    order.reverse();
    let original_ns = replay_ns(join, &order, ranks, None);
    let ratio = |without_ns: Option<i64>| {
        let without_ns = without_ns?;
        (without_ns > 0).then_some(original_ns? as f64 / without_ns as f64)
    };
    let mut changing = changing_ranks(join, ranks);
    let left_out = changing.split_off(most.min(changing.len()));
    let replay = |rank: usize| (rank, ratio(replay_ns(join, &order, ranks, Some(rank))));
    let replayed: Vec<(usize, Option<f64>)> = changing.into_par_iter().map(replay).collect();
    let mut slowdowns = vec![ratio(original_ns); ranks];
    for (rank, slowdown) in replayed.into_iter().chain(left_out.iter().map(|rank| (*rank, None))) {
        slowdowns[rank] = slowdown;
    }
    (slowdowns, left_out.len())
}

/// The ranks with an own stretch that is not as long as the lower median of the ranks, those that exceed it most in sum
/// first. The replay without any other rank is the original one.
fn changing_ranks(join: &Join, ranks: usize) -> Vec<usize> {
    let mut excess_ns: Vec<Option<i128>> = vec![None; ranks];
    for instance in &join.instances {
        for a in &instance.arrivals {
            let above_ns = i128::from(a.own_ns.unwrap_or(0)) - i128::from(instance.own_median_ns.unwrap_or(0));
            if above_ns != 0 {
                *excess_ns[a.rank].get_or_insert(0) += above_ns;
            }
        }
    }
    let mut order: Vec<(Reverse<i128>, usize)> =
        excess_ns.into_iter().enumerate().filter_map(|(rank, ns)| Some((Reverse(ns?), rank))).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, rank)| rank).collect()
}

/// The length of the replayed run. The own stretches of rank `replaced` are replaced by the lower median of the ranks.
fn replay_ns(join: &Join, order: &[usize], ranks: usize, replaced: Option<usize>) -> Option<i64> {
    // For each rank, when it left its last collective, and when it entered that collective.
    let mut now_ns: Vec<Option<i64>> = vec![None; ranks];
    let mut entered_ns = now_ns.clone();
    let mut begin_ns: Option<i64> = None;
    for &i in order {
        let instance = &join.instances[i];
        let mut last_ns = i64::MIN;
        for a in &instance.arrivals {
            // Time between two recorded windows of steps is not replayed, because no events were recorded there.
            let from_ns = now_ns[a.rank].unwrap_or(a.from_ns);
            begin_ns = Some(begin_ns.map_or(from_ns, |b: i64| b.min(from_ns)));
            let own_ns = if replaced == Some(a.rank) { instance.own_median_ns } else { a.own_ns }.unwrap_or(0);
            let hidden_ns = a.hidden_ns.min(own_ns);
            let since_ns = entered_ns[a.rank].unwrap_or(from_ns);
            let arrival_ns = from_ns.max(since_ns + hidden_ns) + own_ns - hidden_ns;
            now_ns[a.rank] = Some(arrival_ns);
            entered_ns[a.rank] = Some(arrival_ns);
            last_ns = last_ns.max(arrival_ns);
        }
        for a in &instance.arrivals {
            now_ns[a.rank] = now_ns[a.rank].map(|arrival_ns| match a.end_ns {
                // The rank did not wait for the last rank: a send, or the root of a broadcast.
                Some(end) if end < instance.last_ns => arrival_ns + (end - a.arrival_ns).max(0),
                end => last_ns + end.map_or(0, |end| end - instance.last_ns),
            });
        }
    }
    let end_ns = now_ns.into_iter().flatten().max()?;
    Some(end_ns - begin_ns?)
}
