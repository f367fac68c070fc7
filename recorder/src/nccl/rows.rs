//! Operations as rows.

use trace::{CollectiveRow, CommRow, NcclChannelRow, NcclProxyRow, Text};

use super::clock::{GpuClock, HostTime};
use super::core::CommInfo;
use super::model::Launched;
use super::op::{Channel, Op, Proxy};
use crate::device::DeviceEvent;
use crate::{CollectiveState, Kind, NameId, TimingSource};

/// Rows that wait to be handed to the recorder.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) collectives: Vec<CollectiveRow>,
    pub(super) channels: Vec<NcclChannelRow>,
    pub(super) proxies: Vec<NcclProxyRow>,
    pub(super) comms: Vec<CommRow>,
    /// Launches that are over.
    pub(super) launches: Vec<Launched>,
}

/// A launch as a row of the thread that made it; `name` is what all are called. Its kernel carries the row's id.
pub(super) fn launch_event(launch: &Launched, name: NameId) -> DeviceEvent {
    let end_ns = launch.end_ns.unwrap_or(launch.at_ns);
    let event = DeviceEvent::new(launch.row, Kind::CpuOp, name, launch.at_ns, end_ns);
    DeviceEvent { step: launch.step, thread_id: launch.thread_id, external_id: launch.row, is_comm: true, ..event }
}

/// A 64-bit hash by its bits.
pub(super) fn comm_id(hash: u64) -> i64 {
    hash as i64
}

/// The row of a communicator.
pub(super) fn comm_row(rank: i32, info: &CommInfo) -> CommRow {
    CommRow {
        rank,
        comm_id: comm_id(info.hash),
        name: info.name.as_deref().map(Into::into),
        size: info.ranks,
        ranks: None,
        comm_rank: info.rank,
        nodes: info.nodes,
        created_ns: Some(info.created_ns),
        destroyed_ns: info.destroyed_ns,
    }
}

/// When an operation ran, as well as is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) start_ns: Option<i64>,
    pub(super) end_ns: Option<i64>,
    pub(super) source: TimingSource,
}

/// The GPU's stamp in the host's clock, if it can be true.
fn on_host(clock: &GpuClock, gpu_ns: u64, channel: &Channel) -> Option<HostTime> {
    let gpu_ns = i64::try_from(gpu_ns).ok().filter(|ns| *ns > 0 && !channel.suspect)?;
    clock.host_time(gpu_ns)
}

/// From the first channel's start to the last one's end. The GPU's stamps count if every channel that has ended has
/// them; else when NCCL noticed; else what the proxy did; else only the hand-over is known.
pub(super) fn span(op: &Op, clock: &GpuClock) -> Span {
    let channels = || op.channels.iter().filter(|channel| channel.phase.is_none());
    let ended = channels().count() > 0 && channels().all(|channel| channel.seen_end_ns.is_some());
    let gpu_starts: Vec<i64> = channels().filter_map(|c| Some(on_host(clock, c.gpu_start_ns, c)?.ns)).collect();
    let gpu_ends: Vec<i64> = channels().filter_map(|c| Some(on_host(clock, c.gpu_end_ns, c)?.ns)).collect();
    let good = channels().filter(|channel| !channel.suspect).count();
    if good > 0 && gpu_starts.len() == good && (!ended || gpu_ends.len() == good) {
        let end_ns = gpu_ends.iter().max().copied().filter(|_| ended);
        return Span { start_ns: gpu_starts.iter().min().copied(), end_ns, source: TimingSource::GpuTimer };
    }
    if channels().count() > 0 {
        return Span {
            start_ns: channels().map(|channel| channel.seen_start_ns).min(),
            end_ns: channels().filter_map(|channel| channel.seen_end_ns).max().filter(|_| ended),
            source: TimingSource::Host,
        };
    }
    if let Some(start_ns) = op.proxies.iter().map(|proxy| proxy.start_ns).min() {
        let ended = op.proxies.iter().all(|proxy| proxy.end_ns.is_some());
        let end_ns = op.proxies.iter().filter_map(|proxy| proxy.end_ns).max().filter(|_| ended);
        return Span { start_ns: Some(start_ns), end_ns, source: TimingSource::Proxy };
    }
    match op.copy_engine {
        Some((start_ns, end_ns)) => Span { start_ns: Some(start_ns), end_ns, source: TimingSource::Host },
        None => Span { start_ns: None, end_ns: None, source: TimingSource::Enqueue },
    }
}

/// The row of an operation in `state`.
pub(super) fn collective_row(rank: i32, op: &Op, clock: &GpuClock, state: CollectiveState) -> CollectiveRow {
    let span = span(op, clock);
    CollectiveRow {
        rank,
        comm_id: op.comm_id,
        comm_name: op.comm_name.clone(),
        comm_size: op.comm_size,
        seq: op.seq,
        op: op.op.clone(),
        dtype: op.dtype.clone(),
        count: op.count,
        bytes: op.bytes,
        root: op.root,
        peer: op.peer,
        step: Some(op.step),
        enqueue_ns: Some(op.enqueue_ns),
        start_ns: span.start_ns.filter(|_| state != CollectiveState::Enqueued),
        end_ns: span.end_ns.filter(|_| state == CollectiveState::Done),
        state: state.as_str().into(),
        algo: op.algo.clone(),
        proto: op.proto.clone(),
        channels: (op.n_channels > 0).then_some(i32::from(op.n_channels)),
        timing_source: span.source.as_str().into(),
        event_id: op.launch_row,
        ..CollectiveRow::default()
    }
}

/// The rows of an operation's channels and phases.
pub(super) fn channel_rows(rank: i32, op: &Op, clock: &GpuClock) -> Vec<NcclChannelRow> {
    let stamp = |gpu_ns: u64| (gpu_ns > 0).then_some(gpu_ns as i64);
    let row = |channel: &Channel| {
        let start = on_host(clock, channel.gpu_start_ns, channel);
        let end = on_host(clock, channel.gpu_end_ns, channel);
        let error = |time: Option<HostTime>| time.and_then(|time| time.error_ns);
        NcclChannelRow {
            rank,
            comm_id: op.comm_id,
            seq: op.seq,
            op: op.op.clone(),
            peer: op.peer,
            channel: channel.channel,
            phase: channel.phase.clone(),
            gpu_start_ns: stamp(channel.gpu_start_ns),
            gpu_end_ns: stamp(channel.gpu_end_ns),
            start_ns: start.map(|time| time.ns),
            end_ns: end.map(|time| time.ns),
            clock_error_ns: error(start).max(error(end)),
            seen_start_ns: channel.seen_start_ns,
            seen_end_ns: channel.seen_end_ns,
            bytes: channel.bytes,
            suspect: channel.suspect,
        }
    };
    op.channels.iter().map(row).collect()
}

/// The row of a proxy operation; `op`: whose it is, where known.
pub(super) fn proxy_row(rank: i32, comm: i64, op: Option<(Option<i64>, &Text)>, proxy: &Proxy) -> NcclProxyRow {
    NcclProxyRow {
        rank,
        comm_id: comm,
        seq: op.and_then(|(seq, _)| seq),
        op: op.map(|(_, op)| op.clone()),
        channel: i32::from(proxy.told.channel),
        peer: proxy.told.peer,
        is_send: proxy.told.is_send,
        pid: i64::from(proxy.told.pid),
        steps: proxy.told.steps,
        steps_seen: proxy.steps_seen,
        chunk_bytes: i64::from(proxy.told.chunk_bytes),
        bytes: (proxy.bytes > 0).then_some(proxy.bytes),
        start_ns: proxy.start_ns,
        end_ns: proxy.end_ns,
        gpu_wait_ns: proxy.waits.gpu_ns,
        peer_wait_ns: proxy.waits.peer_ns,
        net_wait_ns: proxy.waits.net_ns,
        flush_wait_ns: proxy.waits.flush_ns,
    }
}
