//! The transfers of a communicator, one after the other in the order of issue, as on a communication stream of NCCL.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use agent::Error;
use agent::fabric::{Buffers, Group, InFlight, Pace, Transfer};
use recorder::{Clock, Collective, CollectiveOp, CollectiveState, Interval, Kind, NameId, Recorder, ThreadRecorder};

use crate::faults::SlowLinks;

/// The names of a kind of transfer in rows.
#[derive(Clone, Copy, Debug)]
struct TransferNames {
    op: CollectiveOp,
    /// The transfer.
    row: NameId,
    /// Its issue.
    enqueue: NameId,
}

/// A communicator of the workload, as rows name it.
#[derive(Clone, Copy, Debug)]
pub struct CommNames {
    /// Equal on all ranks of the communicator.
    pub comm_id: i64,
    name: NameId,
    size: i32,
    float: NameId,
    /// All-reduce, all-gather, reduce-scatter, send, receive.
    transfers: [TransferNames; 5],
}

/// The name of the communicator of all ranks in rows.
pub const WORLD_NAME: &str = "world";

impl CommNames {
    /// Interns the names. `carrier` is `mpi` or `nccl`.
    pub fn new(recorder: &Recorder, carrier: &str, (name, comm_id): (&str, i64), size: usize) -> Self {
        let names = |op, text: &str| TransferNames {
            op,
            row: recorder.intern(&format!("{carrier}:{text}")),
            enqueue: recorder.intern(&format!("{carrier}:{text}_enqueue")),
        };
        Self {
            comm_id,
            name: recorder.intern(name),
            size: i32::try_from(size).unwrap_or(i32::MAX),
            float: recorder.intern("f32"),
            transfers: [
                names(CollectiveOp::AllReduce, "all_reduce"),
                names(CollectiveOp::AllGather, "all_gather"),
                names(CollectiveOp::ReduceScatter, "reduce_scatter"),
                names(CollectiveOp::Send, "send"),
                names(CollectiveOp::Recv, "recv"),
            ],
        }
    }

    /// A collective on this communicator without further data.
    pub(crate) fn collective(&self, seq: i64, op: CollectiveOp) -> Collective {
        Collective { comm_name: Some(self.name), comm_size: Some(self.size), ..Collective::new(self.comm_id, seq, op) }
    }

    fn names(&self, transfer: Transfer) -> TransferNames {
        self.transfers[match transfer {
            Transfer::AllReduce => 0,
            Transfer::AllGather => 1,
            Transfer::ReduceScatter => 2,
            Transfer::Send { .. } => 3,
            Transfer::Receive { .. } => 4,
        }]
    }

    /// The name of the rows of a transfer.
    pub(super) fn row(&self, transfer: Transfer) -> NameId {
        self.names(transfer).row
    }

    /// The name of the rows of its issue.
    pub(super) fn enqueue(&self, transfer: Transfer) -> NameId {
        self.names(transfer).enqueue
    }

    pub(super) fn is_single(&self) -> bool {
        self.size == 1
    }
}

/// A transfer to do.
pub(super) struct Job {
    /// The place of its memory when it is finished.
    pub(super) slot: usize,
    pub(super) transfer: Transfer,
    pub(super) bucket: Option<i32>,
    pub(super) seq: i64,
    /// `None`: not recorded.
    pub(super) step: Option<i32>,
    pub(super) ready_ns: i64,
    pub(super) enqueue_ns: i64,
    pub(super) buffers: Buffers,
}

/// A finished transfer.
pub(super) struct Finished {
    pub(super) slot: usize,
    pub(super) buffers: Buffers,
}

struct Running {
    slot: usize,
    transfer: Transfer,
    collective: Collective,
    in_flight: Box<dyn InFlight>,
    /// The end of an injected delay.
    ends: Option<Instant>,
}

/// Runs one transfer at a time.
pub(super) struct Stream {
    group: Arc<dyn Group>,
    thread: ThreadRecorder,
    clock: Clock,
    names: CommNames,
    links: SlowLinks,
    waiting: VecDeque<Job>,
    running: Option<Running>,
}

impl Stream {
    pub(super) fn new(
        group: Arc<dyn Group>,
        recorder: &Recorder,
        thread: &str,
        names: CommNames,
        links: SlowLinks,
    ) -> Self {
        let (thread, clock) = (recorder.thread(thread), recorder.clock());
        Self { group, thread, clock, names, links, waiting: VecDeque::new(), running: None }
    }

    pub(super) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Starts the next transfer if none is running.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        if self.running.is_some() {
            return Ok(());
        }
        let Some(job) = self.waiting.pop_front() else { return Ok(()) };
        let Job { slot, transfer, bucket, seq, step, ready_ns, enqueue_ns, buffers } = job;
        // The whole array: the pieces of all members of an all-gather or a reduce-scatter.
        let elements = buffers.send.len().max(buffers.recv.len()) as i64;
        let start_ns = self.clock.now_ns();
        let in_flight = self.group.start(transfer, buffers)?;
        let peer = match transfer {
            Transfer::Send { peer } | Transfer::Receive { peer } => i32::try_from(peer).ok(),
            _ => None,
        };
        let collective = Collective {
            dtype: Some(self.names.float),
            count: Some(elements),
            bytes: Some(elements * size_of::<f32>() as i64),
            peer,
            step,
            bucket,
            ready_ns: Some(ready_ns),
            enqueue_ns: Some(enqueue_ns),
            start_ns: Some(start_ns),
            state: CollectiveState::Started,
            ..self.names.collective(seq, self.names.names(transfer).op)
        };
        if step.is_some() {
            // Recorded at its start, so that the run shows a transfer that never ends.
            self.thread.collective(collective);
        }
        self.running = Some(Running { slot, transfer, collective, in_flight, ends: None });
        Ok(())
    }

    /// Drives the running transfer, or starts one; returns it when it is complete.
    pub(super) fn advance(&mut self) -> Result<Option<Finished>, Error> {
        self.begin()?;
        let Some(running) = &mut self.running else { return Ok(None) };
        if running.ends.is_none() {
            if !running.in_flight.test()? {
                return Ok(None);
            }
            running.ends = self.links.delay(running.transfer).map(|delay| Instant::now() + delay);
        }
        if running.ends.is_some_and(|ends| Instant::now() < ends) {
            return Ok(None);
        }
        let end_ns = self.clock.now_ns();
        let Some(Running { slot, transfer, collective, in_flight, .. }) = self.running.take() else { return Ok(None) };
        // The next transfer starts before the rows of this one are made.
        self.begin()?;
        self.note(transfer, collective, end_ns);
        Ok(Some(Finished { slot, buffers: in_flight.into_buffers() }))
    }

    fn note(&self, transfer: Transfer, collective: Collective, end_ns: i64) {
        if collective.step.is_none() {
            return;
        }
        let start_ns = collective.start_ns.unwrap_or(end_ns);
        let event_id = self.thread.record(Interval {
            step: collective.step,
            bytes: collective.bytes,
            is_comm: true,
            ..Interval::new(Kind::CpuOp, self.names.row(transfer), start_ns, end_ns)
        });
        self.thread.collective(Collective {
            end_ns: Some(end_ns),
            state: CollectiveState::Done,
            event_id,
            ..collective
        });
    }
}

/// The communication thread: sleeps while it has no job, else tests with short pauses.
pub(super) fn drive(mut stream: Stream, jobs: &Receiver<Job>, results: &Sender<Result<Finished, Error>>) {
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
                // The main thread has given up, so the running transfer may never complete.
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
