//! Which rows of a table are asked for, whatever format holds it.

use std::collections::{BTreeMap, BTreeSet};

/// The bits of a `globalTid` that name the thread.
pub(super) const THREAD_BITS: i64 = 0xff_ffff;

/// The columns of each table.
pub(super) type Tables = BTreeMap<String, BTreeSet<String>>;

/// Rows of one process that follow each other in SQLite: the first and the last rowid.
pub(super) type Run = (i64, i64);

/// Which rows of a table are wanted.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    All,
    /// So many rows, any of them.
    AtMost(u64),
    /// Those with this text in a column.
    With(&'a str, &'a str),
    /// Those whose text in a column begins with one of these.
    Beginning(&'a str, &'a [&'a str]),
    /// Those with a value in a column.
    Having(&'a str),
    /// Those whose number in a column is of a process, perhaps with a thread.
    OfProcess(&'a str, i64),
    /// The same, in these runs of rows of SQLite.
    InRuns(&'a str, i64, &'a [Run]),
}

impl<'a> Wanted<'a> {
    /// The column that decides.
    pub(super) fn column(self) -> Option<&'a str> {
        match self {
            Wanted::All | Wanted::AtMost(_) => None,
            Wanted::With(column, _)
            | Wanted::Beginning(column, _)
            | Wanted::Having(column)
            | Wanted::OfProcess(column, _)
            | Wanted::InRuns(column, ..) => Some(column),
        }
    }
}
