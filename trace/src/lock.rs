//! Locks that survive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a thread has panicked while it held the lock: every value behind these locks is complete whenever
/// the lock is free.
///
/// A program that is recorded, or that analyzes from Python, may fork at any moment. A mutex of the standard library is all that
/// a fork has to find unlocked; those of parking_lot share a table of waiting threads, which may stay locked in the child.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
