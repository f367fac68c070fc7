//! Handles that NCCL holds: numbers, never pointers.
//!
//! ```text
//!  63            32 31             0
//! ┌────────────────┬────────────────┐
//! │   generation   │    slot + 1    │     odd generation: open; even: free
//! └────────────────┴────────────────┘
//! ```
//!
//! NCCL stops events twice, records states after the stop, and names parents that are long over (its issues 1992, 2000,
//! 1658). A handle whose slot has gone on to another generation is simply not valid any more; nothing is ever freed that
//! a handle could reach. Slots are used again as late as possible.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

#[derive(Debug)]
struct Slot {
    generation: AtomicU32,
    /// The second plugin's handle of the same event; 0: none.
    chained: AtomicUsize,
}

/// A bounded pool of handles. Any thread opens and closes; neither locks nor allocates.
#[derive(Debug)]
pub(crate) struct Handles {
    slots: Box<[Slot]>,
    /// Free slots, the longest unused first.
    free: ArrayQueue<u32>,
}

fn handle(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | (u64::from(slot) + 1)
}

impl Handles {
    /// A pool of `capacity` handles, at least one.
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let free = ArrayQueue::new(capacity as usize);
        for slot in 0..capacity {
            // There is room: as many as the capacity.
            let _ = free.push(slot);
        }
        let slot = |_| Slot { generation: AtomicU32::new(0), chained: AtomicUsize::new(0) };
        Self { slots: (0..capacity).map(slot).collect(), free }
    }

    /// A handle that no other event has or had; `None` if all are in use.
    pub(crate) fn open(&self) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        // Whoever took the slot from the queue has it alone until it is open.
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.chained.store(0, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Release);
        Some(handle(index, generation))
    }

    /// Ends a handle. `true` for exactly one of those who try; `false` for a handle that is no longer, or never was,
    /// open.
    pub(crate) fn close(&self, handle: u64) -> bool {
        let Some((index, slot, generation)) = self.find(handle) else { return false };
        let closed = generation.wrapping_add(1);
        let won = slot.generation.compare_exchange(generation, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if won {
            // There is room: every slot is in the queue at most once.
            let _ = self.free.push(index);
        }
        won
    }

    /// Whether the handle is open.
    pub(crate) fn is_open(&self, handle: u64) -> bool {
        self.find(handle).is_some_and(|(_, slot, generation)| slot.generation.load(Ordering::Acquire) == generation)
    }

    /// Keeps the second plugin's handle beside an open one.
    pub(crate) fn set_chained(&self, handle: u64, chained: usize) {
        if let Some((_, slot, generation)) = self.find(handle)
            && slot.generation.load(Ordering::Acquire) == generation
        {
            slot.chained.store(chained, Ordering::Release);
        }
    }

    /// The second plugin's handle of an event that is open, or was until its slot was used again: children name parents
    /// that have stopped. 0: none.
    pub(crate) fn chained(&self, handle: u64) -> usize {
        let Some((_, slot, generation)) = self.find(handle) else { return 0 };
        let of_this = || {
            let now = slot.generation.load(Ordering::Acquire);
            now == generation || now == generation.wrapping_add(1)
        };
        // Looked at before and after, so that it is not another event's.
        let before = of_this();
        let chained = slot.chained.load(Ordering::Acquire);
        if before && of_this() { chained } else { 0 }
    }

    fn find(&self, handle: u64) -> Option<(u32, &Slot, u32)> {
        let index = (handle as u32).checked_sub(1)?;
        let generation = (handle >> 32) as u32;
        let slot = self.slots.get(index as usize)?;
        (generation % 2 == 1).then_some((index, slot, generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_open_once_and_closed_once() {
        let handles = Handles::new(2);
        let (a, b) = (handles.open().unwrap(), handles.open().unwrap());
        assert_ne!(a, b);
        assert_eq!(handles.open(), None, "the pool is bounded");
        assert!(handles.is_open(a) && handles.close(a));
        assert!(!handles.is_open(a) && !handles.close(a), "stopped twice");
        let c = handles.open().unwrap();
        assert_ne!(c, a, "the slot of a, but not its handle");
        assert!(!handles.close(a) && handles.is_open(c));
        for never in [0, 1, 3, u64::MAX, 1 << 32, 0x7fff_1234_5678_9abc] {
            assert!(!handles.is_open(never) && !handles.close(never) && handles.chained(never) == 0, "{never:#x}");
        }
    }

    #[test]
    fn a_chained_handle_outlives_the_stop_but_not_the_slot() {
        let handles = Handles::new(1);
        let a = handles.open().unwrap();
        handles.set_chained(a, 77);
        assert!(handles.close(a));
        assert_eq!(handles.chained(a), 77, "children come after the stop");
        let b = handles.open().unwrap();
        assert_eq!((handles.chained(a), handles.chained(b)), (0, 0));
        handles.set_chained(a, 1);
        assert_eq!(handles.chained(b), 0);
    }

    /// Threads that open, close, and close each other's; run it under Miri for data races and other memory models.
    #[test]
    fn threads_never_share_a_handle() {
        const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };
        let handles = Handles::new(4);
        let (opened, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let last = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|threads| {
            for own in 1..=3_usize {
                let (handles, opened, closed, last) = (&handles, &opened, &closed, &last);
                threads.spawn(move || {
                    for _ in 0..ROUNDS {
                        let Some(handle) = handles.open() else { continue };
                        opened.fetch_add(1, Ordering::Relaxed);
                        handles.set_chained(handle, own);
                        let mine = handles.chained(handle);
                        // Another thread may have closed it by now, but nobody's number but this thread's can be there.
                        assert!(mine == own || mine == 0, "{mine} in a slot of {own}");
                        let other = last.swap(handle, Ordering::Relaxed);
                        for each in [other, handle] {
                            closed.fetch_add(usize::from(handles.close(each)), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        closed.fetch_add(usize::from(handles.close(last.load(Ordering::Relaxed))), Ordering::Relaxed);
        assert_eq!(opened.load(Ordering::Relaxed), closed.load(Ordering::Relaxed), "each is closed exactly once");
        assert_eq!((0..5).filter(|_| handles.open().is_some()).count(), 4, "every slot came back once");
    }
}
