//! The collectives of a process: its kernels that communicate, with the calls of NCCL that launched them, and its calls of MPI.
//!
//! ```text
//!  thread   GroupStart  Send  Recv  GroupEnd[ cudaLaunchKernel ]   AllReduce[ cudaLaunchKernel ]
//!  device                             SendRecv kernel                           AllReduce kernel
//! ```
//!
//! A kernel belongs to the call around its launch, and to all calls of a group that ends around it. Only with the payloads of the calls is
//! the communicator known. Else a kernel belongs to the communicator of all ranks, or, on several streams, to one for each stream.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::rank::Launches;
use trace::{CollectiveRow, CommRow, OmissionRow};

use crate::nsys::nccl::{Call, CallKind, Payload};
use crate::rows::{collective_kernels, collective_row, rows_by_id};
use model::{Collective, Events, NONE, RankData};

/// Calls that were handed to NCCL together.
struct Batch {
    thread: i64,
    start_ns: i64,
    end_ns: i64,
    calls: Vec<(&'static str, Payload)>,
    /// Collectives, by their position, that were launched in it.
    kernels: Vec<usize>,
}

/// The communicators of a process, by hash: their number of ranks, and the process's number in them. Either may be unknown.
type Sizes = BTreeMap<u64, (Option<i32>, Option<i32>)>;

/// Fills in the collectives and the communicators of a rank. `calls` are those of NCCL.
pub(super) fn collectives(data: &mut RankData, calls: &[Call], world_size: Option<i32>) {
    let launches = Launches::collect(&data.events);
    let found = collective_kernels(data);
    let mut rows = found.iter().map(|found| collective_row(data, *found, &launches)).collect::<Vec<_>>();
    by_stream(&mut rows, world_size);
    let mut batches = batches(&data.events, calls);
    for (at, (event, _)) in found.iter().enumerate() {
        let launch = launches.of(data.events.correlation[*event]).map(|launch| launch as usize);
        if let Some(batch) = launch.and_then(|launch| batch_at(&mut batches, &data.events, launch)) {
            batch.kernels.push(at);
        }
    }
    let sizes = sizes(calls);
    let mut unclear = 0;
    for batch in &batches {
        unclear += describe(batch, &sizes, &mut rows);
    }
    if unclear > 0 {
        let why = "NCCL's group launched several kernels for several communicators, and does not say which is whose";
        let rank = data.outline.info.rank;
        data.omissions.push(OmissionRow::left_out("communicators of collectives", why).rank(rank).amount(unclear));
    }
    data.outline.comms = comms(data.outline.info.rank, &rows, &sizes);
    data.outline.collectives = Collective::list(rows);
}

/// Without payloads, the streams tell communicators apart.
fn by_stream(rows: &mut [CollectiveRow], world_size: Option<i32>) {
    let streams: BTreeSet<(Option<i64>, Option<i64>)> = rows.iter().map(|row| (row.device_id, row.stream_id)).collect();
    for row in rows {
        let stream = row.stream_id.filter(|_| streams.len() > 1);
        row.comm_id = stream.map_or(0, |stream| stream.saturating_add(1));
        row.comm_name = stream.map(|stream| format!("stream {stream}").into());
        row.comm_size = world_size.filter(|_| stream.is_none());
    }
}

/// The calls of each thread, in the groups in which NCCL gets them, by thread and time.
fn batches(events: &Events, calls: &[Call]) -> Vec<Batch> {
    let rows = if calls.is_empty() { FxHashMap::default() } else { rows_by_id(events) };
    let mut calls: Vec<(usize, &Call)> =
        calls.iter().filter_map(|call| rows.get(&call.id).map(|row| (*row, call))).collect();
    calls.sort_by_key(|(row, _)| (events.thread[*row], *row));
    let mut batches: Vec<Batch> = Vec::new();
    let (mut thread, mut depth, mut pending) = (NONE, 0_u32, Vec::new());
    for (row, call) in calls {
        if events.thread[row] != thread {
            (thread, depth) = (events.thread[row], 0);
            pending.clear();
        }
        let operation = match call.kind {
            CallKind::Operation(op) => Some((op, call.payload)),
            _ => None,
        };
        match call.kind {
            CallKind::GroupStart => depth = depth.saturating_add(1),
            // An end whose beginning was before the recording has an unknown number of calls.
            CallKind::GroupEnd => depth = depth.saturating_sub(1),
            CallKind::Operation(_) | CallKind::Other => {}
        }
        pending.extend(operation);
        if depth == 0 && (operation.is_some() || call.kind == CallKind::GroupEnd) {
            let calls = std::mem::take(&mut pending);
            let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
            batches.push(Batch { thread, start_ns, end_ns, calls, kernels: Vec::new() });
        }
    }
    batches
}

/// The batch around a launch.
fn batch_at<'a>(batches: &'a mut [Batch], events: &Events, launch: usize) -> Option<&'a mut Batch> {
    let (thread, ts_ns) = (events.thread[launch], events.ts_ns[launch]);
    let after = batches.partition_point(|batch| (batch.thread, batch.start_ns) <= (thread, ts_ns));
    let batch = batches.get_mut(after.checked_sub(1)?)?;
    (batch.thread == thread && ts_ns <= batch.end_ns).then_some(batch)
}

/// Collects the sizes of communicators from the calls that make them.
fn sizes(calls: &[Call]) -> Sizes {
    let mut sizes = Sizes::new();
    for Call { payload, .. } in calls {
        if let Some(comm) = payload.comm {
            let known = sizes.entry(comm).or_default();
            *known = (known.0.or(payload.ranks), known.1.or(payload.rank));
        }
    }
    sizes
}

/// Copies the communicator and the size of a batch's calls to its kernels. Returns the number of kernels whose communicator stays unknown although it was
/// recorded.
fn describe(batch: &Batch, sizes: &Sizes, rows: &mut [CollectiveRow]) -> i64 {
    let comms: BTreeSet<u64> = batch.calls.iter().filter_map(|(_, payload)| payload.comm).collect();
    let (Some(comm), 1) = (comms.first(), comms.len()) else {
        return if comms.is_empty() { 0 } else { batch.kernels.len() as i64 };
    };
    let (size, _) = sizes.get(comm).copied().unwrap_or_default();
    for at in &batch.kernels {
        let row = &mut rows[*at];
        (row.comm_id, row.comm_size) = (comm.cast_signed(), size);
        row.comm_name = Some(format!("{comm:#x}").into());
    }
    if let [only] = batch.kernels[..] {
        measure(&batch.calls, size, &mut rows[only]);
    }
    0
}

/// The size of a kernel that runs all calls of a batch, and what the operation is that sends and receives make.
fn measure(calls: &[(&'static str, Payload)], size: Option<i32>, row: &mut CollectiveRow) {
    let total = |wanted: &dyn Fn(&str) -> bool| {
        let mut bytes = calls.iter().filter(|(op, _)| wanted(op)).map(|(_, payload)| payload.bytes);
        bytes.try_fold(0_i64, |sum, bytes| sum.checked_add(bytes?))
    };
    let count = |wanted: &str| calls.iter().filter(|(op, _)| *op == wanted).count();
    let (sends, recvs) = (count("send"), count("recv"));
    let ranks = size.and_then(|size| usize::try_from(size).ok());
    match calls {
        [(op @ ("send" | "recv"), payload)] => {
            (row.op, row.peer, row.bytes) = ((*op).into(), payload.peer, payload.bytes);
        }
        _ if sends + recvs == calls.len() && sends == recvs && Some(sends) == ranks => {
            (row.op, row.bytes) = ("alltoall".into(), total(&|op| op == "send"));
        }
        _ if sends + recvs > 0 => {}
        _ => {
            // NCCL states the caller's part of an array that is gathered or scattered.
            let is_part = calls.iter().any(|(op, _)| matches!(*op, "allgather" | "reducescatter" | "alltoall"));
            let parts = if is_part { size.map(i64::from) } else { Some(1) };
            row.bytes = total(&|_| true).zip(parts).and_then(|(bytes, parts)| bytes.checked_mul(parts));
            row.root = calls.first().and_then(|(_, payload)| payload.root);
        }
    }
}

/// The communicators that the collectives name.
fn comms(rank: i32, rows: &[CollectiveRow], sizes: &Sizes) -> Vec<CommRow> {
    let used: BTreeSet<i64> = rows.iter().map(|row| row.comm_id).collect();
    let used = sizes.iter().filter(|(comm, _)| used.contains(&comm.cast_signed()));
    let comm = |(comm, (size, comm_rank)): (&u64, &(Option<i32>, Option<i32>))| CommRow {
        rank,
        comm_id: comm.cast_signed(),
        name: Some(format!("{comm:#x}").into()),
        origin: Some("stated".into()),
        size: *size,
        comm_rank: *comm_rank,
        ..CommRow::default()
    };
    used.map(comm).collect()
}
