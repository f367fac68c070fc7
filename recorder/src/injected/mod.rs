//! The recording of a program that somebody else wrote: one per process, started from the environment when CUDA or NCCL
//! load the library, ended when the process exits.
//!
//! Without its variables (see [`variables`](crate::variables)) it stays inert and says nothing. Whatever goes wrong is
//! said once on stderr, and the program goes on unrecorded.

#[expect(unsafe_code, reason = "handlers of the C library")]
mod ffi;
mod follow;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cupti::{Cupti, Settings};
use crate::nccl::{Core, Detail, Source};
use crate::{Options, Recorder, Schedule};

/// Longest wait for the disk when the process exits.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Which marked steps are recorded.
static SCHEDULE: OnceLock<Schedule> = OnceLock::new();
static RECORDER: OnceLock<Option<Recorder>> = OnceLock::new();
static NCCL: OnceLock<Option<Source>> = OnceLock::new();
static CUDA: OnceLock<Option<Cupti>> = OnceLock::new();
/// This process is a fork of the one that records: it has neither its threads nor a right to its files.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The process's recorder, started and active; `None` if the environment asks for none, or it cannot start.
///
/// The first call reads the environment, writes a file and starts a thread.
pub fn start() -> Option<&'static Recorder> {
    if FORKED.load(Ordering::Relaxed) {
        return None;
    }
    RECORDER
        .get_or_init(|| {
            let started = Options::from_env().and_then(|options| {
                let Some(options) = options.map(|options| Options { finish_timeout: FINISH_TIMEOUT, ..options }) else {
                    return Ok(None);
                };
                // First: a child that another thread forks meanwhile must not wait for the end of this.
                ffi::at_fork();
                Ok(Some((Recorder::start(options.clone())?, options)))
            });
            match started {
                Ok(None) => None,
                Ok(Some((recorder, options))) => {
                    if let Some(schedule) = options.schedule {
                        SCHEDULE.get_or_init(|| schedule);
                    }
                    follow::start(&recorder, &options);
                    ffi::at_exit();
                    Some(recorder)
                }
                Err(error) => {
                    eprintln!("rankscope: process {} is not recorded: {error}", std::process::id());
                    None
                }
            }
        })
        .as_ref()
}

/// Records what the devices of the process do, through CUPTI.
pub fn start_cuda() {
    let Some(recorder) = start() else { return };
    CUDA.get_or_init(|| match Cupti::start(recorder, Settings::default()) {
        Ok(cupti) => {
            if follow::order().is_some_and(|order| !order.record) {
                cupti.pause();
            }
            Some(cupti)
        }
        Err(error) => {
            eprintln!("rankscope: CUDA is not recorded in process {}: {error}", std::process::id());
            None
        }
    });
    follow::look_again();
}

/// The process's NCCL source, started with the recorder.
pub(crate) fn start_nccl() -> Option<&'static Core> {
    let recorder = start()?;
    let source = NCCL.get_or_init(|| {
        let detail = follow::order().map(|order| Ok(order.detail)).unwrap_or_else(Detail::from_env);
        let detail = detail.unwrap_or_else(|error| {
            eprintln!("rankscope: {error}; recording with the detail {}", Detail::default().as_str());
            Detail::default()
        });
        match Source::start(recorder, detail) {
            Ok(source) => Some(source),
            Err(error) => {
                eprintln!("rankscope: NCCL is not recorded in process {}: {error}", std::process::id());
                None
            }
        }
    });
    nccl_core().filter(|_| source.is_some())
}

/// What NCCL's callbacks need; `None` before the first communicator and in a fork.
#[inline]
pub(crate) fn nccl_core() -> Option<&'static Core> {
    if FORKED.load(Ordering::Relaxed) {
        return None;
    }
    NCCL.get()?.as_ref().map(Source::core)
}

/// The process's NCCL source, once a communicator has come.
pub fn nccl() -> Option<&'static Source> {
    NCCL.get()?.as_ref().filter(|_| !FORKED.load(Ordering::Relaxed))
}

/// Which marked steps are recorded; `None`: all, and what is between them.
pub(crate) fn schedule() -> Option<Schedule> {
    SCHEDULE.get().copied()
}

/// Whether whoever leads the session wants rows now, whatever the schedule says.
pub(crate) fn wanted() -> bool {
    follow::order().is_none_or(|order| order.record)
}

/// Whether this process records itself from here.
pub(crate) fn is_started() -> bool {
    RECORDER.get().is_some_and(Option::is_some)
}

/// Ends the recording: what is in flight becomes rows, and everything is written. Later calls do nothing.
pub fn finish() {
    if FORKED.load(Ordering::Relaxed) {
        return;
    }
    follow::finish();
    // The recorder last: what the sources still hold goes through it.
    if let Some(cupti) = CUDA.get().and_then(Option::as_ref) {
        cupti.finish();
    }
    if let Some(source) = nccl() {
        source.finish();
    }
    if let Some(recorder) = RECORDER.get().and_then(Option::as_ref) {
        tell_left_out(recorder);
        let summary = recorder.finish();
        if let Some(failure) = &summary.failure {
            eprintln!("rankscope: process {}: {failure}", std::process::id());
        }
    }
}

fn tell_left_out(recorder: &Recorder) {
    let row = schedule().and_then(|schedule| crate::nvtx::left_out(recorder.rank(), schedule));
    // The row is well-formed, so that only a bug could refuse it.
    if let Some(Err(error)) = row.map(|row| recorder.rows(vec![row])) {
        tracing::error!("what the schedule left out was not recorded: {error}");
    }
}
