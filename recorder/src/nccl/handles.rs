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

use std::sync::atomic::Ordering;

// The system's atomics; those of a model checker where tests compile this file a second time.
use super::sync::{AtomicU32, AtomicUsize, FreeSlots};

#[derive(Debug)]
struct Slot {
    generation: AtomicU32,
    /// The second plugin's handle of the same event; 0: none.
    chained: AtomicUsize,
    /// Which types are recorded of what hangs below the event.
    asked: AtomicU32,
}

/// A bounded pool of handles. Any thread opens and closes; neither locks nor allocates.
#[derive(Debug)]
pub(crate) struct Handles {
    slots: Box<[Slot]>,
    /// Free slots, the longest unused first.
    free: FreeSlots,
}

fn handle(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | (u64::from(slot) + 1)
}

impl Handles {
    /// A pool of `capacity` handles, at least one.
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let free = FreeSlots::new(capacity as usize);
        for slot in 0..capacity {
            // There is room: as many as the capacity.
            let _ = free.push(slot);
        }
        let slot = |_| Slot { generation: AtomicU32::new(0), chained: AtomicUsize::new(0), asked: AtomicU32::new(0) };
        Self { slots: (0..capacity).map(slot).collect(), free }
    }

    /// A handle that no other event has or had; `None` if all are in use. `asked`: the types, as bits, that are recorded
    /// of what hangs below the event.
    pub(crate) fn open(&self, asked: u32) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        // Whoever took the slot from the queue has it alone until it is open.
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.chained.store(0, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Release);
        // Behind it: who sees this of the slot sees that it is another event's, too.
        slot.asked.store(asked, Ordering::Release);
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
        self.beside(handle, |slot| slot.chained.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Which types are recorded of what hangs below an event; `None`: its slot has been used again.
    pub(crate) fn asked(&self, handle: u64) -> Option<u32> {
        self.beside(handle, |slot| slot.asked.load(Ordering::Acquire))
    }

    /// What stands beside a handle that is open, or was until its slot was used again.
    fn beside<T>(&self, handle: u64, read: impl Fn(&Slot) -> T) -> Option<T> {
        let (_, slot, generation) = self.find(handle)?;
        let of_this = || {
            let now = slot.generation.load(Ordering::Acquire);
            now == generation || now == generation.wrapping_add(1)
        };
        // Looked at before and after, so that it is not another event's.
        let before = of_this();
        let value = read(slot);
        (before && of_this()).then_some(value)
    }

    fn find(&self, handle: u64) -> Option<(u32, &Slot, u32)> {
        let index = (handle as u32).checked_sub(1)?;
        let generation = (handle >> 32) as u32;
        let slot = self.slots.get(index as usize)?;
        (generation % 2 == 1).then_some((index, slot, generation))
    }
}
