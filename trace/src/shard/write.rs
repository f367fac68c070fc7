//! Writes a shard, or a table of the aggregator.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriter, ArrowWriterOptions, compute_leaves,
};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::checksum::Hashed;
use crate::keys::{
    KEY_BOOT_ID, KEY_CLOCK_DOMAIN, KEY_HOST, KEY_PID, KEY_RANK, KEY_RUN_ID, KEY_SCHEMA_VERSION, KEY_SESSION,
    SCHEMA_VERSION,
};
use crate::lock::lock;
use crate::shard::{Checker, ClosedShard, ROW_GROUP_ROWS, ShardMeta, shard_path};
use crate::{Error, Table, TableRows, files};

/// Id columns with few distinct values, for which a dictionary is smaller than deltas.
const LOW_CARDINALITY: [&str; 6] = ["pid", "thread_id", "device_id", "context_id", "stream_id", "comm_id"];

/// The least rows of a file whose columns are compressed. A decompressor takes longer to make than so few rows take to read.
const COMPRESSED_ROWS: usize = 128;

/// Encodings and compression, chosen by measurement: pyarrow wrote the 262 144 rows of a part of ResNet-50's trace in several
/// ways. Times and ids are the columns with deltas below; all others have a dictionary.
///
/// ```text
///   times and ids                      compression   bytes a row   CPU time
///   deltas                             zstd 1        11.2          1          this one
///   deltas                             zstd 3        10.8          1.06
///   deltas                             lz4           13.1          0.85
///   times as byte streams, ids deltas  zstd 1        11.2          0.99
///   plain                              zstd 1        13.0          1.13
///   dictionary                         zstd 1        18.7          1.47
/// ```
fn writer_properties(
    table: &Table,
    meta: &[KeyValue],
    content: &Content,
    compression: Compression,
) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(meta.to_vec()))
        // Parts are small and most columns of most rows are null, so the cost per column and part decides the bytes per
        // event: no page index, and statistics only where a reader skips row groups by them.
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::None);
    for (index, column) in table.columns.iter().enumerate() {
        let path = match column.data_type {
            DataType::List(_) => ColumnPath::new(vec![column.name.into(), "list".into(), "item".into()]),
            _ => ColumnPath::from(column.name),
        };
        let is_time_or_id = column.name.ends_with("_ns") || column.name.ends_with("id");
        if content.nulls[index] == content.rows {
            // An empty dictionary page is still a page, and a compressed run of nulls is longer than the run.
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_compression(path, Compression::UNCOMPRESSED);
            continue;
        }
        if content.rows < COMPRESSED_ROWS {
            properties = properties.set_column_compression(path.clone(), Compression::UNCOMPRESSED);
        }
        if column.type_name == "BIGINT" && is_time_or_id && !LOW_CARDINALITY.contains(&column.name) {
            // Times and ids hardly repeat but grow slowly: deltas take half the space of a dictionary.
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED);
        }
        if table.sorted_by == Some(column.name) || column.name == "rank" || column.name == "step" {
            properties = properties.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
        }
    }
    properties.set_sorting_columns(sorting(table)).build()
}

/// The column by which each row group is sorted.
pub(super) fn sorting(table: &Table) -> Option<Vec<SortingColumn>> {
    let index = table.sorted_by.and_then(|name| table.column(name))?;
    Some(vec![SortingColumn { column_idx: index as i32, descending: false, nulls_first: false }])
}

/// The rows of a file.
pub(crate) trait Batches {
    /// Visits them in batches, always the same ones. The writer asks twice.
    ///
    /// # Errors
    /// Those of making a batch and of `visit`.
    fn visit(&self, visit: &mut dyn FnMut(&RecordBatch) -> Result<(), Error>) -> Result<(), Error>;
}

impl Batches for [RecordBatch] {
    fn visit(&self, visit: &mut dyn FnMut(&RecordBatch) -> Result<(), Error>) -> Result<(), Error> {
        self.iter().try_for_each(visit)
    }
}

/// Rows that are turned into columns a few at a time: the columns of a whole table take as much memory as its rows.
struct Sliced<'a>(&'a dyn TableRows);

/// Rows of a slice.
const SLICE_ROWS: usize = 1 << 14;

impl Batches for Sliced<'_> {
    fn visit(&self, visit: &mut dyn FnMut(&RecordBatch) -> Result<(), Error>) -> Result<(), Error> {
        let rows = self.0.row_count();
        (0..rows).step_by(SLICE_ROWS).try_for_each(|from| visit(&self.0.slice(from..rows.min(from + SLICE_ROWS))?))
    }
}

/// The extent of batches.
struct Content {
    rows: usize,
    /// Nulls of each column.
    nulls: Vec<usize>,
}

impl Content {
    fn of(table: &Table, batches: &(impl Batches + ?Sized)) -> Result<Self, Error> {
        let mut content = Self { rows: 0, nulls: vec![0; table.columns.len()] };
        batches.visit(&mut |batch| {
            content.rows += batch.num_rows();
            content.nulls.iter_mut().zip(batch.columns()).for_each(|(sum, column)| *sum += column.null_count());
            Ok(())
        })?;
        Ok(content)
    }
}

/// Calls a function with each number below a count, in any order and on any threads, and returns when all calls have.
pub type ForEach<'a> = &'a (dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Sync);

/// Calls on the calling thread, one after the other. A recorder must not start threads in the program that it records.
pub(crate) fn one_by_one(count: usize, call: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(call);
}

/// The compression of shards and of the analysis.
pub(crate) fn zstd() -> Compression {
    Compression::ZSTD(ZstdLevel::default())
}

/// Encodes batches into `file` and returns the checksum of the footer. The bytes do not depend on `for_each`.
pub(crate) fn encode(
    file: &mut (impl Write + Send),
    path: &Path,
    table: &Table,
    meta: &[KeyValue],
    (batches, compression): (&(impl Batches + ?Sized), Compression),
    for_each: ForEach<'_>,
) -> Result<String, Error> {
    let parquet = |source| Error::Parquet { path: path.into(), source };
    let io = |source| Error::Io { path: path.into(), source };
    let options = ArrowWriterOptions::new()
        .with_properties(writer_properties(table, meta, &Content::of(table, batches)?, compression))
        // The writer's own Arrow schema would make readers return dictionaries; `descriptions` has plain strings.
        .with_skip_arrow_metadata(true);
    let (mut writer, factory) = ArrowWriter::try_new_with_options(Hashed::new(file), table.schema(), options)
        .and_then(ArrowWriter::into_serialized_writer)
        .map_err(parquet)?;
    let mut close = |group: RowGroup<'_>| -> Result<(), Error> {
        let chunks = group.close().map_err(parquet)?;
        let mut out = writer.next_row_group().map_err(parquet)?;
        chunks.into_iter().try_for_each(|chunk| chunk.append_to_row_group(&mut out)).map_err(parquet)?;
        out.close().map_err(parquet)?;
        // The bytes of a row group are one block of the checksums.
        writer.flush().map_err(io)?;
        writer.inner_mut().end_block();
        Ok(())
    };
    let (mut groups, mut open) = (0, None);
    batches.visit(&mut |batch| {
        let mut from = 0;
        while from < batch.num_rows() {
            let mut group = match open.take() {
                Some(group) => group,
                None => {
                    groups += 1;
                    RowGroup::new(&factory, groups - 1, for_each).map_err(parquet)?
                }
            };
            let rows = (batch.num_rows() - from).min(ROW_GROUP_ROWS - group.rows);
            group.write(&batch.slice(from, rows));
            from += rows;
            if group.rows == ROW_GROUP_ROWS { close(group)? } else { open = Some(group) }
        }
        Ok(())
    })?;
    open.map_or(Ok(()), close)?;
    // A file without rows has one block, the magic number. After this, only the footer is written.
    writer.flush().map_err(io)?;
    writer.inner_mut().end_block();
    let checksums = writer.inner().checksums();
    writer.append_key_value_metadata(checksums);
    let written = writer.into_inner().map_err(parquet)?;
    Ok(written.last())
}

/// A row group that is being encoded.
struct RowGroup<'a> {
    rows: usize,
    columns: Vec<Mutex<Column>>,
    for_each: ForEach<'a>,
}

/// A column of a row group.
enum Column {
    Open(Box<ArrowColumnWriter>),
    Closed(Box<ArrowColumnChunk>),
    Failed(ParquetError),
}

impl<'a> RowGroup<'a> {
    fn new(factory: &ArrowRowGroupWriterFactory, index: usize, for_each: ForEach<'a>) -> Result<Self, ParquetError> {
        let writers = factory.create_column_writers(index)?;
        let columns = writers.into_iter().map(|writer| Mutex::new(Column::Open(Box::new(writer)))).collect();
        Ok(Self { rows: 0, columns, for_each })
    }

    /// Changes each column, perhaps on another thread.
    fn each_column(&self, change: impl Fn(usize, Column) -> Result<Column, ParquetError> + Sync) {
        (self.for_each)(self.columns.len(), &|index| {
            let mut column = lock(&self.columns[index]);
            let lost = Column::Failed(ParquetError::General("the encoder of a column panicked".into()));
            let before = std::mem::replace(&mut *column, lost);
            *column = change(index, before).unwrap_or_else(Column::Failed);
        });
    }

    fn write(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows();
        let schema = batch.schema();
        self.each_column(|index, column| {
            let Column::Open(mut writer) = column else { return Ok(column) };
            // Each column of our tables is one column of Parquet.
            for leaf in compute_leaves(schema.field(index), batch.column(index))? {
                writer.write(&leaf)?;
            }
            Ok(Column::Open(writer))
        });
    }

    fn close(self) -> Result<Vec<ArrowColumnChunk>, ParquetError> {
        self.each_column(|_, column| match column {
            Column::Open(writer) => writer.close().map(Box::new).map(Column::Closed),
            closed => Ok(closed),
        });
        let chunk = |column: Mutex<Column>| match column.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Column::Closed(chunk) => Ok(*chunk),
            Column::Failed(error) => Err(error),
            Column::Open(_) => Err(ParquetError::General("a column was not encoded".into())),
        };
        self.columns.into_iter().map(chunk).collect()
    }
}

/// The documentation of the columns, as metadata of the Arrow fields.
pub(crate) fn descriptions(table: &Table) -> KeyValue {
    KeyValue::new(ARROW_SCHEMA_META_KEY.to_string(), encode_arrow_schema(&table.described_schema()))
}

/// The metadata of a part.
pub(super) fn meta_pairs(table: &Table, meta: &ShardMeta, part: u32) -> Vec<KeyValue> {
    let pairs = [
        (KEY_SCHEMA_VERSION, SCHEMA_VERSION.to_string()),
        (KEY_RUN_ID, meta.run_id.clone()),
        (KEY_RANK, meta.rank.to_string()),
        (KEY_HOST, meta.host.clone()),
        (KEY_PID, meta.pid.to_string()),
        (KEY_BOOT_ID, meta.boot_id.clone()),
        (KEY_CLOCK_DOMAIN, meta.clock_domain.clone()),
    ];
    let session = (!meta.session.is_empty()).then(|| (KEY_SESSION, meta.session.clone()));
    let pairs = pairs.into_iter().chain(session).map(|(k, v)| KeyValue::new(k.to_string(), v));
    // The Arrow schema is larger than the rows of a small part, and readers of many files take the schema of the first.
    let descriptions = (meta.rank == 0 && part == 0).then(|| descriptions(table));
    pairs.chain(descriptions).collect()
}

/// Writes one part of a rank's table under its final name, completely or not at all.
///
/// # Errors
/// [`Error::Io`] of kind `AlreadyExists` if the run holds that part already: a trace is never overwritten;
/// [`Error::Unsorted`], [`Error::WrongRank`] or [`Error::NegativeDuration`] before anything is written; else
/// [`Error::Parquet`] or [`Error::Io`].
pub fn write_shard(
    run: &Path,
    table: &Table,
    meta: &ShardMeta,
    part: u32,
    batches: &[RecordBatch],
) -> Result<ClosedShard, Error> {
    write_shard_with(run, table, meta, part, batches, &one_by_one)
}

/// As [`write_shard`]; `for_each` may encode the columns of a row group on several threads. The bytes are the same.
///
/// # Errors
/// As [`write_shard`].
pub fn write_shard_with(
    run: &Path,
    table: &Table,
    meta: &ShardMeta,
    part: u32,
    batches: &[RecordBatch],
    for_each: ForEach<'_>,
) -> Result<ClosedShard, Error> {
    let mut checker = Checker::new(table, meta.rank);
    for batch in batches {
        checker.check(batch)?;
    }
    let pairs = meta_pairs(table, meta, part);
    let path = shard_path(run, table.name, meta.rank, part);
    files::make_parent(&path)?;
    let mut footer_xxh3 = String::new();
    let bytes = files::create(&path, |file| {
        footer_xxh3 = encode(file, &path, table, &pairs, (batches, zstd()), for_each)?;
        Ok::<_, Error>(())
    })?;
    Ok(ClosedShard { bytes, rows: checker.rows as u64, footer_xxh3 })
}

/// Writes a table of the aggregator to `path`, over the file of an earlier analysis.
///
/// # Errors
/// [`Error::Parquet`] or [`Error::Io`].
pub fn write_table(path: &Path, run_id: &str, rows: &dyn TableRows) -> Result<u64, Error> {
    let table = rows.table();
    let pairs = [(KEY_SCHEMA_VERSION, SCHEMA_VERSION.to_string()), (KEY_RUN_ID, run_id.to_string())];
    let pairs = pairs.into_iter().map(|(k, v)| KeyValue::new(k.to_string(), v));
    let pairs: Vec<KeyValue> = pairs.chain([descriptions(&table)]).collect();
    files::make_parent(path)?;
    files::replace(path, |file| encode(file, path, &table, &pairs, (&Sliced(rows), zstd()), &one_by_one).map(drop))
}
