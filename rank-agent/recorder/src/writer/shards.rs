//! The rank's shards: which part number comes next, how a part reaches the disk, when parts are joined, and when they are removed.
//!
//! ```text
//!   0 1 2 3 | 4 5 6 7 8 9 10 11     the oldest four of twelve parts become one,
//!   0       | 4 5 6 7 8 9 10 11     and four of these become one again: an hour leaves tens of files and not thousands
//! ```
//!
//! The newest eight stay, because `watch` reads them while they come.
//!
//! With [`Options::keep`](crate::Options::keep), parts leave in two steps, so that a killed process has either the rows or their count:
//!
//! ```text
//!   leave()    parts that are old enough: their rows are counted as left out, and the counts are written
//!   remove()   the files go
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trace::{
    ClosedShard, CollectiveRow, EventRow, KEEP_SOURCE, MemoryRow, PartRow, RankRow, RecordBatch, Row, ShardMeta,
    StepRow, Table, join_parts, lock, parse_shard_name,
};

use super::counts::Counts;
use crate::clock::Clock;
use crate::summary::Summary;

/// The most attempts to find a free part number. An attempt fails if another process of the rank takes the number first.
const MAX_PART_TRIES: usize = 100;

/// Shards that are closed before a part of their list is written. It bounds the list.
const MAX_UNLISTED: usize = 4096;

/// Parts that are joined at a time.
const JOINED: usize = 4;

/// The newest parts, which are not joined.
const KEPT: usize = 8;

/// A part of so many bytes is joined no more.
const MAX_JOINED_BYTES: u64 = 32 << 20;

/// After so long without a part, other processes of the rank may have written and joined parts beyond the next number.
const MAY_BE_JOINED_AFTER: Duration = Duration::from_secs(2);

/// Parts are joined while they span at most this part of the time for which rows are kept.
const JOINED_SPANS: u32 = 8;

/// A part of a table that grows with time.
#[derive(Clone, Debug)]
struct Dated {
    part: u32,
    rows: u64,
    bytes: u64,
    /// When its first rows were written, and its last ones.
    written: [Instant; 2],
    /// A time of the recorder's clock after all of its rows began.
    before_ns: i64,
}

/// Whether old parts of a table are removed. The others are small, or are needed to read what stays.
fn grows_with_time(table: &str) -> bool {
    [EventRow::table().name, CollectiveRow::table().name, MemoryRow::table().name, StepRow::table().name]
        .contains(&table)
}

/// Writes the parts of one rank.
pub(super) struct Shards {
    run: PathBuf,
    meta: ShardMeta,
    next_part: BTreeMap<&'static str, u32>,
    /// When this process wrote a part of each table last.
    written: BTreeMap<&'static str, Instant>,
    /// For each table, the parts of this process that can be joined: those that were never joined, those that were once, …. A part
    /// that is listed can not.
    joinable: BTreeMap<&'static str, Vec<Vec<u32>>>,
    /// Closed shards that no part of `parts` lists yet.
    unlisted: Vec<PartRow>,
    /// Number of closed shards, without those of `parts`.
    closed: i64,
    summary: Arc<Mutex<Summary>>,
    clock: Clock,
    /// How long parts are kept, if not for ever.
    keep: Option<Duration>,
    /// The parts of tables that grow with time, the oldest first.
    dated: BTreeMap<&'static str, VecDeque<Dated>>,
    /// Parts whose rows are counted as left out.
    counted: Vec<(&'static str, Dated)>,
}

impl Shards {
    pub(super) fn new(
        run: PathBuf,
        meta: ShardMeta,
        summary: Arc<Mutex<Summary>>,
        (clock, keep): (Clock, Option<Duration>),
    ) -> Self {
        let (next_part, written, joinable, dated) = Default::default();
        let (unlisted, closed, counted) = (Vec::new(), 0, Vec::new());
        Self { run, meta, next_part, written, joinable, unlisted, closed, summary, clock, keep, dated, counted }
    }

    /// Writes the next part of a table and returns its number.
    pub(super) fn write(&mut self, table: &Table, batches: &[RecordBatch]) -> Result<u32, trace::Error> {
        let shared = !self.meta.session.is_empty();
        for _ in 1..MAX_PART_TRIES {
            let part = self.next_part(table.name, shared);
            match self.write_part(table, batches, part) {
                // Another process of the rank has taken this number: not an error yet.
                Err(error) if shared && is_taken(&error, &self.path(table.name, part)) => {}
                written => return written.map(|()| part),
            }
        }
        let part = self.next_part(table.name, shared);
        self.write_part(table, batches, part).map(|()| part)
    }

    /// Path of a part.
    pub(super) fn path(&self, table: &str, part: u32) -> PathBuf {
        trace::shard_path(&self.run, table, self.meta.rank, part)
    }

    /// The next part number that this process has not tried. If other processes also write, a number beyond theirs: they may have
    /// joined parts, whose numbers are free, and `watch` looks for new parts beyond those that it knows.
    fn next_part(&self, table: &'static str, shared: bool) -> u32 {
        let mut part = self.next_part.get(table).copied().unwrap_or(0);
        let is_recent = self.written.get(table).is_some_and(|written| written.elapsed() < MAY_BE_JOINED_AFTER);
        if shared && !is_recent {
            part = part.max(self.last_part(table).map_or(0, |last| last + 1));
        }
        while shared && self.path(table, part).exists() {
            part += 1;
        }
        part
    }

    /// The last part of any process of the rank. A directory that cannot be listed has none yet.
    fn last_part(&self, table: &str) -> Option<u32> {
        let directory = self.path(table, 0).parent()?.to_path_buf();
        let names = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let parts = names.filter_map(|name| parse_shard_name(name.to_str()?));
        parts.filter(|(rank, _)| *rank == self.meta.rank).map(|(_, part)| part).max()
    }

    /// Writes part `part` of a table, unless it exists.
    pub(super) fn write_part(&mut self, table: &Table, batches: &[RecordBatch], part: u32) -> Result<(), trace::Error> {
        let written = trace::write_shard(&self.run, table, &self.meta, part, batches);
        // An existing part is never overwritten; the next attempt uses the following number.
        if written.as_ref().err().is_none_or(|error| is_taken(error, &self.path(table.name, part))) {
            self.next_part.insert(table.name, part + 1);
        }
        let mut summary = lock(&self.summary);
        match written {
            Ok(shard) => {
                summary.bytes += shard.bytes;
                summary.shards += 1;
                drop(summary);
                let now = Instant::now();
                self.written.insert(table.name, now);
                if self.keep.is_some() && grows_with_time(table.name) {
                    let (rows, bytes, before_ns) = (shard.rows, shard.bytes, self.clock.now_ns());
                    let dated = Dated { part, rows, bytes, written: [now; 2], before_ns };
                    self.dated.entry(table.name).or_default().push_back(dated);
                }
                self.list(table, part, shard, 0);
                self.join(table);
                Ok(())
            }
            Err(error) => {
                summary.failed_parts += 1;
                Err(error)
            }
        }
    }

    /// Lists a part that was joined so often.
    fn list(&mut self, table: &Table, part: u32, shard: ClosedShard, times: usize) {
        if table.name == PartRow::table().name {
            return;
        }
        // The first row of a process in `ranks` claims the rank by its name.
        if table.name != RankRow::table().name && shard.bytes < MAX_JOINED_BYTES {
            let of_table = self.joinable.entry(table.name).or_default();
            of_table.resize_with(of_table.len().max(times + 1), Vec::new);
            of_table[times].push(part);
        }
        self.closed += 1;
        self.unlisted.push(shard.row(&self.meta, table, part));
        if self.unlisted.len() >= MAX_UNLISTED && self.write_list().is_err() {
            // `ranks` counts more shards than the list has then, and a reader says so.
            self.unlisted.clear();
        }
    }

    /// Joins parts of a table where there are enough that were joined as often.
    fn join(&mut self, table: &Table) {
        for times in 0.. {
            let Some(parts) = self.joinable.get_mut(table.name).and_then(|of_table| of_table.get_mut(times)) else {
                return;
            };
            if parts.len() < JOINED + if times == 0 { KEPT } else { 0 } {
                return;
            }
            let parts: Vec<u32> = parts.drain(..JOINED).collect();
            if !self.may_be_joined(table.name, &parts) {
                continue;
            }
            // Parts that cannot be joined stay as they are, and are not tried again: no row is lost.
            if let Ok(shard) = join_parts(&self.run, table, &self.meta, (parts[0], &parts[1..])) {
                let is_joined = |row: &PartRow| {
                    *row.table_name == *table.name && parts.iter().any(|part| i64::from(*part) == row.part)
                };
                let joined_bytes: i64 = self.unlisted.iter().filter(|row| is_joined(row)).map(|row| row.bytes).sum();
                self.unlisted.retain(|row| !is_joined(row));
                self.closed -= JOINED as i64;
                self.sizes_changed(1 - JOINED as i64, shard.bytes as i64 - joined_bytes);
                self.date_joined(table.name, &parts, shard.bytes);
                self.list(table, parts[0], shard, times + 1);
            }
        }
    }

    fn sizes_changed(&self, shards: i64, bytes: i64) {
        let mut summary = lock(&self.summary);
        summary.shards = summary.shards.saturating_add_signed(shards);
        summary.bytes = summary.bytes.saturating_add_signed(bytes);
    }

    /// The first and the last of ascending parts, if all are dated.
    fn dated(&self, table: &str, parts: &[u32]) -> Option<[usize; 2]> {
        let of_table = self.dated.get(table)?;
        let at = |part: u32| of_table.binary_search_by_key(&part, |dated| dated.part).ok();
        Some([at(*parts.first()?)?, at(*parts.last()?)?])
    }

    /// Whether parts may become one: not if it would stay for long after its first rows are old enough to go.
    fn may_be_joined(&self, table: &str, parts: &[u32]) -> bool {
        let Some(keep) = self.keep.filter(|_| grows_with_time(table)) else { return true };
        let Some([first, last]) = self.dated(table, parts) else { return false };
        let of_table = &self.dated[table];
        of_table[last].written[1].duration_since(of_table[first].written[0]) <= keep / JOINED_SPANS
    }

    fn date_joined(&mut self, table: &str, parts: &[u32], bytes: u64) {
        let Some([first, last]) = self.dated(table, parts) else { return };
        if let Some(of_table) = self.dated.get_mut(table) {
            let rows = of_table.range(first..=last).map(|dated| dated.rows).sum();
            let Dated { written: [_, written], before_ns, .. } = of_table[last];
            of_table.drain(first + 1..=last);
            let joined = &mut of_table[first];
            *joined = Dated { rows, bytes, written: [joined.written[0], written], before_ns, ..*joined };
        }
    }

    /// Counts the rows of the parts that have become older than those that are kept. As soon as the counts are written,
    /// [`remove`](Self::remove) removes their files.
    pub(super) fn leave(&mut self, counts: &mut Counts) {
        let Some(keep) = self.keep else { return };
        let why = format!("only the rows of the newest {} s are kept (--keep)", keep.as_secs_f64());
        for (table, dated) in &mut self.dated {
            let old = dated.partition_point(|dated| dated.written[1].elapsed() > keep);
            for old in dated.drain(..old) {
                counts.leave_out_before(&format!("{KEEP_SOURCE}{table}"), old.rows, old.before_ns, &why);
                self.counted.push((table, old));
            }
        }
    }

    /// Removes the parts whose rows are counted as left out. One that cannot be removed stays for the next time.
    pub(super) fn remove(&mut self) {
        for (table, dated) in std::mem::take(&mut self.counted) {
            match std::fs::remove_file(self.path(table, dated.part)) {
                Err(error) if error.kind() != ErrorKind::NotFound => self.counted.push((table, dated)),
                _ => {
                    self.closed -= 1;
                    self.unlisted.retain(|row| *row.table_name != *table || row.part != i64::from(dated.part));
                    self.joinable
                        .get_mut(table)
                        .into_iter()
                        .flatten()
                        .for_each(|of| of.retain(|part| *part != dated.part));
                    self.sizes_changed(-1, -(dated.bytes as i64));
                }
            }
        }
    }

    /// Lists the shards that were closed since the last list. Returns the number of all listed shards.
    pub(super) fn write_list(&mut self) -> Result<i64, trace::Error> {
        if !self.unlisted.is_empty() {
            let batch = trace::batch_from_rows(&self.unlisted)?;
            self.write(&PartRow::table(), &[batch])?;
            self.unlisted.clear();
            self.joinable.clear();
        }
        Ok(self.closed)
    }
}

/// Whether the shard already exists. A file in place of its directory also gives `AlreadyExists`, but for another path.
pub(super) fn is_taken(error: &trace::Error, shard: &Path) -> bool {
    matches!(error, trace::Error::Io { path, source } if path == shard && source.kind() == ErrorKind::AlreadyExists)
}
