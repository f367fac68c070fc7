//! Errors of the library as `rankscope.RankscopeError`.

use model::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::{PyAnyMethods, PyErr, PyResult, Python};

/// The exception of an error, with the file that it is about.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let file = error.path().map(|path| path.display().to_string());
    make(py, error.to_string(), file).unwrap_or_else(|failed| failed)
}

/// The exception of a panic, which is a defect of rankscope.
pub(crate) fn defect(py: Python<'_>, panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let text = format!("a defect of rankscope, please report it: {}", text.unwrap_or("it panicked"));
    make(py, text, None).unwrap_or_else(|failed| failed)
}

/// `Err` if the class cannot be imported.
fn make(py: Python<'_>, text: String, file: Option<String>) -> PyResult<PyErr> {
    let class = py.import("rankscope._errors")?.getattr("RankscopeError")?;
    let made = class.call1((text, file))?;
    Ok(PyErr::from_value(made))
}

/// JSON that cannot be made, which is a defect.
pub(crate) fn json(error: &serde_json::Error) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
