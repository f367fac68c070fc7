//! A run that Python opened: its recorded rows as streams, one shard in memory at a time.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, RecordBatchReader, new_null_array};
use arrow_schema::{ArrowError, DataType, FieldRef, SchemaRef};
use model::Error;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::{Bound, PyAny, PyResult, Python, pyclass, pymethods};
use pyo3::types::PyCapsule;
use trace::{Run, Shard, Table, rank_tables};

use crate::errors::json;
use crate::tables;
use crate::work::run;

/// A run.
#[pyclass(frozen, module = "rankscope._rankscope")]
pub(crate) struct NativeRun {
    run: Arc<Run>,
}

impl NativeRun {
    fn declared(name: &str) -> PyResult<Table> {
        let found = rank_tables().into_iter().find(|table| table.name == name);
        found.ok_or_else(|| PyKeyError::new_err(name.to_string()))
    }

    fn shards_of(&self, table: &Table) -> Vec<Shard> {
        self.run.ranks().into_iter().flat_map(|rank| self.run.shards(rank, table.name)).cloned().collect()
    }
}

#[pymethods]
impl NativeRun {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let run = run(py, None, move |_| Ok::<_, Error>(Run::open(&path)?))?;
        Ok(Self { run: Arc::new(run) })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.run.path.clone()
    }

    #[getter]
    fn ranks(&self) -> Vec<i32> {
        self.run.ranks()
    }

    /// The manifest as JSON.
    fn manifest(&self) -> PyResult<String> {
        serde_json::to_string(&self.run.manifest).map_err(|error| json(&error))
    }

    /// What of the run cannot be read, as JSON.
    fn problems(&self) -> PyResult<String> {
        let rows: Vec<_> =
            self.run.problems.iter().map(|problem| problem.clone().into_omission(&self.run.path)).collect();
        serde_json::to_string(&rows).map_err(|error| json(&error))
    }

    /// The number of rows of a table.
    fn rows(&self, name: &str) -> PyResult<u64> {
        Ok(self.shards_of(&Self::declared(name)?).iter().map(|shard| shard.rows).sum())
    }

    /// The meaning of a table, and its columns in words.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn described(
        &self,
        name: &str,
    ) -> PyResult<(&'static str, Vec<(&'static str, &'static str, Option<&'static str>, &'static str)>)> {
        let table = Self::declared(name)?;
        Ok((table.doc, tables::columns(&table.into())))
    }

    /// The rows of a table as a stream.
    fn stream<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyCapsule>> {
        let table = Self::declared(name)?;
        let schema = tables::described(&table.clone().into(), &table.schema());
        let shards = self.shards_of(&table).into();
        tables::stream(py, Box::new(Shards { table, schema, shards, ready: VecDeque::new() }))
    }

    /// The schema of a table.
    fn schema<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let table = Self::declared(name)?;
        let schema = table.schema();
        Ok(tables::schema(py, &tables::described(&table.into(), &schema))?.into_any())
    }
}

/// The batches of shards, in their order.
struct Shards {
    table: Table,
    schema: SchemaRef,
    shards: VecDeque<Shard>,
    ready: VecDeque<RecordBatch>,
}

impl Shards {
    /// Reads the next shard.
    fn read(&mut self, shard: &Shard) -> Result<(), ArrowError> {
        let (schema, ready) = (&self.schema, &mut self.ready);
        shard
            .read(&self.table, None, |batch| -> Result<(), trace::Error> {
                ready.push_back(conformed(batch, schema)?);
                Ok(())
            })
            .map_err(|error| ArrowError::ExternalError(Box::new(error)))
    }
}

/// A batch with the columns of `schema`: those that an older file lacks are null, and strings have dictionaries, which a file may
/// have or not.
fn conformed(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let column = |field: &FieldRef| -> ArrayRef {
        let Some(column) = batch.column_by_name(field.name()) else {
            return new_null_array(field.data_type(), batch.num_rows());
        };
        match (field.data_type(), column.as_string_opt::<i32>()) {
            (DataType::Dictionary(..), Some(strings)) => {
                Arc::new(strings.iter().collect::<DictionaryArray<Int32Type>>())
            }
            _ => Arc::clone(column),
        }
    };
    RecordBatch::try_new(Arc::clone(schema), schema.fields().iter().map(column).collect())
}

impl Iterator for Shards {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            let shard = self.shards.pop_front()?;
            if let Err(error) = self.read(&shard) {
                return Some(Err(error));
            }
        }
    }
}

impl RecordBatchReader for Shards {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
