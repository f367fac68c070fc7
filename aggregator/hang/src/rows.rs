//! The collectives of a run as the state of its ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rayon::prelude::*;
use trace::{CounterRow, OmissionRow, Op, Text};

use crate::state::{CommState, Facts, Pending, Position, RankState, What};
use crate::unfinished::{cut_short, progress, records_ends};
use align::communicators::infer_communicators;
use align::p2p_peers::peers_as_ranks;
use formats::run_source::RunSource;
use measure::part::RankPart;
use model::source::Source;
use model::{Collective, RankOutline};

/// A communicator and the operation that is numbered; that is empty for sends and receives.
type Numbering = (i64, Text);

/// The states of the ranks of a run. A rank whose last rows are lost, as in a recording that was cut, is left out and listed: what it
/// called is unknown.
pub(crate) fn read(source: &RunSource) -> (Vec<RankState>, Vec<OmissionRow>) {
    let mut omissions = source.problems();
    let part = |rank: i32| {
        let outline = source.outline(rank).unwrap_or_default();
        let part = RankPart { outline, counters: source.rows::<CounterRow>(rank), ..RankPart::default() };
        (part, source.losses(rank))
    };
    let read: Vec<(RankPart, Vec<OmissionRow>)> = source.ranks().into_par_iter().map(part).collect();
    let (mut parts, lost): (Vec<RankPart>, Vec<Vec<OmissionRow>>) = read.into_iter().unzip();
    omissions.extend(lost.into_iter().flatten());
    let mut outlines: Vec<&mut RankOutline> = parts.iter_mut().map(|part| &mut part.outline).collect();
    omissions.extend(peers_as_ranks(&mut outlines));
    omissions.extend(infer_communicators(&mut outlines));
    let cut = cut_short(&parts);
    for rank in &cut {
        let why = "its last rows were not written, so what it called is unknown";
        omissions.push(OmissionRow::left_out("rank", why).rank(*rank));
    }
    let members = members(&parts);
    let is_whole = |part: &&RankPart| !cut.contains(&part.outline.info.rank) && records_ends(&part.outline.collectives);
    let mut states: Vec<RankState> =
        parts.par_iter().filter(is_whole).map(|part| state_of(&part.outline, &members)).collect();
    add_uncalled(&mut states);
    (states, omissions)
}

/// The ranks of each communicator: those with a row of it, and those that it lists.
fn members(parts: &[RankPart]) -> BTreeMap<i64, Arc<[i32]>> {
    let mut members: BTreeMap<i64, BTreeSet<i32>> = BTreeMap::new();
    for RankPart { outline, .. } in parts {
        let rank = outline.info.rank;
        for comm in &outline.comms {
            let of_comm = members.entry(comm.comm_id).or_default();
            of_comm.insert(rank);
            of_comm.extend(comm.ranks.iter().flatten());
        }
        let mut known: BTreeSet<i64> = BTreeSet::new();
        for row in outline.collectives.iter().filter(|row| known.insert(row.comm_id)) {
            members.entry(row.comm_id).or_default().insert(rank);
        }
    }
    members.into_iter().map(|(comm, ranks)| (comm, ranks.into_iter().collect())).collect()
}

fn state_of(outline: &RankOutline, members: &BTreeMap<i64, Arc<[i32]>>) -> RankState {
    let mut comms: BTreeMap<Numbering, CommState> = BTreeMap::new();
    // The first row of an operation says that it began, and the last one that it ended.
    let mut open: BTreeMap<(Numbering, What, Option<i64>), Pending> = BTreeMap::new();
    for (at, row) in outline.collectives.iter().enumerate() {
        let what = match (row.op.known(), row.peer(), row.seq()) {
            (Some(op @ (Op::Send | Op::Recv)), Some(peer), _) => What::Transfer { peer, is_send: op == Op::Send },
            (Some(Op::Send | Op::Recv), None, _) | (_, _, None) => continue,
            (_, _, Some(seq)) => What::Collective(seq),
        };
        // Sends and receives have no numbers in common.
        let is_collective = matches!(what, What::Collective(_));
        let numbering = (row.comm_id, if is_collective { Text::from(&*row.op) } else { Text::default() });
        let comm = comms.entry(numbering.clone()).or_insert_with(|| CommState {
            name: row.comm_name.clone().unwrap_or_else(|| format!("{:#x}", row.comm_id).into()),
            numbering: numbering.1.clone(),
            members: members.get(&row.comm_id).cloned(),
            ..CommState::default()
        });
        if let What::Collective(seq) = what {
            let enqueued = comm.seen.map_or(seq, |seen| seen.enqueued.max(seq));
            comm.seen = Some(Position { enqueued, done: enqueued });
        }
        let key = (numbering, what, row.seq());
        if progress(row) >= 2 {
            open.remove(&key);
        } else {
            let pending = Pending { order: order(row, at), what, facts: facts_of(row), batch: None };
            open.entry(key).or_insert(pending);
        }
    }
    for ((numbering, what, _), pending) in open {
        let Some(comm) = comms.get_mut(&numbering) else { continue };
        if let (What::Collective(seq), Some(seen)) = (what, &mut comm.seen) {
            seen.done = seen.done.min(seq.saturating_sub(1));
        }
        comm.pending.push(pending);
    }
    RankState { rank: outline.info.rank, comms: comms.into_values().collect(), in_flight: false }
}

type NameAndMembers = (Text, Option<Arc<[i32]>>);

/// Adds the numberings of a communicator in which a rank has no row although others have: the rank called none of its operations.
fn add_uncalled(states: &mut [RankState]) {
    let mut numberings: BTreeMap<NameAndMembers, BTreeSet<Text>> = BTreeMap::new();
    for comm in states.iter().flat_map(|state| &state.comms).filter(|comm| comm.seen.is_some()) {
        let key = (comm.name.clone(), comm.members.clone());
        numberings.entry(key).or_default().insert(comm.numbering.clone());
    }
    for ((name, members), numberings) in numberings {
        for numbering in numberings {
            for state in states.iter_mut() {
                let is_member = members.as_ref().is_some_and(|members| members.binary_search(&state.rank).is_ok());
                let is_here =
                    |comm: &CommState| comm.name == name && comm.numbering == numbering && comm.members == members;
                if is_member && !state.comms.iter().any(is_here) {
                    let seen = Some(Position { enqueued: -1, done: -1 });
                    let (name, numbering, members) = (name.clone(), numbering.clone(), members.clone());
                    state.comms.push(CommState { name, numbering, members, seen, ..CommState::default() });
                }
            }
        }
    }
}

fn order(row: &Collective, at: usize) -> i64 {
    row.enqueue_ns().or(row.start_ns()).unwrap_or(at as i64)
}

/// Times of a run are those of the rank's own clock, so the time of the call in UTC is unknown.
fn facts_of(row: &Collective) -> Facts {
    Facts {
        op: Text::from(&*row.op),
        input_elements: None,
        output_elements: None,
        dtype: row.dtype.as_ref().map(|dtype| Text::from(&**dtype)),
        bytes: row.bytes,
        called_utc_ns: None,
        source_line: None,
    }
}
