//! The length that the run would have if some ranks worked as long as a typical rank: a longest path over own work and
//! collectives.
//!
//! ```text
//!   recorded   rank 0   ####[~~~~~~~~~~AA]##[BB]        rank 1 works 10 columns longer than rank 0 before A
//!              rank 1   ##############[AA]##[BB]
//!   replayed   rank 0   ####[AA]##[BB]                  as long as rank 0: the run is 10 columns shorter
//!              rank 1   ####[AA]##[BB]
//! ```
//!
//! * A rank is ready for a collective its own work after it was ready for the previous one, and not before the work that
//!   waited for another collective: the end of that collective ended exposed communication.
//! * A rank enters a collective when it is ready, and not before it left the previous collective of the same communicator,
//!   because these are in one stream.
//! * Ranks leave a collective as long after the last arrival as in the recording. Of a send, a receive or a rooted collective
//!   a rank leaves as long after the last arrival that it can have waited for.
//!
//! * A rank that waited for something that was not recorded, or whose peers were not, waits no longer than in the recording. The
//!   wait becomes shorter by as much as the changed rank is earlier.
//!
//! Without a change each rank arrives when it did, so that a replayed run has its recorded length. Clocks that contradict the
//! order of arrivals and ends make it differ; [`Replay::discrepancy_ns`] is that difference.
//!
//! While a rank waits in a queue of collectives, it works ahead for later ones:
//!
//! ```text
//!   rank 0   ##[~~~~~~~~~~A][B][C]      ## b and c, the work for B and C, run below A
//!              bbcc
//!   rank 1   ############[A]bb[B]cc[C]
//! ```
//!
//! The work before B would be `bbcc` on rank 0. A rank that did not queue at B shows the work that belongs to it; the rest
//! moves on to the next collective. If all ranks queued at B and at C, their work is spread evenly over B and C.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::base::stats::lower_median;
use crate::judge::stragglers::join::{Arrival, Join, Joined};
use crate::measure::own_time::{OwnTime, Stretch};

/// Nodes that are replayed at most: the replayed ranks × the arrivals of all ranks. Each takes about 5 ns.
const REPLAYED_MAX: usize = 1 << 30;
/// The number of ranks that are replayed however many arrivals there are.
const REPLAYED_RANKS: usize = 64;

/// The position of a node that does not exist.
const NONE: u32 = u32::MAX;

/// When a rank leaves a collective.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// So long after the last arrival.
    AfterLast(i64),
    /// So long after the arrival of this node, and not before its own arrival.
    After(u32, i64),
}

/// The own work before an arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Since the rank was ready for the collective that it entered before.
    own_ns: i64,
    /// Since the end of the collective that it waited for.
    after_ns: i64,
}

/// One rank at one collective.
#[derive(Clone, Copy, Debug)]
struct Node {
    rank: u32,
    instance: u32,
    /// The node of the collective that the rank entered before.
    entered: u32,
    /// The node of the collective that the own work waited for.
    waited: u32,
    /// The node of the previous collective of the communicator.
    before: u32,
    /// From the end of `before` to the arrival.
    queued_ns: i64,
    /// The own work before collectives that were not matched, since `entered`.
    unmatched_ns: i64,
    /// Neither own work nor a known collective explains the whole time before the arrival.
    has_unknown_wait: bool,
    /// Recorded.
    arrival_ns: i64,
    /// Recorded; without an end, the arrival.
    end_ns: i64,
    work: Work,
    /// The work of a typical rank.
    typical: Work,
    leave: Leave,
}

/// The collectives of all ranks, in the order of arrivals.
#[derive(Debug)]
pub(super) struct Replay {
    nodes: Vec<Node>,
    /// For each instance, whether it is in a step that counts.
    is_counted: Vec<bool>,
    ranks: usize,
    max_queue_gap_ns: i64,
    /// The recorded end, and the end of the unchanged replay.
    ends_ns: [i64; 2],
    begin_ns: i64,
}

impl Replay {
    /// Only in `steps`, ranks can work as a typical rank. `max_queue_gap_ns` is that of
    /// [`Thresholds`](crate::model::thresholds::Thresholds).
    pub(super) fn of(join: &Join, parts: &[&OwnTime], steps: &BTreeSet<i32>, max_queue_gap_ns: i64) -> Self {
        let mut builder = Builder::of(join, parts, max_queue_gap_ns);
        builder.link();
        builder.measure();
        let is_counted = |instance: &Joined| instance.step.is_some_and(|step| steps.contains(&step));
        let is_counted: Vec<bool> = join.instances.iter().map(is_counted).collect();
        builder.compare(&is_counted);
        let nodes = builder.nodes;
        let begins_ns = nodes.iter().map(|n| n.arrival_ns - n.work.own_ns);
        let mut replay = Self {
            begin_ns: begins_ns.min().unwrap_or(0),
            ends_ns: [nodes.iter().map(|n| n.end_ns).max().unwrap_or(0); 2],
            is_counted,
            ranks: parts.len(),
            max_queue_gap_ns,
            nodes,
        };
        replay.ends_ns[1] = replay.end_ns(&|_| false, Vec::new());
        replay
    }

    /// For each rank, by how much the run would be shorter if it alone worked as a typical rank does; `None` if there are
    /// too many ranks to replay each. Those whose work exceeds that of a typical rank most are replayed.
    pub(super) fn alone_ns(&self) -> Vec<Option<i64>> {
        self.alone_of(self.most())
    }

    /// The number of changes that are replayed at most.
    pub(super) fn most(&self) -> usize {
        (REPLAYED_MAX / self.nodes.len().max(1)).max(REPLAYED_RANKS)
    }

    pub(super) fn alone_of(&self, most: usize) -> Vec<Option<i64>> {
        let mut changing = self.changing_ranks();
        let left_out = changing.split_off(most.min(changing.len()));
        let saved = |rank: usize| (rank, Some(self.saved_by_work_ns(&|r| r == rank)));
        let replayed: Vec<(usize, Option<i64>)> = changing.into_par_iter().map(saved).collect();
        let mut alone_ns = vec![Some(0); self.ranks];
        for (rank, saved_ns) in replayed.into_iter().chain(left_out.into_iter().map(|rank| (rank, None))) {
            alone_ns[rank] = saved_ns;
        }
        alone_ns
    }

    /// The length of the run; `None` without a collective.
    pub(super) fn length_ns(&self) -> Option<i64> {
        (!self.nodes.is_empty()).then(|| self.ends_ns[1] - self.begin_ns)
    }

    /// By how much the unchanged replay differs from the recording.
    pub(super) fn discrepancy_ns(&self) -> i64 {
        (self.ends_ns[1] - self.ends_ns[0]).abs()
    }

    /// By how much the run would be shorter if these ranks worked as a typical rank does, and ranks left some collectives
    /// earlier: (position of the instance, position of the rank) to ns.
    pub(super) fn saved_ns(&self, is_typical: &dyn Fn(usize) -> bool, earlier_ns: &FxHashMap<(u32, u32), i64>) -> i64 {
        let of_node = |node: &Node| {
            let earlier_ns = earlier_ns.get(&(node.instance, node.rank)).copied();
            earlier_ns.filter(|_| self.is_counted[node.instance as usize]).unwrap_or(0)
        };
        let earlier_ns = if earlier_ns.is_empty() { Vec::new() } else { self.nodes.iter().map(of_node).collect() };
        self.ends_ns[1] - self.end_ns(is_typical, earlier_ns)
    }

    /// By how much the run would be shorter if these ranks worked as a typical rank does.
    pub(super) fn saved_by_work_ns(&self, is_typical: &dyn Fn(usize) -> bool) -> i64 {
        self.saved_ns(is_typical, &FxHashMap::default())
    }

    /// For each of some ranks, by how much the run would be shorter still if the others of them worked as a typical rank does
    /// already, and 0 for ranks that are not among them; `None` if there are too many to replay each.
    pub(super) fn beside_ns(&self, is_one: &[bool]) -> Option<Vec<i64>> {
        let ones: Vec<usize> = (0..self.ranks).filter(|rank| is_one[*rank]).collect();
        let mut beside_ns = vec![0; self.ranks];
        if ones.len() > self.most() {
            return None;
        }
        let all_ns = self.saved_by_work_ns(&|rank| is_one[rank]);
        let of_others = |rank: &usize| (*rank, self.saved_by_work_ns(&|other| other != *rank && is_one[other]));
        let of_others: Vec<(usize, i64)> = ones.par_iter().map(of_others).collect();
        of_others.into_iter().for_each(|(rank, ns)| beside_ns[rank] = (all_ns - ns).max(0));
        Some(beside_ns)
    }

    /// The ranks whose work ever differs from that of a typical rank; those that exceed it most in sum come first.
    fn changing_ranks(&self) -> Vec<usize> {
        let mut above_ns: Vec<Option<i128>> = vec![None; self.ranks];
        for node in &self.nodes {
            let ns = i128::from(node.work.own_ns - node.typical.own_ns);
            if ns != 0 || node.work.after_ns != node.typical.after_ns {
                *above_ns[node.rank as usize].get_or_insert(0) += ns;
            }
        }
        let mut order: Vec<_> =
            above_ns.into_iter().enumerate().filter_map(|(rank, ns)| Some((Reverse(ns?), rank))).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, rank)| rank).collect()
    }

    /// `earlier_ns` is empty, or holds for each node by how much its rank leaves earlier.
    fn end_ns(&self, is_typical: &dyn Fn(usize) -> bool, earlier_ns: Vec<i64>) -> i64 {
        let mut state = State::new(self.nodes.len(), self.is_counted.len(), earlier_ns);
        let mut latest = vec![NONE; self.ranks];
        let changed: Vec<bool> = (0..self.ranks).map(is_typical).collect();
        // By how much the changed ranks are ahead of the recording.
        let mut ahead_ns = 0;
        for (at, node) in self.nodes.iter().enumerate() {
            let rank = node.rank as usize;
            let work = if changed[rank] { node.typical } else { node.work };
            let from_ns = match (node.entered, latest[rank]) {
                (NONE, NONE) => node.arrival_ns - node.work.own_ns,
                // No events were recorded between two windows of steps.
                (NONE, before) => {
                    let shift_ns = state.leave_ns(&self.nodes, before) - self.nodes[before as usize].end_ns;
                    node.arrival_ns - node.work.own_ns + shift_ns
                }
                (entered, _) => state.ready_ns[entered as usize],
            };
            let mut ready_ns = from_ns + work.own_ns;
            if node.waited != NONE {
                ready_ns = ready_ns.max(state.leave_ns(&self.nodes, node.waited) + work.after_ns);
            }
            if node.has_unknown_wait {
                ready_ns = ready_ns.max(node.arrival_ns - ahead_ns);
            }
            let mut arrival_ns = ready_ns;
            if node.before != NONE {
                arrival_ns = arrival_ns
                    .max(state.leave_ns(&self.nodes, node.before) + node.queued_ns.min(self.max_queue_gap_ns));
            }
            state.ready_ns[at] = ready_ns;
            state.arrival_ns[at] = arrival_ns;
            let last_ns = &mut state.last_ns[node.instance as usize];
            *last_ns = (*last_ns).max(arrival_ns);
            latest[rank] = at as u32;
            if changed[rank] {
                ahead_ns = node.arrival_ns - arrival_ns;
            }
        }
        (0..self.nodes.len() as u32).map(|at| state.leave_ns(&self.nodes, at)).max().unwrap_or(0)
    }
}

/// The times of one replay.
struct State {
    ready_ns: Vec<i64>,
    arrival_ns: Vec<i64>,
    /// The last arrival of each instance so far.
    last_ns: Vec<i64>,
    /// By how much ranks leave earlier than recorded, for each node; empty: not at all.
    earlier_ns: Vec<i64>,
}

impl State {
    fn new(nodes: usize, instances: usize, earlier_ns: Vec<i64>) -> Self {
        let [ready_ns, arrival_ns] = [(); 2].map(|()| vec![i64::MIN; nodes]);
        Self { ready_ns, arrival_ns, last_ns: vec![i64::MIN; instances], earlier_ns }
    }

    fn leave_ns(&self, nodes: &[Node], at: u32) -> i64 {
        let node = &nodes[at as usize];
        match node.leave {
            Leave::AfterLast(ns) => {
                let earlier_ns = self.earlier_ns.get(at as usize).copied().unwrap_or(0);
                self.last_ns[node.instance as usize].saturating_add(ns - earlier_ns)
            }
            Leave::After(of, ns) => self.arrival_ns[of as usize].saturating_add(ns).max(self.arrival_ns[at as usize]),
        }
    }
}

struct Builder<'a> {
    join: &'a Join,
    parts: &'a [&'a OwnTime],
    max_queue_gap_ns: i64,
    nodes: Vec<Node>,
    /// For each node, its arrival: positions in `join.instances` and in its arrivals.
    of: Vec<(usize, usize)>,
    /// For each instance the node of its first arrival; the others follow in `by_instance`.
    by_instance: Vec<Vec<u32>>,
}

impl<'a> Builder<'a> {
    fn of(join: &'a Join, parts: &'a [&'a OwnTime], max_queue_gap_ns: i64) -> Self {
        let instances = join.instances.iter().enumerate();
        let mut of: Vec<(usize, usize)> =
            instances.flat_map(|(i, instance)| (0..instance.arrivals.len()).map(move |a| (i, a))).collect();
        let arrival = |(i, a): &(usize, usize)| &join.instances[*i].arrivals[*a];
        of.sort_by_key(|key| (arrival(key).arrival_ns, arrival(key).stretch, arrival(key).rank));
        let node = |key: &(usize, usize)| {
            let a = arrival(key);
            Node {
                rank: a.rank as u32,
                instance: key.0 as u32,
                entered: NONE,
                waited: NONE,
                before: NONE,
                queued_ns: 0,
                unmatched_ns: 0,
                has_unknown_wait: false,
                arrival_ns: a.arrival_ns,
                end_ns: a.end_ns.map_or(a.arrival_ns, |end| end.max(a.arrival_ns)),
                work: Work::default(),
                typical: Work::default(),
                leave: Leave::AfterLast(0),
            }
        };
        let nodes: Vec<Node> = of.iter().map(node).collect();
        let mut by_instance: Vec<Vec<u32>> = join.instances.iter().map(|i| vec![NONE; i.arrivals.len()]).collect();
        for (at, (i, a)) in of.iter().enumerate() {
            by_instance[*i][*a] = at as u32;
        }
        Self { join, parts, max_queue_gap_ns, nodes, of, by_instance }
    }

    fn instance(&self, at: usize) -> &'a Joined {
        &self.join.instances[self.of[at].0]
    }

    fn arrival(&self, at: usize) -> &'a Arrival {
        &self.join.instances[self.of[at].0].arrivals[self.of[at].1]
    }

    /// Connects each node with the earlier ones that it depends on. Clocks may contradict each other, so that an earlier
    /// collective seems later; it is ignored then.
    fn link(&mut self) {
        let mut of_stretch: Vec<Vec<u32>> = self.parts.iter().map(|part| vec![NONE; part.stretches.len()]).collect();
        let mut is_matched: Vec<Vec<bool>> = self.parts.iter().map(|part| vec![false; part.stretches.len()]).collect();
        for a in self.join.instances.iter().flat_map(|instance| &instance.arrivals) {
            if let Some(is_matched) = is_matched[a.rank].get_mut(a.stretch as usize) {
                *is_matched = true;
            }
        }
        let mut of_communicator: FxHashMap<(usize, i64), u32> = FxHashMap::default();
        for at in 0..self.nodes.len() {
            let (instance, a) = (self.instance(at), self.arrival(at));
            let Some(stretch) = self.parts[a.rank].stretches.get(a.stretch as usize) else { continue };
            let earlier = |stretch: Option<u32>| {
                stretch.and_then(|stretch| of_stretch[a.rank].get(stretch as usize).copied()).unwrap_or(NONE)
            };
            let (matched, unmatched_ns) = self.matched_before(a.rank, stretch, &is_matched[a.rank]);
            let (entered, waited) = (earlier(matched), earlier(stretch.waited));
            let before = of_communicator.insert((a.rank, instance.comm_id), at as u32).unwrap_or(NONE);
            let ends_before = |node: u32| node != NONE && self.nodes[node as usize].end_ns <= a.arrival_ns;
            let (is_queue, has_waited) = (ends_before(before), ends_before(waited));
            let leave = self.leave(at);
            let queued_ns = if is_queue { a.arrival_ns - self.nodes[before as usize].end_ns } else { 0 };
            let is_queued = is_queue && queued_ns <= self.max_queue_gap_ns;
            let node = &mut self.nodes[at];
            node.entered = entered;
            node.unmatched_ns = unmatched_ns;
            node.before = if is_queue { before } else { NONE };
            node.queued_ns = queued_ns;
            // A queue explains the begin.
            node.waited = if has_waited && !is_queued { waited } else { NONE };
            node.leave = leave;
            of_stretch[a.rank][a.stretch as usize] = at as u32;
        }
    }

    /// The collective that the rank entered before this one, among those that were matched, and the own work before the
    /// collectives in between.
    fn matched_before(&self, rank: usize, stretch: &Stretch, is_matched: &[bool]) -> (Option<u32>, i64) {
        let (mut entered, mut unmatched_ns) = (stretch.entered, 0_i64);
        while let Some(at) = entered.filter(|at| is_matched.get(*at as usize) == Some(&false)) {
            let unmatched = &self.parts[rank].stretches[at as usize];
            unmatched_ns = unmatched_ns.saturating_add(unmatched.own_ns.unwrap_or(0).max(0));
            // A stretch was entered after an earlier one; a list that contradicts this would not end.
            entered = unmatched.entered.filter(|earlier| *earlier < at);
        }
        (entered, unmatched_ns)
    }

    fn leave(&self, at: usize) -> Leave {
        let (instance, a) = (self.instance(at), self.arrival(at));
        let end_ns = self.nodes[at].end_ns;
        match a.end_ns {
            None => Leave::AfterLast(0),
            Some(_) if instance.symmetric && end_ns >= instance.last_ns => Leave::AfterLast(end_ns - instance.last_ns),
            Some(_) if instance.symmetric => Leave::After(at as u32, end_ns - a.arrival_ns),
            Some(_) => {
                let of_instance = self.by_instance[self.of[at].0].iter().zip(&instance.arrivals);
                let awaited = of_instance.filter(|(_, other)| other.arrival_ns <= end_ns);
                let last = awaited.max_by_key(|(node, other)| (other.arrival_ns, **node == at as u32));
                last.map_or(Leave::AfterLast(0), |(node, other)| Leave::After(*node, end_ns - other.arrival_ns))
            }
        }
    }

    fn is_queued(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.before != NONE && node.queued_ns <= self.max_queue_gap_ns
    }

    /// Splits the time of each rank into own work and dependencies, so that the unchanged replay gives the recorded times.
    fn measure(&mut self) {
        let belonging = self.belonging_ns();
        let before_wait = self.before_wait();
        let mut ready_ns = vec![0; self.nodes.len()];
        let mut ahead_ns = vec![0; self.parts.len()];
        for at in 0..self.nodes.len() {
            let a = self.arrival(at);
            let own_ns = a.own_ns.unwrap_or(0).max(0).saturating_add(self.nodes[at].unmatched_ns);
            let (from_ns, ahead) = match self.nodes[at].entered {
                NONE => (a.arrival_ns - own_ns, 0),
                entered => (ready_ns[entered as usize], ahead_ns[a.rank]),
            };
            // The rank was ready for the previous collective after that wait already.
            if self.nodes[at].waited != NONE && self.nodes[self.nodes[at].waited as usize].end_ns <= from_ns {
                self.nodes[at].waited = NONE;
            }
            let node = self.nodes[at];
            let since_ns = (node.arrival_ns - from_ns).max(0);
            let all_ns = own_ns + ahead;
            let own_ns = if self.is_queued(at) {
                let belonging = belonging[node.instance as usize].filter(|_| !before_wait[at]);
                belonging.map_or(all_ns, |ns| all_ns.min(ns)).clamp(0, since_ns)
            } else if node.waited != NONE {
                all_ns.min(since_ns)
            } else if a.own_ns.is_some() && since_ns > all_ns + self.max_queue_gap_ns {
                self.nodes[at].has_unknown_wait = true;
                all_ns
            } else {
                since_ns
            };
            let is_queued = self.is_queued(at);
            ahead_ns[a.rank] = if is_queued { (all_ns - own_ns).max(0) } else { 0 };
            ready_ns[at] = if is_queued { from_ns + own_ns } else { node.arrival_ns };
            let waited = (node.waited != NONE).then(|| self.nodes[node.waited as usize].end_ns);
            self.nodes[at].work = Work { own_ns, after_ns: waited.map_or(0, |end| node.arrival_ns - end) };
        }
    }

    /// The work that belongs to each instance: the lower median of the ranks that did not queue. Where all ranks queued, no
    /// rank shows it; then the work in a row of such collectives is spread evenly over them.
    fn belonging_ns(&self) -> Vec<Option<i64>> {
        let shown = |(nodes, instance): (&Vec<u32>, &Joined)| {
            let nodes = nodes.iter().zip(&instance.arrivals);
            lower_median(nodes.filter(|(node, _)| !self.is_queued(**node as usize)).filter_map(|(_, a)| a.own_ns))
        };
        let shown: Vec<Option<i64>> = self.by_instance.iter().zip(&self.join.instances).map(shown).collect();
        let shares_ns = self.shares_ns(&shown);
        shown.into_iter().zip(shares_ns).map(|(shown, shares)| shown.or_else(|| lower_median(shares))).collect()
    }

    /// For each node, whether the rank waited for its collective, or for a later one, before the next collective. Work before
    /// a wait does not move on to the collective after it.
    fn before_wait(&self) -> Vec<bool> {
        let mut next = vec![NONE; self.parts.len()];
        let mut before_wait = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().rev() {
            let next = std::mem::replace(&mut next[node.rank as usize], at as u32);
            let waited = self.nodes.get(next as usize).and_then(|next| self.nodes.get(next.waited as usize));
            before_wait[at] = waited.is_some_and(|waited| waited.arrival_ns >= node.arrival_ns);
        }
        before_wait
    }

    /// For each instance without shown work, the even share of each rank that queued there.
    fn shares_ns(&self, shown: &[Option<i64>]) -> Vec<Vec<i64>> {
        let mut shares_ns = vec![Vec::new(); shown.len()];
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.parts.len()];
        let mut close = |row: &mut Vec<u32>| {
            let own_ns = row.iter().filter_map(|at| self.arrival(*at as usize).own_ns).map(|ns| ns.max(0));
            let share_ns = own_ns.fold(0, i64::saturating_add) / row.len().max(1) as i64;
            row.drain(..).for_each(|at| shares_ns[self.nodes[at as usize].instance as usize].push(share_ns));
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let row = &mut rows[node.rank as usize];
            match shown[node.instance as usize].is_none() && self.is_queued(at) {
                true => row.push(at as u32),
                false => close(row),
            }
        }
        rows.iter_mut().for_each(close);
        shares_ns
    }

    /// Finds the work of a typical rank: the lower median of the ranks that do the same work.
    fn compare(&mut self, is_counted: &[bool]) {
        for alike in self.alike() {
            let known = || alike.iter().map(|at| *at as usize).filter(|at| self.arrival(*at).own_ns.is_some());
            let Some(own_ns) = lower_median(known().map(|at| self.nodes[at].work.own_ns)) else { continue };
            let known: Vec<usize> = known().collect();
            let waiting: Vec<i64> =
                known.iter().map(|at| self.nodes[*at]).filter(|n| n.waited != NONE).map(|n| n.work.after_ns).collect();
            // If few of them waited, the others tell nothing about the time after a wait.
            let after_ns = (2 * waiting.len() > known.len()).then(|| lower_median(waiting)).flatten();
            for at in known {
                let after_ns = after_ns.unwrap_or_else(|| self.nodes[at].work.after_ns.min(own_ns));
                self.nodes[at].typical = Work { own_ns, after_ns };
            }
        }
        // A cost per step is over the steps that count, so that work outside of them does not change.
        let unknown = |at: &usize| self.arrival(*at).own_ns.is_none() || !is_counted[self.of[*at].0];
        for at in (0..self.nodes.len()).filter(unknown).collect::<Vec<_>>() {
            self.nodes[at].typical = self.nodes[at].work;
        }
    }

    /// The nodes that are compared with each other. Ranks do the same work before a collective in which all have the same
    /// role. Before another, those do that share a communicator, at the same place of the step.
    fn alike(&self) -> Vec<Vec<u32>> {
        let instances = self.by_instance.iter().zip(&self.join.instances);
        let mut alike: Vec<Vec<u32>> = instances.filter(|(_, i)| i.symmetric).map(|(nodes, _)| nodes.clone()).collect();
        let peers = self.peers();
        let mut counts: FxHashMap<(u32, i32), usize> = FxHashMap::default();
        let mut places: FxHashMap<(i64, i32, usize), Vec<u32>> = FxHashMap::default();
        for at in (0..self.nodes.len()).filter(|at| !self.instance(*at).symmetric) {
            let (rank, step) = (self.nodes[at].rank, self.instance(at).step);
            if let (Some(step), Some(peers)) = (step, peers[rank as usize]) {
                let place = counts.entry((rank, step)).or_default();
                places.entry((peers, step, *place)).or_default().push(at as u32);
                *place += 1;
            }
        }
        alike.extend(places.into_values().filter(|nodes| nodes.len() > 1));
        let mut is_compared = vec![false; self.nodes.len()];
        alike.iter().flatten().for_each(|at| is_compared[*at as usize] = true);
        alike.extend((0..self.nodes.len() as u32).filter(|at| !is_compared[*at as usize]).map(|at| vec![at]));
        alike
    }

    /// For each rank the smallest communicator whose ranks have the same role.
    fn peers(&self) -> Vec<Option<i64>> {
        let mut smallest: Vec<Option<(usize, i64)>> = vec![None; self.parts.len()];
        for instance in self.join.instances.iter().filter(|i| i.symmetric && i.arrivals.len() > 1) {
            let this = Some((instance.arrivals.len(), instance.comm_id));
            for a in &instance.arrivals {
                if smallest[a.rank].is_none() || this < smallest[a.rank] {
                    smallest[a.rank] = this;
                }
            }
        }
        smallest.into_iter().map(|found| found.map(|(_, comm_id)| comm_id)).collect()
    }
}
