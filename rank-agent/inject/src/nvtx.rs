//! Ranges that a program marks with NVTX. They become rows of `events`; ranges that mark training steps also become steps.
//!
//! ```text
//!  NVTX_INJECTION64_PATH     program: nvtxRangePush("ProfilerStep#7") … nvtxRangePop()
//!                                 │                                         │
//!                                 ▼ begins step 7                           ▼ a row; the step ends
//! ```
//!
//! Only NVTX's push and pop are recorded, which belong to one thread. Ranges that one thread starts and another ends are not
//! recorded; ranges with wide characters have no name. With a schedule, rows exist only in its active steps.

#[expect(unsafe_code, reason = "the interface through which NVTX calls")]
pub(crate) mod ffi;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;

use std::cell::RefCell;
use std::sync::Mutex;

use recorder::{Kind, NameId, Recorder, ThreadRecorder, lock};
use rustc_hash::FxHashMap;

use crate::{process, steps};

/// The most open ranges of a thread; deeper ranges are not recorded.
const MAX_DEPTH: usize = 256;
/// The most names that a thread keeps to find them without a lock, for each kind.
const MAX_NAMES: usize = 4096;
/// The most registered strings.
const MAX_REGISTERED: usize = 1 << 16;
/// Name of a range whose own name cannot be read.
const UNNAMED: &[u8] = b"(NVTX range)";

/// Name of a range, as NVTX passes it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark<'a> {
    Text(&'a [u8]),
    /// A number from [`register`].
    Registered(usize),
    Unnamed,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    name: NameId,
    /// `None` if recording was inactive at the start.
    start_ns: Option<i64>,
    is_step: bool,
}

/// An interned name; for a training step with its number, if it has one.
type Name = (NameId, Option<Option<i32>>);

/// The state of a thread that marks ranges.
struct Marker {
    thread: ThreadRecorder,
    names: FxHashMap<Box<[u8]>, Name>,
    registered: FxHashMap<usize, Name>,
    open: Vec<Open>,
    /// Number of open ranges beyond [`MAX_DEPTH`].
    deeper: usize,
}

thread_local! {
    static MARKER: RefCell<Option<Marker>> = const { RefCell::new(None) };
}

static STRINGS: Mutex<Vec<&'static [u8]>> = Mutex::new(Vec::new());

/// Registers a string and returns its number; 0 if there are too many. The bytes are kept until the program ends, as NVTX
/// specifies.
pub(crate) fn register(text: &[u8]) -> usize {
    let mut strings = lock(&STRINGS);
    if strings.len() >= MAX_REGISTERED {
        return 0;
    }
    strings.push(Box::leak(Box::from(text)));
    strings.len()
}

/// Runs `body` with this thread's marker, unless the process is not recorded or the thread is ending.
fn with_marker(body: impl FnOnce(&mut Marker, &Recorder)) {
    let Some(recorder) = process::start() else { return };
    // While the thread ends, a range that another destructor marks is not recorded.
    let _ = MARKER.try_with(|marker| {
        if let Ok(mut marker) = marker.try_borrow_mut() {
            body(marker.get_or_insert_with(|| Marker::new(recorder)), recorder);
        }
    });
}

/// Begins a range on this thread.
pub(crate) fn push(mark: Mark<'_>) {
    with_marker(|marker, recorder| marker.push(recorder, mark));
}

/// Ends the innermost range of this thread.
pub(crate) fn pop() {
    with_marker(Marker::pop);
}

impl Marker {
    fn new(recorder: &Recorder) -> Self {
        Self {
            thread: recorder.thread("nvtx"),
            names: FxHashMap::default(),
            registered: FxHashMap::default(),
            open: Vec::with_capacity(MAX_DEPTH),
            deeper: 0,
        }
    }

    fn push(&mut self, recorder: &Recorder, mark: Mark<'_>) {
        if self.open.len() >= MAX_DEPTH {
            self.deeper += 1;
            return;
        }
        let (name, step) = self.name(recorder, mark);
        let is_step = step.is_some_and(|step| steps::begin_step(recorder, step, process::is_switched_on()));
        // Read the state after the step has begun, because the step may activate recording.
        let start_ns = self.thread.active_step().map(|_| self.thread.now_ns());
        self.open.push(Open { name, start_ns, is_step });
    }

    fn pop(&mut self, recorder: &Recorder) {
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        let Some(Open { name, start_ns, is_step }) = self.open.pop() else { return };
        if let Some(start_ns) = start_ns {
            self.thread.interval(Kind::UserAnnotation, name, start_ns, self.thread.now_ns());
        }
        if is_step {
            steps::end_step(recorder);
        }
    }

    fn name(&mut self, recorder: &Recorder, mark: Mark<'_>) -> Name {
        match mark {
            Mark::Text(text) => self.named(recorder, text),
            Mark::Unnamed => self.named(recorder, UNNAMED),
            Mark::Registered(number) => {
                if let Some(known) = self.registered.get(&number) {
                    return *known;
                }
                let text = number.checked_sub(1).and_then(|at| lock(&STRINGS).get(at).copied());
                let name = self.named(recorder, text.unwrap_or(UNNAMED));
                if self.registered.len() < MAX_NAMES {
                    self.registered.insert(number, name);
                }
                name
            }
        }
    }

    fn named(&mut self, recorder: &Recorder, text: &[u8]) -> Name {
        if let Some(known) = self.names.get(text) {
            return *known;
        }
        let name = (recorder.intern(&String::from_utf8_lossy(text)), steps::step_of(text));
        // Beyond the limit (names with a number in them, for example), the recorder is asked each time.
        if self.names.len() < MAX_NAMES {
            self.names.insert(text.into(), name);
        }
        name
    }
}
