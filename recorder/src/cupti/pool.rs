//! The buffers that CUPTI fills: a bounded number, used again and again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ffi::{Buffer, Lent};

/// Bytes of a buffer that is lent where none may be lent but one must be: what is written to it is counted and lost.
const OVERFLOW_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    free: Vec<Buffer>,
    /// What CUPTI holds, and whether it is overflow.
    lent: Vec<(Lent, bool)>,
    /// Buffers that exist, without overflow.
    made: usize,
}

/// The pool. Its lock is never held while CUPTI is called, so that its callbacks cannot meet it the other way round.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    buffer_bytes: usize,
    max_buffers: usize,
}

impl Pool {
    pub(crate) fn new(buffer_bytes: usize, max_buffers: usize) -> Self {
        Self { state: Mutex::default(), buffer_bytes, max_buffers: max_buffers.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer for CUPTI: its address and size. `None` if all are in use; with `must`, a small one then, whose
    /// contents will be lost.
    pub(crate) fn lend(&self, must: bool) -> Option<(*mut u8, usize)> {
        let mut state = self.lock();
        let reused = state.free.pop();
        let room = state.made < self.max_buffers;
        let (buffer, overflow) = match reused {
            Some(buffer) => (buffer, false),
            None if room => {
                state.made += 1;
                (Buffer::zeroed(self.buffer_bytes), false)
            }
            None if must => (Buffer::zeroed(OVERFLOW_BYTES), true),
            None => return None,
        };
        let lent = buffer.lend();
        let (address, bytes) = (lent.address(), lent.len());
        state.lent.push((lent, overflow));
        Some((address, bytes))
    }

    /// Takes back what was lent, and says whether it is overflow. `None` if it was not lent by this pool.
    pub(crate) fn take_back(&self, address: *mut u8) -> Option<(Buffer, bool)> {
        let mut state = self.lock();
        let index = state.lent.iter().position(|(lent, _)| lent.address() == address)?;
        let (lent, overflow) = state.lent.swap_remove(index);
        Some((lent.take_back(), overflow))
    }

    /// A buffer that has been read may be lent again.
    pub(crate) fn give(&self, mut buffer: Buffer) {
        // CUPTI is told that buffers come zeroed; here it costs the program's threads nothing.
        buffer.zero();
        self.lock().free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_are_lent_unless_one_must_be() {
        let pool = Pool::new(1 << 16, 2);
        let (a, bytes) = pool.lend(false).unwrap();
        assert_eq!((a as usize % 8, bytes), (0, 1 << 16));
        let (b, _) = pool.lend(true).unwrap();
        assert!(pool.lend(false).is_none());
        let (small, _) = pool.lend(true).unwrap();
        assert!(pool.take_back(std::ptr::null_mut()).is_none(), "never lent");
        assert!(pool.take_back(small).unwrap().1, "overflow");
        let (buffer, overflow) = pool.take_back(b).unwrap();
        assert!(!overflow && pool.take_back(b).is_none(), "taken back already");
        pool.give(buffer);
        let (again, _) = pool.lend(false).unwrap();
        assert_eq!(again, b, "the one that was given is lent again");
        for address in [a, again] {
            drop(pool.take_back(address).unwrap());
        }
    }
}
