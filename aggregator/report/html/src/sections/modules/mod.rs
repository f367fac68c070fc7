//! The modules of all ranks as one tree.

use std::collections::BTreeMap;

use trace::{ModuleStatsRow, Row, Text};

use crate::columns::columns;
use crate::page_limits::Limits;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;
use model::analysis::Tables;
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "modules",
    title: "Modules",
    lead: "The modules of the model, summed over all ranks. Own is the total without the modules inside. Device time is that of the \
           work which a module launched; backward is that of the backward operators of its forward operators.",
    proof: false,
    tables: &[ModuleStatsRow::table],
    data,
    scripts: &[script!("modules.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    add_modules(run.tables(), run.limits, page)?;
    Ok(Some(Chart::unless(
        run.tables()
            .module_stats
            .is_empty()
            .then_some("No call of a module was recorded. torch.profiler records them with `with_stack=True`."),
    )))
}

/// Adds the modules, each after its parent, summed over the ranks that have them.
fn add_modules(tables: &Tables, limits: &Limits, page: &mut PageData) -> Result<(), Error> {
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
        page.note(text);
    }
    rows.truncate(limits.names);
    ranks.truncate(limits.names);
    let wanted = columns!(ModuleStatsRow: module depth calls host_total_ns host_self_ns device_total_ns device_self_ns
        backward_calls backward_host_total_ns backward_host_self_ns backward_device_total_ns backward_device_self_ns);
    let columns = page.columns(rows, wanted)?;
    page.add_columns(ModuleStatsRow::table().name, columns.with("ranks", ranks));
    Ok(())
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
    use model::analysis::Analysis;

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
        let mut page = PageData::default();
        add_modules(&tables, &Limits::default(), &mut page).unwrap();
        let json: serde_json::Value = serde_json::from_str(&page.json(&Analysis::default()).unwrap()).unwrap();
        assert_eq!(json["names"], serde_json::json!(["A", "x", "y", "B"]));
        let json = &json["tables"]["module_stats"];
        assert_eq!(json["module"]["texts"], serde_json::json!([0, 1, 2, 3]));
        assert_eq!(json["host_total_ns"], serde_json::json!([29, 5, 7, 1]));
        assert_eq!(
            (&json["ranks"], &json["calls"]),
            (&serde_json::json!([2, 1, 1, 1]), &serde_json::json!([2, 1, 1, 1]))
        );
        assert!(page.remarks.is_empty());
        add_modules(&tables, &Limits { names: 2, ..Limits::default() }, &mut page).unwrap();
        assert!(!page.remarks.is_empty(), "the omission is listed");
    }
}
