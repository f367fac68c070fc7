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

use std::collections::{BTreeMap, BTreeSet};

use trace::Op;

use crate::nodes::{Builder, Leave, NONE, Node, Work};
use topology::arrivals::Joined;
use topology::join::Join;

/// The collectives of all ranks, in the order of arrivals.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) nodes: Vec<Node>,
    /// For each instance, its step; `None` if it is in no step that counts.
    pub(super) step_of: Vec<Option<i32>>,
    /// For each instance, its communicator.
    pub(super) comm_of: Vec<i64>,
    /// For each instance that carries a gradient bucket, its number and its bytes.
    pub(super) bucket_of: Vec<Option<(i32, i64)>>,
    /// Whether ranks send to each other.
    pub(super) has_sends: bool,
    pub(super) ranks: usize,
    pub(super) max_queue_gap_ns: i64,
    /// The recorded end, and the end of the unchanged replay.
    pub(super) ends_ns: [i64; 2],
    /// For each step that counts, its recorded begin and end: of its first own work and of its last collective.
    pub(super) span_of: BTreeMap<i32, (i64, i64)>,
}

impl Replay {
    /// Only in `steps`, ranks can work as a typical rank. `max_queue_gap_ns` is that of
    /// [`Thresholds`](model::thresholds::Thresholds).
    pub(super) fn of(join: &Join, steps: &BTreeSet<i32>, max_queue_gap_ns: i64) -> Self {
        let mut builder = Builder::of(join, max_queue_gap_ns);
        builder.link();
        builder.measure();
        let step_of: Vec<Option<i32>> =
            join.instances.iter().map(|instance| instance.step.filter(|step| steps.contains(step))).collect();
        builder.compare(&step_of);
        let nodes = builder.nodes;
        let mut span_of: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
        for node in &nodes {
            if let Some(step) = step_of[node.instance as usize] {
                let span = span_of.entry(step).or_insert((i64::MAX, i64::MIN));
                *span = (span.0.min(node.arrival_ns - node.work.own_ns), span.1.max(node.end_ns));
            }
        }
        let mut replay = Self {
            span_of,
            ends_ns: [nodes.iter().map(|n| n.end_ns).max().unwrap_or(0); 2],
            step_of,
            comm_of: join.instances.iter().map(|instance| instance.comm_id).collect(),
            bucket_of: join.instances.iter().map(bucket_of).collect(),
            has_sends: join.instances.iter().any(|instance| instance.op == Op::Send),
            ranks: join.same_work.stages.len(),
            max_queue_gap_ns,
            nodes,
        };
        replay.ends_ns[1] = replay.end_ns(&Change::nothing());
        replay
    }

    /// By how much the unchanged replay differs from the recording.
    pub(super) fn discrepancy_ns(&self) -> i64 {
        (self.ends_ns[1] - self.ends_ns[0]).abs()
    }

    /// By how much the run would be shorter if these ranks worked as a typical rank does.
    #[cfg(test)]
    pub(super) fn saved_ns(&self, is_typical: &dyn Fn(usize) -> bool) -> i64 {
        self.ends_ns[1] - self.end_ns(&Change { is_typical, ..Change::nothing() })
    }

    /// By how much ranks leave earlier than recorded if transfers take a share of their time that depends on the communicator.
    pub(super) fn scaled_ns(&self, scale_of: &dyn Fn(i64) -> f64) -> Vec<i64> {
        let of_node = |node: &Node| {
            let instance = node.instance as usize;
            let (Leave::AfterLast(ns) | Leave::After(_, ns)) = node.leave;
            let is_counted = self.step_of[instance].is_some();
            if is_counted { ((1.0 - scale_of(self.comm_of[instance])) * ns.max(0) as f64).round() as i64 } else { 0 }
        };
        self.nodes.iter().map(of_node).collect()
    }

    /// The length of each step that counts: to the end of its last collective, from that of the step before, or from the begin of
    /// its own work if that step does not count.
    pub(super) fn step_lengths_ns(&self, change: &Change<'_>) -> Vec<i64> {
        let state = self.replayed(change);
        let mut ends_ns: BTreeMap<i32, i64> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(step) = self.step_of[node.instance as usize] {
                let end_ns = ends_ns.entry(step).or_insert(i64::MIN);
                *end_ns = (*end_ns).max(state.leave_ns(at as u32, NONE));
            }
        }
        // The step before, its replayed end, and its recorded end.
        let mut last: Option<(i32, i64, i64)> = None;
        let length_ns = |(step, end_ns): (i32, i64)| {
            let (begin_ns, recorded_end_ns) = self.span_of.get(&step).copied().unwrap_or((end_ns, end_ns));
            let from_ns = match last.replace((step, end_ns, recorded_end_ns)) {
                Some((before, end_ns, _)) if before + 1 == step => end_ns,
                // The steps in between are as long as in the recording.
                Some((_, end_ns, recorded_end_ns)) => begin_ns + end_ns - recorded_end_ns,
                None => begin_ns,
            };
            end_ns - from_ns
        };
        ends_ns.into_iter().map(length_ns).collect()
    }

    /// For each rank and step that counts: its length, between the ends of the rank's last collectives, and what of it the rank is
    /// idle.
    pub(super) fn idle_ns(&self, change: &Change<'_>) -> Vec<(usize, i32, i64, i64)> {
        let state = self.replayed(change);
        let mut steps: BTreeMap<(usize, i32), (i64, i64)> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(step) = self.step_of[node.instance as usize] else { continue };
            let rank = node.rank as usize;
            let work = if (change.is_typical)(rank) { node.typical } else { node.work };
            let (end_ns, own_ns) = steps.entry((rank, step)).or_insert((i64::MIN, 0));
            *end_ns = (*end_ns).max(state.leave_ns(at as u32, NONE));
            *own_ns += work.own_ns;
        }
        let mut before: Option<(usize, i32, i64)> = None;
        let length = |((rank, step), (end_ns, own_ns)): ((usize, i32), (i64, i64))| {
            let last = before.replace((rank, step, end_ns)).filter(|b| (b.0, b.1 + 1) == (rank, step));
            // The first step of a window begins when it did in the recording.
            let from_ns = last.map(|(.., end_ns)| end_ns).or(self.span_of.get(&step).map(|(begin_ns, _)| *begin_ns))?;
            Some((rank, step, end_ns - from_ns, (end_ns - from_ns - own_ns).max(0)))
        };
        steps.into_iter().filter_map(length).collect()
    }

    /// By how much ranks leave later if the early ranks of a collective had done a part of the transfer before the last one came:
    /// where they waited for longer than the transfer took, it may be half as long again without that wait.
    pub(super) fn after_waits_ns(&self) -> Vec<i64> {
        let mut spans = vec![(i64::MAX, i64::MIN); self.step_of.len()];
        for node in &self.nodes {
            let span = &mut spans[node.instance as usize];
            *span = (span.0.min(node.arrival_ns), span.1.max(node.arrival_ns));
        }
        let of_node = |node: &Node| {
            let (first_ns, last_ns) = spans[node.instance as usize];
            match node.leave {
                Leave::AfterLast(ns) if ns > 0 && last_ns - first_ns > ns => -ns / 2,
                _ => 0,
            }
        };
        self.nodes.iter().map(of_node).collect()
    }

    /// The end of the run.
    fn end_ns(&self, change: &Change<'_>) -> i64 {
        let state = self.replayed(change);
        (0..self.nodes.len() as u32).map(|at| state.leave_ns(at, NONE)).max().unwrap_or(0)
    }

    pub(super) fn replayed<'a>(&'a self, change: &'a Change<'_>) -> State<'a> {
        let mut state = State::new(&self.nodes, self.step_of.len(), &change.earlier_ns);
        let mut latest = vec![NONE; self.ranks];
        let changed: Vec<bool> = (0..self.ranks).map(change.is_typical).collect();
        // By how much the changed ranks are ahead of the recording.
        let mut ahead_ns = 0;
        for (at, node) in self.nodes.iter().enumerate() {
            let rank = node.rank as usize;
            let work = if changed[rank] { node.typical } else { node.work };
            let (ready_ns, arrival_ns) = self.times_of(at as u32, work, latest[rank], ahead_ns, &state);
            state.ready_ns[at] = ready_ns;
            state.arrival_ns[at] = arrival_ns;
            let last_ns = &mut state.last_ns[node.instance as usize];
            *last_ns = (*last_ns).max(arrival_ns);
            latest[rank] = at as u32;
            if changed[rank] {
                ahead_ns = node.arrival_ns - arrival_ns;
            }
        }
        state
    }

    /// When the rank of a node is ready for its collective, and when it enters it. `latest` is the rank's node before this one.
    /// The changed ranks are ahead of the recording by `ahead_ns`.
    pub(super) fn times_of(&self, at: u32, work: Work, latest: u32, ahead_ns: i64, times: &impl Times) -> (i64, i64) {
        let node = &self.nodes[at as usize];
        let from_ns = match (node.entered, latest) {
            (NONE, NONE) => node.arrival_ns - node.work.own_ns,
            // No events were recorded between two windows of steps.
            (NONE, before) => {
                let shift_ns = times.leave_ns(before, at) - self.nodes[before as usize].end_ns;
                node.arrival_ns - node.work.own_ns + shift_ns
            }
            (entered, _) => times.ready_ns(entered),
        };
        let mut ready_ns = from_ns + work.own_ns;
        if node.waited != NONE {
            ready_ns = ready_ns.max(times.leave_ns(node.waited, at) + work.after_ns);
        }
        if node.has_unknown_wait {
            ready_ns = ready_ns.max(node.arrival_ns - ahead_ns);
        }
        let mut arrival_ns = ready_ns;
        if node.before != NONE {
            arrival_ns = arrival_ns.max(times.leave_ns(node.before, at) + node.queued_ns.min(self.max_queue_gap_ns));
        }
        (ready_ns, arrival_ns)
    }
}

/// The bucket of an all-reduce of gradients, and its bytes.
fn bucket_of(instance: &Joined) -> Option<(i32, i64)> {
    instance.bucket.zip(instance.bytes().filter(|bytes| *bytes > 0)).filter(|_| instance.symmetric)
}

/// What differs from the recording.
pub(super) struct Change<'a> {
    /// The ranks that work as a typical rank does, by position.
    pub(super) is_typical: &'a dyn Fn(usize) -> bool,
    /// By how much ranks leave earlier than recorded, for each node; empty: not at all.
    pub(super) earlier_ns: Vec<i64>,
}

impl Change<'_> {
    pub(super) fn nothing() -> Self {
        Self { is_typical: &|_| false, earlier_ns: Vec::new() }
    }
}

/// The times of nodes that were replayed already.
pub(super) trait Times {
    /// When its rank is ready for the collective of a node.
    fn ready_ns(&self, at: u32) -> i64;
    /// When its rank leaves the collective of a node, by the arrivals of the nodes before `by`.
    fn leave_ns(&self, at: u32, by: u32) -> i64;
}

/// The times of one replay.
pub(super) struct State<'a> {
    nodes: &'a [Node],
    pub(super) ready_ns: Vec<i64>,
    pub(super) arrival_ns: Vec<i64>,
    /// The last arrival of each instance so far.
    pub(super) last_ns: Vec<i64>,
    /// See [`Change::earlier_ns`].
    earlier_ns: &'a [i64],
}

impl<'a> State<'a> {
    fn new(nodes: &'a [Node], instances: usize, earlier_ns: &'a [i64]) -> Self {
        let [ready_ns, arrival_ns] = [(); 2].map(|()| vec![i64::MIN; nodes.len()]);
        Self { nodes, ready_ns, arrival_ns, last_ns: vec![i64::MIN; instances], earlier_ns }
    }
}

impl Times for State<'_> {
    fn ready_ns(&self, at: u32) -> i64 {
        self.ready_ns[at as usize]
    }

    fn leave_ns(&self, at: u32, _: u32) -> i64 {
        let node = &self.nodes[at as usize];
        let earlier_ns = self.earlier_ns.get(at as usize).copied().unwrap_or(0);
        match node.leave {
            Leave::AfterLast(ns) => self.last_ns[node.instance as usize].saturating_add(ns - earlier_ns),
            Leave::After(of, ns) => {
                self.arrival_ns[of as usize].saturating_add(ns - earlier_ns).max(self.arrival_ns[at as usize])
            }
        }
    }
}
