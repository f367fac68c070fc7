//! What CUPTI calls. No panic leaves these functions, and in a forked child they do nothing.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::cupti::session;

/// Runs `body`; a panic in it becomes `otherwise`, and a count.
fn enter<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        session::count_panic();
        otherwise
    })
}

pub(super) extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let (address, bytes) = enter(None, session::lend_buffer).unwrap_or((ptr::null_mut(), 0));
    // SAFETY: CUPTI passes three places to write to; 0 records at most means as many as fit.
    unsafe {
        buffer.write(address);
        size.write(bytes);
        max_records.write(0);
    }
}

pub(super) extern "C" fn on_complete(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    enter((), || session::take_buffer(buffer, valid));
}

pub(super) extern "C" fn on_timestamp() -> u64 {
    enter(0, session::now)
}

pub(super) extern "C" fn on_callback(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    // SAFETY: in the domains of API calls, `data` is a `CUpti_CallbackData`, which begins with `callbackSite`, a u32: 0
    // when the function is entered. In others it is not looked at.
    let site = || unsafe { data.cast::<u32>().as_ref() }.copied();
    enter((), || session::on_event(domain, id, site));
}

extern "C" fn at_exit() {
    enter((), session::at_exit);
}

unsafe extern "C" fn in_child() {
    session::forked();
}

/// Arranges for the end of the process and for its children.
pub(crate) fn watch_process() {
    // SAFETY: both functions live as long as the process; the one for the child only writes an atomic. They fail only
    // without memory, and then an exit loses what CUPTI still holds, as it would for a process that is killed.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        libc::atexit(at_exit);
    }
}
