//! Sends, receives and rooted collectives in a replay: before which of them ranks do the same work, and what this work waits for.
//!
//! ```text
//!   receives   rank 4   [r1~~~][r2~~~~~][r3~~~~~]       one after another, while the rank computes
//!   computes            ~~~~~~~####~~~~~~####
//!   sends                           [s1]      [s2]      s1 needs the work on r1, s2 that on r2
//! ```
//!
//! A rank begins to receive while it computes, each rank at another time. So ranks are compared at the same message between the same
//! stages, by their work since the begin of the step. A message that queues behind another one shows neither the work before it nor
//! what this work waited for; the ranks that did not queue there show it.

use rustc_hash::FxHashMap;
use trace::Op;

use crate::nodes::{Builder, NONE};
use model::stats::lower_median;
use topology::arrivals::{Arrival, Joined};

/// Whether a rank sends, and the stage of the other rank; `None` for a rooted collective.
type Way = Option<(bool, usize)>;

/// The nodes that are not symmetric, by their place in a step.
#[derive(Default)]
pub(super) struct Places {
    /// Nodes at the same place, of ranks that do the same work.
    pub(super) alike: Vec<Vec<u32>>,
    /// For each of these nodes, the position in `alike`.
    pub(super) of: FxHashMap<u32, usize>,
    /// The way of each place, and its number in the step.
    way: Vec<(Way, usize)>,
    /// The node of a rank in a step at a way and number.
    node: FxHashMap<(u32, i32, (Way, usize)), u32>,
}

/// The own work before each place, since the begin of the step.
pub(super) struct WorkBefore {
    /// `None` where all ranks queued and do not receive.
    before_ns: Vec<Option<i64>>,
    /// Whether ranks receive there.
    is_receive: Vec<bool>,
}

impl WorkBefore {
    /// The own work before a message that queued, of a rank that has done `done_ns` of the step's work already. A receive that queues
    /// waits for none.
    pub(super) fn before_ns(&self, place: usize, done_ns: i64) -> Option<i64> {
        let shown = self.before_ns[place].map(|ns| (ns - done_ns).max(0));
        shown.or(self.is_receive[place].then_some(0))
    }
}

/// Of a message, whether the rank sends it, and the other rank.
pub(super) fn lane(instance: &Joined, a: &Arrival) -> Option<(bool, usize)> {
    if instance.op != Op::Send {
        return None;
    }
    let peer = instance.arrivals.iter().map(|other| other.rank).find(|rank| *rank != a.rank)?;
    Some((instance.sender() == Some(a.rank), peer))
}

impl Builder<'_> {
    pub(super) fn places(&self) -> Places {
        let peers = self.join.same_work.peers(&self.join.instances);
        let mut places = Places::default();
        let mut counts: FxHashMap<(u32, i32, Way), usize> = FxHashMap::default();
        let mut at_place: FxHashMap<(i64, i32, (Way, usize)), usize> = FxHashMap::default();
        for at in (0..self.nodes.len()).filter(|at| !self.instance(*at).symmetric) {
            let (rank, step) = (self.nodes[at].rank, self.instance(at).step);
            let (Some(step), Some(peers)) = (step, peers[rank as usize]) else { continue };
            let way = lane(self.instance(at), self.arrival(at));
            let way = way.map(|(is_sender, peer)| (is_sender, self.join.same_work.stages[peer]));
            let count = counts.entry((rank, step, way)).or_default();
            let numbered = (way, std::mem::replace(count, *count + 1));
            let place = *at_place.entry((peers, step, numbered)).or_insert(places.alike.len());
            if place == places.alike.len() {
                places.alike.push(Vec::new());
                places.way.push(numbered);
            }
            places.alike[place].push(at as u32);
            places.of.insert(at as u32, place);
            places.node.insert((rank, step, numbered), at as u32);
        }
        places
    }

    /// The own work since the begin of the step before each place, as the ranks that did not queue there show it.
    pub(super) fn work_before_messages(&self, places: &Places) -> WorkBefore {
        let mut since_ns = vec![0_i64; self.nodes.len()];
        let mut last: Vec<(Option<i32>, i64)> = vec![(None, 0); self.ranks];
        for (at, node) in self.nodes.iter().enumerate().filter(|_| !places.alike.is_empty()) {
            let (step, of_step) = &mut last[node.rank as usize];
            if *step != self.instance(at).step {
                (*step, *of_step) = (self.instance(at).step, 0);
            }
            *of_step = of_step.saturating_add(self.own_ns(at));
            since_ns[at] = *of_step;
        }
        let shown = |nodes: &Vec<u32>| {
            let shown = nodes.iter().map(|at| *at as usize).filter(|at| !self.is_queued(*at));
            lower_median(shown.map(|at| since_ns[at]))
        };
        WorkBefore {
            before_ns: places.alike.iter().map(shown).collect(),
            is_receive: places.way.iter().map(|(way, _)| way.is_some_and(|(is_sender, _)| !is_sender)).collect(),
        }
    }

    /// Lets a rank that found a message there already wait for it, if half of the ranks that do the same did. `ready_ns` are
    /// the times at which ranks were ready, which stay.
    pub(super) fn wait_as_others_do(&mut self, places: &Places, ready_ns: &[i64]) {
        if places.alike.is_empty() {
            return;
        }
        for alike in self.alike() {
            // What each of them waited for, and how long after that it was there.
            let mut waits: Vec<((Way, usize), i64)> = Vec::new();
            for node in alike.iter().map(|at| &self.nodes[*at as usize]).filter(|node| node.waited != NONE) {
                waits.extend(places.of.get(&node.waited).map(|place| (places.way[*place], node.work.after_ns)));
            }
            waits.sort_unstable();
            let most = waits.chunk_by(|a, b| a.0 == b.0).max_by_key(|same| same.len());
            let Some(same) = most.filter(|same| 2 * same.len() >= alike.len()) else { continue };
            let (way, after_ns) = same[(same.len() - 1) / 2];
            for at in alike {
                if self.nodes[at as usize].waited != NONE {
                    continue;
                }
                let rank = self.nodes[at as usize].rank;
                let Some(step) = self.instance(at as usize).step else { continue };
                let Some(waited) = places.node.get(&(rank, step, way)).copied().filter(|waited| *waited < at) else {
                    continue;
                };
                let left_ns = ready_ns[at as usize] - self.nodes[waited as usize].end_ns;
                if left_ns >= 0 {
                    let node = &mut self.nodes[at as usize];
                    (node.waited, node.work.after_ns) = (waited, after_ns.min(left_ns));
                }
            }
        }
    }
}
