//! The recording of a process: started from the environment when CUDA, NVTX or NCCL load the library, ended when the
//! process exits.
//!
//! Without its variables (see [`recorder::variables`]) it does nothing and prints nothing. Every failure is reported once
//! on stderr, and the program continues unrecorded.

#[expect(unsafe_code, reason = "handlers of the C library")]
mod ffi;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use recorder::{CollectiveDetail, Options, Order, Recorder, report};
use sources::CommKernels;
use sources::cupti::{self, Cupti};
use sources::nccl::{self, Callbacks, Source};

use crate::{environment, follow, steps};

/// Whether a flush at the end of the last communicator took too long. No other one is tried.
static TOO_SLOW: AtomicBool = AtomicBool::new(false);
/// Longest wait for each thread that writes the rows when the last communicator has ended.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for the disk when the process exits.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
static NCCL: OnceLock<Option<Source>> = OnceLock::new();
static CUDA: OnceLock<Option<Cupti>> = OnceLock::new();
/// The queue between the two sources.
static COMM_KERNELS: LazyLock<Arc<CommKernels>> = LazyLock::new(Arc::default);

/// The process's recorder; `None` if the process is not to be recorded, or the recorder cannot start.
///
/// The first call reads the environment, writes a file and starts a thread.
pub(crate) fn start() -> Option<&'static Recorder> {
    if ffi::is_fork() {
        return None;
    }
    RECORDER
        .get_or_init(|| {
            let started = environment::options().and_then(|options| {
                let Some(options) = options.map(|options| Options { finish_timeout: FINISH_TIMEOUT, ..options }) else {
                    return Ok(None);
                };
                // Before the start: a child that another thread forks in between must not wait for the start to end.
                ffi::at_fork();
                Ok(Some((Recorder::start(options.clone())?, options)))
            });
            match started {
                Ok(None) => None,
                Ok(Some((recorder, options))) => {
                    if let Some(schedule) = options.schedule {
                        steps::set_schedule(schedule);
                    }
                    follow::start(&recorder, &options, carry_out);
                    ffi::at_exit(finish);
                    Some(recorder)
                }
                Err(error) => {
                    report(format_args!("process {} is not recorded: {error}", std::process::id()));
                    None
                }
            }
        })
        .as_ref()
}

/// Starts to record the process's devices through CUPTI.
pub(crate) fn start_cuda() {
    let Some(recorder) = start() else { return };
    CUDA.get_or_init(|| {
        let (comm_kernels, at_exit) = (COMM_KERNELS.clone(), Some(finish as fn()));
        let (paused, on_capture) = (!is_switched_on(), Some(on_capture as fn()));
        let settings = cupti::Settings {
            in_initialisation: true,
            paused,
            comm_kernels,
            on_capture,
            at_exit,
            ..cupti::Settings::default()
        };
        match Cupti::start(recorder, settings) {
            Ok(cupti) => Some(cupti),
            Err(error) => {
                report(format_args!("CUDA is not recorded in process {}: {error}", std::process::id()));
                None
            }
        }
    });
    follow::look_again();
}

/// The program is about to capture a CUDA graph.
fn on_capture() {
    nccl::ffi::capture_begins(nccl().map(Source::callbacks));
}

/// Starts the NCCL source with the recorder.
fn start_nccl() -> Option<&'static Callbacks> {
    let recorder = start()?;
    NCCL.get_or_init(|| {
        let detail = follow::order().map(|order| Ok(order.detail)).unwrap_or_else(environment::nccl_detail);
        let detail = detail.unwrap_or_else(|error| {
            let detail = CollectiveDetail::default();
            report(format_args!("{error}; recording with the detail {}", detail.as_str()));
            detail
        });
        let settings = nccl::Settings { detail, comm_kernels: COMM_KERNELS.clone(), reports_all };
        match Source::start(recorder, settings) {
            Ok(source) => Some(source),
            Err(error) => {
                report(format_args!("NCCL is not recorded in process {}: {error}", std::process::id()));
                None
            }
        }
    });
    nccl().map(Source::callbacks)
}

/// The NCCL source; `None` before the first communicator and in a fork.
#[inline]
fn nccl() -> Option<&'static Source> {
    if ffi::is_fork() {
        return None;
    }
    NCCL.get()?.as_ref()
}

/// Whether recording is switched on, apart from the schedule.
pub(crate) fn is_switched_on() -> bool {
    follow::order().is_none_or(|order| order.record)
}

fn reports_all() -> bool {
    steps::schedule().is_some() && is_switched_on()
}

/// This process, for NCCL's callbacks.
pub(crate) struct ThisProcess;

impl nccl::ffi::Process for ThisProcess {
    fn start() -> Option<&'static Callbacks> {
        start_nccl()
    }

    #[inline]
    fn callbacks() -> Option<&'static Callbacks> {
        nccl().map(Source::callbacks)
    }

    fn reports_all() -> bool {
        reports_all()
    }

    /// A process may end by `_exit`, which calls no handler, as the children of Python's `multiprocessing` do: its rows are written now.
    fn last_comm_ended() {
        let (Some(source), Some(recorder)) = (nccl(), RECORDER.get().and_then(Option::as_ref)) else { return };
        if TOO_SLOW.load(Ordering::Relaxed) {
            return;
        }
        // NCCL's rows get their times from kernels. Where CUPTI cannot hand these over now, they stay for the exit.
        let are_timed = CUDA.get().and_then(Option::as_ref).is_none_or(|cupti| cupti.settle(FLUSH_PATIENCE));
        if are_timed && !(source.flush(FLUSH_PATIENCE) && recorder.flush(FLUSH_PATIENCE)) {
            // A disk that hangs must not delay the end of every communicator.
            TOO_SLOW.store(true, Ordering::Relaxed);
        }
    }
}

/// Carries out an order. Only the control thread switches sources. Repeating an order is harmless: a source that starts at
/// the same time begins with the order of the page, and is switched again.
fn carry_out(order: Order, is_switch: bool, recorder: &Recorder) {
    let cupti = CUDA.get().and_then(Option::as_ref);
    // Set the detail before the mask, which depends on it.
    if let Some(source) = nccl() {
        source.set_detail(order.detail);
    }
    // Resume CUPTI before recording becomes active, so that no later launch is missed. Pause it after recording becomes
    // inactive, so that records of earlier launches still arrive.
    if let Some(cupti) = cupti.filter(|_| order.record) {
        cupti.resume();
    }
    if is_switch && !(order.record && steps::schedule().is_some()) {
        recorder.set_active(order.record);
    }
    if let Some(cupti) = cupti.filter(|_| !order.record) {
        cupti.pause();
    }
    if let Some(source) = nccl() {
        source.update_mask();
    }
}

/// Ends the recording: operations in flight become rows, and all rows are written. Later calls do nothing.
pub(crate) fn finish() {
    if ffi::is_fork() {
        return;
    }
    if let Some(recorder) = RECORDER.get().and_then(Option::as_ref) {
        recorder.shared().set_ending(true);
    }
    follow::finish();
    // The recorder ends last, because the sources hand it their remaining rows.
    if let Some(cupti) = CUDA.get().and_then(Option::as_ref) {
        cupti.finish();
    }
    if let Some(source) = nccl() {
        source.finish();
    }
    if let Some(recorder) = RECORDER.get().and_then(Option::as_ref) {
        count_left_out(recorder);
        let summary = recorder.finish();
        if let Some(failure) = &summary.failure {
            report(format_args!("process {}: {failure}", std::process::id()));
        }
    }
}

fn count_left_out(recorder: &Recorder) {
    // The row is valid, so that an error here is a bug.
    if let Some(Err(error)) = steps::left_out(recorder.rank()).map(|row| recorder.rows(vec![row])) {
        report(format_args!("steps that the schedule left out were not counted: {error}"));
    }
}
