//! The functions that CUPTI calls. No panic leaves them, and in a forked child they do nothing.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Safe bodies of the callbacks.
pub(crate) trait Callbacks {
    /// A buffer for CUPTI: address and size. Without one, CUPTI counts the records that it cannot store.
    fn lend_buffer() -> Option<(*mut u8, usize)>;
    /// Takes back a buffer whose first `valid` bytes hold records.
    fn take_buffer(address: *mut u8, valid: usize);
    /// The recorder's clock.
    fn now() -> u64;
    /// A call or event of a domain; `site` returns whether the call begins or ends.
    fn on_event(domain: u32, id: u32, site: impl Fn() -> Option<u32>);
    /// The process exits normally.
    fn at_exit();
    /// This process is a new fork. Only an atomic store is allowed here.
    fn forked();
    /// Counts a panic in one of the other functions.
    fn count_panic();
}

/// Runs `body`. After a panic it counts it and returns `otherwise`.
fn enter<C: Callbacks, T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        C::count_panic();
        otherwise
    })
}

pub(super) extern "C" fn on_request<C: Callbacks>(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let (address, bytes) = enter::<C, _>(None, C::lend_buffer).unwrap_or((ptr::null_mut(), 0));
    // SAFETY: CUPTI passes three addresses for results; a limit of 0 records means as many as fit.
    unsafe {
        buffer.write(address);
        size.write(bytes);
        max_records.write(0);
    }
}

pub(super) extern "C" fn on_complete<C: Callbacks>(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    enter::<C, _>((), || C::take_buffer(buffer, valid));
}

pub(super) extern "C" fn on_timestamp<C: Callbacks>() -> u64 {
    enter::<C, _>(0, C::now)
}

pub(super) extern "C" fn on_callback<C: Callbacks>(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    // SAFETY: in the domains of API calls, `data` is a `CUpti_CallbackData`, which begins with `callbackSite`, a u32: 0
    // at the start of the function. Other domains do not call `site`.
    let site = || unsafe { data.cast::<u32>().as_ref() }.copied();
    enter::<C, _>((), || C::on_event(domain, id, site));
}

extern "C" fn exiting<C: Callbacks>() {
    enter::<C, _>((), C::at_exit);
}

unsafe extern "C" fn in_child<C: Callbacks>() {
    C::forked();
}

/// Registers the handlers for the exit of the process and for its forks.
pub(crate) fn watch_process<C: Callbacks>() {
    // SAFETY: the function lives as long as the process and only stores an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_child::<C>)) };
    self::at_exit::<C>();
}

/// Registers the handler for the exit of the process, before which all handlers run that are registered later.
pub(crate) fn at_exit<C: Callbacks>() {
    // SAFETY: the function lives as long as the process. Registration fails only without memory, and then an exit loses the
    // records that CUPTI still holds, like a killed process.
    unsafe { libc::atexit(exiting::<C>) };
}
