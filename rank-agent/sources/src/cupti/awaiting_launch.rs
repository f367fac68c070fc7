//! Device work that waits for the record of its launch.

use std::collections::VecDeque;

use recorder::SourceEvent;

/// The most pieces of work that wait. Beyond it, the oldest becomes a row without its launch.
const MAX_WAITING: usize = 1 << 18;
/// Number of flushes that a piece of work waits. The record of a call arrives with the first flush after the call, unless
/// it was lost.
const PATIENCE: u32 = 3;

/// Device work and the correlation id of its launch.
#[derive(Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) event: SourceEvent,
    pub(crate) correlation_id: u32,
    /// Number of flushes that it has waited.
    pub(crate) age: u32,
}

/// The waiting work in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct AwaitingLaunch(VecDeque<Launched>);

impl AwaitingLaunch {
    /// Adds a piece of work. Returns the oldest piece if too many wait.
    pub(crate) fn push(&mut self, launched: Launched) -> Option<Launched> {
        self.0.push_back(launched);
        (self.0.len() > MAX_WAITING).then(|| self.0.pop_front()).flatten()
    }

    /// Counts a flush. Returns the work that has waited long enough.
    pub(crate) fn grow_older(&mut self) -> Vec<Launched> {
        self.0.iter_mut().for_each(|launched| launched.age += 1);
        let overdue = self.0.iter().take_while(|launched| launched.age >= PATIENCE).count();
        self.0.drain(..overdue).collect()
    }

    /// Removes the work whose launch is known.
    pub(crate) fn take_ready(&mut self, ready: impl Fn(u32) -> bool) -> Vec<Launched> {
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|l| ready(l.correlation_id));
        self.0 = kept;
        Vec::from(taken)
    }

    /// Removes all work.
    pub(crate) fn drain(&mut self) -> Vec<Launched> {
        self.0.drain(..).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
