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
use trace::rank::{NO_STEP, NONE, RankData};
use trace::{EventRow, Kind, Row};

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
            Ok((batch_of(&data), data.outline.info, data.omissions))
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

fn batch_of(data: &RankData) -> Result<RecordBatch, ArrowError> {
    let events = &data.events;
    let known = |values: &[i64]| -> ArrayRef {
        Arc::new(values.iter().map(|value| Some(*value).filter(|value| *value != NONE)).collect::<Int64Array>())
    };
    let all = |values: &[i64]| -> ArrayRef { Arc::new(Int64Array::from_iter_values(values.iter().copied())) };
    let kinds = events.kind.iter().map(|kind| *kind as i32);
    let names = events.name.iter().map(|name| *name as i32);
    let step = events.step.iter().map(|step| Some(*step).filter(|step| *step != NO_STEP));
    let parent = events.parent.iter().map(|parent| events.id.get(*parent as usize).copied());
    let rates: HashMap<i64, f64> = data.copy_rates.iter().map(|rate| (rate.id, rate.bandwidth_gbs)).collect();
    let rates: Float64Array = events.id.iter().map(|id| rates.get(id).copied()).collect();
    RecordBatch::try_from_iter([
        ("kind", texts(kinds, Kind::ALL.iter().map(|kind| kind.as_str()))?),
        ("name", texts(names, data.names.iter().map(|name| &**name))?),
        ("ts_ns", all(&events.ts_ns)),
        ("dur_ns", all(&events.dur_ns)),
        ("id", all(&events.id)),
        ("step", Arc::new(step.collect::<Int32Array>())),
        ("thread_id", known(&events.thread)),
        ("device_id", known(&events.device)),
        ("stream_id", known(&events.stream)),
        ("correlation_id", known(&events.correlation)),
        ("parent_id", Arc::new(parent.collect::<Int64Array>())),
        ("is_comm", Arc::new(BooleanArray::from(events.is_comm.clone()))),
        ("bandwidth_gbs", Arc::new(rates)),
    ])
}

/// A column of texts, given the number of each row's.
fn texts<'a>(numbers: impl Iterator<Item = i32>, all: impl Iterator<Item = &'a str>) -> Result<ArrayRef, ArrowError> {
    let all = Arc::new(StringArray::from_iter_values(all));
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from_iter_values(numbers), all)?))
}
