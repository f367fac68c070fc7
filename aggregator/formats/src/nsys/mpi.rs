//! Collectives of MPI. They run on the host, so the times of a call are those of its collective.
//!
//! ```text
//!  rank 0   [ MPI_Allreduce          ]          waits for rank 1
//!  rank 1             [ MPI_Allreduce]   [MPI_Ibarrier]   [MPI_Wait]
//!                                        only hands its collective over: when it ends is unknown
//! ```
//!
//! A handle names a communicator within its process only. `MPI_COMMUNICATORS` says which group of ranks it stands for. In an export
//! without this table, the only communicator of a process counts as that of all ranks.
//!
//! Columns of the tables: <https://docs.nvidia.com/nsight-systems/UserGuide/> (SQLite schema reference). No export with collectives of
//! MPI was at hand.

use std::collections::{BTreeMap, BTreeSet};

use trace::{CollectiveRow, CommRow, OmissionRow, Text, TimingSource};

use crate::nsys::database::Database;
use crate::nsys::processes::Process;
use crate::nsys::wanted::Wanted;
use crate::rows::{comm_id_of, rows_by_id};
use model::{Collective, NO_STEP, RankData};

const COMMUNICATORS: &str = "MPI_COMMUNICATORS";
const WORLD: &str = "MPI_COMM_WORLD";
/// Communicators of a process.
const MAX_COMMS: usize = 1 << 16;

/// A call of a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct MpiCall {
    /// Its row.
    pub(super) id: i64,
    pub(super) operation: Operation,
    /// The handle of the communicator.
    pub(super) comm: Option<i64>,
    pub(super) root: Option<i32>,
    pub(super) sent_bytes: Option<i64>,
    pub(super) received_bytes: Option<i64>,
}

/// The collective of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// As in `collectives.op`.
    pub op: &'static str,
    /// Whether the call returns when this rank's part is done.
    is_blocking: bool,
}

impl Operation {
    /// The collective that a function of MPI makes: `MPI_Iallgatherv`, `mpi_barrier_`. `None` for neighbourhoods, files, scans, and
    /// functions that make communicators.
    pub(super) fn of(function: &str) -> Option<Self> {
        let name = function.to_ascii_lowercase();
        let name = name.strip_prefix("mpi_")?.trim_end_matches('_');
        let name = name.strip_suffix("_c").unwrap_or(name);
        let blocking = |name: &str| {
            Some(match name {
                "allreduce" => "allreduce",
                "allgather" | "allgatherv" => "allgather",
                "reduce_scatter" | "reduce_scatter_block" => "reducescatter",
                "alltoall" | "alltoallv" | "alltoallw" => "alltoall",
                "bcast" => "broadcast",
                "reduce" => "reduce",
                "gather" | "gatherv" => "gather",
                "scatter" | "scatterv" => "scatter",
                "barrier" => "barrier",
                _ => return None,
            })
        };
        let at_once = |op| Self { op, is_blocking: true };
        blocking(name)
            .map(at_once)
            .or_else(|| blocking(name.strip_prefix('i')?).map(|op| Self { op, is_blocking: false }))
    }
}

/// A communicator of a process.
#[derive(Clone, Debug)]
struct Comm {
    /// When it was made, in the clock of the rank's rows.
    since_ns: i64,
    id: i64,
    name: Text,
    size: Option<i32>,
    /// The process's number in it.
    rank: Option<i32>,
}

/// The communicators of a process, by handle. MPI may use the handle of a communicator that was freed again, so each has a list by time.
type Comms = BTreeMap<i64, Vec<Comm>>;

/// Adds the collectives of `calls` to a rank, whose rows and steps are complete.
pub(super) fn add_collectives(
    data: &mut RankData,
    calls: &[MpiCall],
    (database, process): (&Database, &Process),
    world_size: Option<i32>,
) {
    if calls.is_empty() {
        return;
    }
    let mut comms = if database.has(COMMUNICATORS) {
        described(data, database, process)
    } else {
        only_one(data, calls, world_size)
    };
    comms.values_mut().for_each(|of_handle| of_handle.sort_by_key(|comm| comm.since_ns));
    let events = &data.events;
    let rows = rows_by_id(events);
    let (mut unknown, mut used) = (0, BTreeMap::new());
    for call in calls {
        let Some(row) = rows.get(&call.id).copied() else { continue };
        let comm = call.comm.and_then(|handle| comms.get(&handle)).and_then(|of_handle| {
            let before = of_handle.partition_point(|comm| comm.since_ns <= events.ts_ns[row]);
            of_handle.get(before.checked_sub(1)?)
        });
        let Some(comm) = comm else {
            unknown += 1;
            continue;
        };
        used.entry(comm.id).or_insert_with(|| comm.clone());
        let times = (events.ts_ns[row], events.end_ns(row));
        let step = Some(events.step[row]).filter(|step| *step != NO_STEP);
        let row =
            CollectiveRow { rank: process.rank, step, event_id: Some(call.id), ..collective_row(call, comm, times) };
        data.outline.collectives.push(row.into());
    }
    data.outline.comms.extend(used.into_values().map(|comm| comm_row(process.rank, comm)));
    data.outline.collectives.sort_by_key(Collective::order);
    if unknown > 0 {
        let why = "the export does not say which ranks their communicator has; they are ranges only";
        data.omissions.push(OmissionRow::left_out("collectives of MPI", why).rank(process.rank).amount(unknown));
    }
}

/// The communicators that the export describes.
fn described(data: &mut RankData, database: &Database, process: &Process) -> Comms {
    let (mut comms, mut kept, mut beyond) = (Comms::new(), 0, 0);
    let columns = ["rank", "timestamp", "commHandle", "localRank", "size", "groupRoot", "groupRootUid"];
    let needed = ["rank", "commHandle", "groupRoot", "groupRootUid"];
    let cut = database.rows(COMMUNICATORS, &columns, &needed, Wanted::All, |cells| {
        let small = |column: usize| cells.integer(column).and_then(|value| i32::try_from(value).ok());
        let (Some(handle), Some(root), Some(uid)) = (cells.integer(2), small(5), cells.integer(6)) else { return };
        if small(0) != Some(process.rank) {
            return;
        }
        if kept == MAX_COMMS {
            beyond += 1;
            return;
        }
        kept += 1;
        // The number of the communicator on the rank that is its root is the same in the rows of all members.
        let [low, high] = [uid as i32, (uid >> 32) as i32];
        comms.entry(handle).or_default().push(Comm {
            since_ns: cells.integer(1).map_or(i64::MIN, |ts_ns| ts_ns.saturating_add(process.session.offset_ns())),
            id: comm_id_of(&[i32::MIN, root, low, high]),
            name: format!("MPI {uid} of rank {root}").into(),
            size: small(4).filter(|size| *size > 0),
            rank: small(3).filter(|rank| *rank >= 0),
        });
    });
    let lost = cut.map(|why| OmissionRow::lost(format!("rest of table {COMMUNICATORS}"), why));
    let why = format!("a process may have {MAX_COMMS} of them");
    let beyond = (beyond > 0).then(|| OmissionRow::lost("communicators of MPI", why).amount(beyond));
    data.omissions.extend(lost.into_iter().chain(beyond).map(|omission| omission.rank(process.rank)));
    comms
}

/// The communicator of all ranks, if the process uses one only.
fn only_one(data: &mut RankData, calls: &[MpiCall], world_size: Option<i32>) -> Comms {
    let handles: BTreeSet<Option<i64>> = calls.iter().map(|call| call.comm).collect();
    let (Some(Some(handle)), 1) = (handles.first(), handles.len()) else { return Comms::new() };
    let rank = data.outline.info.rank;
    let why = format!(
        "the export does not describe communicators, and the process used one: it counts as that of all ranks, {WORLD}"
    );
    data.omissions.push(OmissionRow::note("communicator of MPI", why).rank(rank));
    let id = comm_id_of(&[i32::MIN]);
    let world = Comm { since_ns: i64::MIN, id, name: WORLD.into(), size: world_size, rank: Some(rank) };
    Comms::from([(*handle, vec![world])])
}

fn collective_row(call: &MpiCall, comm: &Comm, (start_ns, end_ns): (i64, i64)) -> CollectiveRow {
    let Operation { op, is_blocking } = call.operation;
    let source = if is_blocking { TimingSource::Host } else { TimingSource::Enqueue };
    CollectiveRow {
        comm_id: comm.id,
        comm_name: Some(comm.name.clone()),
        comm_size: comm.size,
        op: op.into(),
        bytes: bytes(call, comm.size),
        root: call.root.filter(|root| *root >= 0),
        enqueue_ns: Some(start_ns),
        start_ns: is_blocking.then_some(start_ns),
        end_ns: is_blocking.then_some(end_ns),
        state: "done".into(),
        timing_source: source.as_str().into(),
        ..CollectiveRow::default()
    }
}

/// The size of the whole array. Of operations that scatter or exchange parts, the columns do not say whether they hold a part or all.
fn bytes(call: &MpiCall, size: Option<i32>) -> Option<i64> {
    let [sent, received] = [call.sent_bytes, call.received_bytes].map(|bytes| bytes.filter(|bytes| *bytes >= 0));
    match call.operation.op {
        "allreduce" | "reduce" | "broadcast" => sent.max(received),
        // A rank that gathers in place sends nothing.
        "allgather" => sent.filter(|bytes| *bytes > 0)?.checked_mul(i64::from(size?)),
        _ => None,
    }
}

fn comm_row(rank: i32, comm: Comm) -> CommRow {
    CommRow {
        rank,
        comm_id: comm.id,
        name: Some(comm.name),
        origin: Some("stated".into()),
        size: comm.size,
        comm_rank: comm.rank,
        ..CommRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_in_all_spellings() {
        let of = |name: &str| Operation::of(name).map(|operation| (operation.op, operation.is_blocking));
        assert_eq!(of("MPI_Allreduce"), Some(("allreduce", true)));
        assert_eq!(of("mpi_barrier_"), Some(("barrier", true)));
        assert_eq!(of("MPI_Iallgatherv"), Some(("allgather", false)));
        assert_eq!(of("MPI_Alltoallw_c"), Some(("alltoall", true)));
        assert_eq!(of("MPI_Reduce_scatter_block"), Some(("reducescatter", true)));
        for other in
            ["MPI_Init", "MPI_Neighbor_alltoall", "MPI_File_read_all", "MPI_Scan", "MPI_Comm_split", "allreduce"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
