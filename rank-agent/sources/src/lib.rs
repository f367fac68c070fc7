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
//!
//! ```
//! use std::sync::Arc;
//!
//! use recorder::{CollectiveDetail, Options, Recorder};
//! use sources::{CommKernels, nccl};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let run = std::env::temp_dir().join(format!("rankscope-sources-doc-{}", std::process::id()));
//! let recorder = Recorder::start(Options::new(&run, "example", 0, 1))?;
//! let comm_kernels = Arc::new(CommKernels::default());
//! let settings = nccl::Settings { detail: CollectiveDetail::Channels, comm_kernels, reports_all: || true };
//! let source = nccl::Source::start(&recorder, settings)?;
//! // … NCCL's threads call the functions of `nccl::ffi`, which record into `source.callbacks()` …
//! source.finish();
//!
//! let summary = recorder.finish();
//! assert!(summary.closed_cleanly && summary.dropped == 0);
//! # std::fs::remove_dir_all(&run)?;
//! # Ok(())
//! # }
//! ```

mod comm_kernels;
pub mod cupti;
mod error;
mod installed;
pub mod nccl;

pub use comm_kernels::CommKernels;
pub use error::Error;
