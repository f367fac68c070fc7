//! The work of a layer: real matrix products, or waits of the same length, with which truth can be planted on any number of
//! cores.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use kernels::{Backend, Cost, Cpu, CpuBuffer, Gemm, Operation, SgdMomentum, Transpose};

use crate::Error;
use crate::faults::wait_exactly;
use crate::op_observer::{Observer, Op, OpTable};

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compute {
    /// Matrix products.
    Gemm,
    /// Sleeps as long as the products would take at 100 GFLOP/s, and leaves the core to others.
    Sleep,
    /// Spins as long.
    Spin,
}

impl Compute {
    /// Its name on the command line, and of its rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Sleep => "sleep",
            Self::Spin => "spin",
        }
    }
}

/// The speed of products that are waited for: a product of 64 × 1024 × 1024 takes 1.34 ms.
pub const FLOPS_PER_S: f64 = 1e11;
/// The speed of updates that are waited for.
const BYTES_PER_S: f64 = 2e10;

/// The sizes of a layer's products: `wide` and `narrow` are activations, of which one enters and the other leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) hidden: usize,
    /// The width of a part of the layer.
    pub(super) part: usize,
}

/// A product: which memory it reads, and which it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    Forward,
    WeightGradient,
    InputGradient,
}

/// Work of a layer that is split by columns (even layers) or by rows (odd layers).
pub(super) struct LayerWork {
    is_by_rows: bool,
    products: [(Gemm, Op); 3],
    update: (SgdMomentum, Op),
}

/// The memory of the products, which all layers share: its numbers are zeros.
struct Memory {
    wide: CpuBuffer,
    narrow: CpuBuffer,
    weight: CpuBuffer,
    gradient: CpuBuffer,
    /// The parameters that this rank updates, their gradients and velocities.
    updated: [CpuBuffer; 3],
}

/// Does the work.
pub(super) struct Worker {
    kind: Compute,
    products: Option<(Cpu, Memory)>,
}

impl LayerWork {
    pub(super) fn new(kind: Compute, index: usize, shape: Shape, updated: usize, ops: &mut OpTable) -> Self {
        let Shape { rows, hidden, part } = shape;
        let is_by_rows = !index.is_multiple_of(2);
        let (inputs, outputs) = if is_by_rows { (part, hidden) } else { (hidden, part) };
        let product = |m, n, k, a, b| Gemm { m, n, k, a, b, alpha: 1.0, beta: 0.0 };
        let gemms = [
            product(rows, outputs, inputs, Transpose::No, Transpose::Yes),
            product(outputs, inputs, rows, Transpose::Yes, Transpose::No),
            product(rows, inputs, outputs, Transpose::No, Transpose::No),
        ];
        let mut add = |operation: &dyn Declared| match kind {
            Compute::Gemm => operation.declare(ops),
            Compute::Sleep | Compute::Spin => ops.add_named(kind.name(), String::new(), Cost::default()),
        };
        let products = gemms.map(|gemm| (gemm, add(&gemm)));
        let update = SgdMomentum { len: updated, learning_rate: 0.0, momentum: 0.0 };
        Self { is_by_rows, products, update: (update, add(&update)) }
    }
}

/// An operation that can be declared.
trait Declared {
    fn declare(&self, ops: &mut OpTable) -> Op;
}

impl<T: Operation> Declared for T {
    fn declare(&self, ops: &mut OpTable) -> Op {
        ops.add(self)
    }
}

impl Worker {
    pub(super) fn new(kind: Compute, cpu: Cpu, shape: Shape, updated: usize) -> Result<Self, Error> {
        let Shape { rows, hidden, part } = shape;
        let alloc = |name: &str, len| cpu.alloc(name, len);
        let products = match kind {
            Compute::Gemm => {
                let memory = Memory {
                    wide: alloc("activations", rows * hidden)?,
                    narrow: alloc("part of activations", rows * part)?,
                    weight: alloc("weight", hidden * part)?,
                    gradient: alloc("weight.gradient", hidden * part)?,
                    updated: [
                        alloc("updated.weight", updated)?,
                        alloc("updated.gradient", updated)?,
                        alloc("updated.velocity", updated)?,
                    ],
                };
                Some((cpu, memory))
            }
            Compute::Sleep | Compute::Spin => None,
        };
        Ok(Self { kind, products })
    }

    /// Does one product of a layer.
    pub(super) fn product(
        &mut self,
        observer: &impl Observer,
        layer: &LayerWork,
        product: Product,
    ) -> Result<(), Error> {
        let (gemm, op) = &layer.products[product as usize];
        observer.op(op, || match &mut self.products {
            None => {
                let flops = 2.0 * gemm.m as f64 * gemm.n as f64 * gemm.k as f64;
                pass(self.kind, Duration::from_secs_f64(flops / FLOPS_PER_S));
                Ok(())
            }
            Some((cpu, Memory { wide, narrow, weight, gradient, .. })) => {
                let (enters, leaves) = if layer.is_by_rows { (narrow, wide) } else { (wide, narrow) };
                match product {
                    Product::Forward => cpu.gemm(gemm, enters, weight, leaves),
                    Product::WeightGradient => cpu.gemm(gemm, leaves, enters, gradient),
                    Product::InputGradient => cpu.gemm(gemm, leaves, weight, enters),
                }
            }
        })?;
        Ok(())
    }

    /// Updates a layer's parameters.
    pub(super) fn update(&mut self, observer: &impl Observer, layer: &LayerWork) -> Result<(), Error> {
        let (update, op) = &layer.update;
        observer.op(op, || match &mut self.products {
            None => {
                // A parameter, its gradient and its velocity are read, two of them are written.
                let bytes = 5.0 * (update.len * size_of::<f32>()) as f64;
                pass(self.kind, Duration::from_secs_f64(bytes / BYTES_PER_S));
                Ok(())
            }
            Some((cpu, Memory { updated: [weight, gradient, velocity], .. })) => {
                cpu.sgd_momentum(update, weight, gradient, velocity)
            }
        })?;
        Ok(())
    }
}

/// Lets time pass.
fn pass(kind: Compute, time: Duration) {
    if kind == Compute::Sleep {
        wait_exactly(time);
        return;
    }
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
