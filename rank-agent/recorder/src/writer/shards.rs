//! The rank's shards: which part number comes next, and how a part reaches the disk.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use trace::{ClosedShard, PartRow, RecordBatch, Row, ShardMeta, Table, lock};

use crate::summary::Summary;

/// The most attempts to find a free part number. An attempt fails if another process of the rank takes the number first.
const MAX_PART_TRIES: usize = 100;

/// Shards that are closed before a part of their list is written. It bounds the list.
const MAX_UNLISTED: usize = 4096;

/// Writes the parts of one rank.
pub(super) struct Shards {
    run: PathBuf,
    meta: ShardMeta,
    next_part: BTreeMap<&'static str, u32>,
    /// Closed shards that no part of `parts` lists yet.
    unlisted: Vec<PartRow>,
    /// Number of closed shards, without those of `parts`.
    closed: i64,
    summary: Arc<Mutex<Summary>>,
}

impl Shards {
    pub(super) fn new(run: PathBuf, meta: ShardMeta, summary: Arc<Mutex<Summary>>) -> Self {
        Self { run, meta, next_part: BTreeMap::new(), unlisted: Vec::new(), closed: 0, summary }
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

    /// The next part number that this process has not tried. If other processes also write, a number that is free now.
    fn next_part(&self, table: &'static str, shared: bool) -> u32 {
        let mut part = self.next_part.get(table).copied().unwrap_or(0);
        while shared && self.path(table, part).exists() {
            part += 1;
        }
        part
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
                self.list(table, part, shard);
                Ok(())
            }
            Err(error) => {
                summary.failed_parts += 1;
                Err(error)
            }
        }
    }

    fn list(&mut self, table: &Table, part: u32, shard: ClosedShard) {
        if table.name == PartRow::table().name {
            return;
        }
        self.closed += 1;
        self.unlisted.push(shard.row(&self.meta, table, part));
        if self.unlisted.len() >= MAX_UNLISTED && self.write_list().is_err() {
            // `ranks` counts more shards than the list has then, and a reader says so.
            self.unlisted.clear();
        }
    }

    /// Lists the shards that were closed since the last list. Returns the number of all listed shards.
    pub(super) fn write_list(&mut self) -> Result<i64, trace::Error> {
        if !self.unlisted.is_empty() {
            let batch = trace::batch_from_rows(&self.unlisted)?;
            self.write(&PartRow::table(), &[batch])?;
            self.unlisted.clear();
        }
        Ok(self.closed)
    }
}

/// Whether the shard already exists. A file in place of its directory also gives `AlreadyExists`, but for another path.
pub(super) fn is_taken(error: &trace::Error, shard: &Path) -> bool {
    matches!(error, trace::Error::Io { path, source } if path == shard && source.kind() == ErrorKind::AlreadyExists)
}
