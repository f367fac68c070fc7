//! A directory of Parquet or Arrow files, one for each table (`nsys export --type parquetdir` or `arrowdir`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use trace::place::{self, Entry};
use trace::{columns_of_file, read_columns};

use crate::columnar::Column;
use crate::nsys::wanted::{THREAD_BITS, Tables, Wanted};

/// How the names of such files end.
const ENDINGS: [&str; 3] = [".parquet", ".arrow", ".arrows"];
/// The table of names, which every export with rows has.
const STRINGS: &str = "StringIds";
/// Files of a directory.
const MAX_TABLES: usize = 1 << 10;

/// The table of a file with this name; `None` if it has none.
fn table_of(name: &str) -> Option<&str> {
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending))
}

/// Whether a file marks its directory as an export in Parquet or Arrow.
pub(crate) fn marks_export(file: &Path) -> bool {
    file.file_name().and_then(|name| name.to_str()).and_then(table_of) == Some(STRINGS)
}

/// The tables of a directory.
pub(super) struct TableFiles {
    files: BTreeMap<String, PathBuf>,
    /// Tables whose columns cannot be read, with the reasons.
    pub(super) damaged: Vec<(String, String)>,
}

impl TableFiles {
    /// Lists the tables of a directory with their columns.
    ///
    /// # Errors
    /// The error of the file system.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Tables)> {
        let (mut found, mut tables) = (Self { files: BTreeMap::new(), damaged: Vec::new() }, Tables::new());
        for Entry { path, is_directory } in place::entries(directory)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(table) = table_of(&name).filter(|_| !is_directory) else { continue };
            if tables.len() == MAX_TABLES {
                found.damaged.push((table.into(), format!("only the first {MAX_TABLES} tables are read")));
                break;
            }
            match columns_of_file(&path) {
                Ok(columns) => {
                    tables.insert(table.into(), columns.into_iter().collect());
                    found.files.insert(table.into(), path);
                }
                Err(error) => found.damaged.push((table.into(), error.to_string())),
            }
        }
        Ok((found, tables))
    }

    /// Reads columns of a table; those that it lacks are null. Returns the reason why the rest of the rows cannot be read, if it
    /// cannot.
    pub(super) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        wanted: Wanted<'_>,
        mut visit: impl FnMut(&[Column], usize),
    ) -> Option<String> {
        let path = self.files.get(table)?;
        let all: Vec<&str> = columns.iter().copied().chain(wanted.column()).collect();
        let mut left = if let Wanted::AtMost(rows) = wanted { rows } else { u64::MAX };
        let read = read_columns(path, &all, |batch| {
            let of_batch: Vec<Column> = all.iter().map(|name| Column::of(batch, name)).collect();
            for row in 0..batch.num_rows() {
                if left == 0 {
                    return false;
                }
                if is_wanted(wanted, of_batch.last(), row) {
                    left -= 1;
                    visit(&of_batch[..columns.len()], row);
                }
            }
            true
        });
        read.err().map(|error| error.to_string())
    }
}

/// Whether a row is wanted by the column that decides.
fn is_wanted(wanted: Wanted<'_>, column: Option<&Column>, row: usize) -> bool {
    let text = || column.and_then(|column| column.bytes(row));
    match wanted {
        Wanted::All | Wanted::AtMost(_) => true,
        Wanted::With(_, value) => text() == Some(value.as_bytes()),
        Wanted::Beginning(_, prefixes) => {
            text().is_some_and(|text| prefixes.iter().any(|prefix| text.starts_with(prefix.as_bytes())))
        }
        Wanted::Having(_) => column.is_some_and(|column| !column.is_null(row)),
        Wanted::OfProcess(_, pid) | Wanted::InRuns(_, pid, _) => {
            column.and_then(|column| column.integer(row)).is_some_and(|id| id & !THREAD_BITS == pid)
        }
    }
}
