//! The ranks that hold the job up, by the graph of waits.
//!
//! 1. A rank that was read is a culprit if others wait for it and it waits for no rank.
//! 2. A rank without a dump may wait itself. If it shares a communicator with a rank that lacks its first operation that has not ended,
//!    it waits there as the others do, unless that one waits for it. Else it is a culprit if it is in what another rank called first of all that has not ended.
//! 3. Where the first two rules name no rank, a rank without a dump that is in such an operation is a culprit; without one, the ranks
//!    whose devices are stuck and that wait for no rank.
//!
//! Ranks that wait for each other in a circle, and for no rank outside of it, are a deadlock. Of these, only the ranks that called two
//! operations in another order than the others are culprits (`odd`).

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Why};
use crate::job::Job;
use crate::odd::odd_ones;
use crate::state::What;

/// Ranks are places in [`Job::ranks`], ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) culprits: Vec<usize>,
    pub(crate) device_stuck: Vec<usize>,
    pub(crate) deadlocks: Vec<Vec<usize>>,
    /// Culprits that called operations in another order than the other ranks of a deadlock.
    pub(crate) odd: BTreeSet<usize>,
    /// Ranks without a dump that wait as others do, if anybody.
    pub(crate) explained: BTreeSet<usize>,
}

impl Verdict {
    pub(crate) fn of(job: &Job, graph: &Graph) -> Self {
        let explained = explained(job, graph);
        let (mut waits, mut is_waited_for) = (vec![false; job.ranks.len()], vec![false; job.ranks.len()]);
        let mut is_called_by_all = vec![true; job.ranks.len()];
        for gate in &graph.gates {
            let is_unknown = || gate.late.iter().any(|rank| !explained.contains(rank));
            if matches!(gate.why, Why::NotCalled | Why::DeviceStuck | Why::NotKnown)
                || gate.why == Why::NotRead && is_unknown()
            {
                gate.waiting.iter().for_each(|rank| waits[*rank] = true);
            }
            if gate.why == Why::NotCalled {
                gate.waiting.iter().for_each(|rank| is_called_by_all[*rank] = false);
            }
        }
        for rank in reached(graph) {
            is_waited_for[rank] = true;
        }
        let all = || 0..job.ranks.len();
        let sinks: Vec<usize> =
            all().filter(|rank| job.is_read[*rank] && is_waited_for[*rank] && !waits[*rank]).collect();
        let missing = missing_from_first(job, graph);
        let members = job.comms.iter().filter_map(|comm| comm.members.as_deref()).flatten();
        let listed: BTreeSet<usize> = members.filter_map(|rank| job.place(*rank)).collect();
        let unexplained = missing.iter().filter(|rank| !explained.contains(rank) && listed.contains(rank));
        let mut culprits: Vec<usize> = sinks.iter().chain(unexplained).copied().collect();
        if culprits.is_empty() {
            culprits = missing.iter().copied().collect();
        }
        if culprits.is_empty() {
            culprits = all().filter(|rank| graph.is_stuck[*rank] && is_called_by_all[*rank]).collect();
        }
        let deadlocks = deadlocks(job, graph);
        let odd: BTreeSet<usize> = deadlocks.iter().flat_map(|ranks| odd_ones(job, ranks)).collect();
        culprits.extend(&odd);
        culprits.sort_unstable();
        culprits.dedup();
        let device_stuck = all().filter(|rank| graph.is_stuck[*rank]).collect();
        Self { culprits, device_stuck, deadlocks, odd, explained }
    }
}

/// The ranks that some rank waits for because they have not called an operation.
fn reached(graph: &Graph) -> BTreeSet<usize> {
    let mut is_reached = vec![false; graph.gates.len()];
    // A gate leads to gates that were made before it.
    for at in (0..graph.gates.len()).rev() {
        let gate = &graph.gates[at];
        is_reached[at] |= !gate.waiting.is_empty() && gate.why == Why::NotCalled;
        if let Some(below) = gate.below.filter(|_| is_reached[at]) {
            is_reached[below] = true;
        }
    }
    let gates = graph.gates.iter().zip(is_reached).filter(|(_, is_reached)| *is_reached);
    gates.flat_map(|(gate, _)| gate.late.iter().copied()).collect()
}

/// Ranks without a dump in a communicator in which others wait for a rank that was read, unless that one may wait for them: what it called
/// first of all that has not ended involves them. What a stuck device has not ended says nothing.
fn explained(job: &Job, graph: &Graph) -> BTreeSet<usize> {
    // By communicator, what the late ranks called first: `None` for those that wait for no rank.
    let mut firsts: BTreeMap<usize, BTreeSet<Option<(usize, What)>>> = BTreeMap::new();
    for gate in &graph.gates {
        // A rank that lacks a later operation only may itself wait for the rank without a dump.
        if matches!(gate.why, Why::NotCalled | Why::DeviceStuck) && gate.is_first {
            let first = |rank: &usize| {
                let first = job.first(*rank).filter(|_| !graph.is_stuck[*rank])?;
                let is_transfer = matches!(first.pending.what, What::Transfer { .. });
                // The number of a collective does not matter.
                Some((first.comm, if is_transfer { first.pending.what } else { What::Collective(0) }))
            };
            firsts.entry(gate.comm).or_default().extend(gate.late.iter().map(first));
        }
    }
    let mut explained = BTreeSet::new();
    for (comm, firsts) in firsts {
        let members = job.comms[comm].members.as_deref().unwrap_or_default();
        for rank in members.iter().filter_map(|rank| job.place(*rank)).filter(|rank| !job.is_read[*rank]) {
            let name = job.ranks[rank];
            let involves = |(comm, what): (usize, What)| match what {
                What::Transfer { peer, .. } => peer == name,
                What::Collective(_) => job.comms[comm].members.as_ref().is_some_and(|members| members.contains(&name)),
            };
            if firsts.iter().any(|first| !first.is_some_and(involves)) {
                explained.insert(rank);
            }
        }
    }
    explained
}

/// Ranks without a dump in what some rank called first of all that has not ended.
fn missing_from_first(job: &Job, graph: &Graph) -> BTreeSet<usize> {
    let mut missing = BTreeSet::new();
    for gate in graph.gates.iter().filter(|gate| gate.why == Why::NotRead) {
        let is_first = |rank: &usize| {
            job.first(*rank).is_some_and(|first| match (first.pending.what, gate.what) {
                (What::Collective(_), What::Collective(_)) => first.comm == gate.comm,
                (What::Transfer { peer, .. }, What::Transfer { peer: other, .. }) => {
                    first.comm == gate.comm && peer == other
                }
                _ => false,
            })
        };
        if gate.waiting.iter().any(is_first) {
            missing.extend(gate.late.iter().copied());
        }
    }
    missing
}

/// Circles of ranks that wait for each other and for no rank outside: strongly connected components without a way out, by Tarjan's
/// algorithm without recursion.
fn deadlocks(job: &Job, graph: &Graph) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let follows = |why: Why| !matches!(why, Why::NotRead | Why::NotKnown);
    let nodes = job.ranks.len() + graph.gates.len();
    let (mut number, mut low, mut component) = (vec![NEW; nodes], vec![0; nodes], vec![NEW; nodes]);
    let (mut stack, mut count, mut components) = (Vec::new(), 0, Vec::new());
    for root in 0..nodes {
        if number[root] != NEW {
            continue;
        }
        let mut calls = vec![(root, graph.next(root, follows), 0)];
        (number[root], low[root], count) = (count, count, count + 1);
        stack.push(root);
        while let Some((node, next, at)) = calls.last_mut() {
            let node = *node;
            if let Some(to) = next.get(*at).copied() {
                *at += 1;
                if number[to] == NEW {
                    (number[to], low[to], count) = (count, count, count + 1);
                    stack.push(to);
                    calls.push((to, graph.next(to, follows), 0));
                } else if component[to] == NEW {
                    low[node] = low[node].min(number[to]);
                }
                continue;
            }
            calls.pop();
            if let Some((parent, _, _)) = calls.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == number[node] {
                let from = stack.iter().rposition(|on| *on == node).unwrap_or(0);
                let members = stack.split_off(from);
                members.iter().for_each(|member| component[*member] = components.len());
                components.push(members);
            }
        }
    }
    let is_closed = |(own, members): &(usize, &Vec<usize>)| {
        members.iter().all(|node| graph.next(*node, follows).into_iter().all(|to| component[to] == *own))
    };
    let ranks = |members: &Vec<usize>| {
        let mut ranks: Vec<usize> = members.iter().copied().filter(|node| *node < job.ranks.len()).collect();
        ranks.sort_unstable();
        ranks
    };
    let closed = components.iter().enumerate().filter(is_closed).map(|(_, members)| ranks(members));
    let mut found: Vec<Vec<usize>> = closed.filter(|ranks| ranks.len() > 1).collect();
    found.sort();
    found
}
