//! Operations in flight, made of callbacks, until they end and become rows.

mod publish;
#[cfg(test)]
mod tests;
mod unreported;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use trace::Text;

use super::bounded_map::{BoundedMap, MAX_CLOSED};
use super::callbacks::{Callbacks, CommInfo};
use super::clock::GpuClock;
use super::kernel_pairs::{KernelPairs, Stamps};
use super::names;
use super::operation::{CallGroup, Channel, Launched, Operation, Proxy, Waits};
use super::record::{Api, COUNTS_ALL_WORK, Coll, Event, Launch, P2p, ProxyOp, Record, What, state};
use super::rows::{Rows, comm_id, proxy_row};
use super::string_table::StringId;
use crate::comm_kernels::CommKernel;

/// The most operations in flight. Beyond it, the oldest is given up.
const MAX_OPS: usize = 65_536;
/// Time in which NCCL may still report the end of an operation that began before a change of the event mask: NCCL goes on
/// reporting most of them.
const PATIENCE_NS: i64 = 10_000_000_000;
/// What the GPU's clock may be off beyond the stated error while its drift is not known yet: 100 ppm in two seconds.
const MAX_BEND_NS: i64 = 200_000;

/// Values of a call that its operation lacks.
#[derive(Clone, Copy, Debug)]
struct Call {
    at_ns: i64,
    comm: u64,
    step: i32,
    group: u64,
    api: Api,
    alone: bool,
    /// NCCL reported its operation.
    has_operation: bool,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    proxy: u64,
    state: i32,
    since_ns: i64,
}

/// Position of an event: its operation, and the index within it.
#[derive(Clone, Copy, Debug)]
struct Place {
    op: u64,
    index: usize,
}

/// Origin of an event: see [`What::Start`].
#[derive(Clone, Copy, Debug)]
struct Origin {
    comm: u64,
    parent: u64,
    step: i32,
    alone: bool,
}

/// A communicator in the worker.
#[derive(Debug, Default)]
struct Comm {
    info: CommInfo,
    clock: GpuClock,
    /// The last operation on each channel.
    last_on_channel: BTreeMap<u8, Last>,
    /// NCCL's counters of the device and of the host differ, so that stamps may be those of other operations.
    confuses_stamps: bool,
    /// Number of sends and receives so far, by peer and direction.
    p2p_seqs: FxHashMap<(i32, bool), i64>,
    /// Number of broadcasts so far. NCCL reported only their calls.
    broadcasts: i64,
    /// Whether its rows are written: that of its creation, that of its end.
    written: (bool, bool),
}

impl Comm {
    /// Takes the stamp of a start, which NCCL reported at `at_ns`. Returns `false` if it cannot be that of an operation that
    /// was launched at `launch_ns`.
    fn takes_start(&mut self, gpu_ns: u64, at_ns: i64, launch_ns: Option<i64>) -> bool {
        let Ok(gpu_ns) = i64::try_from(gpu_ns) else { return false };
        let starts_before = |launch_ns: i64| {
            let time = self.clock.host_time(gpu_ns).and_then(|time| time.ns.checked_add(time.error_ns?));
            time.is_some_and(|latest_ns| latest_ns.saturating_add(MAX_BEND_NS) < launch_ns)
        };
        if launch_ns.is_some_and(starts_before) || !self.clock.seen(gpu_ns, at_ns) {
            return false;
        }
        if let Some(launch_ns) = launch_ns {
            self.clock.launched(gpu_ns, launch_ns);
        }
        true
    }
}

/// The last operation on a channel: its end as a stamp of the GPU, its launch, its handle.
#[derive(Clone, Copy, Debug)]
struct Last {
    gpu_end_ns: u64,
    batch: Option<u64>,
    op: u64,
}

/// The operations in flight of one process.
#[derive(Debug)]
pub(super) struct InFlight {
    rank: i32,
    comms: BTreeMap<u64, Comm>,
    calls: BoundedMap<u64, Call>,
    /// Launches by the handle of their group. A launch arrives before its operations.
    launches: BoundedMap<u64, Launched>,
    /// The group of a launch.
    groups: BoundedMap<u64, u64>,
    ops: BTreeMap<u64, Operation>,
    /// Handles of the operations in order of arrival.
    order: VecDeque<u64>,
    channels: BoundedMap<u64, Place>,
    proxies: BoundedMap<u64, Place>,
    /// Proxy operations whose operation is unknown.
    strays: FxHashMap<u64, (i64, Proxy)>,
    steps: BoundedMap<u64, Step>,
    /// Groups of calls.
    call_groups: BoundedMap<u64, CallGroup>,
    kernel_pairs: KernelPairs,
    strings: FxHashMap<StringId, Text>,
    pub(super) rows: Rows,
    /// Number of operations given up because too many were in flight.
    pub(super) given_up: u64,
    /// Number of channels and proxy operations whose operation is unknown.
    pub(super) orphans: u64,
    /// Operations enqueued before this time may never get their stop event: NCCL's event mask changed.
    pub(super) mask_changed_ns: i64,
    /// Number of operations, and of proxy operations of unknown ones, that began before that time and did not end.
    pub(super) unknown_ends: u64,
    /// Number of sends to oneself, and of their receives.
    pub(super) self_sends: u64,
    /// Number of broadcasts for which NCCL reported only the call, when their group ended.
    pub(super) unreported_broadcasts: u64,
    /// Number of these broadcasts that NCCL reported later.
    pub(super) withdrawn_broadcasts: u64,
    /// The call of a broadcast was not recorded.
    missed_broadcasts: bool,
    /// Number of channels whose stamps contradict the bounds of the GPU's clock.
    pub(super) crossings: u64,
    /// Whether NCCL may still report the proxy's work of operations whose channels it does not report.
    pub(super) awaits_proxies: bool,
}

impl InFlight {
    pub(super) fn new(rank: i32) -> Self {
        Self {
            rank,
            comms: BTreeMap::new(),
            calls: BoundedMap::new(),
            launches: BoundedMap::new(),
            groups: BoundedMap::new(),
            ops: BTreeMap::new(),
            order: VecDeque::new(),
            channels: BoundedMap::new(),
            proxies: BoundedMap::new(),
            strays: FxHashMap::default(),
            steps: BoundedMap::new(),
            call_groups: BoundedMap::new(),
            kernel_pairs: KernelPairs::new(),
            strings: FxHashMap::default(),
            rows: Rows::default(),
            given_up: 0,
            orphans: 0,
            mask_changed_ns: i64::MIN,
            unknown_ends: 0,
            self_sends: 0,
            unreported_broadcasts: 0,
            withdrawn_broadcasts: 0,
            missed_broadcasts: false,
            crossings: 0,
            awaits_proxies: false,
        }
    }

    /// Adds new communicators and marks those that were finalized.
    pub(super) fn refresh_comms(&mut self, callbacks: &Callbacks) {
        let mut infos = callbacks.infos();
        for (handle, info) in infos.iter() {
            let comm = self.comms.entry(*handle).or_default();
            // Keep the values that operations of v3 have reported for their communicator.
            let (hash, ranks) = (comm.info.hash, comm.info.ranks);
            comm.info = info.clone();
            comm.info.hash = if info.hash == 0 { hash } else { info.hash };
            comm.info.ranks = info.ranks.or(ranks);
        }
        // A finalized communicator stays in `comms` until its last row.
        infos.retain(|_, info| info.destroyed_ns.is_none());
    }

    fn string(&mut self, callbacks: &Callbacks, word: StringId) -> Option<Text> {
        if word == 0 {
            return None;
        }
        if let Some(text) = self.strings.get(&word) {
            return Some(text.clone());
        }
        let text: Text = callbacks.strings.get(word)?.into();
        self.strings.insert(word, text.clone());
        Some(text)
    }

    /// Takes one callback.
    pub(super) fn take(&mut self, callbacks: &Callbacks, record: Record) {
        let Record { at_ns, handle, what } = record;
        self.missed_broadcasts |= callbacks.missed_broadcasts.load(Ordering::Relaxed);
        match what {
            What::Start { comm, parent, step, alone, event } => {
                if !self.comms.contains_key(&comm) {
                    // It was created after the last refresh.
                    self.refresh_comms(callbacks);
                }
                self.start(callbacks, handle, Origin { comm, parent, step, alone }, event, at_ns);
            }
            What::State { state, value } => self.state(handle, state, value, at_ns),
            What::Stop => {
                self.group_ended(callbacks, handle, at_ns);
                self.stop(handle, at_ns);
            }
        }
    }

    fn start(&mut self, callbacks: &Callbacks, handle: u64, origin: Origin, event: Event, at_ns: i64) {
        let Origin { comm, parent, step, .. } = origin;
        match event {
            Event::CollApi(api) | Event::P2pApi(api) => {
                let call = Call { at_ns, comm, step, group: parent, api, alone: origin.alone, has_operation: false };
                self.calls.insert(handle, call);
                if matches!(event, Event::CollApi(_)) {
                    self.call_of_broadcast(callbacks, handle, call);
                }
            }
            Event::GroupApi(Launch { row, thread_id }) => {
                let launch = Launched { at_ns, end_ns: None, row, thread_id, step };
                self.call_groups.insert(handle, CallGroup { launch, broadcasts: Vec::new() });
            }
            Event::KernelLaunch(Launch { row, thread_id }) | Event::Group(Launch { row, thread_id }) => {
                // Without a group the launch has no operations, but still gets a row.
                let group = if parent == 0 { handle } else { parent };
                self.launches.insert(group, Launched { at_ns, end_ns: None, row, thread_id, step });
                self.groups.insert(handle, group);
            }
            Event::Coll(coll) => self.begin_coll(callbacks, handle, origin, coll, at_ns),
            Event::CeColl(coll) => {
                self.begin_coll(callbacks, handle, origin, coll, at_ns);
                if let Some(op) = self.ops.get_mut(&handle) {
                    op.copy_engine = Some((at_ns, None));
                    op.only_enqueued = false;
                }
            }
            Event::P2p(p2p) => self.begin_p2p(callbacks, handle, origin, p2p, at_ns),
            Event::KernelCh { channel, gpu_ns } => self.begin_channel(comm, handle, parent, channel, gpu_ns, at_ns),
            Event::KernelPhase { channel, name, gpu_ns } => {
                let phase = self.string(callbacks, name);
                self.begin_phase(handle, parent, Some(i32::from(channel)), phase, gpu_ns, at_ns);
            }
            Event::CeSync => self.begin_phase(handle, parent, None, Some("ce_sync".into()), 0, at_ns),
            Event::CeBatch { bytes } => {
                self.begin_phase(handle, parent, None, Some("ce_batch".into()), 0, at_ns);
                self.change_channel(handle, |channel, _, _| channel.bytes = i64::try_from(bytes).ok());
            }
            Event::ProxyOp(op) => self.begin_proxy(comm, handle, parent, op, at_ns),
            Event::ProxyStep => {
                self.steps.open(handle, Step { proxy: parent, state: 0, since_ns: at_ns });
                self.proxy(parent, |proxy| proxy.steps_seen += 1);
            }
            Event::Other => {}
        }
    }

    /// An operation with the values that all operations have.
    fn new_operation(
        &mut self,
        callbacks: &Callbacks,
        origin: Origin,
        func: StringId,
        at_ns: i64,
        hash: u64,
    ) -> Operation {
        let Origin { comm, parent, step, alone } = origin;
        let func = self.string(callbacks, func);
        let call = self.calls.get(parent).copied();
        let launched = call.filter(|call| !call.api.captured);
        let info = &mut self.comms.entry(comm).or_default().info;
        if info.hash == 0 {
            info.hash = hash;
        }
        // Before version 5 NCCL reports no call; the parent is the group of the launch, which begins after the launch.
        let group = (info.version < 5 && parent != 0).then_some(parent);
        let launch_of = |group: u64| self.launches.get(group).copied();
        let launch = launched.map(|call| call.group).filter(|group| *group != 0).or(group).and_then(launch_of);
        let launch_ns = launched.map(|call| launch.map_or(call.at_ns, |launch| launch.at_ns));
        Operation {
            comm,
            comm_id: comm_id(info.hash),
            comm_name: info.name.as_deref().map(Into::into),
            comm_size: info.ranks,
            seq: None,
            op: func.map_or_else(|| "unknown".into(), |func| names::operation(&func).into()),
            dtype: None,
            count: None,
            bytes: None,
            root: None,
            peer: None,
            n_channels: 0,
            algo: None,
            proto: None,
            step,
            // A captured call was made long before this replay.
            enqueue_ns: launched.map_or(at_ns, |call| call.at_ns),
            launch_ns,
            launch_row: launch.map(|launch| launch.row).filter(|row| *row != 0),
            channels: Vec::new(),
            proxies: Vec::new(),
            copy_engine: None,
            // For a graph, the mask at its capture counts, too.
            only_enqueued: alone || call.is_some_and(|call| call.api.captured && call.alone),
            batch: launch.map(|launch| launch.row as u64).filter(|row| *row != 0).or(group),
            fused: false,
            last_ns: at_ns,
            reported: None,
        }
    }

    /// Sets element count, type and bytes, from the call if it is known, because NCCL converts some operations to bytes.
    fn measure(&mut self, callbacks: &Callbacks, op: &mut Operation, parent: u64, count: u64, datatype: StringId) {
        let call = self.calls.get(parent).copied();
        let (count, datatype) = call.map_or((count, datatype), |call| (call.api.count, call.api.datatype));
        let datatype = self.string(callbacks, datatype);
        let pieces = names::pieces(&op.op, op.comm_size);
        op.count = i64::try_from(count).ok().zip(pieces).and_then(|(count, pieces)| count.checked_mul(pieces));
        let element = datatype.as_deref().and_then(names::element_bytes);
        op.bytes = op.count.zip(element).and_then(|(count, bytes)| count.checked_mul(bytes));
        op.dtype = datatype.map(|name| names::datatype(&name).into());
    }

    fn begin_coll(&mut self, callbacks: &Callbacks, handle: u64, origin: Origin, coll: Coll, at_ns: i64) {
        self.has_operation(origin.parent);
        let mut op = self.new_operation(callbacks, origin, coll.func, at_ns, coll.comm_hash);
        self.measure(callbacks, &mut op, origin.parent, coll.count, coll.datatype);
        op.seq = Some(coll.seq as i64);
        op.root = matches!(&*op.op, "broadcast" | "reduce" | "gather" | "scatter").then_some(coll.root);
        op.n_channels = coll.channels;
        op.algo = self.string(callbacks, coll.algo);
        op.proto = self.string(callbacks, coll.proto);
        self.insert(handle, op);
    }

    fn begin_p2p(&mut self, callbacks: &Callbacks, handle: u64, origin: Origin, p2p: P2p, at_ns: i64) {
        let mut op = self.new_operation(callbacks, origin, p2p.func, at_ns, p2p.comm_hash);
        self.measure(callbacks, &mut op, origin.parent, p2p.count, p2p.datatype);
        let sends = &*op.op == "send";
        let comm = self.comms.entry(origin.comm).or_default();
        // After a missed send or receive, the numbers of the two peers would no longer belong to the same operation.
        let to_itself = comm.info.rank == Some(p2p.peer);
        if to_itself {
            // The device counts this work, but the host before NCCL 2.31 does not (enqueue.cc: `selfSend ? 0 : 2`).
            self.self_sends += 1;
            comm.confuses_stamps |= comm.info.version < COUNTS_ALL_WORK;
            op.only_enqueued = true;
        }
        let is_counted = comm.info.created_ns > self.mask_changed_ns && !callbacks.missed_p2p.load(Ordering::Relaxed);
        let seq = comm.p2p_seqs.entry((p2p.peer, sends)).or_default();
        op.seq = is_counted.then_some(*seq);
        *seq += 1;
        op.peer = Some(p2p.peer);
        op.n_channels = p2p.channels;
        self.insert(handle, op);
    }

    fn insert(&mut self, handle: u64, op: Operation) {
        if self.ops.len() >= MAX_OPS
            && let Some(oldest) = self.order.pop_front()
            && self.ops.remove(&oldest).is_some()
        {
            self.given_up += 1;
        }
        self.ops.insert(handle, op);
        self.order.push_back(handle);
    }

    fn begin_channel(&mut self, comm: u64, handle: u64, parent: u64, channel: u8, gpu_ns: u64, at_ns: i64) {
        let Some(op) = self.ops.get_mut(&parent) else {
            self.orphans += 1;
            return;
        };
        let comm = self.comms.entry(comm).or_default();
        // Sends and receives of one group overlap on a channel. Of collectives only those of one launch do, which the
        // device stamps together (device/common.h: `profiler`).
        let before = comm.last_on_channel.get(&channel).filter(|last| op.peer.is_none() && gpu_ns < last.gpu_end_ns);
        let fused_with = before.filter(|last| last.batch.is_some() && last.batch == op.batch).map(|last| last.op);
        let overlaps = before.is_some() && fused_with.is_none();
        let suspect =
            gpu_ns != 0 && (comm.confuses_stamps || overlaps || !comm.takes_start(gpu_ns, at_ns, op.launch_ns));
        op.last_ns = at_ns;
        op.fused |= fused_with.is_some();
        op.channels.push(Channel {
            channel: Some(i32::from(channel)),
            phase: None,
            gpu_start_ns: gpu_ns,
            gpu_end_ns: 0,
            seen_start_ns: at_ns,
            seen_end_ns: None,
            bytes: None,
            suspect,
        });
        self.channels.open(handle, Place { op: parent, index: op.channels.len() - 1 });
        if let Some(first) = fused_with.and_then(|first| self.ops.get_mut(&first)) {
            first.fused = true;
        }
    }

    /// Begins a phase, whose parent is a channel, or a copy engine's part, whose parent is an operation.
    fn begin_phase(
        &mut self,
        handle: u64,
        parent: u64,
        channel: Option<i32>,
        phase: Option<Text>,
        gpu_start_ns: u64,
        at_ns: i64,
    ) {
        let op = self.channels.get(parent).map_or(parent, |place| place.op);
        let Some(found) = self.ops.get_mut(&op) else {
            self.orphans += 1;
            return;
        };
        found.last_ns = at_ns;
        found.channels.push(Channel {
            channel,
            phase: Some(phase.unwrap_or_else(|| "unknown".into())),
            gpu_start_ns,
            gpu_end_ns: 0,
            seen_start_ns: at_ns,
            seen_end_ns: None,
            bytes: None,
            suspect: false,
        });
        self.channels.open(handle, Place { op, index: found.channels.len() - 1 });
    }

    fn begin_proxy(&mut self, comm: u64, handle: u64, parent: u64, op: ProxyOp, at_ns: i64) {
        let waits = Waits::default();
        let proxy = Proxy { op, start_ns: at_ns, end_ns: None, steps_seen: 0, bytes: 0, waits };
        match self.ops.get_mut(&parent) {
            Some(op) => {
                op.last_ns = at_ns;
                op.proxies.push(proxy);
                self.proxies.open(handle, Place { op: parent, index: op.proxies.len() - 1 });
            }
            None if self.strays.len() < MAX_CLOSED => {
                let id = comm_id(self.comms.entry(comm).or_default().info.hash);
                self.strays.insert(handle, (id, proxy));
            }
            None => self.orphans += 1,
        }
    }

    /// Changes a channel. Returns whether it is known.
    fn change_channel(&mut self, handle: u64, change: impl FnOnce(&mut Channel, &mut Comm, Last)) -> bool {
        let Some(place) = self.channels.get(handle).copied() else { return false };
        let Some(op) = self.ops.get_mut(&place.op) else { return false };
        let comm = self.comms.entry(op.comm).or_default();
        let last = Last { gpu_end_ns: 0, batch: op.batch, op: place.op };
        let Some(channel) = op.channels.get_mut(place.index) else { return false };
        change(channel, comm, last);
        true
    }

    fn proxy(&mut self, handle: u64, change: impl FnOnce(&mut Proxy)) -> bool {
        let found = match self.proxies.get(handle).copied() {
            Some(place) => self.ops.get_mut(&place.op).and_then(|op| op.proxies.get_mut(place.index)),
            None => self.strays.get_mut(&handle).map(|(_, proxy)| proxy),
        };
        found.map(change).is_some()
    }

    fn state(&mut self, handle: u64, new_state: i32, value: u64, at_ns: i64) {
        if matches!(new_state, state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP) {
            self.change_channel(handle, |channel, comm, last| {
                channel.gpu_end_ns = value;
                channel.suspect |= value != 0 && comm.confuses_stamps;
                let number = channel.channel.and_then(|channel| u8::try_from(channel).ok());
                if value == 0 || value < channel.gpu_start_ns {
                    channel.suspect |= value != 0;
                } else if !comm.clock.seen(i64::try_from(value).unwrap_or(-1), at_ns) {
                    channel.suspect = true;
                } else if let Some(number) = number.filter(|_| channel.phase.is_none()) {
                    comm.last_on_channel.insert(number, Last { gpu_end_ns: value, ..last });
                }
            });
            return;
        }
        if let Some(step) = self.steps.get_mut(handle) {
            let before = *step;
            *step = Step { state: new_state, since_ns: at_ns, ..before };
            self.proxy(before.proxy, |proxy| {
                proxy.waits.add(before.state, at_ns - before.since_ns);
                if matches!(new_state, state::SEND_WAIT | state::RECV_FLUSH_WAIT) {
                    proxy.bytes = proxy.bytes.saturating_add(i64::try_from(value).unwrap_or(0));
                }
            });
        } else if new_state == state::PROXY_OP_IN_PROGRESS {
            // Until now it waited in the proxy's queue.
            self.proxy(handle, |proxy| proxy.start_ns = at_ns);
        }
    }

    fn stop(&mut self, handle: u64, at_ns: i64) {
        if let Some(group) = self.groups.get(handle).copied() {
            if let Some(launch) = self.launches.get_mut(group).filter(|launch| launch.end_ns.is_none()) {
                launch.end_ns = Some(at_ns);
                self.rows.launches.extend((launch.row != 0).then_some(*launch));
            }
        } else if let Some(step) = self.steps.get(handle).copied() {
            self.proxy(step.proxy, |proxy| proxy.waits.add(step.state, at_ns - step.since_ns));
        } else if self.change_channel(handle, |channel, _, _| channel.seen_end_ns = Some(at_ns)) {
            self.channel_ended(handle, at_ns);
        } else if let Some((comm, mut proxy)) = self.strays.remove(&handle) {
            proxy.end_ns = Some(at_ns);
            self.rows.proxies.push(proxy_row(self.rank, comm, None, &proxy));
        } else if self.proxy(handle, |proxy| proxy.end_ns = Some(at_ns)) {
            if let Some(place) = self.proxies.get(handle).copied()
                && let Some(op) = self.ops.get_mut(&place.op)
            {
                op.last_ns = at_ns;
            }
        } else if let Some(op) = self.ops.get_mut(&handle)
            && let Some((_, end_ns)) = &mut op.copy_engine
        {
            *end_ns = Some(at_ns);
        }
        // The stop event of an operation, call or launch only means that it was enqueued.
        self.channels.close(handle);
        self.proxies.close(handle);
        self.steps.close(handle);
    }

    /// Whether a channel or proxy operation runs whose end NCCL is about to report.
    pub(super) fn is_ending(&self) -> bool {
        self.ops.values().any(Operation::is_open)
    }

    fn channel_ended(&mut self, handle: u64, at_ns: i64) {
        let Some(place) = self.channels.get(handle).copied() else { return };
        let Some(op) = self.ops.get_mut(&place.op) else { return };
        op.last_ns = at_ns;
        let Some((launch, channel)) = op.launch_row.zip(op.channels.get(place.index)) else { return };
        let stamps = (i64::try_from(channel.gpu_start_ns), i64::try_from(channel.gpu_end_ns));
        if let (Ok(start_ns @ 1..), Ok(end_ns @ 1..)) = stamps
            && !channel.suspect
            && channel.phase.is_none()
        {
            let stamps = Stamps { comm: op.comm, start_ns, end_ns };
            let kernel = self.kernel_pairs.channel(launch, stamps);
            self.bound(kernel, Some(stamps));
        }
    }

    /// Takes a kernel that CUPTI timed.
    pub(super) fn kernel(&mut self, kernel: CommKernel) {
        let stamps = self.kernel_pairs.kernel(kernel);
        self.bound(Some(kernel), stamps);
    }

    fn bound(&mut self, kernel: Option<CommKernel>, stamps: Option<Stamps>) {
        let Some((kernel, stamps)) = kernel.zip(stamps) else { return };
        if let Some(comm) = self.comms.get_mut(&stamps.comm) {
            comm.clock.inside((stamps.start_ns, stamps.end_ns), (kernel.start_ns, kernel.end_ns));
        }
    }
}
