//! What the callbacks share: handles, queue, strings, communicators. Everything that runs on NCCL's threads is here.
//!
//! A start takes room for its own stop: starts are refused (NCCL takes "no handle" for an answer) while the queue is
//! half full, states while it is three quarters full, and the last quarter has room for one stop of every open handle.
//! So an event that began is never thought to be unfinished because its stop was lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::handles::Handles;
use super::record::{Event, Launch, Record, What, event_type};
use super::words::Words;
use crate::Clock;
use crate::device::CommKernel;
use crate::state::Shared;

/// How much may be in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Events that have begun and not ended.
    pub(crate) handles: u32,
    /// Communicators at a time.
    pub(crate) comms: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { handles: 16_384, comms: 1024 }
    }
}

/// Threads that may be between a look at the queue's length and their push, and so overshoot a limit by one each.
const THREADS: usize = 1024;

/// Kernels of NCCL's that wait: a second's. More only refine the clock's map, and are left out.
const COMM_KERNELS: usize = 16_384;

/// Types that are part of an operation, by their parent.
pub(crate) const CHILDREN: u64 = event_type::PROXY_OP
    | event_type::PROXY_STEP
    | event_type::KERNEL_CH
    | event_type::KERNEL_PHASE
    | event_type::CE_SYNC
    | event_type::CE_BATCH;

/// What was not recorded, each once.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Events taken.
    pub(crate) events: AtomicU64,
    /// Events refused because all handles were in use.
    pub(crate) no_handle: AtomicU64,
    /// Events refused because the queue was filling up.
    pub(crate) no_room: AtomicU64,
    /// States lost because the queue was filling up.
    pub(crate) states: AtomicU64,
    /// Events of a communicator that is not open: after finalize, or one too many.
    pub(crate) no_comm: AtomicU64,
    /// Stops and states of an event that is not open.
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

/// A communicator as `init` told of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommInfo {
    /// Version of the interface through which it came.
    pub(crate) version: u8,
    /// Equal on all its ranks; 0: not told (v3).
    pub(crate) hash: u64,
    pub(crate) name: Option<String>,
    pub(crate) nodes: Option<i32>,
    pub(crate) ranks: Option<i32>,
    pub(crate) rank: Option<i32>,
    pub(crate) created_ns: i64,
    pub(crate) destroyed_ns: Option<i64>,
}

/// Shared by all callbacks and the worker.
#[derive(Debug)]
pub(crate) struct Core {
    shared: Arc<Shared>,
    clock: Clock,
    pub(crate) words: Words,
    pub(crate) handles: Handles,
    pub(crate) comms: Handles,
    infos: Mutex<BTreeMap<u64, CommInfo>>,
    queue: ArrayQueue<Record>,
    start_limit: usize,
    state_limit: usize,
    /// Nothing is taken any more: the process exits, or is a fork of the one that records.
    closed: AtomicBool,
    /// Types that the recorder wants, as a mask of no more than 32 bits.
    pub(crate) wanted: AtomicU64,
    /// Whether a second plugin wants the others.
    pub(crate) chained: AtomicBool,
    pub(crate) counts: Counts,
    /// A send or receive was not recorded, so that those after it cannot be numbered.
    pub(crate) missed_p2p: AtomicBool,
    pid: i32,
}

impl Core {
    pub(crate) fn new(shared: Arc<Shared>, limits: Limits) -> Self {
        let clock = shared.clock;
        let stops = limits.handles as usize + THREADS;
        // Somebody takes them from now on.
        shared.comm_kernels.get_or_init(|| ArrayQueue::new(COMM_KERNELS));
        Self {
            shared,
            clock,
            words: Words::new(),
            handles: Handles::new(limits.handles),
            comms: Handles::new(limits.comms),
            infos: Mutex::default(),
            queue: ArrayQueue::new(4 * stops),
            start_limit: 2 * stops - THREADS,
            state_limit: 3 * stops - THREADS,
            closed: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            chained: AtomicBool::new(false),
            counts: Counts::default(),
            missed_p2p: AtomicBool::new(false),
            pid: i32::try_from(std::process::id()).unwrap_or(0),
        }
    }

    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// Takes nothing any more, for ever.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A launch that this thread makes now.
    pub(crate) fn new_launch(&self) -> Launch {
        Launch { row: self.shared.next_id(), thread_id: rustix::thread::gettid().as_raw_nonzero().get().into() }
    }

    /// Whether CUPTI runs, and wants to be told inside of what a kernel is launched.
    pub(crate) fn is_linked(&self) -> bool {
        self.shared.state().is_linked()
    }

    /// Whether rows are made now.
    pub(crate) fn is_active(&self) -> bool {
        self.shared.state().is_active()
    }

    /// Communicators, by handle. Not on the hot path.
    pub(crate) fn infos(&self) -> MutexGuard<'_, BTreeMap<u64, CommInfo>> {
        self.infos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new communicator's handle; 0 if there are too many, and then none of its events is recorded.
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

    /// The end of a communicator. `false` if it was not open.
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

    /// An event begins. Returns its handle; 0: not recorded.
    pub(crate) fn start(&self, comm: u64, event_type: u64, parent: u64, event: Event) -> u64 {
        let (handle, recorded) = self.begin(comm, event_type, parent, event);
        if event_type == event_type::P2P && !(recorded && handle != 0) {
            self.missed_p2p.store(true, Ordering::Relaxed);
        }
        handle
    }

    /// The handle, and whether the event is recorded.
    fn begin(&self, comm: u64, event_type: u64, parent: u64, event: Event) -> (u64, bool) {
        let state = self.shared.state();
        // With PXN a proxy works for another process, whose handle says nothing here.
        let foreign = matches!(event, Event::ProxyOp(op) if op.pid != self.pid);
        let parent = if foreign { 0 } else { parent };
        let wanted = self.wanted.load(Ordering::Relaxed);
        // What an operation does is told after its step, and is recorded if the operation was, and as much of it as was
        // asked for then: else it would seem to hang. Only of one that is long over this is no longer known.
        let below = (event_type & CHILDREN != 0 && parent != 0).then(|| self.handles.asked(parent));
        let asked = match below {
            Some(asked) => asked.map_or(wanted, u64::from),
            None if state.is_active() => wanted,
            None => 0,
        };
        let recorded = asked & event_type != 0;
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
        let Some(handle) = self.handles.open(if recorded { asked as u32 } else { 0 }) else {
            Counts::add(&self.counts.no_handle);
            return (0, false);
        };
        if !recorded {
            return (handle, false);
        }
        let alone = asked & (event_type::KERNEL_CH | event_type::PROXY_OP) == 0;
        let what = What::Start { comm, parent, step: state.step(), alone, event };
        if self.queue.push(Record { at_ns: self.now_ns(), handle, what }).is_err() {
            // More threads than `THREADS` at once.
            self.handles.close(handle);
            Counts::add(&self.counts.no_room);
            return (0, false);
        }
        Counts::add(&self.counts.events);
        (handle, true)
    }

    /// An event ends. `false` if it was not open.
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

    /// An event changes its state. `false` if it is not open.
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

    /// The next kernel of NCCL's that CUPTI timed.
    pub(crate) fn pop_kernel(&self) -> Option<CommKernel> {
        self.shared.comm_kernels.get()?.pop()
    }

    /// Whether the queue is filling up.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.len() > self.start_limit / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(handles: u32) -> Core {
        let shared = Arc::new(Shared::new(Clock::system(), true));
        shared.set_active(true);
        let core = Core::new(shared, Limits { handles, comms: 2 });
        core.wanted.store(u64::MAX, Ordering::Relaxed);
        core
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn a_stop_always_has_room() {
        let core = core(64);
        let comm = core.open_comm(CommInfo::default());
        let mut open = std::collections::VecDeque::new();
        // Far more than the queue holds, with nobody to empty it.
        for _ in 0..20_000 {
            let handle = core.start(comm, event_type::COLL, 0, Event::GroupApi);
            if handle != 0 {
                open.push_back(handle);
                core.record_state(handle, 8, 0);
            }
            if open.len() > 32 {
                assert!(open.pop_front().is_some_and(|handle| core.stop(handle)));
            }
        }
        for handle in open {
            assert!(core.stop(handle));
        }
        let mut balance = BTreeMap::new();
        while let Some(Record { handle, what, .. }) = core.pop() {
            *balance.entry(handle).or_insert(0) += match what {
                What::Start { .. } => 1,
                What::Stop => -1,
                What::State { .. } => 0,
            };
        }
        assert!(balance.values().all(|sum| *sum == 0), "every event that began has ended");
        assert_eq!(balance.len() as u64, count(&core.counts.events));
        assert_eq!(count(&core.counts.events) + count(&core.counts.no_room), 20_000);
        assert!(count(&core.counts.no_room) > 0);
    }

    #[test]
    fn an_operation_is_followed_to_its_end_though_recording_has_stopped() {
        let core = core(8);
        let comm = core.open_comm(CommInfo::default());
        let operation = core.start(comm, event_type::COLL, 0, Event::GroupApi);
        core.shared.set_active(false);
        let channel = Event::KernelCh { channel: 0, gpu_ns: 1 };
        let child = core.start(comm, event_type::KERNEL_CH, operation, channel);
        assert!(child != 0 && core.record_state(child, 22, 2) && core.stop(child));
        assert_eq!(core.start(comm, event_type::KERNEL_CH, 0, channel), 0, "of an operation that was not recorded");
        assert_eq!(core.start(comm, event_type::COLL, 0, Event::GroupApi), 0);
    }

    /// What was asked for when an operation began counts for all of it.
    #[test]
    fn an_operation_is_followed_as_far_as_it_was_asked_for() {
        let core = core(8);
        let comm = core.open_comm(CommInfo::default());
        let channel = Event::KernelCh { channel: 0, gpu_ns: 1 };
        let child = |parent| core.start(comm, event_type::KERNEL_CH, parent, channel);
        let before = core.start(comm, event_type::COLL, 0, Event::GroupApi);
        core.wanted.store(event_type::COLL, Ordering::Relaxed);
        let after = core.start(comm, event_type::COLL, 0, Event::GroupApi);
        assert_eq!((child(before) != 0, child(after)), (true, 0));
        // A second plugin wants what the recorder does not: it gets a handle, and no row comes of it or its children.
        core.chained.store(true, Ordering::Relaxed);
        core.shared.set_active(false);
        let events = count(&core.counts.events);
        let unrecorded = core.start(comm, event_type::COLL, 0, Event::GroupApi);
        core.wanted.store(u64::MAX, Ordering::Relaxed);
        assert!(unrecorded != 0 && child(unrecorded) != 0);
        assert_eq!(count(&core.counts.events), events);
    }

    #[test]
    fn what_is_not_open_is_counted_and_nothing_else() {
        let core = core(2);
        let comm = core.open_comm(CommInfo::default());
        let start = |comm| core.start(comm, event_type::COLL, 0, Event::GroupApi);
        assert_eq!(start(0), 0, "no context");
        let (a, b) = (start(comm), start(comm));
        assert_eq!(start(comm), 0, "pool exhausted");
        assert!(core.stop(a) && !core.stop(a), "stopped twice");
        assert!(!core.record_state(a, 8, 0), "after the stop");
        assert!(!core.record_state(0, 8, 0) && !core.stop(u64::MAX));
        assert!(core.close_comm(comm) && !core.close_comm(comm), "finalized twice");
        assert_eq!(start(comm), 0, "after finalize");
        assert!(core.stop(b), "in flight when its communicator went");
        let counts = &core.counts;
        let seen = [&counts.events, &counts.no_handle, &counts.no_comm, &counts.late].map(count);
        assert_eq!(seen, [2, 1, 2, 5]);
        core.close();
        let other = core.open_comm(CommInfo::default());
        assert_eq!((other, core.stop(b)), (0, false), "closed");
    }
}
