//! The one session of the process: everything that CUPTI's callbacks reach is here.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::collectives::Announced;
use super::ffi::{self, Buffer, Library, Subscription, domain};
use super::layout::Version;
use super::pool::Pool;
use super::record::Walk;
use super::words::LAUNCH_CALLS;
use super::worker::{Message, Worker};
use super::{Settings, Summary};
use crate::{Collective, CollectiveState, Error, Recorder, Scope, TimingSource};

/// The session. It is never freed: CUPTI may call at any time until the process is gone.
static SESSION: OnceLock<Session> = OnceLock::new();
/// This process is a fork of the one with the session.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Held while a session starts, so that two threads cannot start one each.
static STARTING: Mutex<()> = Mutex::new(());

/// `CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING`.
const CONTEXT_DESTROY_STARTING: u32 = 2;
/// `CUPTI_DRIVER_TRACE_CBID_…` of cuCtxDestroy, cuCtxDestroy_v2, cuDevicePrimaryCtxRelease, …Reset, and their _v2: the
/// calls that end a context. CUPTI may be flushed from inside them, but not from a resource callback
/// (`cuptiActivityFlushAll` in the header of 13.5).
const CONTEXT_ENDS: [u32; 6] = [11, 322, 387, 389, 544, 545];
/// `callbackSite` of a call that is entered.
const API_ENTER: u32 = 0;

/// Collectives that wait for the worker to notice them.
const ANNOUNCED: usize = 4096;

/// Where the session is in its life.
mod phase {
    pub(super) const RUNNING: u8 = 1;
    pub(super) const PAUSED: u8 = 2;
    pub(super) const OVER: u8 = 3;
}

/// What the callbacks count.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Records in buffers that could not be kept.
    pub(crate) records: AtomicU64,
    /// Buffers that were not ours: another profiler has taken over the callbacks, or handed us its own.
    pub(crate) foreign_buffers: AtomicU64,
    pub(crate) panics: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) library: Library,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
    pub(crate) pool: Pool,
    pub(crate) lost: Lost,
    subscription: Subscription,
    phase: AtomicU8,
    /// Kinds that are enabled while it runs.
    kinds: Mutex<BTreeSet<u32>>,
    /// Driver calls are enabled one by one.
    chosen_driver_calls: AtomicBool,
    messages: SyncSender<Message>,
    announced: SyncSender<Announced>,
    worker: Mutex<Option<JoinHandle<()>>>,
    summary: Mutex<Summary>,
    finished: Mutex<Option<Summary>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is no reason to lose the trace; the values behind these locks are whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session, in the process that started it.
pub(crate) fn current() -> Option<&'static Session> {
    if is_child() { None } else { SESSION.get() }
}

fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Starts the session of this process. Subscribes before anything else: whoever holds CUPTI keeps it undisturbed.
pub(crate) fn start(recorder: &Recorder, settings: Settings) -> Result<&'static Session, Error> {
    let _starting = lock(&STARTING);
    if SESSION.get().is_some() {
        return Err(Error::CuptiTwice);
    }
    let library = Library::open(settings.library.as_deref())?;
    let subscription = library.subscribe()?;
    let (messages, inbox) = mpsc::sync_channel(settings.max_buffers.max(1) + 16);
    let (announced, announcements) = mpsc::sync_channel(ANNOUNCED);
    let session = SESSION.get_or_init(|| Session {
        pool: Pool::new(settings.buffer_bytes.max(64 << 10), settings.max_buffers),
        library,
        recorder: recorder.clone(),
        settings,
        lost: Lost::default(),
        subscription,
        phase: AtomicU8::new(phase::PAUSED),
        kinds: Mutex::default(),
        chosen_driver_calls: AtomicBool::new(false),
        messages,
        announced,
        worker: Mutex::new(None),
        summary: Mutex::default(),
        finished: Mutex::new(None),
    });
    session.bring_up(inbox, announcements).inspect_err(|_| {
        session.phase.store(phase::OVER, Ordering::Release);
        session.leave();
    })?;
    Ok(session)
}

impl Session {
    fn bring_up(&'static self, inbox: Receiver<Message>, announced: Receiver<Announced>) -> Result<(), Error> {
        // Before any kind is enabled, or some records would carry other times.
        if let Err(error) = self.own_clock() {
            tracing::warn!("{error}: times are mapped from CLOCK_REALTIME");
        }
        self.library.register_buffers()?;
        if let Err(error) = self.library.use_system_thread_ids() {
            tracing::warn!("{error}: thread ids of CUDA calls are not those of the system");
        }
        // Without these a destroyed context may take records with it; with them, nothing else is slower.
        let flushes = CONTEXT_ENDS.iter().map(|id| (domain::DRIVER_API, *id));
        for (domain, id) in flushes.chain([(domain::RESOURCE, CONTEXT_DESTROY_STARTING)]) {
            if let Err(error) = self.library.enable_callback(self.subscription, domain, id) {
                tracing::warn!("{error}: records of a context that is destroyed may be lost");
            }
        }
        ffi::watch_process();
        let worker = Worker::new(self, inbox, announced);
        let thread = std::thread::Builder::new()
            .name("rankscope-cupti".into())
            .spawn(move || worker.run())
            .map_err(Error::Thread)?;
        *lock(&self.worker) = Some(thread);
        self.enable_kinds()?;
        self.phase.store(phase::RUNNING, Ordering::Release);
        self.recorder.shared().set_linked(true);
        Ok(())
    }

    fn own_clock(&self) -> Result<(), Error> {
        let now_ns = self.recorder.clock().now_ns();
        if now_ns <= 0 {
            let message = format!("the recorder's clock stands at {now_ns} ns, which CUPTI cannot express");
            return Err(Error::CuptiCall { call: "cuptiActivityRegisterTimestampCallback", code: 0, message });
        }
        self.library.register_timestamp()
    }

    /// Kernels must be there; what else is refused is said once and done without.
    fn enable_kinds(&self) -> Result<(), Error> {
        const CONCURRENT_KERNEL: u32 = 10;
        let Settings { runtime, driver, synchronization, overhead, memory, nvtx, .. } = self.settings;
        self.enable(CONCURRENT_KERNEL)?;
        let always = [1, 2, 22, 39, 8, 9, 37];
        let chosen = [(runtime, 5), (synchronization, 38), (overhead, 17), (memory, 49), (nvtx, 12), (nvtx, 13)];
        for kind in always.into_iter().chain(chosen.into_iter().filter(|(wanted, _)| *wanted).map(|(_, kind)| kind)) {
            if let Err(error) = self.enable(kind) {
                tracing::warn!("{error}: activity kind {kind} is not recorded");
            }
        }
        if driver {
            self.enable_driver_calls();
        }
        Ok(())
    }

    fn enable(&self, kind: u32) -> Result<(), Error> {
        self.library.enable(kind)?;
        lock(&self.kinds).insert(kind);
        Ok(())
    }

    /// Launches alone, where CUPTI can choose; else all, of which the worker keeps the launches.
    fn enable_driver_calls(&self) {
        const DRIVER: u32 = 4;
        let chosen = self.library.can_choose_driver_calls() && self.set_driver_calls(true);
        self.chosen_driver_calls.store(chosen, Ordering::Relaxed);
        if !chosen && let Err(error) = self.enable(DRIVER) {
            tracing::warn!("{error}: calls of the driver are not recorded");
        }
    }

    fn set_driver_calls(&self, enable: bool) -> bool {
        LAUNCH_CALLS.iter().all(|id| self.library.enable_driver_call(*id, enable).is_ok())
    }

    /// Whether records of calls come, which device work may wait for.
    pub(crate) fn calls_come(&self) -> bool {
        let kinds = lock(&self.kinds);
        kinds.contains(&5) || kinds.contains(&4) || self.chosen_driver_calls.load(Ordering::Relaxed)
    }

    fn is_running(&self) -> bool {
        !is_child() && self.phase.load(Ordering::Acquire) == phase::RUNNING
    }

    pub(crate) fn pause(&self) {
        if is_child() {
            return;
        }
        let paused = |phase| (phase == phase::RUNNING).then_some(phase::PAUSED);
        if self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, paused).is_ok() {
            self.recorder.shared().set_linked(false);
            self.disable_kinds();
            self.flush();
        }
    }

    pub(crate) fn resume(&self) {
        if is_child() {
            return;
        }
        let resumed = |phase| (phase == phase::PAUSED).then_some(phase::RUNNING);
        if self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, resumed).is_err() {
            return;
        }
        for kind in lock(&self.kinds).iter() {
            if let Err(error) = self.library.enable(*kind) {
                tracing::warn!("{error}: activity kind {kind} is no longer recorded");
            }
        }
        if self.chosen_driver_calls.load(Ordering::Relaxed) && !self.set_driver_calls(true) {
            tracing::warn!("calls of the driver are no longer recorded");
        }
        self.recorder.shared().set_linked(true);
    }

    fn disable_kinds(&self) {
        for kind in lock(&self.kinds).iter() {
            if let Err(error) = self.library.disable(*kind) {
                tracing::debug!("{error}");
            }
        }
        if self.chosen_driver_calls.load(Ordering::Relaxed) {
            self.set_driver_calls(false);
        }
    }

    pub(crate) fn flush(&self) {
        if is_child() {
            return;
        }
        if let Err(error) = self.library.flush(false) {
            tracing::debug!("{error}");
        }
        // The worker looks at once rather than at its next turn; if its inbox is full it is looking anyhow.
        let _ = self.messages.try_send(Message::Look);
    }

    pub(crate) fn collectives(&self, scope: &Scope<'_>, collectives: &[Collective]) -> bool {
        let Some(external_id) = scope.id().filter(|_| scope.is_linked() && self.is_running()) else { return false };
        let told = |collective: &Collective| Collective {
            step: Some(collective.step.unwrap_or(scope.step())),
            enqueue_ns: collective.enqueue_ns.or(scope.start_ns()),
            ..*collective
        };
        let of = collectives.len() as u32;
        for (index, collective) in (0..).zip(collectives) {
            let announced = Announced { external_id, index, of, collective: told(collective) };
            if self.announced.try_send(announced).is_err() {
                return false;
            }
        }
        // So that one that never runs is seen; the worker's report of the others comes later and replaces these.
        for collective in collectives {
            let (state, timing_source) = (CollectiveState::Enqueued, TimingSource::Enqueue);
            let event_id = Some(external_id);
            scope.thread().collective(Collective { state, timing_source, event_id, ..told(collective) });
        }
        true
    }

    /// Ends the session, once.
    pub(crate) fn finish(&self) -> Summary {
        if is_child() {
            // It has no worker to wait for, and its copies of the locks may be held for ever.
            let failure = Some("this process is a fork of the one that records".into());
            return Summary { failure, ..Summary::default() };
        }
        let mut finished = lock(&self.finished);
        if let Some(summary) = &*finished {
            return summary.clone();
        }
        self.recorder.shared().set_linked(false);
        let was = self.phase.swap(phase::OVER, Ordering::AcqRel);
        if was == phase::RUNNING {
            self.disable_kinds();
        }
        if let Err(error) = self.library.flush(true) {
            self.fail(format!("what CUPTI still held is lost: {error}"));
        }
        self.stop_worker();
        self.leave();
        let summary = lock(&self.summary).clone();
        *finished = Some(summary.clone());
        summary
    }

    fn stop_worker(&self) {
        let Some(thread) = lock(&self.worker).take() else { return };
        let (reply, done) = mpsc::sync_channel(1);
        let timeout = self.settings.finish_timeout;
        let deadline = std::time::Instant::now() + timeout;
        let mut message = Message::Finish(reply);
        // Its inbox is bounded and may be full; it empties it as fast as it can.
        while let Err(TrySendError::Full(again)) = self.messages.try_send(message) {
            if std::time::Instant::now() > deadline {
                return self.fail(format!("the worker was still busy after {} s", timeout.as_secs_f64()));
            }
            message = again;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        match done.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            // It returns right after.
            Ok(()) => drop(thread.join()),
            Err(RecvTimeoutError::Timeout) => {
                self.fail(format!("the worker was still busy after {} s", timeout.as_secs_f64()));
            }
            Err(RecvTimeoutError::Disconnected) => self.fail("the worker has ended early".into()),
        }
    }

    /// Lets another profiler have CUPTI. (`cuptiFinalize` is never called: it has crashed with CUDA graphs.)
    fn leave(&self) {
        if let Err(error) = self.library.unsubscribe(self.subscription) {
            tracing::debug!("{error}");
        }
    }

    pub(crate) fn summary(&self) -> MutexGuard<'_, Summary> {
        lock(&self.summary)
    }

    pub(crate) fn fail(&self, why: String) {
        tracing::warn!("CUPTI: {why}");
        self.summary().failure = Some(why);
    }

    fn take_buffer(&self, address: *mut u8, valid: usize) {
        if address.is_null() {
            return;
        }
        let Some((buffer, overflow)) = self.pool.take_back(address) else {
            self.lost.foreign_buffers.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if overflow {
            self.lose(&buffer, valid);
            return;
        }
        if valid == 0 {
            return self.pool.give(buffer);
        }
        match self.messages.try_send(Message::Buffer(buffer, valid)) {
            Ok(()) => {}
            Err(
                TrySendError::Full(Message::Buffer(buffer, valid))
                | TrySendError::Disconnected(Message::Buffer(buffer, valid)),
            ) => {
                self.lose(&buffer, valid);
                self.pool.give(buffer);
            }
            Err(_) => {}
        }
    }

    /// Counts the records of a buffer that nobody will read.
    fn lose(&self, buffer: &Buffer, valid: usize) {
        let records = Walk::new(buffer.bytes(valid), self.library.version()).count() as u64;
        self.lost.records.fetch_add(records.max(1), Ordering::Relaxed);
    }
}

// ---- what callbacks and scopes call
// ---------------------------------------------------------------------------------------------------------------------

/// A buffer for CUPTI. `None`: none, and CUPTI counts what it cannot store.
pub(super) fn lend_buffer() -> Option<(*mut u8, usize)> {
    let session = current()?;
    let must = session.library.version() < Version::MAY_REFUSE_BUFFERS;
    session.pool.lend(must)
}

/// A buffer that CUPTI is done with.
pub(super) fn take_buffer(address: *mut u8, valid: usize) {
    if let Some(session) = current() {
        session.take_buffer(address, valid);
    }
}

/// The recorder's clock.
pub(super) fn now() -> u64 {
    SESSION.get().map_or(0, |session| u64::try_from(session.recorder.clock().now_ns()).unwrap_or(0))
}

/// A context is about to end: what is complete is asked for while it can be had.
pub(super) fn on_event(domain: u32, id: u32, site: impl Fn() -> Option<u32>) {
    let Some(session) = current() else { return };
    match domain {
        domain::DRIVER_API if CONTEXT_ENDS.contains(&id) && site() == Some(API_ENTER) => session.flush(),
        // Inside this one CUPTI must not be flushed; the worker does it, if it is in time.
        domain::RESOURCE if id == CONTEXT_DESTROY_STARTING => {
            let _ = session.messages.try_send(Message::Flush);
        }
        _ => {}
    }
}

/// The process ends in order, whether or not the program has ended the session and the recorder: what they hold is
/// kept.
pub(super) fn at_exit() {
    if crate::injected::is_started() {
        // NCCL, which is older than this handler, still holds rows.
        return crate::injected::finish();
    }
    if let Some(session) = current() {
        session.finish();
        session.recorder.finish();
    }
}

pub(super) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

pub(super) fn count_panic() {
    if let Some(session) = SESSION.get() {
        session.lost.panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// Launches of this thread carry `id` from now on. `false` if there is no session to tell.
#[inline]
pub(crate) fn push_scope(id: i64) -> bool {
    current().is_some_and(|session| session.library.push_external_id(id as u64))
}

/// Launches of this thread carry the id from before again.
#[inline]
pub(crate) fn pop_scope() {
    if let Some(session) = current() {
        session.library.pop_external_id();
    }
}
