//! What the GPU did, from NVIDIA's CUPTI: kernels, copies, fills, runtime and driver calls, synchronisations, overhead,
//! NVTX ranges, device memory and devices become rows of the recorder's tables.
//!
//! ```no_run
//! use recorder::cupti::{Cupti, Settings};
//! use recorder::{Collective, CollectiveOp, Kind, Options, Phase, Recorder};
//!
//! # fn main() -> Result<(), recorder::Error> {
//! let recorder = Recorder::start(Options::new("run", "example", 0, 1))?;
//! // Before the first CUDA call, so that nothing is missed. An error costs the device rows, not the run.
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
//! // CUPTI first: what it still holds becomes rows. Synchronise the device before, or the last kernels are missing.
//! if let Some(cupti) = cupti {
//!     println!("{}", cupti.finish());
//! }
//! recorder.finish();
//! # Ok(())
//! # }
//! ```
//!
//! **Links.** While a session runs, every scope that a thread opens pushes its id as CUPTI's external correlation id
//! (kind `CUSTOM2`; Kineto takes the others) and pops it when it ends. Runtime and driver rows, and the kernels, copies
//! and fills that they launched, carry the id of the innermost scope as `external_id`, as does the scope's own row.
//! `correlation_id` joins a launch and what it launched: one to many for a CUDA graph.
//!
//! **Steps.** A device row gets the step of its launch, and exists only if the launch was made while recording was
//! active.
//!
//! **Collectives.** [`Cupti::collectives`] says which collectives the launches inside a scope carry out. Their rows get
//! start and end from the kernels (`timing_source = cupti`), `event_id` of the kernel's row, its stream and device.
//!
//! **Clock.** Times are the recorder's clock: CUPTI calls it for every timestamp and maps the device's own times into
//! it. Where CUPTI refuses, its times are mapped from `CLOCK_REALTIME` by samples taken at every flush.
//! `clock_samples` of kind `gpu` compare the two.
//!
//! **One per process.** CUPTI's callbacks belong to the process. A session that has ended cannot be started again; use
//! [`Cupti::pause`] and [`Cupti::resume`] around what shall not be recorded. A forked child is left alone.

mod collectives;
mod ffi;
mod launched;
pub mod layout;
mod links;
mod markers;
mod occupancy;
mod pool;
pub mod record;
mod rows;
mod session;
mod time;
mod words;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Collective, Error, Recorder, Scope};
use session::Session;
pub(crate) use session::{pop_scope, push_scope};

/// Environment variable that names a libcupti to use instead of any that would be found.
pub const LIBRARY_VARIABLE: &str = "RANKSCOPE_CUPTI";

/// What to record, and with how much memory. Start from the default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This library and no other. Default: `$RANKSCOPE_CUPTI`, else the libcupti that the process has loaded already,
    /// else what the loader finds, else the usual places of the CUDA toolkit and of Python's wheels.
    pub library: Option<PathBuf>,
    /// CUDA runtime calls. Default: yes.
    pub runtime: bool,
    /// CUDA driver calls that launch. Default: yes.
    pub driver: bool,
    /// Synchronisations. Default: yes.
    pub synchronization: bool,
    /// CUPTI's own cost. Default: yes.
    pub overhead: bool,
    /// Allocations and releases. Default: yes.
    pub memory: bool,
    /// NVTX ranges; they come only if `NVTX_INJECTION64_PATH` named libcupti before the process used NVTX. Default: if it
    /// does.
    pub nvtx: bool,
    /// Size of a buffer in bytes, at least 64 KiB. Default: 4 MiB, some 15 000 kernels.
    pub buffer_bytes: usize,
    /// Buffers at most; what needs more is dropped and counted. Default: 64.
    pub max_buffers: usize,
    /// Devices of which the program writes the rows itself. CUPTI tells of devices when CUDA initialises; who starts later
    /// may never be told. Default: none.
    pub devices: Vec<KnownDevice>,
    /// How often complete records are asked for, and the clocks compared. Default: 1 s.
    pub flush_period: Duration,
    /// Longest wait for the worker at the end. Default: 10 s.
    pub finish_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: None,
            runtime: true,
            driver: true,
            synchronization: true,
            overhead: true,
            memory: true,
            nvtx: std::env::var_os("NVTX_INJECTION64_PATH")
                .is_some_and(|path| path.to_string_lossy().contains("cupti")),
            buffer_bytes: 4 << 20,
            max_buffers: 64,
            devices: Vec::new(),
            flush_period: Duration::from_secs(1),
            finish_timeout: Duration::from_secs(10),
        }
    }
}

/// What the occupancy of a kernel is estimated from, as CUDA's driver tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownDevice {
    /// Its number among the visible devices.
    pub device_id: u32,
    /// Major part of the compute capability.
    pub capability_major: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a warp.
    pub threads_per_warp: u32,
    /// Threads that a multiprocessor holds at a time.
    pub threads_per_multiprocessor: u32,
    /// Blocks that a multiprocessor holds at a time.
    pub blocks_per_multiprocessor: u32,
    /// Registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_bytes_per_multiprocessor: u32,
}

/// What came of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records that CUPTI delivered.
    pub records: u64,
    /// Rows handed to the recorder.
    pub rows: u64,
    /// Records lost: CUPTI had no buffer, or a queue was full.
    pub dropped: u64,
    /// Records left out on purpose: unknown kinds, launches outside of active steps.
    pub omitted: u64,
    /// Buffers that ended within a record.
    pub truncated_buffers: u64,
    /// Collectives whose kernel was not found.
    pub untimed_collectives: u64,
    /// Whether CUPTI stamped its records with the recorder's clock, rather than `CLOCK_REALTIME`.
    pub own_clock: bool,
    /// Why the session did not end as it should.
    pub failure: Option<String>,
}

impl fmt::Display for Summary {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, rows, dropped, omitted, truncated_buffers, untimed_collectives, .. } = self;
        write!(f, "CUPTI: {records} records, {rows} rows, {dropped} dropped, {omitted} left out")?;
        if *truncated_buffers > 0 {
            write!(f, ", {truncated_buffers} buffers cut short")?;
        }
        if *untimed_collectives > 0 {
            write!(f, ", {untimed_collectives} collectives not timed")?;
        }
        if let Some(failure) = &self.failure {
            write!(f, "; {failure}")?;
        }
        Ok(())
    }
}

/// The process's CUPTI session. Clones are handles of the same one.
///
/// It ends with [`finish`](Self::finish), or else when the process exits in order; dropping it ends nothing.
#[derive(Clone, Copy, Debug)]
pub struct Cupti {
    session: &'static Session,
}

impl Cupti {
    /// Subscribes to CUPTI, registers buffers and clock, enables the kinds of `settings` and starts the worker thread.
    /// Call it before the first CUDA call of the process.
    ///
    /// # Errors
    /// [`Error::CuptiNotFound`] with every path tried, [`Error::CuptiWithoutDriver`], [`Error::CuptiTooOld`], [`Error::CuptiBusy`] if another profiler
    /// (Nsight, torch.profiler, …) holds it, [`Error::CuptiCall`] with CUPTI's own message, [`Error::CuptiTwice`] if
    /// this process has started a session before, [`Error::Thread`]. The recorder goes on without device rows.
    pub fn start(recorder: &Recorder, settings: Settings) -> Result<Self, Error> {
        session::start(recorder, settings).map(|session| Self { session })
    }

    /// The library in use.
    pub fn library(&self) -> &Path {
        self.session.library.path()
    }

    /// The version that it reports, with its CUDA release where known: `130001 (CUDA 13.0)`.
    pub fn version(&self) -> String {
        self.session.library.version().to_string()
    }

    /// Says that what this thread launches directly inside `scope` carries out `collectives`, in this order on their
    /// stream: one for a plain call, those of a group for a group, all of a step for the launch of a CUDA graph. Call
    /// it before the launch, on the thread that launches, with no other scope opened in between. `enqueue_ns` and
    /// `step` are taken from the scope where they are `None`.
    ///
    /// Returns whether they will be timed. If not (the session is paused or over, the scope is not recorded, too many
    /// are in flight), nothing is recorded of them here: time them otherwise and call
    /// [`ThreadRecorder::collective`](crate::ThreadRecorder::collective).
    ///
    /// A collective whose kernel never comes becomes a row with state `enqueued` and without start and end.
    #[must_use = "if false, the caller has to time the collectives itself"]
    pub fn collectives(&self, scope: &Scope<'_>, collectives: &[Collective]) -> bool {
        self.session.collectives(scope, collectives)
    }

    /// Stops recording, cheaply, until [`resume`](Self::resume): kinds are disabled and scopes push no ids.
    pub fn pause(&self) {
        self.session.pause();
    }

    /// Records again after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.session.resume();
    }

    /// Asks for complete records now. Does not wait for the device.
    pub fn flush(&self) {
        self.session.flush();
    }

    /// Ends the session: disables the kinds, takes what CUPTI still holds (records of kernels that still run come
    /// incomplete and are counted as lost: synchronise the device before), and makes rows of it. Waits no longer than
    /// [`Settings::finish_timeout`]. Call it before [`Recorder::finish`]. A second call returns the same again.
    pub fn finish(&self) -> Summary {
        self.session.finish()
    }
}
