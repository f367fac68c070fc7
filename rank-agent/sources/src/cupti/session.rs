//! The one session of the process. CUPTI's callbacks reach everything from here.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use recorder::{Collective, CollectiveState, Recorder, Scope, ScopeHook, TimingSource, lock, report};

use super::activities::Activities;
use super::capture::{Capture, Lost, Message};
use super::collectives::Announced;
use super::ffi::{self, Callbacks, Library, Subscription, domain};
use super::pool::Pool;
use super::settings::{Settings, Summary};
use super::worker::Worker;
use crate::error::Error;

/// The session. It is never freed, because CUPTI may call at any time until the process ends.
static SESSION: OnceLock<Session> = OnceLock::new();
/// This process is a fork of the one with the session.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Locked while a session starts, so that two threads cannot start one each.
static STARTING: Mutex<()> = Mutex::new(());

/// `CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING`.
const CONTEXT_DESTROY_STARTING: u32 = 2;
/// `CUPTI_CBID_RESOURCE_CONTEXT_CREATED`.
const CONTEXT_CREATED: u32 = 1;
/// `CUPTI_DRIVER_TRACE_CBID_…` of cuStreamBeginCapture, its _v2, cuStreamBeginCaptureToGraph, and their _ptsz.
const CAPTURES: [u32; 6] = [495, 496, 539, 540, 720, 721];
/// `CUPTI_DRIVER_TRACE_CBID_…` of cuCtxDestroy, cuCtxDestroy_v2, cuDevicePrimaryCtxRelease, …Reset, and their _v2: the
/// calls that destroy a context. CUPTI may be flushed inside them, but not inside a resource callback
/// (`cuptiActivityFlushAll` in the header of 13.5).
const CONTEXT_ENDS: [u32; 6] = [11, 322, 387, 389, 544, 545];
/// `callbackSite` at the start of a call.
const API_ENTER: u32 = 0;

/// Capacity of the queue of announced collectives.
const ANNOUNCED: usize = 4096;

/// Phases of the session.
mod phase {
    pub(super) const RUNNING: u8 = 1;
    pub(super) const PAUSED: u8 = 2;
    pub(super) const OVER: u8 = 3;
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(super) capture: Capture,
    subscription: Subscription,
    phase: AtomicU8,
    announced: SyncSender<Announced>,
    worker: Mutex<Option<JoinHandle<()>>>,
    finished: Mutex<Option<Summary>>,
}

/// The session, in the process that started it.
fn current() -> Option<&'static Session> {
    if is_child() { None } else { SESSION.get() }
}

fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Starts the session of this process. It subscribes first, so that it does not disturb another profiler that holds
/// CUPTI.
pub(super) fn start(recorder: &Recorder, settings: Settings) -> Result<&'static Session, Error> {
    let _starting = lock(&STARTING);
    if SESSION.get().is_some() {
        return Err(Error::CuptiTwice);
    }
    let library = Library::open(settings.library.as_deref())?;
    let subscription = library.subscribe::<OfSession>()?;
    let (messages, inbox) = mpsc::sync_channel(settings.max_buffers.max(1) + 16);
    let (announced, announcements) = mpsc::sync_channel(ANNOUNCED);
    let ready = AtomicBool::new(!settings.in_initialisation);
    let session = SESSION.get_or_init(|| Session {
        capture: Capture {
            pool: Pool::new(settings.buffer_bytes.max(64 << 10), settings.max_buffers),
            library,
            recorder: recorder.clone(),
            settings,
            lost: Lost::default(),
            activities: Activities::default(),
            messages,
            ready,
            exchanged: AtomicU64::new(0),
            summary: Mutex::default(),
        },
        subscription,
        phase: AtomicU8::new(phase::PAUSED),
        announced,
        worker: Mutex::new(None),
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
        let Capture { library, recorder, settings, activities, .. } = &self.capture;
        // Before any kind is enabled, or some records would carry times of another clock. If CUPTI refuses the clock,
        // times are mapped from CLOCK_REALTIME, and `Summary::own_clock` says so.
        if recorder.clock().now_ns() > 0 {
            let _ = library.register_timestamp::<OfSession>();
        }
        library.register_buffers::<OfSession>()?;
        if let Err(error) = library.use_system_thread_ids() {
            report(format_args!("{error}: thread ids of CUDA calls are not those of the system"));
        }
        // Without these callbacks, a destroyed context may take records with it. They slow down no other call.
        let calls = CONTEXT_ENDS.iter().chain(&CAPTURES).map(|id| (domain::DRIVER_API, *id));
        let mut callbacks = calls.chain([CONTEXT_DESTROY_STARTING, CONTEXT_CREATED].map(|id| (domain::RESOURCE, id)));
        let enable = |(domain, id)| library.enable_callback(self.subscription, domain, id).err();
        // All of them are tried; the first refusal stands for all.
        if let Some(error) = callbacks.by_ref().filter_map(enable).collect::<Vec<_>>().first() {
            report(format_args!(
                "{error}: records of a context that is destroyed may be lost, and NCCL's times in a captured CUDA graph wrong"
            ));
        }
        ffi::watch_process::<OfSession>();
        let worker = Worker::new(&self.capture, inbox, announced);
        let thread = recorder::spawn("rankscope-cupti", move || worker.run()).map_err(Error::Thread)?;
        *lock(&self.worker) = Some(thread);
        Activities::prepare(library, settings);
        recorder.shared().set_scope_hook(ScopeHook { push: push_scope, pop: pop_scope });
        if !settings.paused {
            activities.enable_all(library, settings)?;
            self.phase.store(phase::RUNNING, Ordering::Release);
            recorder.shared().set_linked(true);
        }
        Ok(())
    }

    /// Whether the kinds stay enabled in a pause: their rows are left out then, because their launches are inactive.
    fn stays_enabled(&self) -> bool {
        let Capture { library, settings, .. } = &self.capture;
        let version = library.version();
        !version.switches_safely() || settings.graphs && !version.joins_graphs_again()
    }

    /// CUDA has initialised, because it makes a context.
    fn initialised(&self) {
        if !self.capture.ready.swap(true, Ordering::AcqRel) {
            let _ = self.capture.messages.try_send(Message::Look);
            // Handlers run in reverse order. One that the driver has registered in its initialisation would run before the
            // first one of this session, which began inside it, and the records that CUPTI still holds would be lost.
            ffi::at_exit::<OfSession>();
        }
    }

    fn is_running(&self) -> bool {
        !is_child() && self.phase.load(Ordering::Acquire) == phase::RUNNING
    }

    pub(super) fn pause(&self) {
        if is_child() {
            return;
        }
        let paused = |phase| (phase == phase::RUNNING).then_some(phase::PAUSED);
        if self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, paused).is_ok() {
            self.capture.recorder.shared().set_linked(false);
            if !self.stays_enabled() {
                self.capture.activities.disable(&self.capture.library);
            }
            self.flush();
        }
    }

    pub(super) fn resume(&self) {
        if is_child() {
            return;
        }
        let resumed = |phase| (phase == phase::PAUSED).then_some(phase::RUNNING);
        if self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, resumed).is_err() {
            return;
        }
        let Capture { library, settings, activities, recorder, .. } = &self.capture;
        // Another profiler may have registered its own buffers since.
        let enabled = library.register_buffers::<OfSession>().and_then(|()| activities.enable_all(library, settings));
        if let Err(error) = enabled {
            report(format_args!("{error}: the devices are not recorded"));
            self.capture.fail(error.to_string());
        }
        recorder.shared().set_linked(true);
    }

    pub(super) fn flush(&self) {
        if !is_child() {
            self.capture.flush();
        }
    }

    /// Hands the rows of complete records to the recorder. Returns whether that is done after at most `patience`; a version that must not
    /// be asked for records at any time does not do it.
    pub(super) fn settle(&self, patience: Duration) -> bool {
        let (reply, done) = mpsc::sync_channel(1);
        !is_child()
            && self.capture.messages.try_send(Message::Settle(reply)).is_ok()
            && done.recv_timeout(patience) == Ok(true)
    }

    pub(super) fn collectives(&self, scope: &Scope<'_>, collectives: &[Collective]) -> bool {
        let Some(external_id) = scope.id().filter(|_| scope.is_linked() && self.is_running()) else { return false };
        let in_scope = |collective: &Collective| Collective {
            step: Some(collective.step.unwrap_or(scope.step())),
            enqueue_ns: collective.enqueue_ns.or(scope.start_ns()),
            ..*collective
        };
        let of = collectives.len() as u32;
        for (index, collective) in (0..).zip(collectives) {
            let announced = Announced { external_id, index, of, collective: in_scope(collective) };
            if self.announced.try_send(announced).is_err() {
                return false;
            }
        }
        // These rows keep a collective visible that never runs. The worker's later reports replace the others.
        for collective in collectives {
            let (state, timing_source) = (CollectiveState::Enqueued, TimingSource::Enqueue);
            let event_id = Some(external_id);
            scope.thread().collective(Collective { state, timing_source, event_id, ..in_scope(collective) });
        }
        true
    }

    /// Ends the session, once.
    pub(super) fn finish(&self) -> Summary {
        if is_child() {
            // A forked child has no worker to wait for, and its copies of the locks may stay locked for ever.
            let failure = Some("this process is a fork of the one that records".into());
            return Summary { failure, ..Summary::default() };
        }
        let mut finished = lock(&self.finished);
        if let Some(summary) = &*finished {
            return summary.clone();
        }
        let Capture { library, recorder, activities, .. } = &self.capture;
        recorder.shared().set_linked(false);
        self.phase.store(phase::OVER, Ordering::Release);
        if library.version().switches_safely() {
            activities.end(library);
        }
        if let Err(error) = library.flush(true) {
            self.capture.fail(format!("records that CUPTI still held are lost: {error}"));
        }
        self.stop_worker();
        self.leave();
        let summary = self.capture.summary().clone();
        *finished = Some(summary.clone());
        summary
    }

    fn stop_worker(&self) {
        let Some(thread) = lock(&self.worker).take() else { return };
        let Capture { settings, messages, .. } = &self.capture;
        let (reply, done) = mpsc::sync_channel(1);
        let timeout = settings.finish_timeout;
        let deadline = Instant::now() + timeout;
        let busy = || self.capture.fail(format!("the worker was still busy after {} s", timeout.as_secs_f64()));
        let mut message = Message::Finish(reply);
        // The worker's inbox is bounded and may be full; the worker empties it as fast as it can.
        while let Err(TrySendError::Full(again)) = messages.try_send(message) {
            if Instant::now() > deadline {
                return busy();
            }
            message = again;
            std::thread::sleep(Duration::from_millis(1));
        }
        match done.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            // The worker returns right after its reply.
            Ok(()) => drop(thread.join()),
            Err(RecvTimeoutError::Timeout) => busy(),
            Err(RecvTimeoutError::Disconnected) => self.capture.fail("the worker has ended early".into()),
        }
    }

    /// Releases CUPTI for another profiler. It never calls `cuptiFinalize`, which has crashed with CUDA graphs.
    fn leave(&self) {
        // A refusal has no effect on the rows: they are complete by now.
        let _ = self.capture.library.unsubscribe(self.subscription);
    }
}

/// Launches of this thread carry `id` from now on. Returns `false` without a session.
#[inline]
fn push_scope(id: i64) -> bool {
    current().is_some_and(|session| session.capture.library.push_external_id(id as u64))
}

/// Launches of this thread carry the previous id again.
#[inline]
fn pop_scope() {
    if let Some(session) = current() {
        session.capture.library.pop_external_id();
    }
}

/// The callbacks of the process's session.
struct OfSession;

impl Callbacks for OfSession {
    fn lend_buffer() -> Option<(*mut u8, usize)> {
        current()?.capture.lend_buffer()
    }

    fn take_buffer(address: *mut u8, valid: usize) {
        if let Some(session) = current() {
            session.capture.take_buffer(address, valid);
        }
    }

    fn now() -> u64 {
        SESSION.get().map_or(0, |session| u64::try_from(session.capture.recorder.clock().now_ns()).unwrap_or(0))
    }

    fn on_event(domain: u32, id: u32, site: impl Fn() -> Option<u32>) {
        let Some(session) = current() else { return };
        match domain {
            domain::DRIVER_API if CONTEXT_ENDS.contains(&id) && site() == Some(API_ENTER) => session.flush(),
            // CUPTI must not be flushed inside this callback: the worker does it, if it is in time.
            domain::RESOURCE if id == CONTEXT_DESTROY_STARTING => {
                let _ = session.capture.messages.try_send(Message::Flush);
            }
            domain::RESOURCE if id == CONTEXT_CREATED => session.initialised(),
            domain::DRIVER_API if CAPTURES.contains(&id) && site() == Some(API_ENTER) => {
                session.capture.settings.on_capture.iter().for_each(|on_capture| on_capture());
            }
            _ => {}
        }
    }

    fn at_exit() {
        let Some(session) = SESSION.get() else { return };
        if let Some(end) = session.capture.settings.at_exit {
            return end();
        }
        if !is_child() {
            session.finish();
            session.capture.recorder.finish();
        }
    }

    fn forked() {
        FORKED.store(true, Ordering::Relaxed);
    }

    fn count_panic() {
        if let Some(session) = SESSION.get() {
            session.capture.lost.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}
