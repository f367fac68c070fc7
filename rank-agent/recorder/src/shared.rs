//! State that all threads of a recorder share: the current step, the ids, the names.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use trace::lock;

use crate::clock::Clock;
use crate::hook::ScopeHook;
use crate::names::{NameId, Names};
use crate::timeline::{StepAt, Timeline};

/// Whether rows are made, and for which step. It is one word, so that a row never combines the step of one moment with
/// the activity of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

const ENABLED: u64 = 1;
const ACTIVE: u64 = 2;
const LINKED: u64 = 4;
const ENDING: u64 = 8;
/// How long a call of the program waits while its recording ends.
const WHILE_ENDING: Duration = Duration::from_millis(1);

impl State {
    fn new(enabled: bool, active: bool, step: i32) -> Self {
        let flags = if enabled { ENABLED } else { 0 } | if active { ACTIVE } else { 0 };
        Self(u64::from(step as u32) << 32 | flags)
    }

    /// The same state with launches linked to scopes, or not.
    fn linked(self, linked: bool) -> Self {
        Self(self.0 & !LINKED | if linked { LINKED } else { 0 })
    }

    /// Whether the rows that are left are written, because the program or the recording ends.
    #[inline]
    pub fn is_ending(self) -> bool {
        self.0 & ENDING != 0
    }

    /// Whether rows are made and scopes call the source's [`ScopeHook`].
    #[inline]
    pub fn is_linked(self) -> bool {
        self.0 & LINKED != 0
    }

    /// Whether the recorder runs.
    #[inline]
    pub fn is_enabled(self) -> bool {
        self.0 & ENABLED != 0
    }

    /// Whether the recorder runs and makes rows.
    #[inline]
    pub fn is_active(self) -> bool {
        self.0 & (ENABLED | ACTIVE) == ENABLED | ACTIVE
    }

    /// The current step; −1 between steps.
    #[inline]
    pub fn step(self) -> i32 {
        (self.0 >> 32) as u32 as i32
    }
}

/// A value on its own cache lines, so that writing it does not slow down threads that read its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

/// Number of rows that the program handed over and the writer has not taken yet. It is bounded, because the writer may
/// hang on a disk.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    waiting: AtomicU64,
    /// Number of rows beyond the bound.
    pub(crate) dropped: AtomicU64,
}

impl HandedOver {
    /// The most rows that may wait.
    pub(crate) const LIMIT: u64 = 1 << 20;

    /// Reserves room for `rows`. Without room it counts them as dropped and returns `false`.
    pub(crate) fn enter(&self, rows: u64) -> bool {
        let room = self.waiting.fetch_add(rows, Ordering::Relaxed) + rows <= Self::LIMIT;
        if !room {
            self.leave(rows);
            self.dropped.fetch_add(rows, Ordering::Relaxed);
        }
        room
    }

    /// Frees the room of `rows` that the writer has taken.
    pub(crate) fn leave(&self, rows: u64) {
        self.waiting.fetch_sub(rows, Ordering::Relaxed);
    }
}

/// State that the recording threads, the writer and the sources share.
#[derive(Debug)]
pub struct Shared {
    state: Padded<AtomicU64>,
    next_id: Padded<AtomicI64>,
    allocated_bytes: AtomicI64,
    timeline: Mutex<Timeline>,
    hook: OnceLock<ScopeHook>,
    pub(crate) handed_over: HandedOver,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
}

impl Shared {
    /// The state of a recorder that has just started, or of one that is disabled.
    pub fn new(clock: Clock, enabled: bool) -> Self {
        Self {
            state: Padded(AtomicU64::new(State::new(enabled, false, -1).0)),
            // Ids count from 1, so that 0 is never an id.
            next_id: Padded(AtomicI64::new(1)),
            allocated_bytes: AtomicI64::new(0),
            timeline: Mutex::default(),
            hook: OnceLock::new(),
            handed_over: HandedOver::default(),
            names: Names::default(),
            clock,
        }
    }

    /// The recorder's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the number of a string. Takes a lock and allocates.
    pub fn intern(&self, name: &str) -> NameId {
        self.names.intern(name)
    }

    /// The current state.
    #[inline]
    pub fn state(&self) -> State {
        State(self.state.0.load(Ordering::Relaxed))
    }

    /// The current state, for a call of the program. While the recording ends, the call waits for a moment: threads that record all the
    /// time would leave the writer no core, and the program would take many seconds to exit.
    #[inline]
    pub fn state_of_call(&self) -> State {
        let state = self.state();
        if state.is_ending() {
            wait_while_ending();
        }
        state
    }

    /// Begins or ends the time in which the rows that are left are written.
    pub fn set_ending(&self, ending: bool) {
        if ending {
            self.state.0.fetch_or(ENDING, Ordering::Relaxed);
        } else {
            self.state.0.fetch_and(!ENDING, Ordering::Relaxed);
        }
    }

    /// A new id of a row.
    #[inline]
    pub fn next_id(&self) -> i64 {
        self.next_id.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Moves the ids of this process to their own range of 2^40 ids.
    pub(crate) fn begin_ids_at(&self, process: u32) {
        self.next_id.0.store((i64::from(process) << 40) + 1, Ordering::Relaxed);
    }

    /// Adds to the host memory in use and returns the sum.
    pub fn allocate(&self, delta_bytes: i64) -> i64 {
        self.allocated_bytes.fetch_add(delta_bytes, Ordering::Relaxed).wrapping_add(delta_bytes)
    }

    /// The step that was recorded at `ts_ns`. A source uses it for work that it learns of later.
    pub fn step_at(&self, ts_ns: i64) -> StepAt {
        lock(&self.timeline).step_at(ts_ns)
    }

    pub(crate) fn set_step(&self, step: i32) {
        self.update(|state| State::new(state.is_enabled(), state.0 & ACTIVE != 0, step));
    }

    /// Switches rows on or off.
    pub fn set_active(&self, active: bool) {
        self.update(|state| State::new(state.is_enabled(), active, state.step()));
    }

    pub(crate) fn begin_step(&self, step: i32, active: bool) {
        self.update(|state| State::new(state.is_enabled(), active, step));
    }

    pub(crate) fn disable(&self) {
        self.set_linked(false);
        self.update(|state| State::new(false, false, state.step()));
    }

    /// Registers the source that follows scopes: the first one counts. Scopes call it while they are
    /// [linked](Self::set_linked).
    pub fn set_scope_hook(&self, hook: ScopeHook) {
        self.hook.get_or_init(|| hook);
    }

    /// Switches the calls of the [`ScopeHook`] on or off, for scopes that begin from now on.
    pub fn set_linked(&self, linked: bool) {
        let _ =
            self.state.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(State(old).linked(linked).0));
    }

    /// Work that this thread launches from now on carries `id`. Returns `false` if no source took the id.
    #[inline]
    pub fn push_scope(&self, id: i64) -> bool {
        self.hook.get().is_some_and(|hook| (hook.push)(id))
    }

    /// Work that this thread launches from now on carries the id from before the last [`push_scope`](Self::push_scope).
    #[inline]
    pub fn pop_scope(&self) {
        if let Some(hook) = self.hook.get() {
            (hook.pop)();
        }
    }

    fn update(&self, change: impl Fn(State) -> State) {
        let mut timeline = lock(&self.timeline);
        // Read before the change: a row with the new state then starts after this time.
        let now_ns = self.clock.now_ns();
        // The closure always returns a value, so the update cannot fail; it repeats only when two threads meet.
        let changed = |old| Some(change(State(old)).linked(State(old).is_linked()).0 | old & ENDING);
        let _ = self.state.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        let state = self.state();
        timeline.push(now_ns, state.step(), state.is_active());
    }
}

#[cold]
fn wait_while_ending() {
    std::thread::sleep(WHILE_ENDING);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_over_the_bound_are_dropped_and_counted() {
        let handed_over = HandedOver::default();
        assert!(handed_over.enter(HandedOver::LIMIT));
        assert!(!handed_over.enter(3));
        assert_eq!(handed_over.dropped.load(Ordering::Relaxed), 3);
        handed_over.leave(3);
        assert!(handed_over.enter(3));
    }

    #[test]
    fn step_and_activity_change_independently() {
        let shared = Shared::new(Clock::system(), true);
        assert_eq!((shared.state().step(), shared.state().is_active()), (-1, false));
        shared.begin_step(i32::MAX, true);
        assert_eq!((shared.state().step(), shared.state().is_active()), (i32::MAX, true));
        shared.set_step(-1);
        assert_eq!((shared.state().step(), shared.state().is_active()), (-1, true));
        shared.set_active(false);
        assert_eq!((shared.state().step(), shared.state().is_active()), (-1, false));
        shared.set_active(true);
        shared.disable();
        shared.set_active(true);
        assert!(!shared.state().is_active() && !shared.state().is_enabled());
    }

    #[test]
    fn scopes_reach_the_hook_of_the_first_source() {
        let shared = Shared::new(Clock::system(), true);
        assert!(!shared.push_scope(1), "no source");
        shared.set_scope_hook(ScopeHook { push: |id| id == 7, pop: || {} });
        shared.set_scope_hook(ScopeHook { push: |_| panic!("the second source"), pop: || {} });
        assert!(shared.push_scope(7) && !shared.push_scope(8));
    }
}
