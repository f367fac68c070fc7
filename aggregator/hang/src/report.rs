//! The answer: the ranks that hold the job up, their operations and the times of these calls, and the ranks that wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trace::{OmissionRow, Text};

use crate::graph::{Gate, Graph, Why};
use crate::job::Job;
use crate::mismatch::{Mismatch, mismatches};
use crate::state::{Facts, What};
use crate::verdict::Verdict;

/// Ranks that a rank is said to wait for at one gate, which names all; and culprits whose waiting ranks are counted.
const MAX_NAMED: usize = 64;

/// The ranks that hold a job up, and the waits that show it. Ranks are global and ascending.
#[derive(Clone, Debug, Serialize)]
pub struct Hang {
    /// Ranks that hold the job up.
    pub culprits: Vec<i32>,
    /// Ranks whose device does not end what the other ranks ended.
    pub device_stuck: Vec<i32>,
    /// Ranks that wait for each other in a circle, and for no other rank.
    pub deadlocks: Vec<Vec<i32>>,
    /// For each rank that waits, the ranks that it waits for: at most 64 of each operation, and all in `waits`.
    pub(crate) waits_for: BTreeMap<i32, Vec<i32>>,
    /// The reason for each culprit.
    pub evidence: Vec<Evidence>,
    /// Operations that do not end, the first called one first.
    pub waits: Vec<Wait>,
    /// Operations on which ranks disagree.
    pub mismatches: Vec<Mismatch>,
    /// Number of ranks that were read.
    pub ranks_read: usize,
    /// Ranks that others name and that have no dump, or no rows.
    pub(crate) ranks_not_read: Vec<i32>,
    /// Number of ranks with an operation that has not ended.
    pub ranks_unfinished: usize,
    /// What was not read.
    pub omissions: Vec<OmissionRow>,
}

/// Where the fault of a culprit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The program did not call an operation.
    Host,
    /// The program called operations in another order than the other ranks.
    Order,
    /// The device does not end what was called.
    Device,
    /// Unknown: the rank has no dump, or no rows.
    NotRead,
}

/// Why a rank is a culprit.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    pub rank: i32,
    pub fault: Fault,
    /// The operation that was first called of those in which others wait for it; of a device that is stuck, what it does not end. Null
    /// if none is recorded.
    pub operation: Option<Operation>,
    /// Ranks that wait for it in one operation: at most 64, and all in `waits`.
    pub waiting: Vec<i32>,
    /// Number of ranks that wait for it, through others or not; null from the 65th culprit on.
    pub waiting_in_all: Option<usize>,
}

/// An operation that does not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// Name of the communicator.
    pub communicator: Text,
    /// The purpose of the communicator; empty if the program does not state it.
    pub description: Text,
    /// Operation, as in `collectives.op`; empty if unknown.
    pub op: Text,
    /// Its number on the communicator; null for sends and receives.
    pub seq: Option<i64>,
    /// The other side of a send or receive.
    pub peer: Option<i32>,
    /// Size of the array of a rank; null if unknown.
    pub bytes: Option<i64>,
    /// Elements of the inputs, or else of the outputs, of a rank; null if unknown.
    pub elements: Option<i64>,
    /// Type of the elements, as the recorder names it.
    pub dtype: Option<Text>,
    /// First call by a rank that waits; of a device that is stuck, its call. In ns since 1970; null for a run, whose ranks have clocks of their own.
    pub since_utc_ns: Option<i64>,
    /// Line of the program that called it; null if the dump has no frames.
    pub source_line: Option<Text>,
}

/// Ranks that wait in an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Wait {
    #[serde(flatten)]
    pub operation: Operation,
    pub waiting: Vec<i32>,
    /// The ranks that are waited for; with those of the waits before it in the same numbering.
    #[serde(rename = "for")]
    pub late: Vec<i32>,
    /// `not_called`, `not_read`, `device_stuck`, `queued` or `not_known`.
    pub why: &'static str,
    /// In the chains of waits: the place in `waits` of the wait that the waiting ranks stand behind, nearer to a culprit.
    pub behind: Option<usize>,
}

impl Hang {
    /// Judges a job.
    pub fn of(job: Job) -> Self {
        let graph = Graph::of(&job);
        let verdict = Verdict::of(&job, &graph);
        let chains = Chains::of(&job, &graph, &verdict);
        let read =
            |is_read: bool| (0..job.ranks.len()).filter(|rank| job.is_read[*rank] == is_read).collect::<Vec<_>>();
        let of_culprit = |culprit: &usize| {
            let is_odd = verdict.odd.contains(culprit);
            evidence(&job, &graph, (*culprit, is_odd), &chains)
        };
        let evidence = verdict.culprits.iter().map(of_culprit).collect();
        Self {
            culprits: job.named(&verdict.culprits),
            device_stuck: job.named(&verdict.device_stuck),
            deadlocks: verdict.deadlocks.iter().map(|ranks| job.named(ranks)).collect(),
            waits_for: waits_for(&job, &graph, &verdict),
            evidence,
            waits: chains.waits(&job, &graph),
            mismatches: mismatches(&job, &graph.is_stuck),
            ranks_read: read(true).len(),
            ranks_not_read: job.named(&read(false)),
            ranks_unfinished: (0..job.ranks.len()).filter(|rank| job.is_unfinished(*rank)).count(),
            omissions: job.omissions,
        }
    }
}

fn operation(job: &Job, comm: usize, what: What, facts: &Facts) -> Operation {
    let (comm, facts) = (&job.comms[comm], facts.clone());
    let (seq, peer) = match what {
        What::Collective(seq) => (Some(seq), None),
        What::Transfer { peer, .. } => (None, Some(peer)),
    };
    Operation {
        communicator: comm.name.clone(),
        description: comm.description.clone(),
        op: facts.op,
        seq,
        peer,
        bytes: facts.bytes,
        elements: facts.input_elements.or(facts.output_elements),
        dtype: facts.dtype,
        since_utc_ns: facts.called_utc_ns,
        source_line: facts.source_line,
    }
}

/// Whether the answer speaks of a gate: that ranks without a dump may be waited for is said of those that do not wait themselves.
fn is_told(gate: &Gate, verdict: &Verdict) -> bool {
    let is_open = |rank: &usize| !verdict.explained.contains(rank) || verdict.culprits.contains(rank);
    !gate.waiting.is_empty() && (gate.why != Why::NotRead || gate.late.iter().any(is_open))
}

fn waits_for(job: &Job, graph: &Graph, verdict: &Verdict) -> BTreeMap<i32, Vec<i32>> {
    let mut named: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for gate in graph.gates.iter().filter(|gate| gate.why != Why::NotKnown && is_told(gate, verdict)) {
        let mut late: Vec<usize> = Vec::new();
        let mut next = Some(gate);
        while let Some(gate) = next.filter(|_| late.len() < MAX_NAMED) {
            late.extend(gate.late.iter().take(MAX_NAMED - late.len()));
            next = gate.below.map(|below| &graph.gates[below]);
        }
        for rank in &gate.waiting {
            named.entry(*rank).or_default().extend(late.iter().filter(|late| *late != rank));
        }
    }
    let ranks = |(rank, late): (usize, BTreeSet<usize>)| {
        let late: Vec<i32> = late.into_iter().map(|late| job.ranks[late]).collect();
        (job.ranks[rank], late)
    };
    named.into_iter().map(ranks).filter(|(_, late)| !late.is_empty()).collect()
}

/// For each rank and gate, the gate by which it is reached from the culprits, level by level.
struct Chains {
    /// The gates in the order in which they are reached, each with the ranks that it reaches first and the gate before it.
    reached: Vec<(usize, Vec<usize>, Option<usize>)>,
    /// The number of ranks that wait for a culprit.
    waiting_in_all: BTreeMap<usize, usize>,
    is_told: Vec<bool>,
}

impl Chains {
    fn of(job: &Job, graph: &Graph, verdict: &Verdict) -> Self {
        let mut gates_of_late: Vec<Vec<usize>> = vec![Vec::new(); job.ranks.len()];
        let mut above: Vec<Vec<usize>> = vec![Vec::new(); graph.gates.len()];
        let is_told: Vec<bool> =
            graph.gates.iter().map(|gate| is_told(gate, verdict) || gate.why == Why::NotCalled).collect();
        let is_certain = |(at, gate): &(usize, &Gate)| is_told[*at] && gate.why != Why::NotKnown;
        for (at, gate) in graph.gates.iter().enumerate().filter(is_certain) {
            gate.late.iter().for_each(|rank| gates_of_late[*rank].push(at));
            if let Some(below) = gate.below {
                above[below].push(at);
            }
        }
        let mut chains = Self { reached: Vec::new(), waiting_in_all: BTreeMap::new(), is_told };
        let mut via: Vec<Option<usize>> = vec![None; job.ranks.len()];
        let mut is_rank_reached = vec![false; job.ranks.len()];
        let mut place: Vec<Option<usize>> = vec![None; graph.gates.len()];
        let starts = verdict.culprits.iter().chain(&verdict.device_stuck).chain(verdict.deadlocks.iter().flatten());
        let mut level: Vec<usize> = starts.copied().collect();
        level.iter().for_each(|rank| is_rank_reached[*rank] = true);
        while !level.is_empty() {
            let mut next = Vec::new();
            for rank in std::mem::take(&mut level) {
                let mut gates: Vec<(usize, Option<usize>)> =
                    gates_of_late[rank].iter().map(|at| (*at, via[rank])).collect();
                while let Some((at, before)) = gates.pop() {
                    if place[at].is_some() {
                        continue;
                    }
                    place[at] = Some(chains.reached.len());
                    let fresh = |rank: &&usize| !is_rank_reached[**rank];
                    let reached: Vec<usize> = graph.gates[at].waiting.iter().filter(fresh).copied().collect();
                    for rank in &reached {
                        (is_rank_reached[*rank], via[*rank]) = (true, place[at]);
                    }
                    gates.extend(above[at].iter().map(|above| (*above, before)));
                    next.extend(reached.iter().copied());
                    chains.reached.push((at, reached, before));
                }
            }
            level = next;
        }
        for culprit in verdict.culprits.iter().take(MAX_NAMED) {
            let all = reach(*culprit, graph, &gates_of_late, &above);
            chains.waiting_in_all.insert(*culprit, all.len());
        }
        chains
    }

    fn waits(&self, job: &Job, graph: &Graph) -> Vec<Wait> {
        // Gates that no chain reaches follow those that one does.
        let is_in_chain: BTreeSet<usize> = self.reached.iter().map(|(at, _, _)| *at).collect();
        let all =
            (0..graph.gates.len()).filter(|at| self.is_told[*at] && !is_in_chain.contains(at)).map(|at| (at, None));
        let chained = self.reached.iter().map(|(at, _, before)| (*at, *before));
        let told: Vec<(usize, Option<usize>)> = chained.chain(all).collect();
        // Gates at which nobody waits are left out, so places move.
        let is_shown = |at: usize| !graph.gates[at].waiting.is_empty();
        let mut moved = Vec::with_capacity(told.len());
        let mut shown = 0;
        for (at, _) in &told {
            moved.push(is_shown(*at).then_some(shown));
            shown += usize::from(is_shown(*at));
        }
        let wait = |(at, before): &(usize, Option<usize>)| {
            let gate = &graph.gates[*at];
            Wait {
                operation: operation(job, gate.comm, gate.what, &gate.facts),
                waiting: job.named(&gate.waiting),
                late: job.named(&gate.late),
                why: gate.why.word(),
                behind: before.and_then(|before| moved.get(before).copied().flatten()),
            }
        };
        told.iter().filter(|(at, _)| is_shown(*at)).map(wait).collect()
    }
}

/// The ranks that wait for one, through others or not.
fn reach(root: usize, graph: &Graph, gates_of_late: &[Vec<usize>], above: &[Vec<usize>]) -> BTreeSet<usize> {
    let (mut found, mut gates): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
    let mut pending: Vec<usize> = gates_of_late[root].clone();
    while let Some(at) = pending.pop() {
        if !gates.insert(at) {
            continue;
        }
        pending.extend(&above[at]);
        for rank in graph.gates[at].waiting.iter().filter(|rank| **rank != root) {
            if found.insert(*rank) {
                pending.extend(&gates_of_late[*rank]);
            }
        }
    }
    found
}

fn evidence(job: &Job, graph: &Graph, (culprit, is_odd): (usize, bool), chains: &Chains) -> Evidence {
    let is_here = |gate: &&Gate| !gate.waiting.is_empty() && gate.late.binary_search(&culprit).is_ok();
    // A call that was not made says more than a device that is stuck, and that more than a rank without a dump.
    let order = |gate: &&Gate| (gate.why, gate.facts.called_utc_ns.is_none(), gate.facts.called_utc_ns);
    let gate = graph.gates.iter().filter(is_here).min_by_key(order);
    let fault = match (job.is_read[culprit], graph.is_stuck[culprit]) {
        (false, _) => Fault::NotRead,
        (true, true) => Fault::Device,
        (true, false) if is_odd => Fault::Order,
        (true, false) => Fault::Host,
    };
    // What a device does not end is what it was given first.
    let own = job.first(culprit).filter(|_| fault == Fault::Device);
    let operation = match own {
        Some(open) => Some(operation(job, open.comm, open.pending.what, &open.pending.facts)),
        None => gate.map(|gate| operation(job, gate.comm, gate.what, &gate.facts)),
    };
    Evidence {
        rank: job.ranks[culprit],
        fault,
        operation,
        waiting: gate.map(|gate| job.named(&gate.waiting[..gate.waiting.len().min(MAX_NAMED)])).unwrap_or_default(),
        waiting_in_all: chains.waiting_in_all.get(&culprit).copied(),
    }
}
