//! The C library's allocator.

#[cfg(target_env = "gnu")]
use std::sync::atomic::{AtomicU64, Ordering};

/// Lets the allocator keep memory that was freed, up to the end of the process. Analysis frees and allocates large columns
/// for each rank and table. By default each of them becomes a new mapping, whose pages the kernel zeroes again: a tenth of
/// the time. The memory in use at the peak grows by a fifth. An option that the allocator refuses stays as it is.
#[cfg(target_env = "gnu")]
pub fn keep_freed_memory() {
    // The largest threshold that glibc accepts: half of an arena's heap.
    set_options(32 * MIB, 1024 * MIB, 16 * MIB);
}

/// The calls that keep freed memory now; the upper half is the process that counts them. A program may fork at any moment of a
/// call. A lock that a thread held then would never be free in the child, which has no such thread; the child counts anew.
#[cfg(target_env = "gnu")]
static KEEPERS: AtomicU64 = AtomicU64::new(0);

/// While one exists, the allocator of a process that is not ours keeps freed memory for the next columns. The last one gives
/// back what is free then, and leaves the options as glibc chooses them itself once large blocks were freed.
#[derive(Debug)]
#[non_exhaustive]
pub struct KeptMemory;

#[cfg(target_env = "gnu")]
impl KeptMemory {
    /// Keeps freed memory from now on.
    pub fn new() -> Self {
        count_keepers(1);
        Self
    }
}

#[cfg(target_env = "gnu")]
impl Drop for KeptMemory {
    fn drop(&mut self) {
        if !count_keepers(-1) {
            give_back_freed_memory();
        }
    }
}

/// Counts a keeper more or less, and sets the options accordingly. Returns whether freed memory is kept.
#[cfg(target_env = "gnu")]
fn count_keepers(change: i32) -> bool {
    let counted = |packed: u64| {
        let keepers = keepers_of_this_process(packed).saturating_add_signed(change);
        u64::from(std::process::id()) << 32 | u64::from(keepers)
    };
    let keeps = || keepers_of_this_process(KEEPERS.load(Ordering::SeqCst)) > 0;
    KEEPERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |packed| Some(counted(packed))).ok();
    loop {
        let kept = keeps();
        if kept {
            keep_freed_memory();
        } else {
            // `DEFAULT_MMAP_THRESHOLD_MAX`, twice that, and `DEFAULT_TOP_PAD` (malloc/malloc.c).
            set_options(32 * MIB, 64 * MIB, MIB / 8);
        }
        // Another thread may have set the options in between, for another count.
        if keeps() == kept {
            return kept;
        }
    }
}

#[cfg(target_env = "gnu")]
fn keepers_of_this_process(packed: u64) -> u32 {
    if packed >> 32 == u64::from(std::process::id()) { packed as u32 } else { 0 }
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
pub fn return_freed_memory() {
    set_options(4 * MIB, 8 * MIB, MIB);
    share_one_arena();
    give_back_freed_memory();
}

/// Lets all threads that start from now on share one arena: each arena keeps free memory of its own.
#[cfg(target_env = "gnu")]
pub fn share_one_arena() {
    set_option(libc::M_ARENA_MAX, 1);
}

/// Gives memory that was freed back to the system, also from between memory in use: before the data of all ranks is read.
#[cfg(target_env = "gnu")]
pub fn give_back_freed_memory() {
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
