//! The handle of a rank's recording: starts, controls and ends it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rtrb::RingBuffer;
use trace::{Row, ShardMeta, StepRow, Table, lock};

use crate::background::spawn;
use crate::clock::Clock;
use crate::error::Error;
use crate::names::{NameId, ShapeId};
use crate::options::Options;
use crate::report::report;
use crate::schedule::Phase;
use crate::session::Session;
use crate::shared::Shared;
use crate::source_batch::SourceBatch;
use crate::summary::Summary;
use crate::thread::{ThreadRecorder, ThreadShared};
use crate::writer::{Command, HandedRows, Setup, ThreadQueues, Writer};

/// A rank's recording. Clones are handles of the same recording. It ends with [`finish`](Self::finish); if the last
/// handle is dropped first, it does not end cleanly.
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

impl Recorder {
    /// Starts to record a rank: writes its row in `ranks`, with `closed_cleanly = false`, and starts the writer thread.
    /// Recording is inactive at first: see [`begin_step`](Self::begin_step) and [`set_active`](Self::set_active).
    ///
    /// # Errors
    /// [`Error::RankTaken`] if the run already holds shards of this rank, except for shards of a session that this
    /// process joins; [`Error::Trace`] if the row cannot be written; [`Error::Thread`]. A program can continue without
    /// recording by using [`Recorder::disabled`].
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
            keep: options.keep,
        };
        let writer = Writer::start(setup, shared.clone(), summary.clone())?;
        let thread = spawn("rankscope-writer", move || writer.run(&receiver)).map_err(Error::Thread)?;
        Ok(Self::assemble(Handle {
            shared,
            rank: options.rank,
            pid: std::process::id(),
            queue_records: options.queue_records,
            finish_timeout: options.finish_timeout,
            summary,
            writer: Mutex::new(Some(WriterHandle { commands, thread })),
            step: Mutex::new(None),
        }))
    }

    /// A recorder that records nothing and owns neither a thread nor a file. The same program runs with it at no cost.
    pub fn disabled(clock: Clock) -> Self {
        Self::assemble(Handle {
            shared: Arc::new(Shared::new(clock, false)),
            rank: 0,
            pid: std::process::id(),
            queue_records: 1,
            finish_timeout: Duration::ZERO,
            summary: Arc::default(),
            writer: Mutex::new(None),
            step: Mutex::new(None),
        })
    }

    fn assemble(handle: Handle) -> Self {
        Self { shared: handle.shared.clone(), handle: Arc::new(handle) }
    }

    /// The clock of all timestamps.
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Returns the number of a string, for the hot path. It takes a lock and allocates: intern before the work begins.
    pub fn intern(&self, name: &str) -> NameId {
        self.shared.names.intern(name)
    }

    /// Returns the number of an operation's input shapes and element types: `intern_shapes(&[&[64, 1024], &[1024,
    /// 1024]], &["float", "float"])`. Like [`intern`](Self::intern), it is not for the hot path.
    pub fn intern_shapes(&self, dims: &[&[i64]], types: &[&str]) -> ShapeId {
        self.shared.names.intern_shapes(dims, types)
    }

    /// A thread's access to the recorder, with its own queue. `name` identifies the thread in `counters`.
    pub fn thread(&self, name: &str) -> ThreadRecorder {
        let (events, events_out) = RingBuffer::new(self.handle.queue_records);
        let (rare, rare_out) = RingBuffer::new(self.handle.queue_records.min(4096));
        let own = Arc::new(ThreadShared::new(name));
        // Without a writer the recorder is disabled or has ended, and the thread's records are discarded.
        self.handle.send(Command::Thread(ThreadQueues { own: own.clone(), events: events_out, rare: rare_out }));
        ThreadRecorder::new(self.shared.clone(), own, events, rare)
    }

    /// Begins a training step: from now on rows belong to this step, and exist only if `phase` is active.
    pub fn begin_step(&self, step: i32, phase: Phase) {
        if lock(&self.handle.step).is_some() {
            self.end_step(None);
        }
        let start_ns = self.shared.clock.now_ns();
        *lock(&self.handle.step) = Some(OpenStep { step, phase, start_ns });
        self.shared.begin_step(step, phase == Phase::Active);
    }

    /// Ends the step and writes its row, if it was a warm-up or an active step. Until the next step begins, rows belong to
    /// step −1, and exist if the step was active.
    pub fn end_step(&self, loss: Option<f64>) {
        let Some(row) = self.close_step() else { return };
        let step = row.step;
        // The row is valid and `steps` is not a queued table, so that an error here is a bug.
        if let Err(error) = self.rows(vec![StepRow { loss, ..row }]) {
            report(format_args!("step {step} of rank {} was not recorded: {error}", self.handle.rank));
        }
    }

    /// Ends the step like [`end_step`](Self::end_step), for a loss that is known only later: the caller completes the row
    /// and hands it over with [`rows`](Self::rows). Returns `None` for a step without a row.
    pub fn close_step(&self) -> Option<StepRow> {
        let OpenStep { step, phase, start_ns } = lock(&self.handle.step).take()?;
        self.shared.set_step(-1);
        let (phase, end_ns) = (phase.as_str()?, self.shared.clock.now_ns());
        Some(StepRow { rank: self.handle.rank, step, phase: phase.into(), start_ns, end_ns, loss: None, window: None })
    }

    /// Switches rows on or off, for programs without steps.
    pub fn set_active(&self, active: bool) {
        self.shared.set_active(active);
    }

    /// Hands rows of a small table to the writer: `clock_samples`, `buckets`, `comms`, `devices`, … The next part holds
    /// them in the order of the calls, whether or not recording is active. Like all rows they may be lost, and are then
    /// counted, but they never make the program fail.
    ///
    /// # Errors
    /// [`Error::QueuedTable`] for `events` and `memory`; [`Error::Trace`] if a row names another rank.
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
            self.handle.send(Command::Rows(HandedRows { table, batch }));
        }
        Ok(())
    }

    /// State that a source shares with the threads.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The rank.
    pub fn rank(&self) -> i32 {
        self.handle.rank
    }

    /// Hands over the rows of a source. Rows for which there is no room are lost and counted.
    pub fn source_batch(&self, batch: SourceBatch) {
        let rows = batch.rows() as u64;
        if !batch.is_empty() {
            let room = self.shared.handed_over.enter(rows);
            // The source's counts of missing rows arrive even if its rows find no room.
            let (source, missing) = (batch.source, batch.missing);
            let batch = match room {
                true => SourceBatch { missing, ..batch },
                false => SourceBatch { source, missing, ..SourceBatch::default() },
            };
            self.handle.send(Command::Source(batch));
        }
    }

    /// Writes all rows that were handed over until now, so that the process may then be killed. Returns whether the writer has done so
    /// after at most `patience`. Rows that the disk refuses stay for the next part, or are counted as lost.
    pub fn flush(&self, patience: Duration) -> bool {
        if self.handle.pid != std::process::id() {
            return false;
        }
        let (reply, done) = mpsc::sync_channel(1);
        self.handle.send(Command::Flush { reply });
        done.recv_timeout(patience).is_ok()
    }

    /// Ends the recording: empties the queues, closes the last part, writes `counters` and the final `ranks` row. Waits
    /// no longer than [`Options::finish_timeout`]. A second call returns the same summary.
    pub fn finish(&self) -> Summary {
        self.handle.stop(true)
    }
}

impl Handle {
    fn send(&self, command: Command) {
        if let Some(writer) = lock(&self.writer).as_ref() {
            // If the writer has ended, the summary already says so.
            let _ = writer.commands.send(command);
        }
    }

    fn stop(&self, clean: bool) -> Summary {
        self.shared.set_ending(true);
        let summary = self.stopped(clean);
        self.shared.set_ending(false);
        summary
    }

    fn stopped(&self, clean: bool) -> Summary {
        self.shared.disable();
        if self.pid != std::process::id() {
            // A forked child has no writer thread to wait for, and its copies of the locks may be held for ever.
            let mut summary = Summary::default();
            summary.fail("this process is a fork of the one that records".into());
            return summary;
        }
        // Take the writer out first, so that no other thread waits for the lock while this one waits for the writer.
        let writer = lock(&self.writer).take();
        if let Some(WriterHandle { commands, thread }) = writer {
            let (reply, done) = mpsc::sync_channel(1);
            let sent = commands.send(Command::Finish { clean, reply }).is_ok();
            match done.recv_timeout(self.finish_timeout) {
                Ok(()) if sent => {
                    // The writer has replied and returns; its result is in the summary.
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::kinds::Kind;
    use crate::source_batch::SourceEvent;

    /// A real fork needs unsafe code. A different process id has the same effect on the recorder.
    #[test]
    fn a_forked_child_writes_nothing_and_does_not_wait() {
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

    /// Invariant (recorder): A program whose threads record all the time leaves the writer a core when it ends.
    #[test]
    fn calls_wait_while_the_last_rows_are_written() {
        let run = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(Options::new(run.path(), "test", 0, 1)).unwrap();
        let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
        let (ending, waited) = (AtomicBool::new(false), AtomicBool::new(false));
        recorder.set_active(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                recorder.shared.set_ending(true);
                ending.store(true, Ordering::Relaxed);
                let since = Instant::now();
                while !waited.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(60) {
                    std::thread::yield_now();
                }
                assert!(recorder.finish().closed_cleanly);
                ending.store(false, Ordering::Relaxed);
            });
            while !ending.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            while ending.load(Ordering::Relaxed) {
                let since = Instant::now();
                drop(thread.scope(Kind::CpuOp, name));
                waited.fetch_or(since.elapsed() >= Duration::from_millis(1), Ordering::Relaxed);
            }
        });
        assert!(waited.load(Ordering::Relaxed));
        assert!(!recorder.shared.state().is_ending(), "the program may go on");
    }

    /// Rows of a source count towards the limit like other rows, and their memory is freed.
    #[test]
    fn rows_of_a_source_beyond_the_limit_are_left_out_and_counted() {
        const ROWS: u64 = 10_000;
        let run = tempfile::tempdir().unwrap();
        let short = Duration::from_millis(5);
        let options = Options::new(run.path(), "test", 0, 1);
        let options = Options { max_bytes: Some(1), part_rows: 100, part_period: short, ..options };
        let recorder = Recorder::start(options).unwrap();
        recorder.set_active(true);
        let name = recorder.intern("kernel");
        for id in 0..ROWS as i64 / 10 {
            let events = (0..10).map(|k| SourceEvent::new(10 * id + k, Kind::Kernel, name, id, id + 1)).collect();
            recorder.source_batch(SourceBatch { source: "test", events, ..SourceBatch::default() });
        }
        let thread = recorder.thread("main");
        (0..1000).for_each(|_| drop(thread.scope(Kind::CpuOp, name)));
        std::thread::sleep(40 * short);
        let summary = recorder.finish();
        assert_eq!((summary.recorded, summary.omitted, summary.dropped), (0, ROWS + 1000, 0), "{summary}");
        // The rank's rows, and counters at ever longer intervals.
        assert!(summary.closed_cleanly && summary.shards < 20, "{summary}");
    }
}
