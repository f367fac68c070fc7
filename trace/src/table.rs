//! A table: its name, its writer, and its columns with their documentation.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, VocabularyInfo};

/// The writer of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Every rank writes shards: `RUN/<table>/rank-00003-0000.parquet`.
    Rank,
    /// The aggregator writes one file: `RUN/analysis/<table>.parquet`.
    Aggregator,
    /// `map` writes files that are named by their content: `PARTS/<table>/0123456789abcdef.parquet`.
    Map,
}

/// One column, with the sentence that documents it.
#[derive(Clone, Debug)]
pub struct ColumnInfo {
    /// The name; its last part is the unit, if the column has one.
    pub name: &'static str,
    /// The type as DuckDB shows it.
    pub type_name: &'static str,
    /// Whether cells may be null.
    pub nullable: bool,
    /// The sentence that documents the column.
    pub doc: &'static str,
    /// The Arrow type.
    pub data_type: DataType,
    /// The words that the column may hold, where they are known.
    pub vocabulary: Option<VocabularyInfo>,
}

impl ColumnInfo {
    /// The unit, by the end of the name; `None` for names, counts and other numbers without one.
    pub fn unit(&self) -> Option<&'static str> {
        let units = [
            ("bytes_per_s", "bytes/s"),
            ("_flops", "FLOP/s"),
            ("_bytes", "bytes"),
            ("_gbs", "10⁹ bytes/s"),
            ("_ppb", "10⁻⁹"),
            ("_pct", "%"),
            ("_khz", "kHz"),
            ("_ns", "ns"),
        ];
        let by_end = || units.iter().find(|(end, _)| self.name.ends_with(end)).map(|(_, unit)| *unit);
        if self.name == "bytes" { Some("bytes") } else { by_end() }
    }
}

/// A table: the only place that defines the content of its files.
#[derive(Clone, Debug)]
pub struct Table {
    /// Directory or file name.
    pub name: &'static str,
    /// One row of the table, in a sentence, and the order of the rows.
    pub doc: &'static str,
    /// The writer.
    pub writer: Writer,
    /// The columns in order.
    pub columns: Vec<ColumnInfo>,
    /// The column by which each file is sorted, ascending.
    pub sorted_by: Option<&'static str>,
    /// Whether the verdict, a finding or the short summary may read it. `reduce` reads the others only when it writes them: for
    /// thousands of ranks, they take as much memory as the rest.
    pub judged: bool,
}

impl Table {
    /// The Arrow schema, without file metadata.
    pub fn schema(&self) -> SchemaRef {
        let fields: Vec<Field> =
            self.columns.iter().map(|c| Field::new(c.name, c.data_type.clone(), c.nullable)).collect();
        Arc::new(Schema::new(fields))
    }

    /// The Arrow schema as it stands in a file: strings are plain, and each field has its `description` and `unit`.
    pub(crate) fn described_schema(&self) -> Schema {
        let field = |column: &ColumnInfo| {
            let data_type = match &column.data_type {
                DataType::Dictionary(_, values) => values.as_ref().clone(),
                other => other.clone(),
            };
            let unit = column.unit().map(|unit| ("unit".to_string(), unit.to_string()));
            let texts = [("description".to_string(), column.doc.to_string())].into_iter().chain(unit);
            Field::new(column.name, data_type, column.nullable).with_metadata(texts.collect::<BTreeMap<_, _>>())
        };
        let about = [("description".to_string(), self.doc.to_string())];
        Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()).with_metadata(BTreeMap::from(about))
    }

    /// A column's position.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// The columns as text, one per line: the form of the schema snapshot.
    pub fn describe(&self) -> String {
        let mut text = format!("{} — {}\n", self.name, self.doc);
        for c in &self.columns {
            let star = if c.nullable { "" } else { "*" };
            text.push_str(&format!("  {}{star}  {}  {}\n", c.name, c.type_name, c.doc));
        }
        text
    }
}

/// A row type of a table; implemented by the declarations in [`tables`](crate::tables) only.
pub trait Row: Sized + Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + 'static {
    /// Collects rows column by column.
    type Builder: RowBuilder<Row = Self>;
    /// Typed columns of a batch.
    type View;
    /// The table.
    fn table() -> Table;
    /// Opens a batch.
    ///
    /// # Errors
    /// [`Error::MissingColumn`] or [`Error::ColumnType`].
    fn view(batch: &RecordBatch) -> Result<Self::View, Error>;
    /// The row at `index`.
    ///
    /// # Panics
    /// If `index` is beyond the batch.
    fn get(view: &Self::View, index: usize) -> Self;
    /// The column `rank`; `None` if it is null, or the table has no such column.
    fn rank(&self) -> Option<i32>;
    /// Whether the report page lists the row among the tables without a chart.
    fn is_listed(&self) -> bool;
}

/// The rank in a cell.
pub(crate) fn rank_in(cell: &dyn Any) -> Option<i32> {
    cell.downcast_ref::<i32>().copied().or_else(|| *cell.downcast_ref::<Option<i32>>()?)
}

/// Collects the rows of one table.
pub trait RowBuilder: Default {
    /// The row type.
    type Row;
    /// Adds one row.
    fn push(&mut self, row: &Self::Row);
    /// Number of rows held.
    fn len(&self) -> usize;
    /// Whether no row is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Takes the rows as one batch and leaves the builder empty.
    ///
    /// # Errors
    /// [`Error::Arrow`], if Arrow refuses the columns.
    fn finish(&mut self) -> Result<RecordBatch, Error>;
}

/// Every row of a batch.
///
/// # Errors
/// As [`Row::view`].
pub fn rows_from_batch<R: Row>(batch: &RecordBatch) -> Result<Vec<R>, Error> {
    let view = R::view(batch)?;
    Ok((0..batch.num_rows()).map(|i| R::get(&view, i)).collect())
}

/// One batch of these rows.
///
/// # Errors
/// As [`RowBuilder::finish`].
pub fn batch_from_rows<R: Row>(rows: &[R]) -> Result<RecordBatch, Error> {
    let mut builder = R::Builder::default();
    for row in rows {
        builder.push(row);
    }
    builder.finish()
}

/// Opens the column `name` of a batch, which may be a projection of the table.
///
/// # Errors
/// [`Error::MissingColumn`] or [`Error::ColumnType`].
pub fn column<C: crate::Cell>(batch: &RecordBatch, table: &str, name: &str) -> Result<C::Column, Error> {
    let array =
        batch.column_by_name(name).ok_or_else(|| Error::MissingColumn { table: table.into(), column: name.into() })?;
    C::open(array.as_ref()).ok_or_else(|| Error::ColumnType {
        table: table.into(),
        column: name.into(),
        found: format!("{}{}", array.data_type(), if array.null_count() > 0 { " with nulls" } else { "" }),
    })
}

/// A column's name without the `r#` that Rust requires before its keywords.
pub(crate) fn plain_name(name: &'static str) -> &'static str {
    name.strip_prefix("r#").unwrap_or(name)
}

pub(crate) fn batch(table: &Table, columns: Vec<ArrayRef>) -> Result<RecordBatch, Error> {
    Ok(RecordBatch::try_new(table.schema(), columns)?)
}

/// Declares tables: for each, a row struct, a builder and a view, from one list of documented columns.
///
/// After its names, a table may say `sorted by "column"` ([`Table::sorted_by`]), `listed |row| …` ([`Row::is_listed`]) and
/// `judged false` ([`Table::judged`]).
///
/// It also declares the macro `$list`, by which [`tables`](crate::tables) iterates over the declarations of several
/// files: `$list!([next more] found…)` calls `next!([more] found… table: Row,)`, with every table of this declaration
/// after those already found. The macro needs a dollar sign of its own, `$d`.
macro_rules! tables {
    ($list:ident uses $d:tt, by $writer:ident; $(
        $(#[doc = $doc:literal])+
        $table:ident: $row:ident / $builder:ident / $view:ident
            $(, sorted by $sorted:literal)? $(, listed $listed:expr)? $(, judged $judged:literal)?; {
            $( $(#[doc = $cdoc:literal])+ $column:ident: $ty:ty, )+
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            pub struct $row {
                $( $(#[doc = $cdoc])+ pub $column: $ty, )+
            }

            #[doc = concat!("Collects rows of `", stringify!($table), "`.")]
            pub struct $builder {
                len: usize,
                $( $column: <$ty as $crate::Cell>::Builder, )+
            }

            impl std::fmt::Debug for $builder {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.debug_struct(stringify!($builder)).field("len", &self.len).finish_non_exhaustive()
                }
            }

            impl Default for $builder {
                fn default() -> Self {
                    Self { len: 0, $( $column: <$ty as $crate::Cell>::builder(), )+ }
                }
            }

            #[doc = concat!("Typed columns of a batch of `", stringify!($table), "`.")]
            #[derive(Clone, Debug)]
            #[expect(missing_docs, reason = "the row type documents each column")]
            pub struct $view {
                $( pub $column: <$ty as $crate::Cell>::Column, )+
            }

            impl $crate::RowBuilder for $builder {
                type Row = $row;
                fn push(&mut self, row: &$row) {
                    $( $crate::Cell::append(&row.$column, &mut self.$column); )+
                    self.len += 1;
                }
                fn len(&self) -> usize {
                    self.len
                }
                fn finish(&mut self) -> Result<arrow_array::RecordBatch, $crate::Error> {
                    self.len = 0;
                    let columns = vec![ $( <$ty as $crate::Cell>::finish(&mut self.$column), )+ ];
                    $crate::table::batch(&<$row as $crate::Row>::table(), columns)
                }
            }

            impl $crate::Row for $row {
                type Builder = $builder;
                type View = $view;
                fn table() -> $crate::Table {
                    // The last one holds: what the declaration says, if it says something.
                    let [.., sorted_by] = [None $(, Some($sorted))?];
                    let [.., judged] = [true $(, $judged)?];
                    $crate::Table {
                        name: stringify!($table),
                        doc: concat!($($doc),+).trim_ascii_start(),
                        writer: $crate::Writer::$writer,
                        sorted_by,
                        judged,
                        columns: vec![ $( $crate::ColumnInfo {
                            name: $crate::table::plain_name(stringify!($column)),
                            type_name: <$ty as $crate::Cell>::TYPE_NAME,
                            nullable: <$ty as $crate::Cell>::NULLABLE,
                            doc: concat!($($cdoc),+).trim_ascii_start(),
                            data_type: <$ty as $crate::Cell>::data_type(),
                            vocabulary: <$ty as $crate::Cell>::vocabulary(),
                        }, )+ ],
                    }
                }
                fn view(batch: &arrow_array::RecordBatch) -> Result<$view, $crate::Error> {
                    Ok($view { $( $column: $crate::column::<$ty>(batch, stringify!($table), $crate::table::plain_name(stringify!($column)))?, )+ })
                }
                fn get(view: &$view, index: usize) -> Self {
                    Self { $( $column: <$ty as $crate::Cell>::get(&view.$column, index), )+ }
                }
                fn rank(&self) -> Option<i32> {
                    let mut rank = None;
                    $( if stringify!($column) == "rank" {
                        rank = $crate::table::rank_in(&self.$column);
                    } )+
                    rank
                }
                fn is_listed(&self) -> bool {
                    let rules: &[fn(&Self) -> bool] = &[|_| false $(, $listed)?];
                    rules.last().is_some_and(|rule| rule(self))
                }
            }
        )+

        macro_rules! $list {
            ([$d next:ident $d ($d more:ident)*] $d ($d found:tt)*) => {
                $d next! { [$d ($d more)*] $d ($d found)* $( $(#[doc = $doc])+ $table: $row, )+ }
            };
        }
    };
}
