//! The tables of an export, by their names and those of their columns, whatever format holds them.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Read;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use trace::{OmissionRow, files, place};

use crate::columnar::Column;
use crate::nsys::sqlite::Sqlite;
use crate::nsys::table_files::TableFiles;
use crate::nsys::wanted::{Tables, Wanted};
use model::Error;

/// The ends of the names of files with changes, and how such files begin (SQLite, Database File Format, 3 and 4.1). The begin of a journal
/// is overwritten when its changes are saved.
const UNSAVED: [(&str, &[[u8; 4]]); 2] =
    [("-wal", &[[0x37, 0x7f, 0x06, 0x82], [0x37, 0x7f, 0x06, 0x83]]), ("-journal", &[[0xd9, 0xd5, 0x05, 0xf9]])];

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// An export.
pub(super) struct Database {
    path: PathBuf,
    store: Store,
    tables: Tables,
    /// Texts with bytes that are no UTF-8.
    pub(super) replaced: Cell<i64>,
}

enum Store {
    Sqlite(Sqlite),
    Files(TableFiles),
}

impl Database {
    /// Opens a file of SQLite, or a directory of Parquet or Arrow files. No program may write to it meanwhile.
    ///
    /// # Errors
    /// [`Error::NoInput`] with the reason; [`Error::Io`].
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        if place::is_url(path) {
            return Err(unread(path, "it is read as a file of this machine only; copy it here"));
        }
        let (store, tables) = match place::kind(path).map_err(|source| Error::Io { path: path.into(), source })? {
            place::Kind::File { bytes } => {
                let (sqlite, tables) = Sqlite::open(path, bytes).map_err(|error| unread(path, &error.to_string()))?;
                (Store::Sqlite(sqlite), tables)
            }
            place::Kind::Directory => {
                let (files, tables) =
                    TableFiles::open(path).map_err(|source| Error::Io { path: path.into(), source })?;
                (Store::Files(files), tables)
            }
            place::Kind::Other => return Err(unread(path, "it is no file")),
        };
        Ok(Self { path: path.into(), store, tables, replaced: Cell::new(0) })
    }

    /// The names of the tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Files beside one of SQLite that hold changes which are not in it yet. They are not read: that needs a lock, and a program that has
    /// them open.
    pub(super) fn unsaved(&self) -> Vec<OmissionRow> {
        let Store::Sqlite(_) = &self.store else { return Vec::new() };
        let holds = |(end, magics): &&(&str, &[[u8; 4]])| {
            let mut head = [0; 4];
            let beside = files::open_regular(&beside(&self.path, end));
            beside.and_then(|mut file| file.read_exact(&mut head)).is_ok() && magics.contains(&head)
        };
        let omission = |(end, _): &(&str, &[[u8; 4]])| {
            let name = beside(&self.path, end);
            let why = format!(
                "{} may hold rows that are not in the file yet; end the program that writes it, open the file with sqlite3 once, and try \
                 again",
                name.file_name().unwrap_or_default().display()
            );
            OmissionRow::lost("rows", why)
        };
        UNSAVED.iter().filter(holds).map(omission).collect()
    }

    /// Views, which other programs may have made of anything.
    pub(super) fn views(&self) -> &[String] {
        match &self.store {
            Store::Sqlite(sqlite) => &sqlite.views,
            Store::Files(_) => &[],
        }
    }

    /// Tables whose columns cannot be read, with the reasons.
    pub(super) fn damaged(&self) -> &[(String, String)] {
        match &self.store {
            Store::Sqlite(_) => &[],
            Store::Files(files) => &files.damaged,
        }
    }

    /// Whether a table exists.
    pub(super) fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Whether a table has a column.
    pub(super) fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// Reads columns of a table; those that it lacks are null in all rows. A table that does not exist, or lacks one of the columns
    /// `needed` or the one that decides which rows are wanted, has no rows. Returns the reason why the rest of the rows cannot be read,
    /// if it cannot.
    #[must_use]
    pub(super) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        needed: &[&str],
        wanted: Wanted<'_>,
        mut visit: impl FnMut(Cells<'_>),
    ) -> Option<String> {
        let mut needed = needed.iter().copied().chain(wanted.column());
        let known = self.tables.get(table).filter(|known| needed.all(|column| known.contains(column)))?;
        let replaced = &self.replaced;
        match &self.store {
            Store::Sqlite(sqlite) => {
                sqlite.rows(table, columns, known, wanted, |row| visit(Cells { row: RowOf::Sqlite(row), replaced }))
            }
            Store::Files(files) => files.rows(table, columns, wanted, |columns, row| {
                visit(Cells { row: RowOf::Columns(columns, row), replaced });
            }),
        }
    }

    /// Visits the rowid and the integer of a column in each row of a table. Returns the reason why that is not possible, if it is not:
    /// rows of Parquet and Arrow have no rowid.
    pub(super) fn rowids(&self, table: &str, column: &str, visit: impl FnMut(i64, i64)) -> Option<String> {
        match (&self.store, self.tables.get(table)) {
            (Store::Sqlite(sqlite), Some(known)) => sqlite.rowids(table, column, known, visit),
            _ => Some("its rows have no rowid".into()),
        }
    }

    /// The first integer of a column, and the reason why it cannot be read, if it cannot.
    pub(super) fn first_integer(&self, table: &str, column: &str) -> (Option<i64>, Option<String>) {
        let mut first = None;
        let cut = self.rows(table, &[column], &[column], Wanted::AtMost(1), |cells| first = cells.integer(0));
        (first, cut)
    }

    /// The number of rows of a table: `Ok(None)` if it has more than `limit`.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(super) fn count(&self, table: &str, limit: u64) -> Result<Option<i64>, String> {
        let mut rows = 0;
        match self.rows(table, &[], &[], Wanted::AtMost(limit.saturating_add(1)), |_| rows += 1) {
            Some(why) => Err(why),
            None => Ok(i64::try_from(rows).ok().filter(|_| rows <= limit)),
        }
    }

    /// The file or directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// One row.
pub(super) struct Cells<'a> {
    row: RowOf<'a>,
    replaced: &'a Cell<i64>,
}

enum RowOf<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Columns(&'a [Column], usize),
}

impl Cells<'_> {
    fn sqlite<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> ValueRef<'a> {
        row.get_ref(column).unwrap_or(ValueRef::Null)
    }

    /// An integer; `None` for null and other types.
    pub(super) fn integer(&self, column: usize) -> Option<i64> {
        match self.row {
            RowOf::Sqlite(row) => match Self::sqlite(row, column) {
                ValueRef::Integer(value) => Some(value),
                _ => None,
            },
            RowOf::Columns(columns, row) => columns.get(column)?.integer(row),
        }
    }

    /// A text; `None` for null and other types. Bytes that are no UTF-8 are replaced, and the text is counted.
    pub(super) fn text(&self, column: usize) -> Option<Cow<'_, str>> {
        let bytes = match self.row {
            RowOf::Sqlite(row) => match Self::sqlite(row, column) {
                ValueRef::Text(bytes) => bytes,
                _ => return None,
            },
            RowOf::Columns(columns, row) => columns.get(column)?.bytes(row)?,
        };
        let text = String::from_utf8_lossy(bytes);
        if matches!(text, Cow::Owned(_)) {
            self.replaced.set(self.replaced.get().saturating_add(1));
        }
        Some(text)
    }

    /// Whether there is no value.
    pub(super) fn is_null(&self, column: usize) -> bool {
        match self.row {
            RowOf::Sqlite(row) => matches!(row.get_ref(column), Ok(ValueRef::Null)),
            RowOf::Columns(columns, row) => columns.get(column).is_none_or(|column| column.is_null(row)),
        }
    }

    /// Bytes: as they are, or as hexadecimal digits.
    pub(super) fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        let (bytes, is_text) = match self.row {
            RowOf::Sqlite(row) => match Self::sqlite(row, column) {
                ValueRef::Blob(bytes) => (bytes, false),
                ValueRef::Text(text) => (text, true),
                _ => return None,
            },
            RowOf::Columns(columns, row) => {
                let column = columns.get(column)?;
                (column.bytes(row)?, column.is_text())
            }
        };
        if is_text { from_hex(bytes.strip_prefix(b"0x").unwrap_or(bytes)) } else { Some(bytes.to_vec()) }
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// The error of a path that is no readable export.
pub(super) fn unread(path: &Path, why: &str) -> Error {
    Error::NoInput { path: path.into(), why: format!("it cannot be read as an export of Nsight Systems: {why}") }
}
