//! The hot path: functions that a thread of the program calls between its own instructions.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rtrb::Producer;

use crate::clock::Clock;
use crate::kinds::Kind;
use crate::names::{NO_SHAPE, NameId, ShapeId};
use crate::open_scopes::{OpenScope, OpenScopes};
use crate::queue_entry::{Collective, EventRecord, IS_COMM, IS_LINKED, Memory, MemoryRecord, NONE, RareRecord};
use crate::shared::{Shared, State};

/// State of a thread that the writer reads, beside the thread's queues.
#[derive(Debug)]
pub(crate) struct ThreadShared {
    pub(crate) name: String,
    /// System id of the thread at its first record; 0 before.
    pub(crate) thread_id: AtomicI64,
    pub(crate) open: OpenScopes,
    pub(crate) dropped: Dropped,
}

/// Number of records that found their queue full.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) events: AtomicU64,
    pub(crate) collectives: AtomicU64,
    pub(crate) memory: AtomicU64,
}

impl ThreadShared {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), thread_id: AtomicI64::new(0), open: OpenScopes::new(), dropped: Dropped::default() }
    }
}

#[derive(Debug)]
struct Queues {
    events: Producer<EventRecord>,
    rare: Producer<RareRecord>,
}

/// A finished interval, for work that a [`Scope`] cannot enclose. Start from [`Interval::new`].
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Kind of the row.
    pub kind: Kind,
    /// Name.
    pub name: NameId,
    /// Start time, in the recorder's clock.
    pub start_ns: i64,
    /// End time, in the recorder's clock. An end before the start counts as the start.
    pub end_ns: i64,
    /// Step of the row, from [`ThreadRecorder::active_step`] when the program issued the work; the row then exists even
    /// if that step has ended. `None`: the current step, and a row only while recording is active.
    pub step: Option<i32>,
    /// Bytes moved.
    pub bytes: Option<i64>,
    /// Floating-point operations.
    pub flops: Option<i64>,
    /// Input shapes and element types.
    pub shapes: Option<ShapeId>,
    /// Whether the interval is communication.
    pub is_comm: bool,
}

impl Interval {
    /// An interval in the current step, with all other fields unknown.
    pub fn new(kind: Kind, name: NameId, start_ns: i64, end_ns: i64) -> Self {
        let (step, bytes, flops, shapes) = (None, None, None, None);
        Self { kind, name, start_ns, end_ns, step, bytes, flops, shapes, is_comm: false }
    }
}

/// A thread's access to the recorder. Its functions take no lock, allocate nothing and format nothing. When the queue is
/// full, records are dropped and counted.
///
/// Each thread needs its own; it may move to another thread, but two threads cannot share it.
#[derive(Debug)]
pub struct ThreadRecorder {
    shared: Arc<Shared>,
    own: Arc<ThreadShared>,
    clock: Clock,
    queues: RefCell<Queues>,
    depth: Cell<usize>,
    enclosing: Cell<i64>,
    bound: Cell<bool>,
}

impl ThreadRecorder {
    pub(crate) fn new(
        shared: Arc<Shared>,
        own: Arc<ThreadShared>,
        events: Producer<EventRecord>,
        rare: Producer<RareRecord>,
    ) -> Self {
        let (clock, queues) = (shared.clock, RefCell::new(Queues { events, rare }));
        let (depth, enclosing, bound) = (Cell::new(0), Cell::new(NONE), Cell::new(false));
        Self { shared, own, clock, queues, depth, enclosing, bound }
    }

    /// The current time, in the recorder's clock.
    #[inline]
    pub fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// The step of rows that begin now; `None` while recording is inactive.
    #[inline]
    pub fn active_step(&self) -> Option<i32> {
        let state = self.shared.state_of_call();
        state.is_active().then(|| state.step())
    }

    /// Opens a scope. It ends, and becomes a row, when the guard is dropped; rows that this thread records in between are
    /// its children. A guard that was made while recording was inactive does nothing, even if recording begins later.
    #[inline]
    pub fn scope(&self, kind: Kind, name: NameId) -> Scope<'_> {
        let state = self.shared.state_of_call();
        let mut scope = Scope {
            thread: self,
            id: NONE,
            parent_id: NONE,
            start_ns: 0,
            bytes: NONE,
            flops: NONE,
            step: state.step(),
            name,
            shape: NO_SHAPE,
            depth: 0,
            kind,
            flags: 0,
        };
        if state.is_active() {
            scope.begin(state.is_linked());
        }
        scope
    }

    /// Records an interval that has ended, as a child of this thread's innermost open scope. Returns the row's id, or
    /// `None` while recording is inactive.
    #[inline]
    pub fn interval(&self, kind: Kind, name: NameId, start_ns: i64, end_ns: i64) -> Option<i64> {
        self.record(Interval::new(kind, name, start_ns, end_ns))
    }

    /// Records an interval that has ended, with all its fields. Returns the same as [`interval`](Self::interval).
    #[inline]
    pub fn record(&self, interval: Interval) -> Option<i64> {
        let step = self.row_step(interval.step)?;
        let id = self.shared.next_id();
        self.push_event(EventRecord {
            id,
            parent_id: self.enclosing.get(),
            ts_ns: interval.start_ns,
            dur_ns: interval.end_ns.saturating_sub(interval.start_ns).max(0),
            bytes: interval.bytes.unwrap_or(NONE),
            flops: interval.flops.unwrap_or(NONE),
            step,
            name: interval.name,
            shape: interval.shapes.map_or(NO_SHAPE, |shapes| shapes.0),
            kind: interval.kind,
            flags: if interval.is_comm { IS_COMM } else { 0 },
        });
        Some(id)
    }

    /// Records a collective. With `step: None` it gets the current step, and a row only while recording is active. With
    /// a step from [`active_step`](Self::active_step) at the time of the call, it gets a row even if that step has
    /// ended.
    #[inline]
    pub fn collective(&self, collective: Collective) {
        if let Some(step) = self.row_step(collective.step) {
            let collective = Collective { step: Some(step), ..collective };
            self.push_rare(RareRecord::Collective(collective), &self.own.dropped.collectives);
        }
    }

    /// Records an allocation or a release at the current time.
    ///
    /// Unlike events, these are recorded in every step: most memory that is in use during an active step was allocated
    /// before it.
    #[inline]
    pub fn memory(&self, memory: Memory) {
        if !self.shared.state_of_call().is_enabled() {
            return;
        }
        let mut memory = memory;
        if memory.device_id.is_none() && memory.allocated_bytes.is_none() {
            memory.allocated_bytes = Some(self.shared.allocate(memory.delta_bytes));
        }
        let record = MemoryRecord { ts_ns: self.now_ns(), memory };
        self.push_rare(RareRecord::Memory(record), &self.own.dropped.memory);
    }

    #[inline]
    fn row_step(&self, issued_in: Option<i32>) -> Option<i32> {
        let state: State = self.shared.state_of_call();
        match issued_in {
            Some(step) => state.is_enabled().then_some(step),
            None => state.is_active().then(|| state.step()),
        }
    }

    #[inline]
    fn push_event(&self, record: EventRecord) {
        self.bind();
        // No other borrow exists: only these two functions use the queues, and neither calls other code.
        let pushed = self.queues.try_borrow_mut().is_ok_and(|mut queues| queues.events.push(record).is_ok());
        if !pushed {
            self.own.dropped.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn push_rare(&self, record: RareRecord, dropped: &AtomicU64) {
        self.bind();
        let pushed = self.queues.try_borrow_mut().is_ok_and(|mut queues| queues.rare.push(record).is_ok());
        if !pushed {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stores the thread's id at the first record, because the value may have moved to another thread since it was
    /// made.
    #[inline]
    fn bind(&self) {
        if !self.bound.get() {
            self.bound.set(true);
            let id = i64::from(rustix::thread::gettid().as_raw_nonzero().get());
            self.own.thread_id.store(id, Ordering::Relaxed);
        }
    }
}

/// An open scope; see [`ThreadRecorder::scope`].
#[derive(Debug)]
#[must_use = "the scope ends when the guard is dropped: bind it to a name that begins with _"]
pub struct Scope<'t> {
    thread: &'t ThreadRecorder,
    id: i64,
    parent_id: i64,
    start_ns: i64,
    bytes: i64,
    flops: i64,
    step: i32,
    name: NameId,
    shape: u32,
    depth: u32,
    kind: Kind,
    flags: u8,
}

impl Scope<'_> {
    /// Bytes moved.
    #[inline]
    pub fn bytes(mut self, bytes: i64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Floating-point operations.
    #[inline]
    pub fn flops(mut self, flops: i64) -> Self {
        self.flops = flops;
        self
    }

    /// Input shapes and element types.
    #[inline]
    pub fn shapes(mut self, shapes: ShapeId) -> Self {
        self.shape = shapes.0;
        self
    }

    /// Marks the scope as communication.
    #[inline]
    pub fn comm(mut self) -> Self {
        self.flags |= IS_COMM;
        self
    }

    /// Id of the row; `None` if the scope is not recorded.
    #[inline]
    pub fn id(&self) -> Option<i64> {
        (self.id != NONE).then_some(self.id)
    }

    /// Start time, in the recorder's clock; `None` if the scope is not recorded.
    #[inline]
    pub fn start_ns(&self) -> Option<i64> {
        (self.id != NONE).then_some(self.start_ns)
    }

    /// The thread that opened the scope.
    pub fn thread(&self) -> &ThreadRecorder {
        self.thread
    }

    /// Whether launches made inside the scope carry its id.
    pub fn is_linked(&self) -> bool {
        self.flags & IS_LINKED != 0
    }

    /// Step of the scope.
    pub fn step(&self) -> i32 {
        self.step
    }

    #[inline]
    fn begin(&mut self, linked: bool) {
        let thread = self.thread;
        self.id = thread.shared.next_id();
        if linked && thread.shared.push_scope(self.id) {
            self.flags |= IS_LINKED;
        }
        self.parent_id = thread.enclosing.replace(self.id);
        let depth = thread.depth.get();
        self.depth = depth as u32;
        thread.depth.set(depth + 1);
        thread.bind();
        // Read the clock last, so that the scope does not include the recorder's own time.
        self.start_ns = thread.now_ns();
        let what = pack(self.kind, self.name);
        let (id, parent_id, start_ns, step) = (self.id, self.parent_id, self.start_ns, self.step);
        thread.own.open.open(depth, OpenScope { id, parent_id, start_ns, what, step });
    }
}

impl Drop for Scope<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.id == NONE {
            return;
        }
        let thread = self.thread;
        let dur_ns = thread.now_ns().saturating_sub(self.start_ns).max(0);
        if self.flags & IS_LINKED != 0 {
            thread.shared.pop_scope();
        }
        let depth = self.depth as usize;
        // A guard that is dropped after its enclosing guard must not restore that closed scope as the parent.
        if thread.depth.get() > depth {
            thread.depth.set(depth);
            thread.enclosing.set(self.parent_id);
        }
        // Close the slot before the push: the writer then never sees a scope both recorded and open.
        thread.own.open.close(depth, self.id);
        let Self { id, parent_id, start_ns: ts_ns, bytes, flops, step, name, shape, kind, flags, .. } = *self;
        thread.push_event(EventRecord { id, parent_id, ts_ns, dur_ns, bytes, flops, step, name, shape, kind, flags });
    }
}

/// Packs kind and name into one word, for the slots of open scopes.
fn pack(kind: Kind, name: NameId) -> u64 {
    u64::from(name.0) << 8 | kind as u64
}

/// The inverse of [`pack`].
pub(crate) fn unpack(what: u64) -> Option<(Kind, NameId)> {
    let kind = Kind::ALL.get((what & 0xff) as usize)?;
    Some((*kind, NameId((what >> 8) as u32)))
}
