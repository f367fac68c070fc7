//! An SQLite file, opened read-only: tables by their names, columns by theirs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use trace::place;

use crate::Error;

/// The longest text or array of bytes that is read. A query ends at a longer one, and the rest of the table is a loss.
const MAX_VALUE_BYTES: i32 = 16 << 20;
/// Columns of a table, and the length of a query.
const MAX_COLUMNS: i32 = 2_000;
const MAX_QUERY_BYTES: i32 = 64 << 10;
/// Bytes of the smallest row in a file.
const MIN_ROW_BYTES: u64 = 4;
/// Steps of SQLite's machine for a row, and those for any query.
const STEPS_PER_ROW: u64 = 400;
const STEPS_AT_LEAST: u64 = 1 << 20;
/// Steps between two looks at the limit.
const STEPS_AT_ONCE: i32 = 1_000;

/// The bits of a `globalTid` that name the thread.
pub(super) const THREAD_BITS: i64 = 0xff_ffff;

/// A database.
pub(super) struct Database {
    path: PathBuf,
    connection: Connection,
    /// The columns of each table. Views and virtual tables are not read.
    tables: BTreeMap<String, BTreeSet<String>>,
    /// Views, which other programs may have made of anything.
    pub(super) views: Vec<String>,
    /// Rows that the file has room for. Pages that lead to each other in a circle hold more.
    max_rows: u64,
    /// Steps that the query in progress may still make.
    steps: Arc<AtomicU64>,
    /// Texts with bytes that are no UTF-8.
    pub(super) replaced: Cell<i64>,
}

impl Database {
    /// Opens a file. No program may write to it meanwhile.
    ///
    /// # Errors
    /// [`Error::NoInput`] with SQLite's reason.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        if place::is_url(path) {
            return Err(unread(path, "SQLite reads files of this machine only; copy it here"));
        }
        let bytes = match place::kind(path) {
            Ok(place::Kind::File { bytes }) => bytes,
            Ok(_) => return Err(unread(path, "it is no file")),
            Err(source) => return Err(Error::Io { path: path.into(), source }),
        };
        let max_rows = bytes / MIN_ROW_BYTES;
        let steps = Arc::new(AtomicU64::new(0));
        let wrong = |error: rusqlite::Error| unread(path, &error.to_string());
        let connection = connect(path, steps.clone()).map_err(wrong)?;
        let mut database = Self {
            path: path.into(),
            connection,
            tables: BTreeMap::new(),
            views: Vec::new(),
            max_rows,
            steps,
            replaced: Cell::new(0),
        };
        database.list_tables().map_err(wrong)?;
        Ok(database)
    }

    fn list_tables(&mut self) -> rusqlite::Result<()> {
        // A virtual table has no page of its own.
        self.begin_query();
        let names = texts(&self.connection, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")?;
        self.views = texts(&self.connection, "SELECT name FROM sqlite_master WHERE type = 'view'")?;
        for name in names.into_iter().filter(|name| is_word(name)) {
            self.begin_query();
            let columns = texts(&self.connection, &format!("SELECT name FROM pragma_table_info('{name}')"))?;
            self.tables.insert(name, columns.into_iter().filter(|column| is_word(column)).collect());
        }
        Ok(())
    }

    fn begin_query(&self) {
        let steps = self.max_rows.saturating_mul(STEPS_PER_ROW).saturating_add(STEPS_AT_LEAST);
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// The names of the tables.
    pub(super) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Whether a table exists.
    pub(super) fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Whether a table has a column.
    pub(super) fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// Reads columns of a table; those that it lacks are null in all rows. `condition` follows `WHERE` and uses the columns
    /// `needed`. A table that does not exist or lacks one of these has no rows. Returns the reason why the rest of the rows cannot be
    /// read, if it cannot.
    #[must_use]
    pub(super) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        needed: &[&str],
        condition: &str,
        mut visit: impl FnMut(Cells<'_>),
    ) -> Option<String> {
        let known = self.tables.get(table).filter(|known| needed.iter().all(|column| known.contains(*column)))?;
        let column = |name: &&str| if known.contains(*name) { format!("\"{name}\"") } else { "NULL".into() };
        let listed: Vec<String> = columns.iter().map(column).collect();
        let listed = if listed.is_empty() { "1".into() } else { listed.join(", ") };
        let query = format!("SELECT {listed} FROM \"{table}\" WHERE {condition}");
        self.begin_query();
        let mut read = || -> rusqlite::Result<Option<String>> {
            let mut statement = self.connection.prepare(&query)?;
            let mut rows = statement.query([])?;
            let mut count = 0;
            while let Some(row) = rows.next()? {
                count += 1;
                if count > self.max_rows {
                    return Ok(Some("it has more rows than the file has room for".into()));
                }
                visit(Cells { row, replaced: &self.replaced });
            }
            Ok(None)
        };
        read().unwrap_or_else(|error| Some(error.to_string()))
    }

    /// The first integer of a column, and the reason why it cannot be read, if it cannot.
    pub(super) fn first_integer(&self, table: &str, column: &str) -> (Option<i64>, Option<String>) {
        let mut first = None;
        let cut = self.rows(table, &[column], &[column], "1 LIMIT 1", |cells| first = cells.integer(0));
        (first, cut)
    }

    /// The number of rows of a table: `Ok(None)` if it has more than `limit`.
    ///
    /// # Errors
    /// The reason of SQLite.
    pub(super) fn count(&self, table: &str, limit: u64) -> Result<Option<i64>, String> {
        let mut rows = 0;
        let condition = format!("1 LIMIT {}", limit.saturating_add(1));
        match self.rows(table, &[], &[], &condition, |_| rows += 1) {
            Some(why) => Err(why),
            None => Ok(i64::try_from(rows).ok().filter(|_| rows <= limit)),
        }
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// One row.
pub(super) struct Cells<'a> {
    row: &'a Row<'a>,
    replaced: &'a Cell<i64>,
}

impl Cells<'_> {
    /// An integer; `None` for null and other types.
    pub(super) fn integer(&self, column: usize) -> Option<i64> {
        match self.row.get_ref(column) {
            Ok(ValueRef::Integer(value)) => Some(value),
            _ => None,
        }
    }

    /// A text; `None` for null and other types. Bytes that are no UTF-8 are replaced, and the text is counted.
    pub(super) fn text(&self, column: usize) -> Option<std::borrow::Cow<'_, str>> {
        let Ok(ValueRef::Text(bytes)) = self.row.get_ref(column) else { return None };
        let text = String::from_utf8_lossy(bytes);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            self.replaced.set(self.replaced.get().saturating_add(1));
        }
        Some(text)
    }

    /// Whether there is no value.
    pub(super) fn is_null(&self, column: usize) -> bool {
        matches!(self.row.get_ref(column), Ok(ValueRef::Null))
    }

    /// Bytes: as they are, or as hexadecimal digits.
    pub(super) fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        match self.row.get_ref(column) {
            Ok(ValueRef::Blob(bytes)) => Some(bytes.to_vec()),
            Ok(ValueRef::Text(text)) => from_hex(text.strip_prefix(b"0x").unwrap_or(text)),
            _ => None,
        }
    }
}

fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// The error of a file that is no readable export.
pub(super) fn unread(path: &Path, why: &str) -> Error {
    Error::NoInput { path: path.into(), why: format!("it cannot be read as an export of Nsight Systems: {why}") }
}

/// Opens a connection that trusts nothing in the file.
fn connect(path: &Path, steps: Arc<AtomicU64>) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(path), flags)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    connection.set_limit(Limit::SQLITE_LIMIT_COLUMN, MAX_COLUMNS)?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_QUERY_BYTES)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    let is_over = move || {
        let taken = u64::from(STEPS_AT_ONCE.unsigned_abs());
        steps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(taken)).is_err()
    };
    connection.progress_handler(STEPS_AT_ONCE, Some(is_over))?;
    Ok(connection)
}

/// The texts in the first column of a query.
fn texts(connection: &Connection, query: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(query)?;
    let texts = statement.query_map([], |row| row.get(0))?;
    texts.collect()
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A path as a URI that lets SQLite write nothing, not even a journal.
fn uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri + "?mode=ro&immutable=1"
}
