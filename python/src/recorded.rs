//! An input whose rows are read without an analysis: those of a rank, as columns.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use aggregator::cli::library::Recorded;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow_schema::ArrowError;
use pyo3::prelude::{PyResult, Python, pyclass, pymethods};
use trace::rank::{CopyRate, Events, NO_STEP, NONE};
use trace::{EventRow, Kind, Row, Text};

use crate::errors::json;
use crate::tables::{NativeTable, arrow};
use crate::work::run;

/// A run or traces.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeRecorded {
    recorded: Arc<Recorded>,
}

#[pymethods]
impl NativeRecorded {
    #[new]
    fn open(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Self> {
        let recorded = run(py, None, move |_| Recorded::of(paths))?;
        Ok(Self { recorded: Arc::new(recorded) })
    }

    #[getter]
    fn ranks(&self) -> Vec<i32> {
        self.recorded.ranks()
    }

    /// What was left out of the whole input, as JSON.
    fn problems(&self) -> PyResult<String> {
        serde_json::to_string(&self.recorded.problems()).map_err(|error| json(&error))
    }

    /// The rows of a rank in its own clock, its file and process, and what was left out of it as JSON.
    fn rows(&self, py: Python<'_>, rank: i32) -> PyResult<(NativeTable, String, i64, String)> {
        let recorded = Arc::clone(&self.recorded);
        let (batch, info, omissions) = run(py, None, move |_| {
            let data = recorded.load(rank)?;
            Ok((batch_of(data.events, &data.names, &data.copy_rates), data.outline.info, data.omissions))
        })?;
        let batch = batch.map_err(|error| arrow(&error))?;
        let mut table = EventRow::table();
        (table.name, table.doc) = ("rows", "One row per recorded interval of a rank, in its own clock.");
        table.columns.retain(|column| batch.column_by_name(column.name).is_some());
        let omissions = serde_json::to_string(&omissions).map_err(|error| json(&error))?;
        let rows = NativeTable::new(table, batch).map_err(|error| arrow(&error))?;
        Ok((rows, info.file.to_string(), info.pid, omissions))
    }
}

/// The value of a missing number, as HTA has it.
const MISSING: i64 = -1;

/// The columns of a rank, whose numbers are never null, so that NumPy takes them without a copy.
fn batch_of(events: Events, names: &[Text], rates: &[CopyRate]) -> Result<RecordBatch, ArrowError> {
    let all = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
    let known = |mut values: Vec<i64>| {
        values.iter_mut().filter(|value| **value == NONE).for_each(|value| *value = MISSING);
        all(values)
    };
    let kinds = events.kind.iter().map(|kind| *kind as i32);
    let of_names = events.name.iter().map(|name| *name as i32);
    let step = events.step.iter().map(|step| if *step == NO_STEP { MISSING } else { i64::from(*step) });
    let parent = events.parent.iter().map(|parent| events.id.get(*parent as usize).copied().unwrap_or(MISSING));
    let rates: HashMap<i64, f64> = rates.iter().map(|rate| (rate.id, rate.bandwidth_gbs)).collect();
    let rate = |(kind, id): (&Kind, &i64)| match kind {
        Kind::GpuMemcpy | Kind::GpuMemset => rates.get(id).copied().unwrap_or(f64::NAN),
        _ => f64::NAN,
    };
    let rates = events.kind.iter().zip(&events.id).map(rate);
    RecordBatch::try_from_iter([
        ("kind", texts(kinds, Kind::ALL.iter().map(|kind| kind.as_str()))?),
        ("name", texts(of_names, names.iter().map(|name| &**name))?),
        ("step", all(step.collect())),
        ("parent_id", all(parent.collect())),
        ("bandwidth_gbs", Arc::new(Float64Array::from_iter_values(rates)) as ArrayRef),
        ("is_comm", Arc::new(BooleanArray::from(events.is_comm))),
        ("ts_ns", all(events.ts_ns)),
        ("dur_ns", all(events.dur_ns)),
        ("id", all(events.id)),
        ("thread_id", known(events.thread)),
        ("device_id", known(events.device)),
        ("stream_id", known(events.stream)),
        ("correlation_id", known(events.correlation)),
    ])
}

/// A column of texts, given the number of each row's.
fn texts<'a>(numbers: impl Iterator<Item = i32>, all: impl Iterator<Item = &'a str>) -> Result<ArrayRef, ArrowError> {
    let all = Arc::new(StringArray::from_iter_values(all));
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from_iter_values(numbers), all)?))
}
