//! The types that handles are made of. `handles_loom` replaces them by those of a model checker.

pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Bounded, lock-free, first in first out.
pub(super) type FreeSlots = crossbeam_queue::ArrayQueue<u32>;
