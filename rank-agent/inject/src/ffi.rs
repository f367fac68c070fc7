//! The exported symbols.

use std::ffi::c_int;
use std::panic::catch_unwind;

use recorder::report;
use sources::nccl::ffi::{InitV3, InitV4, InitV5, Table, v3, v4, v5, v6, v7};

use crate::nvtx::ffi::{GetExportTable, attach};
use crate::process::{self, ThisProcess};

// SAFETY (of all): this library links no other symbol with these names.

/// NCCL 2.26.
#[unsafe(no_mangle)]
pub static ncclProfiler_v3: Table<InitV3> = v3::<ThisProcess>();
/// NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Table<InitV4> = v4::<ThisProcess>();
/// NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Table<InitV5> = v5::<ThisProcess>();
/// NCCL 2.29 and 2.30.
#[unsafe(no_mangle)]
pub static ncclProfiler_v6: Table<InitV5> = v6::<ThisProcess>();
/// NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
pub static ncclProfiler_v7: Table<InitV5> = v7::<ThisProcess>();

/// Called by NVTX 3 at the program's first range.
///
/// # Safety
/// `get` is NVTX's own function, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get: Option<GetExportTable>) -> c_int {
    // SAFETY: as for the caller.
    let attached = catch_unwind(|| process::start().is_some() && unsafe { attach(get) });
    c_int::from(attached.unwrap_or(false))
}

/// Called by CUDA's driver in `cuInit`. It always returns success: the program must not fail because it is recorded.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    let started = catch_unwind(process::start_cuda);
    if started.is_err() {
        report("an error inside the recorder; CUDA is not recorded");
    }
    1
}
