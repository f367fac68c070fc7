//! What can go wrong with a run on disk.

use std::path::PathBuf;

/// An error of this crate. Messages name the file and the fact.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Parquet refused.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Why.
        source: parquet::errors::ParquetError,
    },
    /// Arrow refused.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// A JSON document is not what it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A table lacks a column.
    #[error("table {table} has no column {column}")]
    MissingColumn {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// A column has a type that this version does not read.
    #[error("column {column} of table {table} is {found}")]
    ColumnType {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// What it is.
        found: String,
    },
    /// Rows are not sorted by the column they must be sorted by.
    #[error("table {table} is not sorted by {column} at row {row}")]
    Unsorted {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The first row that is out of order.
        row: usize,
    },
    /// A row belongs to another rank than its shard.
    #[error("table {table}, row {row}: rank {found} in a shard of rank {expected}")]
    WrongRank {
        /// The table.
        table: String,
        /// The row.
        row: usize,
        /// Rank of the row.
        found: i32,
        /// Rank of the shard.
        expected: i32,
    },
    /// A duration is negative.
    #[error("table {table}, row {row}: dur_ns is {dur_ns}")]
    NegativeDuration {
        /// The table.
        table: String,
        /// The row.
        row: usize,
        /// The duration.
        dur_ns: i64,
    },
    /// The file is of a newer schema than this program knows.
    #[error("{}: schema version {found} is newer than {known}, the newest that this program reads; update rankscope", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The file's metadata lacks or garbles a key.
    #[error("{}: metadata key {key} {problem}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The directory is not a run.
    #[error("{}: not a run ({why})", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
}
