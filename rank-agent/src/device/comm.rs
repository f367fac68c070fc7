//! How the gradients of devices meet: a bucket leaves when its last gradient is recorded, and the optimiser's stream
//! waits for it.
//!
//! ```text
//! compute  backward: g7 g6 pack ●0      g5 g4 pack ●1      g3 …      ◌0 unpack, update  ◌1 …
//! comm                          └◌[= all-reduce 0 =]● └◌[= all-reduce 1 =]●
//! ```
//!
//! ● records an event, ◌ waits for one. With NCCL the host waits for nothing. Through the host it waits, in the
//! optimiser, for each bucket's copy to pinned memory, hands it to the fabric, and copies the sum back.

use std::cell::RefCell;
use std::time::Duration;

use kernels::Backend;
use kernels::cuda::{Cuda, CudaBuffer, Event, Pinned, Stream};
use recorder::cupti::Cupti;
use recorder::{Collective, CollectiveOp, CollectiveState, Kind, NameId, Recorder, ThreadRecorder, TimingSource};

use super::nccl::Communicator;
use super::timing::Timing;
use crate::Error;
use crate::engine::{Engine, World};
use crate::fabric::{Buffers, Pace, Stop};

/// What a step records through, and what may end it.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) thread: &'a ThreadRecorder,
    pub(super) cupti: Option<&'a Cupti>,
    pub(super) stop: &'a Stop,
    /// Whether the streams are being captured: then nothing happens yet, and nothing is recorded.
    pub(super) is_capture: bool,
}

/// The way between devices.
pub(super) enum Comm<'a> {
    /// One rank: its sum is its own.
    Nobody,
    /// NCCL on a stream of its own.
    Nccl(Box<NcclComm>),
    /// Through pinned host memory and the fabric.
    Host(HostComm<'a>),
}

/// Pairs of events, one for each bucket.
struct Marks {
    ready: Event,
    done: Event,
}

fn marks(cuda: &Cuda, buckets: usize) -> Result<Vec<Marks>, Error> {
    (0..buckets).map(|_| Ok(Marks { ready: cuda.event(false)?, done: cuda.event(false)? })).collect()
}

impl Comm<'_> {
    /// A bucket is complete on the compute stream: sends it on its way.
    pub(super) fn issue(
        &mut self,
        cuda: &Cuda,
        side: &Side<'_>,
        bucket: usize,
        memory: &mut CudaBuffer,
    ) -> Result<(), Error> {
        match self {
            Self::Nobody => Ok(()),
            Self::Nccl(nccl) => nccl.issue(cuda, side, bucket, memory),
            Self::Host(host) => host.issue(cuda, bucket, memory),
        }
    }

    /// Everything has been issued: does what is the host's to do.
    pub(super) fn collect(&mut self, cuda: &Cuda, side: &Side<'_>, memory: &mut [CudaBuffer]) -> Result<(), Error> {
        match self {
            Self::Nobody | Self::Nccl(_) => Ok(()),
            Self::Host(host) => host.collect(cuda, side, memory),
        }
    }

    /// What the compute stream gets from now on waits for a bucket's sum.
    pub(super) fn hold(&self, cuda: &Cuda, bucket: usize) -> Result<(), Error> {
        let marks = match self {
            Self::Nobody => return Ok(()),
            Self::Nccl(nccl) => nccl.marks.get(bucket),
            Self::Host(host) => host.marks.get(bucket),
        };
        marks.map_or(Ok(()), |marks| Ok(marks.done.hold(cuda.compute())?))
    }

    /// The collectives of one launch of a captured step, in their order.
    pub(super) fn collectives_of_step(&mut self, lens: &[usize]) -> Vec<Collective> {
        match self {
            Self::Nccl(nccl) => lens.iter().enumerate().map(|(bucket, len)| nccl.collective(bucket, *len)).collect(),
            Self::Nobody | Self::Host(_) => Vec::new(),
        }
    }

    /// After an error: ends what waits for other ranks. Graphs that hold collectives must be gone by then, because NCCL
    /// waits for them (`commDestroySync` of its `init.cc`).
    pub(super) fn give_up(&mut self) {
        if let Self::Nccl(nccl) = std::mem::replace(self, Self::Nobody) {
            nccl.communicator.abort();
        }
    }

    /// Waits until the device has done everything, and notices a signal and NCCL's errors meanwhile.
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
            Self::Nobody | Self::Host(_) => Ok(()),
        }
    }

    /// Begins to measure by events, where nobody else does.
    pub(super) fn anchor(&mut self, cuda: &Cuda, thread: &ThreadRecorder) -> Result<(), Error> {
        match self {
            Self::Nccl(nccl) => nccl.timing.anchor(cuda, &nccl.stream, thread),
            Self::Nobody | Self::Host(_) => Ok(()),
        }
    }

    /// Writes what was measured by events. The device is idle.
    pub(super) fn settle(&mut self, thread: &ThreadRecorder) -> Result<(), Error> {
        match self {
            Self::Nccl(nccl) => nccl.timing.settle(thread),
            Self::Nobody | Self::Host(_) => Ok(()),
        }
    }

    /// Its word in what rank 0 says.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Nobody => "none",
            Self::Nccl(_) => "nccl",
            Self::Host(_) => "mpi through pinned host memory",
        }
    }
}

/// NCCL's stream, its events, and the rows of its collectives.
pub(super) struct NcclComm {
    communicator: Communicator,
    stream: Stream,
    marks: Vec<Marks>,
    timing: Timing,
    world: World,
    name: NameId,
    float: NameId,
    next_seq: i64,
}

impl NcclComm {
    pub(super) fn new(
        communicator: Communicator,
        cuda: &Cuda,
        recorder: &Recorder,
        world: World,
        buckets: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            communicator,
            // Its few blocks must find room beside a product that fills the device, or nothing overlaps.
            stream: cuda.stream(true)?,
            marks: marks(cuda, buckets)?,
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

    fn issue(&mut self, cuda: &Cuda, side: &Side<'_>, bucket: usize, memory: &mut CudaBuffer) -> Result<(), Error> {
        if side.is_capture {
            return self.enqueue(cuda, bucket, memory, None);
        }
        let collective = self.collective(bucket, memory.len());
        let step = side.thread.active_step();
        let scope = side.thread.scope(Kind::CpuOp, self.name).comm();
        let collective = Collective { step, enqueue_ns: scope.start_ns(), ..collective };
        let is_timed = side.cupti.is_some_and(|cupti| cupti.collectives(&scope, &[collective]));
        if step.is_none() || is_timed {
            return self.enqueue(cuda, bucket, memory, None);
        }
        match self.timing.begin(cuda, cuda.compute())? {
            Some(marks) => {
                self.enqueue(cuda, bucket, memory, Some(&marks))?;
                self.timing.end(cuda, marks, &self.stream, collective)
            }
            None => {
                side.thread.collective(collective);
                self.enqueue(cuda, bucket, memory, None)
            }
        }
    }

    fn enqueue(
        &mut self,
        cuda: &Cuda,
        bucket: usize,
        memory: &mut CudaBuffer,
        timing: Option<&super::timing::Marks>,
    ) -> Result<(), Error> {
        let Some(marks) = self.marks.get(bucket) else { return Err(Error::EngineGone) };
        marks.ready.record(cuda.compute())?;
        marks.ready.hold(&self.stream)?;
        if let Some(timing) = timing {
            timing.start(&self.stream)?;
        }
        self.communicator.all_reduce(memory, &self.stream)?;
        Ok(marks.done.record(&self.stream)?)
    }
}

/// Pinned memory for every bucket, and the engine that drives the fabric.
pub(super) struct HostComm<'a> {
    engine: &'a RefCell<Engine>,
    stream: Stream,
    marks: Vec<Marks>,
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
            marks: marks(cuda, lens.len())?,
            pinned: pinned.collect::<Result<_, _>>()?,
            buffers: buffers.collect(),
            issued: Vec::with_capacity(lens.len()),
        })
    }

    fn issue(&mut self, cuda: &Cuda, bucket: usize, memory: &CudaBuffer) -> Result<(), Error> {
        let (Some(marks), Some(pinned)) = (self.marks.get(bucket), self.pinned.get_mut(bucket)) else {
            return Err(Error::EngineGone);
        };
        marks.ready.record(cuda.compute())?;
        marks.ready.hold(&self.stream)?;
        cuda.copy_out(&self.stream, memory, pinned)?;
        self.issued.push(bucket);
        Ok(())
    }

    /// Hands each bucket to the fabric as its copy arrives, while the device goes on with backward; then brings the
    /// sums back.
    fn collect(&mut self, cuda: &Cuda, side: &Side<'_>, memory: &mut [CudaBuffer]) -> Result<(), Error> {
        let issued = std::mem::take(&mut self.issued);
        for &bucket in &issued {
            let (Some(pinned), Some(buffers)) = (self.pinned.get_mut(bucket), self.buffers.get_mut(bucket)) else {
                continue;
            };
            let mut pace = Pace::brisk();
            while !pinned.is_ready()? {
                side.stop.check()?;
                self.engine.borrow_mut().poll();
                std::thread::sleep(pace.next_pause());
            }
            // To within a pause: when the gradients were seen to have arrived.
            let ready_ns = side.thread.now_ns();
            let Some(mut buffers) = buffers.take() else { return Err(Error::EngineGone) };
            buffers.send.copy_from_slice(pinned.numbers()?);
            self.engine.borrow_mut().submit(side.thread, bucket, ready_ns, buffers)?;
        }
        self.engine.borrow_mut().wait_all()?;
        for &bucket in &issued {
            let taken = self.engine.borrow_mut().take(bucket);
            let (Some(buffers), Some(pinned), Some(memory)) =
                (taken, self.pinned.get_mut(bucket), memory.get_mut(bucket))
            else {
                return Err(Error::EngineGone);
            };
            pinned.numbers()?.copy_from_slice(&buffers.recv);
            cuda.copy_in(&self.stream, pinned, memory)?;
            if let (Some(marks), Some(slot)) = (self.marks.get(bucket), self.buffers.get_mut(bucket)) {
                marks.done.record(&self.stream)?;
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
