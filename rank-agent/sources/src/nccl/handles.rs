//! Handles for NCCL: numbers, not pointers.
//!
//! ```text
//!  63            32 31             0
//! ┌────────────────┬────────────────┐
//! │   generation   │    slot + 1    │     odd generation: open; even: free
//! └────────────────┴────────────────┘
//! ```
//!
//! NCCL stops events twice, changes states after the stop, and refers to parents that have ended (its issues 1992, 2000,
//! 1658). A handle is invalid once its slot has another generation, and no memory is freed that a handle could reach.
//! Slots are reused as late as possible.

use std::sync::atomic::Ordering;

// The standard atomics. The test `handles_loom` compiles this file a second time with those of a model checker.
use super::loom_shim::{AtomicU32, AtomicUsize, FreeSlots};

#[derive(Debug)]
struct Slot {
    generation: AtomicU32,
    /// The second plugin's handle of the same event; 0 for none.
    chained: AtomicUsize,
    /// Event mask for the children of the event.
    child_mask: AtomicU32,
}

/// A bounded pool of handles. Any thread opens and closes handles, without locks and allocations.
#[derive(Debug)]
pub(crate) struct Handles {
    slots: Box<[Slot]>,
    /// Free slots, in the order in which they became free.
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
            // There is room: the queue has the pool's capacity.
            let _ = free.push(slot);
        }
        let slot =
            |_| Slot { generation: AtomicU32::new(0), chained: AtomicUsize::new(0), child_mask: AtomicU32::new(0) };
        Self { slots: (0..capacity).map(slot).collect(), free }
    }

    /// Opens a handle that no other event has or had; `None` if all slots are in use. `child_mask` is the event mask for
    /// the children of the event.
    pub(crate) fn open(&self, child_mask: u32) -> Option<u64> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        // This thread took the slot from the queue and owns it until it is open.
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1);
        slot.chained.store(0, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Release);
        // Store the mask after the generation: a thread that reads the new mask also sees the new generation.
        slot.child_mask.store(child_mask, Ordering::Release);
        Some(handle(index, generation))
    }

    /// Closes a handle. Returns `true` to exactly one caller, and `false` for a handle that is not open.
    pub(crate) fn close(&self, handle: u64) -> bool {
        let Some((index, slot, generation)) = self.find(handle) else { return false };
        let closed = generation.wrapping_add(1);
        let won = slot.generation.compare_exchange(generation, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if won {
            // There is room: a slot is in the queue at most once.
            let _ = self.free.push(index);
        }
        won
    }

    /// Whether the handle is open.
    pub(crate) fn is_open(&self, handle: u64) -> bool {
        self.find(handle).is_some_and(|(_, slot, generation)| slot.generation.load(Ordering::Acquire) == generation)
    }

    /// Stores the second plugin's handle beside an open handle.
    pub(crate) fn set_chained(&self, handle: u64, chained: usize) {
        if let Some((_, slot, generation)) = self.find(handle)
            && slot.generation.load(Ordering::Acquire) == generation
        {
            slot.chained.store(chained, Ordering::Release);
        }
    }

    /// The second plugin's handle of an event, until the slot is reused: child events refer to parents that have stopped.
    /// 0 for none.
    pub(crate) fn chained(&self, handle: u64) -> usize {
        self.beside(handle, |slot| slot.chained.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Event mask for the children of an event; `None` if the slot was reused.
    pub(crate) fn child_mask(&self, handle: u64) -> Option<u32> {
        self.beside(handle, |slot| slot.child_mask.load(Ordering::Acquire))
    }

    /// Reads a value beside a handle that is open, or whose slot was not reused since.
    fn beside<T>(&self, handle: u64, read: impl Fn(&Slot) -> T) -> Option<T> {
        let (_, slot, generation) = self.find(handle)?;
        let of_this = || {
            let now = slot.generation.load(Ordering::Acquire);
            now == generation || now == generation.wrapping_add(1)
        };
        // Check before and after the read, so that the value does not belong to another event.
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
