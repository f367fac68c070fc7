//! `librankscope_inject.so`, the library that CUDA, NVTX and NCCL load into a recorded program.
//!
//! ```console
//! CUDA_INJECTION64_PATH=/path/librankscope_inject.so     CUDA calls InitializeInjection in cuInit
//! NVTX_INJECTION64_PATH=/path/librankscope_inject.so     NVTX calls InitializeInjectionNvtx2 at the first range
//! NCCL_PROFILER_PLUGIN=/path/librankscope_inject.so      NCCL looks for ncclProfiler_v7, then older versions
//! ```
//!
//! `rank-agent exec` sets these three variables, and those of [`recorder::variables`], from which the library reads where
//! and what to record. Without the latter the library does nothing.
//!
//! ```
//! // No run to record into: CUDA gets its success, and no thread and no file is made.
//! assert_eq!(rankscope_inject::ffi::InitializeInjection(), 1);
//! ```

mod environment;
mod error;
#[expect(unsafe_code, reason = "symbols that other libraries look up by name")]
pub mod ffi;
mod follow;
mod nvtx;
mod process;
mod steps;

#[cfg(feature = "fuzzing")]
pub use environment::check_any_variables;
#[cfg(feature = "fuzzing")]
pub use nvtx::fuzz::check_any_ranges;
