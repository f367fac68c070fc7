//! Callbacks to bounded queues to rows to shards: records one rank of a job without slowing or failing it.
//!
//! ```
//! use recorder::{Kind, Options, Phase, Recorder};
//!
//! # fn main() -> Result<(), recorder::Error> {
//! # let run = std::env::temp_dir().join(format!("rankscope-recorder-doc-{}", std::process::id()));
//! let recorder = Recorder::start(Options::new(&run, "example", 0, 1))?;
//! let (step, gemm) = (recorder.intern("ProfilerStep#0"), recorder.intern("gemm"));
//! let thread = recorder.thread("main");
//!
//! recorder.begin_step(0, Phase::Active);
//! {
//!     let _step = thread.scope(Kind::UserAnnotation, step);
//!     let _gemm = thread.scope(Kind::CpuOp, gemm).flops(2 * 64 * 64 * 64);
//!     // … the work …
//! }
//! recorder.end_step(Some(0.7));
//!
//! let summary = recorder.finish();
//! assert_eq!((summary.recorded, summary.dropped), (3, 0));
//! assert!(summary.closed_cleanly);
//! # std::fs::remove_dir_all(&run).ok();
//! # Ok(())
//! # }
//! ```
//!
//! The thread that records pushes a fixed-size record into a bounded queue of its own: no lock, no allocation, no
//! formatting. One writer thread makes rows of the records and closes a part every [`Options::part_period`]. When a
//! queue is full or a disk is, rows are lost and counted, and the program goes on.

mod buffers;
mod clock;
mod control;
mod counts;
pub mod cupti;
mod device;
mod error;
pub mod injected;
mod kinds;
mod names;
pub mod nccl;
pub mod nvtx;
mod open;
mod record;
mod recorder;
mod schedule;
mod session;
mod state;
mod summary;
mod thread;
mod timeline;
mod writer;

pub use clock::Clock;
pub use control::{ControlPage, Order};
pub use error::Error;
pub use kinds::{CollectiveOp, CollectiveState, Kind, TimingSource};
pub use names::{NameId, ShapeId};
pub use record::{Collective, Memory};
pub use recorder::{Options, Recorder};
pub use schedule::{Phase, Schedule};
pub use session::{Session, variables};
pub use summary::{Loss, Summary};
pub use thread::{Interval, Scope, ThreadRecorder};
