//! A thread for work beside a training. Between its turns it has no Python state, so torch's profiler, which records the stacks of all
//! Python threads, records none of it.
//!
//! ```text
//!  Python      generator ──yield 5.0──►        ◄──send(None)──   generator ──yield (stdin, stdout, line)──►        ◄──send(answer)── …
//!  thread                      waits 5 s or for a wake                             writes, waits for the answer
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::prelude::{Bound, Py, PyAny, PyAnyMethods, PyResult, Python, pyclass, pymethods};
use trace::lock;

/// A thread that runs a generator, turn by turn. The generator yields how long to wait, in s (`None`: until it is woken), or what to ask a
/// process: the descriptors of its input and of its output, and a line. It is sent `None`, or the answer: a line, empty at the end.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeThread(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    woken: bool,
    ended: bool,
}

/// The request that a generator yields.
enum Turn {
    Wait(Option<Duration>),
    Ask { input: i32, output: i32, line: Vec<u8> },
    End,
}

#[pymethods]
impl NativeThread {
    #[new]
    fn start(name: String, generator: Py<PyAny>) -> PyResult<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let run = move || {
            take_turns(&own, &generator);
            lock(&own.state).ended = true;
            own.changed.notify_all();
        };
        let started = std::thread::Builder::new().name(name).spawn(run);
        started
            .map(|_| Self(shared))
            .map_err(|error| PyRuntimeError::new_err(format!("a thread cannot start: {error}")))
    }

    /// Ends the wait of the generator, or its next one.
    fn wake(&self) {
        lock(&self.0.state).woken = true;
        self.0.changed.notify_all();
    }

    /// Waits until the generator has ended. Returns whether it has.
    fn join(&self, py: Python<'_>, timeout_s: f64) -> bool {
        let shared = Arc::clone(&self.0);
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(move || shared.wait(Some(timeout), |state| state.ended))
    }
}

impl Shared {
    /// Waits until the state is as wanted, or the time is over. Returns whether it is.
    fn wait(&self, timeout: Option<Duration>, is_wanted: impl Fn(&State) -> bool) -> bool {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        while !is_wanted(&state) {
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

fn take_turns(shared: &Shared, generator: &Py<PyAny>) {
    let mut answer: Option<Vec<u8>> = None;
    loop {
        let sent = answer.take();
        // Python that ends takes no more turns.
        let turn = Python::try_attach(|py| {
            let generator = generator.bind(py);
            turn(generator, sent).unwrap_or_else(|error| {
                error.write_unraisable(py, Some(generator));
                Turn::End
            })
        });
        match turn {
            None | Some(Turn::End) => return,
            Some(Turn::Wait(timeout)) => {
                shared.wait(timeout, |state| state.woken);
                lock(&shared.state).woken = false;
            }
            // A process that has ended answers nothing.
            Some(Turn::Ask { input, output, line }) => answer = Some(ask(input, output, &line).unwrap_or_default()),
        }
    }
}

fn turn(generator: &Bound<'_, PyAny>, sent: Option<Vec<u8>>) -> PyResult<Turn> {
    let yielded = match generator.call_method1("send", (sent,)) {
        Err(error) if error.is_instance_of::<PyStopIteration>(generator.py()) => return Ok(Turn::End),
        yielded => yielded?,
    };
    if let Ok((input, output, line)) = yielded.extract() {
        return Ok(Turn::Ask { input, output, line });
    }
    let seconds: Option<f64> = yielded.extract()?;
    let wait = seconds.map(Duration::try_from_secs_f64).transpose();
    wait.map(Turn::Wait).map_err(|error| PyTypeError::new_err(error.to_string()))
}

/// Writes a line into a pipe, and reads one from another.
fn ask(input: i32, output: i32, line: &[u8]) -> std::io::Result<Vec<u8>> {
    let path = |descriptor: i32| format!("/proc/self/fd/{descriptor}");
    let mut input = File::options().write(true).open(path(input))?;
    input.write_all(line)?;
    let mut answer = Vec::new();
    BufReader::new(File::open(path(output))?).read_until(b'\n', &mut answer)?;
    Ok(answer)
}
