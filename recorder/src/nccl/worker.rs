//! The thread behind the queue: it makes operations of callbacks, and rows of operations.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
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
}

impl Control {
    fn detail(&self) -> Detail {
        match self.detail.load(Ordering::Relaxed) {
            0 => Detail::Coll,
            1 => Detail::Channels,
            _ => Detail::Proxy,
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
        let control = Arc::new(Control { detail: AtomicU8::new(detail as u8), finish: AtomicBool::new(false) });
        let (rank, recorder) = (recorder.rank(), recorder.clone());
        let mut worker = Worker {
            core: core.clone(),
            control: control.clone(),
            model: Model::new(rank),
            launch_name: recorder.intern(LAUNCH),
            recorder,
            rank,
            told: [0; SOURCES.len()],
            active: true,
            detail,
        };
        let thread = thread::Builder::new().name("rankscope-nccl".into());
        let worker = thread.spawn(move || worker.run()).map_err(Error::Thread)?;
        Ok(Self { core, control, worker: Mutex::new(Some(worker)) })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Asks NCCL for more or less, from now on.
    pub fn set_detail(&self, detail: Detail) {
        self.control.detail.store(detail as u8, Ordering::Relaxed);
        self.core.wanted.store(detail.mask(), Ordering::Relaxed);
        let by_steps = injected::schedule().is_some() && injected::wanted();
        ffi::set_mask(if by_steps || self.core.is_active() { detail.mask() } else { 0 });
    }

    /// Ends: takes what the queue holds, and makes rows of everything, finished or not.
    pub fn finish(&self) {
        self.core.close();
        self.control.finish.store(true, Ordering::Release);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            worker.thread().unpark();
            // It panicked or it is done; what it has to say stands in the rows.
            let _ = worker.join();
        }
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
    active: bool,
    detail: Detail,
    launch_name: NameId,
}

impl Worker {
    fn run(&mut self) {
        let mut forgotten = 0;
        let mut last_publish = Instant::now();
        loop {
            let finish = self.control.finish.load(Ordering::Acquire);
            self.drain();
            forgotten += self.follow();
            if finish || last_publish.elapsed() >= PERIOD {
                last_publish = Instant::now();
                self.publish(finish, forgotten);
            }
            if finish {
                return;
            }
            if !self.core.is_busy() {
                thread::park_timeout(POLL);
            }
        }
    }

    fn drain(&mut self) {
        self.model.refresh_comms(&self.core);
        // No more than is there now or soon: rows must be made meanwhile.
        for _ in 0..64 * CHUNK {
            let Some(record) = self.core.pop() else { break };
            self.model.take(&self.core, record);
        }
    }

    /// Follows what the program or its user switched: recording, detail. Returns the operations that were forgotten.
    fn follow(&mut self) -> u64 {
        // Steps come and go faster than this thread looks: with a schedule NCCL tells all, and the rest is left aside.
        let by_steps = injected::schedule().is_some() && injected::wanted();
        let (active, detail) = (by_steps || self.core.is_active(), self.control.detail());
        let wanted = if active { detail.mask() } else { 0 };
        // A second plugin may have changed its mind as well.
        ffi::set_mask(wanted);
        let ends_untold = (self.active && !active) || detail < self.detail;
        (self.active, self.detail) = (active, detail);
        if !ends_untold {
            return 0;
        }
        // What is over becomes rows first: they wait for the next period otherwise.
        let now_ns = self.core.now_ns();
        self.model.publish(now_ns, i64::MIN, false);
        self.model.forget()
    }

    fn publish(&mut self, last: bool, forgotten: u64) {
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
        let counters = self.counters(forgotten);
        self.hand_over(counters);
    }

    fn hand_over<R: Row>(&self, rows: Vec<R>) {
        // The rows are well-formed and their tables are not queued, so that only a bug could refuse them.
        if let Err(error) = self.recorder.rows(rows) {
            tracing::error!("rows of NCCL of rank {} were not recorded: {error}", self.rank);
        }
    }

    /// What was not recorded since the last call.
    fn counters(&mut self, forgotten: u64) -> Vec<CounterRow> {
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
            forgotten,
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
