//! The C library's allocator.

/// Lets the allocator keep memory that was freed, up to the end of the process. Analysis frees and allocates large columns
/// for each rank and table. By default each of them becomes a new mapping, whose pages the kernel zeroes again: a tenth of
/// the time. The memory in use at the peak grows by a fifth. An option that the allocator refuses stays as it is.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_freed_memory() {
    // The largest threshold that glibc accepts: half of an arena's heap.
    set_options(32 * MIB, 1024 * MIB, 16 * MIB);
}

/// The calls that keep freed memory now.
#[cfg(target_env = "gnu")]
static KEEPERS: std::sync::Mutex<usize> = std::sync::Mutex::new(0);

/// While one exists, the allocator of a process that is not ours keeps freed memory for the next columns. The last one gives
/// back what is free then, and leaves the options as glibc chooses them itself once large blocks were freed.
#[derive(Debug)]
#[non_exhaustive]
pub struct KeptMemory;

#[cfg(target_env = "gnu")]
impl KeptMemory {
    /// Keeps freed memory from now on.
    pub fn new() -> Self {
        let mut keepers = KEEPERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *keepers == 0 {
            keep_freed_memory();
        }
        *keepers += 1;
        Self
    }
}

#[cfg(target_env = "gnu")]
impl Drop for KeptMemory {
    fn drop(&mut self) {
        let mut keepers = KEEPERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *keepers -= 1;
        if *keepers == 0 {
            // `DEFAULT_MMAP_THRESHOLD_MAX`, twice that, and `DEFAULT_TOP_PAD` (malloc/malloc.c).
            set_options(32 * MIB, 64 * MIB, MIB / 8);
            give_back_freed_memory();
        }
    }
}

#[cfg(not(target_env = "gnu"))]
impl KeptMemory {
    /// Other allocators keep freed memory by themselves.
    pub fn new() -> Self {
        Self
    }
}

impl Default for KeptMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// Gives freed memory back to the system from now on, for the reduction: its stages hold rows of all ranks in turn, and what one
/// stage freed would stay beside what the next one allocates.
#[cfg(target_env = "gnu")]
pub(crate) fn return_freed_memory() {
    set_options(4 * MIB, 8 * MIB, MIB);
    share_one_arena();
    give_back_freed_memory();
}

/// Lets all threads that start from now on share one arena: each arena keeps free memory of its own.
#[cfg(target_env = "gnu")]
pub(crate) fn share_one_arena() {
    set_option(libc::M_ARENA_MAX, 1);
}

/// Gives memory that was freed back to the system, also from between memory in use: where a stage of the reduction has ended.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back_freed_memory() {
    // SAFETY: malloc_trim locks each arena while it returns its free pages. It touches no memory in use.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(target_env = "gnu")]
const MIB: libc::c_int = 1 << 20;

#[cfg(target_env = "gnu")]
fn set_options(mmap_threshold: libc::c_int, trim_threshold: libc::c_int, top_pad: libc::c_int) {
    let options = [
        (libc::M_MMAP_THRESHOLD, mmap_threshold),
        (libc::M_TRIM_THRESHOLD, trim_threshold),
        (libc::M_TOP_PAD, top_pad),
    ];
    for (option, value) in options {
        set_option(option, value);
    }
}

#[cfg(target_env = "gnu")]
fn set_option(option: libc::c_int, value: libc::c_int) {
    // SAFETY: mallopt changes options of the allocator under its own lock. No option changes memory in use.
    unsafe { libc::mallopt(option, value) };
}

/// Other allocators keep freed memory by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_freed_memory() {}

/// Other allocators decide by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn return_freed_memory() {}

/// Other allocators decide by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn share_one_arena() {}

/// Other allocators decide by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back_freed_memory() {}
