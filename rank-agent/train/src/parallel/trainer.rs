//! One step of a job with several communicators.

use std::cell::RefCell;

use agent::fabric::{Buffers, Transfer};
use kernels::{Cost, Cpu};
use recorder::ThreadRecorder;
use trace::{BucketRow, CommRow};

use super::comms::{Comms, Wires};
use super::compute::{Compute, LayerWork, Product, Shape, Worker};
use super::gradients::{Direction, Gradients};
use super::mesh::Mesh;
use super::schedule::{Pass, one_forward_one_backward};
use crate::Error;
use crate::context::{JobContext, rank_number};
use crate::engine::Engine;
use crate::faults::{Fault, Phase, wait_exactly, wait_in};
use crate::op_observer::{Observer, Op, OpTable, Range};
use crate::options::Options;
use crate::training::{self, StepResult, Training};

/// Operations of the main thread that wait.
struct Waits {
    all_reduce: Op,
    all_gather: Op,
    reduce_scatter: Op,
    recv: Op,
    send: Op,
}

/// A rank of a job with several communicators.
pub struct ParallelTrainer<'a> {
    context: JobContext<'a>,
    mesh: Mesh,
    kind: Compute,
    worker: Worker,
    /// The layers of this rank's stage.
    layers: Vec<LayerWork>,
    first_layer: usize,
    /// Parameters of a layer on this rank.
    parameters: usize,
    /// Numbers of a microbatch's activations.
    activations: usize,
    microbatches: usize,
    passes: Vec<Pass>,
    gradients: Gradients,
    comms: Comms,
    /// What carries the transfers.
    carrier: String,
    waits: Waits,
}

/// What a step's methods need.
struct Now<'a, O> {
    observer: &'a O,
    thread: &'a ThreadRecorder,
    step: u32,
}

impl<'a> ParallelTrainer<'a> {
    /// Makes the communicators and allocates the memory. Collective.
    ///
    /// # Errors
    /// [`Error::Kernel`] when memory runs out; the fabric's error.
    pub(crate) fn new(
        context: JobContext<'a>,
        cpu: Cpu,
        (mesh, wires): (Mesh, Wires<'_>),
        ops: &mut OpTable,
    ) -> Result<Self, Error> {
        let Options { model, compute: kind, bucket_bytes, fsdp, .. } = context.options;
        let rank = context.fabric.rank();
        let (stage, layers) = (mesh.stage(rank), model.layers / mesh.pp);
        let first_layer = stage * layers;
        let microbatches = context.options.microbatches(&mesh);
        let shape = Shape {
            rows: (model.batch / microbatches).max(1),
            hidden: model.hidden,
            part: (model.hidden / mesh.tp).max(1),
        };
        let parameters = shape.hidden * shape.part;
        let updated = if *fsdp { parameters.div_ceil(mesh.dp) } else { parameters };
        let mut gradients = match fsdp {
            true => Gradients::sharded(layers),
            false => Gradients::buckets(layers, parameters, *bucket_bytes),
        };
        let comms = Comms::new(&context, &mesh, wires, (gradients.slots(), 2 * microbatches))?;
        gradients.allocate(&comms.dp, parameters);
        let work = (first_layer..first_layer + layers).map(|layer| LayerWork::new(*kind, layer, shape, updated, ops));
        let layers = work.collect();
        let mut wait = |name| ops.add_named(name, String::new(), Cost::default());
        Ok(Self {
            context,
            mesh,
            kind: *kind,
            worker: Worker::new(*kind, cpu, shape, updated)?,
            layers,
            first_layer,
            parameters,
            activations: shape.rows * shape.hidden,
            microbatches,
            passes: one_forward_one_backward(stage, mesh.pp, microbatches),
            gradients,
            comms,
            carrier: wires.name.to_owned(),
            waits: Waits {
                all_reduce: wait("wait_all_reduce"),
                all_gather: wait("wait_all_gather"),
                reduce_scatter: wait("wait_reduce_scatter"),
                recv: wait("wait_recv"),
                send: wait("wait_send"),
            },
        })
    }

    /// Lets the injected time of a phase pass, of which each microbatch has a part.
    fn delay(&self, phase: Phase, step: u32, parts: usize) {
        let faults: &[Fault] = &self.context.options.faults;
        let wait = wait_in(faults, self.context.fabric.rank(), phase, step);
        wait_exactly(wait / u32::try_from(parts).unwrap_or(1).max(1));
    }

    fn forward<O: Observer>(&mut self, now: &Now<'_, O>, microbatch: usize) -> Result<(), Error> {
        let stage = self.comms.forward.line.place;
        if stage > 0 {
            self.receive(now, Direction::Forward, stage - 1, microbatch)?;
        }
        self.delay(Phase::Forward, now.step, self.microbatches);
        self.gradients.gather(&mut self.comms.dp, now.thread, 0, Direction::Forward)?;
        for layer in 0..self.layers.len() {
            // One layer ahead, as FullyShardedDataParallel prefetches.
            self.gradients.gather(&mut self.comms.dp, now.thread, layer + 1, Direction::Forward)?;
            self.wait_gather(now, layer, Direction::Forward)?;
            self.product(now, layer, Product::Forward)?;
            if !(self.first_layer + layer).is_multiple_of(2) {
                self.reduce_activations(now)?;
            }
        }
        if stage + 1 < self.mesh.pp {
            self.send(now, Direction::Forward, stage + 1, microbatch)?;
        }
        Ok(())
    }

    fn backward<O: Observer>(&mut self, now: &Now<'_, O>, microbatch: usize) -> Result<(), Error> {
        let stage = self.comms.backward.line.place;
        if stage + 1 < self.mesh.pp {
            self.receive(now, Direction::Backward, stage + 1, microbatch)?;
        }
        self.delay(Phase::Backward, now.step, self.microbatches);
        let (last, is_last) = (self.layers.len() - 1, microbatch + 1 == self.microbatches);
        self.gradients.gather(&mut self.comms.dp, now.thread, last, Direction::Backward)?;
        for layer in (0..self.layers.len()).rev() {
            if let Some(next) = layer.checked_sub(1) {
                self.gradients.gather(&mut self.comms.dp, now.thread, next, Direction::Backward)?;
            }
            self.wait_gather(now, layer, Direction::Backward)?;
            self.product(now, layer, Product::WeightGradient)?;
            self.gradients.ready(&mut self.comms.dp, now.thread, layer, is_last)?;
            // Of the first layer, too, as if an embedding were below it: so stages are equal.
            self.product(now, layer, Product::InputGradient)?;
            if (self.first_layer + layer).is_multiple_of(2) {
                self.reduce_activations(now)?;
            }
        }
        if stage > 0 {
            self.send(now, Direction::Backward, stage - 1, microbatch)?;
        }
        Ok(())
    }

    fn product<O: Observer>(&mut self, now: &Now<'_, O>, layer: usize, product: Product) -> Result<(), Error> {
        let Some(layer) = self.layers.get(layer) else { return Ok(()) };
        self.worker.product(now.observer, layer, product)
    }

    fn wait_gather<O: Observer>(&mut self, now: &Now<'_, O>, layer: usize, at: Direction) -> Result<(), Error> {
        if !self.gradients.is_sharded() {
            return Ok(());
        }
        now.observer.op(&self.waits.all_gather, || self.gradients.wait_gather(&mut self.comms.dp, layer, at))
    }

    /// Sums activations, or their gradients, over the parts of a layer.
    fn reduce_activations<O: Observer>(&mut self, now: &Now<'_, O>) -> Result<(), Error> {
        let channel = &mut self.comms.tp;
        if channel.size() == 1 {
            return Ok(());
        }
        let buffers = channel.buffers(Transfer::AllReduce, self.activations);
        channel.issue(now.thread, (0, None), Transfer::AllReduce, buffers)?;
        now.observer.op(&self.waits.all_reduce, || channel.wait(0, Transfer::AllReduce)).map(drop)
    }

    fn receive<O: Observer>(
        &mut self,
        now: &Now<'_, O>,
        direction: Direction,
        peer: usize,
        microbatch: usize,
    ) -> Result<(), Error> {
        let channel = match direction {
            Direction::Forward => &mut self.comms.forward,
            Direction::Backward => &mut self.comms.backward,
        };
        let (slot, transfer) = (2 * microbatch, Transfer::Receive { peer });
        channel.issue(now.thread, (slot, None), transfer, channel.buffers(transfer, self.activations))?;
        now.observer.op(&self.waits.recv, || channel.wait(slot, transfer)).map(drop)
    }

    fn send<O: Observer>(
        &mut self,
        now: &Now<'_, O>,
        direction: Direction,
        peer: usize,
        microbatch: usize,
    ) -> Result<(), Error> {
        let channel = match direction {
            Direction::Forward => &mut self.comms.forward,
            Direction::Backward => &mut self.comms.backward,
        };
        let transfer = Transfer::Send { peer };
        let buffers: Buffers = channel.buffers(transfer, self.activations);
        channel.issue(now.thread, (2 * microbatch + 1, None), transfer, buffers)
    }

    fn optimize<O: Observer>(&mut self, now: &Now<'_, O>) -> Result<(), Error> {
        self.delay(Phase::Optimizer, now.step, 1);
        let Self { comms, gradients, waits, microbatches, .. } = self;
        if comms.dp.size() > 1 {
            let wait = if gradients.is_sharded() { &waits.reduce_scatter } else { &waits.all_reduce };
            now.observer.op(wait, || gradients.wait_all(&mut comms.dp))?;
        } else {
            gradients.wait_all(&mut comms.dp)?;
        }
        if comms.forward.size() > 1 {
            now.observer.op(&waits.send, || {
                comms.forward.drain(2 * *microbatches)?;
                comms.backward.drain(2 * *microbatches)
            })?;
        }
        for layer in &self.layers {
            self.worker.update(now.observer, layer)?;
        }
        Ok(())
    }
}

impl Training for ParallelTrainer<'_> {
    fn name(&self) -> String {
        let sharded = if self.gradients.is_sharded() { ", fully sharded" } else { "" };
        let microbatches = match self.microbatches {
            1 => String::new(),
            n => format!(", {n} microbatches"),
        };
        format!("cpu ({} of {}{sharded}{microbatches}, collectives: {})", self.kind.name(), self.mesh, self.carrier)
    }

    fn buckets(&self) -> usize {
        // The communicator of all ranks has no transfers.
        0
    }

    fn gradients(&self) -> training::Gradients {
        let (bytes, buckets) = self.gradients.size(self.parameters);
        training::Gradients { bytes, buckets }
    }

    fn bucket_rows(&self) -> Vec<BucketRow> {
        self.gradients.rows(rank_number(self.context.fabric.rank()), self.first_layer)
    }

    fn comm_rows(&self) -> Vec<CommRow> {
        Comms::rows(&self.context, &self.mesh)
    }

    fn step(
        &mut self,
        observer: &impl Observer,
        world: &RefCell<Engine>,
        thread: &ThreadRecorder,
        step: u32,
        wants_comparison: bool,
    ) -> Result<StepResult, Error> {
        let now = Now { observer, thread, step };
        observer.range(Range::Input, || self.delay(Phase::Input, step, 1));
        for at in 0..self.passes.len() {
            match self.passes[at] {
                Pass::Forward(microbatch) => observer.range(Range::Forward, || self.forward(&now, microbatch)),
                Pass::Backward(microbatch) => observer.range(Range::Backward, || self.backward(&now, microbatch)),
            }?;
        }
        observer.range(Range::Optimizer, || {
            self.optimize(&now)?;
            let mine = [u64::from(wants_comparison)];
            let all = world.borrow_mut().all_gather(&**self.context.fabric, thread, &mine)?;
            Ok(StepResult { learned: None, compares_clocks: all.first() == Some(&1) })
        })
    }
}
