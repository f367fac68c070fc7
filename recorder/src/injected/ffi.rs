//! What the C library calls when the process exits or forks.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::atomic::Ordering;

// POSIX; part of the C library that std links anyway.
unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Ends the recording at exit, and leaves it alone in forks.
pub(super) fn at_exit_and_fork() {
    // SAFETY: both take functions that live as long as the library, which is linked so that it is never unloaded.
    let failed = unsafe { pthread_atfork(None, None, Some(forked)) != 0 || atexit(exiting) != 0 };
    if failed {
        eprintln!("rankscope: the C library takes no more exit handlers; the last 2 s of the trace may be missing");
    }
}

extern "C" fn exiting() {
    // A panic must not unwind into the C library; there is nobody left to tell.
    let _ = catch_unwind(super::finish);
}

extern "C" fn forked() {
    super::FORKED.store(true, Ordering::Relaxed);
}
