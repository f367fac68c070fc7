//! The ranges that a program marks with NVTX: rows of `events`, and, where they mark training steps, steps.
//!
//! ```text
//!  NVTX_INJECTION64_PATH     program: nvtxRangePush("ProfilerStep#7") … nvtxRangePop()
//!                                 │                                         │
//!                                 ▼ begins step 7                           ▼ a row; the step ends
//! ```
//!
//! A range is the thread's own: NVTX's push and pop. Ranges that one thread starts and another ends are not recorded; those
//! with wide characters have no name. With a schedule, rows exist only in its active steps.

#[expect(unsafe_code, reason = "the interface through which NVTX calls")]
pub mod ffi;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use trace::CounterRow;

use crate::injected;
use crate::thread::ThreadRecorder;
use crate::{Kind, NameId, Phase, Recorder, Schedule};

/// A range whose name begins with this is a training step: torch.profiler's mark.
pub const STEP_MARK: &str = "ProfilerStep";
/// Open ranges of a thread; deeper ones are not recorded.
const MAX_DEPTH: usize = 256;
/// Names that a thread finds without a lock, of each kind.
const MAX_NAMES: usize = 4096;
/// Registered strings at most.
const MAX_REGISTERED: usize = 1 << 16;
/// What a range is called whose name cannot be read.
const UNNAMED: &[u8] = b"(NVTX range)";

/// What a range is called.
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
    /// `None`: recording was off, or the range is too deep.
    start_ns: Option<i64>,
    is_step: bool,
}

/// A name as the recorder knows it; for a training step with its number, where it has one.
type Name = (NameId, Option<Option<i32>>);

/// A thread that marks ranges.
struct Marker {
    thread: ThreadRecorder,
    names: FxHashMap<Box<[u8]>, Name>,
    registered: FxHashMap<usize, Name>,
    open: Vec<Open>,
    /// Ranges beyond [`MAX_DEPTH`].
    deeper: usize,
}

thread_local! {
    static MARKER: RefCell<Option<Marker>> = const { RefCell::new(None) };
}

/// Steps begun, and those of them that were recorded.
static STEPS: AtomicU32 = AtomicU32::new(0);
static RECORDED: AtomicU32 = AtomicU32::new(0);
/// A step is open, on some thread: steps do not nest.
static IN_STEP: AtomicBool = AtomicBool::new(false);

/// The number of a step's name: `ProfilerStep#7` is 7; without one, they are counted.
fn step_of(name: &[u8]) -> Option<Option<i32>> {
    let rest = name.strip_prefix(STEP_MARK.as_bytes())?;
    let digits = std::str::from_utf8(rest).ok().and_then(|rest| rest.strip_prefix('#'));
    Some(digits.and_then(|digits| digits.parse().ok()).filter(|step| *step >= 0))
}

static STRINGS: Mutex<Vec<&'static [u8]>> = Mutex::new(Vec::new());

fn strings() -> MutexGuard<'static, Vec<&'static [u8]>> {
    STRINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number that stands for a string; 0 if there are too many. Its bytes are kept for as long as the program runs, as
/// NVTX means it.
pub(crate) fn register(text: &[u8]) -> usize {
    let mut strings = strings();
    if strings.len() >= MAX_REGISTERED {
        return 0;
    }
    strings.push(Box::leak(Box::from(text)));
    strings.len()
}

/// The recorder and this thread's marker, unless the process is not recorded or the thread is ending.
fn with_marker(body: impl FnOnce(&mut Marker, &'static Recorder)) {
    let Some(recorder) = injected::start() else { return };
    // A destructor of the thread that marks a range while this one's runs finds nothing to record with.
    let _ = MARKER.try_with(|marker| {
        if let Ok(mut marker) = marker.try_borrow_mut() {
            body(marker.get_or_insert_with(|| Marker::new(recorder)), recorder);
        }
    });
}

/// A range begins on this thread.
pub(crate) fn push(mark: Mark<'_>) {
    with_marker(|marker, recorder| {
        if marker.open.len() >= MAX_DEPTH {
            marker.deeper += 1;
            return;
        }
        let (name, step) = marker.name(recorder, mark);
        let is_step = step.is_some_and(|step| begin_step(recorder, step));
        // After the step has begun, which may be what switches recording on.
        let start_ns = marker.thread.active_step().map(|_| marker.thread.now_ns());
        marker.open.push(Open { name, start_ns, is_step });
    });
}

/// The innermost range of this thread ends.
pub(crate) fn pop() {
    with_marker(|marker, recorder| {
        if marker.deeper > 0 {
            marker.deeper -= 1;
            return;
        }
        let Some(Open { name, start_ns, is_step }) = marker.open.pop() else { return };
        if let Some(start_ns) = start_ns {
            marker.thread.interval(Kind::UserAnnotation, name, start_ns, marker.thread.now_ns());
        }
        if is_step {
            recorder.end_step(None);
            IN_STEP.store(false, Ordering::Release);
        }
    });
}

/// A step begins, unless one is open: the first thread that marks it counts.
fn begin_step(recorder: &Recorder, number: Option<i32>) -> bool {
    if IN_STEP.swap(true, Ordering::AcqRel) {
        return false;
    }
    let index = STEPS.fetch_add(1, Ordering::Relaxed);
    let number = number.unwrap_or_else(|| i32::try_from(index).unwrap_or(i32::MAX));
    let phase = phase_of(index, injected::wanted(), injected::schedule());
    if phase == Phase::Active {
        RECORDED.fetch_add(1, Ordering::Relaxed);
    }
    recorder.begin_step(number, phase);
    true
}

fn phase_of(index: u32, wanted: bool, schedule: Option<Schedule>) -> Phase {
    match schedule {
        _ if !wanted => Phase::Wait,
        None => Phase::Active,
        Some(schedule) => schedule.phase(index),
    }
}

/// What a schedule left out, for `counters`.
pub(crate) fn left_out(rank: i32, schedule: Schedule) -> Option<CounterRow> {
    let (steps, recorded) = (STEPS.load(Ordering::Relaxed), RECORDED.load(Ordering::Relaxed));
    why_left_out(steps, recorded, schedule).map(|why| CounterRow {
        rank,
        source: "schedule".into(),
        recorded: 0,
        dropped: 0,
        omitted: 0,
        why: Some(why.into()),
    })
}

fn why_left_out(steps: u32, recorded: u32, schedule: Schedule) -> Option<String> {
    let Schedule { wait, warmup, active, repeat, skip_first } = schedule;
    let asked =
        format!("--schedule wait={wait},warmup={warmup},active={active},repeat={repeat},skip_first={skip_first}");
    match (steps, recorded) {
        (0, _) => Some(format!(
            "the program marked no step, by an NVTX range that begins with {STEP_MARK}, so that {asked} recorded nothing"
        )),
        (steps, recorded) if recorded < steps => {
            Some(format!("{} of {steps} steps were not recorded: {asked}", steps - recorded))
        }
        _ => None,
    }
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

    fn name(&mut self, recorder: &Recorder, mark: Mark<'_>) -> Name {
        match mark {
            Mark::Text(text) => self.named(recorder, text),
            Mark::Unnamed => self.named(recorder, UNNAMED),
            Mark::Registered(number) => {
                if let Some(known) = self.registered.get(&number) {
                    return *known;
                }
                let text = number.checked_sub(1).and_then(|at| strings().get(at).copied());
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
        let name = (recorder.intern(&String::from_utf8_lossy(text)), step_of(text));
        // Names with a number in them are as many as steps: those are looked up each time.
        if self.names.len() < MAX_NAMES {
            self.names.insert(text.into(), name);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_known_by_its_name() {
        let cases: [(&[u8], Option<Option<i32>>); 7] = [
            (b"ProfilerStep#7", Some(Some(7))),
            (b"ProfilerStep", Some(None)),
            (b"ProfilerStep#-1", Some(None)),
            (b"ProfilerStep#99999999999", Some(None)),
            (b"ProfilerStep#\xff", Some(None)),
            (b"forward", None),
            (b"", None),
        ];
        for (name, step) in cases {
            assert_eq!(step_of(name), step, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn who_switches_recording_off_goes_before_the_schedule() {
        let schedule = Schedule { wait: 1, warmup: 1, active: 2, repeat: 1, skip_first: 0 };
        let phases: Vec<Phase> = (0..5).map(|index| phase_of(index, true, Some(schedule))).collect();
        assert_eq!(phases, [Phase::Wait, Phase::Warmup, Phase::Active, Phase::Active, Phase::Wait]);
        assert_eq!((phase_of(2, false, Some(schedule)), phase_of(0, true, None)), (Phase::Wait, Phase::Active));
        let why = why_left_out(5, 2, schedule).unwrap();
        assert!(why.starts_with("3 of 5 steps were not recorded: --schedule wait=1,warmup=1"), "{why}");
        assert!(why_left_out(0, 0, schedule).unwrap().contains("marked no step"));
        assert_eq!(why_left_out(2, 2, Schedule::ALWAYS), None);
    }
}
