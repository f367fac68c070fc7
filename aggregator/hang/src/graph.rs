//! The wait-for graph. Ranks and gates are its nodes: a rank waits at a gate, which leads to the ranks that it waits for.
//!
//! ```text
//!   ranks:        0    1    2    3          of one communicator
//!   enqueued:     9    9    7    4
//!                 │    │    │    │
//!   gates:        └─┬──┘    │    │
//!              gate 8 ──────┘    │          ranks 0 and 1 wait for 2 in number 8 …
//!                 └──── gate 5 ──┘          … and all of them wait for 3 in number 5
//! ```
//!
//! Each rank is at one gate of a numbering and each gate leads to the next one, so the graph grows with the ranks, and not with their
//! pairs.
//!
//! A device that is stuck has not ended a collective that the other ranks have ended. The threshold of two communicators was chosen
//! on real hangs; a rank with one communicator has no second.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::{Job, Lane, Open};
use crate::state::{Facts, Pending, Position, What};

/// Communicators in which a device must be behind to count as stuck.
const MIN_COMMS_BEHIND: usize = 2;
/// Numbers of one numbering at which first operations are looked at. Ranks of a job that hangs stand at few.
const MAX_FIRST_NUMBERS: usize = 8;

/// Why ranks wait at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// The others have not called it.
    NotCalled,
    /// Whether the others called it is unknown: they have no dump or rows.
    NotRead,
    /// The others called it, and their devices are stuck before it.
    DeviceStuck,
    /// The others called it, and called another operation before it that has not ended.
    Queued,
    /// Whether the others posted their side of a batch is unknown: their rings have lost it.
    NotKnown,
}

impl Why {
    /// Its word in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::NotCalled => "not_called",
            Self::NotRead => "not_read",
            Self::DeviceStuck => "device_stuck",
            Self::Queued => "queued",
            Self::NotKnown => "not_known",
        }
    }
}

/// A place where ranks wait. Ranks are places in [`Job::ranks`], ascending.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) why: Why,
    /// In [`Job::comms`].
    pub(crate) comm: usize,
    /// The first operation that the ranks wait in.
    pub(crate) what: What,
    pub(crate) facts: Facts,
    pub(crate) waiting: Vec<usize>,
    /// The ranks that are waited for.
    pub(crate) late: Vec<usize>,
    /// Whether these ranks lack the first operation that has not ended, and not only a later one.
    pub(crate) is_first: bool,
    /// A gate whose ranks are waited for as well.
    pub(crate) below: Option<usize>,
}

impl Gate {
    /// A gate whose late ranks lack the first operation that has not ended.
    fn first(why: Why, comm: usize, (what, facts): (What, Facts), waiting: Vec<usize>, late: Vec<usize>) -> Self {
        Self { why, comm, what, facts, waiting, late, is_first: true, below: None }
    }
}

/// The sends to (or receives from) one rank that have not ended.
struct OpenTransfers<'j> {
    count: i64,
    /// The number of transfers of the first open batch. Some of them may have ended.
    unseen: i64,
    first_batch: Option<i64>,
    facts: &'j Facts,
}

impl<'j> OpenTransfers<'j> {
    fn of(first: &'j Pending) -> Self {
        Self { count: 0, unseen: 0, first_batch: None, facts: &first.facts }
    }

    fn add(&mut self, pending: &Pending) {
        self.count += 1;
        self.first_batch = self.first_batch.or(pending.batch);
        self.unseen += i64::from(pending.batch.is_some() && pending.batch == self.first_batch);
    }
}

/// The graph, and the stuck devices, which decide the verdict.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) gates: Vec<Gate>,
    /// The gates of each rank.
    pub(crate) of_rank: Vec<Vec<usize>>,
    /// Whether the device of a rank is stuck.
    pub(crate) is_stuck: Vec<bool>,
}

impl Graph {
    pub(crate) fn of(job: &Job) -> Self {
        let mut graph = Self { of_rank: vec![Vec::new(); job.ranks.len()], ..Self::default() };
        graph.is_stuck = stuck(job);
        for (at, lane) in job.lanes.iter().enumerate() {
            graph.not_called(job, at, lane);
            graph.not_read(job, at, lane);
        }
        graph.transfers(job);
        graph.first_operations(job);
        for (at, gate) in graph.gates.iter().enumerate() {
            gate.waiting.iter().for_each(|rank| graph.of_rank[*rank].push(at));
        }
        graph
    }

    fn push(&mut self, gate: Gate) -> usize {
        self.gates.push(gate);
        self.gates.len() - 1
    }

    fn not_called(&mut self, job: &Job, at: usize, lane: &Lane) {
        let mut levels: BTreeMap<i64, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (rank, position) in &lane.at {
            let level = levels.entry(position.enqueued).or_default();
            level.0.push(*rank);
            if position.is_waiting() {
                level.1.push(*rank);
            }
        }
        let mut before: Option<(i64, Vec<usize>)> = None;
        let (most_done, mut below) = (lane.most_done(), None);
        for (enqueued, (all, waiting)) in levels {
            if let Some((reached, late)) = before {
                let (what, facts) = earliest(job, at, reached.saturating_add(1), &waiting);
                let is_first = reached <= most_done;
                let gate = Gate { why: Why::NotCalled, comm: lane.comm, what, facts, waiting, late, is_first, below };
                below = Some(self.push(gate));
            }
            before = Some((enqueued, all));
        }
    }

    /// Members without a dump have called what some rank has ended, and nothing more is known.
    fn not_read(&mut self, job: &Job, at: usize, lane: &Lane) {
        let most_done = lane.most_done();
        let may_wait = |(_, position): &&(usize, Position)| position.is_waiting() && position.enqueued > most_done;
        let waiting: Vec<usize> = lane.at.iter().filter(may_wait).map(|(rank, _)| *rank).collect();
        let Some(highest) = waiting.iter().filter_map(|rank| lane.position(*rank)).map(|p| p.enqueued).max() else {
            return;
        };
        let unread = |rank: &usize| !job.is_read[*rank];
        let mut late: Vec<usize> = match &job.comms[lane.comm].members {
            Some(members) => members.iter().filter_map(|rank| job.place(*rank)).filter(unread).collect(),
            // If all known members wait in it, an unknown one has not called it.
            None if lane.at.iter().all(|(_, position)| position.enqueued >= highest) => {
                (0..job.ranks.len()).filter(unread).collect()
            }
            None => Vec::new(),
        };
        late.sort_unstable();
        if !late.is_empty() {
            let (what, facts) = earliest(job, at, most_done.saturating_add(1), &waiting);
            self.push(Gate::first(Why::NotRead, lane.comm, (what, facts), waiting, late));
        }
    }

    /// Both sides of a transfer end it, in the order of their calls. So a rank with more open sends to another than that has open
    /// receives from it waits for the other. What a stuck device has not ended says nothing.
    ///
    /// Members of a batch end unseen. There, what both sides posted is counted. If rings have lost that, only the first open batch
    /// can hold sends and receives that ended, because a device carries out its batches in their order.
    fn transfers(&mut self, job: &Job) {
        let mut open: BTreeMap<(usize, usize, usize, bool), OpenTransfers<'_>> = BTreeMap::new();
        for (rank, operations) in job.open.iter().enumerate() {
            for Open { comm, pending, .. } in operations {
                let What::Transfer { peer, is_send } = pending.what else { continue };
                let Some(peer) = job.place(peer) else { continue };
                open.entry((*comm, rank, peer, is_send)).or_insert_with(|| OpenTransfers::of(pending)).add(pending);
            }
        }
        for ((comm, rank, peer, is_send), own) in &open {
            let of_peer = open.get(&(*comm, *peer, *rank, !is_send));
            let (other, unseen_of_other) = of_peer.map_or((0, 0), |open| (open.count, open.unseen));
            let posted = || {
                let [of_rank, of_peer] = [*rank, *peer].map(|place| job.posted.get(&(*comm, place)));
                of_rank?.more_than(job.ranks[*rank], *is_send, of_peer?, job.ranks[*peer])
            };
            let more = own.count - other;
            let is_exact = own.unseen == 0 && unseen_of_other == 0;
            let why = match (job.is_read[*peer], (!is_exact).then(posted).flatten()) {
                (false, _) => Why::NotRead,
                (true, Some(more)) if more > 0 => Why::NotCalled,
                (true, Some(_)) => continue,
                (true, None) if more > own.unseen => Why::NotCalled,
                (true, None) if more + unseen_of_other > 0 => Why::NotKnown,
                (true, None) => continue,
            };
            if !self.is_stuck[*rank] {
                let what = What::Transfer { peer: job.ranks[*peer], is_send: *is_send };
                let (waiting, late) = (vec![*rank], vec![*peer]);
                let (is_first, facts) = (other == 0, own.facts.clone());
                self.push(Gate { why, comm: *comm, what, facts, waiting, late, is_first, below: None });
            }
        }
    }

    /// Adds the waits of ranks in their first open operation. Other ranks may have called it too, and be stuck or busy before it.
    fn first_operations(&mut self, job: &Job) {
        let mut by_number: BTreeMap<(usize, i64), Vec<usize>> = BTreeMap::new();
        for rank in 0..job.ranks.len() {
            let Some(first) = job.first(rank).filter(|_| !self.is_stuck[rank]) else { continue };
            match (first.pending.what, first.lane) {
                (What::Collective(seq), Some(lane)) => by_number.entry((lane, seq)).or_default().push(rank),
                (What::Transfer { peer, .. }, _) => {
                    if let Some(peer) = job.place(peer).filter(|peer| self.is_stuck[*peer]) {
                        let operation = (first.pending.what, first.pending.facts.clone());
                        self.push(Gate::first(Why::DeviceStuck, first.comm, operation, vec![rank], vec![peer]));
                    }
                }
                (What::Collective(_), None) => {}
            }
        }
        let mut of_lane: BTreeMap<usize, usize> = BTreeMap::new();
        for ((at, seq), waiting) in by_number {
            let seen = of_lane.entry(at).or_default();
            *seen += 1;
            if *seen > MAX_FIRST_NUMBERS {
                continue;
            }
            let lane = &job.lanes[at];
            let called = |(rank, position): &(usize, Position)| {
                (position.enqueued >= seq && position.done < seq).then_some(*rank)
            };
            let (stuck, others): (Vec<usize>, Vec<usize>) =
                lane.at.iter().filter_map(called).partition(|rank| self.is_stuck[*rank]);
            let is_first_here = |rank: &usize| {
                job.first(*rank)
                    .is_none_or(|first| first.lane == Some(at) && first.pending.what == What::Collective(seq))
            };
            let queued: Vec<usize> = others.into_iter().filter(|rank| !is_first_here(rank)).collect();
            for (why, late) in [(Why::DeviceStuck, stuck), (Why::Queued, queued)] {
                if !late.is_empty() {
                    let operation = earliest(job, at, seq, &waiting);
                    self.push(Gate::first(why, lane.comm, operation, waiting.clone(), late));
                }
            }
        }
    }

    /// The nodes that a node leads to: gates are numbered after the ranks.
    pub(crate) fn next(&self, node: usize, follows: impl Fn(Why) -> bool) -> Vec<usize> {
        let ranks = self.of_rank.len();
        match node.checked_sub(ranks) {
            None => self.of_rank[node]
                .iter()
                .filter(|gate| follows(self.gates[**gate].why))
                .map(|gate| gate + ranks)
                .collect(),
            Some(gate) => {
                let gate = &self.gates[gate];
                gate.late.iter().copied().chain(gate.below.map(|below| below + ranks)).collect()
            }
        }
    }
}

/// The open collective of `waiting` with the lowest number from `seq` on, as the rank that called it first states it. A ring may have
/// lost it; then it is number `seq`.
fn earliest(job: &Job, lane: usize, seq: i64, waiting: &[usize]) -> (What, Facts) {
    let mut best: Option<(i64, Option<i64>, &Facts)> = None;
    for open in waiting.iter().flat_map(|rank| job.open_in(lane, *rank)) {
        let What::Collective(number) = open.pending.what else { continue };
        let called = open.pending.facts.called_utc_ns;
        let is_better = |(best, at, _): (i64, Option<i64>, &Facts)| (number, called) < (best, at);
        if number >= seq && best.is_none_or(is_better) {
            best = Some((number, called, &open.pending.facts));
        }
    }
    let (number, facts) = best.map_or((seq, Facts::default()), |(number, _, facts)| (number, facts.clone()));
    (What::Collective(number), facts)
}

/// Whether a rank may end an operation long before another: then that it ended says nothing of the other's device.
fn is_one_sided(op: &str) -> bool {
    matches!(op, "broadcast" | "reduce" | "gather" | "scatter" | "send" | "recv")
}

/// Whether the device of each rank is stuck.
fn stuck(job: &Job) -> Vec<bool> {
    let (mut behind, mut comms) = (BTreeSet::new(), BTreeSet::new());
    for (at, lane) in job.lanes.iter().enumerate() {
        // The positions of ranks that send to each other differ by stage.
        if lane.at.len() < 2 || job.comms[lane.comm].has_transfers {
            continue;
        }
        let most_done = lane.most_done();
        for (rank, position) in &lane.at {
            comms.insert((*rank, lane.comm));
            if position.is_waiting() && most_done > position.done {
                let (what, facts) = earliest(job, at, position.done.saturating_add(1), &[*rank]);
                let is_called = matches!(what, What::Collective(number) if number <= most_done);
                if is_called && !facts.op.is_empty() && !is_one_sided(&facts.op) {
                    behind.insert((*rank, lane.comm));
                }
            }
        }
    }
    let count = |pairs: &BTreeSet<(usize, usize)>, rank: usize| pairs.range((rank, 0)..=(rank, usize::MAX)).count();
    let is_stuck = |rank: usize| {
        let behind = count(&behind, rank);
        behind > 0 && behind >= MIN_COMMS_BEHIND.min(count(&comms, rank))
    };
    (0..job.ranks.len()).map(is_stuck).collect()
}
