//! The symbols.

#![expect(unsafe_code, reason = "symbols that other libraries look up by name")]

use std::ffi::c_int;
use std::panic::catch_unwind;

use recorder::nccl::ffi::{InitV3, InitV4, InitV5, Table, V3, V4, V5, V6, V7};

// SAFETY (of all): no other symbol of these names is linked into this library.

/// NCCL 2.26.
#[unsafe(no_mangle)]
pub static ncclProfiler_v3: Table<InitV3> = V3;
/// NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = V4;
/// NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = V5;
/// NCCL 2.29 and 2.30.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<InitV5> = V6;
/// NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
pub static ncclProfiler_v7: Table<InitV5> = V7;

/// Called by NVTX 3 at the program's first range.
///
/// # Safety
/// `get` is NVTX's own, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get: Option<recorder::nvtx::ffi::GetExportTable>) -> c_int {
    // SAFETY: as the caller's.
    let attached =
        catch_unwind(|| recorder::injected::start().is_some() && unsafe { recorder::nvtx::ffi::attach(get) });
    c_int::from(attached.unwrap_or(false))
}

/// Called by CUDA's driver in `cuInit`. Always says that all is well: a program is not to fail because it is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let started = catch_unwind(recorder::injected::start_cuda);
    if started.is_err() {
        eprintln!("rankscope: an error inside the recorder; CUDA is not recorded");
    }
    1
}
