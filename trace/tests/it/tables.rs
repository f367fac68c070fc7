//! The schemas as text, and every table there and back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use trace::*;

use crate::common;

/// Invariant (code): Tables are what their documentation says.
///
/// Change a table, and this says so: raise `SCHEMA_VERSION`, then accept with `INSTA_UPDATE=always`.
#[test]
fn schemas_are_as_documented() {
    let mut text = format!("schema version {SCHEMA_VERSION}; * = never null\n");
    let writers = [("ranks", rank_tables()), ("the aggregator", analysis_tables()), ("map", part_tables())];
    for (writer, tables) in writers {
        for table in tables {
            let sorted = table.sorted_by.map_or(String::new(), |column| format!(", sorted by {column}"));
            text.push_str(&format!("\n[by {writer}{sorted}]\n{}", table.describe()));
        }
    }
    insta::assert_snapshot!("schemas", text);
}

/// Invariant (code): Tables are what their documentation says.
#[test]
fn columns_follow_the_naming_rules() {
    for table in rank_tables().into_iter().chain(analysis_tables()).chain(part_tables()) {
        assert!(table.doc.ends_with('.') || table.doc.ends_with('?'), "{}", table.name);
        let names: BTreeSet<&str> = table.columns.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), table.columns.len(), "{} names a column twice", table.name);
        for column in &table.columns {
            assert!(!column.doc.is_empty(), "{}.{}", table.name, column.name);
            // `_us` and `_ms` would be a second unit for times; only nanoseconds exist.
            assert!(!column.name.ends_with("_us") && !column.name.ends_with("_ms"), "{}.{}", table.name, column.name);
            if column.name.ends_with("_ns") {
                assert!(matches!(column.type_name, "BIGINT" | "DOUBLE" | "BIGINT[]"), "{}.{}", table.name, column.name);
            }
        }
    }
}

#[test]
fn views_are_documented_and_read_only_earlier_ones() {
    let mut earlier = BTreeSet::new();
    for view in views() {
        assert!(view.doc.ends_with('.') || view.doc.ends_with('?'), "{}: {}", view.name, view.doc);
        let names: BTreeSet<&str> = view.columns.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), view.columns.len(), "{} names a column twice", view.name);
        assert!(view.columns.iter().all(|c| !c.doc.is_empty()), "{}", view.name);
        if let ViewSource::Query { sql, .. } = view.source {
            let read = sql.split("$.").skip(1).map(|rest| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_string()
            });
            let unknown: Vec<String> = read.filter(|name| !earlier.contains(name)).collect();
            assert!(unknown.is_empty(), "{} reads {unknown:?}", view.name);
        }
        assert!(earlier.insert(view.name.clone()), "{} is defined twice", view.name);
    }
    let tables = rank_tables().into_iter().chain(analysis_tables());
    assert!(tables.map(|table| table.name.to_string()).all(|name| earlier.contains(&name)));
}

/// Later parts are small and many, and readers of many files take the schema of the first.
#[test]
fn files_carry_the_descriptions_of_their_columns() {
    use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
    let run = tempfile::tempdir().unwrap();
    let field = |path: &std::path::Path| {
        let file = std::fs::File::open(path).unwrap();
        let schema = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).unwrap().schema().clone();
        schema.field_with_name("dur_ns").unwrap().clone()
    };
    for (rank, part) in [(0, 0), (0, 1), (1, 0)] {
        common::write_rows(run.path(), &common::meta(rank), part, &common::events(rank, 3));
    }
    let table = run.path().join("table.parquet");
    write_table(&table, "id", &common::events(0, 3)).unwrap();
    for path in [shard_path(run.path(), "events", 0, 0), table] {
        let field = field(&path);
        assert_eq!(field.metadata().get("unit").map(String::as_str), Some("ns"));
        assert_eq!(
            field.metadata().get("description").map(String::as_str),
            Some("Length of the interval; never negative.")
        );
    }
    for (rank, part) in [(0, 1), (1, 0)] {
        assert!(field(&shard_path(run.path(), "events", rank, part)).metadata().is_empty());
    }
}

/// Invariant (same): The number of threads and the order of ranks change no byte.
///
/// Three row groups, in batches that end elsewhere. The threads take the columns in another order each time.
#[test]
fn columns_encoded_on_threads_give_the_same_bytes() {
    let rows = common::events(0, 2 * ROW_GROUP_ROWS + 1000);
    let batches: Vec<_> = rows.chunks(100_000).map(|chunk| batch_from_rows(chunk).unwrap()).collect();
    let on_threads = |columns: usize, encode: &(dyn Fn(usize) + Sync)| {
        let next = AtomicUsize::new(columns);
        let work = || {
            while let Ok(before) = next.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                encode(before - 1);
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
    };
    let (one, many) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let table = EventRow::table();
    let expected = write_shard(one.path(), &table, &common::meta(0), 0, &batches).unwrap();
    let closed = write_shard_with(many.path(), &table, &common::meta(0), 0, &batches, &on_threads).unwrap();
    assert_eq!((closed.rows, &closed), (rows.len() as u64, &expected));
    let bytes = |run: &tempfile::TempDir| std::fs::read(shard_path(run.path(), "events", 0, 0)).unwrap();
    assert!(bytes(&one) == bytes(&many));
    // A column that nothing encodes is an error and not a shard without it.
    let all_but_one = |columns: usize, encode: &(dyn Fn(usize) + Sync)| (1..columns).for_each(encode);
    let error = write_shard_with(many.path(), &table, &common::meta(0), 1, &batches, &all_but_one).unwrap_err();
    assert!(error.to_string().contains("a column was not encoded"), "{error}");
    assert!(!shard_path(many.path(), "events", 0, 1).exists());
}

/// Writes random rows of a table as a shard, reads them back and compares.
fn check<R: Row>() {
    const RANK: i32 = 3;
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&common::rows::<R>(RANK), |rows| {
        let run = tempfile::tempdir().unwrap();
        let table = R::table();
        // In two batches, whose dictionaries differ.
        let (first, second) = rows.split_at(rows.len() / 2);
        let batches = [batch_from_rows(first).unwrap(), batch_from_rows(second).unwrap()];
        let bytes = write_shard(run.path(), &table, &common::meta(RANK), 7, &batches).unwrap().bytes;
        let path = shard_path(run.path(), table.name, RANK, 7);
        let shard = Shard::open(&path, table.name).unwrap();
        let mut read: Vec<R> = Vec::new();
        shard
            .read(&table, None, |batch| -> Result<(), Error> {
                read.extend(rows_from_batch::<R>(batch)?);
                Ok(())
            })
            .unwrap();
        let same =
            |what: bool| if what { Ok(()) } else { Err(TestCaseError::fail(format!("{rows:?}\nread {read:?}"))) };
        same(read == rows)?;
        same((shard.rows, shard.bytes, shard.part) == (rows.len() as u64, bytes, 7))?;
        same(*shard.meta == common::meta(RANK))
    });
    if let Err(error) = outcome {
        panic!("table {}: {error}", R::table().name);
    }
}

struct Check;

impl RowVisitor for Check {
    fn visit<R: Row>(&mut self) {
        // A shard belongs to one rank, so that the one table whose rank may be null cannot be one.
        if R::table().name != "omissions" {
            check::<R>();
        }
    }
}

#[test]
fn every_rank_table_comes_back_as_it_was_written() {
    visit_rank_tables(&mut Check);
}

#[test]
fn every_analysis_table_comes_back_as_it_was_written() {
    visit_analysis_tables(&mut Check);
}

#[test]
fn every_table_of_the_parts_comes_back_as_it_was_written() {
    visit_part_tables(&mut Check);
}

#[test]
fn the_filled_tables_are_those_that_are_declared() {
    let mut tables = Tables::default();
    for table in tables.all_mut() {
        table.push_default();
    }
    tables.append(Tables { findings: vec![FindingRow::default()], ..Tables::default() });
    let rows: Vec<(&str, usize)> =
        tables.all().iter().map(|table| (table.table().name, table.batch().unwrap().num_rows())).collect();
    assert!(rows.iter().all(|(name, rows)| *rows == if *name == "findings" { 2 } else { 1 }), "{rows:?}");
    let names = |tables: Vec<Table>| tables.iter().map(|table| table.name).collect::<BTreeSet<_>>();
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), names(analysis_tables()));
    let serde_json::Value::Object(json) = serde_json::to_value(&tables).unwrap() else { panic!("an object") };
    assert_eq!(json.len(), rows.len());
    let apart = names(analysis_tables()).is_disjoint(&names(rank_tables()));
    assert!(apart, "views have the names of tables");
    let others: BTreeSet<&str> = &names(analysis_tables()) | &names(rank_tables());
    assert!(names(part_tables()).is_disjoint(&others), "a directory of parts holds tables of all writers");
}

#[test]
fn a_projection_reads_only_what_is_named() {
    let run = tempfile::tempdir().unwrap();
    common::write_rows(run.path(), &common::meta(0), 0, &common::events(0, 10));
    let shard = Shard::open(&shard_path(run.path(), "events", 0, 0), "events").unwrap();
    let mut names = Vec::new();
    shard
        .read(&EventRow::table(), Some(&["name", "ts_ns", "no such column"]), |batch| -> Result<(), Error> {
            names = column_names(batch);
            let columns = column::<Text>(batch, "events", "name")?;
            assert_eq!(&*Text::get(&columns, 0), "gemm");
            assert!(matches!(
                column::<i64>(batch, "events", "dur_ns"),
                Err(Error::MissingColumn { column, .. }) if column == "dur_ns"
            ));
            assert!(matches!(
                column::<i32>(batch, "events", "ts_ns"),
                Err(Error::ColumnType { found, .. }) if found == "Int64"
            ));
            Ok(())
        })
        .unwrap();
    assert_eq!(names, ["name".into(), Text::from("ts_ns")]);
}

/// Invariant (files): A part is whole or absent, and no writer overwrites a shard. Only the analysis may be written
/// again.
#[test]
fn the_analysis_may_be_written_again_but_a_shard_may_not() {
    let run = tempfile::tempdir().unwrap();
    let path = run.path().join(ANALYSIS_DIR).join("findings.parquet");
    for _ in 0..2 {
        write_table(&path, "test", &vec![FindingRow::default()]).unwrap();
    }

    common::write_rows(run.path(), &common::meta(0), 0, &common::events(0, 3));
    let again = batch_from_rows(&common::events(0, 1)).unwrap();
    let error = write_shard(run.path(), &EventRow::table(), &common::meta(0), 0, &[again]).unwrap_err();
    assert!(matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists));
    let shard = Shard::open(&shard_path(run.path(), "events", 0, 0), "events").unwrap();
    assert_eq!(shard.rows, 3);
    let leftovers = std::fs::read_dir(run.path().join("events")).unwrap().count();
    assert_eq!(leftovers, 1, "the temporary file of the refused part is gone");
}

#[test]
fn only_shard_names_are_parsed() {
    assert_eq!(parse_shard_name("rank-00003-0000.parquet"), Some((3, 0)));
    assert_eq!(parse_shard_name("rank-123456-10000.parquet"), Some((123_456, 10_000)));
    for name in [
        "",
        "rank-.parquet",
        "rank-1.parquet",
        "rank--1-0.parquet",
        "rank-1-0.parquet.tmp",
        "rank-+1-0.parquet",
        "rank-99999999999-0.parquet",
        "Rank-1-0.parquet",
        "rank-1-0-2.parquet",
        "rank-١-0.parquet",
    ] {
        assert_eq!(parse_shard_name(name), None, "{name}");
    }
}
