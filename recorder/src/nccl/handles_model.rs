//! Handles on loom's atomics: every interleaving of a few threads, and every value that a load may see, up to a number of
//! preemptions. The queue of free slots is not what is tested, and stands behind a lock.

#[expect(clippy::duplicate_mod, reason = "once on the system's atomics, once on loom's")]
#[path = "handles.rs"]
mod handles;

/// What the handles are made of here.
mod sync {
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

/// Tries all orders with at most three preemptions; returns how many those were.
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

/// NCCL stops an event twice, from two threads, while a third begins another in the same slot.
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

/// A child names a parent that stops meanwhile, and whose slot another event takes: it gets what stands beside its
/// parent or nothing, never what belongs to the other event.
#[test]
fn what_stands_beside_a_parent_is_its_own_or_none() {
    let tried = check(|| {
        let handles = Arc::new(Handles::new(1));
        let parent = handles.open(7).unwrap();
        handles.set_chained(parent, 77);
        let reader = {
            let handles = handles.clone();
            thread::spawn(move || (handles.chained(parent), handles.asked(parent)))
        };
        assert!(handles.close(parent));
        let other = handles.open(8).unwrap();
        handles.set_chained(other, 88);
        let (chained, asked) = reader.join().unwrap();
        assert!((chained == 77 || chained == 0) && asked.is_none_or(|asked| asked == 7), "{chained} {asked:?}");
        assert_eq!((handles.chained(parent), handles.chained(other)), (0, 88));
        assert_eq!((handles.asked(parent), handles.asked(other)), (None, Some(8)));
    });
    println!("loom: {tried} orders of a look at a parent that goes");
    assert!(tried > 10);
}

/// What one thread opened and handed over, another finds open, with what was kept beside it.
#[test]
fn a_handle_that_is_handed_over_is_whole() {
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
