//! The back end on a CUDA device: cuBLAS for products, own kernels for the rest.
//!
//! Building needs no CUDA. Opening a device searches the libraries ([`libraries`]) and compiles the kernels with NVRTC
//! ([`program`]); an error names what is missing.
//!
//! Operations are enqueued on one stream, [`Cuda::compute`], and run in order. Other streams take part through events.
//! With bf16, products read a rounded copy of an operand, which the operation that made the operand writes along with
//! it.

mod backend;
mod buffer;
pub mod device;
#[expect(unsafe_code, reason = "CUDA has C interfaces")]
mod ffi;
mod journal;
mod kernels;
pub mod libraries;
mod operations;
pub mod program;
mod staging;

pub use self::backend::Cuda;
pub use self::buffer::{CudaBuffer, CudaLabels};
pub use self::device::{DeviceInfo, Driver};
pub use self::ffi::driver::{Context, Stream};
pub use self::ffi::event::Event;
pub use self::ffi::graph::Graph;
pub use self::ffi::library::Library;
pub use self::ffi::memory::Pinned;
pub use self::journal::{ClusterBatch, Entry, Journal};
pub use self::staging::Staging;
