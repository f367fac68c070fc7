//! The GPU's work, from NVIDIA's CUPTI: kernels, copies, memsets, runtime and driver calls, synchronizations, overhead,
//! NVTX ranges, device memory and devices become rows of the recorder's tables.
//!
//! ```no_run
//! use recorder::{Collective, CollectiveOp, Kind, Options, Phase, Recorder};
//! use sources::cupti::{Cupti, Settings};
//!
//! # fn main() -> Result<(), recorder::Error> {
//! let recorder = Recorder::start(Options::new("run", "example", 0, 1))?;
//! // Before the first CUDA call, so that no record is missed. An error costs the device rows, not the run.
//! let cupti = match Cupti::start(&recorder, Settings::default()) {
//!     Ok(cupti) => Some(cupti),
//!     Err(error) => {
//!         eprintln!("{error}");
//!         None
//!     }
//! };
//! let (thread, op, reduce) = (recorder.thread("main"), recorder.intern("gemm"), recorder.intern("nccl:all_reduce"));
//! recorder.begin_step(0, Phase::Active);
//! {
//!     // Kernels that this thread launches while the scope is open get its id as `external_id`.
//!     let _gemm = thread.scope(Kind::CpuOp, op);
//!     // … launch …
//! }
//! {
//!     let scope = thread.scope(Kind::CpuOp, reduce).comm();
//!     let collective = Collective { bucket: Some(0), ..Collective::new(1, 0, CollectiveOp::AllReduce) };
//!     let timed = cupti.as_ref().is_some_and(|cupti| cupti.collectives(&scope, &[collective]));
//!     // … ncclAllReduce on a stream; if not `timed`, time it with events and call `thread.collective` …
//! }
//! recorder.end_step(None);
//! // End CUPTI first: the records that it still holds become rows. Synchronize the device before, or the last kernels
//! // are missing.
//! if let Some(cupti) = cupti {
//!     println!("{}", cupti.finish());
//! }
//! recorder.finish();
//! # Ok(())
//! # }
//! ```
//!
//! **Links.** While a session runs, every scope that a thread opens pushes its id as CUPTI's external correlation id
//! (kind `CUSTOM2`; Kineto uses the others) and pops it when it ends. Rows of runtime and driver calls, and of the
//! kernels, copies and memsets that they launch, carry the id of the innermost scope as `external_id`, as does the
//! scope's own row. `correlation_id` joins a launch and its work: one launch of a CUDA graph to many kernels.
//!
//! **Steps.** A device row has the step of its launch, and exists only if recording was active at the launch.
//!
//! **Collectives.** [`Cupti::collectives`] announces the collectives that the launches inside a scope carry out. Their
//! rows get start and end from the kernels (`timing_source = cupti`), the id of the kernel's row as `event_id`, and the
//! kernel's stream and device.
//!
//! **Clock.** Times are in the recorder's clock: CUPTI calls it for every timestamp and maps the device's times to it. If
//! CUPTI refuses, its times are mapped from `CLOCK_REALTIME` by samples that are taken at every flush. `clock_samples` of
//! kind `gpu` compare the two.
//!
//! **One per process.** CUPTI's callbacks belong to the process. A session that has ended cannot start again; use
//! [`Cupti::pause`] and [`Cupti::resume`] around work that is not to be recorded. A forked child records nothing.

mod activities;
mod awaiting_launch;
mod capture;
mod collectives;
mod enum_names;
mod ffi;
mod known_faults;
pub mod layout;
mod links;
mod markers;
mod occupancy;
mod pool;
pub mod record;
mod rows;
mod session;
mod settings;
mod time;
mod watch;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use recorder::{Collective, Recorder, Scope};

use self::session::Session;
pub use self::settings::{KnownDevice, LIBRARY_VARIABLE, Settings, Summary};
use crate::error::Error;

/// The process's CUPTI session. Clones are handles of the same session.
///
/// It ends with [`finish`](Self::finish), or when the process exits normally. Dropping a handle does not end it.
#[derive(Clone, Copy, Debug)]
pub struct Cupti {
    session: &'static Session,
}

/// The libcupti that a recording in this environment would use, and its version, as by [`Cupti::version`].
///
/// # Errors
/// [`Error::CuptiNotFound`] with every path tried, [`Error::CuptiWithoutDriver`], [`Error::CuptiTooOld`].
pub fn find() -> Result<(PathBuf, String), Error> {
    let library = ffi::Library::open(None)?;
    Ok((library.path().into(), library.version().to_string()))
}

impl Cupti {
    /// Subscribes to CUPTI, registers buffers and clock, enables the kinds of `settings` and starts the worker thread.
    /// Call it before the first CUDA call of the process.
    ///
    /// # Errors
    /// [`Error::CuptiNotFound`] with every path tried, [`Error::CuptiWithoutDriver`], [`Error::CuptiTooOld`],
    /// [`Error::CuptiBusy`] if another profiler (Nsight, torch.profiler, …) holds CUPTI, [`Error::CuptiCall`] with
    /// CUPTI's own message, [`Error::CuptiTwice`] if this process has already started a session, [`Error::Thread`]. The
    /// recorder continues without device rows.
    pub fn start(recorder: &Recorder, settings: Settings) -> Result<Self, Error> {
        session::start(recorder, settings).map(|session| Self { session })
    }

    /// The library in use.
    pub fn library(&self) -> &Path {
        self.session.capture.library.path()
    }

    /// The library's version, with its CUDA release if known: `130001 (CUDA 13.0)`.
    pub fn version(&self) -> String {
        self.session.capture.library.version().to_string()
    }

    /// Announces that the launches of this thread directly inside `scope` carry out `collectives`, in this order on
    /// their stream: one for a single call, all of a group for a group, all of a step for the launch of a CUDA graph.
    /// Call it before the launch, on the launching thread, with no other scope opened in between. Where `enqueue_ns` and
    /// `step` are `None`, they come from the scope.
    ///
    /// Returns whether the session times them. If not (the session is paused or over, the scope is not recorded, or too
    /// many are in flight), it records none of them: time them otherwise and call
    /// [`ThreadRecorder::collective`](recorder::ThreadRecorder::collective).
    ///
    /// A collective whose kernel never arrives becomes a row with state `enqueued`, without start and end.
    #[must_use = "if false, the caller must time the collectives itself"]
    pub fn collectives(&self, scope: &Scope<'_>, collectives: &[Collective]) -> bool {
        self.session.collectives(scope, collectives)
    }

    /// Pauses recording until [`resume`](Self::resume): disables the activity kinds, and scopes push no ids.
    pub fn pause(&self) {
        self.session.pause();
    }

    /// Resumes recording after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.session.resume();
    }

    /// Asks CUPTI for complete records now. Does not wait for the device.
    pub fn flush(&self) {
        self.session.flush();
    }

    /// Asks CUPTI for complete records and hands their rows to the recorder. Returns whether that is done after at most `patience`: CUPTI
    /// before 13.0 U1 must not be asked while the program runs.
    pub fn settle(&self, patience: Duration) -> bool {
        self.session.settle(patience)
    }

    /// Ends the session: disables the activity kinds, takes the records that CUPTI still holds, and makes rows of them.
    /// Synchronize the device before: records of running kernels are incomplete and count as lost. Waits no longer than
    /// [`Settings::finish_timeout`]. Call it before [`Recorder::finish`]. A second call returns the same summary.
    pub fn finish(&self) -> Summary {
        self.session.finish()
    }
}
