//! The all-reduces of gradients between devices: a bucket is sent when its last gradient is recorded, and the optimizer's
//! stream waits for its sum.
//!
//! ```text
//! compute  backward: g7 g6 pack ●0      g5 g4 pack ●1      g3 …      ◌0 unpack, update  ◌1 …
//! comm                          └◌[= all-reduce 0 =]● └◌[= all-reduce 1 =]●
//! ```
//!
//! ● records an event, ◌ waits for one. With NCCL the host never waits. Without it the host waits in the optimizer for each
//! bucket's copy to pinned memory, passes it to the fabric, and copies the sum back.

use std::cell::RefCell;
use std::time::Duration;

use agent::fabric::{Buffers, Pace, Stop};
use kernels::Backend;
use kernels::cuda::{Cuda, CudaBuffer, Event, Pinned, Stream};
use recorder::{Collective, CollectiveOp, CollectiveState, Kind, NameId, Recorder, ThreadRecorder, TimingSource};
use sources::cupti::Cupti;

use super::nccl::Communicator;
use super::timing::Timing;
use crate::Error;
use crate::engine::Engine;
use crate::stream::CommNames;

/// The recorders of a step, and the signal that may end it.
#[derive(Clone, Copy)]
pub(super) struct StepContext<'a> {
    pub(super) thread: &'a ThreadRecorder,
    pub(super) cupti: Option<&'a Cupti>,
    pub(super) stop: &'a Stop,
    /// The streams are being captured: nothing runs yet, and nothing is recorded.
    pub(super) is_capture: bool,
}

/// The communicator between devices.
pub(super) enum Comm<'a> {
    /// One rank, whose sum is its own gradients.
    SingleRank,
    /// NCCL on a separate stream.
    Nccl(Box<NcclComm>),
    /// The fabric, through pinned host memory.
    Host(HostComm<'a>),
}

/// The events of a bucket: gradients complete, sum complete.
struct BucketEvents {
    ready: Event,
    done: Event,
}

fn bucket_events(cuda: &Cuda, buckets: usize) -> Result<Vec<BucketEvents>, Error> {
    (0..buckets).map(|_| Ok(BucketEvents { ready: cuda.event(false)?, done: cuda.event(false)? })).collect()
}

impl Comm<'_> {
    /// Starts the all-reduce of a bucket that is complete on the compute stream.
    pub(super) fn issue(
        &mut self,
        cuda: &Cuda,
        context: &StepContext<'_>,
        bucket: usize,
        memory: &mut CudaBuffer,
    ) -> Result<(), Error> {
        match self {
            Self::SingleRank => Ok(()),
            Self::Nccl(nccl) => nccl.issue(cuda, context, bucket, memory),
            Self::Host(host) => host.issue(cuda, bucket, memory),
        }
    }

    /// Does the host's part after all buckets were issued.
    pub(super) fn collect(
        &mut self,
        cuda: &Cuda,
        context: &StepContext<'_>,
        memory: &mut [CudaBuffer],
    ) -> Result<(), Error> {
        match self {
            Self::SingleRank | Self::Nccl(_) => Ok(()),
            Self::Host(host) => host.collect(cuda, context, memory),
        }
    }

    /// Makes later work of the compute stream wait for a bucket's sum.
    pub(super) fn hold(&self, cuda: &Cuda, bucket: usize) -> Result<(), Error> {
        let events = match self {
            Self::SingleRank => return Ok(()),
            Self::Nccl(nccl) => nccl.events.get(bucket),
            Self::Host(host) => host.events.get(bucket),
        };
        events.map_or(Ok(()), |events| Ok(events.done.hold(cuda.compute())?))
    }

    /// The collectives of one launch of a captured step, in their order.
    pub(super) fn collectives_of_step(&mut self, lens: &[usize]) -> Vec<Collective> {
        match self {
            Self::Nccl(nccl) => lens.iter().enumerate().map(|(bucket, len)| nccl.collective(bucket, *len)).collect(),
            Self::SingleRank | Self::Host(_) => Vec::new(),
        }
    }

    /// Call after an error: ends collectives that wait for other ranks. Drop graphs that hold collectives first, because
    /// NCCL waits for them (`commDestroySync` of its `init.cc`).
    pub(super) fn give_up(&mut self) {
        if let Self::Nccl(nccl) = std::mem::replace(self, Self::SingleRank) {
            nccl.communicator.abort();
        }
    }

    /// Waits until the device is idle; checks for a signal and for NCCL's errors meanwhile.
    pub(super) fn wait_idle(&self, cuda: &Cuda, stop: &Stop) -> Result<(), Error> {
        let mut pace = Pace::brisk();
        let end = cuda.event(false)?;
        end.record(cuda.compute())?;
        while !end.is_over()? {
            self.check(stop)?;
            match pace.next_pause() {
                Duration::ZERO => std::thread::yield_now(),
                pause => std::thread::sleep(pause),
            }
        }
        Ok(())
    }

    fn check(&self, stop: &Stop) -> Result<(), Error> {
        stop.check()?;
        match self {
            Self::Nccl(nccl) => Ok(nccl.communicator.check()?),
            Self::SingleRank | Self::Host(_) => Ok(()),
        }
    }

    /// Starts to measure by events, which only NCCL's collectives need.
    pub(super) fn anchor(&mut self, cuda: &Cuda, thread: &ThreadRecorder) -> Result<(), Error> {
        match self {
            Self::Nccl(nccl) => nccl.timing.anchor(cuda, &nccl.stream, thread),
            Self::SingleRank | Self::Host(_) => Ok(()),
        }
    }

    /// Writes the collectives measured by events. The device must be idle.
    pub(super) fn settle(&mut self, cuda: &Cuda, thread: &ThreadRecorder) -> Result<(), Error> {
        match self {
            Self::Nccl(nccl) => nccl.timing.settle(cuda, &nccl.stream, thread),
            Self::SingleRank | Self::Host(_) => Ok(()),
        }
    }

    /// Its name in rank 0's report.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::SingleRank => "none",
            Self::Nccl(_) => "nccl",
            Self::Host(_) => "mpi through pinned host memory",
        }
    }
}

/// NCCL's stream, its events, and the rows of its collectives.
pub(super) struct NcclComm {
    communicator: Communicator,
    stream: Stream,
    events: Vec<BucketEvents>,
    timing: Timing,
    world: CommNames,
    name: NameId,
    float: NameId,
    next_seq: i64,
}

impl NcclComm {
    pub(super) fn new(
        communicator: Communicator,
        cuda: &Cuda,
        recorder: &Recorder,
        world: CommNames,
        buckets: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            communicator,
            // High priority: its few blocks must find room beside a product that fills the device, else nothing overlaps.
            stream: cuda.stream(true)?,
            events: bucket_events(cuda, buckets)?,
            timing: Timing::default(),
            world,
            name: recorder.intern("nccl:all_reduce"),
            float: recorder.intern("f32"),
            next_seq: 0,
        })
    }

    fn collective(&mut self, bucket: usize, len: usize) -> Collective {
        let seq = self.next_seq;
        self.next_seq += 1;
        Collective {
            dtype: Some(self.float),
            count: i64::try_from(len).ok(),
            bytes: i64::try_from(len * size_of::<f32>()).ok(),
            bucket: i32::try_from(bucket).ok(),
            state: CollectiveState::Enqueued,
            timing_source: TimingSource::Enqueue,
            ..self.world.collective(seq, CollectiveOp::AllReduce)
        }
    }

    fn issue(
        &mut self,
        cuda: &Cuda,
        context: &StepContext<'_>,
        bucket: usize,
        memory: &mut CudaBuffer,
    ) -> Result<(), Error> {
        if context.is_capture {
            return self.enqueue(cuda, bucket, memory, None);
        }
        let collective = self.collective(bucket, memory.len());
        let step = context.thread.active_step();
        let scope = context.thread.scope(Kind::CpuOp, self.name).comm();
        let collective = Collective { step, enqueue_ns: scope.start_ns(), ..collective };
        let is_timed = context.cupti.is_some_and(|cupti| cupti.collectives(&scope, &[collective]));
        if step.is_none() || is_timed {
            return self.enqueue(cuda, bucket, memory, None);
        }
        match self.timing.begin(cuda, cuda.compute())? {
            Some(events) => {
                self.enqueue(cuda, bucket, memory, Some(&events))?;
                self.timing.end(cuda, events, &self.stream, collective)
            }
            None => {
                context.thread.collective(collective);
                self.enqueue(cuda, bucket, memory, None)
            }
        }
    }

    fn enqueue(
        &mut self,
        cuda: &Cuda,
        bucket: usize,
        memory: &mut CudaBuffer,
        timing: Option<&super::timing::TimingEvents>,
    ) -> Result<(), Error> {
        let Some(events) = self.events.get(bucket) else { return Err(agent::Error::EngineGone.into()) };
        events.ready.record(cuda.compute())?;
        events.ready.hold(&self.stream)?;
        if let Some(timing) = timing {
            timing.start(&self.stream)?;
        }
        self.communicator.all_reduce(memory, &self.stream)?;
        Ok(events.done.record(&self.stream)?)
    }
}

/// Pinned memory for every bucket, and the engine that drives the fabric.
pub(super) struct HostComm<'a> {
    engine: &'a RefCell<Engine>,
    stream: Stream,
    events: Vec<BucketEvents>,
    pinned: Vec<Pinned>,
    buffers: Vec<Option<Buffers>>,
    issued: Vec<usize>,
}

impl<'a> HostComm<'a> {
    pub(super) fn new(engine: &'a RefCell<Engine>, cuda: &Cuda, lens: &[usize]) -> Result<Self, Error> {
        let pinned = lens
            .iter()
            .enumerate()
            .map(|(bucket, len)| Pinned::new(cuda.context(), &format!("bucket{bucket}.pinned"), *len));
        let buffers = lens.iter().map(|len| Some(Buffers { send: vec![0.0; *len], recv: vec![0.0; *len] }));
        Ok(Self {
            engine,
            stream: cuda.stream(true)?,
            events: bucket_events(cuda, lens.len())?,
            pinned: pinned.collect::<Result<_, _>>()?,
            buffers: buffers.collect(),
            issued: Vec::with_capacity(lens.len()),
        })
    }

    fn issue(&mut self, cuda: &Cuda, bucket: usize, memory: &CudaBuffer) -> Result<(), Error> {
        let (Some(events), Some(pinned)) = (self.events.get(bucket), self.pinned.get_mut(bucket)) else {
            return Err(agent::Error::EngineGone.into());
        };
        events.ready.record(cuda.compute())?;
        events.ready.hold(&self.stream)?;
        cuda.copy_out(&self.stream, memory, pinned)?;
        self.issued.push(bucket);
        Ok(())
    }

    /// Passes each bucket to the fabric as its copy arrives, while the device continues with backward; then copies the
    /// sums back.
    fn collect(&mut self, cuda: &Cuda, context: &StepContext<'_>, memory: &mut [CudaBuffer]) -> Result<(), Error> {
        let issued = std::mem::take(&mut self.issued);
        for &bucket in &issued {
            let (Some(pinned), Some(buffers)) = (self.pinned.get_mut(bucket), self.buffers.get_mut(bucket)) else {
                continue;
            };
            let mut pace = Pace::brisk();
            while !pinned.is_ready()? {
                context.stop.check()?;
                self.engine.borrow_mut().poll();
                std::thread::sleep(pace.next_pause());
            }
            // The arrival of the gradients, to within one pause.
            let ready_ns = context.thread.now_ns();
            let Some(mut buffers) = buffers.take() else { return Err(agent::Error::EngineGone.into()) };
            buffers.send.copy_from_slice(pinned.numbers()?);
            self.engine.borrow_mut().submit(context.thread, bucket, ready_ns, buffers)?;
        }
        self.engine.borrow_mut().wait_all()?;
        for &bucket in &issued {
            let taken = self.engine.borrow_mut().take(bucket);
            let (Some(buffers), Some(pinned), Some(memory)) =
                (taken, self.pinned.get_mut(bucket), memory.get_mut(bucket))
            else {
                return Err(agent::Error::EngineGone.into());
            };
            pinned.numbers()?.copy_from_slice(&buffers.recv);
            cuda.copy_in(&self.stream, pinned, memory)?;
            if let (Some(events), Some(slot)) = (self.events.get(bucket), self.buffers.get_mut(bucket)) {
                events.done.record(&self.stream)?;
                *slot = Some(buffers);
            }
        }
        Ok(())
    }
}

/// Bytes of a bucket, as the tables count them.
pub(super) fn bytes_of(cuda: &Cuda, memory: &CudaBuffer) -> usize {
    cuda.len(memory) * size_of::<f32>()
}
