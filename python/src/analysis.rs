//! An analysis that Python holds.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use aggregator::cli::library::Answer;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::{Py, PyAny, PyResult, Python, pyclass, pymethods};
use trace::{EventRow, Row, lock, views_of_analysis};

use crate::errors::{exception, json};
use crate::tables::{NativeTable, arrow};
use crate::work::run;

/// The analysis of a run or of traces. Its tables are made into Arrow when they are asked for, once.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeAnalysis {
    answer: Arc<Answer>,
    made: Mutex<HashMap<String, Py<NativeTable>>>,
}

impl NativeAnalysis {
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer: Arc::new(answer), made: Mutex::default() }
    }
}

#[pymethods]
impl NativeAnalysis {
    /// The verdict as JSON.
    fn verdict(&self) -> PyResult<String> {
        serde_json::to_string(&self.answer.analysis().verdict).map_err(|error| json(&error))
    }

    /// The facts of the input as JSON.
    fn facts(&self) -> PyResult<String> {
        serde_json::to_string(&self.answer.analysis().facts).map_err(|error| json(&error))
    }

    /// `lost`, `left_out`, `note` or nothing: the worst of what was left out.
    fn worst_omission(&self) -> PyResult<Option<String>> {
        let worst = self.answer.analysis().worst_omission();
        worst
            .map(|kind| serde_json::to_string(&kind).map(|text| text.trim_matches('"').into()))
            .transpose()
            .map_err(|error| json(&error))
    }

    /// What was left out, as JSON.
    fn omissions(&self) -> PyResult<String> {
        serde_json::to_string(&self.answer.analysis().tables.omissions).map_err(|error| json(&error))
    }

    /// A view of the tables by its name, with the rows that it has in DuckDB, too.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Py<NativeTable>> {
        if let Some(made) = lock(&self.made).get(name) {
            return Ok(made.clone_ref(py));
        }
        let view = views_of_analysis().find(|view| view.name == name);
        let Some((view, table)) = view.and_then(|view| view.analysis_table().map(|table| (view, table))) else {
            return Err(PyKeyError::new_err(name.to_string()));
        };
        // Without the lock, because making a table may let another thread of Python in.
        let batch = py.detach(|| {
            let all = self.answer.analysis().tables.all();
            all.into_iter().find(|rows| rows.table().name == table).map(|rows| rows.batch())
        });
        let Some(batch) = batch else { return Err(PyKeyError::new_err(table)) };
        let batch = batch.map_err(|error| exception(py, &error.into()))?;
        let batch = view.select(&batch).map_err(|error| arrow(&error))?;
        let made = Py::new(py, NativeTable::new(view, batch).map_err(|error| arrow(&error))?)?;
        let mut all = lock(&self.made);
        Ok(all.entry(name.to_string()).or_insert(made).clone_ref(py))
    }

    /// Writes the report. Returns its bytes and what it shortens.
    #[pyo3(signature = (path, step, command))]
    fn report(
        &self,
        py: Python<'_>,
        path: PathBuf,
        step: Option<i32>,
        command: String,
    ) -> PyResult<(u64, Vec<String>)> {
        let answer = Arc::clone(&self.answer);
        let reported = run(py, None, move |_| answer.report(&path, step, &command))?;
        Ok((reported.bytes, reported.summarised))
    }

    /// The report as text.
    #[pyo3(signature = (step, command))]
    fn page(&self, py: Python<'_>, step: Option<i32>, command: String) -> PyResult<String> {
        let answer = Arc::clone(&self.answer);
        let page = run(py, None, move |_| {
            let mut page = Vec::new();
            answer.page(&mut page, step, &command)?;
            Ok(page)
        })?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    /// The rows of a step or of all, of a rank or of all; in global time, or in the ranks' own clocks.
    #[pyo3(signature = (step, rank, own_clocks, progress = None))]
    fn timeline(
        &self,
        py: Python<'_>,
        step: Option<i32>,
        rank: Option<i32>,
        own_clocks: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<NativeTable> {
        let answer = Arc::clone(&self.answer);
        let batch = run(py, progress.as_ref(), move |progress| answer.rows(step, rank, own_clocks, progress))?;
        let mut table = EventRow::table();
        (table.name, table.doc) = (
            "timeline",
            "One row per recorded interval; `ts_ns` is global time, unless the ranks' own clocks were asked for.",
        );
        NativeTable::new(table, batch).map_err(|error| arrow(&error))
    }

    /// Writes `analysis/` and returns its path.
    fn save(&self, py: Python<'_>, directory: PathBuf) -> PyResult<PathBuf> {
        let answer = Arc::clone(&self.answer);
        run(py, None, move |_| answer.save(&directory))
    }

    /// Whether its rows can be read again, as a report does.
    #[getter]
    fn has_rows(&self) -> bool {
        self.answer.has_input()
    }
}
