//! A long call: it works on a thread of its own while Python's thread, without the GIL, waits for it, so that Ctrl-C and a
//! progress callback are answered.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use aggregator::cli::library::{KeptMemory, Progress, with_threads};
use model::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::{Py, PyAny, PyErr, PyResult, Python};

use crate::errors::{defect, exception};

/// How often signals and progress are looked at.
const LOOK: Duration = Duration::from_millis(25);
/// How long an interrupted call is waited for. It ends when the ranks are done that are being read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The analysis recurses through operators, which the stack of a new thread may be too small for.
const STACK_BYTES: usize = 16 << 20;

/// What the working thread and Python's thread tell each other.
#[derive(Default)]
struct Shared {
    /// Ranks done, and above 32 bits the total.
    progress: AtomicU64,
    /// Python's thread does not want the result any more.
    stopped: AtomicBool,
}

/// The payload of an unwinding that ends a call which was interrupted.
struct Stopped;

type Outcome<T> = Result<Result<T, Error>, Box<dyn Any + Send>>;

/// Runs `work` and calls `callback` with the ranks done and the total.
///
/// # Errors
/// The error of `work` as `RankscopeError`; what a signal handler or `callback` raises.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    work: impl FnOnce(Progress<'_>) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    run_beside(py, callback, || Ok(()), work)
}

/// As [`run`]; Python's thread calls `beside` before it waits.
///
/// # Errors
/// As [`run`], and the error of `beside`.
pub(crate) fn run_beside<T: Send + 'static>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    beside: impl FnOnce() -> PyResult<()>,
    work: impl FnOnce(Progress<'_>) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let shared = Arc::new(Shared::default());
    let (sender, receiver) = sync_channel(1);
    let seen = Arc::clone(&shared);
    let working = move || {
        let tick = |done: usize, total: usize| {
            if seen.stopped.load(Ordering::Relaxed) {
                // Unwinding ends the threads of the call and removes its unfinished files. It prints nothing.
                resume_unwind(Box::new(Stopped));
            }
            // Ranks are counted in parallel, so an earlier count may come later.
            seen.progress.fetch_max((total as u64) << 32 | done as u64, Ordering::Relaxed);
        };
        let kept = KeptMemory::new();
        let outcome: Outcome<T> = catch_unwind(AssertUnwindSafe(|| with_threads(|| work(&tick))));
        // Python's thread may have stopped waiting.
        drop(sender.send(outcome));
        // Returning memory takes a tenth of a second, in which Python goes on.
        drop(kept);
    };
    let started = thread::Builder::new().name("rankscope".into()).stack_size(STACK_BYTES).spawn(working);
    if let Err(error) = started {
        return Err(PyRuntimeError::new_err(format!("rankscope needs a thread: {error}")));
    }
    let (receiver, waited) = match beside() {
        Ok(()) => wait(py, callback, &shared, receiver),
        Err(error) => (receiver, Err(error)),
    };
    if waited.is_err() {
        shared.stopped.store(true, Ordering::Relaxed);
        // Whatever the call still returns is not wanted.
        py.detach(move || drop(receiver.recv_timeout(PATIENCE)));
    }
    match waited? {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(exception(py, &error)),
        Err(panic) => Err(defect(py, panic.as_ref())),
    }
}

/// Waits for the outcome of a call. Without the GIL the receiver belongs to one closure, which returns it.
fn wait<T: Send>(
    py: Python<'_>,
    callback: Option<&Py<PyAny>>,
    shared: &Shared,
    mut receiver: Receiver<Outcome<T>>,
) -> (Receiver<Outcome<T>>, PyResult<Outcome<T>>) {
    let mut told = 0;
    let mut tell = |py| {
        let now = shared.progress.load(Ordering::Relaxed);
        match callback.filter(|_| now != told) {
            Some(callback) => {
                told = now;
                callback.call1(py, (now & u64::from(u32::MAX), now >> 32)).map(drop)
            }
            None => Ok::<(), PyErr>(()),
        }
    };
    loop {
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(LOOK);
            (receiver, received)
        });
        let ended = match received {
            Ok(outcome) => Some(tell(py).map(|()| outcome)),
            Err(RecvTimeoutError::Timeout) => py.check_signals().and_then(|()| tell(py)).err().map(Err),
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(PyRuntimeError::new_err("the thread of the call ended without a result")))
            }
        };
        if let Some(ended) = ended {
            return (receiver, ended);
        }
    }
}
