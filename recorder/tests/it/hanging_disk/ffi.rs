//! The C library's fsync, replaced for the whole test program.

use std::os::fd::BorrowedFd;

/// Waits for the disk, then syncs the file.
// SAFETY: no other object of this program defines the name, and the signature is that of fsync(2).
#[unsafe(no_mangle)]
extern "C" fn fsync(file: libc::c_int) -> libc::c_int {
    super::wait(file);
    // SAFETY: the caller of fsync keeps its descriptor open during the call.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    match rustix::fs::fsync(file) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: the C library's errno of this thread is always valid.
            unsafe { *libc::__errno_location() = error.raw_os_error() };
            -1
        }
    }
}
