//! Handles with loom's atomics: every interleaving of a few threads, and every value that a load may return, up to a number
//! of preemptions. The queue of free slots is not under test and uses a lock.
//!
//! The file is included by its path: `cfg(loom)` would need a separate build of all dependencies, and `cargo test` would no
//! longer run these tests.

#[expect(clippy::duplicate_mod, reason = "once with the standard atomics, once with loom's")]
#[path = "handles.rs"]
mod handles;

/// The types of the handles under loom.
mod loom_shim {
    use std::collections::VecDeque;

    pub(super) use loom::sync::atomic::{AtomicU32, AtomicUsize};

    #[derive(Debug)]
    pub(super) struct FreeSlots(loom::sync::Mutex<VecDeque<u32>>);

    impl FreeSlots {
        pub(super) fn new(capacity: usize) -> Self {
            Self(loom::sync::Mutex::new(VecDeque::with_capacity(capacity)))
        }

        pub(super) fn push(&self, slot: u32) -> Result<(), u32> {
            self.0.lock().unwrap().push_back(slot);
            Ok(())
        }

        pub(super) fn pop(&self) -> Option<u32> {
            self.0.lock().unwrap().pop_front()
        }
    }
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use self::handles::Handles;

/// Tries all orders with at most three preemptions, and returns their number.
fn check(body: impl Fn() + Send + Sync + 'static) -> usize {
    let tried = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = tried.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    tried.load(Ordering::Relaxed)
}

/// Invariant (recorder): A handle of a NCCL event is returned once in every interleaving of threads.
///
/// Two threads stop an event while a third one begins another event in the same slot.
#[test]
fn one_stop_wins_and_the_slot_comes_back_once() {
    let tried = check(|| {
        let handles = Arc::new(Handles::new(1));
        let first = handles.open(0).unwrap();
        let stops: Vec<_> = (0..2)
            .map(|_| {
                let handles = handles.clone();
                thread::spawn(move || handles.close(first))
            })
            .collect();
        let second = handles.open(0);
        let won = stops.into_iter().map(|stop| stop.join().unwrap()).filter(|won| *won).count();
        assert_eq!(won, 1);
        assert!(!handles.is_open(first));
        if let Some(second) = second {
            assert!(second != first && handles.is_open(second) && handles.close(second));
        }
        assert!(handles.open(0).is_some() && handles.open(0).is_none(), "one slot, once");
    });
    println!("loom: {tried} orders of two stops and a start");
    assert!(tried > 10);
}

/// A child event refers to a parent that stops at the same time, and whose slot another event takes. The child reads the
/// parent's values or none, never those of the other event.
#[test]
fn values_beside_a_parent_are_its_own_or_none() {
    let tried = check(|| {
        let handles = Arc::new(Handles::new(1));
        let parent = handles.open(7).unwrap();
        handles.set_chained(parent, 77);
        let reader = {
            let handles = handles.clone();
            thread::spawn(move || (handles.chained(parent), handles.child_mask(parent)))
        };
        assert!(handles.close(parent));
        let other = handles.open(8).unwrap();
        handles.set_chained(other, 88);
        let (chained, mask) = reader.join().unwrap();
        assert!((chained == 77 || chained == 0) && mask.is_none_or(|mask| mask == 7), "{chained} {mask:?}");
        assert_eq!((handles.chained(parent), handles.chained(other)), (0, 88));
        assert_eq!((handles.child_mask(parent), handles.child_mask(other)), (None, Some(8)));
    });
    println!("loom: {tried} orders of a read beside a parent that stops");
    assert!(tried > 10);
}

/// A handle that one thread opens and hands over is open for the other thread, with its values.
#[test]
fn a_handle_that_is_handed_over_is_complete() {
    let tried = check(|| {
        let handles = Arc::new(Handles::new(2));
        let handed = Arc::new(AtomicU64::new(0));
        let starts = {
            let (handles, handed) = (handles.clone(), handed.clone());
            thread::spawn(move || {
                let handle = handles.open(0).unwrap();
                handles.set_chained(handle, 5);
                handed.store(handle, Ordering::Release);
            })
        };
        let beside = handles.open(0).unwrap();
        let handle = handed.load(Ordering::Acquire);
        if handle != 0 {
            assert!(handle != beside && handles.is_open(handle) && handles.chained(handle) == 5);
            assert!(handles.close(handle) && !handles.is_open(handle));
        }
        assert!(handles.close(beside));
        starts.join().unwrap();
    });
    println!("loom: {tried} orders of a handle that is handed over");
    assert!(tried > 10);
}
