//! An SQLite file, opened read-only. Nothing in it is trusted.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, Row, Rows};

use crate::nsys::wanted::{THREAD_BITS, Tables, Wanted};

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

/// A database.
pub(super) struct Sqlite {
    connection: Connection,
    pub(super) views: Vec<String>,
    /// Wanted that the file has room for. Pages that lead to each other in a circle hold more.
    max_rows: u64,
    /// Steps that the query in progress may still make.
    steps: Arc<AtomicU64>,
}

impl Sqlite {
    /// Opens a file of `bytes`, and lists its tables. Views and virtual tables are not read.
    pub(super) fn open(path: &Path, bytes: u64) -> rusqlite::Result<(Self, Tables)> {
        let steps = Arc::new(AtomicU64::new(0));
        let connection = connect(path, steps.clone())?;
        let mut sqlite = Self { connection, views: Vec::new(), max_rows: bytes / MIN_ROW_BYTES, steps };
        // A virtual table has no page of its own.
        sqlite.begin_query();
        let names = texts(&sqlite.connection, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")?;
        sqlite.views = texts(&sqlite.connection, "SELECT name FROM sqlite_master WHERE type = 'view'")?;
        let mut tables = Tables::new();
        for name in names.into_iter().filter(|name| is_word(name)) {
            sqlite.begin_query();
            let columns = texts(&sqlite.connection, &format!("SELECT name FROM pragma_table_info('{name}')"))?;
            tables.insert(name, columns.into_iter().filter(|column| is_word(column)).collect());
        }
        Ok((sqlite, tables))
    }

    fn begin_query(&self) {
        let steps = self.max_rows.saturating_mul(STEPS_PER_ROW).saturating_add(STEPS_AT_LEAST);
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Reads columns of a table that has those that are `known`. Returns the reason why the rest of the rows cannot be read, if it
    /// cannot.
    pub(super) fn rows(
        &self,
        table: &str,
        columns: &[&str],
        known: &BTreeSet<String>,
        wanted: Wanted<'_>,
        mut visit: impl FnMut(&Row<'_>),
    ) -> Option<String> {
        let column = |name: &&str| if known.contains(*name) { format!("\"{name}\"") } else { "NULL".into() };
        let listed: Vec<String> = columns.iter().map(column).collect();
        let listed = if listed.is_empty() { "1".into() } else { listed.join(", ") };
        let query = format!("SELECT {listed} FROM \"{table}\" WHERE {}", condition(wanted));
        self.begin_query();
        let mut count = 0;
        let mut read = |mut rows: Rows<'_>| -> rusqlite::Result<Option<String>> {
            while let Some(row) = rows.next()? {
                count += 1;
                if count > self.max_rows {
                    return Ok(Some("it has more rows than the file has room for".into()));
                }
                visit(row);
            }
            Ok(None)
        };
        let mut read_all = || -> rusqlite::Result<Option<String>> {
            let mut statement = self.connection.prepare(&query)?;
            let Wanted::InRuns(_, _, runs) = wanted else { return read(statement.query([])?) };
            for run in runs {
                if let Some(why) = read(statement.query(*run)?)? {
                    return Ok(Some(why));
                }
            }
            Ok(None)
        };
        read_all().unwrap_or_else(|error| Some(error.to_string()))
    }

    /// Visits the rowid and the integer of a column in each row of a table that has one. Returns the reason why not all can be read, if
    /// they cannot.
    pub(super) fn rowids(
        &self,
        table: &str,
        column: &str,
        known: &BTreeSet<String>,
        mut visit: impl FnMut(i64, i64),
    ) -> Option<String> {
        if known.iter().any(|name| name.eq_ignore_ascii_case("rowid")) {
            return Some("a column has the name of the rowid".into());
        }
        let known = BTreeSet::from(["rowid".into(), column.into()]);
        let mut has_rowids = true;
        let cut = self.rows(table, &["rowid", column], &known, Wanted::Having(column), |row| {
            match (row.get(0), row.get(1)) {
                (Ok(rowid), Ok(id)) => visit(rowid, id),
                (Ok(_), Err(_)) => {}
                // SQLite takes the name of a column that is not there for a text.
                (Err(_), _) => has_rowids = false,
            }
        });
        cut.or_else(|| (!has_rowids).then(|| "its rows have no rowid".into()))
    }
}

/// The condition after `WHERE`. Its names and texts are constants of rankscope; none comes from a file.
fn condition(wanted: Wanted<'_>) -> String {
    match wanted {
        Wanted::All => "1".into(),
        Wanted::AtMost(rows) => format!("1 LIMIT {rows}"),
        Wanted::With(column, text) => format!("\"{column}\" = '{text}'"),
        Wanted::Beginning(column, prefixes) => {
            let globs: Vec<String> = prefixes.iter().map(|prefix| format!("\"{column}\" GLOB '{prefix}*'")).collect();
            globs.join(" OR ")
        }
        Wanted::Having(column) => format!("\"{column}\" IS NOT NULL"),
        Wanted::OfProcess(column, pid) => format!("\"{column}\" & {} = {pid}", !THREAD_BITS),
        Wanted::InRuns(column, pid, _) => {
            format!("rowid BETWEEN ?1 AND ?2 AND \"{column}\" & {} = {pid}", !THREAD_BITS)
        }
    }
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
