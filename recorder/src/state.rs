//! What all threads of a recorder share: the current step, the ids, the names.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_queue::ArrayQueue;

use crate::Clock;
use crate::device::CommKernel;
use crate::names::Names;
use crate::timeline::Timeline;

/// Whether rows are made, and of which step: one word, so that a row never gets the step of one moment and the activity
/// of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

const ENABLED: u64 = 1;
const ACTIVE: u64 = 2;
const LINKED: u64 = 4;

impl State {
    fn new(enabled: bool, active: bool, step: i32) -> Self {
        let flags = if enabled { ENABLED } else { 0 } | if active { ACTIVE } else { 0 };
        Self(u64::from(step as u32) << 32 | flags)
    }

    /// The same, with launches linked to scopes or not.
    fn linked(self, linked: bool) -> Self {
        Self(self.0 & !LINKED | if linked { LINKED } else { 0 })
    }

    /// Rows are made, and scopes tell CUPTI their ids.
    #[inline]
    pub(crate) fn is_linked(self) -> bool {
        self.0 & LINKED != 0
    }

    /// The recorder runs.
    #[inline]
    pub(crate) fn is_enabled(self) -> bool {
        self.0 & ENABLED != 0
    }

    /// The recorder runs and rows are made.
    #[inline]
    pub(crate) fn is_active(self) -> bool {
        self.0 & (ENABLED | ACTIVE) == ENABLED | ACTIVE
    }

    /// The current step; −1 between steps.
    #[inline]
    pub(crate) fn step(self) -> i32 {
        (self.0 >> 32) as u32 as i32
    }
}

/// A value on cache lines of its own, so that a thread that writes it does not slow those that read its neighbours.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

/// Rows that the program handed over and the writer has not taken yet: bounded, should the writer hang.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    waiting: AtomicU64,
    /// Rows that were over the bound.
    pub(crate) dropped: AtomicU64,
}

impl HandedOver {
    /// Most rows that wait.
    pub(crate) const LIMIT: u64 = 1 << 20;

    /// Takes room for `rows`; `false`, and they count as dropped, if there is none.
    pub(crate) fn enter(&self, rows: u64) -> bool {
        let room = self.waiting.fetch_add(rows, Ordering::Relaxed) + rows <= Self::LIMIT;
        if !room {
            self.leave(rows);
            self.dropped.fetch_add(rows, Ordering::Relaxed);
        }
        room
    }

    /// The writer has `rows` of them now.
    pub(crate) fn leave(&self, rows: u64) {
        self.waiting.fetch_sub(rows, Ordering::Relaxed);
    }
}

/// Shared by all threads that record and the writer.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Padded<AtomicU64>,
    next_id: Padded<AtomicI64>,
    allocated_bytes: AtomicI64,
    timeline: Mutex<Timeline>,
    /// From CUPTI's worker to NCCL's, if that runs.
    pub(crate) comm_kernels: OnceLock<ArrayQueue<CommKernel>>,
    pub(crate) handed_over: HandedOver,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
}

impl Shared {
    pub(crate) fn new(clock: Clock, enabled: bool) -> Self {
        Self {
            state: Padded(AtomicU64::new(State::new(enabled, false, -1).0)),
            // Ids count from 1, so that 0 is never one.
            next_id: Padded(AtomicI64::new(1)),
            allocated_bytes: AtomicI64::new(0),
            timeline: Mutex::default(),
            comm_kernels: OnceLock::new(),
            handed_over: HandedOver::default(),
            names: Names::default(),
            clock,
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State(self.state.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn next_id(&self) -> i64 {
        self.next_id.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Moves the ids of this process to a range of their own: there are 2^40 in each.
    pub(crate) fn begin_ids_at(&self, process: u32) {
        self.next_id.0.store((i64::from(process) << 40) + 1, Ordering::Relaxed);
    }

    /// Adds to the host memory in use and returns the sum.
    pub(crate) fn allocate(&self, delta_bytes: i64) -> i64 {
        self.allocated_bytes.fetch_add(delta_bytes, Ordering::Relaxed).wrapping_add(delta_bytes)
    }

    /// When which step was recorded.
    pub(crate) fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_step(&self, step: i32) {
        self.update(|state| State::new(state.is_enabled(), state.0 & ACTIVE != 0, step));
    }

    pub(crate) fn set_active(&self, active: bool) {
        self.update(|state| State::new(state.is_enabled(), active, state.step()));
    }

    pub(crate) fn begin_step(&self, step: i32, active: bool) {
        self.update(|state| State::new(state.is_enabled(), active, step));
    }

    pub(crate) fn disable(&self) {
        self.set_linked(false);
        self.update(|state| State::new(false, false, state.step()));
    }

    /// Whether scopes that begin from now on tell CUPTI their ids.
    pub(crate) fn set_linked(&self, linked: bool) {
        let _ =
            self.state.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(State(old).linked(linked).0));
    }

    fn update(&self, change: impl Fn(State) -> State) {
        let mut timeline = self.timeline();
        // Before the change: what sees the new state happens after this.
        let now_ns = self.clock.now_ns();
        // The closure always returns a value, so the update cannot fail; it only repeats when two threads meet.
        let changed = |old| Some(change(State(old)).linked(State(old).is_linked()).0);
        let _ = self.state.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        let state = self.state();
        timeline.push(now_ns, state.step(), state.is_active());
    }
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
}
