//! The tables: one file for those of the ranks, four for those of the aggregator, one for those of parts.
//!
//! A new table of the aggregator needs its declaration and the code that fills it. Parquet, JSON, views, documentation, the
//! report page, Python and tests iterate over the declarations: over values by [`Tables::all`], over types by
//! [`visit_analysis_tables`].

use std::ops::Range;

use arrow_array::RecordBatch;
use serde::Serialize;

use crate::{Error, Row, Table, batch_from_rows, rows_from_batch};

#[macro_use]
mod analysis;
#[macro_use]
mod communication;
#[macro_use]
mod device;
#[macro_use]
mod part;
#[macro_use]
mod rank;
#[macro_use]
mod stragglers;

pub use analysis::*;
pub use communication::*;
pub use device::*;
pub use part::*;
pub use rank::*;
pub use stragglers::*;

/// The rows of one table, for code that treats all tables alike.
pub trait TableRows {
    /// The table.
    fn table(&self) -> Table;
    /// Number of rows.
    fn row_count(&self) -> usize;
    /// Some rows as one batch.
    ///
    /// # Errors
    /// As [`batch_from_rows`].
    fn slice(&self, rows: Range<usize>) -> Result<RecordBatch, Error>;
    /// The rows as one batch.
    ///
    /// # Errors
    /// As [`batch_from_rows`].
    fn batch(&self) -> Result<RecordBatch, Error> {
        self.slice(0..self.row_count())
    }
    /// Adds the rows of a batch.
    ///
    /// # Errors
    /// As [`rows_from_batch`].
    fn add_batch(&mut self, batch: &RecordBatch) -> Result<(), Error>;
    /// Makes room for so many more rows, and for no others, if there is the memory.
    fn reserve_exact(&mut self, rows: usize);
    /// Adds a row of defaults.
    fn push_default(&mut self);
    /// Drops all rows, and their memory.
    fn clear(&mut self);
}

impl<R: Row> TableRows for Vec<R> {
    fn table(&self) -> Table {
        R::table()
    }
    fn row_count(&self) -> usize {
        self.len()
    }
    fn slice(&self, rows: Range<usize>) -> Result<RecordBatch, Error> {
        batch_from_rows(&self[rows])
    }
    fn add_batch(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.extend(rows_from_batch::<R>(batch)?);
        Ok(())
    }
    fn reserve_exact(&mut self, rows: usize) {
        // Without it, the list grows as rows come.
        let _ = self.try_reserve_exact(rows);
    }
    fn push_default(&mut self) {
        self.push(R::default());
    }
    fn clear(&mut self) {
        *self = Vec::new();
    }
}

/// Code that treats all row types alike.
pub trait RowVisitor {
    /// Called with the row type of each table.
    fn visit<R: Row>(&mut self);
}

/// Code that treats the rows of all tables alike, by their types.
pub trait RowsVisitor {
    /// Called with the rows of each table.
    fn visit<R: Row>(&mut self, rows: &[R]);
}

macro_rules! declare_visit {
    ([] $(#[$attribute:meta])+ fn $name:ident; $( $(#[doc = $doc:literal])+ $table:ident: $row:ident, )+) => {
        $(#[$attribute])+
        pub fn $name(visitor: &mut impl RowVisitor) {
            $( visitor.visit::<$row>(); )+
        }
    };
}

rank_list!([declare_visit]
    /// Visits the row type of every table that ranks write.
    fn visit_rank_tables;
);

analysis_list!([result_list device_list communication_list straggler_list declare_visit]
    /// Visits the row type of every table that the aggregator writes.
    fn visit_analysis_tables;
);

part_list!([declare_visit]
    /// Visits the row type of every table that only `map` writes.
    fn visit_part_tables;
);

macro_rules! declare_tables {
    ([] $( $(#[doc = $doc:literal])+ $table:ident: $row:ident, )+) => {
        /// The tables of the aggregator, filled. Times of day are global ns.
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        pub struct Tables {
            $( $(#[doc = $doc])+ pub $table: Vec<$row>, )+
        }

        impl Tables {
            /// Every table, in the order of the fields.
            pub fn all(&self) -> Vec<&dyn TableRows> {
                vec![ $( &self.$table, )+ ]
            }

            /// Every table, in the order of the fields.
            pub fn all_mut(&mut self) -> Vec<&mut dyn TableRows> {
                vec![ $( &mut self.$table, )+ ]
            }

            /// Visits the rows of every table.
            pub fn visit(&self, visitor: &mut impl RowsVisitor) {
                $( visitor.visit(&self.$table); )+
            }

            /// The rows of the ranks to keep, and of each table at most `most` rows of no rank. Returns also the tables that
            /// hold fewer rows than here.
            pub fn excerpt(&self, keep: &dyn Fn(i32) -> bool, most: usize) -> (Self, Vec<Shortened>) {
                let mut shortened = Vec::new();
                let excerpt = Self { $( $table: kept(&self.$table, keep, most, &mut shortened), )+ };
                (excerpt, shortened)
            }

            /// The rows of all, in their order, table by table.
            pub fn join(mut all: Vec<Self>) -> Self {
                let mut joined = Self::default();
                $(
                    joined.$table.reserve_exact(all.iter().map(|one| one.$table.len()).sum());
                    all.iter_mut().for_each(|one| joined.$table.extend(std::mem::take(&mut one.$table)));
                )+
                joined
            }

            /// Adds the rows of `other` after these, table by table.
            pub fn append(&mut self, other: Self) {
                // A list that becomes the whole table is not copied, unless there is room for it.
                $(
                    match self.$table.capacity() == 0 {
                        true => self.$table = other.$table,
                        false => self.$table.extend(other.$table),
                    }
                )+
            }
        }
    };
}

analysis_list!([straggler_list communication_list device_list result_list declare_tables]);

/// A table in an excerpt that does not hold all its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortened {
    /// Name of the table.
    pub table: &'static str,
    /// Number of rows in the excerpt.
    pub rows: usize,
    /// Number of all rows.
    pub of: usize,
}

/// The rows of the ranks to keep, and the first `most` rows of no rank.
fn kept<R: Row>(rows: &[R], keep: &dyn Fn(i32) -> bool, most: usize, shortened: &mut Vec<Shortened>) -> Vec<R> {
    let mut room = most;
    let is_kept = |row: &&R| match row.rank() {
        Some(rank) => keep(rank),
        None => {
            let has_room = room > 0;
            room = room.saturating_sub(1);
            has_room
        }
    };
    let kept: Vec<R> = rows.iter().filter(is_kept).cloned().collect();
    if kept.len() < rows.len() {
        shortened.push(Shortened { table: R::table().name, rows: kept.len(), of: rows.len() });
    }
    kept
}

/// Collects the declarations.
struct Declared(Vec<Table>);

impl RowVisitor for Declared {
    fn visit<R: Row>(&mut self) {
        self.0.push(R::table());
    }
}

/// Every table that ranks write.
pub fn rank_tables() -> Vec<Table> {
    let mut declared = Declared(Vec::new());
    visit_rank_tables(&mut declared);
    declared.0
}

/// Every table that the aggregator writes.
pub fn analysis_tables() -> Vec<Table> {
    let mut declared = Declared(Vec::new());
    visit_analysis_tables(&mut declared);
    declared.0
}

/// Every table that only `map` writes.
pub fn part_tables() -> Vec<Table> {
    let mut declared = Declared(Vec::new());
    visit_part_tables(&mut declared);
    declared.0
}
