//! One step of data-parallel training on the CPU: the model's passes, the gradient buckets, and the comparison of the
//! ranks' checksums.

use std::cell::RefCell;
use std::sync::Arc;

use agent::fabric::{Buffers, Fabric};
use kernels::{Backend, BucketPack, BucketUnpack, Cost};
use recorder::{Memory, Recorder, ThreadRecorder};
use trace::BucketRow;

use crate::Error;
use crate::buckets::{BucketPlan, Pending};
use crate::checksum;
use crate::engine::Engine;
use crate::faults::{Fault, Phase, wait_exactly, wait_in};
use crate::model::{Model, ModelConfig, ReadyGradient};
use crate::op_observer::{Observer, Op, OpTable, Range};
use crate::training::{Gradients, Learned, StepResult, Training};

/// Memory that moves to the fabric and back without a copy.
pub trait HostMemory: From<Vec<f32>> + Into<Vec<f32>> + Send {}

impl<T: From<Vec<f32>> + Into<Vec<f32>> + Send> HostMemory for T {}

/// The copies of a parameter's gradient into its bucket and back.
struct GradientCopies {
    bucket: usize,
    pack: BucketPack,
    pack_op: Op,
    unpack: BucketUnpack,
    unpack_op: Op,
}

/// A bucket's memory; `None` while the engine has it.
struct BucketMemory<T> {
    send: Option<T>,
    recv: Option<T>,
}

/// A rank's model with its buckets.
pub struct Trainer<B: Backend> {
    backend: B,
    model: Model<B>,
    rank: usize,
    plan: BucketPlan,
    pending: Pending,
    copies: Vec<GradientCopies>,
    memory: Vec<BucketMemory<B::Buffer>>,
    wait_op: Op,
    faults: Vec<Fault>,
    control: Arc<dyn Fabric>,
}

impl<B: Backend> Trainer<B>
where
    B::Buffer: HostMemory,
{
    /// Allocates the model and its buckets, `bucket_bytes` each.
    ///
    /// # Errors
    /// [`Error::Kernel`] when memory runs out.
    pub fn new(
        backend: B,
        config: &ModelConfig,
        bucket_bytes: usize,
        control: &Arc<dyn Fabric>,
        faults: &[Fault],
        ops: &mut OpTable,
    ) -> Result<Self, Error> {
        let (rank, size) = (control.rank(), control.size());
        let model = Model::new(&backend, config, ops)?;
        let lens: Vec<usize> = model.parameters().iter().map(crate::model::Parameter::len).collect();
        let plan = BucketPlan::new(&lens, size_of::<f32>(), bucket_bytes);
        // Gradients are scaled before the sum, so that it is the mean over ranks and cannot overflow.
        let scale = 1.0 / size as f32;
        let copies = plan.slots.iter().map(|slot| {
            let pack = BucketPack { len: slot.len, offset: slot.offset, scale };
            let unpack = BucketUnpack { len: slot.len, offset: slot.offset };
            GradientCopies { bucket: slot.bucket, pack_op: ops.add(&pack), unpack_op: ops.add(&unpack), pack, unpack }
        });
        let copies = copies.collect();
        let mut memory = Vec::new();
        for (index, bucket) in plan.buckets.iter().enumerate() {
            let alloc = |what| backend.alloc(&format!("bucket{index}.{what}"), bucket.len).map(Some);
            memory.push(BucketMemory { send: alloc("send")?, recv: alloc("recv")? });
        }
        let wait_op = ops.add_named("wait_all_reduce", String::new(), Cost::default());
        Ok(Self {
            backend,
            model,
            rank,
            pending: plan.pending(),
            plan,
            copies,
            memory,
            wait_op,
            faults: faults.to_vec(),
            control: control.clone(),
        })
    }

    fn backward(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
    ) -> Result<(), Error> {
        let Self { backend, model, plan, pending, copies, memory, .. } = self;
        pending.reset(plan);
        model.backward(backend, observer, |ReadyGradient { parameter, gradient }| {
            let ready_ns = thread.now_ns();
            let Some(copy) = copies.get(parameter) else { return Ok(()) };
            let Some(bucket) = memory.get_mut(copy.bucket) else { return Ok(()) };
            if let Some(send) = &mut bucket.send {
                observer.op(&copy.pack_op, || backend.bucket_pack(&copy.pack, gradient, send))?;
            }
            if pending.note(plan, parameter).is_none() {
                return Ok(());
            }
            let (Some(send), Some(recv)) = (bucket.send.take(), bucket.recv.take()) else {
                return Err(agent::Error::EngineGone.into());
            };
            let buffers = Buffers { send: send.into(), recv: recv.into() };
            Ok(engine.borrow_mut().submit(thread, copy.bucket, ready_ns, buffers)?)
        })
    }

    fn optimize(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
        (step, wants_comparison): (u32, bool),
        loss: f64,
    ) -> Result<StepResult, Error> {
        observer.op(&self.wait_op, || engine.borrow_mut().wait_all())?;
        for (index, memory) in self.memory.iter_mut().enumerate() {
            if let Some(Buffers { send, recv }) = engine.borrow_mut().take(index) {
                *memory = BucketMemory { send: Some(send.into()), recv: Some(recv.into()) };
            }
        }
        for (parameter, copy) in self.copies.iter().enumerate() {
            let sum = self.memory.get(copy.bucket).and_then(|memory| memory.recv.as_ref());
            if let (Some(sum), Some(gradient)) = (sum, self.model.gradient_mut(parameter)) {
                observer.op(&copy.unpack_op, || self.backend.bucket_unpack(&copy.unpack, sum, gradient))?;
            }
        }
        self.model.update(&self.backend, observer)?;
        let checksum = self.model.checksum(&self.backend, observer)?;
        let mine = [checksum, loss.to_bits(), u64::from(wants_comparison)];
        let all = engine.borrow_mut().all_gather(&*self.control, thread, &mine)?;
        let column = |at| all.iter().skip(at).step_by(mine.len()).copied();
        let checksums: Vec<u64> = column(0).collect();
        checksum::compare(i64::from(step), &checksums)?;
        let mean_loss = column(1).map(f64::from_bits).sum::<f64>() / checksums.len() as f64;
        let learned = Some(Learned { loss, mean_loss, checksum });
        Ok(StepResult { learned, compares_clocks: column(2).next() == Some(1) })
    }
}

impl<B: Backend> Training for Trainer<B>
where
    B::Buffer: HostMemory,
{
    fn name(&self) -> String {
        self.backend.name().into()
    }

    fn buckets(&self) -> usize {
        self.plan.buckets.len()
    }

    fn gradients(&self) -> Gradients {
        let bytes = self.plan.buckets.iter().map(|bucket| bucket.len * size_of::<f32>()).sum();
        Gradients { bytes, buckets: self.buckets() }
    }

    fn bucket_rows(&self) -> Vec<BucketRow> {
        let name = |parameter: Option<&usize>| {
            let parameter = parameter.and_then(|index| self.model.parameters().get(*index));
            parameter.map_or_else(Default::default, |parameter| parameter.name.as_str().into())
        };
        let row = |(index, bucket): (usize, &crate::buckets::Bucket)| BucketRow {
            rank: self.rank as i32,
            bucket: index as i32,
            bytes: (bucket.len * size_of::<f32>()) as i64,
            first_parameter: name(bucket.parameters.first()),
            last_parameter: name(bucket.parameters.last()),
            parameter_bytes: Some(self.plan.parameter_bytes(bucket)),
        };
        self.plan.buckets.iter().enumerate().map(row).collect()
    }

    fn record_memory(&self, recorder: &Recorder, thread: &ThreadRecorder) {
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

    fn step(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
        step: u32,
        wants_comparison: bool,
    ) -> Result<StepResult, Error> {
        observer.range(Range::Input, || {
            wait_exactly(wait_in(&self.faults, self.rank, Phase::Input, step));
            self.model.load_batch(&self.backend, observer, self.rank as u64, u64::from(step))
        })?;
        observer.range(Range::Forward, || {
            wait_exactly(wait_in(&self.faults, self.rank, Phase::Forward, step));
            self.model.forward(&self.backend, observer)
        })?;
        observer.range(Range::Backward, || {
            wait_exactly(wait_in(&self.faults, self.rank, Phase::Backward, step));
            self.backward(observer, engine, thread)
        })?;
        let loss = self.model.loss(&self.backend)?;
        observer.range(Range::Optimizer, || self.optimize(observer, engine, thread, (step, wants_comparison), loss))
    }
}
