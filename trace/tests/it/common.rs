//! What the tests of this crate share: random rows of any table, and a run to break.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use trace::{EventRow, Manifest, Row, SCHEMA_VERSION, ShardMeta, batch_from_rows, write_shard};

/// What shards of rank `rank` of run `test` say of themselves.
pub(crate) fn meta(rank: i32) -> ShardMeta {
    ShardMeta {
        run_id: "test".into(),
        rank,
        host: "node-1".into(),
        pid: 40 + i64::from(rank),
        boot_id: "boot".into(),
        clock_domain: "boot monotonic_raw".into(),
        session: String::new(),
    }
}

/// `count` events of a rank, one every 10 ns.
pub(crate) fn events(rank: i32, count: usize) -> Vec<EventRow> {
    let event = |i: usize| EventRow {
        rank,
        kind: "cpu_op".into(),
        name: ["gemm", "bias_relu", "checksum"][i % 3].into(),
        ts_ns: 1_000 + 10 * i as i64,
        dur_ns: 7,
        id: i as i64 + 1,
        step: Some(i as i32 / 50),
        grid: i.is_multiple_of(2).then(|| vec![i as i32, 1, 1]),
        occupancy_pct: i.is_multiple_of(5).then_some(i as f64 / 3.0),
        bytes: i.is_multiple_of(3).then_some(4096),
        ..EventRow::default()
    };
    (0..count).map(event).collect()
}

/// Writes the manifest of run `test`.
pub(crate) fn write_manifest(run: &Path, world_size: i32) {
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: "test".into(),
        world_size,
        created_utc_ns: 1,
        tool: "test".into(),
        command: vec!["test".into()],
        config: Map::new(),
    };
    manifest.write(run).unwrap();
}

/// Writes `rows` as a part of a rank.
pub(crate) fn write_rows<R: Row>(run: &Path, meta: &ShardMeta, part: u32, rows: &[R]) {
    write_shard(run, &R::table(), meta, part, &[batch_from_rows(rows).unwrap()]).unwrap();
}

/// Any value of a column, as JSON.
fn cell(type_name: &str, nullable: bool) -> BoxedStrategy<Value> {
    let value: BoxedStrategy<Value> = match type_name {
        "INTEGER" => any::<i32>().prop_map(|v| json!(v)).boxed(),
        "BIGINT" => {
            prop_oneof![any::<i64>(), 0i64..1000, Just(i64::MIN), Just(i64::MAX)].prop_map(|v| json!(v)).boxed()
        }
        "DOUBLE" => any::<f64>().prop_filter("JSON has no NaN", |v| v.is_finite()).prop_map(|v| json!(v)).boxed(),
        "BOOLEAN" => any::<bool>().prop_map(|v| json!(v)).boxed(),
        "VARCHAR" => prop_oneof![Just(String::new()), "[a-c]", ".{0,12}"].prop_map(|v| json!(v)).boxed(),
        "BIGINT[]" => prop::collection::vec(any::<i64>(), 0..4).prop_map(|v| json!(v)).boxed(),
        "INTEGER[]" => prop::collection::vec(any::<i32>(), 0..4).prop_map(|v| json!(v)).boxed(),
        other => panic!("a new type of column needs values here: {other}"),
    };
    match nullable {
        true => prop_oneof![1 => Just(Value::Null), 2 => value].boxed(),
        false => value,
    }
}

/// Random rows of a table that keep the facts of a shard: one rank, sorted times, no negative duration.
pub(crate) fn rows<R: Row>(rank: i32) -> impl Strategy<Value = Vec<R>> {
    let table = R::table();
    let columns: Vec<BoxedStrategy<Value>> = table
        .columns
        .iter()
        .map(|column| match column.name {
            "rank" => Just(json!(rank)).boxed(),
            "dur_ns" => (0..i64::MAX).prop_map(|v| json!(v)).boxed(),
            _ => cell(column.type_name, column.nullable),
        })
        .collect();
    prop::collection::vec(columns, 0..40).prop_map(move |rows| {
        let mut rows = rows;
        if let Some(index) = table.sorted_by.and_then(|name| table.column(name)) {
            rows.sort_by_key(|row| row[index].as_i64());
        }
        let names = || table.columns.iter().map(|column| column.name.to_string());
        let row = |cells: Vec<Value>| serde_json::from_value(names().zip(cells).collect::<Map<_, _>>().into());
        rows.into_iter().map(|cells| row(cells).unwrap()).collect()
    })
}
