//! Shards: one Parquet file per table, rank and part. Writer and reader check the same facts.

mod headers;
pub(crate) mod join;
pub(crate) mod write;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Type as PhysicalType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::statistics::Statistics;
use parquet::schema::types::SchemaDescriptor;

use crate::checksum;
use crate::keys::{
    KEY_BOOT_ID, KEY_CLOCK_DOMAIN, KEY_HOST, KEY_PARTS, KEY_PID, KEY_RANK, KEY_RUN_ID, KEY_SCHEMA_VERSION, KEY_SESSION,
    SCHEMA_VERSION,
};
use crate::place::{self, Opened};
use crate::{Error, MAX_TEXT_BYTES, PartRow, Table, files};

use headers::{check_footer_lists, sound_groups};

/// Rows of a row group: DuckDB's unit of parallel work (60 vectors of 2048).
pub const ROW_GROUP_ROWS: usize = 122_880;

/// The metadata of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMeta {
    /// Run id, as in the manifest.
    pub run_id: String,
    /// Global rank.
    pub rank: i32,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: i64,
    /// Boot id of the host; empty if unknown.
    pub boot_id: String,
    /// Clock domain of every time in the shard.
    pub clock_domain: String,
    /// Id of the session: shared by all processes that record this rank together, and by no others; empty if a single
    /// process records it.
    pub session: String,
}

/// `RUN/<table>/rank-00003-0000.parquet`.
pub fn shard_path(run: &Path, table: &str, rank: i32, part: u32) -> PathBuf {
    run.join(table).join(shard_name(rank, part))
}

/// Rank and part of a shard's file name; `None` if it is not a shard's.
pub fn parse_shard_name(name: &str) -> Option<(i32, u32)> {
    let (rank, part) = name.strip_prefix("rank-")?.strip_suffix(".parquet")?.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    (digits(rank) && digits(part)).then_some(())?;
    let (rank, part) = (rank.parse().ok()?, part.parse().ok()?);
    // A part has one name, so that a copy under another name is not read as a further part.
    (name == shard_name(rank, part)).then_some((rank, part))
}

fn shard_name(rank: i32, part: u32) -> String {
    format!("rank-{rank:05}-{part:04}.parquet")
}

/// A shard as it was closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedShard {
    /// Size of the file.
    pub bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// XXH3 of the footer, in hexadecimal digits. The footer holds the checksums of the row groups.
    pub footer_xxh3: String,
}

impl ClosedShard {
    /// The row of `parts` for this shard.
    pub fn row(self, meta: &ShardMeta, table: &Table, part: u32) -> PartRow {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        PartRow {
            rank: meta.rank,
            pid: meta.pid,
            table_name: table.name.into(),
            part: i64::from(part),
            rows: count(self.rows),
            bytes: count(self.bytes),
            footer_xxh3: self.footer_xxh3.into(),
        }
    }
}

/// Whether a file is a table that rankscope wrote. A file that is not Parquet is none.
///
/// # Errors
/// The error of the operating system that opens or reads the file.
pub fn is_written_by_rankscope(path: &Path) -> io::Result<bool> {
    let read = |file: File| {
        check_footer_lists(&file)?;
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        contain_panic(|| ArrowReaderMetadata::load(&file, options))
    };
    let is_other = |kind| matches!(kind, ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
    match files::open_regular(path).map_err(ParquetError::from).and_then(read) {
        Ok(footer) => {
            let pairs = footer.metadata().file_metadata().key_value_metadata();
            Ok(pairs.is_some_and(|pairs| pairs.iter().any(|pair| pair.key == KEY_SCHEMA_VERSION)))
        }
        Err(ParquetError::External(error)) => match error.downcast::<io::Error>() {
            Ok(error) if !is_other(error.kind()) => Err(*error),
            _ => Ok(false),
        },
        Err(_) => Ok(false),
    }
}

/// The facts that hold in every shard, checked before writing and after reading.
#[derive(Debug)]
pub struct Checker {
    table: String,
    rank: i32,
    sorted_by: Option<&'static str>,
    last: i64,
    rows: usize,
    /// The rows at which further parts of a joined shard begin, the last one first.
    begins: Vec<usize>,
}

impl Checker {
    /// A checker before the first batch.
    pub fn new(table: &Table, rank: i32) -> Self {
        Self { table: table.name.into(), rank, sorted_by: table.sorted_by, last: i64::MIN, rows: 0, begins: Vec::new() }
    }

    /// A checker of the parts of a joined shard, which are sorted one by one.
    fn of_parts(table: &Table, rank: i32, parts: &[(u32, u64)]) -> Self {
        let mut begins: Vec<usize> = parts
            .iter()
            .scan(0_usize, |row, (_, rows)| {
                *row = row.saturating_add(usize::try_from(*rows).unwrap_or(usize::MAX));
                Some(*row)
            })
            .collect();
        begins.reverse();
        Self { begins, ..Self::new(table, rank) }
    }

    /// Checks the next batch of the shard. Columns that a projection left out are not checked.
    ///
    /// # Errors
    /// [`Error::Unsorted`], [`Error::WrongRank`] or [`Error::NegativeDuration`].
    pub fn check(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let longs = |name: &str| batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<Int64Type>());
        if let Some(ranks) = batch.column_by_name("rank").and_then(|c| c.as_primitive_opt::<Int32Type>())
            && let Some(row) = ranks.values().iter().position(|r| *r != self.rank)
        {
            let (table, row, found) = (self.table.clone(), self.rows + row, ranks.value(row));
            return Err(Error::WrongRank { table, row, found, expected: self.rank });
        }
        if let Some(column) = self.sorted_by
            && let Some(times) = longs(column)
        {
            for (row, time) in times.values().iter().enumerate() {
                while self.begins.last().is_some_and(|begin| self.rows + row >= *begin) {
                    self.begins.pop();
                    self.last = i64::MIN;
                }
                if *time < self.last {
                    let (table, column, row) = (self.table.clone(), column.into(), self.rows + row);
                    return Err(Error::Unsorted { table, column, row });
                }
                self.last = *time;
            }
        }
        if let Some(durations) = longs("dur_ns")
            && let Some(row) = durations.values().iter().position(|d| *d < 0)
        {
            let (table, dur_ns) = (self.table.clone(), durations.value(row));
            return Err(Error::NegativeDuration { table, row: self.rows + row, dur_ns });
        }
        self.rows += batch.num_rows();
        Ok(())
    }
}

/// A shard with a valid footer; its rows are read on demand. It does not keep the footer, because a run has tens of
/// thousands of shards and a footer is large.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The file.
    pub path: PathBuf,
    /// Name of its table.
    pub table: String,
    /// Part number.
    pub part: u32,
    /// The parts that it holds, each with its rows: itself, and those that were joined to it.
    pub parts: Vec<(u32, u64)>,
    /// Number of rows.
    pub rows: u64,
    /// Size of the file.
    pub bytes: u64,
    /// XXH3 of the footer, as in [`ClosedShard`].
    pub footer_xxh3: String,
    /// Memory that its rows take while an analysis reads them, by the sizes in its footer: an estimate.
    pub memory_bytes: u64,
    /// The largest number in its column `step`, by its footer; `None` if no row has a step.
    pub last_step: Option<i32>,
    /// Its metadata. Shards of one rank have it in common.
    pub meta: Arc<ShardMeta>,
}

impl Shard {
    /// Reads the footer of `path`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Parquet`] for a file that is cut, empty or garbage; [`Error::NewerSchema`];
    /// [`Error::Metadata`] when a key is missing or disagrees with the file's name; [`Error::NotARun`] when the name is
    /// no shard's.
    pub fn open(path: &Path, table: &str) -> Result<Self, Error> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let (name_rank, part) = parse_shard_name(name).ok_or_else(|| Error::NotARun {
            path: path.into(),
            why: "its name is not rank-NNNNN-NNNN.parquet".into(),
        })?;
        let io = |source| Error::Io { path: path.into(), source };
        let file = place::open(path).map_err(io)?;
        let bytes = file.size_bytes().map_err(io)?;
        let footer = read_footer(&file, bytes).map_err(|source| Error::Parquet { path: path.into(), source })?;
        let meta = Arc::new(read_meta(path, &footer)?);
        if meta.rank != name_rank {
            let problem = format!("is {}, but the file's name says {name_rank}", meta.rank);
            return Err(Error::Metadata { path: path.into(), key: KEY_RANK, problem });
        }
        let rows = footer.metadata().file_metadata().num_rows().max(0) as u64;
        let parts = read_parts(path, &footer, (part, rows))?;
        let footer_xxh3 = checksum::of_footer(&file, bytes).map_err(io)?;
        let memory_bytes = memory_bytes(footer.metadata());
        let (path, table, last_step) = (path.into(), table.into(), last_step(footer.metadata()));
        Ok(Self { path, table, part, parts, rows, bytes, footer_xxh3, memory_bytes, last_step, meta })
    }

    /// Reads batches of the named columns (all, if `columns` is `None`) and hands each to `visit`, after the shard's
    /// facts were checked on it. Columns that the file lacks are simply absent from the batch.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Parquet`] (also if bytes differ from their checksum in the footer; row groups before them
    /// are read), what [`Checker::check`] finds, or what `visit` returns. Batches before the error were visited.
    /// [`Error::LongTexts`] after all rows were visited, if some texts of these columns are shortened by
    /// [`column`](crate::column).
    pub fn read<E: From<Error>>(
        &self,
        table: &Table,
        columns: Option<&[&str]>,
        mut visit: impl FnMut(&RecordBatch) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut checker = Checker::of_parts(table, self.meta.rank, &self.parts);
        let mut texts = 0;
        let file = place::open(&self.path).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        let damage = read_batches(file, &self.path, columns, |batch| {
            checker.check(batch)?;
            visit(batch)?;
            texts += long_texts(batch);
            Ok::<_, E>(())
        })?;
        match damage {
            None if texts > 0 => Err(Error::LongTexts { path: self.path.clone(), texts }.into()),
            None => Ok(()),
            Some(damage) => Err(damage.into()),
        }
    }
}

/// Reads the named columns of a file up to the first byte that differs from its checksum, and returns the error of that byte.
/// `path` is for errors.
pub(crate) fn read_batches<E: From<Error>>(
    file: Opened,
    path: &Path,
    columns: Option<&[&str]>,
    mut visit: impl FnMut(&RecordBatch) -> Result<(), E>,
) -> Result<Option<Error>, E> {
    let io = |source| Error::Io { path: path.into(), source };
    let parquet = |source| Error::Parquet { path: path.into(), source };
    let file = file.with_small_in_memory().map_err(io)?;
    let bytes = file.size_bytes().map_err(io)?;
    let footer = read_footer(&file, bytes).map_err(parquet)?;
    let sound_bytes = checksum::sound_bytes(&file, footer.metadata()).map_err(parquet)?;
    let mask = match columns {
        Some(columns) => named(footer.parquet_schema(), columns),
        None => ProjectionMask::all(),
    };
    let whole = groups_within(footer.metadata(), sound_bytes.unwrap_or(bytes));
    let (whole, untrue) = sound_groups(&file, footer.metadata(), whole, |column| mask.leaf_included(column));
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, footer);
    let builder = builder.with_row_groups(whole).with_projection(mask);
    let mut reader = contain_panic(|| builder.with_batch_size(ROW_GROUP_ROWS).build()).map_err(parquet)?;
    while let Some(batch) = contain_panic(|| Ok(reader.next().transpose()?)).map_err(parquet)? {
        visit(&batch)?;
    }
    if let Some(error) = untrue {
        return Ok(Some(parquet(error)));
    }
    Ok(sound_bytes.map(|sound| {
        let why = format!("the file is damaged: from byte {sound} on, it differs from the checksum in its footer");
        parquet(ParquetError::General(why))
    }))
}

/// The columns with these names. A name may contain dots, which separate a column from its parts in paths of Parquet.
fn named(schema: &SchemaDescriptor, names: &[&str]) -> ProjectionMask {
    let fields = schema.root_schema().get_fields().iter().enumerate();
    ProjectionMask::roots(schema, fields.filter(|(_, field)| names.contains(&field.name())).map(|(at, _)| at))
}

/// Memory of a row beside its strings, with the batch that it is read in: the columns that an analysis reads of `events`.
const ROW_BYTES: u64 = 160;
/// Copies of a string while it is read: in its page, in its batch, and among the names of the rank.
const STRING_COPIES: u64 = 3;

/// The memory that the rows of a file take while they are read, by the sizes in its footer.
fn memory_bytes(metadata: &ParquetMetaData) -> u64 {
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let strings = chunks.filter(|chunk| chunk.column_type() == PhysicalType::BYTE_ARRAY);
    let string_bytes = strings.fold(0, |sum: u64, chunk| sum.saturating_add(chunk.uncompressed_size().max(0) as u64));
    let rows = metadata.file_metadata().num_rows().max(0) as u64;
    rows.saturating_mul(ROW_BYTES).saturating_add(string_bytes.saturating_mul(STRING_COPIES))
}

/// The largest value of the column `step`, by the statistics of its chunks.
fn last_step(metadata: &ParquetMetaData) -> Option<i32> {
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let steps = chunks.filter(|chunk| chunk.column_path().string() == "step").filter_map(|chunk| chunk.statistics());
    let last = |statistics: &Statistics| match statistics {
        Statistics::Int32(of_steps) => of_steps.max_opt().copied(),
        _ => None,
    };
    steps.filter_map(last).max()
}

/// Number of texts that are longer than [`MAX_TEXT_BYTES`], in the values of a dictionary or in the rows.
fn long_texts(batch: &RecordBatch) -> usize {
    let in_column = |column: &ArrayRef| {
        let values = column.as_any_dictionary_opt().map_or(column, |dictionary| dictionary.values());
        let Some(texts) = values.as_string_opt::<i32>() else { return 0 };
        let offsets = texts.value_offsets();
        let is_long = |from: i32, to: i32| i64::from(to) - i64::from(from) > MAX_TEXT_BYTES as i64;
        match offsets {
            // Mostly, all texts of a column together are shorter.
            [first, .., last] if is_long(*first, *last) => offsets.windows(2).filter(|p| is_long(p[0], p[1])).count(),
            _ => 0,
        }
    };
    batch.columns().iter().map(in_column).sum()
}

/// The row groups that end within the first `bytes` of the file, up to the first one that does not.
fn groups_within(metadata: &ParquetMetaData, bytes: u64) -> Vec<usize> {
    let ends_within = |column: &ColumnChunkMetaData| {
        let (start, length) = column.byte_range();
        start.saturating_add(length) <= bytes
    };
    let groups = metadata.row_groups().iter().take_while(|group| group.columns().iter().all(ends_within));
    (0..groups.count()).collect()
}

thread_local! {
    /// Whether a panic of this thread becomes an error.
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a part of the Parquet reader and turns a panic into an error. About one damaged file in 2000 reaches an assertion
/// of that reader (a column without its dictionary page, a null mask that is too short), and one damaged shard must not
/// end the analysis of all others. The caller drops the reader after an error, so its inconsistent state is never used. The error says
/// what is wrong, so the panic prints nothing.
pub(crate) fn contain_panic<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CONTAINED.get() {
                usual(panic);
            }
        }));
    });
    let before = IS_CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    IS_CONTAINED.set(before);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(ParquetError::General(format!("the file is damaged: {}", text.unwrap_or("its reader gave up"))))
    })
}

/// Checks the assumptions of the Parquet reader: chunks lie inside the file, and columns have as many values as rows.
fn check_footer(metadata: &ParquetMetaData, file_bytes: u64) -> Result<(), ParquetError> {
    let damaged = |what: &str| Err(ParquetError::General(format!("the file is damaged: {what}")));
    let mut rows = 0_i64;
    for group in metadata.row_groups() {
        if group.num_rows() < 0 {
            return damaged("a row group has a negative number of rows");
        }
        rows = rows.saturating_add(group.num_rows());
        for chunk in group.columns() {
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let end = start.checked_add(chunk.compressed_size());
            let inside = start >= 0
                && chunk.data_page_offset() >= start
                && chunk.compressed_size() >= 0
                && end.is_some_and(|end| end as u64 <= file_bytes);
            if !inside {
                return damaged("a column lies outside the file");
            }
            let flat = chunk.column_descr().max_rep_level() == 0;
            if chunk.num_values() < 0 || (flat && chunk.num_values() != group.num_rows()) {
                return damaged("a column has another number of values than its row group has rows");
            }
        }
    }
    match metadata.file_metadata().num_rows() == rows {
        true => Ok(()),
        false => damaged("the row groups do not add up to the number of rows"),
    }
}

/// Reads and checks the footer of a file of `bytes`.
pub(crate) fn read_footer(file: &Opened, bytes: u64) -> Result<ArrowReaderMetadata, ParquetError> {
    check_footer_lists(file)?;
    contain_panic(|| {
        let footer = with_dictionaries(file)?;
        check_footer(footer.metadata(), bytes)?;
        Ok(footer)
    })
}

/// Reads a footer so that strings are read as dictionaries where they were written as dictionaries, even if the file
/// carries no Arrow schema. Columns without a dictionary, mostly those without values, stay plain: the reader would build
/// their dictionaries row by row.
fn with_dictionaries(file: &Opened) -> Result<ArrowReaderMetadata, ParquetError> {
    let plain = ArrowReaderMetadata::load(file, ArrowReaderOptions::new().with_skip_arrow_metadata(true))?;
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let has_dictionary = |name: &str| {
        let chunks = plain.metadata().row_groups().iter().flat_map(|group| group.columns());
        chunks
            .filter(|chunk| chunk.column_path().string() == name)
            .any(|chunk| chunk.dictionary_page_offset().is_some())
    };
    let field = |field: &Arc<Field>| match field.data_type() {
        DataType::Utf8 if has_dictionary(field.name()) => {
            Arc::new(Field::new(field.name(), dictionary.clone(), field.is_nullable()))
        }
        _ => field.clone(),
    };
    let schema = Arc::new(Schema::new(plain.schema().fields().iter().map(field).collect::<Vec<_>>()));
    ArrowReaderMetadata::try_new(plain.metadata().clone(), ArrowReaderOptions::new().with_schema(schema))
}

fn read_meta(path: &Path, footer: &ArrowReaderMetadata) -> Result<ShardMeta, Error> {
    let pairs = footer.metadata().file_metadata().key_value_metadata();
    let lookup = |key: &'static str| {
        pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == key)).and_then(|pair| pair.value.clone())
    };
    let find = |key: &'static str| {
        lookup(key).ok_or_else(|| Error::Metadata { path: path.into(), key, problem: "is missing".into() })
    };
    let number = |key: &'static str| {
        let text = find(key)?;
        text.parse::<i64>().map_err(|_| Error::Metadata {
            path: path.into(),
            key,
            problem: format!("is not a number: {:?}", text.chars().take(40).collect::<String>()),
        })
    };
    let version = number(KEY_SCHEMA_VERSION)?;
    if version > i64::from(SCHEMA_VERSION) {
        let found = u32::try_from(version).unwrap_or(u32::MAX);
        return Err(Error::NewerSchema { path: path.into(), found, known: SCHEMA_VERSION });
    }
    let rank = number(KEY_RANK)?;
    let rank = i32::try_from(rank).ok().filter(|rank| *rank >= 0).ok_or_else(|| Error::Metadata {
        path: path.into(),
        key: KEY_RANK,
        problem: format!("is {rank}"),
    })?;
    Ok(ShardMeta {
        run_id: find(KEY_RUN_ID)?,
        rank,
        host: find(KEY_HOST)?,
        pid: number(KEY_PID)?,
        boot_id: find(KEY_BOOT_ID)?,
        clock_domain: find(KEY_CLOCK_DOMAIN)?,
        session: lookup(KEY_SESSION).unwrap_or_default(),
    })
}

/// The parts that a file holds, with their rows. `own` is the part that it is by its name.
fn read_parts(path: &Path, footer: &ArrowReaderMetadata, own: (u32, u64)) -> Result<Vec<(u32, u64)>, Error> {
    let mut pairs = footer.metadata().file_metadata().key_value_metadata().into_iter().flatten();
    let Some(text) = pairs.find(|pair| pair.key == KEY_PARTS).and_then(|pair| pair.value.as_deref()) else {
        return Ok(vec![own]);
    };
    let rows = |parts: &[(u32, u64)]| parts.iter().fold(0, |sum: u64, (_, rows)| sum.saturating_add(*rows));
    let parts = parse_parts(text).filter(|parts| parts.first().is_some_and(|(first, _)| *first == own.0));
    parts.filter(|parts| rows(parts) == own.1).ok_or_else(|| Error::Metadata {
        path: path.into(),
        key: KEY_PARTS,
        problem: "is no list of parts with the rows of this file".into(),
    })
}

/// The parts of `rankscope.parts` with their rows.
fn parse_parts(text: &str) -> Option<Vec<(u32, u64)>> {
    let part = |text: &str| {
        let (part, rows) = text.split_once(':')?;
        Some((part.parse().ok()?, rows.parse().ok()?))
    };
    text.split(',').map(part).collect()
}

/// The names of the columns of `batch`, for tests and small readers.
pub fn column_names(batch: &RecordBatch) -> Vec<Arc<str>> {
    batch.schema().fields().iter().map(|f| f.name().as_str().into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_parts_must_have_the_rows_of_the_file() {
        assert_eq!(parse_parts("8:1000,9:990"), Some(vec![(8, 1000), (9, 990)]));
        for text in ["", "8", "8:", ":1", "8:1,", "8:-1", "8:1;9:1", "99999999999:1"] {
            assert_eq!(parse_parts(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_panic_of_the_parquet_reader_becomes_an_error() {
        let text = |result: Result<(), ParquetError>| result.unwrap_err().to_string();
        assert!(text(contain_panic(|| panic!("literal"))).ends_with("the file is damaged: literal"));
        assert!(text(contain_panic(|| panic!("{} of {}", 1, 2))).ends_with("the file is damaged: 1 of 2"));
        assert!(text(contain_panic(|| std::panic::panic_any(7))).ends_with("its reader gave up"));
        assert_eq!(contain_panic(|| Ok(7)).unwrap(), 7);
        assert!(
            contain_panic(|| Ok(IS_CONTAINED.get())).unwrap() && !IS_CONTAINED.get(),
            "only such a panic prints nothing"
        );
    }
}
