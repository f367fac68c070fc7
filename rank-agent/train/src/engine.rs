//! Does the transfers of a communicator beside the computation, one after the other in the order of issue: the all-reduces of
//! gradient buckets, and in jobs with several communicators all others.
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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use agent::Error;
use agent::fabric::{Buffers, Control, Group, Lane, Pace, Stop, Transfer};
use clap::ValueEnum;
use recorder::{Clock, Collective, CollectiveOp, Interval, Kind, NameId, Recorder, ThreadRecorder};

use crate::faults::SlowLinks;
use crate::stream::{CommNames, Finished, Job, Stream, drive};

/// The thread that drives all-reduces while the main thread computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A communication thread, which tests with short pauses.
    Thread,
    /// The main thread, which tests after every operation.
    Poll,
    /// No thread until the optimizer waits: everything but the first bucket is exposed.
    None,
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

/// What an engine is made of.
pub struct EngineParts<'a> {
    /// The communicator.
    pub group: Arc<dyn Group>,
    /// Its names in rows.
    pub names: CommNames,
    /// The name of its thread in rows.
    pub thread: &'a str,
    /// The thread that drives it.
    pub progress: Progress,
    /// Delays to inject.
    pub links: SlowLinks,
    /// Number of transfers that may be outstanding at once.
    pub slots: usize,
    /// Ends its waits.
    pub stop: Stop,
}

/// Does transfers and returns their memory by slots. A slot holds one transfer at a time.
pub struct Engine {
    driver: Driver,
    stop: Stop,
    clock: Clock,
    names: CommNames,
    word: NameId,
    gather: NameId,
    next_seq: i64,
    /// The next number of the messages to a member (true) or from it.
    next_messages: BTreeMap<(bool, usize), i64>,
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
    pub fn start(recorder: &Recorder, parts: EngineParts<'_>) -> Result<Self, Error> {
        let EngineParts { group, names, thread, progress, links, slots, stop } = parts;
        let driver = if names.is_single() {
            Driver::SingleRank
        } else {
            let stream = Stream::new(group, recorder, thread, names, links);
            match progress {
                Progress::Thread => spawn(stream)?,
                Progress::Poll => Driver::Inline { stream: Box::new(stream), polls: true },
                Progress::None => Driver::Inline { stream: Box::new(stream), polls: false },
            }
        };
        Ok(Self {
            driver,
            stop,
            clock: recorder.clock(),
            names,
            word: recorder.intern("u64"),
            gather: recorder.intern("mpi:all_gather"),
            next_seq: 0,
            next_messages: BTreeMap::new(),
            outstanding: 0,
            finished: (0..slots).map(|_| None).collect(),
            failure: None,
        })
    }

    /// Submits a bucket whose last gradient was produced at `ready_ns`, to be all-reduced. Its slot is its number.
    ///
    /// # Errors
    /// As for [`issue`](Self::issue).
    pub fn submit(
        &mut self,
        thread: &ThreadRecorder,
        bucket: usize,
        ready_ns: i64,
        buffers: Buffers,
    ) -> Result<(), Error> {
        self.issue(thread, (bucket, i32::try_from(bucket).ok()), Transfer::AllReduce, ready_ns, buffers)
    }

    /// Issues a transfer whose data was ready at `ready_ns`, for a slot and perhaps of a bucket.
    ///
    /// The call gets its own row on `thread`, the caller's: waking the communication thread takes a microsecond, but if all
    /// cores are busy, the caller may lose its core for many milliseconds, and those do not belong to the backward pass.
    ///
    /// # Errors
    /// The fabric's error, if the transfer starts at once; [`Error::EngineGone`].
    pub fn issue(
        &mut self,
        thread: &ThreadRecorder,
        (slot, bucket): (usize, Option<i32>),
        transfer: Transfer,
        ready_ns: i64,
        mut buffers: Buffers,
    ) -> Result<(), Error> {
        self.outstanding += 1;
        if let Driver::SingleRank = self.driver {
            std::mem::swap(&mut buffers.send, &mut buffers.recv);
            self.accept(Finished { slot, buffers });
            return Ok(());
        }
        let step = thread.active_step();
        let _scope = thread.scope(Kind::CpuOp, self.names.enqueue(transfer)).comm();
        let (seq, enqueue_ns) = (self.next_number(transfer), self.clock.now_ns());
        let job = Job { slot, transfer, bucket, seq, step, ready_ns, enqueue_ns, buffers };
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
        Ok(())
    }

    /// Messages are numbered per direction and member, apart from collectives.
    fn next_number(&mut self, transfer: Transfer) -> i64 {
        let next = match transfer {
            Transfer::Send { peer } => self.next_messages.entry((true, peer)).or_default(),
            Transfer::Receive { peer } => self.next_messages.entry((false, peer)).or_default(),
            Transfer::AllReduce | Transfer::AllGather | Transfer::ReduceScatter => &mut self.next_seq,
        };
        *next += 1;
        *next - 1
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

    /// Waits until every transfer is complete; [`take`](Self::take) returns their memory then.
    ///
    /// # Errors
    /// The fabric's error; [`Error::Stopped`]; [`Error::EngineGone`].
    pub fn wait_all(&mut self) -> Result<(), Error> {
        self.wait_until(|engine| engine.outstanding == 0)
    }

    /// Waits for the transfer of a slot, and returns its memory.
    ///
    /// # Errors
    /// As for [`wait_all`](Self::wait_all).
    pub fn wait(&mut self, slot: usize) -> Result<Buffers, Error> {
        let is_there = |engine: &Self| engine.finished.get(slot).is_none_or(Option::is_some) || engine.outstanding == 0;
        self.wait_until(is_there)?;
        self.take(slot).ok_or(Error::EngineGone)
    }

    fn wait_until(&mut self, is_over: impl Fn(&Self) -> bool) -> Result<(), Error> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut pace = Pace::brisk();
        while !is_over(self) {
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

    /// Returns the memory of a finished transfer.
    pub fn take(&mut self, slot: usize) -> Option<Buffers> {
        self.finished.get_mut(slot)?.take()
    }

    /// Returns the words of all ranks in rank order, over the communicator of all ranks, which this engine's must be. No
    /// transfer may be outstanding. Records the collective through `thread`, the caller's.
    ///
    /// # Errors
    /// The fabric's error.
    pub fn all_gather(
        &mut self,
        control: &dyn Control,
        thread: &ThreadRecorder,
        mine: &[u64],
    ) -> Result<Vec<u64>, Error> {
        debug_assert_eq!(self.outstanding, 0, "collectives of one communicator are called in one order");
        if control.size() == 1 {
            return Ok(mine.to_vec());
        }
        let seq = self.next_number(Transfer::AllGather);
        let start_ns = self.clock.now_ns();
        let all = control.all_gather(Lane::World, mine)?;
        let end_ns = self.clock.now_ns();
        let bytes = size_of_val(all.as_slice()) as i64;
        let event_id = thread.record(Interval {
            bytes: Some(bytes),
            is_comm: true,
            ..Interval::new(Kind::CpuOp, self.gather, start_ns, end_ns)
        });
        thread.collective(Collective {
            dtype: Some(self.word),
            count: Some(all.len() as i64),
            bytes: Some(bytes),
            enqueue_ns: Some(start_ns),
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            event_id,
            ..self.names.collective(seq, CollectiveOp::AllGather)
        });
        Ok(all)
    }

    fn accept(&mut self, Finished { slot, buffers }: Finished) {
        self.outstanding -= 1;
        if let Some(slot) = self.finished.get_mut(slot) {
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
