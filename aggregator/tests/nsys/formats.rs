//! One export in three formats: the same ranks from SQLite, from a directory of Parquet files and from one of Arrow files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use drawn::check_source;
use formats::nsys::NsysSource;
use model::RankData;
use model::source::Source;
use parquet::arrow::ArrowWriter;
use rusqlite::Connection;
use rusqlite::types::{Value, ValueRef};

use crate::export::{export, omitted, opened, rows};
use crate::real::files;

/// The formats of files in which tables are written.
#[derive(Clone, Copy, Debug)]
enum Format {
    Parquet,
    ArrowFile,
    ArrowStream,
}

/// A column of an SQLite table: numbers if it has no text, and else texts, every other one of them with a dictionary.
fn column(values: &[Value], at: usize) -> ArrayRef {
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        Value::Blob(bytes) => Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        Value::Integer(number) => Some(number.to_string()),
        _ => None,
    };
    let is_number = |value: &Value| matches!(value, Value::Null | Value::Integer(_));
    if values.iter().all(is_number) {
        let number = |value: &Value| if let Value::Integer(number) = value { Some(*number) } else { None };
        return Arc::new(values.iter().map(number).collect::<Int64Array>());
    }
    if at.is_multiple_of(2) {
        return Arc::new(values.iter().map(text).collect::<StringArray>());
    }
    let mut dictionary = StringDictionaryBuilder::<Int32Type>::new();
    values.iter().for_each(|value| dictionary.append_option(text(value)));
    Arc::new(dictionary.finish())
}

/// A value; bytes of a text that are no UTF-8 are replaced, because no other format has such texts.
fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
        other => Value::try_from(other).unwrap(),
    }
}

fn table(connection: &Connection, name: &str) -> RecordBatch {
    let mut statement = connection.prepare(&format!("SELECT * FROM \"{name}\"")).unwrap();
    let names: Vec<String> = statement.column_names().into_iter().map(String::from).collect();
    let mut columns: Vec<Vec<Value>> = vec![Vec::new(); names.len()];
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        columns.iter_mut().enumerate().for_each(|(at, values)| values.push(value(row.get_ref(at).unwrap())));
    }
    let columns = columns.iter().enumerate().map(|(at, values)| column(values, at));
    RecordBatch::try_from_iter_with_nullable(names.into_iter().zip(columns).map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Writes the tables of an SQLite file to a directory, in batches of `batch_rows`.
fn as_directory(sqlite: &Path, directory: &Path, format: Format, batch_rows: usize) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let connection = Connection::open(sqlite).unwrap();
    let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let names: Vec<String> =
        connection.prepare(names).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    for name in names {
        let batch = table(&connection, &name);
        let ending = if matches!(format, Format::Parquet) { "parquet" } else { "arrow" };
        let file = File::create(directory.join(format!("{name}.{ending}"))).unwrap();
        let schema = batch.schema();
        let parts = (0..batch.num_rows()).step_by(batch_rows);
        let parts = parts.map(|from| batch.slice(from, batch_rows.min(batch.num_rows() - from)));
        match format {
            Format::Parquet => {
                let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
                parts.for_each(|part| writer.write(&part).unwrap());
                writer.close().unwrap();
            }
            // A dictionary of a file may not change, so a file has one batch.
            Format::ArrowFile => {
                let mut writer = FileWriter::try_new(file, &schema).unwrap();
                writer.write(&batch).unwrap();
                writer.finish().unwrap();
            }
            Format::ArrowStream => {
                let mut writer = StreamWriter::try_new(file, &schema).unwrap();
                parts.for_each(|part| writer.write(&part).unwrap());
                writer.finish().unwrap();
            }
        }
    }
    directory.into()
}

#[test]
fn the_small_inputs_are_what_is_written_here() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        std::fs::create_dir(directory.path().join(name)).unwrap();
        directory.path().join(name)
    };
    let (sqlite, parquet) = (place("sqlite"), place("parquet"));
    let exported = export(&sqlite, "job.sqlite");
    as_directory(&exported, &parquet.join("job_pqtdir"), Format::Parquet, 1_000);
    fixtures::generated::check_folder("fixtures/inputs/nsys_sqlite", &sqlite);
    fixtures::generated::check_folder("fixtures/inputs/nsys_parquet", &parquet);
}

/// All ranks, without the names of files.
fn loaded(path: &Path) -> Vec<RankData> {
    let source = opened(&[path.to_path_buf()]);
    let load = |rank: i32| {
        let mut data = source.load(rank).unwrap();
        data.outline.info.file = "".into();
        data.outline.info.clock_domain = data.outline.info.clock_domain.replace(&*path.to_string_lossy(), "EXPORT");
        data.omissions.iter_mut().for_each(|omission| omission.file = None);
        data
    };
    source.ranks().into_iter().map(load).collect()
}

const FORMATS: [Format; 3] = [Format::Parquet, Format::ArrowFile, Format::ArrowStream];

/// Invariant (formats): Nsight Systems: the formats of one export give the same ranks.
#[test]
fn the_formats_of_one_export_give_the_same_ranks() {
    let directory = tempfile::tempdir().unwrap();
    each_format_gives_the_same_ranks(&[export(directory.path(), "small.sqlite")]);
}

/// Invariant (formats): Nsight Systems: the formats of one export give the same ranks.
#[test]
#[ignore = "reads real traces"]
fn the_formats_of_real_exports_give_the_same_ranks() {
    each_format_gives_the_same_ranks(&files());
}

fn each_format_gives_the_same_ranks(exports: &[PathBuf]) {
    let directory = tempfile::tempdir().unwrap();
    for (at, sqlite) in exports.iter().enumerate() {
        let expected = loaded(sqlite);
        for format in FORMATS {
            let written =
                as_directory(sqlite, &directory.path().join(format!("{format:?}_{at}_pqtdir")), format, 1_000);
            let found = loaded(&written);
            assert_eq!(found.len(), expected.len(), "{format:?} of {}", sqlite.display());
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found == expected, "{format:?} of {}: rank {}", sqlite.display(), found.outline.info.rank);
            }
        }
    }
}

/// Invariant (formats): Nsight Systems: a table that is cut or broken is a loss that names the table.
#[test]
fn a_table_that_is_cut_or_broken_is_a_loss_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = export(directory.path(), "small.sqlite");
    let kernels = "CUPTI_ACTIVITY_KIND_KERNEL";
    let whole: Vec<usize> = loaded(&sqlite).iter().map(|data| rows(data, model::Kind::Kernel)).collect();
    for format in FORMATS {
        let written = as_directory(&sqlite, &directory.path().join(format!("{format:?}")), format, 2);
        let ending = if matches!(format, Format::Parquet) { "parquet" } else { "arrow" };
        let file = written.join(format!("{kernels}.{ending}"));
        let bytes = std::fs::read(&file).unwrap();
        let mut changed: Vec<Vec<u8>> = (0..bytes.len()).step_by(29).map(|end| bytes[..end].to_vec()).collect();
        changed.extend((0..bytes.len()).step_by(23).map(|at| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xff;
            bytes
        }));
        let cuts = bytes.len().div_ceil(29);
        for (at, bytes) in changed.iter().enumerate() {
            std::fs::write(&file, bytes).unwrap();
            let Ok(source) = NsysSource::open(std::slice::from_ref(&written)) else { continue };
            check_source(&source);
            let data: Vec<RankData> = source.ranks().into_iter().map(|rank| source.load(rank).unwrap()).collect();
            let found: Vec<usize> = data.iter().map(|data| rows(data, model::Kind::Kernel)).collect();
            let problems = source.problems();
            let mut said = data.iter().flat_map(omitted).filter(|(kind, ..)| *kind == "lost").map(|(_, what, _)| what);
            let is_said = said.any(|what| what.contains(kernels))
                || problems.iter().any(|problem| &*problem.kind == "lost" && problem.what.contains(kernels));
            assert!(is_said || at >= cuts || found == whole, "{format:?} cut {at}: {found:?} of {whole:?}");
        }
    }
}

#[test]
fn a_directory_without_tables_is_no_export() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("StringIds.parquet"), b"PAR1").unwrap();
    let error = NsysSource::open(&[directory.path().to_path_buf()]).unwrap_err().to_string();
    assert!(error.contains("none of the tables"), "{error}");
}
