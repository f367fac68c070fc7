//! Device work whose launch has not been seen yet.

use std::collections::VecDeque;

use crate::device::DeviceEvent;

/// Pieces of work that wait; of more, the oldest goes on without its launch.
const MAX_WAITING: usize = 1 << 18;
/// Flushes that a piece of work waits: records of calls come with the first flush after the call, unless they were
/// lost.
const PATIENCE: u32 = 3;

/// Device work and the id that joins it to its launch.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) event: DeviceEvent,
    pub(crate) correlation_id: u32,
    /// Flushes that it has waited.
    pub(crate) age: u32,
}

/// Work in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiting(VecDeque<Launched>);

impl Waiting {
    /// Lets it wait. Returns what has to go in its place.
    pub(crate) fn push(&mut self, launched: Launched) -> Option<Launched> {
        self.0.push_back(launched);
        (self.0.len() > MAX_WAITING).then(|| self.0.pop_front()).flatten()
    }

    /// After a flush: takes what has waited long enough.
    pub(crate) fn grow_older(&mut self) -> Vec<Launched> {
        self.0.iter_mut().for_each(|launched| launched.age += 1);
        let overdue = self.0.iter().take_while(|launched| launched.age >= PATIENCE).count();
        self.0.drain(..overdue).collect()
    }

    /// Takes those that `ready`.
    pub(crate) fn take_ready(&mut self, ready: impl Fn(u32) -> bool) -> Vec<Launched> {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|l| ready(l.correlation_id));
        self.0 = kept;
        Vec::from(taken)
    }

    /// All.
    pub(crate) fn drain(&mut self) -> Vec<Launched> {
        self.0.drain(..).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
