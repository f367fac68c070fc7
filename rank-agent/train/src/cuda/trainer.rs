//! A step of data-parallel training on a device: enqueued from the first kernel to the last, without a wait.
//!
//! The device makes the batch from the step's number, the stream and not the host waits for the sum of the gradients, and
//! loss and checksum go into a journal on the device. So the host may be steps ahead, and a step can be captured as a CUDA
//! graph: one launch, the same kernels.

use std::rc::Rc;
use std::time::Duration;

use kernels::cuda::{ClusterBatch, Cuda, CudaBuffer, Entry, Graph, Journal};
use kernels::{Backend, BucketPack, BucketUnpack, Cost};
use recorder::{Collective, CollectiveState, Kind, Memory, NameId, Recorder};
use trace::BucketRow;

use super::comm::{Comm, StepContext};
use crate::Error;
use crate::buckets::{Bucket, BucketPlan, Pending};
use crate::faults::{Fault, Phase, wait_in};
use crate::model::{Model, ModelConfig, Parameter, ReadyGradient};
use crate::op_observer::{Observer, Op, OpTable, Range, Unobserved};

/// Steps before the captured one: the first steps still allocate memory.
const STEPS_BEFORE_CAPTURE: u32 = 2;
/// Steps that the journal holds; the host reads it at least that often.
const JOURNAL_STEPS: u32 = 256;

/// The copies of a parameter's gradient into its bucket and back.
struct GradientCopies {
    bucket: usize,
    pack: BucketPack,
    pack_op: Op,
    unpack: BucketUnpack,
    unpack_op: Op,
}

/// A rank's model on a device, with its buckets.
pub(super) struct DeviceTrainer {
    cuda: Rc<Cuda>,
    model: Model<Cuda>,
    rank: usize,
    plan: BucketPlan,
    pending: Pending,
    copies: Vec<GradientCopies>,
    buckets: Vec<CudaBuffer>,
    journal: Journal,
    centres: CudaBuffer,
    batch: ClusterBatch,
    wait_op: Op,
    delay_op: Op,
    end_op: Op,
    faults: Vec<Fault>,
    /// The captured step; `Some(None)`: a graph is requested, but no step is captured yet.
    graph: Option<Option<Graph>>,
    graph_name: NameId,
    steps: u32,
}

impl DeviceTrainer {
    /// Allocates the model and its buckets, `bucket_bytes` each, for one of `size` ranks.
    pub(super) fn new(
        cuda: Rc<Cuda>,
        (config, bucket_bytes, wants_graph): (&ModelConfig, usize, bool),
        (rank, size): (usize, usize),
        faults: &[Fault],
        (ops, recorder): (&mut OpTable, &Recorder),
    ) -> Result<Self, Error> {
        let model = Model::new(&*cuda, config, ops)?;
        let lens: Vec<usize> = model.parameters().iter().map(Parameter::len).collect();
        let plan = BucketPlan::new(&lens, size_of::<f32>(), bucket_bytes);
        // Gradients are scaled before the sum, so that it is the mean over ranks and cannot overflow.
        let scale = 1.0 / size as f32;
        let copies = plan.slots.iter().map(|slot| {
            let pack = BucketPack { len: slot.len, offset: slot.offset, scale };
            let unpack = BucketUnpack { len: slot.len, offset: slot.offset };
            GradientCopies { bucket: slot.bucket, pack_op: ops.add(&pack), unpack_op: ops.add(&unpack), pack, unpack }
        });
        let copies = copies.collect();
        let buckets = plan.buckets.iter().enumerate();
        let buckets = buckets.map(|(index, bucket)| cuda.alloc(&format!("bucket{index}"), bucket.len));
        let buckets = buckets.collect::<Result<Vec<_>, _>>()?;
        let mut centres = cuda.alloc("centres", model.task().centres().len())?;
        cuda.upload(model.task().centres(), &mut centres)?;
        let batch = ClusterBatch {
            rows: config.batch,
            features: config.hidden,
            classes: config.classes,
            key: model.task().batch_key(rank as u64),
        };
        Ok(Self {
            journal: cuda.journal(JOURNAL_STEPS)?,
            cuda,
            model,
            rank,
            pending: plan.pending(),
            plan,
            copies,
            buckets,
            centres,
            batch,
            wait_op: ops.add_named("wait_all_reduce", String::new(), Cost::default()),
            delay_op: ops.add_named("injected_delay", String::new(), Cost::default()),
            end_op: ops.add_named("end_step", String::new(), Cost::default()),
            faults: faults.to_vec(),
            graph: wants_graph.then_some(None),
            graph_name: recorder.intern("cuda_graph_launch"),
            steps: 0,
        })
    }

    /// Elements of every bucket.
    pub(super) fn bucket_lens(&self) -> Vec<usize> {
        self.plan.buckets.iter().map(|bucket| bucket.len).collect()
    }

    /// Bytes of all gradients.
    pub(super) fn gradient_bytes(&self) -> usize {
        self.plan.buckets.iter().map(|bucket| bucket.len * size_of::<f32>()).sum()
    }

    /// The rows of the table `buckets`.
    pub(super) fn bucket_rows(&self) -> Vec<BucketRow> {
        let name = |parameter: Option<&usize>| {
            let parameter = parameter.and_then(|index| self.model.parameters().get(*index));
            parameter.map_or_else(Default::default, |parameter| parameter.name.as_str().into())
        };
        let row = |(index, bucket): (usize, &Bucket)| BucketRow {
            rank: self.rank as i32,
            bucket: index as i32,
            bytes: (bucket.len * size_of::<f32>()) as i64,
            first_parameter: name(bucket.parameters.first()),
            last_parameter: name(bucket.parameters.last()),
            parameter_bytes: Some(self.plan.parameter_bytes(bucket)),
        };
        self.plan.buckets.iter().enumerate().map(row).collect()
    }

    /// Records what this rank has allocated on its device, as of now.
    pub(super) fn record_memory(&self, recorder: &Recorder, context: &StepContext<'_>) {
        let mut allocated = 0;
        let mut note = |name: &str, bytes: usize| {
            allocated += bytes as i64;
            context.thread.memory(Memory {
                device_id: i64::try_from(self.cuda.info().ordinal).ok(),
                allocated_bytes: Some(allocated),
                ..Memory::host(recorder.intern(name), bytes as i64)
            });
        };
        for allocation in self.model.allocations() {
            note(&allocation.name, allocation.bytes);
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            note(&format!("bucket{index}"), super::comm::bytes_of(&self.cuda, bucket));
        }
    }

    /// Whether the next step must wait until the journal was read.
    pub(super) fn journal_is_full(&self, settled: u32) -> bool {
        self.steps - settled >= self.journal.capacity()
    }

    /// Reads the journal of the steps since `settled`; the device should be idle.
    pub(super) fn read_journal(&self, settled: u32) -> Result<Vec<Entry>, Error> {
        Ok(self.cuda.read_journal(&self.journal, settled..self.steps)?)
    }

    /// Enqueues one step. Collective.
    pub(super) fn step(
        &mut self,
        observer: &impl Observer,
        comm: &mut Comm<'_>,
        context: &StepContext<'_>,
    ) -> Result<(), Error> {
        let wants_graph = self.graph.is_some() && self.steps >= STEPS_BEFORE_CAPTURE;
        self.steps += 1;
        if !wants_graph {
            return self.enqueue(observer, comm, context);
        }
        if let Some(None) = self.graph {
            self.graph = Some(Some(self.capture(comm, context)?));
        }
        // Before the graph, because its kernels are the same in every step.
        for (range, wait) in self.waits() {
            observer.range(range, || self.delay(observer, wait))?;
        }
        let Some(Some(graph)) = &self.graph else { return Err(agent::Error::EngineGone.into()) };
        let scope = context.thread.scope(Kind::CpuOp, self.graph_name);
        let (step, enqueue_ns) = (context.thread.active_step(), scope.start_ns());
        let lens: Vec<usize> = self.plan.buckets.iter().map(|bucket| bucket.len).collect();
        let collectives: Vec<Collective> = comm
            .collectives_of_step(&lens)
            .into_iter()
            .map(|collective| Collective { step, enqueue_ns, ..collective })
            .collect();
        let is_timed = context.cupti.is_some_and(|cupti| cupti.collectives(&scope, &collectives));
        if !is_timed && step.is_some() {
            // Events inside a graph hold the times of its last launch only, so these rows have no times.
            let state = CollectiveState::Unreported;
            collectives.iter().for_each(|collective| context.thread.collective(Collective { state, ..*collective }));
        }
        Ok(graph.launch(self.cuda.compute())?)
    }

    /// Drops the captured step.
    pub(super) fn drop_graph(&mut self) {
        self.graph = None;
    }

    /// Captures a step without running it.
    fn capture(&mut self, comm: &mut Comm<'_>, context: &StepContext<'_>) -> Result<Graph, Error> {
        let cuda = self.cuda.clone();
        let context = StepContext { is_capture: true, ..*context };
        let faults = std::mem::take(&mut self.faults);
        let graph = Graph::capture(cuda.compute(), || self.enqueue(&Unobserved, comm, &context));
        self.faults = faults;
        graph
    }

    /// The planted delays of the step that was begun.
    fn waits(&self) -> [(Range, Duration); 3] {
        let step = self.steps.saturating_sub(1);
        let phases =
            [(Range::Input, Phase::Input), (Range::Forward, Phase::Forward), (Range::Backward, Phase::Backward)];
        phases.map(|(range, phase)| (range, wait_in(&self.faults, self.rank, phase, step)))
    }

    /// Makes the device work for longer, because a sleep of the host would be hidden by the steps that it is ahead.
    fn delay(&self, observer: &impl Observer, wait: Duration) -> Result<(), Error> {
        match wait.is_zero() {
            true => Ok(()),
            false => Ok(observer.op(&self.delay_op, || self.cuda.delay(wait))?),
        }
    }

    fn enqueue(
        &mut self,
        observer: &impl Observer,
        comm: &mut Comm<'_>,
        context: &StepContext<'_>,
    ) -> Result<(), Error> {
        let [(_, input), (_, forward), (_, backward)] = self.waits();
        observer.range(Range::Input, || {
            self.delay(observer, input)?;
            self.make_batch(observer)
        })?;
        observer.range(Range::Forward, || {
            self.delay(observer, forward)?;
            Ok::<_, Error>(self.model.forward(&*self.cuda, observer)?)
        })?;
        observer.range(Range::Backward, || {
            self.delay(observer, backward)?;
            self.backward(observer, comm, context)
        })?;
        observer.range(Range::Optimizer, || self.optimize(observer, comm, context))
    }

    fn make_batch(&mut self, observer: &impl Observer) -> Result<(), Error> {
        let Self { cuda, model, journal, centres, batch, .. } = self;
        let op = model.make_batch_op().clone();
        let (inputs, labels) = model.batch_memory();
        Ok(observer.op(&op, || cuda.cluster_batch(batch, journal, centres, inputs, labels))?)
    }

    fn backward(
        &mut self,
        observer: &impl Observer,
        comm: &mut Comm<'_>,
        context: &StepContext<'_>,
    ) -> Result<(), Error> {
        let Self { cuda, model, plan, pending, copies, buckets, .. } = self;
        pending.reset(plan);
        model.backward(&**cuda, observer, |ReadyGradient { parameter, gradient }| {
            let Some(copy) = copies.get(parameter) else { return Ok(()) };
            let Some(bucket) = buckets.get_mut(copy.bucket) else { return Ok(()) };
            observer.op(&copy.pack_op, || cuda.bucket_pack(&copy.pack, gradient, bucket))?;
            if pending.note(plan, parameter).is_none() {
                return Ok(());
            }
            comm.issue(cuda, context, copy.bucket, bucket)
        })
    }

    fn optimize(
        &mut self,
        observer: &impl Observer,
        comm: &mut Comm<'_>,
        context: &StepContext<'_>,
    ) -> Result<(), Error> {
        let Self { cuda, model, copies, buckets, journal, wait_op, end_op, .. } = self;
        observer.op(wait_op, || comm.collect(cuda, context, buckets))?;
        let mut held = None;
        // In the order in which the buckets were sent, so that the first sums are used while the last still travel.
        for (parameter, copy) in copies.iter().enumerate().rev() {
            if held != Some(copy.bucket) {
                observer.op(wait_op, || comm.hold(cuda, copy.bucket))?;
                held = Some(copy.bucket);
            }
            if let (Some(sum), Some(gradient)) = (buckets.get(copy.bucket), model.gradient_mut(parameter)) {
                observer.op(&copy.unpack_op, || cuda.bucket_unpack(&copy.unpack, sum, gradient))?;
            }
        }
        model.update(&**cuda, observer)?;
        observer.op(&model.checksum_op().clone(), || {
            model.values().enumerate().try_for_each(|(index, value)| cuda.add_checksum(journal, index as u64, value))
        })?;
        Ok(observer.op(end_op, || cuda.end_step(journal, model.loss_memory()))?)
    }
}
