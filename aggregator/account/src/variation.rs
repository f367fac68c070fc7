//! The replay of a job in which one rank works otherwise than in a base: only along the nodes that this changes.
//!
//! ```text
//!   base     rank 0   ##[~~~A]##[B]##     rank 2 works as a typical rank: its own nodes are replayed. A begins no earlier,
//!            rank 1   #####[A]##[B]##     because rank 1 comes last, so the nodes of ranks 0 and 1 stay.
//!            rank 2   ####[~A]##[B]##
//!   varied   rank 2   ##[~~~A]##[B]##
//! ```
//!
//! If no other rank waits for a rank, only the nodes of that rank are replayed. So all ranks of a large job can be replayed, one by
//! one. The result is that of the whole replay.

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::nodes::{Leave, NONE, Node};
use crate::replay::{Change, Replay, State, Times};

/// Nodes that are followed for all variations at most. Each takes about 50 ns.
pub(super) const FOLLOWED_MAX: usize = 1 << 28;
/// The number of ranks that are varied before the limit is asked. It does not depend on the threads.
pub(super) const BATCH: usize = 128;

/// A rank, and the end of the run; `None` if the limit left it out.
type Ended = (usize, Option<i64>);

/// Takes a key and a value.
type Visit<'a> = &'a mut dyn FnMut(u32, u32);

/// For each key, the values of its pairs, ascending where they were given so. Without pairs, both lists are empty.
struct Lists {
    starts: Vec<u32>,
    values: Vec<u32>,
}

impl Lists {
    fn of(keys: usize, pairs: &dyn Fn(Visit<'_>)) -> Self {
        // The start of each list lies one place later until the list is filled, and is counted up to its end then.
        let mut starts = vec![0_u32; keys + 2];
        pairs(&mut |key, _| starts[key as usize + 2] += 1);
        for key in 1..=keys {
            starts[key + 1] += starts[key];
        }
        if starts[keys + 1] == 0 {
            return Self { starts: Vec::new(), values: Vec::new() };
        }
        let mut values = vec![0; starts[keys + 1] as usize];
        pairs(&mut |key, value| {
            let at = &mut starts[key as usize + 1];
            values[*at as usize] = value;
            *at += 1;
        });
        Self { starts, values }
    }

    fn get(&self, key: u32) -> &[u32] {
        let place = |key: usize| self.starts.get(key).map_or(0, |at| *at as usize);
        &self.values[place(key as usize)..place(key as usize + 1)]
    }
}

/// Calls a function with each node and its position.
fn each(nodes: &[Node], visit: &mut dyn FnMut(u32, &Node)) {
    (0..).zip(nodes).for_each(|(at, node)| visit(at, node));
}

/// For each node, rank and instance of a replay, the nodes that depend on it or belong to it. All are positions.
struct Dependents {
    /// The nodes of each rank, and of each instance.
    of_rank: Lists,
    of_instance: Lists,
    /// The nodes that depend on the arrival of a node, and on the last arrival of an instance.
    after_arrival: Lists,
    after_instance: Lists,
    /// Whether a node asks for the last arrival of each instance before all of its nodes arrived.
    is_asked_early: Vec<bool>,
    /// The nodes that are left after the arrival of another one.
    left_after: Lists,
    /// Of a node without an entered one: the node of its rank before it.
    latest: FxHashMap<u32, u32>,
}

impl Dependents {
    fn of(replay: &Replay) -> Self {
        let (nodes, instances) = (&*replay.nodes, replay.step_of.len());
        let mut latest: FxHashMap<u32, u32> = FxHashMap::default();
        let mut last_of = vec![NONE; replay.ranks];
        each(nodes, &mut |at, node| {
            let last = std::mem::replace(&mut last_of[node.rank as usize], at);
            if node.entered == NONE && last != NONE {
                latest.insert(at, last);
            }
        });
        // Calls `visit` with each node and each node that its rank must have left before.
        let leavings = |visit: Visit<'_>| {
            each(nodes, &mut |at, node| {
                let latest = latest.get(&at).copied().unwrap_or(NONE);
                [node.waited, node.before, latest].into_iter().filter(|of| *of != NONE).for_each(|of| visit(at, of));
            });
        };
        let after_arrival = Lists::of(nodes.len(), &|visit| {
            let entered = &mut |at: u32, node: &Node| {
                if node.entered != NONE {
                    visit(node.entered, at);
                }
            };
            each(nodes, entered);
            leavings(&mut |at, of| {
                if let Leave::After(other, _) = nodes[of as usize].leave {
                    visit(of, at);
                    visit(other, at);
                }
            });
        });
        let after_instance = Lists::of(instances, &|visit| {
            leavings(&mut |at, of| {
                if let Leave::AfterLast(_) = nodes[of as usize].leave {
                    visit(nodes[of as usize].instance, at);
                }
            });
        });
        let left_after = Lists::of(nodes.len(), &|visit| {
            each(nodes, &mut |at, node| {
                if let Leave::After(of, _) = node.leave {
                    visit(of, at);
                }
            });
        });
        let of_rank = Lists::of(replay.ranks, &|visit| each(nodes, &mut |at, node| visit(node.rank, at)));
        let of_instance = Lists::of(instances, &|visit| each(nodes, &mut |at, node| visit(node.instance, at)));
        let is_early = |i: u32, at: &u32| of_instance.get(i).last().is_some_and(|last| at <= last);
        let is_asked_early = |i: u32| after_instance.get(i).iter().any(|at| is_early(i, at));
        let is_asked_early = (0..instances as u32).map(is_asked_early).collect();
        Self { of_rank, of_instance, after_arrival, after_instance, is_asked_early, left_after, latest }
    }
}

/// A replay as the base of variations, with the nodes that depend on each other in it.
pub(super) struct Variations<'a> {
    replay: &'a Replay,
    base: State<'a>,
    /// Whether each rank works as a typical rank does in the base.
    is_typical: Vec<bool>,
    /// The nodes of those ranks.
    typical_nodes: Vec<u32>,
    dependents: Dependents,
    /// The nodes with an unknown wait.
    unknown: Vec<u32>,
    /// Of each instance, how long after its last arrival the last rank leaves; `None` if none waits for the last arrival.
    tail_ns: Vec<Option<i64>>,
    /// When each instance, or each node that is left after another arrival, is left in the base, latest first. Nodes are
    /// numbered after the instances.
    left: Vec<(i64, u32)>,
}

impl<'a> Variations<'a> {
    /// `base` must change the work of ranks only, and to that of a typical rank.
    pub(super) fn of(replay: &'a Replay, base: &'a Change<'a>) -> Self {
        let (nodes, instances) = (&*replay.nodes, replay.step_of.len());
        let state = replay.replayed(base);
        let is_typical: Vec<bool> = (0..replay.ranks).map(base.is_typical).collect();
        let mut tail_ns: Vec<Option<i64>> = vec![None; instances];
        each(nodes, &mut |_, node| {
            if let Leave::AfterLast(ns) = node.leave {
                let tail_ns = &mut tail_ns[node.instance as usize];
                *tail_ns = (*tail_ns).max(Some(ns));
            }
        });
        let of_instances = (0..).zip(&tail_ns).zip(&state.last_ns);
        let of_instances = of_instances.filter_map(|((i, tail), last)| Some((last.saturating_add((*tail)?), i)));
        let positions = |is: &dyn Fn(&Node) -> bool| -> Vec<u32> {
            (0..).zip(nodes).filter(|(_, node)| is(node)).map(|(at, _)| at).collect()
        };
        let own = positions(&|node| matches!(node.leave, Leave::After(..))).into_iter();
        let own = own.map(|at| (state.leave_ns(at, NONE), instances as u32 + at));
        let mut left: Vec<(i64, u32)> = of_instances.chain(own).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            typical_nodes: positions(&|node| is_typical[node.rank as usize]),
            unknown: positions(&|node| node.has_unknown_wait),
            dependents: Dependents::of(replay),
            tail_ns,
            left,
            base: state,
            is_typical,
            replay,
        }
    }

    /// The end of the run for each of some ranks, if it alone works otherwise than in the base; `None` for the ranks that come
    /// after the limit of followed nodes. In a base with typical ranks, only these can be varied.
    pub(super) fn ends_ns(&self, ranks: &[usize], followed_max: usize) -> Vec<Ended> {
        let mut ended = Vec::with_capacity(ranks.len());
        let mut followed = 0_usize;
        for batch in ranks.chunks(BATCH) {
            if followed > followed_max {
                ended.extend(batch.iter().map(|rank| (*rank, None)));
                continue;
            }
            let share = batch.len().div_ceil(rayon::current_num_threads());
            let of_share = |ranks: &[usize]| -> Vec<(usize, i64, usize)> {
                let mut varied = Varied::new(self);
                let end = |rank: &usize| {
                    let end_ns = varied.end_ns(*rank);
                    (*rank, end_ns, varied.followed)
                };
                ranks.iter().map(end).collect()
            };
            let of_batch: Vec<_> = batch.par_chunks(share).map(of_share).collect();
            for (rank, end_ns, count) in of_batch.into_iter().flatten() {
                ended.push((rank, Some(end_ns)));
                followed = followed.saturating_add(count);
            }
        }
        ended
    }

    /// The nodes whose ranks are typical in the base or when this rank is varied, in their order.
    fn marks(&self, rank: usize) -> &[u32] {
        if self.typical_nodes.is_empty() { self.dependents.of_rank.get(rank as u32) } else { &self.typical_nodes }
    }
}

/// A node that differs from the base.
struct Moved {
    at: u32,
    ready_ns: i64,
    arrival_ns: i64,
}

/// An instance that differs from the base.
struct Touched {
    instance: u32,
    /// The latest arrival among the nodes that differ; `None` if one of these was the last in the base, so that another one
    /// may be it now.
    moved_ns: Option<i64>,
}

/// The replay of one variation. The memory is used again for the next one.
struct Varied<'a> {
    of: &'a Variations<'a>,
    rank: usize,
    /// The nodes that differ from the base.
    moved: Vec<Moved>,
    /// For each node, its position in `moved`, if that node is there: few nodes differ, and each thread has this list.
    place: Vec<u32>,
    /// The instances that differ from the base.
    touched: Vec<Touched>,
    /// For each instance, its position in `touched`, if it is there.
    instance_place: Vec<u32>,
    /// A bit for each node that is to be replayed.
    open: Vec<u64>,
    followed: usize,
}

impl Times for Varied<'_> {
    fn ready_ns(&self, at: u32) -> i64 {
        self.moved(at).map_or(self.of.base.ready_ns[at as usize], |moved| moved.ready_ns)
    }

    fn leave_ns(&self, at: u32, by: u32) -> i64 {
        let node = &self.of.replay.nodes[at as usize];
        match node.leave {
            Leave::AfterLast(ns) => self.last_ns(node.instance, by).saturating_add(ns),
            Leave::After(of, ns) => {
                let known = if of < by { self.arrival_ns(of) } else { i64::MIN };
                known.saturating_add(ns).max(self.arrival_ns(at))
            }
        }
    }
}

impl<'a> Varied<'a> {
    fn new(of: &'a Variations<'a>) -> Self {
        let nodes = of.replay.nodes.len();
        Self {
            of,
            rank: 0,
            moved: Vec::new(),
            place: vec![0; nodes],
            touched: Vec::new(),
            instance_place: vec![0; of.replay.step_of.len()],
            open: vec![0; nodes.div_ceil(64)],
            followed: 0,
        }
    }

    /// The end of the run if `rank` works otherwise than in the base.
    fn end_ns(&mut self, rank: usize) -> i64 {
        (self.rank, self.followed) = (rank, 0);
        self.moved.clear();
        self.touched.clear();
        self.of.dependents.of_rank.get(rank as u32).iter().for_each(|at| self.open(*at));
        let mut word =
            self.of.dependents.of_rank.get(rank as u32).first().map_or(self.open.len(), |at| *at as usize / 64);
        // Words without a bit take time, too.
        self.followed += (self.open.len() - word) / 64;
        while word < self.open.len() {
            match self.open[word] {
                0 => word += 1,
                bits => {
                    self.open[word] &= bits - 1;
                    self.follow((word * 64) as u32 + bits.trailing_zeros());
                }
            }
        }
        self.last_end_ns()
    }

    fn open(&mut self, at: u32) {
        self.open[at as usize / 64] |= 1 << (at % 64);
    }

    /// Whether a rank works as a typical rank does.
    fn is_typical(&self, rank: usize) -> bool {
        self.of.is_typical[rank] != (rank == self.rank)
    }

    /// Replays a node, and opens those that depend on it if it differs from the base.
    fn follow(&mut self, at: u32) {
        self.followed += 1;
        let replay = self.of.replay;
        let node = &replay.nodes[at as usize];
        let rank = node.rank as usize;
        let work = if self.is_typical(rank) { node.typical } else { node.work };
        let latest = self.of.dependents.latest.get(&at).copied().unwrap_or(NONE);
        let ahead_ns = if node.has_unknown_wait { self.ahead_ns(at) } else { 0 };
        let (ready_ns, arrival_ns) = replay.times_of(at, work, latest, (ahead_ns, false), self);
        let (was_ready_ns, was_arrival_ns) = (self.of.base.ready_ns[at as usize], self.of.base.arrival_ns[at as usize]);
        if (ready_ns, arrival_ns) != (was_ready_ns, was_arrival_ns) {
            self.place[at as usize] = self.moved.len() as u32;
            self.moved.push(Moved { at, ready_ns, arrival_ns });
            self.open_all(self.of.dependents.after_arrival.get(at), at);
        }
        if arrival_ns != was_arrival_ns {
            self.touch(node.instance, was_arrival_ns, arrival_ns, at);
        }
        if self.is_typical(rank) || self.of.is_typical[rank] {
            self.open_unknown(at);
        }
    }

    /// A node of an instance arrives at another time. An arrival that neither is nor was the last one moves no other rank.
    fn touch(&mut self, instance: u32, was_ns: i64, now_ns: i64, at: u32) {
        let i = instance as usize;
        let last_ns = self.of.base.last_ns[i];
        if self.touched(instance).is_none() {
            self.instance_place[i] = self.touched.len() as u32;
            self.touched.push(Touched { instance, moved_ns: Some(i64::MIN) });
        }
        let is_or_was_last = was_ns >= last_ns || now_ns > last_ns;
        let moved_ns = &mut self.touched[self.instance_place[i] as usize].moved_ns;
        *moved_ns = moved_ns.filter(|_| was_ns < last_ns).map(|moved_ns| moved_ns.max(now_ns));
        if is_or_was_last || self.of.dependents.is_asked_early[i] {
            self.open_all(self.of.dependents.after_instance.get(instance), at);
        }
    }

    fn open_all(&mut self, nodes: &'a [u32], after: u32) {
        nodes.iter().filter(|at| **at > after).for_each(|at| self.open(*at));
    }

    /// Opens the nodes with an unknown wait up to the next mark, because the marked rank may be ahead by another time.
    fn open_unknown(&mut self, at: u32) {
        let of = self.of;
        let marks = of.marks(self.rank);
        let next = marks.get(marks.partition_point(|mark| *mark <= at)).copied().unwrap_or(NONE);
        let unknown = &of.unknown;
        let from = unknown.partition_point(|unknown| *unknown <= at);
        let to = unknown.partition_point(|unknown| *unknown <= next);
        unknown[from..to].iter().for_each(|unknown| self.open(*unknown));
    }

    /// By how much the latest typical rank before a node is ahead of the recording.
    fn ahead_ns(&self, before: u32) -> i64 {
        let marks = self.of.marks(self.rank);
        let marks = &marks[..marks.partition_point(|mark| *mark < before)];
        let is_marked = |at: &&u32| self.is_typical(self.of.replay.nodes[**at as usize].rank as usize);
        let latest = marks.iter().rev().find(is_marked);
        latest.map_or(0, |at| self.of.replay.nodes[*at as usize].arrival_ns - self.arrival_ns(*at))
    }

    /// The times of a node that differs from the base.
    fn moved(&self, at: u32) -> Option<&Moved> {
        self.moved.get(self.place[at as usize] as usize).filter(|moved| moved.at == at)
    }

    fn touched(&self, instance: u32) -> Option<&Touched> {
        let place = self.instance_place[instance as usize] as usize;
        self.touched.get(place).filter(|touched| touched.instance == instance)
    }

    fn arrival_ns(&self, at: u32) -> i64 {
        self.moved(at).map_or(self.of.base.arrival_ns[at as usize], |moved| moved.arrival_ns)
    }

    /// The last arrival at an instance among the nodes before `by`.
    fn last_ns(&self, instance: u32, by: u32) -> i64 {
        let members = self.of.dependents.of_instance.get(instance);
        let is_whole = members.last().is_none_or(|last| *last < by);
        let base_ns = self.of.base.last_ns[instance as usize];
        match self.touched(instance) {
            _ if !is_whole => (),
            None => return base_ns,
            Some(Touched { moved_ns: Some(moved_ns), .. }) => return base_ns.max(*moved_ns),
            Some(Touched { moved_ns: None, .. }) => (),
        }
        members.iter().take_while(|at| **at < by).map(|at| self.arrival_ns(*at)).max().unwrap_or(i64::MIN)
    }

    /// The end of the run.
    fn last_end_ns(&self) -> i64 {
        let instances = self.of.tail_ns.len() as u32;
        let is_touched = |key: u32| match key.checked_sub(instances) {
            None => self.touched(key).is_some(),
            Some(at) => {
                let Leave::After(of, _) = self.of.replay.nodes[at as usize].leave else { return false };
                [at, of].iter().any(|at| self.arrival_ns(*at) != self.of.base.arrival_ns[*at as usize])
            }
        };
        let kept = self.of.left.iter().find(|(_, key)| !is_touched(*key)).map(|(end_ns, _)| *end_ns);
        let moved = self.touched.iter().flat_map(|Touched { instance, .. }| {
            let tail_ns = self.of.tail_ns[*instance as usize];
            let of_last = tail_ns.map(|tail_ns| self.last_ns(*instance, NONE).saturating_add(tail_ns));
            let members = self.of.dependents.of_instance.get(*instance);
            let own = members.iter().filter(|at| self.moved(**at).is_some());
            let own = own.flat_map(|at| self.of.dependents.left_after.get(*at).iter().chain([at]));
            let own = own.filter(|at| matches!(self.of.replay.nodes[**at as usize].leave, Leave::After(..)));
            of_last.into_iter().chain(own.map(|at| self.leave_ns(*at, NONE)))
        });
        moved.chain(kept).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::nodes::Work;

    const RANKS: usize = 5;

    /// The time that the whole replay saves.
    fn saved_ns(replay: &Replay, is_typical: &dyn Fn(usize) -> bool) -> i64 {
        replay.saved_ns(is_typical, &FxHashMap::default())
    }

    /// A rank, whether it shares the latest instance, three numbers that choose what it depends on, and six times.
    type Drawn = ((usize, bool), [u32; 3], [i64; 6], [bool; 3]);

    /// A replay of any shape: nodes depend on any earlier nodes.
    fn replay(drawn: &[Drawn]) -> Replay {
        let mut nodes: Vec<Node> = Vec::new();
        let mut entered = [NONE; RANKS];
        let mut instances = 0;
        for (at, ((rank, joins), chosen, times, flags)) in drawn.iter().enumerate() {
            let has_rank = |node: &&Node| node.instance + 1 == instances && node.rank == *rank as u32;
            if !joins || instances == 0 || nodes.iter().rev().take(2 * RANKS).any(|node| has_rank(&node)) {
                instances += 1;
            }
            let earlier = |choice: u32| if at == 0 || choice.is_multiple_of(3) { NONE } else { choice % at as u32 };
            let [queued_ns, arrival_ns, own_ns, after_ns, typical_ns, leave_ns] = *times;
            nodes.push(Node {
                rank: *rank as u32,
                instance: instances - 1,
                entered: if flags[0] { NONE } else { entered[*rank] },
                waited: earlier(chosen[0]),
                before: earlier(chosen[1]),
                queued_ns,
                has_unknown_wait: flags[1],
                waits_in_place: false,
                arrival_ns: 40 * at as i64 + arrival_ns,
                end_ns: 40 * at as i64 + arrival_ns + leave_ns,
                work: Work { own_ns, after_ns },
                typical: Work { own_ns: typical_ns, after_ns },
                sigma_ns: 0,
                leave: Leave::AfterLast(leave_ns),
            });
            entered[*rank] = at as u32;
        }
        // Some ranks leave after one other of their collective.
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        (0..).zip(&nodes).for_each(|(at, node)| members.entry(node.instance).or_default().push(at));
        for (node, ((_, chosen, times, flags), _)) in nodes.iter_mut().zip(drawn.iter().zip(0..)) {
            let of_instance = &members[&node.instance];
            if flags[2] {
                node.leave = Leave::After(of_instance[chosen[2] as usize % of_instance.len()], times[5]);
            }
        }
        let instances = instances as usize;
        let mut replay = Replay {
            nodes,
            step_of: vec![Some(0); instances],
            comm_of: vec![0; instances],
            bucket_of: vec![None; instances],
            has_sends: false,
            ranks: RANKS,
            max_queue_gap_ns: 20,
            ends_ns: [0; 2],
            begin_ns: 0,
            span_of: BTreeMap::new(),
        };
        replay.ends_ns[1] = -saved_ns(&replay, &|_| false);
        replay
    }

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        let flags = [0_u8..8, 0..4, 0..3].prop_map(|drawn| drawn.map(|drawn| drawn == 0));
        let node = ((0..RANKS, any::<bool>()), any::<[u32; 3]>(), prop::array::uniform6(0_i64..60), flags);
        prop::collection::vec(node, 0..90)
    }

    proptest! {
        /// Invariant (verdicts): A rank that is replayed alone costs what the replay of the whole job says.
        #[test]
        fn a_variation_ends_as_the_whole_replay_does(drawn in drawn(), base in prop::array::uniform5(any::<bool>())) {
            let replay = replay(&drawn);
            let ranks: Vec<usize> = (0..RANKS).collect();
            let nothing = Change::nothing();
            for (rank, end_ns) in Variations::of(&replay, &nothing).ends_ns(&ranks, usize::MAX) {
                let saved_ns = saved_ns(&replay, &|other| other == rank);
                prop_assert_eq!(end_ns.map(|end_ns| replay.ends_ns[1] - end_ns), Some(saved_ns), "rank {}", rank);
            }
            let ones: Vec<usize> = ranks.into_iter().filter(|rank| base[*rank]).collect();
            let is_one = |rank: usize| base[rank];
            let change = Change { is_typical: &is_one, ..Change::nothing() };
            for (rank, end_ns) in Variations::of(&replay, &change).ends_ns(&ones, usize::MAX) {
                let saved_ns = saved_ns(&replay, &|other| other != rank && base[other]);
                prop_assert_eq!(end_ns.map(|end_ns| replay.ends_ns[1] - end_ns), Some(saved_ns), "without {}", rank);
            }
        }
    }
}
