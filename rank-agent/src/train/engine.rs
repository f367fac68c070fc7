//! All-reduces the gradient buckets over the fabric, one after the other in the order of issue, beside the computation.
//!
//! ```text
//! main thread   backward: g7 g6 | pack 0 | g5 g4 | pack 1 | g3 …      | wait_all_reduce | unpack, update
//! engine                         [== bucket 0 =====][== bucket 1 ======][== bucket 2 ==]
//!                        ready ^  ^ enqueue, start   ^ start (enqueue when packed)     ^ end
//! ```
//!
//! Like a communication stream of NCCL, the engine runs one all-reduce at a time: a bucket's start − enqueue is its wait for
//! its predecessors, and no other bucket shares its bandwidth. [`Progress`] selects the thread that drives the engine. `end`
//! is the time at which that thread sees the completion: over MPI up to one pause of [`Pace::brisk`] (100 µs) later, and
//! more if the thread has no core.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use recorder::{Clock, Collective, CollectiveOp, CollectiveState, Interval, Kind, NameId, Recorder, ThreadRecorder};

use crate::Error;
use crate::fabric::{Buffers, Fabric, Lane, Pace, Reduction, Stop};

/// The thread that drives all-reduces while the main thread computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A communication thread, which tests with short pauses.
    Thread,
    /// The main thread, which tests after every operation.
    Poll,
    /// No thread until the optimizer waits: only the first bucket is started before, and the others stay exposed.
    None,
}

/// The workload's communicator, as rows name it.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Equal on all ranks.
    pub comm_id: i64,
    name: NameId,
    size: i32,
    float: NameId,
    word: NameId,
    all_reduce: NameId,
    enqueue: NameId,
    all_gather: NameId,
}

/// The communicator's name in rows.
pub const WORLD_NAME: &str = "world";

impl World {
    /// Interns the names.
    pub fn new(recorder: &Recorder, comm_id: i64, size: usize) -> Self {
        Self {
            comm_id,
            name: recorder.intern(WORLD_NAME),
            size: i32::try_from(size).unwrap_or(i32::MAX),
            float: recorder.intern("f32"),
            word: recorder.intern("u64"),
            all_reduce: recorder.intern("mpi:all_reduce"),
            enqueue: recorder.intern("mpi:all_reduce_enqueue"),
            all_gather: recorder.intern("mpi:all_gather"),
        }
    }

    /// A collective on this communicator without further data.
    pub(crate) fn collective(&self, seq: i64, op: CollectiveOp) -> Collective {
        Collective { comm_name: Some(self.name), comm_size: Some(self.size), ..Collective::new(self.comm_id, seq, op) }
    }
}

/// A bucket to reduce.
struct Job {
    bucket: usize,
    seq: i64,
    /// `None`: not recorded.
    step: Option<i32>,
    ready_ns: i64,
    enqueue_ns: i64,
    buffers: Buffers,
}

struct Finished {
    bucket: usize,
    buffers: Buffers,
}

/// Runs one all-reduce at a time.
struct Stream {
    fabric: Arc<dyn Fabric>,
    thread: ThreadRecorder,
    clock: Clock,
    world: World,
    waiting: VecDeque<Job>,
    running: Option<(Collective, Box<dyn Reduction>)>,
}

impl Stream {
    fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Starts the next all-reduce if none is running.
    fn begin(&mut self) -> Result<(), Error> {
        if self.running.is_some() {
            return Ok(());
        }
        let Some(Job { bucket, seq, step, ready_ns, enqueue_ns, buffers }) = self.waiting.pop_front() else {
            return Ok(());
        };
        let elements = buffers.send.len() as i64;
        let start_ns = self.clock.now_ns();
        let reduction = self.fabric.start_all_reduce(buffers)?;
        let collective = Collective {
            dtype: Some(self.world.float),
            count: Some(elements),
            bytes: Some(elements * size_of::<f32>() as i64),
            step,
            bucket: i32::try_from(bucket).ok(),
            ready_ns: Some(ready_ns),
            enqueue_ns: Some(enqueue_ns),
            start_ns: Some(start_ns),
            state: CollectiveState::Started,
            ..self.world.collective(seq, CollectiveOp::AllReduce)
        };
        if step.is_some() {
            // Recorded at its start, so that the run shows an all-reduce that never ends.
            self.thread.collective(collective);
        }
        self.running = Some((collective, reduction));
        Ok(())
    }

    /// Drives the running all-reduce, or starts one; returns it when it is complete.
    fn advance(&mut self) -> Result<Option<Finished>, Error> {
        self.begin()?;
        let Some((_, reduction)) = &mut self.running else { return Ok(None) };
        if !reduction.test()? {
            return Ok(None);
        }
        let end_ns = self.clock.now_ns();
        let Some((collective, reduction)) = self.running.take() else { return Ok(None) };
        // The next all-reduce starts before the rows of this one are made.
        self.begin()?;
        self.note(collective, end_ns);
        let bucket = usize::try_from(collective.bucket.unwrap_or(0)).unwrap_or(0);
        Ok(Some(Finished { bucket, buffers: reduction.into_buffers() }))
    }

    fn note(&self, collective: Collective, end_ns: i64) {
        if collective.step.is_none() {
            return;
        }
        let start_ns = collective.start_ns.unwrap_or(end_ns);
        let event_id = self.thread.record(Interval {
            step: collective.step,
            bytes: collective.bytes,
            is_comm: true,
            ..Interval::new(Kind::CpuOp, self.world.all_reduce, start_ns, end_ns)
        });
        self.thread.collective(Collective {
            end_ns: Some(end_ns),
            state: CollectiveState::Done,
            event_id,
            ..collective
        });
    }
}

enum Driver {
    Thread {
        jobs: Option<Sender<Job>>,
        finished: Receiver<Result<Finished, Error>>,
        thread: Option<JoinHandle<()>>,
    },
    Inline {
        stream: Box<Stream>,
        polls: bool,
    },
    /// One rank: the sum is its own numbers, and there is no collective to record.
    SingleRank,
}

/// Reduces buckets and returns them, one step at a time: the caller waits for all submitted buckets.
pub struct Engine {
    driver: Driver,
    fabric: Arc<dyn Fabric>,
    stop: Stop,
    clock: Clock,
    world: World,
    next_seq: i64,
    outstanding: usize,
    finished: Vec<Option<Buffers>>,
    /// An error of [`poll`](Self::poll), which returns none.
    failure: Option<Error>,
}

impl Engine {
    /// Starts the engine, with a communication thread if `progress` selects it.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub fn start(
        fabric: Arc<dyn Fabric>,
        progress: Progress,
        recorder: &Recorder,
        world: World,
        stop: Stop,
        buckets: usize,
    ) -> Result<Self, Error> {
        let clock = recorder.clock();
        let driver = if fabric.size() == 1 {
            Driver::SingleRank
        } else {
            let stream = Stream {
                fabric: fabric.clone(),
                thread: recorder.thread("comm"),
                clock,
                world,
                waiting: VecDeque::with_capacity(buckets),
                running: None,
            };
            match progress {
                Progress::Thread => spawn(stream)?,
                Progress::Poll => Driver::Inline { stream: Box::new(stream), polls: true },
                Progress::None => Driver::Inline { stream: Box::new(stream), polls: false },
            }
        };
        let finished = (0..buckets).map(|_| None).collect();
        Ok(Self { driver, fabric, stop, clock, world, next_seq: 0, outstanding: 0, finished, failure: None })
    }

    /// Submits a bucket whose last gradient was produced at `ready_ns`.
    ///
    /// The call gets its own row on `thread`, the caller's: waking the communication thread takes a microsecond, but if all
    /// cores are busy, the caller may lose its core for many milliseconds, and those do not belong to the backward pass.
    ///
    /// # Errors
    /// The fabric's error, if the all-reduce starts at once; [`Error::EngineGone`].
    pub fn submit(
        &mut self,
        thread: &ThreadRecorder,
        bucket: usize,
        ready_ns: i64,
        mut buffers: Buffers,
    ) -> Result<(), Error> {
        self.outstanding += 1;
        if let Driver::SingleRank = self.driver {
            std::mem::swap(&mut buffers.send, &mut buffers.recv);
            self.accept(Finished { bucket, buffers });
            return Ok(());
        }
        let step = thread.active_step();
        let _scope = thread.scope(Kind::CpuOp, self.world.enqueue).comm();
        let job = Job { bucket, seq: self.next_seq, step, ready_ns, enqueue_ns: self.clock.now_ns(), buffers };
        match &mut self.driver {
            Driver::SingleRank => {}
            Driver::Thread { jobs, .. } => {
                let jobs = jobs.as_ref().ok_or(Error::EngineGone)?;
                if jobs.send(job).is_err() {
                    return Err(self.take_failure());
                }
            }
            Driver::Inline { stream, .. } => {
                stream.push(job);
                stream.begin()?;
            }
        }
        self.next_seq += 1;
        Ok(())
    }

    /// Drives the fabric if the main thread has to. [`wait_all`](Self::wait_all) returns its error.
    pub fn poll(&mut self) {
        let Driver::Inline { stream, polls: true } = &mut self.driver else { return };
        if self.failure.is_some() || stream.is_idle() {
            return;
        }
        match stream.advance() {
            Ok(Some(finished)) => self.accept(finished),
            Ok(None) => {}
            Err(error) => self.failure = Some(error),
        }
    }

    /// Waits until every submitted bucket is reduced; [`take`](Self::take) returns them then.
    ///
    /// # Errors
    /// The fabric's error; [`Error::Stopped`]; [`Error::EngineGone`].
    pub fn wait_all(&mut self) -> Result<(), Error> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut pace = Pace::brisk();
        while self.outstanding > 0 {
            self.stop.check()?;
            let finished = match &mut self.driver {
                Driver::SingleRank => return Ok(()),
                Driver::Thread { finished, .. } => match finished.recv_timeout(STOP_CHECK) {
                    Ok(finished) => Some(finished?),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Err(Error::EngineGone),
                },
                Driver::Inline { stream, .. } => {
                    let finished = stream.advance()?;
                    if finished.is_none() {
                        std::thread::sleep(pace.next_pause());
                    }
                    finished
                }
            };
            if let Some(finished) = finished {
                pace = Pace::brisk();
                self.accept(finished);
            }
        }
        Ok(())
    }

    /// Returns the memory of a reduced bucket.
    pub fn take(&mut self, bucket: usize) -> Option<Buffers> {
        self.finished.get_mut(bucket)?.take()
    }

    /// Returns the words of all ranks in rank order, over the communicator of the buckets. No bucket may be outstanding.
    /// Records the collective through `thread`, the caller's.
    ///
    /// # Errors
    /// The fabric's error.
    pub fn all_gather(&mut self, thread: &ThreadRecorder, mine: &[u64]) -> Result<Vec<u64>, Error> {
        debug_assert_eq!(self.outstanding, 0, "collectives of one communicator are called in one order");
        if self.fabric.size() == 1 {
            return Ok(mine.to_vec());
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let start_ns = self.clock.now_ns();
        let all = self.fabric.all_gather(Lane::World, mine)?;
        let end_ns = self.clock.now_ns();
        let bytes = size_of_val(all.as_slice()) as i64;
        let event_id = thread.record(Interval {
            bytes: Some(bytes),
            is_comm: true,
            ..Interval::new(Kind::CpuOp, self.world.all_gather, start_ns, end_ns)
        });
        thread.collective(Collective {
            dtype: Some(self.world.word),
            count: Some(all.len() as i64),
            bytes: Some(bytes),
            enqueue_ns: Some(start_ns),
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            event_id,
            ..self.world.collective(seq, CollectiveOp::AllGather)
        });
        Ok(all)
    }

    fn accept(&mut self, Finished { bucket, buffers }: Finished) {
        self.outstanding -= 1;
        if let Some(slot) = self.finished.get_mut(bucket) {
            *slot = Some(buffers);
        }
    }

    /// The error that ended the communication thread.
    fn take_failure(&mut self) -> Error {
        let Driver::Thread { finished, .. } = &self.driver else { return Error::EngineGone };
        while let Ok(result) = finished.try_recv() {
            if let Err(error) = result {
                return error;
            }
        }
        Error::EngineGone
    }
}

/// Interval at which a wait for the communication thread checks for a signal.
const STOP_CHECK: Duration = Duration::from_millis(50);

fn spawn(stream: Stream) -> Result<Driver, Error> {
    let (jobs, jobs_out) = channel();
    let (results, finished) = channel();
    let thread = std::thread::Builder::new()
        .name("rankscope-comm".into())
        .spawn(move || drive(stream, &jobs_out, &results))
        .map_err(Error::Spawn)?;
    Ok(Driver::Thread { jobs: Some(jobs), finished, thread: Some(thread) })
}

/// The communication thread: sleeps while it has no bucket, else tests with short pauses.
fn drive(mut stream: Stream, jobs: &Receiver<Job>, results: &Sender<Result<Finished, Error>>) {
    let mut pace = Pace::brisk();
    loop {
        if stream.is_idle() {
            let Ok(job) = jobs.recv() else { return };
            stream.push(job);
            pace = Pace::brisk();
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => stream.push(job),
                Err(TryRecvError::Empty) => break,
                // The main thread has given up, so the running all-reduce may never complete.
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let finished = stream.advance();
        let failed = finished.is_err();
        match finished.transpose() {
            Some(result) => {
                pace = Pace::brisk();
                if results.send(result).is_err() || failed {
                    return;
                }
            }
            None => match pace.next_pause() {
                Duration::ZERO => std::thread::yield_now(),
                pause => std::thread::sleep(pause),
            },
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Driver::Thread { jobs, thread, .. } = &mut self.driver {
            drop(jobs.take());
            if let Some(thread) = thread.take() {
                // A panic of the thread has already surfaced as `EngineGone`.
                let _ = thread.join();
            }
        }
    }
}
