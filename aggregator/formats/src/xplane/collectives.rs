//! The collectives of a rank: kernels that communicate by their names, and HLO operations.
//!
//! ```text
//!  XLA Ops         [all-reduce-start]  [fusion] [fusion]  [all-reduce-done]      one collective, from the first start to the last end
//!  Async XLA Ops   [all-reduce                                            ]      the same, if the profile has this line
//! ```
//!
//! The text of an operation states its groups by the numbers of the program's devices. They are taken for the ranks if there are as many.
//! Without groups, a collective is of all ranks; kernels on several streams are of one communicator for each stream, by their order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::rank::Launches;
use trace::{CollectiveRow, CommRow, OmissionRow};

use crate::rows::{by_order_of_streams, collective_kernels, collective_row, comm_id_of, list};
use crate::xplane::hlo::{self, Group, Groups, Instruction, Part};
use model::units;
use model::{Collective, RankData};

/// Where a collective was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A kernel of a GPU, by its HLO operation.
    Kernel,
    /// A line of operations.
    Line,
    /// A line of asynchronous operations, which has them as a whole.
    Async,
}

/// A row that is a collective, or its beginning or end.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) origin: Origin,
    pub(super) instruction: Rc<Instruction>,
    /// The name of the instruction.
    pub(super) name: Rc<str>,
}

impl Found {
    fn collective(&self) -> Option<&hlo::Collective> {
        match &*self.instruction {
            Instruction::Collective(collective) => Some(collective),
            _ => None,
        }
    }
}

/// A row that is a collective or a part of one, with its instruction.
type Piece<'a> = (usize, &'a Found, &'a hlo::Collective);

/// A collective: its row of events, the row that began it, and its instruction.
struct Whole<'a> {
    row: usize,
    begun: Option<usize>,
    op: &'static str,
    hlo: Option<&'a hlo::Collective>,
    /// The text of a start states groups that its end leaves out.
    groups: Option<&'a Groups>,
}

/// Fills in the collectives and the communicators of a rank. `ranks` are all of the source, ascending. Only a GPU has streams that tell
/// communicators apart.
pub(super) fn collectives(data: &mut RankData, found: &[Found], ranks: &[i32], has_streams: bool) {
    let launches = Launches::collect(&data.events);
    let rows: FxHashMap<i64, usize> = if found.is_empty() {
        FxHashMap::default()
    } else {
        data.events.id.iter().enumerate().map(|(row, id)| (*id, row)).collect()
    };
    let wholes = wholes(data, found, &rows);
    let mut comms = Comms::of(data.outline.info.rank, ranks);
    let mut collectives: Vec<CollectiveRow> = Vec::new();
    for whole in &wholes {
        let mut row = collective_row(data, (whole.row, whole.op), &launches);
        if let Some(begun) = whole.begun {
            row.start_ns = Some(data.events.ts_ns[begun]);
        }
        if let Some(hlo) = whole.hlo {
            row.dtype = row.dtype.or(hlo.dtype.map(Into::into));
            row.bytes = hlo.bytes;
        }
        comms.assign(&mut row, whole.groups);
        collectives.push(row);
    }
    if has_streams && comms.unstated == collectives.len() as i64 {
        by_order_of_streams(&mut collectives);
    }
    collectives.sort_by_key(|row| (row.order(), row.event_id));
    let (comms, remarks) = comms.finish(&collectives);
    list(data, remarks);
    data.outline.comms = comms;
    data.outline.collectives = Collective::list(collectives);
}

/// The collectives, with their beginnings and ends joined.
fn wholes<'a>(data: &RankData, found: &'a [Found], rows: &FxHashMap<i64, usize>) -> Vec<Whole<'a>> {
    let mut wholes = Vec::new();
    let mut of_hlo: FxHashSet<usize> = FxHashSet::default();
    // By stream and time, because rows of a line are in the order of time there.
    let mut pieces: Vec<Piece<'_>> =
        found.iter().filter_map(|found| Some((*rows.get(&found.id)?, found, found.collective()?))).collect();
    pieces.sort_by_key(|(row, ..)| (data.events.stream[*row], *row));
    let asynchronous: BTreeSet<&str> =
        pieces.iter().filter(|(_, found, _)| found.origin == Origin::Async).map(|(_, _, hlo)| hlo.op).collect();
    let mut open: BTreeMap<(i64, &str), VecDeque<Piece<'_>>> = BTreeMap::new();
    let whole = |row, begun, hlo: &'a hlo::Collective, groups| Whole { row, begun, op: hlo.op, hlo: Some(hlo), groups };
    for (row, found, hlo) in pieces {
        of_hlo.insert(row);
        let groups = hlo.groups.as_ref();
        if found.origin != Origin::Line || hlo.part == Part::Whole {
            wholes.push(whole(row, None, hlo, groups));
            continue;
        }
        if asynchronous.contains(hlo.op) {
            continue;
        }
        let open = open.entry((data.events.stream[row], hlo.op)).or_default();
        if hlo.part == Part::Start {
            open.push_back((row, found, hlo));
            continue;
        }
        let of_name =
            hlo.begun_by.as_deref().and_then(|name| open.iter().position(|(_, found, _)| &*found.name == name));
        let begun = of_name.or((hlo.begun_by.is_none()).then_some(0)).and_then(|at| open.remove(at));
        let groups = begun.and_then(|(_, _, start)| start.groups.as_ref()).or(groups);
        wholes.push(whole(row, begun.map(|(row, ..)| row), hlo, groups));
    }
    // What did not end in the recording.
    for (row, _, hlo) in open.into_values().flatten() {
        wholes.push(whole(row, None, hlo, hlo.groups.as_ref()));
    }
    let by_name = collective_kernels(data).into_iter().filter(|(row, _)| !of_hlo.contains(row));
    wholes.extend(by_name.map(|(row, op)| Whole { row, begun: None, op, hlo: None, groups: None }));
    wholes
}

/// The communicators of a rank.
struct Comms<'a> {
    rank: i32,
    ranks: &'a [i32],
    /// By id.
    members: BTreeMap<i64, Vec<i32>>,
    /// By the address of its text: groups of one instruction are looked up once.
    known: FxHashMap<*const Groups, Group>,
    by_groups: i64,
    unknown: i64,
    unstated: i64,
}

impl<'a> Comms<'a> {
    fn of(rank: i32, ranks: &'a [i32]) -> Self {
        let (members, known) = (BTreeMap::new(), FxHashMap::default());
        Self { rank, ranks, members, known, by_groups: 0, unknown: 0, unstated: 0 }
    }

    /// Gives a collective its communicator: 0 is that of all ranks.
    fn assign(&mut self, row: &mut CollectiveRow, groups: Option<&Groups>) {
        let Some(groups) = groups else {
            self.unstated += 1;
            return;
        };
        // The numbers of a program's devices begin at 0, and so do the ranks, unless other formats have some.
        let are_all = self.ranks.iter().copied().eq(0..self.ranks.len() as i32);
        let count = if are_all { self.ranks.len() } else { 0 };
        let rank = self.rank;
        let group = self.known.entry(std::ptr::from_ref(groups)).or_insert_with(|| groups.group_of(rank, count));
        match group {
            Group::All(size) => row.comm_size = size.and_then(|size| i32::try_from(size).ok()),
            Group::Members(members) if members.len() == count => row.comm_size = i32::try_from(count).ok(),
            Group::Members(members) => {
                let id = comm_id_of(members);
                row.comm_id = id;
                row.comm_size = i32::try_from(members.len()).ok();
                row.comm_name = Some(units::ranks_named(&sorted(members)).into());
                self.by_groups += 1;
                self.members.entry(id).or_insert_with(|| members.clone());
            }
            Group::Unknown => {
                // Ranks that may be of different groups are not matched.
                row.comm_id = comm_id_of(&[-1, rank]);
                self.unknown += 1;
            }
        }
    }

    fn finish(self, rows: &[CollectiveRow]) -> (Vec<CommRow>, Vec<OmissionRow>) {
        let comm = |(id, members): (i64, Vec<i32>)| CommRow {
            rank: self.rank,
            comm_id: id,
            name: Some(units::ranks_named(&sorted(&members)).into()),
            origin: Some("stated".into()),
            size: i32::try_from(members.len()).ok(),
            comm_rank: members.iter().position(|rank| *rank == self.rank).map(|at| at as i32),
            ranks: Some(members),
            ..CommRow::default()
        };
        let comms = self.members.into_iter().map(comm).collect();
        let unknown = OmissionRow::left_out(
            "communicators of collectives",
            "the program has several groups, and not as many devices as there are ranks here; these collectives are not matched",
        );
        let by_groups = OmissionRow::note(
            "communicators of collectives",
            "the program's numbers of devices are taken for the ranks: their order is that of the hosts' names and of the devices' numbers",
        );
        let unstated = OmissionRow::note(
            "communicators of collectives",
            "the profile names none; on each device there is one of all ranks, or one for each stream with collectives",
        );
        let (known, unstated_count) = (self.by_groups, self.unstated.min(rows.len() as i64));
        let remarks = [(unknown, self.unknown), (by_groups, known), (unstated, unstated_count)];
        let remarks = remarks.into_iter().filter(|(_, amount)| *amount > 0).map(|(row, amount)| row.amount(amount));
        (comms, remarks.collect())
    }
}

fn sorted(members: &[i32]) -> Vec<i32> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members
}
