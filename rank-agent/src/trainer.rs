//! One step of data-parallel training: the model's passes, the buckets between them, and the proof that all ranks
//! agree.

use std::cell::RefCell;

use kernels::{Backend, BucketPack, BucketUnpack, Cost};
use recorder::{Memory, Recorder, ThreadRecorder};
use trace::BucketRow;

use crate::Error;
use crate::bucket_plan::{BucketPlan, Pending};
use crate::checksum;
use crate::engine::Engine;
use crate::fabric::Buffers;
use crate::inject::{Injection, Phase, wait_exactly, wait_in};
use crate::model::{Model, ModelConfig, ReadyGradient};
use crate::observer::{Observer, Op, OpTable, Range};

/// Memory that can go to the fabric and come back, without being copied.
pub trait HostMemory: From<Vec<f32>> + Into<Vec<f32>> + Send {}

impl<T: From<Vec<f32>> + Into<Vec<f32>> + Send> HostMemory for T {}

/// A parameter's way into its bucket and back.
struct Seat {
    bucket: usize,
    pack: BucketPack,
    pack_op: Op,
    unpack: BucketUnpack,
    unpack_op: Op,
}

/// A bucket's memory while it is here and not with the engine.
struct BucketMemory<T> {
    send: Option<T>,
    recv: Option<T>,
}

/// How long this rank waits in each phase.
#[derive(Clone, Copy, Debug, Default)]
struct Slowness {
    input: std::time::Duration,
    forward: std::time::Duration,
    backward: std::time::Duration,
}

/// A rank's model with its buckets.
pub struct Trainer<B: Backend> {
    backend: B,
    model: Model<B>,
    rank: usize,
    plan: BucketPlan,
    pending: Pending,
    seats: Vec<Seat>,
    memory: Vec<BucketMemory<B::Buffer>>,
    wait_op: Op,
    slowness: Slowness,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Loss on this rank's batch, before the update.
    pub loss: f64,
    /// Mean of all ranks' losses.
    pub mean_loss: f64,
    /// Checksum of the parameters after the update, equal on all ranks.
    pub checksum: u64,
}

impl<B: Backend> Trainer<B>
where
    B::Buffer: HostMemory,
{
    /// Allocates the model and its buckets, `bucket_bytes` each, for one of `size` ranks.
    ///
    /// # Errors
    /// [`Error::Kernel`] when memory runs out.
    pub fn new(
        backend: B,
        config: &ModelConfig,
        bucket_bytes: usize,
        (rank, size): (usize, usize),
        injections: &[Injection],
        ops: &mut OpTable,
    ) -> Result<Self, Error> {
        let model = Model::new(&backend, config, ops)?;
        let lens: Vec<usize> = model.parameters().iter().map(crate::model::Parameter::len).collect();
        let plan = BucketPlan::new(&lens, size_of::<f32>(), bucket_bytes);
        // The mean over ranks: scaled before the sum, so that the sum cannot overflow.
        let scale = 1.0 / size as f32;
        let seats = plan.slots.iter().map(|slot| {
            let pack = BucketPack { len: slot.len, offset: slot.offset, scale };
            let unpack = BucketUnpack { len: slot.len, offset: slot.offset };
            Seat { bucket: slot.bucket, pack_op: ops.add(&pack), unpack_op: ops.add(&unpack), pack, unpack }
        });
        let seats = seats.collect();
        let mut memory = Vec::new();
        for (index, bucket) in plan.buckets.iter().enumerate() {
            let alloc = |what| backend.alloc(&format!("bucket{index}.{what}"), bucket.len).map(Some);
            memory.push(BucketMemory { send: alloc("send")?, recv: alloc("recv")? });
        }
        let slowness = Slowness {
            input: wait_in(injections, rank, Phase::Input),
            forward: wait_in(injections, rank, Phase::Forward),
            backward: wait_in(injections, rank, Phase::Backward),
        };
        let wait_op = ops.add_named("wait_all_reduce", String::new(), Cost::default());
        Ok(Self { backend, model, rank, pending: plan.pending(), plan, seats, memory, wait_op, slowness })
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.plan.buckets.len()
    }

    /// Bytes of all gradients.
    pub fn gradient_bytes(&self) -> usize {
        self.plan.buckets.iter().map(|bucket| bucket.len * size_of::<f32>()).sum()
    }

    /// The rows of `buckets`.
    pub fn bucket_rows(&self) -> Vec<BucketRow> {
        let name = |parameter: Option<&usize>| {
            let parameter = parameter.and_then(|index| self.model.parameters().get(*index));
            parameter.map_or_else(Default::default, |parameter| parameter.name.as_str().into())
        };
        let row = |(index, bucket): (usize, &crate::bucket_plan::Bucket)| BucketRow {
            rank: self.rank as i32,
            bucket: index as i32,
            bytes: (bucket.len * size_of::<f32>()) as i64,
            first_parameter: name(bucket.parameters.first()),
            last_parameter: name(bucket.parameters.last()),
        };
        self.plan.buckets.iter().enumerate().map(row).collect()
    }

    /// Records everything this rank has allocated, as of now: it was allocated before recording was active.
    pub fn record_memory(&self, recorder: &Recorder, thread: &ThreadRecorder) {
        let note = |name: &str, bytes: usize| {
            thread.memory(Memory::host(recorder.intern(name), bytes as i64));
        };
        for allocation in self.model.allocations() {
            note(&allocation.name, allocation.bytes);
        }
        for (index, bucket) in self.plan.buckets.iter().enumerate() {
            let bytes = bucket.len * size_of::<f32>();
            note(&format!("bucket{index}.send"), bytes);
            note(&format!("bucket{index}.recv"), bytes);
        }
    }

    /// One step. Collective: every rank does the same step.
    ///
    /// # Errors
    /// [`Error::Diverged`] if the ranks' parameters differ afterwards; the fabric's.
    pub fn step(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
        step: u32,
    ) -> Result<StepResult, Error> {
        observer.range(Range::Input, || {
            wait_exactly(self.slowness.input);
            self.model.load_batch(&self.backend, observer, self.rank as u64, u64::from(step))
        })?;
        observer.range(Range::Forward, || {
            wait_exactly(self.slowness.forward);
            self.model.forward(&self.backend, observer)
        })?;
        observer.range(Range::Backward, || {
            wait_exactly(self.slowness.backward);
            self.backward(observer, engine, thread)
        })?;
        let loss = self.model.loss(&self.backend)?;
        observer.range(Range::Optimizer, || self.optimize(observer, engine, thread, step, loss))
    }

    fn backward(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
    ) -> Result<(), Error> {
        let Self { backend, model, plan, pending, seats, memory, .. } = self;
        pending.reset(plan);
        model.backward(backend, observer, |ReadyGradient { parameter, gradient }| {
            let ready_ns = thread.now_ns();
            let Some(seat) = seats.get(parameter) else { return Ok(()) };
            let Some(bucket) = memory.get_mut(seat.bucket) else { return Ok(()) };
            if let Some(send) = &mut bucket.send {
                observer.op(&seat.pack_op, || backend.bucket_pack(&seat.pack, gradient, send))?;
            }
            if pending.note(plan, parameter).is_none() {
                return Ok(());
            }
            let (Some(send), Some(recv)) = (bucket.send.take(), bucket.recv.take()) else {
                return Err(Error::EngineGone);
            };
            let buffers = Buffers { send: send.into(), recv: recv.into() };
            engine.borrow_mut().submit(thread, seat.bucket, ready_ns, buffers)
        })
    }

    fn optimize(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
        step: u32,
        loss: f64,
    ) -> Result<StepResult, Error> {
        observer.op(&self.wait_op, || engine.borrow_mut().wait_all())?;
        for (index, memory) in self.memory.iter_mut().enumerate() {
            if let Some(Buffers { send, recv }) = engine.borrow_mut().take(index) {
                *memory = BucketMemory { send: Some(send.into()), recv: Some(recv.into()) };
            }
        }
        for (parameter, seat) in self.seats.iter().enumerate() {
            let sum = self.memory.get(seat.bucket).and_then(|memory| memory.recv.as_ref());
            if let (Some(sum), Some(gradient)) = (sum, self.model.gradient_mut(parameter)) {
                observer.op(&seat.unpack_op, || self.backend.bucket_unpack(&seat.unpack, sum, gradient))?;
            }
        }
        self.model.update(&self.backend, observer)?;
        let checksum = self.model.checksum(&self.backend, observer)?;
        let all = engine.borrow_mut().all_gather(thread, &[checksum, loss.to_bits()])?;
        let checksums: Vec<u64> = all.iter().step_by(2).copied().collect();
        checksum::compare(i64::from(step), &checksums)?;
        let losses = all.iter().skip(1).step_by(2).map(|bits| f64::from_bits(*bits));
        Ok(StepResult { loss, mean_loss: losses.sum::<f64>() / checksums.len() as f64, checksum })
    }
}
