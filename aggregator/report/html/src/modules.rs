//! The modules of all ranks as one tree.

use std::collections::BTreeMap;

use trace::{ModuleStatsRow, Text};

use crate::columns::Columns;
use crate::page_limits::{Limits, Shortenings};
use crate::string_pool::StringPool;
use model::Error;
use model::analysis::Tables;
use model::units::plural;

/// The columns that the page uses.
const WANTED: &str = "module depth calls host_total_ns host_self_ns device_total_ns device_self_ns backward_calls \
     backward_host_total_ns backward_host_self_ns backward_device_total_ns backward_device_self_ns";

/// Modules, each after its parent, summed over the ranks that have them.
pub(super) fn modules(
    tables: &Tables,
    names: &mut StringPool,
    limits: &Limits,
    notes: &mut Shortenings,
) -> Result<Columns, Error> {
    let mut sums: BTreeMap<Text, (ModuleStatsRow, i32)> = BTreeMap::new();
    // Modules stand in the order of the first rank that has them, below their parents.
    let mut children: BTreeMap<Option<Text>, Vec<Text>> = BTreeMap::new();
    for row in &tables.module_stats {
        if let Some((sum, ranks)) = sums.get_mut(&row.path) {
            add(sum, row);
            *ranks += 1;
        } else {
            sums.insert(row.path.clone(), (row.clone(), 1));
            children.entry(row.parent_path.clone()).or_default().push(row.path.clone());
        }
    }
    let mut next: Vec<Text> = children.get(&None).cloned().unwrap_or_default();
    next.reverse();
    let mut rows = Vec::new();
    let mut ranks = Vec::new();
    while let Some(path) = next.pop() {
        if let Some((row, of)) = sums.get(&path) {
            rows.push(row);
            ranks.push(*of);
        }
        next.extend(children.remove(&Some(path)).unwrap_or_default().into_iter().rev());
    }
    if rows.len() > limits.names {
        let rest = rows.len() - limits.names;
        let text = format!(
            "The first {} are listed, {} not. analysis/module_stats.parquet has them all by rank.",
            plural(limits.names, "module"),
            plural(rest, "module")
        );
        notes.add("modules", text);
    }
    rows.truncate(limits.names);
    ranks.truncate(limits.names);
    Ok(Columns::of(rows, WANTED, names)?.with("ranks", ranks))
}

fn add(sum: &mut ModuleStatsRow, row: &ModuleStatsRow) {
    let columns: [fn(&mut ModuleStatsRow) -> &mut i64; 10] = [
        |row| &mut row.calls,
        |row| &mut row.host_total_ns,
        |row| &mut row.host_self_ns,
        |row| &mut row.device_total_ns,
        |row| &mut row.device_self_ns,
        |row| &mut row.backward_calls,
        |row| &mut row.backward_host_total_ns,
        |row| &mut row.backward_host_self_ns,
        |row| &mut row.backward_device_total_ns,
        |row| &mut row.backward_device_self_ns,
    ];
    let mut row = row.clone();
    for column in columns {
        let more = *column(&mut row);
        let sum = column(sum);
        *sum = sum.saturating_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_summed_and_modules_stay_below_their_parents() {
        let row = |rank, path: &str, parent: Option<&str>, host_total_ns| ModuleStatsRow {
            rank,
            path: path.into(),
            parent_path: parent.map(Into::into),
            depth: i32::from(parent.is_some()),
            module: path.rsplit('.').next().unwrap().into(),
            calls: 1,
            host_total_ns,
            ..ModuleStatsRow::default()
        };
        let tables = Tables {
            module_stats: vec![
                row(0, "A", None, 9),
                row(0, "A.x", Some("A"), 5),
                row(1, "A", None, 20),
                row(1, "A.y", Some("A"), 7),
                row(1, "B", None, 1),
            ],
            ..Tables::default()
        };
        let (mut names, mut notes) = (StringPool::default(), Shortenings::default());
        let all = modules(&tables, &mut names, &Limits::default(), &mut notes).unwrap();
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&all).unwrap()).unwrap();
        let numbers = serde_json::to_string(&names).unwrap();
        assert_eq!(numbers, "[\"A\",\"x\",\"y\",\"B\"]");
        assert_eq!(json["module"]["texts"], serde_json::json!([0, 1, 2, 3]));
        assert_eq!(json["host_total_ns"], serde_json::json!([29, 5, 7, 1]));
        assert_eq!(
            (&json["ranks"], &json["calls"]),
            (&serde_json::json!([2, 1, 1, 1]), &serde_json::json!([2, 1, 1, 1]))
        );
        assert!(notes.is_empty());
        modules(&tables, &mut names, &Limits { names: 2, ..Limits::default() }, &mut notes).unwrap();
        assert!(!notes.is_empty(), "the omission is listed");
    }
}
