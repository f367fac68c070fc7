//! Shards of every table: written and read, with columns of other types, and with changed bytes.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use arrow_array::{ArrayRef, RecordBatch};
use tempfile::TempDir;
use trace::{
    Error, Manifest, OmissionKind, Row, RowVisitor, Run, SCHEMA_VERSION, Shard, ShardMeta, Table, batch_from_rows,
    rows_from_batch, shard_path, visit_analysis_tables, visit_rank_tables, write_shard,
};

use crate::columns;
use crate::input::Input;

const RANK: i32 = 3;
const PART: u32 = 0;
/// The most rows of a shard.
const MAX_ROWS: usize = 24;

/// A run in memory where there is room for files in it.
struct Scratch {
    run: TempDir,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// For fuzzing: see the crate's table.
///
/// ```text
/// table │ what is done │ rows, columns and changes, as far as they go
/// ```
///
/// # Panics
/// If a check fails, or if the directory for temporary files cannot be written to.
pub fn check_any_shard(bytes: &[u8]) {
    let mut input = Input(bytes);
    SCRATCH.with_borrow_mut(|scratch| {
        let scratch = scratch.get_or_insert_with(Scratch::new);
        let number = input.below(256);
        let mut one = OneTable { number, seen: 0, of_ranks: 0, input: Some(input), scratch };
        // Counts the tables first, so that every number means one of them.
        let mut count = Count(0);
        visit_rank_tables(&mut count);
        one.of_ranks = count.0;
        visit_analysis_tables(&mut count);
        one.number %= count.0;
        visit_rank_tables(&mut one);
        visit_analysis_tables(&mut one);
    });
}

struct Count(usize);

impl RowVisitor for Count {
    fn visit<R: Row>(&mut self) {
        self.0 += 1;
    }
}

struct OneTable<'a, 's> {
    number: usize,
    seen: usize,
    /// Number of the tables that ranks write.
    of_ranks: usize,
    input: Option<Input<'a>>,
    scratch: &'s Scratch,
}

impl RowVisitor for OneTable<'_, '_> {
    fn visit<R: Row>(&mut self) {
        self.seen += 1;
        if self.seen == self.number + 1
            && let Some(mut input) = self.input.take()
        {
            self.scratch.clear(R::table().name);
            let in_run = self.number < self.of_ranks;
            match input.below(3) {
                0 => there_and_back::<R>(self.scratch, &mut input),
                1 => other_columns::<R>(self.scratch, &mut input, in_run),
                _ => changed_bytes::<R>(self.scratch, &mut input, in_run),
            }
        }
    }
}

fn meta() -> ShardMeta {
    ShardMeta {
        run_id: "fuzz".into(),
        rank: RANK,
        host: "node-1".into(),
        pid: 7,
        boot_id: "boot".into(),
        clock_domain: "boot monotonic_raw".into(),
        session: String::new(),
    }
}

impl Scratch {
    fn new() -> Self {
        let memory = tempfile::Builder::new().prefix("rankscope-fuzz-").tempdir_in("/dev/shm");
        let run = memory.or_else(|_| tempfile::tempdir());
        let run = run.unwrap_or_else(|error| unreachable!("no temporary directory: {error}"));
        let manifest = Manifest {
            schema_version: SCHEMA_VERSION,
            run_id: "fuzz".into(),
            world_size: RANK + 1,
            created_utc_ns: 1,
            tool: "fuzz".into(),
            command: vec!["fuzz".into()],
            config: Default::default(),
        };
        let written = manifest.write(run.path());
        assert!(written.is_ok(), "{written:?}");
        Self { run }
    }

    fn path(&self, table: &str) -> PathBuf {
        shard_path(self.run.path(), table, RANK, PART)
    }

    /// Removes the last input's shard; each input has one.
    fn clear(&self, table: &str) {
        for entry in fs::read_dir(self.run.path()).into_iter().flatten().flatten() {
            if entry.file_name() != *table && entry.path().is_dir() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let _ = fs::remove_file(self.path(table));
    }

    fn write(&self, table: &str, bytes: &[u8]) {
        let path = self.path(table);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, bytes));
        assert!(written.is_ok(), "{}: {written:?}", path.display());
    }
}

/// The content of a shard, as a reader finds it.
struct Found<R> {
    rows: Vec<R>,
    /// The shard by its footer; `None` if it cannot be opened.
    shard: Option<Shard>,
    error: Option<Error>,
}

fn read<R: Row>(scratch: &Scratch, table: &Table) -> Found<R> {
    let mut rows: Vec<R> = Vec::new();
    let shard = match Shard::open(&scratch.path(table.name), table.name) {
        Ok(shard) => shard,
        Err(error) => return Found { rows, shard: None, error: Some(error) },
    };
    let visit = |batch: &RecordBatch| -> Result<(), Error> {
        rows.extend(rows_from_batch::<R>(batch)?);
        Ok(())
    };
    let error = shard.read(table, None, visit).err();
    Found { rows, shard: Some(shard), error }
}

/// Reads the shard alone, then as a part of its run. Without an error or an omission, all rows are there.
fn check_read<R: Row>(scratch: &Scratch, in_run: bool) -> Vec<R> {
    let table = R::table();
    let found = read::<R>(scratch, &table);
    if let (Some(shard), None) = (&found.shard, &found.error) {
        assert_eq!(found.rows.len() as u64, shard.rows, "without an error, all rows are there");
    }
    // A part of another run is listed and not read, which needs no fuzzing.
    if in_run && found.shard.as_ref().is_none_or(|shard| shard.meta.run_id == meta().run_id) {
        let run = Run::open(scratch.run.path());
        assert!(run.is_ok(), "{run:?}");
        if let Ok(run) = run {
            let (rows, problems) = run.rows::<R>(RANK);
            assert_eq!(format!("{rows:?}"), format!("{:?}", found.rows), "the run gives the shard's rows");
            let lost = run.problems.iter().chain(&problems).filter(|problem| problem.kind == OmissionKind::Lost);
            let of_table = lost.filter(|problem| problem.what.ends_with(table.name)).count();
            assert_eq!(of_table > 0, found.error.is_some(), "{:?}: {:?} {problems:?}", found.error, run.problems);
        }
    }
    found.rows
}

/// Columns of any values and the right types.
fn any_rows(table: &Table, input: &mut Input<'_>) -> Option<RecordBatch> {
    let rows = input.below(MAX_ROWS + 1);
    let sound = !input.byte().is_multiple_of(4);
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for column in &table.columns {
        let range = match column.name {
            _ if !sound => columns::Range::Any,
            "rank" => columns::Range::Only(RANK.into()),
            name if table.sorted_by == Some(name) => columns::Range::Ascending,
            "dur_ns" => columns::Range::Positive,
            _ => columns::Range::Any,
        };
        arrays.push(columns::array(&column.data_type, column.nullable, rows, range, input));
    }
    RecordBatch::try_new(table.schema(), arrays).ok()
}

/// Rows that a writer accepts are read as they were.
fn there_and_back<R: Row>(scratch: &Scratch, input: &mut Input<'_>) {
    let table = R::table();
    let Some(batch) = any_rows(&table, input) else { return };
    let rows = rows_from_batch::<R>(&batch);
    let Ok(rows) = rows else { unreachable!("columns of the table's own types: {rows:?}") };
    let (first, second) = rows.split_at(rows.len() / 2);
    let batches = [batch_from_rows(first), batch_from_rows(second)];
    let [Ok(first), Ok(second)] = batches else { unreachable!("{batches:?}") };
    match write_shard(scratch.run.path(), &table, &meta(), PART, &[first, second]) {
        Ok(_) => {
            let found = read::<R>(scratch, &table);
            assert!(found.error.is_none(), "{:?}", found.error);
            // As text, because NaN is not equal to itself.
            assert_eq!(format!("{rows:?}"), format!("{:?}", found.rows));
        }
        Err(Error::Unsorted { .. } | Error::WrongRank { .. } | Error::NegativeDuration { .. }) => {}
        Err(error) => unreachable!("{error}"),
    }
}

/// A shard of another writer, whose columns are missing, twice, of other types, of other order and encodings.
fn other_columns<R: Row>(scratch: &Scratch, input: &mut Input<'_>, in_run: bool) {
    let table = R::table();
    if let Some(bytes) = columns::foreign_file(&table, &meta(), MAX_ROWS, input) {
        scratch.write(table.name, &bytes);
        check_read::<R>(scratch, in_run);
    }
}

/// Bytes of a sound shard change: with checksums, no row of a changed page is read; without, whatever is read is a row.
fn changed_bytes<R: Row>(scratch: &Scratch, input: &mut Input<'_>, in_run: bool) {
    let table = R::table();
    let with_checksums = input.byte().is_multiple_of(4);
    let original = if with_checksums {
        let Some(batch) = any_rows(&table, input) else { return };
        if write_shard(scratch.run.path(), &table, &meta(), PART, &[batch]).is_err() {
            return;
        }
        fs::read(scratch.path(table.name)).unwrap_or_default()
    } else {
        columns::foreign_file(&table, &meta(), MAX_ROWS, input).unwrap_or_default()
    };
    let Some(pages) = pages_end(&original) else { return };
    let before = if with_checksums { read::<R>(scratch, &table).rows } else { Vec::new() };
    let mut bytes = original.clone();
    while !input.is_empty() {
        change(&mut bytes, input);
    }
    scratch.write(table.name, &bytes);
    let rows = check_read::<R>(scratch, in_run);
    let is_footer_whole = bytes.len() == original.len() && bytes[pages..] == original[pages..];
    if with_checksums && is_footer_whole {
        let (rows, before) = (format!("{rows:?}"), format!("{before:?}"));
        assert!(rows == "[]" || rows == before, "{rows} instead of {before}");
        assert!(rows == before || bytes != original);
    }
}

/// Offset at which the pages of a Parquet file end and its footer begins.
fn pages_end(bytes: &[u8]) -> Option<usize> {
    let (length, _magic) = bytes.last_chunk::<8>()?.split_first_chunk::<4>()?;
    let footer = u32::from_le_bytes(*length) as usize + 8;
    bytes.len().checked_sub(footer)
}

/// One change of some bytes. Half of them lie near the end, where the footer is.
fn change(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let what = input.byte();
    let length = bytes.len().max(1);
    let at = if what >= 128 { length - 1 - input.below(length.min(600)) } else { input.below(length) };
    match what % 8 {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..(at + input.below(16)).min(bytes.len()))),
        2 => {
            let given = input.take(4);
            drop(bytes.splice(at.min(bytes.len())..at.min(bytes.len()), given.iter().copied()));
        }
        3 => {
            let from = input.below(length);
            let piece = bytes[from..(from + 32).min(bytes.len())].to_vec();
            drop(bytes.splice(at.min(bytes.len())..(at + piece.len()).min(bytes.len()), piece));
        }
        _ => {
            let value = input.byte();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if what % 8 < 6 { *byte ^ value } else { value };
            }
        }
    }
}
