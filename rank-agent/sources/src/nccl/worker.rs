//! The worker thread behind the queue: makes operations of callbacks, and rows of operations.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use recorder::{CollectiveDetail, NameId, Recorder, SourceBatch, lock, report};
use trace::{CounterRow, Row};

use super::callbacks::{Callbacks, Confusion, Limits};
use super::ffi;
use super::in_flight::InFlight;
use super::record::{event_mask, event_type};
use super::rows::launch_event;
use crate::comm_kernels::CommKernels;
use crate::error::Error;

/// Pause between two passes over the queue. With it, the queue takes 1.7 M callbacks per second.
const POLL: Duration = Duration::from_millis(20);
/// Interval at which rows are handed over. Operations in flight for longer get a row.
const PERIOD: Duration = Duration::from_secs(1);
/// Name of the rows of launches. The prefix `nccl:` marks them as communication.
const LAUNCH: &str = "nccl:launch";
/// Name in `counters` of the rows of launches. It is that of the CUPTI source, which earlier runs used for them.
const SOURCE: &str = "cupti";
/// NCCL reads its event mask when an operation is called, and reports the operation a little later.
const GRACE_NS: i64 = 50_000_000;
/// Longest wait for the ends of running kernels, which NCCL's thread reports a little later.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// Longest wait for the worker when the program ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of callbacks between two checks of the time.
const CHUNK: usize = 4096;

/// Settings of the NCCL source.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How much NCCL reports.
    pub detail: CollectiveDetail,
    /// Queue from the CUPTI source of this process.
    pub comm_kernels: Arc<CommKernels>,
    /// Whether NCCL reports all events now, even while recording is inactive. A schedule of steps needs this: steps begin
    /// and end faster than the worker sets the mask.
    pub reports_all: fn() -> bool,
}

/// The NCCL source of the process. There is one per process, like NCCL's plugin interface.
#[derive(Debug)]
pub struct Source {
    callbacks: Arc<Callbacks>,
    control: Arc<Control>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Control {
    detail: AtomicU8,
    finish: AtomicBool,
    /// Flushes that were asked for, and those of them that are done.
    flushes: AtomicU64,
    flushed: AtomicU64,
    /// NCCL's event mask, and the time of its last change.
    mask: Mutex<u64>,
    changed_ns: AtomicI64,
    reports_all: fn() -> bool,
}

impl Control {
    fn detail(&self) -> CollectiveDetail {
        match self.detail.load(Ordering::Relaxed) {
            0 => CollectiveDetail::Coll,
            1 => CollectiveDetail::Channels,
            _ => CollectiveDetail::Proxy,
        }
    }

    /// Sets NCCL's event mask to the current one. Any thread may call it at any time.
    fn update_mask(&self, callbacks: &Callbacks) {
        // Keep the lock while setting the mask, so that a stale reader cannot overwrite a newer mask.
        let mut mask = lock(&self.mask);
        let is_active = (self.reports_all)() || callbacks.is_active();
        // Calls are reported even while recording is inactive: one may be captured into a CUDA graph.
        let wanted = if is_active { event_mask(self.detail()) } else { event_type::API };
        // Set it even if it is unchanged: the second plugin may have changed its own mask.
        ffi::set_mask(wanted, callbacks);
        if std::mem::replace(&mut *mask, wanted) != wanted {
            self.changed_ns.store(callbacks.now_ns(), Ordering::Release);
        }
    }
}

impl Source {
    /// Starts the worker thread.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn start(recorder: &Recorder, settings: Settings) -> Result<Self, Error> {
        let Settings { detail, comm_kernels, reports_all } = settings;
        let callbacks = Arc::new(Callbacks::new(recorder.shared().clone(), comm_kernels, Limits::default()));
        callbacks.wanted.store(event_mask(detail), Ordering::Relaxed);
        let control = Arc::new(Control {
            detail: AtomicU8::new(detail as u8),
            finish: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            mask: Mutex::new(event_mask(detail)),
            changed_ns: AtomicI64::new(i64::MIN),
            reports_all,
        });
        let (rank, recorder) = (recorder.rank(), recorder.clone());
        let mut worker = Worker {
            callbacks: callbacks.clone(),
            control: control.clone(),
            in_flight: InFlight::new(rank),
            launch_name: recorder.intern(LAUNCH),
            recorder,
            rank,
            counted: [0; SOURCES.len()],
            says_no_channels: false,
        };
        let worker = recorder::spawn("rankscope-nccl", move || worker.run()).map_err(Error::Thread)?;
        Ok(Self { callbacks, control, worker: Mutex::new(Some(worker)) })
    }

    /// The state of the callbacks.
    pub fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Sets the detail for the next [`update_mask`](Self::update_mask).
    pub fn set_detail(&self, detail: CollectiveDetail) {
        self.control.detail.store(detail as u8, Ordering::Relaxed);
        self.callbacks.wanted.store(event_mask(detail), Ordering::Relaxed);
    }

    /// Sets NCCL's event mask to the current one.
    pub fn update_mask(&self) {
        self.control.update_mask(&self.callbacks);
    }

    /// Hands all rows of operations that are over to the recorder. Returns whether that is done after at most `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        let asked = self.control.flushes.fetch_add(1, Ordering::AcqRel) + 1;
        // A worker that has panicked flushes nothing.
        let running = lock(&self.worker).as_ref().filter(|worker| !worker.is_finished()).map(|w| w.thread().clone());
        let Some(worker) = running else { return false };
        worker.unpark();
        let began = Instant::now();
        while self.control.flushed.load(Ordering::Acquire) < asked {
            if began.elapsed() >= patience {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Ends the source: empties the queue and makes rows of all operations, finished or not.
    pub fn finish(&self) {
        self.control.finish.store(true, Ordering::Release);
        let worker = lock(&self.worker).take();
        if let Some(worker) = worker {
            worker.thread().unpark();
            let began = Instant::now();
            // A program may exit inside a signal handler, on a thread that holds a lock which the worker needs.
            while !worker.is_finished() && began.elapsed() < FINISH_TIMEOUT {
                thread::sleep(Duration::from_millis(1));
            }
            if worker.is_finished() {
                // It panicked or it is done; its counters are rows already.
                let _ = worker.join();
            } else {
                let waited_s = FINISH_TIMEOUT.as_secs();
                report(format_args!("rows of NCCL are lost: its worker did not end within {waited_s} s"));
            }
        }
        self.callbacks.close();
    }
}

/// Counters of events without rows: source, whether it is a loss, reason.
const SOURCES: [(&str, bool, &str); 13] = [
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
    ("nccl:operations", false, "of sends to oneself NCCL reports neither times nor the end"),
    ("nccl:operations", false, "of broadcasts NCCL 2.29 and later reports the call only"),
    ("nccl:channels", false, "the GPU's times contradict the launches: their stated error is larger"),
];

struct Worker {
    callbacks: Arc<Callbacks>,
    control: Arc<Control>,
    in_flight: InFlight,
    recorder: Recorder,
    rank: i32,
    /// Values that `counters` already holds.
    counted: [u64; SOURCES.len()],
    launch_name: NameId,
    /// Whether the run says why channels that were asked for are not recorded.
    says_no_channels: bool,
}

impl Worker {
    fn run(&mut self) {
        let mut last_publish = Instant::now();
        loop {
            let finish = self.control.finish.load(Ordering::Acquire);
            let flushes = self.control.flushes.load(Ordering::Acquire);
            self.drain();
            if finish {
                return self.end();
            }
            self.control.update_mask(&self.callbacks);
            self.explain_missing_channels();
            let flush = flushes > self.control.flushed.load(Ordering::Acquire);
            if flush {
                self.await_ends();
            }
            if flush || last_publish.elapsed() >= PERIOD {
                last_publish = Instant::now();
                self.publish(false);
                self.control.flushed.store(flushes, Ordering::Release);
            }
            if !self.callbacks.is_busy() {
                thread::park_timeout(POLL);
            }
        }
    }

    /// Says once why channels that the detail includes are not recorded.
    fn explain_missing_channels(&mut self) {
        let wants = self.callbacks.wanted.load(Ordering::Relaxed) & event_type::KERNEL != 0;
        if self.says_no_channels || !wants || self.callbacks.kernel_events() != Some(0) {
            return;
        }
        self.says_no_channels = true;
        let why = match self.callbacks.given_up() {
            Some(Confusion::Capture) => {
                "a CUDA graph was captured, and NCCL can assign times of channels to wrong operations then; times of NCCL's kernels \
                 come from CUPTI alone (NCCL_ALLGATHERV_ENABLE=0 keeps channels with NCCL 2.31 and later)"
            }
            Some(Confusion::Broadcasts) => {
                "NCCL combined broadcasts, and assigns times of channels to wrong operations after them; times of NCCL's kernels come \
                 from CUPTI alone (NCCL_ALLGATHERV_ENABLE=0 turns the combining off)"
            }
            None => "the recording of channels can only begin with the program: start it with --nccl-detail channels",
        };
        report(format_args!("NCCL's channels are not recorded: {why}"));
        let (rank, source, why) = (self.rank, "nccl:channels".into(), Some(why.into()));
        self.hand_over(vec![CounterRow { rank, source, why, ..CounterRow::default() }]);
    }

    fn end(&mut self) {
        self.explain_missing_channels();
        self.await_ends();
        self.callbacks.close();
        self.drain();
        self.publish(true);
    }

    /// Waits for ends that NCCL reports a little later.
    fn await_ends(&mut self) {
        let began = Instant::now();
        while self.in_flight.is_ending() && began.elapsed() < LAST_WAIT {
            thread::sleep(Duration::from_millis(1));
            self.drain();
        }
    }

    fn drain(&mut self) {
        let changed_ns = self.control.changed_ns.load(Ordering::Acquire);
        self.in_flight.awaits_proxies = self.control.detail() == CollectiveDetail::Proxy;
        self.in_flight.mask_changed_ns = changed_ns.saturating_add(GRACE_NS);
        self.in_flight.refresh_comms(&self.callbacks);
        while let Some(kernel) = self.callbacks.pop_kernel() {
            self.in_flight.kernel(kernel);
        }
        // A bounded number, because rows must be made in between.
        for _ in 0..64 * CHUNK {
            let Some(record) = self.callbacks.pop() else { break };
            self.in_flight.take(&self.callbacks, record);
        }
    }

    fn publish(&mut self, last: bool) {
        let now_ns = self.callbacks.now_ns();
        let period_ns = i64::try_from(PERIOD.as_nanos()).unwrap_or(i64::MAX);
        self.in_flight.publish(now_ns, now_ns.saturating_sub(period_ns), last);
        let rows = std::mem::take(&mut self.in_flight.rows);
        let name = self.launch_name;
        let events = rows.launches.iter().map(|launch| launch_event(launch, name)).collect();
        self.recorder.source_batch(SourceBatch { source: SOURCE, events, ..SourceBatch::default() });
        self.hand_over(rows.collectives);
        self.hand_over(rows.channels);
        self.hand_over(rows.proxies);
        self.hand_over(rows.comms);
        let counters = self.counters();
        self.hand_over(counters);
    }

    fn hand_over<R: Row>(&self, rows: Vec<R>) {
        // The rows are valid and their tables are not queued tables, so that an error here is a bug.
        if let Err(error) = self.recorder.rows(rows) {
            report(format_args!("rows of NCCL of rank {} were not recorded: {error}", self.rank));
        }
    }

    /// The counters since the last call.
    fn counters(&mut self) -> Vec<CounterRow> {
        let counts = &self.callbacks.counts;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let now = [
            load(&counts.no_handle),
            load(&counts.no_room),
            load(&counts.states),
            load(&counts.no_comm),
            load(&counts.late),
            load(&counts.comms),
            load(&counts.panics),
            self.in_flight.given_up,
            self.in_flight.orphans,
            self.in_flight.unknown_ends,
            self.in_flight.self_sends,
            self.in_flight.unreported_broadcasts,
            self.in_flight.crossings,
        ];
        let mut rows = Vec::new();
        for ((count, counted), (source, lost, why)) in now.iter().zip(&mut self.counted).zip(SOURCES) {
            let new = i64::try_from(count - *counted).unwrap_or(i64::MAX);
            *counted = *count;
            if new > 0 {
                let (dropped, omitted) = if lost { (new, 0) } else { (0, new) };
                let (source, why) = (source.into(), Some(why.into()));
                rows.push(CounterRow { rank: self.rank, source, dropped, omitted, why, ..CounterRow::default() });
            }
        }
        rows
    }
}
