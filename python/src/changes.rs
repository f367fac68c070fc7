//! The rows of a comparison as one flat table.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use diff::{DiffRow, Place};
use serde_json::Value;
use trace::{ColumnInfo, Table, Writer};

use crate::tables::NativeTable;

/// Name, type as DuckDB shows it, Arrow type, whether cells may be null, and meaning.
type Column = (&'static str, &'static str, DataType, bool, &'static str);

/// The columns, in their order.
fn columns() -> Vec<Column> {
    let text = |name, nullable, doc| (name, "VARCHAR", DataType::Utf8, nullable, doc);
    let number = |name, doc| (name, "DOUBLE", DataType::Float64, false, doc);
    vec![
        text(
            "group",
            false,
            "Kind of the row: `step`, `account`, `range`, `operator`, `kernel`, `collective`, `bucket`, `category`, `module` or `source`.",
        ),
        text(
            "name",
            false,
            "Part of the step or of the account, range, operator, kernel, operation, bucket, kind of device work, module or Python function.",
        ),
        text("shape", true, "Shapes of inputs, blocks of a kernel, bytes of a collective or bucket."),
        text(
            "measure",
            false,
            "Measured quantity: `total`, `self`, `queue`, `wait`, `transfer`, `skew`, `exposed` or `device`.",
        ),
        ("rank", "INTEGER", DataType::Int32, true, "Rank that is compared with the others; null: the mean over ranks."),
        number(
            "a_ns",
            "Value in A: median over steps, mean over runs; of the step and its parts, the mean of the middle half of steps.",
        ),
        number("b_ns", "Value in B, likewise."),
        number("delta_ns", "Change from A to B; of one rank, its change beyond that of the others."),
        number("low_ns", "Lower end of the interval of the change."),
        number("high_ns", "Upper end of the interval of the change."),
        number("p_adjusted", "Probability of such a change by chance, adjusted for the number of rows."),
        number("step_pct", "The change as a percentage of A's step."),
        text("judgement", false, "`slower`, `faster` or `unclear`."),
    ]
}

/// The table of the rows, in their order.
pub(crate) fn changes(rows: &[DiffRow]) -> Result<NativeTable, ArrowError> {
    let numbers = |value: &dyn Fn(&DiffRow) -> f64| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(value(row))).collect::<Float64Array>())
    };
    let texts = |value: &dyn Fn(&DiffRow) -> Option<String>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<StringArray>())
    };
    let rank = |row: &DiffRow| match row.place {
        Place::AllRanks => None,
        Place::Rank(rank) => Some(rank),
    };
    let arrays = vec![
        texts(&|row| Some(row.key.group.word().into())),
        texts(&|row| Some(row.key.name.to_string())),
        texts(&|row| row.key.shape.as_ref().map(ToString::to_string)),
        texts(&|row| Some(row.key.measure.as_str().into())),
        Arc::new(rows.iter().map(rank).collect::<Int32Array>()),
        numbers(&|row| row.a_ns),
        numbers(&|row| row.b_ns),
        numbers(&|row| row.change.delta_ns),
        numbers(&|row| row.change.low_ns),
        numbers(&|row| row.change.high_ns),
        numbers(&|row| row.p_adjusted),
        numbers(&|row| row.step_pct),
        texts(&|row| word(serde_json::to_value(row.judgement))),
    ];
    let described = columns().into_iter().map(|(name, type_name, data_type, nullable, doc)| ColumnInfo {
        name,
        type_name,
        nullable,
        doc,
        data_type,
        vocabulary: None,
    });
    let table = Table {
        name: "changes",
        doc: "One row per compared quantity: significant ones first, then by size.",
        writer: Writer::Aggregator,
        columns: described.collect(),
        sorted_by: None,
        judged: true,
    };
    let fields: Vec<Field> =
        table.columns.iter().map(|column| Field::new(column.name, column.data_type.clone(), column.nullable)).collect();
    NativeTable::new(table, RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

/// The word that a value is in JSON.
fn word(value: serde_json::Result<Value>) -> Option<String> {
    value.ok()?.as_str().map(String::from)
}
