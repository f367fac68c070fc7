//! Joins parts of a table into one, so that a long recording leaves few files.
//!
//! ```text
//!  rank-00003-0008   rank-00003-0009   …   rank-00003-0015
//!        └──────────────────┴───────────────────┘
//!  rank-00003-0008, with `rankscope.parts` = 8:1000,9:990,…     replaces the first part, then the others are removed
//! ```
//!
//! A process that is killed between the two steps leaves parts whose rows the joined one has, too; readers pass over them. The bytes
//! of the row groups are copied and not encoded again, so each part stays sorted by itself only.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::arrow::ArrowSchemaConverter;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::write::{meta_pairs, sorting};
use super::{ClosedShard, Shard, ShardMeta, read_footer, shard_path};
use crate::checksum::{self, Hashed};
use crate::keys::KEY_PARTS;
use crate::place::{self, Opened};
use crate::{Error, Table, files};

/// A part whose bytes are sound.
struct Source {
    file: Opened,
    metadata: Arc<ParquetMetaData>,
    /// The parts that it holds, with their rows.
    parts: Vec<(u32, u64)>,
}

impl Source {
    fn open(path: &Path, table: &Table) -> Result<Self, Error> {
        let parquet = |source| Error::Parquet { path: path.into(), source };
        let io = |source| Error::Io { path: path.into(), source };
        let parts = Shard::open(path, table.name)?.parts;
        let file = place::open(path).map_err(io)?;
        let metadata = read_footer(&file, file.size_bytes().map_err(io)?).map_err(parquet)?.metadata().clone();
        match checksum::sound_bytes(&file, &metadata).map_err(parquet)? {
            None => Ok(Self { file, metadata, parts }),
            Some(sound) => {
                let why = format!("the file is damaged from byte {sound} on");
                Err(parquet(ParquetError::General(why)))
            }
        }
    }
}

/// Joins parts of a rank's table into `first`. `others` follow it, ascending, and are of the same process. After an error, no row is
/// lost or doubled.
///
/// # Errors
/// [`Error::Parquet`], also if a part is damaged; [`Error::Io`].
pub fn join_parts(
    run: &Path,
    table: &Table,
    meta: &ShardMeta,
    (first, others): (u32, &[u32]),
) -> Result<ClosedShard, Error> {
    let path = &shard_path(run, table.name, meta.rank, first);
    let others: Vec<PathBuf> = others.iter().map(|part| shard_path(run, table.name, meta.rank, *part)).collect();
    let sources = std::iter::once(path).chain(&others).map(|path| Source::open(path, table));
    let sources: Vec<Source> = sources.collect::<Result<_, _>>()?;
    let rows = sources.iter().flat_map(|source| &source.parts).map(|(_, rows)| rows).sum();
    let mut footer_xxh3 = String::new();
    let bytes = files::replace(path, |file| {
        footer_xxh3 = copy(file, path, (table, meta, first), &sources)?;
        Ok::<_, Error>(())
    })?;
    for other in others {
        match fs::remove_file(&other) {
            // Readers pass over a part that stays.
            Err(source) if source.kind() != ErrorKind::NotFound => return Err(Error::Io { path: other, source }),
            _ => {}
        }
    }
    Ok(ClosedShard { bytes, rows, footer_xxh3 })
}

/// Copies the row groups of all sources, and returns the checksum of the footer.
fn copy(
    file: &mut (impl Write + Send),
    path: &Path,
    (table, meta, first): (&Table, &ShardMeta, u32),
    sources: &[Source],
) -> Result<String, Error> {
    let parquet = |source| Error::Parquet { path: path.into(), source };
    let io = |source| Error::Io { path: path.into(), source };
    let held = sources.iter().flat_map(|source| &source.parts).map(|(part, rows)| format!("{part}:{rows}"));
    let held = KeyValue::new(KEY_PARTS.to_string(), held.collect::<Vec<String>>().join(","));
    let pairs = meta_pairs(table, meta, first).into_iter().chain([held]).collect();
    let properties =
        WriterProperties::builder().set_key_value_metadata(Some(pairs)).set_sorting_columns(sorting(table));
    let schema = ArrowSchemaConverter::new().convert(&table.schema()).map_err(parquet)?.root_schema_ptr();
    let properties = Arc::new(properties.build());
    let mut writer = SerializedFileWriter::new(Hashed::new(file), schema, properties).map_err(parquet)?;
    for source in sources {
        for group in source.metadata.row_groups() {
            let mut out = writer.next_row_group().map_err(parquet)?;
            for column in group.columns() {
                let close = ColumnCloseResult {
                    bytes_written: column.compressed_size().unsigned_abs(),
                    rows_written: group.num_rows().unsigned_abs(),
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                out.append_column(&source.file, close).map_err(parquet)?;
            }
            out.close().map_err(parquet)?;
            writer.flush().map_err(io)?;
            writer.inner_mut().end_block();
        }
    }
    writer.flush().map_err(io)?;
    writer.inner_mut().end_block();
    let checksums = writer.inner().checksums();
    writer.append_key_value_metadata(checksums);
    Ok(writer.into_inner().map_err(parquet)?.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventRow, Manifest, Row, Run, batch_from_rows, write_shard};

    fn meta(pid: i64) -> ShardMeta {
        ShardMeta {
            run_id: "a run".into(),
            rank: 3,
            host: "a host".into(),
            pid,
            boot_id: String::new(),
            clock_domain: "a clock".into(),
            session: "a session".into(),
        }
    }

    fn event(id: i64, ts_ns: i64) -> EventRow {
        EventRow { rank: 3, id, ts_ns, name: "gemm".into(), step: Some(id as i32), ..EventRow::default() }
    }

    /// A run with these parts of `events`: each has the times of its rows.
    fn run(parts: &[&[i64]]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let manifest = Manifest {
            schema_version: crate::SCHEMA_VERSION,
            run_id: "a run".into(),
            world_size: 4,
            created_utc_ns: 1,
            tool: "a test".into(),
            command: Vec::new(),
            config: serde_json::Map::new(),
        };
        drop(manifest.begin(directory.path()).unwrap());
        let mut id = 0;
        for (part, times) in (0..).zip(parts) {
            let rows: Vec<EventRow> = times
                .iter()
                .map(|ts_ns| {
                    id += 1;
                    event(id, *ts_ns)
                })
                .collect();
            let batch = batch_from_rows(&rows).unwrap();
            write_shard(directory.path(), &EventRow::table(), &meta(1), part, &[batch]).unwrap();
        }
        directory
    }

    fn rows(run: &Path) -> (Vec<EventRow>, usize) {
        let run = Run::open(run).unwrap();
        let (rows, problems) = run.rows::<EventRow>(3);
        assert!(problems.is_empty() && run.problems.iter().all(|problem| problem.rank != Some(3)), "{problems:?}");
        (rows, run.shards(3, "events").len())
    }

    fn join(run: &Path, first: u32, others: &[u32]) -> Result<ClosedShard, Error> {
        join_parts(run, &EventRow::table(), &meta(1), (first, others))
    }

    /// The second part begins before the first one ends.
    ///
    /// Invariant (files): Parts that are joined have the same rows as before, each once.
    #[test]
    fn joined_parts_have_the_rows_of_all() {
        let directory = run(&[&[10, 30], &[20, 40], &[], &[50], &[60, 70]]);
        let run = directory.path();
        let (before, parts) = rows(run);
        assert_eq!((before.len(), parts), (7, 5));
        let joined = join(run, 0, &[1, 2]).unwrap();
        assert_eq!(joined.rows, 4);
        assert_eq!(rows(run), (before.clone(), 3));
        join(run, 3, &[4]).unwrap();
        join(run, 0, &[3]).unwrap();
        assert_eq!(rows(run), (before, 1));
        let shard = Shard::open(&shard_path(run, "events", 3, 0), "events").unwrap();
        assert_eq!(shard.parts, [(0, 2), (1, 2), (2, 0), (3, 1), (4, 2)]);
        assert_eq!((shard.last_step, shard.meta.pid), (Some(7), 1));
    }

    /// Invariant (files): A process that is killed while it joins parts neither loses nor doubles a row.
    #[test]
    fn a_join_that_is_killed_changes_no_rows() {
        let directory = run(&[&[10], &[20], &[30]]);
        let run = directory.path();
        let before = rows(run).0;
        let path = |part| shard_path(run, "events", 3, part);
        let left = [1, 2].map(|part| fs::read(path(part)).unwrap());
        join(run, 0, &[1, 2]).unwrap();
        for (part, bytes) in (1..).zip(&left) {
            fs::write(path(part), bytes).unwrap();
            assert_eq!(rows(run), (before.clone(), 1), "part {part} is there again");
        }
        // Another process of the rank has a number that became free.
        fs::remove_file(path(2)).unwrap();
        let other = batch_from_rows(&[event(9, 40)]).unwrap();
        write_shard(run, &EventRow::table(), &meta(2), 2, &[other]).unwrap();
        assert_eq!(rows(run), ([before, vec![event(9, 40)]].concat(), 2));
    }

    #[test]
    fn a_damaged_part_is_not_joined() {
        let directory = run(&[&[10], &[20]]);
        let path = shard_path(directory.path(), "events", 3, 1);
        let mut bytes = fs::read(&path).unwrap();
        bytes[10] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(join(directory.path(), 0, &[1]), Err(Error::Parquet { .. })));
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(Shard::open(&shard_path(directory.path(), "events", 3, 0), "events").unwrap().rows, 1);
        assert!(join(directory.path(), 0, &[7]).is_err(), "a part that is not there");
    }
}
