//! Dumps of torch's Flight Recorder as the state of their ranks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kineto::{FlightDump, FlightEntry, FlightPosition, flight_dumps};
use trace::{OmissionRow, Text};

use crate::state::{CommState, Facts, Pending, Position, RankState, What};
use model::Error;

/// Reads the dumps in `paths`.
///
/// # Errors
/// As [`flight_dumps`].
pub fn read(paths: &[PathBuf]) -> Result<(Vec<RankState>, Vec<OmissionRow>), Error> {
    let found = flight_dumps(paths, state_of)?;
    let mut omissions = found.omissions;
    let mut states = Vec::with_capacity(found.by_rank.len());
    let (mut unplaced, mut unnumbered) = (0, 0);
    for (state, lost) in found.by_rank.into_values() {
        unplaced += lost.unplaced;
        unnumbered += lost.unnumbered;
        states.push(state);
    }
    if unplaced > 0 {
        let why = "no operation in their dumps names the group; how far the ranks are in it is unknown";
        omissions.push(OmissionRow::left_out("positions in process groups", why).amount(unplaced));
    }
    if unnumbered > 0 {
        let why = "they lack their group, their number or the other rank";
        omissions.push(OmissionRow::left_out("operations of dumps", why).amount(unnumbered));
    }
    Ok((states, omissions))
}

/// The numbers of items of a dump that were not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    unplaced: i64,
    unnumbered: i64,
}

fn state_of(rank: i32, dump: FlightDump) -> (RankState, Lost) {
    let mut lost = Lost { unplaced: dump.unplaced as i64, unnumbered: 0 };
    let mut comms: BTreeMap<Text, CommState> = BTreeMap::new();
    for (name, group) in dump.groups {
        let members = group.ranks.filter(|ranks| ranks.binary_search(&rank).is_ok() || ranks.contains(&rank));
        let comm = CommState { name: name.clone(), description: group.description, members, ..CommState::default() };
        comms.insert(name, comm);
    }
    for (name, FlightPosition { enqueued, completed }) in dump.positions {
        let comm = comms.entry(name.clone()).or_insert_with(|| CommState { name, ..CommState::default() });
        comm.counted = Some(Position { enqueued, done: completed });
    }
    let is_whole = is_whole(&dump.entries);
    // Where every position has its group, a group without one was never used.
    let knows_all = match comms.values().any(|comm| comm.counted.is_some()) {
        true => dump.unplaced == 0,
        false => is_whole,
    };
    let mut rings: BTreeMap<Text, Vec<(i64, FlightEntry)>> = BTreeMap::new();
    for (at, entry) in dump.entries.into_iter().enumerate() {
        match &entry.group {
            Some(group) => {
                let order = entry.record_id.unwrap_or(at as i64);
                rings.entry(group.clone()).or_default().push((order, entry));
            }
            None => lost.unnumbered += 1,
        }
    }
    for (name, mut ring) in rings {
        ring.sort_by_key(|(order, _)| *order);
        let comm = comms.entry(name.clone()).or_insert_with(|| CommState { name, ..CommState::default() });
        add_ring(comm, ring, &mut lost);
    }
    for comm in comms.values_mut().filter(|comm| knows_all && comm.counted.is_none() && comm.seen.is_none()) {
        comm.seen = Some(Position { enqueued: 0, done: 0 });
    }
    (RankState { rank, comms: comms.into_values().collect() }, lost)
}

/// Whether a ring holds all operations since the start of the process.
fn is_whole(entries: &[FlightEntry]) -> bool {
    let number = |entry: &FlightEntry| entry.record_id;
    let last = entries.iter().filter_map(number).max();
    entries.iter().all(|entry| number(entry).is_some())
        && last.map_or(0, |last| last.saturating_add(1)) == entries.len() as i64
}

/// Numbers of an entry: those of operations that NCCL carries out together are equal.
type Numbers = (Option<i64>, Option<i64>);

/// Adds the operations of one communicator, in the order of their calls.
fn add_ring(comm: &mut CommState, ring: Vec<(i64, FlightEntry)>, lost: &mut Lost) {
    // Of operations that are carried out together, only the entry that closes the batch is watched to its end.
    let numbers = |entry: &FlightEntry| -> Numbers { (entry.seq, entry.p2p_seq) };
    let is_batch = |entry: &FlightEntry| entry.op.is_none() && entry.name.ends_with("coalesced");
    let mut batches: BTreeMap<Numbers, bool> = BTreeMap::new();
    let mut with_transfers: BTreeMap<Numbers, bool> = BTreeMap::new();
    for (_, entry) in &ring {
        if is_batch(entry) {
            batches.insert(numbers(entry), entry.is_finished);
        } else {
            *with_transfers.entry(numbers(entry)).or_default() |= entry.is_p2p;
        }
    }
    let is_finished = |entry: &FlightEntry| {
        entry.is_finished || !is_batch(entry) && batches.get(&numbers(entry)).copied().unwrap_or(false)
    };
    let description = ring.iter().find_map(|(_, entry)| entry.description.clone());
    if let Some(description) = description.filter(|_| comm.description.is_empty()) {
        comm.description = description;
    }
    let (mut enqueued, mut finished) = (None, None);
    let mut collectives: Vec<Pending> = Vec::new();
    let mut transfers: BTreeMap<(i32, bool), Vec<Pending>> = BTreeMap::new();
    for (order, entry) in ring {
        let entry = FlightEntry { seq: entry.seq.filter(|seq| *seq >= 0), ..entry };
        enqueued = entry.seq.max(enqueued);
        let done = is_finished(&entry);
        if entry.is_p2p {
            comm.has_transfers = true;
            let Some(peer) = entry.peer.and_then(|peer| place(comm, peer)) else {
                lost.unnumbered += i64::from(!done && !is_batch(&entry));
                continue;
            };
            let is_send = entry.op == Some("send");
            let pending = transfers.entry((peer, is_send)).or_default();
            if done {
                // A rank's transfers with another end in their order.
                pending.clear();
            } else {
                pending.push(Pending { order, what: What::Transfer { peer, is_send }, facts: facts_of(entry) });
            }
            continue;
        }
        let Some(seq) = entry.seq else {
            lost.unnumbered += i64::from(!done);
            continue;
        };
        if done {
            finished = Some(seq).max(finished);
        } else if !(is_batch(&entry) && with_transfers.get(&numbers(&entry)).copied().unwrap_or(false))
            && collectives.last().is_none_or(|last| last.what != What::Collective(seq))
        {
            collectives.push(Pending { order, what: What::Collective(seq), facts: facts_of(entry) });
        }
    }
    let number = |pending: &Pending| if let What::Collective(seq) = pending.what { Some(seq) } else { None };
    collectives.retain(|pending| number(pending) > finished);
    let first = collectives.iter().filter_map(number).min();
    comm.seen =
        enqueued.map(|enqueued| Position { enqueued, done: first.map_or(enqueued, |first| first.saturating_sub(1)) });
    comm.pending = collectives.into_iter().chain(transfers.into_values().flatten()).collect();
}

/// The global rank of a number in a communicator.
fn place(comm: &CommState, number: i32) -> Option<i32> {
    comm.members.as_ref()?.get(usize::try_from(number).ok()?).copied()
}

fn facts_of(entry: FlightEntry) -> Facts {
    let bytes = entry.bytes();
    let tail = || entry.name.rsplit(':').next().map_or_else(|| entry.name.clone(), Text::from);
    let line = |frame: &kineto::FlightFrame| {
        let number = frame.line.map_or(String::new(), |line| format!(":{line}"));
        Text::from(format!("{}{number} ({})", frame.file, frame.name))
    };
    Facts {
        op: entry.op.map_or_else(tail, Text::from),
        source_line: entry.frame.as_ref().map(line),
        input_elements: entry.input_elements,
        output_elements: entry.output_elements,
        dtype: entry.dtype,
        bytes,
        called_utc_ns: entry.created_ns,
    }
}

/// For fuzzing: states of any bytes. The numbers of each rank agree with each other.
///
/// # Panics
/// If a rank waits in a collective that it did not call.
#[cfg(feature = "fuzzing")]
pub fn check_any_dump(bytes: &[u8]) {
    let Ok(dump) = FlightDump::read(bytes, &kineto::RankLists::default()) else { return };
    let (state, _) = state_of(3, dump);
    for comm in &state.comms {
        for pending in &comm.pending {
            if let (What::Collective(seq), Some(seen)) = (pending.what, comm.seen) {
                assert!(seen.done < seq && seq <= seen.enqueued, "{comm:?}");
            }
        }
    }
    let job = crate::job::Job::of(vec![state], Vec::new(), None);
    let _ = crate::report::Hang::of(job);
}
