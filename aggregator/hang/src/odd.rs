//! Of the ranks of a deadlock, those that called two operations in another order than the others.
//!
//! ```text
//!            communicator a    communicator b
//!  rank 0    waits             calls it later       the most ranks of both communicators are in a first …
//!  rank 1    waits             calls it later
//!  rank 2    calls it later    waits                … so rank 2 is the odd one
//! ```
//!
//! Only ranks of both communicators have a say: another one cannot call both. Where no more than half of them agree, none is odd.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::Job;
use crate::state::What;

/// Two communicators, the first one less.
type Pair = (usize, usize);

/// The odd ones of some ranks that wait for each other. Ranks are places in [`Job::ranks`].
pub(crate) fn odd_ones(job: &Job, ranks: &[usize]) -> BTreeSet<usize> {
    // The communicator of the collective that each rank called first of those that have not ended.
    let first = |rank: &usize| {
        let open = job.first(*rank)?;
        matches!(open.pending.what, What::Collective(_)).then_some((*rank, open.comm))
    };
    let firsts: BTreeMap<usize, usize> = ranks.iter().filter_map(first).collect();
    let comms: BTreeSet<usize> = firsts.values().copied().collect();
    let members: BTreeMap<usize, BTreeSet<usize>> = comms.iter().map(|comm| (*comm, members(job, *comm))).collect();
    let mut votes: BTreeMap<Pair, [Vec<usize>; 2]> = BTreeMap::new();
    for (comm, ranks) in &members {
        for (rank, first) in ranks.iter().filter_map(|rank| Some((*rank, *firsts.get(rank)?))) {
            if first != *comm {
                votes.entry((first.min(*comm), first.max(*comm))).or_default()[usize::from(first > *comm)].push(rank);
            }
        }
    }
    let (mut odd, mut usual) = (BTreeSet::new(), BTreeSet::new());
    for ((one, other), [mut few, mut most]) in
        votes.into_iter().filter(|(_, votes)| votes.iter().all(|v| !v.is_empty()))
    {
        if few.len() > most.len() {
            std::mem::swap(&mut few, &mut most);
        }
        let both = members[&one].intersection(&members[&other]).count();
        if most.len() * 2 > both {
            odd.extend(few);
            usual.extend(most);
        }
    }
    // A rank that is odd by one pair of communicators and usual by another is left out.
    odd.difference(&usual).copied().collect()
}

/// The ranks of a communicator: those that it lists, or else those that use it.
fn members(job: &Job, comm: usize) -> BTreeSet<usize> {
    match &job.comms[comm].members {
        Some(members) => members.iter().filter_map(|rank| job.place(*rank)).collect(),
        None => {
            let lanes = job.lanes.iter().filter(|lane| lane.comm == comm);
            lanes.flat_map(|lane| lane.at.iter().map(|(rank, _)| *rank)).collect()
        }
    }
}
