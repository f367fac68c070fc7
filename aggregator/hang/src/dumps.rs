//! Dumps of torch's Flight Recorder as the state of their ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kineto::{FlightDump, FlightEntry, FlightPosition, flight_dumps};
use trace::{OmissionRow, Text};

use crate::posted::{Batches, Posted, is_batch};
use crate::state::{CommState, Facts, Pending, Position, RankState, What};
use formats::memory::max_memory_bytes;
use model::Error;

/// Reads the dumps in `paths`. Those that are read at a time may take `limit_bytes` of memory; `None`: the default.
///
/// # Errors
/// As [`flight_dumps`].
pub fn read(paths: &[PathBuf], limit_bytes: Option<u64>) -> Result<(Vec<RankState>, Vec<OmissionRow>), Error> {
    let found = flight_dumps(paths, max_memory_bytes(limit_bytes), Dumped::of)?;
    let mut omissions = found.omissions;
    let (states, lost) = states_of(found.by_rank.into_values().collect());
    if lost.unplaced > 0 {
        let why = "no operation in their dumps names the group; how far the ranks are in it is unknown";
        omissions.push(OmissionRow::left_out("positions in process groups", why).amount(lost.unplaced));
    }
    if lost.unnumbered > 0 {
        let why = "they lack their group, their number or the other rank";
        omissions.push(OmissionRow::left_out("operations of dumps", why).amount(lost.unnumbered));
    }
    Ok((states, omissions))
}

/// The numbers of items of dumps that were not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    unplaced: i64,
    unnumbered: i64,
}

/// A dump without its ring, whose positions may still lack their groups.
pub(crate) struct Dumped {
    rank: i32,
    comms: BTreeMap<Text, CommState>,
    /// The process groups that the dump lists.
    groups: BTreeSet<Text>,
    /// Names of groups by the rank's own number of them.
    names: BTreeMap<i64, Text>,
    unplaced: BTreeMap<i64, FlightPosition>,
    /// Whether the ring holds all operations.
    is_whole: bool,
    unnumbered: i64,
}

/// The states of the ranks of a job. Where the ring of a rank has lost the name of a group, another rank's dump may hold it.
pub(crate) fn states_of(mut dumps: Vec<Dumped>) -> (Vec<RankState>, Lost) {
    // Ranks of the same groups made them in one order, so that their numbers are equal. `None`: the ranks contradict each other.
    let lacking = dumps.iter().filter(|dump| !dump.unplaced.is_empty()).map(|dump| dump.groups.clone());
    let mut known: BTreeMap<BTreeSet<Text>, BTreeMap<i64, Option<Text>>> =
        lacking.map(|groups| (groups, BTreeMap::new())).collect();
    for dump in &dumps {
        let Some(known) = known.get_mut(&dump.groups) else { continue };
        for (id, name) in dump.names.iter().filter(|(_, name)| dump.groups.contains(*name)) {
            let found = known.entry(*id).or_insert_with(|| Some(name.clone()));
            if found.as_ref().is_some_and(|found| found != name) {
                *found = None;
            }
        }
    }
    for dump in dumps.iter_mut().filter(|dump| !dump.unplaced.is_empty()) {
        let Some(known) = known.get(&dump.groups) else { continue };
        for (id, position) in std::mem::take(&mut dump.unplaced) {
            let name = known.get(&id).cloned().flatten();
            match name.filter(|name| dump.comms.get(name).is_some_and(|comm| comm.counted.is_none())) {
                Some(name) => dump.place(name, position),
                None => drop(dump.unplaced.insert(id, position)),
            }
        }
    }
    let mut lost = Lost::default();
    for dump in &dumps {
        lost.unplaced += dump.unplaced.len() as i64;
        lost.unnumbered += dump.unnumbered;
    }
    (dumps.into_iter().map(Dumped::state).collect(), lost)
}

impl Dumped {
    pub(crate) fn of(rank: i32, dump: FlightDump) -> Self {
        let is_whole = is_whole(&dump.entries);
        let FlightDump { groups, positions, names, unplaced, entries, .. } = dump;
        let mut dumped = Self {
            rank,
            comms: BTreeMap::new(),
            groups: groups.keys().cloned().collect(),
            names,
            unplaced,
            is_whole,
            unnumbered: 0,
        };
        for (name, group) in groups {
            let members = group.ranks.filter(|ranks| ranks.binary_search(&rank).is_ok() || ranks.contains(&rank));
            let comm =
                CommState { name: name.clone(), description: group.description, members, ..CommState::default() };
            dumped.comms.insert(name, comm);
        }
        positions.into_iter().for_each(|(name, position)| dumped.place(name, position));
        dumped.add_rings(entries);
        dumped
    }

    fn comm(&mut self, name: Text) -> &mut CommState {
        self.comms.entry(name.clone()).or_insert_with(|| CommState { name, ..CommState::default() })
    }

    fn place(&mut self, name: Text, FlightPosition { enqueued, completed }: FlightPosition) {
        self.comm(name).counted = Some(Position { enqueued, done: completed });
    }

    fn add_rings(&mut self, entries: Vec<FlightEntry>) {
        let mut rings: BTreeMap<Text, Vec<(i64, FlightEntry)>> = BTreeMap::new();
        for (at, entry) in entries.into_iter().enumerate() {
            match &entry.group {
                Some(group) => {
                    let order = entry.record_id.unwrap_or(at as i64);
                    rings.entry(group.clone()).or_default().push((order, entry));
                }
                None => self.unnumbered += 1,
            }
        }
        let orders = || rings.values().flatten().map(|(order, _)| *order);
        // A dump of open operations alone has gaps, and lacks no member of a batch.
        let is_without_gaps = |first: &i64| {
            orders().max().is_some_and(|last| last.saturating_sub(*first).saturating_add(1) == orders().count() as i64)
        };
        let oldest = orders().min().filter(is_without_gaps);
        let is_whole = self.is_whole;
        for (name, mut ring) in rings {
            ring.sort_by_key(|(order, _)| *order);
            let comm = self.comm(name);
            let batches = Batches::of(&ring, is_whole, oldest);
            comm.posted = Some(Posted::of(|number| place(comm, number), &ring, &batches));
            let unnumbered = add_ring(comm, ring, &batches);
            self.unnumbered += unnumbered;
        }
    }

    fn state(mut self) -> RankState {
        // Where every position has its group, a group without one was never used.
        let knows_all = match self.comms.values().any(|comm| comm.counted.is_some()) {
            true => self.unplaced.is_empty(),
            false => self.is_whole,
        };
        for comm in self.comms.values_mut().filter(|comm| knows_all && comm.counted.is_none() && comm.seen.is_none()) {
            comm.seen = Some(Position { enqueued: 0, done: 0 });
        }
        for comm in self.comms.values_mut().filter(|comm| self.is_whole && comm.posted.is_none()) {
            comm.posted = Some(Posted::nothing());
        }
        let is_counted = |comm: &CommState| comm.counted.is_some_and(Position::is_waiting);
        let in_flight = self.comms.values().any(is_counted)
            || self.unplaced.values().any(|position| position.enqueued > position.completed);
        RankState { rank: self.rank, comms: self.comms.into_values().collect(), in_flight }
    }
}

/// Whether a ring holds all operations since the start of the process.
fn is_whole(entries: &[FlightEntry]) -> bool {
    let number = |entry: &FlightEntry| entry.record_id;
    let last = entries.iter().filter_map(number).max();
    entries.iter().all(|entry| number(entry).is_some())
        && last.map_or(0, |last| last.saturating_add(1)) == entries.len() as i64
}

/// Adds the operations of one communicator, in the order of their calls. Returns the number of those that could not be placed.
fn add_ring(comm: &mut CommState, ring: Vec<(i64, FlightEntry)>, batches: &Batches) -> i64 {
    let mut lost = 0;
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
        let done = batches.is_finished(&entry);
        if entry.is_p2p {
            comm.has_transfers = true;
            let Some(peer) = entry.peer.and_then(|peer| place(comm, peer)) else {
                lost += i64::from(!done && !is_batch(&entry));
                continue;
            };
            let is_send = entry.op == Some("send");
            let pending = transfers.entry((peer, is_send)).or_default();
            if done {
                // A rank's transfers with another end in their order.
                pending.clear();
            } else {
                let batch = batches.number(&entry);
                pending.push(Pending { order, what: What::Transfer { peer, is_send }, facts: facts_of(entry), batch });
            }
            continue;
        }
        let Some(seq) = entry.seq else {
            lost += i64::from(!done);
            continue;
        };
        if done {
            finished = Some(seq).max(finished);
        } else if !(is_batch(&entry) && batches.has_transfers(&entry))
            && collectives.last().is_none_or(|last| last.what != What::Collective(seq))
        {
            collectives.push(Pending { order, what: What::Collective(seq), facts: facts_of(entry), batch: None });
        }
    }
    let number = |pending: &Pending| if let What::Collective(seq) = pending.what { Some(seq) } else { None };
    collectives.retain(|pending| number(pending) > finished);
    let first = collectives.iter().filter_map(number).min();
    comm.seen =
        enqueued.map(|enqueued| Position { enqueued, done: first.map_or(enqueued, |first| first.saturating_sub(1)) });
    comm.pending = collectives.into_iter().chain(transfers.into_values().flatten()).collect();
    lost
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
    let Ok(dump) = FlightDump::read(bytes, &kineto::RankLists::default(), &mut kineto::Room::unlimited()) else {
        return;
    };
    let (states, _) = states_of(vec![Dumped::of(3, dump)]);
    for comm in states.iter().flat_map(|state| &state.comms) {
        for pending in &comm.pending {
            if let (What::Collective(seq), Some(seen)) = (pending.what, comm.seen) {
                assert!(seen.done < seq && seq <= seen.enqueued, "{comm:?}");
            }
        }
    }
    let job = crate::job::Job::of(states, Vec::new(), None);
    let _ = crate::report::Hang::of(job);
}

#[cfg(test)]
mod tests;
