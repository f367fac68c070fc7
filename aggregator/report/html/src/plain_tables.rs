//! Tables of the analysis that the page shows without a chart.

use trace::Row;

use crate::columns::Columns;
use crate::page_limits::{Limits, Shortenings};
use crate::string_pool::StringPool;
use model::Error;
use model::analysis::Tables;
use model::shown_ranks::ShownRanks;
use model::units::plural;

/// A table of the analysis with its name. The names of its columns end in their units.
pub(super) type PlainTable = (&'static str, Columns);

/// Columns that identify a row come first; the other columns are sorted by name.
const KEYS: [&str; 11] =
    ["kind", "rank", "device_id", "stream_id", "metric", "step", "name", "ranks", "operator", "annotation", "api_call"];

/// Returns the tables that no other section shows; tables without rows are left out.
pub(super) fn plain_tables(
    t: &Tables,
    names: &mut StringPool,
    (limits, shown): (&Limits, &ShownRanks),
    notes: &mut Shortenings,
) -> Result<Vec<PlainTable>, Error> {
    let limits = &(limits, shown);
    let all = [
        table(t.rank_groups.iter(), names, limits, notes)?,
        table(t.critical_path.iter(), names, limits, notes)?,
        table(t.gpu_utilization.iter().filter(|r| r.step.is_none()), names, limits, notes)?,
        table(t.gpu_metrics.iter().filter(|r| r.step.is_none()), names, limits, notes)?,
        table(t.kernel_breakdown.iter(), names, limits, notes)?,
        table(t.launch_stats.iter().filter(|r| r.name.is_none()), names, limits, notes)?,
        table(t.queue_length.iter(), names, limits, notes)?,
        table(t.sync_stalls.iter(), names, limits, notes)?,
        table(t.data_loading.iter().filter(|r| r.step.is_none()), names, limits, notes)?,
        table(t.input_gaps.iter(), names, limits, notes)?,
        table(t.memcpy_bandwidth.iter(), names, limits, notes)?,
        table(t.memory_peaks.iter(), names, limits, notes)?,
        table(t.memory_at_peak.iter(), names, limits, notes)?,
        table(t.memory_growth.iter(), names, limits, notes)?,
    ];
    Ok(all.into_iter().flatten().collect())
}

fn table<'a, R: Row>(
    rows: impl Iterator<Item = &'a R>,
    names: &mut StringPool,
    (limits, shown): &(&Limits, &ShownRanks),
    notes: &mut Shortenings,
) -> Result<Option<PlainTable>, Error> {
    let (mut rows, table, most) = (rows.collect::<Vec<_>>(), R::table(), limits.names);
    let all = rows.len();
    rows.retain(|row| row.rank().is_none_or(|rank| shown.has(rank)));
    if rows.len().min(most) < all {
        let (name, first, of) = (table.name, rows.len().min(most), plural(all, "row"));
        let which = if rows.len() < all { "rows of the shown ranks" } else { "rows" };
        let text = format!("{name}: the first {first} {which} of {of} are shown. The table {name} has them all.");
        notes.add("tables", text);
    }
    let mut wanted: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    wanted.sort_by_key(|name| (KEYS.iter().position(|key| key == name).unwrap_or(KEYS.len()), *name));
    let columns = Columns::of(rows.iter().copied().take(most), &wanted.join(" "), names)?.exact();
    Ok((!rows.is_empty()).then_some((table.name, columns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_columns_come_first_and_rows_beyond_the_limit_are_left_out() {
        let path = trace::CriticalPathRow { rank: 3, step: 4, ..Default::default() };
        let tables = Tables { critical_path: vec![path.clone(), path], ..Tables::default() };
        let (mut names, mut notes) = (StringPool::default(), Shortenings::default());
        let limits = Limits { names: 1, ..Limits::default() };
        let found = plain_tables(&tables, &mut names, (&limits, &ShownRanks::default()), &mut notes).unwrap();
        let json = serde_json::to_string(&found).unwrap();
        assert!(json.starts_with("[[\"critical_path\",{\"rank\":[3],\"step\":[4],\"bound_by\":"), "{json}");
        assert_eq!(found.len(), 1, "tables without rows are left out");
        assert!(!notes.is_empty());
    }
}
