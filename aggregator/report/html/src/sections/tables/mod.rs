//! Tables of the analysis without a chart: the rows that their declarations list.

use trace::{Row, RowsVisitor};

use crate::columns::Columns;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "tables",
    title: "More tables",
    lead: "Tables without a chart. Click a title to open its table.",
    proof: false,
    // It shows those that no other section names.
    tables: &[],
    data,
    scripts: &[script!("tables.js")],
};

/// A table of the analysis with its name. The names of its columns end in their units.
type ListedTable = (&'static str, Columns);

/// The tables that come first; the others follow in the order of their declarations.
const FIRST: [&str; 11] = [
    "rank_groups",
    "critical_path",
    "gpu_utilization",
    "gpu_metrics",
    "kernel_breakdown",
    "launch_stats",
    "queue_length",
    "idle_causes",
    "sync_stalls",
    "data_loading",
    "input_gaps",
];

/// Columns that identify a row come first; the other columns are sorted by name.
const KEYS: [&str; 11] =
    ["kind", "rank", "device_id", "stream_id", "metric", "step", "name", "ranks", "operator", "annotation", "api_call"];

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let mut names: Vec<&str> = trace::analysis_tables().iter().map(|table| table.name).collect();
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    let mut listed = Listed { run, page, name: "", tables: Ok(Vec::new()) };
    for name in names {
        listed.name = name;
        run.tables().visit(&mut listed);
    }
    let tables = listed.tables?;
    page.value("extras", &tables)?;
    Ok(Some(Chart::unless(tables.is_empty().then_some("No other table has rows."))))
}

/// Adds the table of one name, if rows of it are listed.
struct Listed<'a> {
    run: &'a ReportInput<'a>,
    page: &'a mut PageData,
    name: &'static str,
    tables: Result<Vec<ListedTable>, Error>,
}

impl RowsVisitor for Listed<'_> {
    fn visit<R: Row>(&mut self, rows: &[R]) {
        if let Ok(tables) = &mut self.tables
            && R::table().name == self.name
        {
            match listed(rows, self.run, self.page) {
                Ok(columns) => tables.extend(columns.map(|columns| (self.name, columns))),
                Err(error) => self.tables = Err(error),
            }
        }
    }
}

/// The listed rows of the shown ranks, up to the limit; `None` without rows.
fn listed<R: Row>(rows: &[R], run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Columns>, Error> {
    let (table, most) = (R::table(), run.limits.names);
    let mut rows: Vec<&R> = rows.iter().filter(|row| row.is_listed()).collect();
    let all = rows.len();
    rows.retain(|row| row.rank().is_none_or(|rank| run.shown.has(rank)));
    if rows.len().min(most) < all {
        let (name, first, of) = (table.name, rows.len().min(most), plural(all, "row"));
        let which = if rows.len() < all { "rows of the shown ranks" } else { "rows" };
        page.note(format!("{name}: the first {first} {which} of {of} are shown. The table {name} has them all."));
    }
    if rows.is_empty() {
        return Ok(None);
    }
    rows.truncate(most);
    let mut wanted: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    wanted.sort_by_key(|name| (KEYS.iter().position(|key| key == name).unwrap_or(KEYS.len()), *name));
    Ok(Some(page.columns(rows, &wanted)?.exact()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_limits::Limits;
    use crate::sections::tests::filled;
    use model::analysis::{Analysis, Tables};

    #[test]
    fn key_columns_come_first_and_rows_beyond_the_limit_are_left_out() {
        let path = trace::CriticalPathRow { rank: 3, step: 4, ..Default::default() };
        let sum = trace::LaunchStatsRow::default();
        let of_a_name = trace::LaunchStatsRow { name: Some("gemm".into()), ..sum.clone() };
        let tables =
            Tables { critical_path: vec![path.clone(), path], launch_stats: vec![of_a_name, sum], ..Tables::default() };
        let limits = Limits { names: 1, ..Limits::default() };
        let (json, page) = filled(&SECTION, Analysis { tables, ..Analysis::default() }, &limits);
        let names: Vec<&str> =
            json["extras"].as_array().unwrap().iter().filter_map(|table| table[0].as_str()).collect();
        assert_eq!(names, ["critical_path", "launch_stats"], "tables without rows are left out");
        assert_eq!(json["extras"][0][1]["rank"], serde_json::json!([3]));
        assert!(
            page.json(&Analysis::default())
                .unwrap()
                .contains("[\"critical_path\",{\"rank\":[3],\"step\":[4],\"bound_by\":")
        );
        assert_eq!(page.remarks.len(), 1, "{:?}", page.remarks);
    }

    #[test]
    fn tables_that_come_first_are_declared() {
        let declared = trace::analysis_tables();
        let unknown: Vec<&&str> =
            FIRST.iter().filter(|name| !declared.iter().any(|table| table.name == **name)).collect();
        assert_eq!(unknown, Vec::<&&str>::new(), "FIRST names tables that no declaration has");
    }
}
