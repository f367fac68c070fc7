//! The ranks of a job together: communicators, and how far each rank is in each numbering of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::source::MissingRanks;
use rustc_hash::FxHashMap;
use trace::{OmissionRow, Text};

use crate::posted::Posted;
use crate::state::{CommState, Pending, Position, RankState, What};

/// A communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comm {
    pub(crate) name: Text,
    pub(crate) description: Text,
    /// Its global ranks; `None` if no rank lists them.
    pub(crate) members: Option<Arc<[i32]>>,
    /// Whether its ranks send to each other.
    pub(crate) has_transfers: bool,
}

/// One numbering of operations of a communicator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    /// In [`Job::comms`].
    pub(crate) comm: usize,
    /// How far each rank is, by its place in [`Job::ranks`], ascending.
    pub(crate) at: Vec<(usize, Position)>,
    /// Its collectives that have not ended: the rank, and the place among [`Job::open`] of that rank. Ascending.
    open: Vec<(usize, usize)>,
}

impl Lane {
    /// How far a rank is; `None` if it is unknown.
    pub(crate) fn position(&self, rank: usize) -> Option<Position> {
        self.at.binary_search_by_key(&rank, |(rank, _)| *rank).ok().map(|at| self.at[at].1)
    }

    /// The last collective that ended on some rank, so that all ranks have called it.
    pub(crate) fn most_done(&self) -> i64 {
        self.at.iter().map(|(_, position)| position.done).max().unwrap_or(i64::MIN)
    }
}

/// An operation of a rank that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    /// In [`Job::comms`].
    pub(crate) comm: usize,
    /// Of a collective, in [`Job::lanes`].
    pub(crate) lane: Option<usize>,
    pub(crate) pending: Pending,
}

/// All that is known of a job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Global ranks, ascending: those that were read, and those that others name.
    pub(crate) ranks: Vec<i32>,
    /// Whether the dump or rows of a rank were read, by its place.
    pub(crate) is_read: Vec<bool>,
    pub(crate) comms: Vec<Comm>,
    pub(crate) lanes: Vec<Lane>,
    /// Operations of each rank that have not ended, in the order of its calls.
    pub(crate) open: Vec<Vec<Open>>,
    /// Sends and receives, by communicator in [`comms`](Self::comms) and place of the rank.
    pub(crate) posted: BTreeMap<(usize, usize), Posted>,
    /// Whether the library of a rank counts an operation that has not ended, by its place.
    pub(crate) in_flight: Vec<bool>,
    /// Files and parts of them that were not read.
    pub(crate) omissions: Vec<OmissionRow>,
}

impl Job {
    /// Puts ranks together. `world_size`: number of ranks, if the input states it.
    pub fn of(states: Vec<RankState>, mut omissions: Vec<OmissionRow>, world_size: Option<i32>) -> Self {
        let (comms, comm_of) = comms_of(&states);
        let read: BTreeSet<i32> = states.iter().map(|state| state.rank).collect();
        let highest = read.last().map_or(0, |rank| rank.saturating_add(1));
        let present: Vec<i32> = read.iter().copied().collect();
        let missing = MissingRanks::of(highest.max(world_size.unwrap_or(0)), &present);
        omissions.extend(missing.unlisted());
        let mut all = read.clone();
        all.extend(missing.listed);
        all.extend(comms.iter().filter_map(|comm| comm.members.as_deref()).flatten());
        let ranks: Vec<i32> = all.into_iter().collect();
        let is_read: Vec<bool> = ranks.iter().map(|rank| read.contains(rank)).collect();
        let (open, in_flight) = (vec![Vec::new(); ranks.len()], vec![false; ranks.len()]);
        let mut job = Self { open, in_flight, ranks, is_read, comms, omissions, ..Self::default() };
        let mut lanes: FxHashMap<(usize, Text), usize> = FxHashMap::default();
        for (state, of_rank) in states.into_iter().zip(comm_of) {
            let Some(place) = job.place(state.rank) else { continue };
            job.in_flight[place] = state.in_flight;
            for (comm_state, comm) in state.comms.into_iter().zip(of_rank) {
                let lane = *lanes.entry((comm, comm_state.numbering.clone())).or_insert_with(|| {
                    job.lanes.push(Lane { comm, at: Vec::new(), open: Vec::new() });
                    job.lanes.len() - 1
                });
                job.add(place, comm, lane, comm_state);
            }
            job.open[place].sort_by_key(|open| open.pending.order);
        }
        job.lanes.iter_mut().for_each(|lane| lane.at.sort_by_key(|(rank, _)| *rank));
        for (rank, operations) in job.open.iter().enumerate() {
            for (at, open) in operations.iter().enumerate() {
                if let Some(lane) = open.lane {
                    job.lanes[lane].open.push((rank, at));
                }
            }
        }
        job
    }

    fn add(&mut self, place: usize, comm: usize, lane: usize, state: CommState) {
        if let Some(posted) = state.posted.filter(|_| self.comms[comm].has_transfers) {
            self.posted.insert((comm, place), posted);
        }
        let counted = state.counted.filter(|_| !self.comms[comm].has_transfers);
        let position = match (counted, state.seen) {
            (Some(counted), Some(seen)) => Some(counted.max(seen)),
            (one, other) => one.or(other),
        };
        if let Some(position) = position {
            self.lanes[lane].at.push((place, position));
        }
        let is_open = |pending: &Pending| match pending.what {
            What::Collective(seq) => position.is_none_or(|position| seq > position.done),
            What::Transfer { .. } => true,
        };
        let open = |pending: Pending| {
            let is_collective = matches!(pending.what, What::Collective(_));
            Open { comm, lane: is_collective.then_some(lane), pending }
        };
        self.open[place].extend(state.pending.into_iter().filter(is_open).map(open));
    }

    /// The place of a rank in [`ranks`](Self::ranks).
    pub(crate) fn place(&self, rank: i32) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// The collectives of a lane that have not ended on a rank, in the order of its calls.
    pub(crate) fn open_in(&self, lane: usize, rank: usize) -> impl Iterator<Item = &Open> {
        let open = &self.lanes[lane].open;
        let of_rank = open[open.partition_point(|(other, _)| *other < rank)..]
            .iter()
            .take_while(move |(other, _)| *other == rank);
        of_rank.map(|(rank, at)| &self.open[*rank][*at])
    }

    /// The operation that a rank called first of those that have not ended.
    pub(crate) fn first(&self, rank: usize) -> Option<&Open> {
        self.open[rank].first()
    }

    /// Whether a rank has an operation that has not ended.
    pub(crate) fn is_unfinished(&self, rank: usize) -> bool {
        self.in_flight[rank] || !self.open[rank].is_empty()
    }

    /// The ranks at some places.
    pub(crate) fn named(&self, places: &[usize]) -> Vec<i32> {
        places.iter().map(|place| self.ranks[*place]).collect()
    }
}

/// The communicators, and for each rank that of each of its states. A name may stand for several communicators whose lists of ranks
/// differ; a rank that lists none belongs to that whose list holds it.
fn comms_of(states: &[RankState]) -> (Vec<Comm>, Vec<Vec<usize>>) {
    let mut comms: Vec<Comm> = Vec::new();
    // Equal lists of one name are mostly one list in memory, and long.
    let mut by_list: FxHashMap<(Text, usize), usize> = FxHashMap::default();
    let mut by_name: BTreeMap<Text, Vec<usize>> = BTreeMap::new();
    let address = |list: &Arc<[i32]>| list.as_ptr() as usize;
    let mut found: Vec<Vec<Option<usize>>> = Vec::with_capacity(states.len());
    for state in states {
        let of_state = |comm: &CommState| {
            let members = comm.members.as_ref()?;
            let key = (comm.name.clone(), address(members));
            if let Some(known) = by_list.get(&key) {
                return Some(*known);
            }
            let of_name = by_name.entry(comm.name.clone()).or_default();
            let same = of_name.iter().copied().find(|at| comms[*at].members.as_ref() == Some(members));
            let at = same.unwrap_or_else(|| {
                comms.push(Comm { name: comm.name.clone(), members: Some(members.clone()), ..Comm::default() });
                of_name.push(comms.len() - 1);
                comms.len() - 1
            });
            by_list.insert(key, at);
            Some(at)
        };
        found.push(state.comms.iter().map(of_state).collect());
    }
    let mut unlisted: BTreeMap<Text, usize> = BTreeMap::new();
    let mut of_ranks = Vec::with_capacity(states.len());
    for (state, found) in states.iter().zip(found) {
        let mut of_rank = Vec::with_capacity(found.len());
        for (comm, at) in state.comms.iter().zip(found) {
            let holds = |at: &&usize| comms[**at].members.as_ref().is_some_and(|ranks| ranks.contains(&state.rank));
            let at = at.or_else(|| by_name.get(&comm.name)?.iter().find(holds).copied()).unwrap_or_else(|| {
                *unlisted.entry(comm.name.clone()).or_insert_with(|| {
                    comms.push(Comm { name: comm.name.clone(), ..Comm::default() });
                    comms.len() - 1
                })
            });
            if comms[at].description.is_empty() {
                comms[at].description = comm.description.clone();
            }
            comms[at].has_transfers |= comm.has_transfers;
            of_rank.push(at);
        }
        of_ranks.push(of_rank);
    }
    (comms, of_ranks)
}
