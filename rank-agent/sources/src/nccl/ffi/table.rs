//! The tables of functions that a plugin hands to NCCL.

use std::ffi::{c_char, c_int, c_void};

/// `ncclSuccess`.
pub(super) const SUCCESS: c_int = 0;

/// NCCL's `ncclProfiler_vN_t`: a name and five functions.
#[derive(Debug)]
#[repr(C)]
pub struct Table<Init> {
    pub(super) name: *const c_char,
    pub(super) init: Init,
    pub(super) start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    pub(super) stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) record_state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the table is constant: a pointer to a static string, and functions.
unsafe impl<Init> Sync for Table<Init> {}

/// `init` of v3: context, mask.
pub type InitV3 = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
/// `init` of v4: context, mask, name, hash, nodes, ranks, rank, logger.
pub type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, *const c_void) -> c_int;
/// `init` of v5 to v7: context, hash, mask, name, nodes, ranks, rank, logger.
pub type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, *const c_void) -> c_int;
