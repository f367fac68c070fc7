//! The C library's allocator.

/// Lets the allocator keep memory that was freed, up to the end of the process. Analysis frees and allocates large columns
/// for each rank and table. By default each of them becomes a new mapping, whose pages the kernel zeroes again: a tenth of
/// the time. The memory in use at the peak grows by a fifth. An option that the allocator refuses stays as it is.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_freed_memory() {
    const MIB: libc::c_int = 1 << 20;
    // The largest threshold that glibc accepts: half of an arena's heap.
    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, 32 * MIB), (libc::M_TRIM_THRESHOLD, 1024 * MIB), (libc::M_TOP_PAD, 16 * MIB)]
    {
        // SAFETY: mallopt changes options of the allocator under its own lock. No option changes memory in use.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Other allocators keep freed memory by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_freed_memory() {}

/// Gives memory that was freed back to the system, also from between memory in use. For where a process drops far more than it
/// allocates soon: the pages come back zeroed.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back_freed_memory() {
    // SAFETY: malloc_trim locks each arena while it returns its free pages. It touches no memory in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back_freed_memory() {}
