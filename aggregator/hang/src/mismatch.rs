//! Operations on which ranks disagree: what they called with one number of one communicator, and with which sizes and types.
//!
//! ```text
//!  number      7                 8
//!  rank 0      all_reduce 4096   all_gather 64       rank 2 called the same in another order
//!  rank 1      all_reduce 4096   all_gather 64
//!  rank 2      all_gather 64     all_reduce 4096
//! ```
//!
//! Only operations that have not ended are compared: the others did no harm. Of each numbering the first disagreement is reported,
//! because later ones follow from it.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Text;

use crate::job::{Job, Open};
use crate::state::{Facts, What};

/// Where ranks disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Different operations.
    Operation,
    /// The same operations in another order.
    Order,
    /// Different types of elements.
    Type,
    /// Different numbers of elements.
    Size,
}

/// Ranks that called the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    pub ranks: Vec<i32>,
    /// Their call: an operation, a type, or a number of elements.
    pub called: Text,
}

/// A disagreement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    pub kind: Kind,
    /// Name of the communicator.
    pub communicator: Text,
    /// The purpose of the communicator; empty if the program does not state it.
    pub description: Text,
    /// Number of the operation; null for sends and receives.
    pub seq: Option<i64>,
    /// The operation; null if ranks differ in it.
    pub op: Option<Text>,
    /// The most ranks first.
    pub sides: Vec<Side>,
}

/// What ranks called, by the number of the operation.
type ByNumber<'a> = BTreeMap<i64, Vec<(usize, &'a Facts)>>;

/// The first disagreement of each numbering, and of each pair of ranks that send to each other.
pub(crate) fn mismatches(job: &Job, is_stuck: &[bool]) -> Vec<Mismatch> {
    let mut by_lane: BTreeMap<usize, ByNumber<'_>> = BTreeMap::new();
    let mut transfers: BTreeMap<(usize, usize, usize), [Vec<&Facts>; 2]> = BTreeMap::new();
    for (rank, operations) in job.open.iter().enumerate() {
        for Open { comm, lane, pending } in operations {
            match (pending.what, lane) {
                (What::Collective(seq), Some(lane)) => {
                    by_lane.entry(*lane).or_default().entry(seq).or_default().push((rank, &pending.facts));
                }
                (What::Transfer { peer, is_send }, _) => {
                    let Some(peer) = job.place(peer).filter(|peer| !is_stuck[*peer] && !is_stuck[rank]) else {
                        continue;
                    };
                    let (from, to) = if is_send { (rank, peer) } else { (peer, rank) };
                    transfers.entry((*comm, from, to)).or_default()[usize::from(!is_send)].push(&pending.facts);
                }
                (What::Collective(_), None) => {}
            }
        }
    }
    let of_lanes = by_lane.iter().filter_map(|(lane, by_number)| {
        by_number.iter().find_map(|(seq, calls)| of_collective(job, job.lanes[*lane].comm, *seq, calls, by_number))
    });
    let of_pairs = transfers.iter().filter_map(|((comm, from, to), sides)| of_pair(job, *comm, (*from, *to), sides));
    of_lanes.chain(of_pairs).collect()
}

fn of_collective(
    job: &Job,
    comm: usize,
    seq: i64,
    calls: &[(usize, &Facts)],
    by_number: &ByNumber<'_>,
) -> Option<Mismatch> {
    let (facts, called) = (calls.first()?.1, |of: &dyn Fn(&Facts) -> Option<Text>| sides(job, calls, of));
    let mismatch = |kind: Kind, op: Option<Text>, sides: Vec<Side>| {
        let (communicator, description) = (job.comms[comm].name.clone(), job.comms[comm].description.clone());
        Some(Mismatch { kind, communicator, description, seq: Some(seq), op, sides })
    };
    let by_op = called(&|facts| Some(facts.op.clone()));
    if by_op.len() > 1 {
        let is_order = is_reordered(&by_op, calls, by_number.range(seq.saturating_add(1)..).map(|(_, calls)| calls));
        return mismatch(if is_order { Kind::Order } else { Kind::Operation }, None, by_op);
    }
    let by_type = called(&|facts| facts.dtype.clone());
    if by_type.len() > 1 {
        return mismatch(Kind::Type, Some(facts.op.clone()), by_type);
    }
    let by_size = called(&|facts| compared_elements(facts).map(|elements| elements.to_string().into()));
    (by_size.len() > 1).then(|| mismatch(Kind::Size, Some(facts.op.clone()), by_size))?
}

/// The number that is equal on all ranks of an operation; `None` if there is none.
fn compared_elements(facts: &Facts) -> Option<i64> {
    match &*facts.op {
        "allreduce" | "allgather" | "reduce" => facts.input_elements,
        "reducescatter" | "broadcast" => facts.output_elements.or(facts.input_elements),
        _ => None,
    }
}

/// Whether each rank calls later what the most ranks call now, and some of those call later what it calls now.
fn is_reordered<'a>(
    by_op: &[Side],
    calls: &[(usize, &Facts)],
    later: impl Iterator<Item = &'a Vec<(usize, &'a Facts)>>,
) -> bool {
    let [most, others @ ..] = by_op else { return false };
    let now: BTreeMap<usize, &Text> = calls.iter().map(|(rank, facts)| (*rank, &facts.op)).collect();
    let (mut catches_up, mut is_called_by_most) = (Vec::new(), Vec::new());
    for (rank, facts) in later.flatten() {
        match now.get(rank) {
            Some(op) if **op == most.called => is_called_by_most.push(&facts.op),
            Some(op) if facts.op == most.called => catches_up.push(*op),
            _ => {}
        }
    }
    others.iter().all(|side| catches_up.contains(&&side.called) && is_called_by_most.contains(&&side.called))
}

/// The ranks by what they called, the most first; those whose call is unknown are on no side.
fn sides(job: &Job, calls: &[(usize, &Facts)], of: &dyn Fn(&Facts) -> Option<Text>) -> Vec<Side> {
    let mut by_call: BTreeMap<Text, Vec<i32>> = BTreeMap::new();
    for (rank, facts) in calls {
        if let Some(called) = of(facts) {
            by_call.entry(called).or_default().push(job.ranks[*rank]);
        }
    }
    let mut sides: Vec<Side> = by_call.into_iter().map(|(called, ranks)| Side { ranks, called }).collect();
    sides.sort_by_key(|side| std::cmp::Reverse(side.ranks.len()));
    sides
}

/// The first of the transfers from one rank to another whose two sides differ.
fn of_pair(job: &Job, comm: usize, pair: (usize, usize), [sent, received]: &[Vec<&Facts>; 2]) -> Option<Mismatch> {
    let elements = |facts: &Facts| facts.input_elements.or(facts.output_elements);
    let side = |rank: usize, called: Text| Side { ranks: vec![job.ranks[rank]], called };
    sent.iter().zip(received).find_map(|(sent, received)| {
        let types = sent.dtype.clone().zip(received.dtype.clone()).filter(|(a, b)| a != b);
        let sizes = elements(sent).zip(elements(received)).filter(|(a, b)| a != b);
        let (kind, (from, to)) = match (types, sizes) {
            (Some(types), _) => (Kind::Type, types),
            (None, Some((a, b))) => (Kind::Size, (a.to_string().into(), b.to_string().into())),
            (None, None) => return None,
        };
        let (communicator, description) = (job.comms[comm].name.clone(), job.comms[comm].description.clone());
        let sides = vec![side(pair.0, from), side(pair.1, to)];
        Some(Mismatch { kind, communicator, description, seq: None, op: Some("send".into()), sides })
    })
}
