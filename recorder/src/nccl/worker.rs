//! The thread behind the queue: it makes operations of callbacks, and rows of operations.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use trace::{CounterRow, Row};

use super::core::{Core, Limits};
use super::model::Model;
use super::rows::launch_event;
use super::{Detail, ffi};
use crate::device::DeviceBatch;
use crate::{Error, NameId, Recorder, injected};

/// Pause between looks at the queue: it then holds 1.7 M callbacks a second.
const POLL: Duration = Duration::from_millis(20);
/// How often rows are handed over, and what is in flight for longer is told.
const PERIOD: Duration = Duration::from_secs(1);
/// What the rows of launches are called: `nccl:` says that they are communication.
const LAUNCH: &str = "nccl:launch";
/// NCCL looks at what it is asked for when an operation is called, and tells of it a little later.
const GRACE_NS: i64 = 50_000_000;
/// How long the end waits for the ends of kernels that run: NCCL's thread tells them a little later.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// How long the program's end waits for the worker.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Callbacks between two looks at the clock.
const CHUNK: usize = 4096;

/// The NCCL of one process, recorded. One per process, because NCCL's plugin interface is.
#[derive(Debug)]
pub struct Source {
    core: Arc<Core>,
    control: Arc<Control>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Control {
    detail: AtomicU8,
    finish: AtomicBool,
    /// What NCCL is asked for, and when that last changed.
    asked: Mutex<u64>,
    changed_ns: AtomicI64,
}

impl Control {
    fn detail(&self) -> Detail {
        match self.detail.load(Ordering::Relaxed) {
            0 => Detail::Coll,
            1 => Detail::Channels,
            _ => Detail::Proxy,
        }
    }

    /// Asks NCCL for what is wanted now. Any thread may, as often as it likes.
    fn ask(&self, core: &Core) {
        // Held to the end: who looked earlier must not have the last word.
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // Steps come and go faster than the worker looks: with a schedule NCCL tells all, and the rest is left aside.
        let by_steps = injected::schedule().is_some() && injected::wanted();
        let wanted = if by_steps || core.is_active() { self.detail().mask() } else { 0 };
        // Even if nothing changed: a second plugin may have changed its mind.
        ffi::set_mask(wanted);
        if std::mem::replace(&mut *asked, wanted) != wanted {
            self.changed_ns.store(core.now_ns(), Ordering::Release);
        }
    }
}

impl Source {
    pub(crate) fn start(recorder: &Recorder, detail: Detail) -> Result<Self, Error> {
        Self::with_limits(recorder, detail, Limits::default())
    }

    pub(crate) fn with_limits(recorder: &Recorder, detail: Detail, limits: Limits) -> Result<Self, Error> {
        let core = Arc::new(Core::new(recorder.shared().clone(), limits));
        core.wanted.store(detail.mask(), Ordering::Relaxed);
        let control = Arc::new(Control {
            detail: AtomicU8::new(detail as u8),
            finish: AtomicBool::new(false),
            asked: Mutex::new(detail.mask()),
            changed_ns: AtomicI64::new(i64::MIN),
        });
        let (rank, recorder) = (recorder.rank(), recorder.clone());
        let mut worker = Worker {
            core: core.clone(),
            control: control.clone(),
            model: Model::new(rank),
            launch_name: recorder.intern(LAUNCH),
            recorder,
            rank,
            told: [0; SOURCES.len()],
        };
        let thread = thread::Builder::new().name("rankscope-nccl".into());
        let worker = thread.spawn(move || worker.run()).map_err(Error::Thread)?;
        Ok(Self { core, control, worker: Mutex::new(Some(worker)) })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// What is asked for next: see [`ask`](Self::ask).
    pub(crate) fn set_detail(&self, detail: Detail) {
        self.control.detail.store(detail as u8, Ordering::Relaxed);
        self.core.wanted.store(detail.mask(), Ordering::Relaxed);
    }

    /// Asks NCCL for what is wanted now.
    pub(crate) fn ask(&self) {
        self.control.ask(&self.core);
    }

    /// Ends: takes what the queue holds, and makes rows of everything, finished or not.
    pub fn finish(&self) {
        self.control.finish.store(true, Ordering::Release);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            worker.thread().unpark();
            let began = Instant::now();
            // A program may exit inside a signal handler, on top of who holds what the worker needs.
            while !worker.is_finished() && began.elapsed() < FINISH_TIMEOUT {
                thread::sleep(Duration::from_millis(1));
            }
            if worker.is_finished() {
                // It panicked or it is done; what it has to say stands in the rows.
                let _ = worker.join();
            } else {
                tracing::error!("rows of NCCL are lost: its worker did not end within {} s", FINISH_TIMEOUT.as_secs());
            }
        }
        self.core.close();
    }
}

/// What is counted, and why it is not in the tables: source, whether it is a loss, reason.
const SOURCES: [(&str, bool, &str); 10] = [
    ("nccl:events", true, "all handles were in use"),
    ("nccl:events", true, "the queue was filling up"),
    ("nccl:states", true, "the queue was filling up"),
    ("nccl:events", false, "their communicator was finalized, or not recorded"),
    ("nccl:calls", false, "stops and states of events that were over"),
    ("nccl:comms", true, "too many communicators at a time"),
    ("nccl:callbacks", true, "an error inside the recorder"),
    ("nccl:operations", true, "too many operations were in flight"),
    ("nccl:channels", false, "their operation was not recorded"),
    ("nccl:operations", false, "recording was paused, or its detail changed, while they were in flight"),
];

struct Worker {
    core: Arc<Core>,
    control: Arc<Control>,
    model: Model,
    recorder: Recorder,
    rank: i32,
    /// Counts that are rows already.
    told: [u64; SOURCES.len()],
    launch_name: NameId,
}

impl Worker {
    fn run(&mut self) {
        let mut last_publish = Instant::now();
        loop {
            let finish = self.control.finish.load(Ordering::Acquire);
            self.drain();
            if finish {
                return self.end();
            }
            self.control.ask(&self.core);
            if last_publish.elapsed() >= PERIOD {
                last_publish = Instant::now();
                self.publish(false);
            }
            if !self.core.is_busy() {
                thread::park_timeout(POLL);
            }
        }
    }

    fn end(&mut self) {
        let began = Instant::now();
        while self.model.is_ending() && began.elapsed() < LAST_WAIT {
            thread::sleep(Duration::from_millis(1));
            self.drain();
        }
        self.core.close();
        self.drain();
        self.publish(true);
    }

    fn drain(&mut self) {
        let changed_ns = self.control.changed_ns.load(Ordering::Acquire);
        self.model.untold_until_ns = changed_ns.saturating_add(GRACE_NS);
        self.model.refresh_comms(&self.core);
        while let Some(kernel) = self.core.pop_kernel() {
            self.model.kernel(kernel);
        }
        // No more than is there now or soon: rows must be made meanwhile.
        for _ in 0..64 * CHUNK {
            let Some(record) = self.core.pop() else { break };
            self.model.take(&self.core, record);
        }
    }

    fn publish(&mut self, last: bool) {
        let now_ns = self.core.now_ns();
        let period_ns = i64::try_from(PERIOD.as_nanos()).unwrap_or(i64::MAX);
        self.model.publish(now_ns, now_ns.saturating_sub(period_ns), last);
        let rows = std::mem::take(&mut self.model.rows);
        let name = self.launch_name;
        let events = rows.launches.iter().map(|launch| launch_event(launch, name)).collect();
        self.recorder.device(DeviceBatch { events, ..DeviceBatch::default() });
        self.hand_over(rows.collectives);
        self.hand_over(rows.channels);
        self.hand_over(rows.proxies);
        self.hand_over(rows.comms);
        let counters = self.counters();
        self.hand_over(counters);
    }

    fn hand_over<R: Row>(&self, rows: Vec<R>) {
        // The rows are well-formed and their tables are not queued, so that only a bug could refuse them.
        if let Err(error) = self.recorder.rows(rows) {
            tracing::error!("rows of NCCL of rank {} were not recorded: {error}", self.rank);
        }
    }

    /// What was not recorded since the last call.
    fn counters(&mut self) -> Vec<CounterRow> {
        let counts = &self.core.counts;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let now = [
            load(&counts.no_handle),
            load(&counts.no_room),
            load(&counts.states),
            load(&counts.no_comm),
            load(&counts.late),
            load(&counts.comms),
            load(&counts.panics),
            self.model.given_up,
            self.model.orphans,
            self.model.untold,
        ];
        let mut rows = Vec::new();
        for ((count, told), (source, lost, why)) in now.iter().zip(&mut self.told).zip(SOURCES) {
            let new = i64::try_from(count - *told).unwrap_or(i64::MAX);
            *told = *count;
            if new > 0 {
                let (dropped, omitted) = if lost { (new, 0) } else { (0, new) };
                let (source, why) = (source.into(), Some(why.into()));
                rows.push(CounterRow { rank: self.rank, source, recorded: 0, dropped, omitted, why });
            }
        }
        rows
    }
}
