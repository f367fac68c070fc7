//! Operations as rows.

use recorder::{CollectiveState, Kind, NameId, SourceEvent, TimingSource};
use trace::{CollectiveRow, CommOrigin, CommRow, NcclChannelRow, NcclProxyRow, Text};

use super::callbacks::CommInfo;
use super::clock::{GpuClock, HostTime};
use super::operation::{Channel, Launched, Operation, Proxy};

/// Rows that wait to be handed to the recorder.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) collectives: Vec<CollectiveRow>,
    pub(super) channels: Vec<NcclChannelRow>,
    pub(super) proxies: Vec<NcclProxyRow>,
    pub(super) comms: Vec<CommRow>,
    /// Launches that have ended.
    pub(super) launches: Vec<Launched>,
}

/// A launch as a row of the launching thread. Its kernel carries the row's id.
pub(super) fn launch_event(launch: &Launched, name: NameId) -> SourceEvent {
    let end_ns = launch.end_ns.unwrap_or(launch.at_ns);
    let event = SourceEvent::new(launch.row, Kind::CpuOp, name, launch.at_ns, end_ns);
    SourceEvent { step: launch.step, thread_id: launch.thread_id, external_id: launch.row, is_comm: true, ..event }
}

/// A 64-bit hash with its bits unchanged.
pub(super) fn comm_id(hash: u64) -> i64 {
    hash as i64
}

/// The row of a communicator.
pub(super) fn comm_row(rank: i32, info: &CommInfo) -> CommRow {
    CommRow {
        rank,
        comm_id: comm_id(info.hash),
        name: info.name.as_deref().map(Into::into),
        description: None,
        origin: Some(CommOrigin::Stated.into()),
        size: info.ranks,
        ranks: None,
        comm_rank: info.rank,
        nodes: info.nodes,
        created_ns: Some(info.created_ns),
        destroyed_ns: info.destroyed_ns,
    }
}

/// Start and end of an operation, from the best source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) start_ns: Option<i64>,
    pub(super) end_ns: Option<i64>,
    pub(super) source: TimingSource,
}

/// A GPU stamp in the host's clock; `None` for an invalid stamp.
fn on_host(clock: &GpuClock, gpu_ns: u64, channel: &Channel) -> Option<HostTime> {
    let gpu_ns = i64::try_from(gpu_ns).ok().filter(|ns| *ns > 0 && !channel.suspect)?;
    clock.host_time(gpu_ns)
}

/// From the start of the first channel to the end of the last one. It uses the GPU's stamps if all channels have them;
/// otherwise the times of NCCL's callbacks, unless a stamp is suspect: NCCL then reported it at a wrong time, too;
/// otherwise the times of the proxy; otherwise only the time of the call is known.
pub(super) fn span(op: &Operation, clock: &GpuClock) -> Span {
    let channels = || op.channels.iter().filter(|channel| channel.phase.is_none());
    let ended = channels().count() > 0 && channels().all(|channel| channel.seen_end_ns.is_some());
    let gpu_starts: Vec<i64> = channels().filter_map(|c| Some(on_host(clock, c.gpu_start_ns, c)?.ns)).collect();
    let gpu_ends: Vec<i64> = channels().filter_map(|c| Some(on_host(clock, c.gpu_end_ns, c)?.ns)).collect();
    let good = channels().filter(|channel| !channel.suspect).count();
    if good > 0 && gpu_starts.len() == good && (!ended || gpu_ends.len() == good) {
        let end_ns = gpu_ends.iter().max().copied().filter(|_| ended);
        return Span { start_ns: gpu_starts.iter().min().copied(), end_ns, source: TimingSource::GpuTimer };
    }
    if channels().count() > 0 && !op.is_suspect() {
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
pub(super) fn collective_row(rank: i32, op: &Operation, clock: &GpuClock, state: CollectiveState) -> CollectiveRow {
    let span = span(op, clock);
    CollectiveRow {
        rank,
        comm_id: op.comm_id,
        comm_name: op.comm_name.clone(),
        comm_size: op.comm_size,
        seq: op.seq,
        op: op.op.clone().into(),
        dtype: op.dtype.clone().map(Into::into),
        count: op.count,
        bytes: op.bytes,
        root: op.root,
        peer: op.peer,
        step: Some(op.step),
        enqueue_ns: Some(op.enqueue_ns),
        start_ns: span.start_ns.filter(|_| state != CollectiveState::Enqueued),
        end_ns: span.end_ns.filter(|_| state == CollectiveState::Done),
        state: state.into(),
        algo: op.algo.clone(),
        proto: op.proto.clone(),
        channels: (op.n_channels > 0).then_some(i32::from(op.n_channels)),
        timing_source: span.source.into(),
        event_id: op.launch_row,
        fused: Some(op.fused),
        ..CollectiveRow::default()
    }
}

/// The number of an operation's channels whose times contradict the bounds of the GPU's clock.
pub(super) fn crossings(op: &Operation, clock: &GpuClock) -> u64 {
    let crosses = |c: &&Channel| on_host(clock, c.gpu_start_ns, c).is_some_and(|time| time.is_contradicted);
    op.channels.iter().filter(crosses).count() as u64
}

/// The rows of an operation's channels and phases.
pub(super) fn channel_rows(rank: i32, op: &Operation, clock: &GpuClock) -> Vec<NcclChannelRow> {
    let stamp = |gpu_ns: u64| (gpu_ns > 0).then_some(gpu_ns as i64);
    // The stamps of a phase are as good as those of its channel.
    let suspects: Vec<Option<i32>> =
        op.channels.iter().filter(|c| c.suspect && c.phase.is_none()).map(|c| c.channel).collect();
    let row = |channel: &Channel| {
        let channel = &Channel { suspect: channel.suspect || suspects.contains(&channel.channel), ..channel.clone() };
        let start = on_host(clock, channel.gpu_start_ns, channel);
        let end = on_host(clock, channel.gpu_end_ns, channel);
        let error = |time: Option<HostTime>| time.and_then(|time| time.error_ns);
        NcclChannelRow {
            rank,
            comm_id: op.comm_id,
            seq: op.seq,
            op: op.op.clone().into(),
            peer: op.peer,
            channel: channel.channel,
            phase: channel.phase.clone().map(Into::into),
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

/// The row of a proxy operation; `op` is the sequence number and name of its operation, if known.
pub(super) fn proxy_row(rank: i32, comm: i64, op: Option<(Option<i64>, &Text)>, proxy: &Proxy) -> NcclProxyRow {
    NcclProxyRow {
        rank,
        comm_id: comm,
        seq: op.and_then(|(seq, _)| seq),
        op: op.map(|(_, op)| op.clone().into()),
        channel: i32::from(proxy.op.channel),
        peer: proxy.op.peer,
        is_send: proxy.op.is_send,
        pid: i64::from(proxy.op.pid),
        steps: proxy.op.steps,
        steps_seen: proxy.steps_seen,
        chunk_bytes: i64::from(proxy.op.chunk_bytes),
        bytes: (proxy.bytes > 0).then_some(proxy.bytes),
        start_ns: proxy.start_ns,
        end_ns: proxy.end_ns,
        gpu_wait_ns: proxy.waits.gpu_ns,
        peer_wait_ns: proxy.waits.peer_ns,
        net_wait_ns: proxy.waits.net_ns,
        flush_wait_ns: proxy.waits.flush_ns,
    }
}
