//! The C library's fsync, replaced for the whole test program.

/// Waits for the disk, then syncs the file.
// SAFETY: no other object of this program defines the name, and the signature is that of fsync(2).
#[unsafe(no_mangle)]
extern "C" fn fsync(file: libc::c_int) -> libc::c_int {
    super::wait(file);
    // SAFETY: the kernel checks the descriptor. The function sets errno, as the caller expects.
    unsafe { libc::syscall(libc::SYS_fsync, file) as libc::c_int }
}
