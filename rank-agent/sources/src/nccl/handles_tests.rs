//! Handles, in sequence and with real threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::handles::Handles;

#[test]
fn a_handle_is_open_once_and_closed_once() {
    let handles = Handles::new(2);
    let (a, b) = (handles.open(0).unwrap(), handles.open(0).unwrap());
    assert_ne!(a, b);
    assert_eq!(handles.open(0), None, "the pool is bounded");
    assert!(handles.is_open(a) && handles.close(a));
    assert!(!handles.is_open(a) && !handles.close(a), "stopped twice");
    let c = handles.open(0).unwrap();
    assert_ne!(c, a, "the slot of a, but not its handle");
    assert!(!handles.close(a) && handles.is_open(c));
    for never in [0, 1, 3, u64::MAX, 1 << 32, 0x7fff_1234_5678_9abc] {
        assert!(!handles.is_open(never) && !handles.close(never) && handles.chained(never) == 0, "{never:#x}");
    }
}

#[test]
fn the_child_mask_stays_until_the_slot_is_reused() {
    let handles = Handles::new(1);
    let a = handles.open(0x42).unwrap();
    assert!(handles.close(a));
    assert_eq!(handles.child_mask(a), Some(0x42), "children arrive after the stop");
    let b = handles.open(2).unwrap();
    assert_eq!((handles.child_mask(a), handles.child_mask(b), handles.child_mask(0)), (None, Some(2), None));
}

#[test]
fn a_chained_handle_stays_until_the_slot_is_reused() {
    let handles = Handles::new(1);
    let a = handles.open(0).unwrap();
    handles.set_chained(a, 77);
    assert!(handles.close(a));
    assert_eq!(handles.chained(a), 77, "children arrive after the stop");
    let b = handles.open(0).unwrap();
    assert_eq!((handles.chained(a), handles.chained(b)), (0, 0));
    handles.set_chained(a, 1);
    assert_eq!(handles.chained(b), 0);
}

/// Invariant (recorder): Two threads never hold the same handle of a NCCL event.
///
/// Threads open handles, and close their own and each other's. Run it under Miri to find data races.
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
                    let Some(handle) = handles.open(0) else { continue };
                    opened.fetch_add(1, Ordering::Relaxed);
                    handles.set_chained(handle, own);
                    let mine = handles.chained(handle);
                    // Another thread may have closed it by now, but the value can only be this thread's or 0.
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
    assert_eq!((0..5).filter(|_| handles.open(0).is_some()).count(), 4, "every slot came back once");
}
