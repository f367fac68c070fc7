//! Open scopes, stored so that the writer thread reads them and the recording thread never waits.
//!
//! Each thread owns a fixed stack of slots. A slot is a sequence lock of plain atomics: the owner makes the version
//! odd, writes, and makes it even; the writer thread accepts a slot between two equal even versions, and otherwise
//! skips it until the next part. A rank that hangs or is killed inside a range therefore leaves that range on disk.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

use crate::queue_entry::NONE;

/// Deeper scopes are recorded when they end, but the writer cannot see them while they are open.
pub(crate) const MAX_DEPTH: usize = 32;

/// A scope that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenScope {
    pub(crate) id: i64,
    pub(crate) parent_id: i64,
    pub(crate) start_ns: i64,
    /// Kind, flags and name, packed by the caller.
    pub(crate) what: u64,
    pub(crate) step: i32,
}

#[derive(Debug)]
struct Slot {
    version: AtomicU32,
    step: AtomicI32,
    id: AtomicI64,
    parent_id: AtomicI64,
    start_ns: AtomicI64,
    what: AtomicU64,
}

impl Slot {
    fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            step: AtomicI32::new(0),
            id: AtomicI64::new(NONE),
            parent_id: AtomicI64::new(NONE),
            start_ns: AtomicI64::new(0),
            what: AtomicU64::new(0),
        }
    }

    /// Returns `None` if the slot is empty or its owner is writing it.
    fn read(&self) -> Option<OpenScope> {
        let before = self.version.load(Ordering::Acquire);
        let scope = OpenScope {
            id: self.id.load(Ordering::Relaxed),
            parent_id: self.parent_id.load(Ordering::Relaxed),
            start_ns: self.start_ns.load(Ordering::Relaxed),
            what: self.what.load(Ordering::Relaxed),
            step: self.step.load(Ordering::Relaxed),
        };
        // Keeps the loads above before the second load of the version.
        fence(Ordering::Acquire);
        let whole = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        (whole && scope.id != NONE).then_some(scope)
    }
}

/// The open scopes of one thread, outermost first. One thread opens and closes them; any thread reads them.
#[derive(Debug)]
pub(crate) struct OpenScopes {
    slots: [Slot; MAX_DEPTH],
}

impl OpenScopes {
    pub(crate) fn new() -> Self {
        Self { slots: std::array::from_fn(|_| Slot::new()) }
    }

    #[inline]
    pub(crate) fn open(&self, depth: usize, scope: OpenScope) {
        let Some(slot) = self.slots.get(depth) else { return };
        let version = slot.version.load(Ordering::Relaxed);
        slot.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Keeps the stores below after the odd version.
        fence(Ordering::Release);
        slot.id.store(scope.id, Ordering::Relaxed);
        slot.parent_id.store(scope.parent_id, Ordering::Relaxed);
        slot.start_ns.store(scope.start_ns, Ordering::Relaxed);
        slot.what.store(scope.what, Ordering::Relaxed);
        slot.step.store(scope.step, Ordering::Relaxed);
        slot.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Closes the scope `id`, unless its slot already holds another scope.
    #[inline]
    pub(crate) fn close(&self, depth: usize, id: i64) {
        let Some(slot) = self.slots.get(depth) else { return };
        if slot.id.load(Ordering::Relaxed) == id {
            slot.id.store(NONE, Ordering::Release);
        }
    }

    /// The scopes that are open now.
    pub(crate) fn read(&self) -> impl Iterator<Item = OpenScope> {
        self.slots.iter().filter_map(Slot::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(id: i64) -> OpenScope {
        OpenScope { id, parent_id: id - 1, start_ns: id * 10, what: id as u64 + 7, step: id as i32 }
    }

    #[test]
    fn open_scopes_are_read_outermost_first() {
        let open = OpenScopes::new();
        assert_eq!(open.read().count(), 0);
        open.open(0, scope(5));
        open.open(1, scope(6));
        open.open(MAX_DEPTH, scope(7));
        assert_eq!(open.read().collect::<Vec<_>>(), [scope(5), scope(6)]);
        // The slot holds another scope: nothing is closed.
        open.close(1, 5);
        open.close(1, 6);
        open.close(MAX_DEPTH, 7);
        assert_eq!(open.read().collect::<Vec<_>>(), [scope(5)]);
    }

    #[test]
    fn a_reader_never_mixes_two_scopes() {
        const LAST: i64 = if cfg!(miri) { 200 } else { 200_000 };
        let open = OpenScopes::new();
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                for id in 1..=LAST {
                    open.open(0, scope(id));
                    if id % 3 == 0 {
                        open.close(0, id);
                    }
                }
            });
            while !writer.is_finished() {
                for seen in open.read() {
                    assert_eq!(seen, scope(seen.id));
                }
            }
        });
        assert_eq!(open.read().collect::<Vec<_>>(), [scope(LAST)]);
    }
}
