//! From callbacks to operations: what is in flight, and when it is over.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use trace::Text;

use super::clock::GpuClock;
use super::core::{CommInfo, Core};
use super::fit::{Fit, Stamps};
use super::names;
use super::op::{Channel, Op, Proxy, Waits};
use super::recent::{MAX_REMEMBERED, Recent};
use super::record::{Coll, Event, Launch, P2p, ProxyOp, Record, What, state};
use super::rows::{Rows, channel_rows, collective_row, comm_id, comm_row, proxy_row};
use super::words::Word;
use crate::CollectiveState;
use crate::device::CommKernel;

/// Operations in flight that are remembered; the oldest are given up beyond.
const MAX_OPS: usize = 65_536;
/// How long an operation may still end that began before NCCL was asked for something else: NCCL goes on telling of
/// most.
const PATIENCE_NS: i64 = 10_000_000_000;

/// What a call said that its operation does not.
#[derive(Clone, Copy, Debug)]
struct Call {
    at_ns: i64,
    group: u64,
    count: u64,
    datatype: Word,
    captured: bool,
    alone: bool,
}

/// The launch of a group's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launched {
    pub(super) at_ns: i64,
    pub(super) end_ns: Option<i64>,
    pub(super) row: i64,
    pub(super) thread_id: i64,
    pub(super) step: i32,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    proxy: u64,
    state: i32,
    since_ns: i64,
}

/// Where an event's rows belong: an operation, and the place within it.
#[derive(Clone, Copy, Debug)]
struct Place {
    op: u64,
    index: usize,
}

/// Where an event comes from: see [`What::Start`].
#[derive(Clone, Copy, Debug)]
struct Origin {
    comm: u64,
    parent: u64,
    step: i32,
    alone: bool,
}

/// A communicator as the worker knows it.
#[derive(Debug, Default)]
struct Comm {
    info: CommInfo,
    clock: GpuClock,
    /// End of the last kernel on each channel, by the GPU's stamps.
    channel_ends: BTreeMap<u8, u64>,
    /// Sends and receives so far, by peer and direction.
    p2p_seqs: FxHashMap<(i32, bool), i64>,
    /// Rows written of it: at its beginning, at its end.
    told: (bool, bool),
}

/// Everything in flight.
#[derive(Debug)]
pub(super) struct Model {
    rank: i32,
    comms: BTreeMap<u64, Comm>,
    calls: Recent<u64, Call>,
    /// By the group's handle: launches come before the operations that they carry out.
    launches: Recent<u64, Launched>,
    /// The group of a launch.
    groups: Recent<u64, u64>,
    ops: BTreeMap<u64, Op>,
    /// Operations in the order in which they came: handles are not.
    order: VecDeque<u64>,
    channels: Recent<u64, Place>,
    proxies: Recent<u64, Place>,
    /// Proxy operations whose operation is not known.
    strays: FxHashMap<u64, (i64, Proxy)>,
    steps: Recent<u64, Step>,
    fit: Fit,
    words: FxHashMap<Word, Text>,
    pub(super) rows: Rows,
    /// Operations given up because too many were in flight.
    pub(super) given_up: u64,
    /// Channels and proxy operations of operations that are not known.
    pub(super) orphans: u64,
    /// Until when what began may never end here, because NCCL was then asked for something else.
    pub(super) untold_until_ns: i64,
    /// Operations, and proxy operations of unknown ones, that began before it and did not end.
    pub(super) untold: u64,
}

impl Model {
    pub(super) fn new(rank: i32) -> Self {
        Self {
            rank,
            comms: BTreeMap::new(),
            calls: Recent::new(),
            launches: Recent::new(),
            groups: Recent::new(),
            ops: BTreeMap::new(),
            order: VecDeque::new(),
            channels: Recent::new(),
            proxies: Recent::new(),
            strays: FxHashMap::default(),
            steps: Recent::new(),
            fit: Fit::new(),
            words: FxHashMap::default(),
            rows: Rows::default(),
            given_up: 0,
            orphans: 0,
            untold_until_ns: i64::MIN,
            untold: 0,
        }
    }

    /// Learns of communicators that came, and of those that went.
    pub(super) fn refresh_comms(&mut self, core: &Core) {
        let mut infos = core.infos();
        for (handle, info) in infos.iter() {
            let comm = self.comms.entry(*handle).or_default();
            // What the operations of v3 told of their communicator stays.
            let (hash, ranks) = (comm.info.hash, comm.info.ranks);
            comm.info = info.clone();
            comm.info.hash = if info.hash == 0 { hash } else { info.hash };
            comm.info.ranks = info.ranks.or(ranks);
        }
        // What has gone is remembered here until its last row.
        infos.retain(|_, info| info.destroyed_ns.is_none());
    }

    fn word(&mut self, core: &Core, word: Word) -> Option<Text> {
        if word == 0 {
            return None;
        }
        if let Some(text) = self.words.get(&word) {
            return Some(text.clone());
        }
        let text: Text = core.words.get(word)?.into();
        self.words.insert(word, text.clone());
        Some(text)
    }

    /// Takes one callback.
    pub(super) fn take(&mut self, core: &Core, record: Record) {
        let Record { at_ns, handle, what } = record;
        match what {
            What::Start { comm, parent, step, alone, event } => {
                if !self.comms.contains_key(&comm) {
                    // It came after the last look at them.
                    self.refresh_comms(core);
                }
                self.start(core, handle, Origin { comm, parent, step, alone }, event, at_ns);
            }
            What::State { state, value } => self.state(handle, state, value, at_ns),
            What::Stop => self.stop(handle, at_ns),
        }
    }

    fn start(&mut self, core: &Core, handle: u64, origin: Origin, event: Event, at_ns: i64) {
        let Origin { comm, parent, step, .. } = origin;
        match event {
            Event::CollApi(api) | Event::P2pApi(api) => {
                let (count, datatype, captured, alone) = (api.count, api.datatype, api.captured, origin.alone);
                self.calls.insert(handle, Call { at_ns, group: parent, count, datatype, captured, alone });
            }
            Event::KernelLaunch(Launch { row, thread_id }) => {
                // Without a group nobody can say whose launch it was; it is a row all the same.
                let group = if parent == 0 { handle } else { parent };
                self.launches.insert(group, Launched { at_ns, end_ns: None, row, thread_id, step });
                self.groups.insert(handle, group);
            }
            Event::Coll(coll) => self.begin_coll(core, handle, origin, coll, at_ns),
            Event::CeColl(coll) => {
                self.begin_coll(core, handle, origin, coll, at_ns);
                if let Some(op) = self.ops.get_mut(&handle) {
                    op.copy_engine = Some((at_ns, None));
                    op.only_enqueued = false;
                }
            }
            Event::P2p(p2p) => self.begin_p2p(core, handle, origin, p2p, at_ns),
            Event::KernelCh { channel, gpu_ns } => self.begin_channel(comm, handle, parent, channel, gpu_ns, at_ns),
            Event::KernelPhase { channel, name, gpu_ns } => {
                let phase = self.word(core, name);
                self.begin_phase(handle, parent, Some(i32::from(channel)), phase, gpu_ns, at_ns);
            }
            Event::CeSync => self.begin_phase(handle, parent, None, Some("ce_sync".into()), 0, at_ns),
            Event::CeBatch { bytes } => {
                self.begin_phase(handle, parent, None, Some("ce_batch".into()), 0, at_ns);
                self.at(handle, |channel, _| channel.bytes = i64::try_from(bytes).ok());
            }
            Event::ProxyOp(told) => self.begin_proxy(comm, handle, parent, told, at_ns),
            Event::ProxyStep => {
                self.steps.open(handle, Step { proxy: parent, state: 0, since_ns: at_ns });
                self.proxy(parent, |proxy| proxy.steps_seen += 1);
            }
            Event::GroupApi | Event::Other => {}
        }
    }

    /// What all operations have: the communicator's part.
    fn new_op(&mut self, core: &Core, origin: Origin, func: Word, at_ns: i64, hash: u64) -> Op {
        let Origin { comm, parent, step, alone } = origin;
        let func = self.word(core, func);
        let call = self.calls.get(parent).copied();
        let launched = call.filter(|call| !call.captured);
        let launch = launched.filter(|call| call.group != 0).and_then(|call| self.launches.get(call.group).copied());
        let launch_ns = launched.map(|call| launch.map_or(call.at_ns, |launch| launch.at_ns));
        let info = &mut self.comms.entry(comm).or_default().info;
        if info.hash == 0 {
            info.hash = hash;
        }
        Op {
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
            // A captured call was made long before this replay of it.
            enqueue_ns: launched.map_or(at_ns, |call| call.at_ns),
            launch_ns,
            launch_row: launch.map(|launch| launch.row).filter(|row| *row != 0),
            channels: Vec::new(),
            proxies: Vec::new(),
            copy_engine: None,
            // What a graph tells was settled when it was captured.
            only_enqueued: call.filter(|call| call.captured).map_or(alone, |call| call.alone),
            last_ns: at_ns,
            reported: None,
        }
    }

    /// Elements, their type and bytes: those of the call where it is known, because NCCL rewrites some to bytes.
    fn measure(&mut self, core: &Core, op: &mut Op, parent: u64, count: u64, datatype: Word) {
        let call = self.calls.get(parent).copied();
        let (count, datatype) = call.map_or((count, datatype), |call| (call.count, call.datatype));
        let datatype = self.word(core, datatype);
        let pieces = names::pieces(&op.op, op.comm_size);
        op.count = i64::try_from(count).ok().zip(pieces).and_then(|(count, pieces)| count.checked_mul(pieces));
        let element = datatype.as_deref().and_then(names::element_bytes);
        op.bytes = op.count.zip(element).and_then(|(count, bytes)| count.checked_mul(bytes));
        op.dtype = datatype.map(|name| names::datatype(&name).into());
    }

    fn begin_coll(&mut self, core: &Core, handle: u64, origin: Origin, coll: Coll, at_ns: i64) {
        let mut op = self.new_op(core, origin, coll.func, at_ns, coll.comm_hash);
        self.measure(core, &mut op, origin.parent, coll.count, coll.datatype);
        op.seq = Some(coll.seq as i64);
        op.root = matches!(&*op.op, "broadcast" | "reduce" | "gather" | "scatter").then_some(coll.root);
        op.n_channels = coll.channels;
        op.algo = self.word(core, coll.algo);
        op.proto = self.word(core, coll.proto);
        self.remember(handle, op);
    }

    fn begin_p2p(&mut self, core: &Core, handle: u64, origin: Origin, p2p: P2p, at_ns: i64) {
        let mut op = self.new_op(core, origin, p2p.func, at_ns, p2p.comm_hash);
        self.measure(core, &mut op, origin.parent, p2p.count, p2p.datatype);
        let sends = &*op.op == "send";
        let comm = self.comms.entry(origin.comm).or_default();
        // The peer missed others, if any: the numbers of the two would not be of the same operation.
        let is_counted = comm.info.created_ns > self.untold_until_ns && !core.missed_p2p.load(Ordering::Relaxed);
        let seq = comm.p2p_seqs.entry((p2p.peer, sends)).or_default();
        op.seq = is_counted.then_some(*seq);
        *seq += 1;
        op.peer = Some(p2p.peer);
        op.n_channels = p2p.channels;
        self.remember(handle, op);
    }

    fn remember(&mut self, handle: u64, op: Op) {
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
        let signed = i64::try_from(gpu_ns).unwrap_or(-1);
        // Sends and receives of one group run side by side on a channel; collectives do not.
        let overlaps = op.peer.is_none() && comm.channel_ends.get(&channel).is_some_and(|end| gpu_ns < *end);
        let suspect = gpu_ns != 0 && (overlaps || !comm.clock.seen(signed, at_ns));
        if gpu_ns != 0
            && !suspect
            && let Some(launch_ns) = op.launch_ns
        {
            comm.clock.launched(signed, launch_ns);
        }
        op.last_ns = at_ns;
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
    }

    /// A phase hangs below a channel; a copy engine's part below its operation.
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

    fn begin_proxy(&mut self, comm: u64, handle: u64, parent: u64, told: ProxyOp, at_ns: i64) {
        let waits = Waits::default();
        let proxy = Proxy { told, start_ns: at_ns, end_ns: None, steps_seen: 0, bytes: 0, waits };
        match self.ops.get_mut(&parent) {
            Some(op) => {
                op.last_ns = at_ns;
                op.proxies.push(proxy);
                self.proxies.open(handle, Place { op: parent, index: op.proxies.len() - 1 });
            }
            None if self.strays.len() < MAX_REMEMBERED => {
                let id = comm_id(self.comms.entry(comm).or_default().info.hash);
                self.strays.insert(handle, (id, proxy));
            }
            None => self.orphans += 1,
        }
    }

    /// A channel by its handle, with its communicator.
    fn at(&mut self, handle: u64, change: impl FnOnce(&mut Channel, &mut Comm)) -> bool {
        let Some(place) = self.channels.get(handle).copied() else { return false };
        let Some(op) = self.ops.get_mut(&place.op) else { return false };
        let comm = self.comms.entry(op.comm).or_default();
        let Some(channel) = op.channels.get_mut(place.index) else { return false };
        change(channel, comm);
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
            self.at(handle, |channel, comm| {
                channel.gpu_end_ns = value;
                let number = channel.channel.and_then(|channel| u8::try_from(channel).ok());
                if value == 0 || value < channel.gpu_start_ns {
                    channel.suspect |= value != 0;
                } else if !comm.clock.seen(i64::try_from(value).unwrap_or(-1), at_ns) {
                    channel.suspect = true;
                } else if let Some(number) = number.filter(|_| channel.phase.is_none()) {
                    comm.channel_ends.insert(number, value);
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
            // Until now it waited for its turn in the proxy's queue.
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
        } else if self.at(handle, |channel, _| channel.seen_end_ns = Some(at_ns)) {
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
        // A stopped operation, call or launch is only enqueued.
        self.channels.close(handle);
        self.proxies.close(handle);
        self.steps.close(handle);
    }

    /// Whether something runs of which NCCL is about to tell the end.
    pub(super) fn is_ending(&self) -> bool {
        self.ops.values().any(Op::is_open)
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
            let kernel = self.fit.channel(launch, stamps);
            self.bound(kernel, Some(stamps));
        }
    }

    /// CUPTI has timed a kernel of NCCL's.
    pub(super) fn kernel(&mut self, kernel: CommKernel) {
        let stamps = self.fit.kernel(kernel);
        self.bound(Some(kernel), stamps);
    }

    fn bound(&mut self, kernel: Option<CommKernel>, stamps: Option<Stamps>) {
        let Some((kernel, stamps)) = kernel.zip(stamps) else { return };
        if let Some(comm) = self.comms.get_mut(&stamps.comm) {
            comm.clock.inside((stamps.start_ns, stamps.end_ns), (kernel.start_ns, kernel.end_ns));
        }
    }

    /// Makes rows of what is over, and of what has been in flight since before `old_ns`. At the `last` call of
    /// everything. What began before NCCL was asked for something else, and does not end, is counted and makes no row:
    /// that it hangs is not known.
    pub(super) fn publish(&mut self, now_ns: i64, old_ns: i64, last: bool) {
        let mut over = Vec::new();
        for (handle, op) in &mut self.ops {
            let comm = self.comms.entry(op.comm).or_default();
            let gone = comm.info.destroyed_ns.is_some();
            // Nothing more comes of an operation whose communicator or process ends.
            let state = op.state(if gone || last { i64::MAX } else { now_ns });
            let finished = state == CollectiveState::Done || op.only_enqueued;
            if !finished && op.enqueue_ns <= self.untold_until_ns {
                if last || gone || now_ns.saturating_sub(self.untold_until_ns) >= PATIENCE_NS {
                    self.untold += 1;
                    over.push(*handle);
                }
            } else if finished || last || gone {
                self.rows.collectives.push(collective_row(self.rank, op, &comm.clock, state));
                self.rows.channels.extend(channel_rows(self.rank, op, &comm.clock));
                let named = Some((op.seq, &op.op));
                self.rows.proxies.extend(op.proxies.iter().map(|p| proxy_row(self.rank, op.comm_id, named, p)));
                over.push(*handle);
            } else if op.enqueue_ns.max(op.last_ns) <= old_ns && op.reported != Some(state) {
                op.reported = Some(state);
                self.rows.collectives.push(collective_row(self.rank, op, &comm.clock, state));
            }
        }
        for handle in &over {
            self.ops.remove(handle);
        }
        if !over.is_empty() {
            self.order.retain(|handle| self.ops.contains_key(handle));
        }
        if last {
            let mut strays: Vec<(u64, (i64, Proxy))> = self.strays.drain().collect();
            strays.sort_unstable_by_key(|(handle, _)| *handle);
            for (_, (comm, proxy)) in strays {
                if proxy.start_ns <= self.untold_until_ns {
                    self.untold += 1;
                } else {
                    self.rows.proxies.push(proxy_row(self.rank, comm, None, &proxy));
                }
            }
        }
        self.publish_comms();
    }

    fn publish_comms(&mut self) {
        for comm in self.comms.values_mut().filter(|comm| comm.info.hash != 0) {
            let gone = comm.info.destroyed_ns.is_some();
            if !comm.told.0 || (gone && !comm.told.1) {
                comm.told = (true, gone);
                self.rows.comms.push(comm_row(self.rank, &comm.info));
            }
        }
        self.comms.retain(|_, comm| comm.info.destroyed_ns.is_none());
    }
}
