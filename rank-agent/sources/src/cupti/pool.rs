//! The buffers that CUPTI fills: a bounded number, which are reused.

use std::sync::Mutex;

use recorder::lock;

use super::ffi::{Buffer, Lent};

/// Size of an overflow buffer. Older CUPTI versions must receive a buffer even if all are in use; its records are counted
/// and lost.
const OVERFLOW_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct State {
    free: Vec<Buffer>,
    /// Buffers that CUPTI holds, and whether each is an overflow buffer.
    lent: Vec<(Lent, bool)>,
    /// Number of buffers that exist, without overflow buffers.
    made: usize,
}

/// The pool. No thread holds its lock while it calls CUPTI, so that a callback cannot cause a deadlock.
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

    /// An empty buffer for CUPTI: its address and size. If all are in use: with `must` an overflow buffer, otherwise
    /// `None`.
    pub(crate) fn lend(&self, must: bool) -> Option<(*mut u8, usize)> {
        let mut state = lock(&self.state);
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

    /// Takes a buffer back and returns whether it is an overflow buffer. `None` if this pool did not lend it.
    pub(crate) fn take_back(&self, address: *mut u8) -> Option<(Buffer, bool)> {
        let mut state = lock(&self.state);
        let index = state.lent.iter().position(|(lent, _)| lent.address() == address)?;
        let (lent, overflow) = state.lent.swap_remove(index);
        Some((lent.take_back(), overflow))
    }

    /// Returns a buffer that has been read to the pool.
    pub(crate) fn give(&self, mut buffer: Buffer) {
        // CUPTI expects zeroed buffers; zeroing them here costs the program's threads nothing.
        buffer.zero();
        lock(&self.state).free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_buffers_are_bounded_except_for_overflow_buffers() {
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
