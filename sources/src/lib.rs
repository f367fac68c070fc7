//! Sources of the recorder: libraries that report what devices and NCCL did.
//!
//! ```text
//!  cupti   GPU ──► activity buffers ──► records ──┐
//!                                                 ├──► rows ──► recorder
//!  nccl    NCCL's threads ──► callbacks ──► queue ┘
//! ```
//!
//! Both sources have three floors: `ffi` (the C interface and all `unsafe` code), records (values that own their data),
//! and rows. Each registers with the recorder: CUPTI by a [`ScopeHook`](recorder::ScopeHook), so that a kernel is linked
//! to the scope that launched it, and both by handing over batches of rows.

mod comm_kernels;
pub mod cupti;
mod error;
pub mod nccl;

pub use comm_kernels::CommKernels;
pub use error::Error;
