//! The observer that records: every operation becomes a row, and the main thread drives the engine between operations.

use std::cell::RefCell;

use kernels::Cost;
use recorder::{Kind, NameId, Recorder, ShapeId, ThreadRecorder};

use crate::engine::Engine;
use crate::op_observer::{Observer, Op, OpTable, Range};

/// The constant columns of an operation's rows.
struct OpRow {
    name: NameId,
    shapes: Option<ShapeId>,
    cost: Cost,
}

/// Records the operations of the main thread.
pub struct OpRecording<'a> {
    thread: &'a ThreadRecorder,
    /// The engine, which the main thread may have to drive between operations.
    engine: Option<&'a RefCell<Engine>>,
    ops: Vec<OpRow>,
    ranges: [NameId; Range::ALL.len()],
}

impl<'a> OpRecording<'a> {
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

/// Parses the shapes that an operation prints: `[[64, 1024], [1024]]` is also JSON. Empty without shapes.
fn shapes_of(input_dims: &str) -> Vec<Vec<i64>> {
    serde_json::from_str(input_dims).unwrap_or_default()
}

impl Observer for OpRecording<'_> {
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
            // The operation was declared after this observer was made: it has no row, but must run.
            None => body(),
        };
        // An operation that uses the engine has borrowed it, and drives it itself.
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
    fn printed_shapes_are_parsed() {
        assert_eq!(shapes_of("[[64, 1024], [1024]]"), [vec![64, 1024], vec![1024]]);
        assert_eq!(shapes_of(""), Vec::<Vec<i64>>::new());
    }
}
