//! A process as a rank.

use trace::name_rules::roles::roles_in;
use trace::{CollectiveRow, CommRow, OmissionRow, TimingSource};

use crate::inspector::objects::{Object, Operation, Times};
use crate::inspector::processes::{Comm, Process, comm_id, damaged};
use crate::inspector::read::read;
use model::Error;
use model::{Collective, CollectiveShape, CollectiveShapes, RankData, RankInfo};

/// Memory of a row that shares its shape with no other.
const ROW_BYTES: u64 = (size_of::<Collective>() + size_of::<CollectiveShape>()) as u64;

/// Loads a process, whose rows may take `max_memory_bytes`.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn load(process: &Process, world_size: Option<i32>, max_memory_bytes: u64) -> Result<RankData, Error> {
    let mut rows: Vec<Collective> = Vec::new();
    let mut shapes = CollectiveShapes::default();
    let (mut untimed, mut unknown, mut beyond) = (0, 0, 0);
    let most = usize::try_from(max_memory_bytes / ROW_BYTES).unwrap_or(usize::MAX);
    let result = read(&process.file, |object| {
        if process.has(&object) {
            match row(process, &object) {
                None => unknown += 1,
                Some(_) if rows.len() >= most => beyond += 1,
                Some(row) => {
                    untimed += i64::from(row.start_ns.is_none());
                    rows.push(shapes.collective(row));
                }
            }
        }
        true
    });
    let damage = result.map_err(|source| Error::Io { path: process.file.clone(), source })?;
    rows.sort_by_key(Collective::order);
    let mut data = RankData::default();
    let file = trace::Text::from(process.file.to_string_lossy());
    let mut list = |omission: OmissionRow, amount: i64| {
        if amount > 0 {
            data.omissions.push(omission.rank(process.rank).file(file.clone()).amount(amount));
        }
    };
    let why = "the dump says only how long they took; record with NCCL_INSPECTOR_DUMP_VERBOSE=1";
    list(OmissionRow::left_out("times of collectives", why), untimed);
    list(OmissionRow::left_out("operations", "the name is no operation that is known"), unknown);
    let why = "their rows take more memory than the rank may have; give more with --max-memory";
    list(OmissionRow::lost("operations", why), beyond);
    // The file has changed since, or reading it failed only this time.
    if damage != process.damage {
        let of_rank = |omission: OmissionRow| omission.rank(process.rank).file(file.clone());
        data.omissions.extend(damaged(&damage).into_iter().map(of_rank));
    }
    data.outline.info = RankInfo {
        rank: process.rank,
        world_size,
        host: process.host.to_string(),
        pid: process.pid,
        clock_domain: format!("{}/utc", process.host),
        closed_cleanly: None,
        roles: roles_in(&file).map(trace::Text::from),
        file: file.clone(),
    };
    data.outline.comms = process.comms.iter().map(|(id, comm)| comm_row(process.rank, *id, comm)).collect();
    data.outline.collectives = rows;
    Ok(data)
}

fn comm_row(rank: i32, id: u64, comm: &Comm) -> CommRow {
    CommRow {
        rank,
        comm_id: id.cast_signed(),
        name: Some(name(id, comm)),
        origin: Some("stated".into()),
        size: Some(comm.size),
        comm_rank: Some(comm.rank),
        ..CommRow::default()
    }
}

fn name(id: u64, comm: &Comm) -> trace::Text {
    comm.name.clone().unwrap_or_else(|| format!("{id:#x}").into())
}

/// The row of an operation; `None` if its communicator or its name is unknown.
fn row(process: &Process, object: &Object<'_>) -> Option<CollectiveRow> {
    let id = comm_id(&object.header.id)?;
    let comm = process.comms.get(&id)?;
    let operation = object.coll_perf;
    // The plugin's word for one that it does not know.
    let known = |name: &Option<std::borrow::Cow<'_, str>>| {
        name.as_deref().filter(|name| *name != "unknown").map(|name| trace::shortened(name).into())
    };
    let op = kineto::operation(&format!("nccl{}", operation.coll))?;
    let (enqueue_ns, times) = times(operation.event_trace_ts.as_ref());
    let timing = if times.is_some() { TimingSource::Proxy } else { TimingSource::Enqueue };
    Some(CollectiveRow {
        rank: process.rank,
        comm_id: id.cast_signed(),
        comm_name: Some(name(id, comm)),
        comm_size: Some(comm.size),
        // Sends and receives are numbered by each rank for itself.
        seq: Some(operation.coll_sn).filter(|_| operation.p2p_peer.is_none()),
        op: op.into(),
        bytes: bytes(op, operation, comm.size),
        peer: operation.p2p_peer,
        algo: known(&operation.coll_algo),
        proto: known(&operation.coll_proto),
        enqueue_ns,
        start_ns: times.map(|(start_ns, _)| start_ns),
        end_ns: times.map(|(_, end_ns)| end_ns),
        state: "done".into(),
        timing_source: timing.as_str().into(),
        ..CollectiveRow::default()
    })
}

/// The size of the whole array. The plugin states the part of a rank where an array is gathered or scattered, as its bandwidths show
/// (`inspector.cc`); of the operations that it knows no bandwidth of, it is unknown what it states.
fn bytes(op: &str, operation: &Operation<'_>, size: i32) -> Option<i64> {
    let bytes = operation.coll_msg_size_bytes.filter(|bytes| *bytes >= 0)?;
    match op {
        "allgather" | "reducescatter" => bytes.checked_mul(i64::from(size)),
        "allreduce" | "broadcast" | "reduce" | "send" | "recv" => Some(bytes),
        _ => None,
    }
}

/// The time of the call, and the times at which the kernel began and ended, in ns.
fn times(times: Option<&Times>) -> (Option<i64>, Option<(i64, i64)>) {
    let Some(times) = times else { return (None, None) };
    let ns = |us: i64| us.checked_mul(1_000).filter(|ns| *ns > 0);
    let starts = times.kernel_events.iter().map(|channel| ns(channel.kernel_start_ts));
    let ends = times.kernel_events.iter().map(|channel| ns(channel.kernel_stop_ts));
    let start_ns = starts.collect::<Option<Vec<i64>>>().and_then(|starts| starts.into_iter().min());
    let end_ns = ends.collect::<Option<Vec<i64>>>().and_then(|ends| ends.into_iter().max());
    (ns(times.coll_start_ts), start_ns.zip(end_ns).filter(|(start_ns, end_ns)| start_ns <= end_ns))
}
