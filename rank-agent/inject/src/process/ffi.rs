//! Handlers that the C library calls when the process exits or forks.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use recorder::report;

// POSIX; part of the C library, which std links anyway.
unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// What ends the recording at exit.
static FINISH: OnceLock<fn()> = OnceLock::new();
/// This process is a fork of the one that records: it has neither that one's threads nor a right to its files.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a fork of the one that records.
#[inline]
pub(super) fn is_fork() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Calls `finish` at exit.
pub(super) fn at_exit(finish: fn()) {
    FINISH.get_or_init(|| finish);
    // SAFETY: the function lives as long as the library, which is linked so that it is never unloaded.
    if unsafe { atexit(exiting) } != 0 {
        report("the C library takes no more exit handlers; the last 2 s of the trace may be missing");
    }
}

/// Makes forks of this process leave its recording alone.
pub(super) fn at_fork() {
    // SAFETY: as above.
    if unsafe { pthread_atfork(None, None, Some(forked)) } != 0 {
        report("the C library takes no more fork handlers; children of this process may write to its trace");
    }
}

extern "C" fn exiting() {
    // A panic must not unwind into the C library; the process is ending, so nothing more can be reported.
    let _ = FINISH.get().map(catch_unwind);
}

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}
