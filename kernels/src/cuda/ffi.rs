//! CUDA's C interfaces: the driver, cuBLAS, NVRTC, and the dynamic loader.
//!
//! The functions come from cudarc, which panics if a library or a symbol is missing. Therefore callers first open the
//! library with [`crate::cuda::libraries::open`], under a name by which cudarc finds it again, which also checks every
//! symbol used here.

pub(crate) mod blas;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod nvrtc;
