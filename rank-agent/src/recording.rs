//! The observer that records: an operation becomes a row, and the main thread drives the engine between operations.

use std::cell::RefCell;

use kernels::Cost;
use recorder::{Kind, NameId, Recorder, ShapeId, ThreadRecorder};

use crate::engine::Engine;
use crate::observer::{Observer, Op, OpTable, Range};

/// What the rows of an operation say.
struct OpRow {
    name: NameId,
    shapes: Option<ShapeId>,
    cost: Cost,
}

/// Records what the main thread does.
pub struct Recording<'a> {
    thread: &'a ThreadRecorder,
    /// What is driven between operations, where that is the main thread's task.
    engine: Option<&'a RefCell<Engine>>,
    ops: Vec<OpRow>,
    ranges: [NameId; Range::ALL.len()],
}

impl<'a> Recording<'a> {
    /// Interns the names and shapes of every operation of `table`.
    pub fn new(
        recorder: &Recorder,
        thread: &'a ThreadRecorder,
        engine: Option<&'a RefCell<Engine>>,
        table: &OpTable,
    ) -> Self {
        let row = |op: &Op| {
            let shapes = shapes_of(&op.input_dims);
            let dims: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
            let types = vec!["float"; dims.len()];
            OpRow {
                name: recorder.intern(op.name),
                shapes: (!dims.is_empty()).then(|| recorder.intern_shapes(&dims, &types)),
                cost: op.cost,
            }
        };
        Self {
            thread,
            engine,
            ops: table.ops().iter().map(row).collect(),
            ranges: Range::ALL.map(|range| recorder.intern(range.name())),
        }
    }
}

/// The shapes that an operation prints: `[[64, 1024], [1024]]` is JSON, too. None where there is nothing to say.
fn shapes_of(input_dims: &str) -> Vec<Vec<i64>> {
    serde_json::from_str(input_dims).unwrap_or_default()
}

impl Observer for Recording<'_> {
    fn range<R>(&self, range: Range, body: impl FnOnce() -> R) -> R {
        let _scope = self.thread.scope(Kind::UserAnnotation, self.ranges[range as usize]);
        body()
    }

    fn op<R>(&self, op: &Op, body: impl FnOnce() -> R) -> R {
        let result = match self.ops.get(op.id) {
            Some(row) => {
                let mut scope = self.thread.scope(Kind::CpuOp, row.name);
                if row.cost.flops > 0 {
                    scope = scope.flops(row.cost.flops);
                }
                if row.cost.bytes > 0 {
                    scope = scope.bytes(row.cost.bytes);
                }
                if let Some(shapes) = row.shapes {
                    scope = scope.shapes(shapes);
                }
                let result = body();
                drop(scope);
                result
            }
            // Declared after this observer was made: it cannot be named, but must run.
            None => body(),
        };
        // An operation that itself uses the engine drives it, and has it.
        if let Some(engine) = self.engine
            && let Ok(mut engine) = engine.try_borrow_mut()
        {
            engine.poll();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_are_printed() {
        assert_eq!(shapes_of("[[64, 1024], [1024]]"), [vec![64, 1024], vec![1024]]);
        assert_eq!(shapes_of(""), Vec::<Vec<i64>>::new());
    }
}
