//! Records one rank of a job, without slowing it down or making it fail.
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
//! A thread pushes a fixed-size record into its own bounded queue: it takes no lock, allocates nothing and formats
//! nothing. One writer thread turns the records into rows and closes a part every [`Options::part_period`]. When a queue
//! or a disk is full, rows are lost and counted, and the program continues.
//!
//! ```text
//!  thread ── ThreadRecorder ──► queue ──┐
//!  thread ── ThreadRecorder ──► queue ──┼──► writer thread ──► rows ──► shards
//!  source ── SourceBatch ───────────────┘
//! ```
//!
//! A *source* is a library beside the program's threads that reports later what a device or a communication library
//! did. The recorder knows none of them: a source registers a [`ScopeHook`] and hands over [`SourceBatch`]es.

#![warn(missing_docs)]

mod background;
mod clock;
mod control;
mod error;
mod hook;
mod kinds;
mod names;
mod open_scopes;
mod options;
mod queue_entry;
mod recorder;
mod report;
mod schedule;
mod session;
mod shared;
mod source_batch;
mod summary;
mod thread;
mod timeline;
pub mod variables;
mod writer;

pub use background::spawn;
pub use clock::{Clock, boot_id};
pub use control::{CollectiveDetail, ControlPage, Order};
pub use error::Error;
pub use hook::ScopeHook;
pub use kinds::{CollectiveOp, CollectiveState, Kind, TimingSource};
pub use names::{NameId, ShapeId};
pub use options::Options;
pub use queue_entry::{Collective, Memory, MemoryRecord, NONE};
pub use recorder::Recorder;
pub use report::report;
pub use schedule::{Phase, Schedule};
pub use session::Session;
pub use shared::{Shared, State};
pub use source_batch::{EventDetail, Missing, SourceBatch, SourceEvent};
pub use summary::{Loss, Summary};
pub use thread::{Interval, Scope, ThreadRecorder};
pub use timeline::StepAt;
pub use trace::lock;
