//! What the handles are made of.

pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize};

/// Bounded, lock-free, first in first out.
pub(super) type FreeSlots = crossbeam_queue::ArrayQueue<u32>;
