//! State of the stand-in. There is one per process, like CUPTI's.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Behaviour: the words of `STAND_IN_CUPTI`.
pub(crate) fn behaviour(word: &str) -> bool {
    words().iter().any(|w| w == word)
}

/// The version to report.
pub(crate) fn version() -> u32 {
    words().iter().find_map(|w| w.strip_prefix("version=")?.parse().ok()).unwrap_or(130_001)
}

fn words() -> Vec<String> {
    std::env::var("STAND_IN_CUPTI").unwrap_or_default().split(',').map(str::to_string).collect()
}

/// The buffer that is being filled.
#[derive(Clone, Copy)]
pub(crate) struct Filling {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) used: usize,
}

pub(crate) struct State {
    pub(crate) subscribed: bool,
    pub(crate) enabled: BTreeSet<u32>,
    /// Driver calls that are recorded one by one.
    pub(crate) driver_calls: BTreeSet<u32>,
    /// Runtime calls that are not recorded with their kind.
    pub(crate) left_out_calls: BTreeSet<u32>,
    /// No driver call was enabled when the context was made: single ones are not recorded in it.
    pub(crate) misses_driver_calls: bool,
    pub(crate) callbacks: BTreeSet<(u32, u32)>,
    pub(crate) filling: Option<Filling>,
    /// Full buffers.
    pub(crate) held: Vec<Filling>,
    pub(crate) dropped: usize,
    pub(crate) next_correlation: u32,
    pub(crate) flushes: u64,
    pub(crate) pushes: u64,
    /// The thread on which CUDA initialises.
    pub(crate) initialises: Option<ThreadId>,
    /// Calls of other threads meanwhile. In a driver they can wait for each other for ever.
    pub(crate) intruders: u64,
    /// The driver's handler for the exit has run: CUPTI hands over no more.
    pub(crate) is_over: bool,
    /// How often kernels were enabled and disabled.
    pub(crate) enabled_kernels: u64,
    pub(crate) disabled_kernels: u64,
}

static STATE: Mutex<State> = Mutex::new(State {
    subscribed: false,
    enabled: BTreeSet::new(),
    driver_calls: BTreeSet::new(),
    left_out_calls: BTreeSet::new(),
    misses_driver_calls: false,
    callbacks: BTreeSet::new(),
    filling: None,
    held: Vec::new(),
    dropped: 0,
    next_correlation: 0,
    flushes: 0,
    pushes: 0,
    initialises: None,
    intruders: 0,
    is_over: false,
    enabled_kernels: 0,
    disabled_kernels: 0,
});

impl State {
    /// The program makes a context.
    pub(crate) fn makes_context(&mut self) {
        self.misses_driver_calls = self.driver_calls.is_empty();
    }
}

/// Locks the state. No callback is called under the lock.
pub(crate) fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
