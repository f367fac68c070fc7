//! Reads the tables of a run and of its analysis as rows.

use std::fs::File;
use std::path::Path;

use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use trace::{Row, Run, rows_from_batch};

/// Every row of an analysis table.
#[track_caller]
pub(crate) fn analysis<R: Row>(run: &Path) -> Vec<R> {
    let path = run.join(trace::ANALYSIS_DIR).join(format!("{}.parquet", R::table().name));
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // The files carry no Arrow schema of ours, as other writers' do not: the declaration says how to read them.
    let options = ArrowReaderOptions::new().with_schema(R::table().schema());
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).unwrap().build().unwrap();
    reader.flat_map(|batch| rows_from_batch::<R>(&batch.unwrap()).unwrap()).collect()
}

/// Every row of one rank's table, of a run in which nothing is wrong.
#[track_caller]
pub(crate) fn rows<R: Row>(run: &Run, rank: i32) -> Vec<R> {
    let (rows, problems) = run.rows::<R>(rank);
    assert_eq!(problems, vec![], "{} of rank {rank}", R::table().name);
    rows
}

/// A run in which nothing is wrong.
#[track_caller]
pub(crate) fn open(run: &Path) -> Run {
    let run = Run::open(run).unwrap();
    assert_eq!(run.problems, vec![]);
    run
}
