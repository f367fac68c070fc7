//! Arrow columns of any values, and Parquet files of another writer.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder, StringDictionaryBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, new_empty_array,
    new_null_array,
};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::ColumnPath;
use trace::{
    KEY_BOOT_ID, KEY_CLOCK_DOMAIN, KEY_HOST, KEY_PID, KEY_RANK, KEY_RUN_ID, KEY_SCHEMA_VERSION, KEY_SESSION,
    SCHEMA_VERSION, ShardMeta, Table,
};

use crate::input::Input;

/// The numbers of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Range {
    Any,
    Only(i64),
    Ascending,
    Positive,
}

/// A column of `rows` cells.
pub(crate) fn array(
    data_type: &DataType,
    nullable: bool,
    rows: usize,
    range: Range,
    input: &mut Input<'_>,
) -> ArrayRef {
    let mut last = i64::MIN;
    let mut number = |input: &mut Input<'_>| match range {
        Range::Only(value) => value,
        Range::Any => input.number(),
        Range::Positive => input.number().max(0),
        Range::Ascending => {
            last = input.number().max(last);
            last
        }
    };
    // Most nulls of a column are in a row, as in real shards.
    let nulls = if nullable { input.byte() } else { 0 };
    let is_null = |row: usize| nulls == u8::MAX || nulls >> (row % 8) & 1 != 0;
    let cells = (0..rows).map(|row| !is_null(row));
    match data_type {
        DataType::Int32 => {
            let cells = cells.map(|there| there.then(|| number(input).clamp(i32::MIN.into(), i32::MAX.into()) as i32));
            Arc::new(cells.collect::<Int32Array>())
        }
        DataType::Int64 => Arc::new(cells.map(|there| there.then(|| number(input))).collect::<Int64Array>()),
        DataType::Float64 => {
            let double = |input: &mut Input<'_>| match input.byte() {
                255 => f64::NAN,
                254 => f64::INFINITY,
                253 => f64::from_bits(input.number() as u64),
                small => f64::from(small) / 4.0,
            };
            Arc::new(cells.map(|there| there.then(|| double(input))).collect::<Float64Array>())
        }
        DataType::Boolean => {
            Arc::new(cells.map(|there| there.then(|| input.byte() % 2 == 1)).collect::<BooleanArray>())
        }
        DataType::Utf8 => Arc::new(cells.map(|there| there.then(|| input.text())).collect::<StringArray>()),
        DataType::Dictionary(_, _) => {
            let mut builder = StringDictionaryBuilder::<Int32Type>::new();
            cells.for_each(|there| builder.append_option(there.then(|| input.text())));
            Arc::new(builder.finish())
        }
        DataType::List(_) => {
            let mut builder = ListBuilder::new(Int32Builder::new());
            for there in cells {
                for _ in 0..if there { input.below(4) } else { 0 } {
                    builder.values().append_option(Some(number(input) as i32).filter(|number| *number != 77));
                }
                builder.append(there);
            }
            Arc::new(builder.finish())
        }
        other if rows == 0 => new_empty_array(other),
        other => new_null_array(other, rows),
    }
}

/// A type that the table's column does not have.
fn other_type(choice: u8) -> DataType {
    let dictionary = |keys| DataType::Dictionary(Box::new(keys), Box::new(DataType::Utf8));
    match choice % 8 {
        0 => DataType::Int32,
        1 => DataType::Int64,
        2 => DataType::Float64,
        3 => DataType::Boolean,
        4 => DataType::Utf8,
        5 => dictionary(DataType::Int32),
        6 => DataType::List(Arc::new(Field::new("item", DataType::Int32, true))),
        _ => DataType::Date32,
    }
}

/// The properties of the file, and whether numbers are written as differences.
fn properties(meta: &ShardMeta, input: &mut Input<'_>) -> (WriterPropertiesBuilder, bool) {
    let mut pairs = vec![
        (KEY_SCHEMA_VERSION, SCHEMA_VERSION.to_string()),
        (KEY_RUN_ID, meta.run_id.clone()),
        (KEY_RANK, meta.rank.to_string()),
        (KEY_HOST, meta.host.clone()),
        (KEY_PID, meta.pid.to_string()),
        (KEY_BOOT_ID, meta.boot_id.clone()),
        (KEY_CLOCK_DOMAIN, meta.clock_domain.clone()),
    ];
    match input.byte() {
        200.. => {
            let at = input.below(pairs.len());
            pairs[at].1 = input.text();
        }
        190..200 => drop(pairs.remove(input.below(pairs.len()))),
        180..190 => pairs.push((KEY_SESSION, input.text())),
        _ => {}
    }
    let pairs = pairs.into_iter().map(|(key, value)| KeyValue::new(key.to_string(), value));
    let (encoding, sizes) = (input.byte(), input.byte());
    let compression = match encoding % 3 {
        0 => Compression::UNCOMPRESSED,
        1 => Compression::SNAPPY,
        _ => Compression::ZSTD(ZstdLevel::default()),
    };
    let builder = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(encoding & 4 != 0)
        .set_writer_version(if encoding & 8 != 0 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 })
        .set_statistics_enabled(if encoding & 16 != 0 { EnabledStatistics::Page } else { EnabledStatistics::None })
        .set_max_row_group_row_count(Some(usize::from(sizes % 16) + 1))
        .set_data_page_row_count_limit(usize::from(sizes / 16) + 1)
        .set_write_batch_size(4)
        .set_key_value_metadata(Some(pairs.collect()));
    (builder, encoding & 32 != 0)
}

/// A Parquet file without checksums, with the columns of the table and changes of them; `None` if the writer refuses.
pub(crate) fn foreign_file(table: &Table, meta: &ShardMeta, max_rows: usize, input: &mut Input<'_>) -> Option<Vec<u8>> {
    let (rows, changes) = (input.below(max_rows + 1), input.byte());
    let (mut builder, deltas) = properties(meta, input);
    let mut fields: Vec<Field> = Vec::new();
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for column in &table.columns {
        let change = if changes % 2 == 0 { 255 } else { input.byte() };
        let range = match column.name {
            "rank" => Range::Only(meta.rank.into()),
            name if table.sorted_by == Some(name) => Range::Ascending,
            "dur_ns" => Range::Positive,
            _ => Range::Any,
        };
        let (data_type, nullable, range) = match change {
            0..8 => continue,
            8..40 => (other_type(change), column.nullable, range),
            40..48 => (column.data_type.clone(), true, range),
            48..56 => (column.data_type.clone(), column.nullable, Range::Any),
            _ => (column.data_type.clone(), column.nullable, range),
        };
        arrays.push(array(&data_type, nullable, rows, range, input));
        fields.push(Field::new(column.name, data_type, nullable));
    }
    if changes % 8 == 1 && !fields.is_empty() {
        let (from, to) = (input.below(fields.len()), input.below(fields.len()));
        fields.swap(from, to);
        arrays.swap(from, to);
    }
    for field in fields.iter().filter(|field| deltas && matches!(field.data_type(), DataType::Int32 | DataType::Int64))
    {
        builder = builder.set_column_encoding(ColumnPath::from(field.name().as_str()), Encoding::DELTA_BINARY_PACKED);
    }
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).ok()?;
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(builder.build())).ok()?;
    writer.write(&batch).ok()?;
    writer.close().ok()?;
    Some(bytes)
}
