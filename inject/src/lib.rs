//! `librankscope_inject.so`: what CUDA and NCCL load into somebody else's program. A door onto [`recorder`], nothing more.
//!
//! ```console
//! CUDA_INJECTION64_PATH=/path/librankscope_inject.so     CUDA calls InitializeInjection in cuInit
//! NVTX_INJECTION64_PATH=/path/librankscope_inject.so     NVTX calls InitializeInjectionNvtx2 at the first range
//! NCCL_PROFILER_PLUGIN=/path/librankscope_inject.so      NCCL looks for ncclProfiler_v7, then older ones
//! ```
//!
//! `rank-agent exec` sets both, and the variables of [`recorder::variables`] that say where to record. Without those the
//! library stays inert.

pub mod ffi;
