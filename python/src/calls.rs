//! The functions of the module.

use std::ffi::OsString;
use std::path::PathBuf;

use aggregator::cli::library::{self, Answer, NamedOption};
use pyo3::prelude::{Py, PyAny, PyResult, Python, pyfunction};
use trace::{OmissionRow, rank_tables, views_of_analysis};

use crate::analysis::NativeAnalysis;
use crate::changes::changes;
use crate::errors::json;
use crate::tables::{NativeTable, arrow};
use crate::work::run;

/// The version of the program.
#[pyfunction]
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Names and meanings of the tables of an analysis.
#[pyfunction]
pub(crate) fn tables_of_analysis() -> Vec<(String, String)> {
    views_of_analysis().map(|view| (view.name, view.doc)).collect()
}

/// Names and meanings of the tables of a run.
#[pyfunction]
pub(crate) fn tables_of_runs() -> Vec<(&'static str, &'static str)> {
    rank_tables().into_iter().map(|table| (table.name, table.doc)).collect()
}

/// Runs the command with its arguments, its name first, and returns its exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| rankscope::run_in_process(arguments))
}

#[pyfunction]
#[pyo3(signature = (paths, options, progress = None))]
pub(crate) fn analyze(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    options: Vec<NamedOption>,
    progress: Option<Py<PyAny>>,
) -> PyResult<NativeAnalysis> {
    run(py, progress.as_ref(), move |progress| Answer::of(paths, &options, progress)).map(NativeAnalysis::new)
}

/// Ranks, rows, bytes read, bytes written, and the omissions as JSON.
type Written = (Vec<i32>, u64, u64, u64, String);

#[pyfunction]
#[pyo3(signature = (paths, out, options, progress = None))]
pub(crate) fn ingest(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    out: PathBuf,
    options: Vec<NamedOption>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Written> {
    let done = run(py, progress.as_ref(), move |progress| library::ingest(paths, &out, &options, progress))?;
    Ok((done.ranks, done.rows, done.read_bytes, done.written_bytes, listed(&done.omissions)?))
}

/// The comparison as JSON, and its rows as a table.
#[pyfunction]
#[pyo3(signature = (a, b, options, progress = None))]
pub(crate) fn diff(
    py: Python<'_>,
    a: Vec<String>,
    b: Vec<String>,
    options: Vec<NamedOption>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, NativeTable)> {
    let found = run(py, progress.as_ref(), move |progress| library::diff(&a, &b, &options, progress))?;
    let text = serde_json::to_string(&found).map_err(|error| json(&error))?;
    Ok((text, changes(&found.rows).map_err(|error| arrow(&error))?))
}

/// The predictions and the omissions, both as JSON.
#[pyfunction]
#[pyo3(signature = (paths, options, progress = None))]
pub(crate) fn what_if(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    options: Vec<NamedOption>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let work = move |progress: library::Progress<'_>| library::what_if(paths, &options, progress);
    let (found, omissions) = run(py, progress.as_ref(), work)?;
    Ok((found, listed(&omissions)?))
}

/// The ranks that hold a job up, as JSON.
#[pyfunction]
#[pyo3(signature = (paths))]
pub(crate) fn hang(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<String> {
    run(py, None, move |_| library::hang(paths))
}

/// The ranks of the share, and the omissions as JSON.
#[pyfunction]
#[pyo3(signature = (paths, part, parts, options, progress = None))]
pub(crate) fn map_share(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    part: String,
    parts: PathBuf,
    options: Vec<NamedOption>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Vec<i32>, String)> {
    let work = move |progress: library::Progress<'_>| library::map(&paths, &part, &parts, &options, progress);
    let (ranks, omissions) = run(py, progress.as_ref(), work)?;
    Ok((ranks, listed(&omissions)?))
}

#[pyfunction]
pub(crate) fn reduce(py: Python<'_>, parts: PathBuf) -> PyResult<NativeAnalysis> {
    run(py, None, move |_| Answer::of_parts(&parts)).map(NativeAnalysis::new)
}

fn listed(omissions: &[OmissionRow]) -> PyResult<String> {
    serde_json::to_string(omissions).map_err(|error| json(&error))
}
