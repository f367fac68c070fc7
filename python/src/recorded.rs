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
use pyo3::prelude::{Bound, PyAny, PyAnyMethods, PyResult, Python, pyclass, pymethods};
use rayon::prelude::*;
use trace::name_rules::is_communication_by_hta;
use trace::rank::{CopyRate, Events, NO_STEP, NONE};
use trace::{EventRow, Kind, Row, Text};

use crate::errors::json;
use crate::hta_window::Window;
use crate::tables::{NativeTable, arrow};
use crate::work::{run, run_beside};

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

    /// The rows of a rank in HTA's window. `beside` is called while they are read.
    fn rows(
        &self,
        py: Python<'_>,
        rank: i32,
        include_last: bool,
        strict: bool,
        beside: &Bound<'_, PyAny>,
    ) -> PyResult<RankRows> {
        let recorded = Arc::clone(&self.recorded);
        let beside = || beside.call0().map(drop);
        let (batch, window, info, omissions) = run_beside(py, None, beside, move |_| {
            let mut data = recorded.load(rank)?;
            let window = Window::of(&data.events, &data.names, include_last, strict);
            let events = std::mem::take(&mut data.events);
            let batch = batch_of(events, &data.names, &data.copy_rates, &window);
            Ok((batch, window, data.outline.info, data.omissions))
        })?;
        let batch = batch.map_err(|error| arrow(&error))?;
        let mut table = EventRow::table();
        (table.name, table.doc) = ("rows", "One row per recorded interval of a rank in HTA's window.");
        table.columns.retain(|column| batch.column_by_name(column.name).is_some());
        let omissions = serde_json::to_string(&omissions).map_err(|error| json(&error))?;
        let rows = NativeTable::new(table, batch).map_err(|error| arrow(&error))?;
        let parts = (window.of_host, window.of_streams);
        Ok((rows, parts, window.base_ns, window.steps, (info.file.to_string(), info.pid), omissions))
    }
}

/// The rows of a rank, those of the host first and those of streams last; how many these are; the time from which rows count, in ns;
/// the steps of the trace; its file and process; and what was left out of it, as JSON.
type RankRows = (NativeTable, (usize, usize), i64, Vec<i64>, (String, i64), String);

/// The value of a missing number, as HTA has it.
const MISSING: i64 = -1;

/// The columns of a rank's window, whose numbers are never null, so that NumPy takes them without a copy.
fn batch_of(events: Events, names: &[Text], rates: &[CopyRate], window: &Window) -> Result<RecordBatch, ArrowError> {
    let rates: HashMap<i64, f64> = rates.iter().map(|rate| (rate.id, rate.bandwidth_gbs)).collect();
    let rate = |row: usize| match events.kind[row] {
        Kind::GpuMemcpy | Kind::GpuMemset => rates.get(&events.id[row]).copied().unwrap_or(f64::NAN),
        _ => f64::NAN,
    };
    let step = |row: usize| if events.step[row] == NO_STEP { MISSING } else { i64::from(events.step[row]) };
    let parent = |row: usize| events.id.get(events.parent[row] as usize).copied().unwrap_or(MISSING);
    let launch = |row: usize| window.launch_ns(&events, row).unwrap_or(MISSING);
    let kinds = texts(window.column(|row| events.kind[row] as i32), Kind::ALL.iter().map(|kind| kind.as_str()))?;
    let of_names = texts(window.column(|row| events.name[row] as i32), names.iter().map(|name| &**name))?;
    let (steps, parents, rates) = (window.column(step), window.column(parent), window.column(rate));
    let (launches, ends) =
        (window.column(launch), window.column(|row| events.end_ns(row).saturating_sub(window.base_ns)));
    let by_hta: Vec<bool> = names.iter().map(|name| is_communication_by_hta(name)).collect();
    let by_hta = window.column(|row| by_hta[events.name[row] as usize]);
    let is_comm = window.kept(events.is_comm, |is_comm| is_comm);
    let numbers = [
        ("ts_ns", events.ts_ns),
        ("dur_ns", events.dur_ns),
        ("id", events.id),
        ("thread_id", events.thread),
        ("device_id", events.device),
        ("stream_id", events.stream),
        ("correlation_id", events.correlation),
        ("external_id", events.external),
    ];
    let numbers = numbers.into_par_iter().map(|(name, values)| {
        let values = match name {
            "ts_ns" => window.kept(values, |ts_ns| ts_ns.saturating_sub(window.base_ns)),
            _ => window.kept(values, |value| if value == NONE { MISSING } else { value }),
        };
        (name, longs(values))
    });
    let numbers: Vec<(&str, ArrayRef)> = numbers.collect();
    let others: [(&str, ArrayRef); 9] = [
        ("kind", kinds),
        ("name", of_names),
        ("step", longs(steps)),
        ("parent_id", longs(parents)),
        ("launch_ns", longs(launches)),
        ("end_ns", longs(ends)),
        ("bandwidth_gbs", Arc::new(Float64Array::from(rates))),
        ("is_comm", Arc::new(BooleanArray::from(is_comm))),
        ("is_comm_by_hta", Arc::new(BooleanArray::from(by_hta))),
    ];
    RecordBatch::try_from_iter(others.into_iter().chain(numbers))
}

fn longs(values: Vec<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(values))
}

/// A column of texts, given the number of each row's.
fn texts<'a>(numbers: Vec<i32>, all: impl Iterator<Item = &'a str>) -> Result<ArrayRef, ArrowError> {
    let all = Arc::new(StringArray::from_iter_values(all));
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from(numbers), all)?))
}
