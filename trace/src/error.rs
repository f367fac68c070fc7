//! Errors of reading and writing a run.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::keys::MAX_MANIFEST_BYTES;
use crate::url::is_url;
use crate::word::MAX_TEXT_BYTES;

/// The reason why a call on `path` failed, and what to do where the system's words do not say it.
pub fn io_reason(path: &Path, source: &std::io::Error) -> String {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    if is_url(path) {
        return source.to_string();
    }
    let code = source.raw_os_error().map_or(String::new(), |code| format!(" (os error {code})"));
    match source.kind() {
        ErrorKind::NotFound => match path.ancestors().skip(1).take_while(is_missing).last() {
            Some(missing) => format!("directory {} does not exist{code}", missing.display()),
            None => source.to_string(),
        },
        ErrorKind::IsADirectory => format!("this is a directory; name a file{code}"),
        ErrorKind::AlreadyExists if path.is_file() => format!("a file of this name exists{code}"),
        ErrorKind::NotADirectory => match path.ancestors().find(|part| part.is_file()) {
            Some(file) => format!("{} is a file, not a directory{code}", file.display()),
            None => source.to_string(),
        },
        ErrorKind::StorageFull => format!("{source}; free some, or name another place"),
        ErrorKind::ReadOnlyFilesystem => format!("{source}; name another place"),
        _ => source.to_string(),
    }
}

/// The system's reason inside of an error of the Parquet library, or that error.
fn parquet_reason(path: &Path, source: &parquet::errors::ParquetError) -> String {
    let inner = match source {
        parquet::errors::ParquetError::External(inner) => inner.downcast_ref::<std::io::Error>(),
        _ => None,
    };
    inner.map_or_else(|| source.to_string(), |inner| io_reason(path, inner))
}

/// An error of this crate. Messages name the file and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system returned an error.
    #[error("{}: {}", path.display(), io_reason(path, source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The Parquet library returned an error.
    #[error("{}: {}", path.display(), parquet_reason(path, source))]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: parquet::errors::ParquetError,
    },
    /// The Arrow library returned an error.
    #[error("arrow: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// A JSON document has the wrong shape.
    #[error("{}: not valid, so the file is damaged or of another program ({source}); copy it from the original run", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
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
        /// The type found.
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
    /// Texts of a shard were shortened. All rows were read.
    #[error("{}: {texts} texts are longer than {} bytes; shortened", path.display(), MAX_TEXT_BYTES)]
    LongTexts {
        /// The file.
        path: PathBuf,
        /// Number of texts, counted in each row group.
        texts: usize,
    },
    /// A manifest is too long.
    #[error("{}: longer than {} bytes, the most that a manifest may have", path.display(), MAX_MANIFEST_BYTES)]
    LongManifest {
        /// The file.
        path: PathBuf,
    },
    /// The file has a newer schema than this program knows.
    #[error("{}: schema version {found} is newer than {known}, the newest that this program reads; update rankscope", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// A key of the file's metadata is missing or malformed.
    #[error("{}: metadata key {key} {problem}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The problem with the key.
        problem: String,
    },
    /// The directory is not a run.
    #[error("{}: not a run ({why})", path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The place for an output is taken by files that this program must not replace.
    #[error("{}: not written, because {why}; choose another place", path.display())]
    Occupied {
        /// The place.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

impl Error {
    /// The file or directory that the error is about, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Parquet { path, .. }
            | Self::Json { path, .. }
            | Self::LongTexts { path, .. }
            | Self::LongManifest { path }
            | Self::NewerSchema { path, .. }
            | Self::Metadata { path, .. }
            | Self::NotARun { path, .. }
            | Self::Occupied { path, .. } => Some(path),
            Self::Arrow(_)
            | Self::MissingColumn { .. }
            | Self::ColumnType { .. }
            | Self::Unsorted { .. }
            | Self::WrongRank { .. }
            | Self::NegativeDuration { .. } => None,
        }
    }
}
