//! State of the callbacks, which run on NCCL's threads: handles, queue, strings, communicators.
//!
//! A start event reserves room for its stop: start events are refused (NCCL accepts a null handle) while the queue is half
//! full, and state changes while it is three quarters full. The last quarter has room for one stop event of every open
//! handle. An operation therefore never looks unfinished because its stop event was lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crossbeam_queue::ArrayQueue;
use recorder::{Clock, Shared, lock};

use super::handles::Handles;
use super::record::{Event, Launch, Record, What, event_type};
use super::string_table::{StringId, StringTable};
use crate::comm_kernels::{CommKernel, CommKernels};

/// Limits on open events and communicators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most open events.
    pub(crate) handles: u32,
    /// The most communicators at a time.
    pub(crate) comms: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { handles: 16_384, comms: 1024 }
    }
}

/// A call of the program after which NCCL can confuse the times of channels. At the end of a communicator, NCCL can also wait for such
/// times for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Confusion {
    /// The program captured a CUDA graph.
    Capture,
    /// The program called broadcasts that NCCL combines.
    Broadcasts,
}

/// No communicator has decided which events of [`event_type::KERNEL`] NCCL is asked for. All bits, so that none is left
/// out.
const UNDECIDED: u64 = u64::MAX;
/// The most threads between their check of the queue's length and their push; each may exceed a limit by one.
const THREADS: usize = 1024;

/// Types of events whose parent is an operation or a part of one.
pub(crate) const CHILDREN: u64 = event_type::PROXY_OP
    | event_type::PROXY_STEP
    | event_type::KERNEL_CH
    | event_type::KERNEL_PHASE
    | event_type::CE_SYNC
    | event_type::CE_BATCH;

/// Numbers of recorded events, and of events that were not recorded; each event counts once.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Events recorded.
    pub(crate) events: AtomicU64,
    /// Events refused because all handles were in use.
    pub(crate) no_handle: AtomicU64,
    /// Events refused because the queue was filling up.
    pub(crate) no_room: AtomicU64,
    /// States lost because the queue was filling up.
    pub(crate) states: AtomicU64,
    /// Events of a communicator that is not open: it was finalized, or exceeded the limit.
    pub(crate) no_comm: AtomicU64,
    /// Stop events and state changes of events that are not open.
    pub(crate) late: AtomicU64,
    /// Communicators beyond the limit.
    pub(crate) comms: AtomicU64,
    /// Callbacks that panicked.
    pub(crate) panics: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A communicator, from its `init` call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommInfo {
    /// Version of the plugin interface.
    pub(crate) version: u8,
    /// Equal on all its ranks; 0 if NCCL does not report it (v3).
    pub(crate) hash: u64,
    pub(crate) name: Option<String>,
    pub(crate) nodes: Option<i32>,
    pub(crate) ranks: Option<i32>,
    pub(crate) rank: Option<i32>,
    pub(crate) created_ns: i64,
    pub(crate) destroyed_ns: Option<i64>,
}

/// State that all callbacks and the worker share.
#[derive(Debug)]
pub struct Callbacks {
    shared: Arc<Shared>,
    clock: Clock,
    pub(crate) strings: StringTable,
    pub(crate) handles: Handles,
    pub(crate) comms: Handles,
    infos: Mutex<BTreeMap<u64, CommInfo>>,
    queue: ArrayQueue<Record>,
    start_limit: usize,
    state_limit: usize,
    /// No event is recorded any more, because the process exits.
    closed: AtomicBool,
    /// Event mask of the recorder, of at most 32 bits.
    pub(crate) wanted: AtomicU64,
    /// Those of [`event_type::KERNEL`] that NCCL was asked for.
    kernel_events: AtomicU64,
    /// Why NCCL is no longer asked for them.
    given_up: OnceLock<Confusion>,
    /// Whether a second plugin may want other events.
    pub(crate) chained: AtomicBool,
    pub(crate) counts: Counts,
    /// A send or receive was not recorded, so that later ones have no sequence number.
    pub(crate) missed_p2p: AtomicBool,
    /// The call of a broadcast was not recorded. If NCCL reports only calls of broadcasts, later broadcasts have no sequence number.
    pub(crate) missed_broadcasts: AtomicBool,
    /// The name of broadcasts.
    broadcast: StringId,
    pid: i32,
    comm_kernels: Arc<CommKernels>,
}

impl Callbacks {
    pub(crate) fn new(shared: Arc<Shared>, comm_kernels: Arc<CommKernels>, limits: Limits) -> Self {
        let clock = shared.clock();
        let stops = limits.handles as usize + THREADS;
        comm_kernels.open();
        let strings = StringTable::new();
        let broadcast = strings.intern(b"Broadcast");
        Self {
            shared,
            clock,
            strings,
            handles: Handles::new(limits.handles),
            comms: Handles::new(limits.comms),
            infos: Mutex::default(),
            queue: ArrayQueue::new(4 * stops),
            start_limit: 2 * stops - THREADS,
            state_limit: 3 * stops - THREADS,
            closed: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            kernel_events: AtomicU64::new(UNDECIDED),
            given_up: OnceLock::new(),
            chained: AtomicBool::new(false),
            counts: Counts::default(),
            missed_p2p: AtomicBool::new(false),
            missed_broadcasts: AtomicBool::new(false),
            broadcast,
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            comm_kernels,
        }
    }

    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// Stops recording events, for ever.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A launch that the calling thread makes now.
    pub(crate) fn new_launch(&self) -> Launch {
        Launch { row: self.shared.next_id(), thread_id: rustix::thread::gettid().as_raw_nonzero().get().into() }
    }

    /// Kernels that this thread launches from now on carry `id`. Returns `false` if CUPTI does not run.
    pub(crate) fn push_scope(&self, id: i64) -> bool {
        self.shared.state().is_linked() && self.shared.push_scope(id)
    }

    /// Kernels that this thread launches from now on carry the previous id.
    pub(crate) fn pop_scope(&self) {
        self.shared.pop_scope();
    }

    /// Whether a function is a broadcast.
    pub(crate) fn is_broadcast(&self, func: StringId) -> bool {
        func == self.broadcast
    }

    /// Whether recording is active.
    pub(crate) fn is_active(&self) -> bool {
        self.shared.state().is_active()
    }

    /// Decides at the first call which of [`event_type::KERNEL`] NCCL is asked for, and returns them.
    pub(crate) fn ask_kernel_events(&self, wanted: u64) -> u64 {
        let kernel = wanted & event_type::KERNEL;
        let decided = self.kernel_events.compare_exchange(UNDECIDED, kernel, Ordering::AcqRel, Ordering::Acquire);
        decided.map_or_else(|before| before, |_| kernel)
    }

    /// Asks for no event of [`event_type::KERNEL`] any more. Those of operations that begin later are not recorded either, although NCCL
    /// still reports them where the call was made before.
    pub(crate) fn give_up_kernel_events(&self, why: Confusion) {
        if !matches!(self.kernel_events(), None | Some(0)) {
            // The first reason stays.
            let _ = self.given_up.set(why);
            self.kernel_events.store(0, Ordering::Release);
        }
    }

    /// Why NCCL is no longer asked for events of [`event_type::KERNEL`].
    pub(crate) fn given_up(&self) -> Option<Confusion> {
        self.given_up.get().copied()
    }

    /// Those of [`event_type::KERNEL`] that NCCL was asked for; `None` before the first communicator.
    pub(crate) fn kernel_events(&self) -> Option<u64> {
        Some(self.kernel_events.load(Ordering::Acquire)).filter(|events| *events != UNDECIDED)
    }

    /// The events that become rows now, while recording is active.
    fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed) & (self.kernel_events.load(Ordering::Relaxed) | !event_type::KERNEL)
    }

    /// Communicators by handle. Not for the hot path.
    pub(crate) fn infos(&self) -> MutexGuard<'_, BTreeMap<u64, CommInfo>> {
        lock(&self.infos)
    }

    /// Handle of a new communicator; 0 if there are too many, and then none of its events is recorded.
    pub(crate) fn open_comm(&self, info: CommInfo) -> u64 {
        if self.is_closed() {
            return 0;
        }
        let Some(comm) = self.comms.open(0) else {
            Counts::add(&self.counts.comms);
            return 0;
        };
        self.infos().insert(comm, CommInfo { created_ns: self.now_ns(), ..info });
        comm
    }

    /// Ends a communicator. Returns `false` if it was not open.
    pub(crate) fn close_comm(&self, comm: u64) -> bool {
        let closed = self.comms.close(comm);
        if closed {
            if let Some(info) = self.infos().get_mut(&comm) {
                info.destroyed_ns = Some(self.now_ns());
            }
        } else {
            Counts::add(&self.counts.late);
        }
        closed
    }

    /// Begins an event. Returns its handle, or 0 if it gets none.
    pub(crate) fn start(&self, comm: u64, event_type: u64, parent: u64, event: Event) -> u64 {
        let (handle, recorded) = self.begin(comm, event_type, parent, event);
        if event_type == event_type::P2P && !(recorded && handle != 0) {
            self.missed_p2p.store(true, Ordering::Relaxed);
        }
        if matches!(event, Event::CollApi(api) if self.is_broadcast(api.func)) && !(recorded && handle != 0) {
            self.missed_broadcasts.store(true, Ordering::Relaxed);
        }
        handle
    }

    /// Returns the handle, and whether the event is recorded.
    fn begin(&self, comm: u64, event_type: u64, parent: u64, event: Event) -> (u64, bool) {
        let state = self.shared.state_of_call();
        // With PXN a proxy works for another process, whose handles have no meaning here.
        let foreign = matches!(event, Event::ProxyOp(op) if op.pid != self.pid);
        let parent = if foreign { 0 } else { parent };
        let wanted = self.wanted();
        // Child events arrive after the step ended. Record them if the parent was recorded, under the parent's mask;
        // otherwise the parent would look hung. If the parent's slot was reused, use the current mask.
        let parent_mask = (event_type & CHILDREN != 0 && parent != 0).then(|| self.handles.child_mask(parent));
        let mask = match parent_mask {
            Some(known) => known.map_or(wanted, u64::from),
            None if state.is_active() => wanted,
            None => 0,
        };
        let recorded = mask & event_type != 0;
        if self.is_closed() || (!recorded && !self.chained.load(Ordering::Relaxed)) {
            return (0, false);
        }
        if !self.comms.is_open(comm) {
            Counts::add(&self.counts.no_comm);
            return (0, false);
        }
        if self.queue.len() >= self.start_limit {
            Counts::add(&self.counts.no_room);
            return (0, false);
        }
        let Some(handle) = self.handles.open(if recorded { mask as u32 } else { 0 }) else {
            Counts::add(&self.counts.no_handle);
            return (0, false);
        };
        if !recorded {
            return (handle, false);
        }
        let alone = mask & event_type::KERNEL_CH == 0;
        let what = What::Start { comm, parent, step: state.step(), alone, event };
        if self.queue.push(Record { at_ns: self.now_ns(), handle, what }).is_err() {
            // More than `THREADS` threads at once.
            self.handles.close(handle);
            Counts::add(&self.counts.no_room);
            return (0, false);
        }
        Counts::add(&self.counts.events);
        (handle, true)
    }

    /// Ends an event. Returns `false` if it was not open.
    pub(crate) fn stop(&self, handle: u64) -> bool {
        if self.is_closed() {
            return false;
        }
        let at_ns = self.now_ns();
        if !self.handles.close(handle) {
            Counts::add(&self.counts.late);
            return false;
        }
        if self.queue.push(Record { at_ns, handle, what: What::Stop }).is_err() {
            Counts::add(&self.counts.states);
        }
        true
    }

    /// Records a state change. Returns `false` if the event is not open.
    pub(crate) fn record_state(&self, handle: u64, state: i32, value: u64) -> bool {
        if self.is_closed() {
            return false;
        }
        if !self.handles.is_open(handle) {
            Counts::add(&self.counts.late);
            return false;
        }
        let full = self.queue.len() >= self.state_limit;
        let record = Record { at_ns: self.now_ns(), handle, what: What::State { state, value } };
        if full || self.queue.push(record).is_err() {
            Counts::add(&self.counts.states);
        }
        true
    }

    /// The next callback, oldest first.
    pub(crate) fn pop(&self) -> Option<Record> {
        self.queue.pop()
    }

    /// The next kernel that CUPTI timed.
    pub(crate) fn pop_kernel(&self) -> Option<CommKernel> {
        self.comm_kernels.pop()
    }

    /// Whether the queue is more than an eighth full.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.len() > self.start_limit / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callbacks(handles: u32) -> Callbacks {
        let shared = Arc::new(Shared::new(Clock::system(), true));
        shared.set_active(true);
        let callbacks = Callbacks::new(shared, Arc::default(), Limits { handles, comms: 2 });
        callbacks.wanted.store(u64::MAX, Ordering::Relaxed);
        callbacks
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Invariant (recorder): A stop event of NCCL is never dropped.
    #[test]
    fn a_stop_always_has_room() {
        let callbacks = callbacks(64);
        let comm = callbacks.open_comm(CommInfo::default());
        let mut open = std::collections::VecDeque::new();
        // Far more than the queue holds, and no worker empties it.
        for _ in 0..20_000 {
            let handle = callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
            if handle != 0 {
                open.push_back(handle);
                callbacks.record_state(handle, 8, 0);
            }
            if open.len() > 32 {
                assert!(open.pop_front().is_some_and(|handle| callbacks.stop(handle)));
            }
        }
        for handle in open {
            assert!(callbacks.stop(handle));
        }
        let mut balance = BTreeMap::new();
        while let Some(Record { handle, what, .. }) = callbacks.pop() {
            *balance.entry(handle).or_insert(0) += match what {
                What::Start { .. } => 1,
                What::Stop => -1,
                What::State { .. } => 0,
            };
        }
        assert!(balance.values().all(|sum| *sum == 0), "every event that began has ended");
        assert_eq!(balance.len() as u64, count(&callbacks.counts.events));
        assert_eq!(count(&callbacks.counts.events) + count(&callbacks.counts.no_room), 20_000);
        assert!(count(&callbacks.counts.no_room) > 0);
    }

    #[test]
    fn child_events_are_recorded_after_recording_has_stopped() {
        let callbacks = callbacks(8);
        let comm = callbacks.open_comm(CommInfo::default());
        let operation = callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
        callbacks.shared.set_active(false);
        let channel = Event::KernelCh { channel: 0, gpu_ns: 1 };
        let child = callbacks.start(comm, event_type::KERNEL_CH, operation, channel);
        assert!(child != 0 && callbacks.record_state(child, 22, 2) && callbacks.stop(child));
        assert_eq!(callbacks.start(comm, event_type::KERNEL_CH, 0, channel), 0, "no parent was recorded");
        assert_eq!(callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default())), 0);
    }

    /// The mask at the start of an operation also applies to its child events.
    #[test]
    fn child_events_follow_the_mask_of_their_parent() {
        let callbacks = callbacks(8);
        let comm = callbacks.open_comm(CommInfo::default());
        let channel = Event::KernelCh { channel: 0, gpu_ns: 1 };
        let child = |parent| callbacks.start(comm, event_type::KERNEL_CH, parent, channel);
        let before = callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
        callbacks.wanted.store(event_type::COLL, Ordering::Relaxed);
        let after = callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
        assert_eq!((child(before) != 0, child(after)), (true, 0));
        // An event for the second plugin only: it gets a handle, but neither it nor its children become rows.
        callbacks.chained.store(true, Ordering::Relaxed);
        callbacks.shared.set_active(false);
        let events = count(&callbacks.counts.events);
        let unrecorded = callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
        callbacks.wanted.store(u64::MAX, Ordering::Relaxed);
        assert!(unrecorded != 0 && child(unrecorded) != 0);
        assert_eq!(count(&callbacks.counts.events), events);
    }

    #[test]
    fn calls_for_closed_handles_are_counted_and_have_no_effect() {
        let callbacks = callbacks(2);
        let comm = callbacks.open_comm(CommInfo::default());
        let start = |comm| callbacks.start(comm, event_type::COLL, 0, Event::GroupApi(Launch::default()));
        assert_eq!(start(0), 0, "no context");
        let (a, b) = (start(comm), start(comm));
        assert_eq!(start(comm), 0, "pool exhausted");
        assert!(callbacks.stop(a) && !callbacks.stop(a), "stopped twice");
        assert!(!callbacks.record_state(a, 8, 0), "after the stop");
        assert!(!callbacks.record_state(0, 8, 0) && !callbacks.stop(u64::MAX));
        assert!(callbacks.close_comm(comm) && !callbacks.close_comm(comm), "finalized twice");
        assert_eq!(start(comm), 0, "after finalize");
        assert!(callbacks.stop(b), "in flight when its communicator was finalized");
        let counts = &callbacks.counts;
        let seen = [&counts.events, &counts.no_handle, &counts.no_comm, &counts.late].map(count);
        assert_eq!(seen, [2, 1, 2, 5]);
        callbacks.close();
        let other = callbacks.open_comm(CommInfo::default());
        assert_eq!((other, callbacks.stop(b)), (0, false), "closed");
    }
}
