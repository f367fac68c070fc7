//! The doors to CUDA's C interfaces: the driver, cuBLAS, NVRTC, and the dynamic loader before them.
//!
//! The functions come from cudarc, which panics where a library or a symbol is missing. So nothing in here is reached
//! before [`crate::cuda::libraries::open`] has opened the library under a name by which cudarc finds it again, and has
//! seen every symbol that is used.

pub(crate) mod blas;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod nvrtc;
