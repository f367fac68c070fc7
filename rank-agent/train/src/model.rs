//! The reference model: a multi-layer perceptron, trained with SGD and momentum on the mean gradient of all ranks.
//!
//! A layer is `y = relu(x · weightᵀ + bias)` with the weight stored as in torch.nn.Linear, one row per output; the last
//! layer has no ReLU and as many outputs as there are classes. With the default sizes (8 layers, hidden 1024, batch 64,
//! 10 classes) that is 7.36 M parameters and 2.69 GFLOP of matrix products a step: three products a layer, two for the
//! first, which needs no gradient of its input.
//!
//! The methods are the parts of a step; they open no [`Range`](crate::op_observer::Range) of their own, because their
//! caller may have something to do within one.

use kernels::{
    Backend, BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, Cost, Error, Gemm, Result, SgdMomentum,
    SoftmaxCrossEntropy, Transpose,
};

use crate::checksum::Checksum;
use crate::dataset::{self, Clusters};
use crate::op_observer::{Observer, Op, OpTable};

/// Shape of the model and of its training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelConfig {
    /// Linear layers, the output layer included; at least 1.
    pub layers: usize,
    /// Width of the input and of every hidden layer; at least 1.
    pub hidden: usize,
    /// Samples per rank and step; at least 1.
    pub batch: usize,
    /// Classes to tell apart; at least 1.
    pub classes: u32,
    /// Seed of parameters and data; equal on all ranks.
    pub seed: u64,
    /// SGD's step size.
    pub learning_rate: f32,
    /// SGD's momentum.
    pub momentum: f32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self { layers: 8, hidden: 1024, batch: 64, classes: 10, seed: 0, learning_rate: 0.02, momentum: 0.9 }
    }
}

impl ModelConfig {
    fn check(&self) -> Result<()> {
        let Self { layers, hidden, batch, classes, .. } = *self;
        if layers > 0 && hidden > 0 && batch > 0 && classes > 0 {
            return Ok(());
        }
        let shapes = format!("(layers {layers}, hidden {hidden}, batch {batch}, classes {classes})");
        Err(Error::Shape { operation: "model", shapes, reason: "must all be at least 1" })
    }
}

/// A parameter, by its place in the order of use: `layer0.weight`, `layer0.bias`, `layer1.weight`, …
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements, which no model's parameter has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An allocation of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Name of the content.
    pub name: String,
    /// Its size.
    pub bytes: usize,
}

/// A gradient that backward has just computed.
#[derive(Debug)]
pub struct ReadyGradient<'a, B: Backend> {
    /// Index of its parameter, in order of use.
    pub parameter: usize,
    /// This rank's gradient.
    pub gradient: &'a B::Buffer,
}

/// A parameter with its gradient and its SGD state.
struct Trained<B: Backend> {
    value: B::Buffer,
    gradient: B::Buffer,
    velocity: B::Buffer,
    update: SgdMomentum,
    update_op: Op,
}

/// The bias and activation of a layer; the last layer has no ReLU.
enum Activation {
    Relu { forward: BiasRelu, backward: BiasReluBackward },
    Identity { forward: BiasAdd, backward: BiasGrad },
}

struct Layer<B: Backend> {
    weight: Trained<B>,
    bias: Trained<B>,
    output: B::Buffer,
    output_gradient: B::Buffer,
    activation: Activation,
    forward: Gemm,
    weight_gradient: Gemm,
    /// `None` for the first layer, whose input needs no gradient.
    input_gradient: Option<Gemm>,
    ops: LayerOps,
}

struct LayerOps {
    forward: Op,
    activation: Op,
    activation_backward: Op,
    weight_gradient: Op,
    input_gradient: Option<Op>,
}

/// The model on a back end, with its data and its optimizer.
pub struct Model<B: Backend> {
    layers: Vec<Layer<B>>,
    parameters: Vec<Parameter>,
    allocations: Vec<Allocation>,
    task: Clusters,
    /// The batch on the host, if the back end has its own memory.
    host_input: Vec<f32>,
    host_labels: Vec<u32>,
    input: B::Buffer,
    labels: B::Labels,
    loss: B::Buffer,
    cross_entropy: SoftmaxCrossEntropy,
    make_batch_op: Op,
    cross_entropy_op: Op,
    checksum_op: Op,
}

impl<B: Backend> Model<B> {
    /// Allocates the model on a back end, initializes it equally on all ranks, and declares its operations.
    pub fn new(backend: &B, config: &ModelConfig, ops: &mut OpTable) -> Result<Self> {
        config.check()?;
        let mut memory = Memory { backend, allocations: Vec::new() };
        let ModelConfig { hidden, batch, classes, seed, .. } = *config;
        let classes_len = classes as usize;
        let input = memory.alloc("input", &[batch, hidden])?;
        let labels = memory.alloc_labels("labels", batch)?;
        let make_batch_op =
            ops.add_named("make_batch", format!("[[{batch}, {hidden}], [{batch}]]"), batch_cost(config));
        let mut parameters = Vec::new();
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let layer = Layer::new(&mut memory, config, index, ops)?;
            let outputs = layer.outputs();
            parameters.push(Parameter { name: format!("layer{index}.weight"), shape: vec![outputs, hidden] });
            parameters.push(Parameter { name: format!("layer{index}.bias"), shape: vec![outputs] });
            layers.push(layer);
        }
        let cross_entropy = SoftmaxCrossEntropy { rows: batch, classes: classes_len };
        let loss = memory.alloc("loss", &[1])?;
        let parameter_bytes = parameters.iter().map(|p| p.len() * size_of::<f32>()).sum::<usize>();
        let checksum_cost = Cost { flops: 0, bytes: i64::try_from(parameter_bytes).unwrap_or(i64::MAX) };
        Ok(Self {
            layers,
            parameters,
            allocations: memory.allocations,
            task: Clusters::new(seed, hidden, classes),
            host_input: Vec::new(),
            host_labels: vec![0; batch],
            input,
            labels,
            loss,
            cross_entropy,
            make_batch_op,
            cross_entropy_op: ops.add(&cross_entropy),
            checksum_op: ops.add_named("checksum", String::new(), checksum_cost),
        })
    }

    /// The parameters in order of use.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The allocations of the model in the order in which they were made.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// Loads this rank's batch of a step; part of [`Range::Input`](crate::op_observer::Range::Input).
    pub fn load_batch(&mut self, backend: &B, observer: &impl Observer, rank: u64, step: u64) -> Result<()> {
        observer.op(&self.make_batch_op, || {
            if let Some(host) = backend.host_mut(&mut self.input) {
                self.task.batch(rank, step, host, &mut self.host_labels);
            } else {
                self.host_input.resize(backend.len(&self.input), 0.0);
                self.task.batch(rank, step, &mut self.host_input, &mut self.host_labels);
                backend.upload(&self.host_input, &mut self.input)?;
            }
            backend.upload_labels(&self.host_labels, &mut self.labels)
        })
    }

    /// Computes activations, loss, and the loss's gradient with respect to the last layer's output.
    pub fn forward(&mut self, backend: &B, observer: &impl Observer) -> Result<()> {
        let mut input = &self.input;
        for layer in &mut self.layers {
            layer.forward(backend, observer, input)?;
            input = &layer.output;
        }
        let Some(last) = self.layers.last_mut() else { return Ok(()) };
        observer.op(&self.cross_entropy_op, || {
            let (logits, gradient) = (&last.output, &mut last.output_gradient);
            backend.softmax_cross_entropy(&self.cross_entropy, logits, &self.labels, &mut self.loss, gradient)
        })
    }

    /// Computes gradients from the last layer to the first. Calls `on_ready` for each parameter's gradient as soon as it is
    /// ready, in reverse order of use; an error of `on_ready` ends the pass.
    pub fn backward<E: From<Error>>(
        &mut self,
        backend: &B,
        observer: &impl Observer,
        mut on_ready: impl FnMut(ReadyGradient<'_, B>) -> Result<(), E>,
    ) -> Result<(), E> {
        for index in (0..self.layers.len()).rev() {
            let (below, above) = self.layers.split_at_mut(index);
            let Some(layer) = above.first_mut() else { continue };
            let below = below.last_mut();

            layer.bias_gradient(backend, observer)?;
            on_ready(ReadyGradient { parameter: 2 * index + 1, gradient: &layer.bias.gradient })?;

            let input = below.as_ref().map_or(&self.input, |below| &below.output);
            layer.weight_gradient(backend, observer, input)?;
            on_ready(ReadyGradient { parameter: 2 * index, gradient: &layer.weight.gradient })?;

            if let Some(below) = below {
                layer.input_gradient(backend, observer, &mut below.output_gradient)?;
            }
        }
        Ok(())
    }

    /// A parameter's gradient by its index, to be replaced by the mean over ranks.
    pub fn gradient_mut(&mut self, parameter: usize) -> Option<&mut B::Buffer> {
        let layer = self.layers.get_mut(parameter / 2)?;
        let trained = if parameter.is_multiple_of(2) { &mut layer.weight } else { &mut layer.bias };
        Some(&mut trained.gradient)
    }

    /// The task from which batches are drawn.
    pub fn task(&self) -> &Clusters {
        &self.task
    }

    /// Memory of the batch, for a back end that generates it.
    pub fn batch_memory(&mut self) -> (&mut B::Buffer, &mut B::Labels) {
        (&mut self.input, &mut self.labels)
    }

    /// Memory of the last forward pass's loss.
    pub fn loss_memory(&self) -> &B::Buffer {
        &self.loss
    }

    /// The parameters' values, in order of use.
    pub fn values(&self) -> impl Iterator<Item = &B::Buffer> {
        self.layers.iter().flat_map(|layer| [&layer.weight.value, &layer.bias.value])
    }

    /// The operation that loads a batch.
    pub fn make_batch_op(&self) -> &Op {
        &self.make_batch_op
    }

    /// The operation that computes the checksum of the parameters.
    pub fn checksum_op(&self) -> &Op {
        &self.checksum_op
    }

    /// Updates all parameters with the present gradients.
    pub fn update(&mut self, backend: &B, observer: &impl Observer) -> Result<()> {
        for trained in self.layers.iter_mut().flat_map(|layer| [&mut layer.weight, &mut layer.bias]) {
            let Trained { value, gradient, velocity, update, update_op } = trained;
            observer.op(update_op, || backend.sgd_momentum(update, value, gradient, velocity))?;
        }
        Ok(())
    }

    /// Loss of the last forward pass: the mean over this rank's batch.
    pub fn loss(&self, backend: &B) -> Result<f64> {
        let mut host = [0.0];
        backend.download(&self.loss, &mut host)?;
        Ok(f64::from(host[0]))
    }

    /// Checksum of all parameters in order of use. Parameters on a device are copied to the host first.
    pub fn checksum(&self, backend: &B, observer: &impl Observer) -> Result<u64> {
        observer.op(&self.checksum_op, || {
            let mut checksum = Checksum::default();
            let mut copy = Vec::new();
            for value in self.values() {
                if let Some(host) = backend.host(value) {
                    checksum.update(host);
                } else {
                    copy.resize(backend.len(value), 0.0);
                    backend.download(value, &mut copy)?;
                    checksum.update(&copy);
                }
            }
            Ok(checksum.finish())
        })
    }
}

impl<B: Backend> Layer<B> {
    fn new(memory: &mut Memory<'_, B>, config: &ModelConfig, index: usize, ops: &mut OpTable) -> Result<Self> {
        let ModelConfig { layers, hidden: inputs, batch, .. } = *config;
        let is_last = index + 1 == layers;
        let outputs = if is_last { config.classes as usize } else { inputs };
        let name = |part: &str| format!("layer{index}.{part}");
        let product = |m, n, k, a, b| Gemm { m, n, k, a, b, alpha: 1.0, beta: 0.0 };
        // y = x · weightᵀ; weight' = y'ᵀ · x; x' = y' · weight.
        let forward = product(batch, outputs, inputs, Transpose::No, Transpose::Yes);
        let weight_gradient = product(outputs, inputs, batch, Transpose::Yes, Transpose::No);
        let input_gradient = (index > 0).then(|| product(batch, inputs, outputs, Transpose::No, Transpose::No));
        let (rows, cols) = (batch, outputs);
        let activation = if is_last {
            Activation::Identity { forward: BiasAdd { rows, cols }, backward: BiasGrad { rows, cols } }
        } else {
            Activation::Relu { forward: BiasRelu { rows, cols }, backward: BiasReluBackward { rows, cols } }
        };
        let (activation_op, activation_backward_op) = match &activation {
            Activation::Relu { forward, backward } => (ops.add(forward), ops.add(backward)),
            Activation::Identity { forward, backward } => (ops.add(forward), ops.add(backward)),
        };
        let mut weight = Trained::new(memory, config, &name("weight"), &[outputs, inputs], ops)?;
        let bias = Trained::new(memory, config, &name("bias"), &[outputs], ops)?;
        let mut values = vec![0.0; memory.backend.len(&weight.value)];
        dataset::normal(config.seed, index as u64, initial_deviation(inputs, is_last), &mut values);
        memory.backend.upload(&values, &mut weight.value)?;
        Ok(Self {
            weight,
            bias,
            output: memory.alloc(&name("output"), &[batch, outputs])?,
            output_gradient: memory.alloc(&name("output_gradient"), &[batch, outputs])?,
            activation,
            ops: LayerOps {
                forward: ops.add(&forward),
                activation: activation_op,
                activation_backward: activation_backward_op,
                weight_gradient: ops.add(&weight_gradient),
                input_gradient: input_gradient.as_ref().map(|gemm| ops.add(gemm)),
            },
            forward,
            weight_gradient,
            input_gradient,
        })
    }

    fn outputs(&self) -> usize {
        self.forward.n
    }

    fn forward(&mut self, backend: &B, observer: &impl Observer, input: &B::Buffer) -> Result<()> {
        let Self { weight, bias, output, activation, forward, ops, .. } = self;
        observer.op(&ops.forward, || backend.gemm(forward, input, &weight.value, output))?;
        observer.op(&ops.activation, || match activation {
            Activation::Relu { forward, .. } => backend.bias_relu(forward, output, &bias.value),
            Activation::Identity { forward, .. } => backend.bias_add(forward, output, &bias.value),
        })
    }

    /// Makes the bias gradient, and turns the output's gradient into the pre-activation's.
    fn bias_gradient(&mut self, backend: &B, observer: &impl Observer) -> Result<()> {
        let Self { bias, output, output_gradient, activation, ops, .. } = self;
        observer.op(&ops.activation_backward, || match activation {
            Activation::Relu { backward, .. } => {
                backend.bias_relu_backward(backward, output, output_gradient, &mut bias.gradient)
            }
            Activation::Identity { backward, .. } => backend.bias_grad(backward, output_gradient, &mut bias.gradient),
        })
    }

    fn weight_gradient(&mut self, backend: &B, observer: &impl Observer, input: &B::Buffer) -> Result<()> {
        let Self { weight, output_gradient, weight_gradient, ops, .. } = self;
        observer
            .op(&ops.weight_gradient, || backend.gemm(weight_gradient, output_gradient, input, &mut weight.gradient))
    }

    fn input_gradient(&self, backend: &B, observer: &impl Observer, below: &mut B::Buffer) -> Result<()> {
        let (Some(gemm), Some(op)) = (&self.input_gradient, &self.ops.input_gradient) else { return Ok(()) };
        observer.op(op, || backend.gemm(gemm, &self.output_gradient, &self.weight.value, below))
    }
}

impl<B: Backend> Trained<B> {
    fn new(
        memory: &mut Memory<'_, B>,
        config: &ModelConfig,
        name: &str,
        shape: &[usize],
        ops: &mut OpTable,
    ) -> Result<Self> {
        let value = memory.alloc(name, shape)?;
        let update = SgdMomentum {
            len: memory.backend.len(&value),
            learning_rate: config.learning_rate,
            momentum: config.momentum,
        };
        Ok(Self {
            value,
            gradient: memory.alloc(&format!("{name}.gradient"), shape)?,
            velocity: memory.alloc(&format!("{name}.velocity"), shape)?,
            update_op: ops.add(&update),
            update,
        })
    }
}

/// Allocates memory and lists the allocations.
struct Memory<'a, B: Backend> {
    backend: &'a B,
    allocations: Vec<Allocation>,
}

impl<B: Backend> Memory<'_, B> {
    fn alloc(&mut self, name: &str, shape: &[usize]) -> Result<B::Buffer> {
        let len = shape.iter().fold(1_usize, |len, &n| len.saturating_mul(n));
        let buffer = self.backend.alloc(name, len)?;
        self.allocations.push(Allocation { name: name.to_owned(), bytes: self.backend.size_bytes(&buffer) });
        Ok(buffer)
    }

    fn alloc_labels(&mut self, name: &str, len: usize) -> Result<B::Labels> {
        let labels = self.backend.alloc_labels(name, len)?;
        self.allocations.push(Allocation { name: name.to_owned(), bytes: self.backend.labels_size_bytes(&labels) });
        Ok(labels)
    }
}

/// Standard deviation of a weight's initial values: √(2 / inputs) keeps the variance of activations from layer to layer
/// under ReLU (He et al. 2015). The last layer's is a tenth of that, so that training starts from nearly equal
/// probabilities, with a loss of ln(classes), and not from large random logits.
fn initial_deviation(inputs: usize, is_last: bool) -> f32 {
    let he = (2.0 / inputs.max(1) as f32).sqrt();
    if is_last { he / 10.0 } else { he }
}

/// Cost of a batch: it is written, a centre is read per sample, and each number takes one addition.
fn batch_cost(config: &ModelConfig) -> Cost {
    let numbers = config.batch.saturating_mul(config.hidden);
    let bytes =
        numbers.saturating_mul(2 * size_of::<f32>()).saturating_add(config.batch.saturating_mul(size_of::<u32>()));
    Cost { flops: i64::try_from(numbers).unwrap_or(i64::MAX), bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests;
