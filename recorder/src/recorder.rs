//! The handle of a rank's recording: starts it, steers it, ends it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rtrb::RingBuffer;
use trace::{RankRow, Row, ShardMeta, StepRow, Table};

use crate::buffers::ColdRows;
use crate::clock::{boot_id, host_name};
use crate::device::DeviceBatch;
use crate::schedule::{Phase, Schedule};
use crate::state::Shared;
use crate::summary::Summary;
use crate::thread::{ThreadRecorder, ThreadShared};
use crate::writer::{Command, Setup, ThreadQueues, Writer};
use crate::{Clock, Error, NameId, Session, ShapeId};

/// How to record one rank. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The run's directory.
    pub run: PathBuf,
    /// Run id, as in the manifest.
    pub run_id: String,
    /// Global rank.
    pub rank: i32,
    /// Ranks in the job.
    pub world_size: i32,
    /// Rank within the host.
    pub local_rank: Option<i32>,
    /// Host name. Default: this host's.
    pub host: String,
    /// What started the ranks: `openmpi`, `slurm`, …
    pub launcher: Option<String>,
    /// Name and uuid of the device that the rank computes on.
    pub device: Option<(String, String)>,
    /// Where times come from. Default: the system's clock.
    pub clock: Clock,
    /// Records that a thread's queue holds, 64 bytes each. Default: 32 768.
    pub queue_records: usize,
    /// A part is closed at least this often while rows come. Default: 2 s.
    pub part_period: Duration,
    /// Rows of a table at which a part is closed earlier, and that a table keeps while its parts cannot be written.
    /// Default: 262 144.
    pub part_rows: usize,
    /// Longest wait for the writer at the end. Default: 30 s.
    pub finish_timeout: Duration,
    /// Versions of the tools involved, for the `ranks` row.
    pub versions: BTreeMap<String, String>,
    /// The processes that record this rank together. Default: this one alone.
    pub session: Option<Session>,
    /// Bytes of rows that this process may write; beyond, rows are left out and counted. A part that has begun below
    /// the limit is written whole; `ranks` and `counters` are not limited. Default: no limit.
    pub max_bytes: Option<u64>,
    /// File of the [`ControlPage`](crate::ControlPage) that says when the program's processes record. Default: always.
    pub control: Option<PathBuf>,
    /// Which of the steps that the program marks are recorded. Default: all, and what is between them.
    pub schedule: Option<Schedule>,
}

impl Options {
    /// The defaults.
    pub fn new(run: impl Into<PathBuf>, run_id: impl Into<String>, rank: i32, world_size: i32) -> Self {
        Self {
            run: run.into(),
            run_id: run_id.into(),
            rank,
            world_size,
            local_rank: None,
            host: host_name(),
            launcher: None,
            device: None,
            clock: Clock::system(),
            queue_records: 32_768,
            part_period: Duration::from_secs(2),
            part_rows: 262_144,
            finish_timeout: Duration::from_secs(30),
            versions: BTreeMap::new(),
            session: None,
            max_bytes: None,
            control: None,
            schedule: None,
        }
    }

    pub(crate) fn rank_row(&self) -> RankRow {
        let text = |s: &String| s.as_str().into();
        RankRow {
            rank: self.rank,
            world_size: self.world_size,
            local_rank: self.local_rank,
            host: text(&self.host),
            pid: i64::from(std::process::id()),
            boot_id: Some(boot_id()).filter(|id| !id.is_empty()).map(Into::into),
            clock_domain: self.clock.domain().into(),
            launcher: self.launcher.as_ref().map(text),
            device_name: self.device.as_ref().map(|(name, _)| text(name)),
            device_uuid: self.device.as_ref().map(|(_, uuid)| text(uuid)),
            versions: (!self.versions.is_empty()).then(|| serde_json::json!(self.versions).to_string()).map(Into::into),
            ..RankRow::default()
        }
    }
}

/// A rank's recording. Clones are handles of the same one; it ends with [`finish`](Self::finish), or not cleanly when
/// the last handle is dropped.
///
/// After a `fork`, the child's copies do nothing: they write no file and wait for no thread.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    rank: i32,
    /// The process that started the recorder.
    pid: u32,
    queue_records: usize,
    finish_timeout: Duration,
    summary: Arc<Mutex<Summary>>,
    writer: Mutex<Option<WriterHandle>>,
    step: Mutex<Option<OpenStep>>,
}

#[derive(Debug)]
struct WriterHandle {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct OpenStep {
    step: i32,
    phase: Phase,
    start_ns: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is no reason to lose the trace; the values behind these locks are whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Starts to record a rank: writes its row in `ranks`, with `closed_cleanly = false`, and starts the writer thread.
    /// Nothing is active yet: see [`begin_step`](Self::begin_step) and [`set_active`](Self::set_active).
    ///
    /// # Errors
    /// [`Error::RankTaken`] if the run holds shards of this rank already (other than those of a session that this
    /// process joins); [`Error::Trace`] if the row cannot be
    /// written; [`Error::Thread`]. A program that would rather run unrecorded goes on with [`Recorder::disabled`].
    pub fn start(options: Options) -> Result<Self, Error> {
        let rank_row = options.rank_row();
        let meta = ShardMeta {
            run_id: options.run_id.clone(),
            rank: options.rank,
            host: options.host.clone(),
            pid: rank_row.pid,
            boot_id: rank_row.boot_id.as_deref().unwrap_or_default().into(),
            clock_domain: rank_row.clock_domain.to_string(),
            session: options.session.as_ref().map(|session| session.id().to_string()).unwrap_or_default(),
        };
        let shared = Arc::new(Shared::new(options.clock, true));
        let summary = Arc::new(Mutex::new(Summary::default()));
        let (commands, receiver) = mpsc::channel();
        let setup = Setup {
            run: options.run,
            meta,
            part_period: options.part_period,
            part_rows: options.part_rows.max(1),
            queue_records: options.queue_records,
            rank_row,
            joins: options.session.as_ref().is_some_and(Session::joins),
            max_bytes: options.max_bytes.unwrap_or(u64::MAX),
        };
        let writer = Writer::start(setup, shared.clone(), summary.clone())?;
        let thread = std::thread::Builder::new()
            .name("rankscope-writer".into())
            .spawn(move || writer.run(&receiver))
            .map_err(Error::Thread)?;
        Ok(Self::assemble(
            shared,
            summary,
            Some(WriterHandle { commands, thread }),
            (options.rank, options.queue_records, options.finish_timeout),
        ))
    }

    /// A recorder that records nothing and owns neither thread nor file: the same program, without its cost.
    pub fn disabled(clock: Clock) -> Self {
        let shared = Arc::new(Shared::new(clock, false));
        Self::assemble(shared, Arc::default(), None, (0, 1, Duration::ZERO))
    }

    fn assemble(
        shared: Arc<Shared>,
        summary: Arc<Mutex<Summary>>,
        writer: Option<WriterHandle>,
        (rank, queue_records, finish_timeout): (i32, usize, Duration),
    ) -> Self {
        let handle = Handle {
            shared: shared.clone(),
            rank,
            pid: std::process::id(),
            queue_records,
            finish_timeout,
            summary,
            writer: Mutex::new(writer),
            step: Mutex::new(None),
        };
        Self { shared, handle: Arc::new(handle) }
    }

    /// The clock that rows are stamped with.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// The number of a string, for the hot path. Takes a lock and allocates: intern before the work begins.
    pub fn intern(&self, name: &str) -> NameId {
        self.shared.names.intern(name)
    }

    /// The number of an operation's input shapes and element types: `intern_shapes(&[&[64, 1024], &[1024, 1024]],
    /// &["float", "float"])`. As [`intern`](Self::intern), not for the hot path.
    pub fn intern_shapes(&self, dims: &[&[i64]], types: &[&str]) -> ShapeId {
        self.shared.names.intern_shapes(dims, types)
    }

    /// A thread's door to the recorder, with a queue of its own. `name` tells threads apart in `counters`.
    pub fn thread(&self, name: &str) -> ThreadRecorder {
        let (events, events_out) = RingBuffer::new(self.handle.queue_records);
        let (rare, rare_out) = RingBuffer::new(self.handle.queue_records.min(4096));
        let own = Arc::new(ThreadShared::new(name));
        // Without a writer the recorder is disabled or over, and the thread's records go nowhere.
        self.handle.send(Command::Thread(ThreadQueues { own: own.clone(), events: events_out, rare: rare_out }));
        ThreadRecorder::new(self.shared.clone(), own, events, rare)
    }

    /// Begins a training step: from now on rows get this step, and exist only if `phase` is active.
    pub fn begin_step(&self, step: i32, phase: Phase) {
        if lock(&self.handle.step).is_some() {
            self.end_step(None);
        }
        let start_ns = self.shared.clock.now_ns();
        *lock(&self.handle.step) = Some(OpenStep { step, phase, start_ns });
        self.shared.begin_step(step, phase == Phase::Active);
    }

    /// Ends the step and writes its row, if it was a warm-up or an active step. Until the next step begins, rows get
    /// step −1, and exist if the step was active.
    pub fn end_step(&self, loss: Option<f64>) {
        let Some(row) = self.close_step() else { return };
        let step = row.step;
        // The row is well-formed and `steps` is no queued table, so that only a bug could refuse it.
        if let Err(error) = self.rows(vec![StepRow { loss, ..row }]) {
            tracing::error!("step {step} of rank {} was not recorded: {error}", self.handle.rank);
        }
    }

    /// As [`end_step`](Self::end_step), for a step whose loss is known only later: the row, without its loss, is the
    /// caller's to complete and to hand over with [`rows`](Self::rows). None for a step that gets no row.
    pub fn close_step(&self) -> Option<StepRow> {
        let OpenStep { step, phase, start_ns } = lock(&self.handle.step).take()?;
        self.shared.set_step(-1);
        let (phase, end_ns) = (phase.as_str()?, self.shared.clock.now_ns());
        Some(StepRow { rank: self.handle.rank, step, phase: phase.into(), start_ns, end_ns, loss: None })
    }

    /// Switches rows on or off, for programs without steps.
    pub fn set_active(&self, active: bool) {
        self.shared.set_active(active);
    }

    /// Hands rows of a small table to the writer: `clock_samples`, `buckets`, `comms`, `devices`, … They become part of
    /// the next part, in the order of the calls, whether or not recording is active. Like any row they may be lost, and
    /// counted, but never fail the program.
    ///
    /// # Errors
    /// [`Error::QueuedTable`] for `events` and `memory`; [`Error::Trace`] if a row names another rank than this.
    pub fn rows<R: Row>(&self, rows: Vec<R>) -> Result<(), Error> {
        let table: Table = R::table();
        if table.sorted_by.is_some() {
            return Err(Error::QueuedTable { table: table.name });
        }
        if !self.shared.state().is_enabled() || rows.is_empty() {
            return Ok(());
        }
        let batch = trace::batch_from_rows(&rows)?;
        trace::Checker::new(&table, self.handle.rank).check(&batch)?;
        if self.shared.handed_over.enter(rows.len() as u64) {
            self.handle.send(Command::Rows(ColdRows { table, batch }));
        }
        Ok(())
    }

    /// What all of the recording share, for a source beside the threads.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The rank.
    pub(crate) fn rank(&self) -> i32 {
        self.handle.rank
    }

    /// Hands over what a source beside the threads has learnt. What finds no room is lost and counted.
    pub(crate) fn device(&self, batch: DeviceBatch) {
        let rows = batch.rows() as u64;
        if !batch.is_empty() {
            let room = self.shared.handed_over.enter(rows);
            // What a source has lost is told even where its rows find no room.
            let batch = if room { batch } else { DeviceBatch { missing: batch.missing, ..DeviceBatch::default() } };
            self.handle.send(Command::Device(batch));
        }
    }

    /// Ends the recording: takes what the queues hold, closes the last part, writes `counters` and the final `ranks`
    /// row. Waits no longer than [`Options::finish_timeout`]. A second call returns the same again.
    pub fn finish(&self) -> Summary {
        self.handle.stop(true)
    }
}

impl Handle {
    fn send(&self, command: Command) {
        if let Some(writer) = lock(&self.writer).as_ref() {
            // A writer that is gone has been reported in the summary already.
            let _ = writer.commands.send(command);
        }
    }

    fn stop(&self, clean: bool) -> Summary {
        self.shared.disable();
        if self.pid != std::process::id() {
            // A forked child has no writer thread to wait for, and its copies of the locks may be held for ever.
            let mut summary = Summary::default();
            summary.fail("this process is a fork of the one that records".into());
            return summary;
        }
        // Taken out first: nobody shall wait for the lock while this waits for the writer.
        let writer = lock(&self.writer).take();
        if let Some(WriterHandle { commands, thread }) = writer {
            let (reply, done) = mpsc::sync_channel(1);
            let sent = commands.send(Command::Finish { clean, reply }).is_ok();
            match done.recv_timeout(self.finish_timeout) {
                Ok(()) if sent => {
                    // It has replied and returns; what it has to say stands in the summary.
                    let _ = thread.join();
                }
                Err(RecvTimeoutError::Timeout) => {
                    let waited_s = self.finish_timeout.as_secs_f64();
                    lock(&self.summary).fail(format!("the writer was still busy after {waited_s} s"));
                }
                _ => lock(&self.summary).fail("the writer thread has ended early".into()),
            }
        }
        lock(&self.summary).clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::device::DeviceEvent;

    /// A real fork cannot be made without unsafe code; what the child sees of it is that its process id is another.
    #[test]
    fn in_a_forked_child_nothing_is_written_and_nobody_waits() {
        let run = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(Options::new(run.path(), "test", 0, 1)).unwrap();
        let child = Recorder {
            shared: recorder.shared.clone(),
            handle: Arc::new(Handle {
                shared: Arc::new(Shared::new(Clock::system(), true)),
                rank: 0,
                pid: std::process::id() + 1,
                queue_records: 8,
                finish_timeout: Duration::from_secs(3600),
                summary: Arc::default(),
                writer: Mutex::new(lock(&recorder.handle.writer).as_ref().map(|writer| WriterHandle {
                    commands: writer.commands.clone(),
                    thread: std::thread::spawn(|| std::thread::sleep(Duration::from_secs(3600))),
                })),
                step: Mutex::new(None),
            }),
        };
        let held = lock(&child.handle.writer);
        assert!(child.finish().failure.is_some_and(|why| why.contains("fork")));
        drop(held);
        assert!(recorder.finish().closed_cleanly, "the parent's writer was left alone");
    }

    /// Rows that a device handed over are left out like others, and free what they held.
    #[test]
    fn beyond_the_limit_rows_of_a_device_are_left_out_and_counted() {
        const ROWS: u64 = 10_000;
        let run = tempfile::tempdir().unwrap();
        let short = Duration::from_millis(5);
        let options = Options::new(run.path(), "test", 0, 1);
        let options = Options { max_bytes: Some(1), part_rows: 100, part_period: short, ..options };
        let recorder = Recorder::start(options).unwrap();
        recorder.set_active(true);
        let name = recorder.intern("kernel");
        for id in 0..ROWS as i64 / 10 {
            let events = (0..10).map(|k| DeviceEvent::new(10 * id + k, Kind::Kernel, name, id, id + 1)).collect();
            recorder.device(DeviceBatch { events, ..DeviceBatch::default() });
        }
        let thread = recorder.thread("main");
        (0..1000).for_each(|_| drop(thread.scope(Kind::CpuOp, name)));
        std::thread::sleep(40 * short);
        let summary = recorder.finish();
        assert_eq!((summary.recorded, summary.omitted, summary.dropped), (0, ROWS + 1000, 0), "{summary}");
        // The rank's rows, and counts ever more rarely.
        assert!(summary.closed_cleanly && summary.shards < 20, "{summary}");
    }
}
