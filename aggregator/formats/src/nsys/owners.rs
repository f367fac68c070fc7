//! Where the rows of each process lie in the tables of an SQLite export. With it, each of a thousand processes reads its own rows;
//! without it, each would look at those of all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use trace::lock;

use crate::nsys::database::Database;
use crate::nsys::wanted::{Run, THREAD_BITS};

/// Files of fewer processes are read wholly for each of them: most of a table is wanted then, and nothing has to be kept.
const MIN_PROCESSES: usize = 9;
/// The runs of a table that are kept, 16 bytes each. A table with more is read wholly for each process.
const MAX_RUNS: usize = 1 << 22;

/// The runs of each process.
type OfTable = FxHashMap<i64, Vec<Run>>;

/// The rows of the processes of one file. Tables are searched when they are first read.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// `None` for a table whose runs are not known.
    of_table: Mutex<BTreeMap<String, Option<Arc<OfTable>>>>,
}

impl Owners {
    /// The runs of the processes `of_file` in a table, by the column that names them. `None` if each process has to read the whole
    /// table: there are few processes, or too many runs, or the rows have no rowid, or not all can be read.
    pub(super) fn runs(&self, database: &Database, of_file: &[i64], table: &str, own: &str) -> Option<Arc<OfTable>> {
        if of_file.len() < MIN_PROCESSES {
            return None;
        }
        let mut of_table = lock(&self.of_table);
        if let Some(known) = of_table.get(table) {
            return known.clone();
        }
        let found = search(database, of_file, table, own).map(Arc::new);
        of_table.insert(table.into(), found.clone());
        found
    }
}

fn search(database: &Database, of_file: &[i64], table: &str, own: &str) -> Option<OfTable> {
    let (mut found, mut runs) = (OfTable::default(), 0);
    let mut last = i64::MIN;
    // Rows of a sound table are in the order of their rowids. Those of a damaged one are found by reading it wholly only.
    let mut in_order = true;
    let cut = database.rowids(table, own, |rowid, id| {
        in_order &= rowid > last;
        last = rowid;
        let pid = id & !THREAD_BITS;
        if runs >= MAX_RUNS || of_file.binary_search(&pid).is_err() {
            return;
        }
        let of_process = found.entry(pid).or_default();
        match of_process.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(rowid) => *end = rowid,
            _ => {
                of_process.push((rowid, rowid));
                runs += 1;
            }
        }
    });
    (cut.is_none() && in_order && runs < MAX_RUNS).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    const PROCESSES: [i64; 9] = [1 << 24, 2 << 24, 3 << 24, 4 << 24, 5 << 24, 6 << 24, 7 << 24, 8 << 24, 9 << 24];

    fn database(sql: &str) -> (tempfile::TempDir, Database) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sqlite");
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let database = Database::open(&path).unwrap();
        (directory, database)
    }

    /// Rows of the first and the second process in turns, a hole and a row of no process.
    #[test]
    fn rows_of_a_process_that_follow_each_other_are_one_run() {
        let [first, second, ..] = PROCESSES;
        let (_directory, database) = database(&format!(
            "CREATE TABLE T (own INTEGER);
            INSERT INTO T (rowid, own) VALUES (1, {first}), (2, {first} + 7), (3, {second}), (4, {first}), (6, {first}), (7, 5)"
        ));
        let owners = Owners::default();
        let of_table = owners.runs(&database, &PROCESSES, "T", "own").unwrap();
        assert_eq!(
            (of_table.len(), &of_table[&first], &of_table[&second]),
            (2, &vec![(1, 2), (4, 4), (6, 6)], &vec![(3, 3)])
        );
        assert_eq!(owners.runs(&database, &PROCESSES[..8], "T", "own"), None, "few processes read whole tables");
    }

    #[test]
    fn tables_without_their_own_rowids_are_read_wholly() {
        let (_directory, database) = database(
            "CREATE TABLE A (id INTEGER PRIMARY KEY, own INTEGER) WITHOUT ROWID; INSERT INTO A VALUES (1, 16777216);
            CREATE TABLE B (rowid INTEGER, own INTEGER); INSERT INTO B VALUES (1, 16777216)",
        );
        let owners = Owners::default();
        assert_eq!(["A", "B"].map(|table| owners.runs(&database, &PROCESSES, table, "own")), [None, None]);
    }
}
