//! Tables of the analysis that the page shows without a chart.

use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::base::units::plural;
use crate::model::analysis::Tables;
use crate::render::html::collectives::five_digits;
use crate::render::html::page_limits::{Limits, Shortenings};
use crate::render::html::string_pool::visible_name;

/// A table of the analysis. The names of its columns end in their units.
#[derive(Debug, Serialize)]
pub(super) struct PlainTable {
    name: &'static str,
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
}

/// Columns that identify a row come first; the other columns are sorted by name.
const KEYS: [&str; 8] = ["rank", "device_id", "stream_id", "step", "name", "operator", "annotation", "api_call"];

/// Returns the tables that no other section shows; tables without rows are left out.
pub(super) fn plain_tables(
    tables: &Tables,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Result<Vec<PlainTable>, Error> {
    let launches: Vec<_> = tables.launch_stats.iter().filter(|r| r.name.is_none()).collect();
    let utilization: Vec<_> = tables.gpu_utilization.iter().filter(|r| r.step.is_none()).collect();
    let loading: Vec<_> = tables.data_loading.iter().filter(|r| r.step.is_none()).collect();
    let mut all = Vec::new();
    let mut add = |table: Result<Option<PlainTable>, Error>| table.map(|table| all.extend(table));
    add(table("critical_path", &tables.critical_path, limits, notes))?;
    add(table("gpu_utilization", &utilization, limits, notes))?;
    add(table("kernel_breakdown", &tables.kernel_breakdown, limits, notes))?;
    add(table("launch_stats", &launches, limits, notes))?;
    add(table("queue_length", &tables.queue_length, limits, notes))?;
    add(table("sync_stalls", &tables.sync_stalls, limits, notes))?;
    add(table("data_loading", &loading, limits, notes))?;
    add(table("memcpy_bandwidth", &tables.memcpy_bandwidth, limits, notes))?;
    add(table("memory_peaks", &tables.memory_peaks, limits, notes))?;
    Ok(all)
}

fn table<R: Serialize>(
    name: &'static str,
    rows: &[R],
    limits: &Limits,
    notes: &mut Shortenings,
) -> Result<Option<PlainTable>, Error> {
    let most = limits.names;
    if rows.len() > most {
        notes.add(
            "tables",
            format!(
                "{name}: the first {most} of {} are shown. analysis/{name}.parquet has them all.",
                plural(rows.len(), "row")
            ),
        );
    }
    let mut table = PlainTable { name, columns: Vec::new(), rows: Vec::new() };
    for row in rows.iter().take(most) {
        let Value::Object(mut row) = serde_json::to_value(row)? else { continue };
        if table.columns.is_empty() {
            table.columns = row.keys().cloned().collect();
            table.columns.sort_by_key(|column| KEYS.iter().position(|key| key == column).unwrap_or(KEYS.len()));
        }
        let cells = table.columns.iter().map(|column| row.remove(column).map_or(Value::Null, cell));
        table.rows.push(cells.collect());
    }
    Ok((!table.rows.is_empty()).then_some(table))
}

fn cell(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(visible_name(&text)),
        Value::Number(n) if n.is_f64() => n.as_f64().map(five_digits).map_or(Value::Null, Value::from),
        // JavaScript rounds integers beyond 2⁵³.
        Value::Number(n) if n.as_i64().is_some_and(|n| n.unsigned_abs() > 1 << 53) => Value::String(n.to_string()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_columns_come_first_and_large_numbers_keep_their_digits() {
        let path = trace::CriticalPathRow {
            rank: 3,
            step: 4,
            wall_ns: (1 << 53) + 1,
            longest: "a\u{202e}b".into(),
            ..Default::default()
        };
        let tables = Tables { critical_path: vec![path.clone(), path], ..Tables::default() };
        let mut notes = Shortenings::default();
        let found = plain_tables(&tables, &Limits { names: 1, ..Limits::default() }, &mut notes).unwrap();
        assert_eq!(
            (found.len(), found[0].rows.len()),
            (1, 1),
            "tables without rows are left out, and rows beyond the limit"
        );
        assert_eq!(found[0].columns[..2], ["rank", "step"]);
        assert_eq!(found[0].rows[0][..2], [Value::from(3), Value::from(4)]);
        assert!(found[0].rows[0].contains(&Value::from("9007199254740993")));
        assert!(found[0].rows[0].contains(&Value::from("a⟨U+202E⟩b")));
        assert!(!notes.is_empty());
    }
}
