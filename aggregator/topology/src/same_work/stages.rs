//! The stages of a pipeline: ranks that do the same work.
//!
//! ```text
//!   stage 0   rank 0   send →        recv ←           the first one sends first, the last one receives first
//!   stage 1   rank 1        → recv   send ←           ranks between them do both in both directions
//!   ring      rank 0   send → recv ←                  every rank sends to the next and receives from the one before
//! ```
//!
//! A communicator whose ranks send and receive in different directions joins several stages. The ranks that meet in any other
//! communicator belong to one stage. Without sends, all ranks do.
//!
//! The messages of a rank that was not recorded are missing at its peers too. So the ranks of a communicator in which messages have
//! no peer do not show their stage: they belong to that of the ranks which they meet.

use std::collections::{BTreeMap, BTreeSet};

use trace::Op;

use crate::arrivals::Joined;

/// The sends and receives of a rank.
#[derive(Default)]
struct Messages {
    /// Communicators, whether it sends there, and over which distance.
    ways: BTreeSet<(i64, bool, usize)>,
    /// In communicators where the peer is as far in both directions, as in those of two ranks: the begin of the first message of
    /// each step, and whether the rank sends it.
    first: BTreeMap<(i64, i32), (i64, bool)>,
}

/// For each rank, the number of its stage: the lowest rank of it. `has_unmatched` says of each rank whether some of its collectives
/// were matched with those of no other rank.
pub(crate) fn stages(instances: &[Joined], has_unmatched: &[bool]) -> Vec<usize> {
    let ranks = has_unmatched.len();
    let messages = messages(instances, ranks);
    if messages.iter().all(|messages| messages.ways.is_empty()) {
        return vec![0; ranks];
    }
    let mut groups: BTreeSet<Vec<usize>> = BTreeSet::new();
    for instance in instances.iter().filter(|instance| instance.symmetric && instance.arrivals.len() > 1) {
        groups.insert(instance.arrivals.iter().map(|a| a.rank).collect());
    }
    let is_known = shows_its_stage(&messages, has_unmatched);
    let is_stage = |group: &&Vec<usize>| {
        let known: Vec<usize> = group.iter().copied().filter(|rank| is_known[*rank]).collect();
        // If few show their stage, all that is known counts.
        let shown = if 2 * known.len() >= group.len() { &known } else { *group };
        shown.windows(2).all(|pair| alike(&messages, pair[0], pair[1]))
    };
    let mut stage_of: Vec<usize> = (0..ranks).collect();
    for group in groups.iter().filter(is_stage) {
        let joined: BTreeSet<usize> = group.iter().map(|rank| stage_of[*rank]).collect();
        if let Some(first) = joined.first().copied() {
            stage_of.iter_mut().filter(|stage| joined.contains(stage)).for_each(|stage| *stage = first);
        }
    }
    stage_of
}

/// Whether all messages in the communicators in which a rank sends or receives are known.
fn shows_its_stage(messages: &[Messages], has_unmatched: &[bool]) -> Vec<bool> {
    let comms = |of: &Messages| of.ways.iter().map(|(comm_id, ..)| *comm_id).collect::<BTreeSet<i64>>();
    let unmatched = messages.iter().zip(has_unmatched).filter(|(_, has)| **has);
    let incomplete: BTreeSet<i64> = unmatched.flat_map(|(of, _)| comms(of)).collect();
    let is_known = |(of, has): (&Messages, &bool)| !has && comms(of).is_disjoint(&incomplete);
    messages.iter().zip(has_unmatched).map(is_known).collect()
}

fn messages(instances: &[Joined], ranks: usize) -> Vec<Messages> {
    let mut members: BTreeMap<i64, BTreeSet<usize>> = BTreeMap::new();
    let sends = || instances.iter().filter(|i| i.op == Op::Send && i.arrivals.len() == 2);
    for instance in sends() {
        members.entry(instance.comm_id).or_default().extend(instance.arrivals.iter().map(|a| a.rank));
    }
    let place = |comm_id: i64, rank: usize| members.get(&comm_id).map_or(0, |all| all.range(..rank).count());
    let mut messages: Vec<Messages> = std::iter::repeat_with(Messages::default).take(ranks).collect();
    for instance in sends() {
        let [a, b] = [&instance.arrivals[0], &instance.arrivals[1]];
        let size = members.get(&instance.comm_id).map_or(1, BTreeSet::len).max(1);
        for (me, peer) in [(a, b), (b, a)] {
            let distance = (place(instance.comm_id, peer.rank) + size - place(instance.comm_id, me.rank)) % size;
            let is_sender = instance.sender() == Some(me.rank);
            let mine = &mut messages[me.rank];
            mine.ways.insert((instance.comm_id, is_sender, distance));
            if let Some(step) = instance.step.filter(|_| 2 * distance == size) {
                let first = mine.first.entry((instance.comm_id, step)).or_insert((me.arrival_ns, is_sender));
                *first = (*first).min((me.arrival_ns, is_sender));
            }
        }
    }
    messages
}

/// Whether two ranks send and receive alike: over the same distances, in as many ways, and neither of them always sends first where
/// the other one always receives first.
fn alike(messages: &[Messages], a: usize, b: usize) -> bool {
    let distances = |rank: usize| -> BTreeSet<(bool, usize)> {
        messages[rank].ways.iter().map(|(_, is_sender, distance)| (*is_sender, *distance)).collect()
    };
    let ways = |rank: usize| messages[rank].ways.len();
    let sends_first = |rank: usize| {
        let first = &messages[rank].first;
        let sends = first.values().filter(|(_, is_sender)| *is_sender).count();
        (10 * sends >= 9 * first.len() && sends > 0, 10 * sends <= first.len() && !first.is_empty())
    };
    let ((a_sends, a_receives), (b_sends, b_receives)) = (sends_first(a), sends_first(b));
    distances(a) == distances(b) && ways(a) == ways(b) && !(a_sends && b_receives || a_receives && b_sends)
}
