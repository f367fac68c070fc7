//! The interface between recording and the model: every operation runs through an [`Observer`].
//!
//! An [`Op`] holds the constant columns of its rows from the time when the model is built, so that an observer can intern
//! names beforehand and the hot path passes an index. [`Unobserved`] compiles to the bare operations.

use kernels::{Cost, Dtype, Operation};

/// The parts of a step, siblings within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Range {
    /// The loading of the batch.
    Input,
    /// Activations and loss.
    Forward,
    /// Gradients from the last layer to the first; full buckets are sent meanwhile.
    Backward,
    /// The wait for the averaged gradients, and the update.
    Optimizer,
}

impl Range {
    /// All ranges in the order of a step.
    pub const ALL: [Self; 4] = [Self::Input, Self::Forward, Self::Backward, Self::Optimizer];

    /// Name of its rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

/// One operation at one place of the program, with the constant columns of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Index in its [`OpTable`].
    pub id: usize,
    /// Name of the operation.
    pub name: &'static str,
    /// Shapes of its inputs as torch.profiler prints them; empty without inputs.
    pub input_dims: String,
    /// Its arithmetic and memory traffic.
    pub cost: Cost,
}

/// All operations of a program in the order of declaration.
#[derive(Debug)]
pub struct OpTable {
    dtype: Dtype,
    ops: Vec<Op>,
}

impl OpTable {
    /// An empty table for a program that stores its numbers as `dtype`.
    pub fn new(dtype: Dtype) -> Self {
        Self { dtype, ops: Vec::new() }
    }

    /// Declares an operation of the back end.
    pub fn add(&mut self, operation: &impl Operation) -> Op {
        self.add_named(operation.name(), operation.input_dims(), operation.cost(self.dtype))
    }

    /// Declares other work that takes time, such as a batch, a wait or a checksum.
    pub fn add_named(&mut self, name: &'static str, input_dims: String, cost: Cost) -> Op {
        let op = Op { id: self.ops.len(), name, input_dims, cost };
        self.ops.push(op.clone());
        op
    }

    /// The declared operations; an [`Op::id`] is an index into them.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
}

/// Observes the operations of a thread. The methods take `&self`, because calls nest.
pub trait Observer {
    /// Runs `body` as one range of the step.
    fn range<R>(&self, range: Range, body: impl FnOnce() -> R) -> R;

    /// Runs `body`, which executes only `op`.
    fn op<R>(&self, op: &Op, body: impl FnOnce() -> R) -> R;
}

/// Records nothing and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn range<R>(&self, _range: Range, body: impl FnOnce() -> R) -> R {
        body()
    }

    fn op<R>(&self, _op: &Op, body: impl FnOnce() -> R) -> R {
        body()
    }
}

#[cfg(test)]
mod tests {
    use kernels::Fill;

    use super::*;

    #[test]
    fn ids_are_indices_and_costs_come_from_the_operation() {
        let mut table = OpTable::new(Dtype::F32);
        let fill = table.add(&Fill { len: 3, value: 0.0 });
        let wait = table.add_named("wait_all_reduce", String::new(), Cost::default());
        assert_eq!((fill.id, wait.id), (0, 1));
        assert_eq!(table.ops(), [fill.clone(), wait]);
        assert_eq!((fill.input_dims.as_str(), fill.cost.bytes), ("[[3]]", 12));
    }
}
