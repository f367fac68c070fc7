//! A table as Arrow's PyCapsule interface: pyarrow, Polars, pandas and DuckDB take its buffers without a copy.
//!
//! The capsules own Arrow's C structs, whose Rust types release them. The consumer moves the content out, as the interface
//! says, so nothing here is unsafe.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::{Bound, PyAny, PyErr, PyResult, Python, pyclass, pymethods};
use pyo3::types::PyCapsule;
use trace::{ColumnInfo, Table, View};

/// A column: name, type as DuckDB shows it, unit, meaning.
type Described = (&'static str, &'static str, Option<&'static str>, &'static str);

/// Name, meaning and columns of a table or a view.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) doc: String,
    columns: Vec<ColumnInfo>,
}

impl From<Table> for About {
    fn from(table: Table) -> Self {
        Self { name: table.name.into(), doc: table.doc.into(), columns: table.columns }
    }
}

impl From<View> for About {
    fn from(view: View) -> Self {
        Self { name: view.name, doc: view.doc, columns: view.columns }
    }
}

/// A table in memory.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeTable {
    about: About,
    batch: RecordBatch,
}

impl NativeTable {
    /// The rows of a table, with its descriptions.
    pub(crate) fn new(about: impl Into<About>, batch: RecordBatch) -> Result<Self, ArrowError> {
        let about = about.into();
        let schema = described(&about, &batch.schema());
        Ok(Self { about, batch: batch.with_schema(schema)? })
    }
}

/// A schema whose columns have the descriptions and units of the table.
pub(crate) fn described(about: &About, schema: &Schema) -> SchemaRef {
    let field = |field: &arrow_schema::FieldRef| {
        let Some(column) = about.columns.iter().find(|column| column.name == field.name()) else {
            return Arc::clone(field);
        };
        let unit = column.unit().map(|unit| ("unit".to_string(), unit.to_string()));
        let texts = [("description".to_string(), column.doc.to_string())].into_iter().chain(unit);
        Arc::new(field.as_ref().clone().with_metadata(texts.collect::<HashMap<_, _>>()))
    };
    let meaning = HashMap::from([("description".to_string(), about.doc.clone())]);
    Arc::new(Schema::new_with_metadata(schema.fields().iter().map(field).collect::<Vec<_>>(), meaning))
}

/// The columns of a table in words.
pub(crate) fn columns(about: &About) -> Vec<Described> {
    about.columns.iter().map(|c| (c.name, c.type_name, c.unit(), c.doc)).collect()
}

/// The capsule of a stream of batches.
pub(crate) fn stream<'py>(
    py: Python<'py>,
    batches: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(batches), c"arrow_array_stream")
}

/// The capsule of a schema.
pub(crate) fn schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let exported = FFI_ArrowSchema::try_from(schema).map_err(|error| arrow(&error))?;
    PyCapsule::new_with_value(py, exported, c"arrow_schema")
}

/// An error of Arrow, which is a defect.
pub(crate) fn arrow(error: &ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

#[pymethods]
impl NativeTable {
    #[getter]
    fn name(&self) -> &str {
        &self.about.name
    }

    #[getter]
    fn doc(&self) -> &str {
        &self.about.doc
    }

    #[getter]
    fn columns(&self) -> Vec<Described> {
        columns(&self.about)
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer ignore it; a consumer casts then.
        drop(requested_schema);
        let batches = [Ok(self.batch.clone())];
        stream(py, Box::new(RecordBatchIterator::new(batches, self.batch.schema())))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema(py, &self.batch.schema())
    }
}
