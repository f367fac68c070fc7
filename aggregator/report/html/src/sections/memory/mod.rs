//! Memory in use, and what it was used for.

use std::collections::BTreeMap;

use trace::{MemoryAtPeakRow, MemoryCurveRow, MemoryGrowthRow, MemoryPeakRow, Row};

use crate::columns::columns;
use crate::page_limits::Limits;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::string_pool::visible_sentence;
use model::Error;
use model::analysis::Tables;
use model::units::plural;

/// Number of peaks whose holders are shown.
const PEAKS: usize = 8;
/// Number of blocks that are shown.
const BLOCKS: usize = 12;

pub(crate) static SECTION: Section = Section {
    id: "memory",
    title: "Memory",
    lead: "Memory in use over time. Each point is the maximum within its span; the last one holds until the end of the recording.",
    proof: false,
    tables: &[MemoryPeakRow::table, MemoryCurveRow::table, MemoryGrowthRow::table, MemoryAtPeakRow::table],
    data,
    scripts: &[script!("memory.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let tables = run.tables();
    let curves = curves(tables, run.limits, page);
    page.table(&curves, columns!(MemoryCurveRow: rank device_id ts_ns in_use_bytes reserved_bytes))?;
    let peaks = peaks(tables);
    let wanted = columns!(MemoryPeakRow: rank device_id peak_bytes fragmentation_bytes parameters_bytes gradients_bytes
        optimizer_state_bytes activations_bytes temporary_bytes unknown_bytes);
    let alive: Vec<String> = peaks.iter().map(|peak| visible_sentence(&peak.alive)).collect();
    let columns = page.columns(peaks, wanted)?;
    page.add_columns(MemoryPeakRow::table().name, columns.with("alive", alive));
    page.table(blocks(tables), columns!(MemoryAtPeakRow: rank device_id bytes blocks category operator stack))?;
    page.value("memory_end_ns", &end_ns(tables, run.analyzed.recorded_ns))?;
    Ok(Some(Chart::unless(
        tables
            .memory_curve
            .is_empty()
            .then_some("No allocation was recorded. torch.profiler records allocations with `profile_memory=True`."),
    )))
}

/// The end of the recording since the first point of the curves: an allocation that nothing frees lasts until then.
fn end_ns(tables: &Tables, recorded_ns: Option<(i64, i64)>) -> i64 {
    let points = || tables.memory_curve.iter().map(|row| row.ts_ns);
    let (first, last) = (points().min().unwrap_or(0), points().max().unwrap_or(0));
    recorded_ns.map_or(last, |(_, end)| end.max(last)) - first
}

/// The curves with the highest peaks, up to the limit. Times count from the first point of all curves.
fn curves(tables: &Tables, limits: &Limits, page: &mut PageData) -> Vec<MemoryCurveRow> {
    let mut curves: BTreeMap<(i32, Option<i64>), Vec<&MemoryCurveRow>> = BTreeMap::new();
    for row in &tables.memory_curve {
        curves.entry((row.rank, row.device_id)).or_default().push(row);
    }
    let mut all: Vec<_> = curves.into_iter().collect();
    all.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.iter().map(|r| r.in_use_bytes).max()));
    let mut left = limits.memory_points;
    let takes_room = |(_, rows): &&(_, Vec<_>)| {
        left = left.saturating_sub(rows.len());
        left > 0
    };
    let shown = all.iter().take_while(takes_room).count().max(1);
    if shown < all.len() {
        page.note(format!(
            "Only the {} with the highest peaks, of {}, are drawn. The table memory_curve has them all.",
            plural(shown, "curve"),
            all.len()
        ));
        all.truncate(shown);
    }
    all.sort_by_key(|(place, _)| *place);
    let origin = tables.memory_curve.iter().map(|r| r.ts_ns).min().unwrap_or(0);
    let relative = |r: &MemoryCurveRow| MemoryCurveRow { ts_ns: r.ts_ns - origin, ..r.clone() };
    all.into_iter().flat_map(|(_, rows)| rows).map(relative).collect()
}

/// The highest peaks, highest first.
fn peaks(tables: &Tables) -> Vec<&MemoryPeakRow> {
    let mut peaks: Vec<&MemoryPeakRow> = tables.memory_peaks.iter().collect();
    peaks.sort_by_key(|p| (std::cmp::Reverse(p.peak_bytes), p.rank, p.device_id));
    peaks.truncate(PEAKS);
    peaks
}

/// The largest blocks at the highest peak.
fn blocks(tables: &Tables) -> Vec<&MemoryAtPeakRow> {
    let highest = tables.memory_peaks.iter().max_by_key(|p| p.peak_bytes).map(|p| (p.rank, p.device_id));
    tables.memory_at_peak.iter().filter(|row| Some((row.rank, row.device_id)) == highest).take(BLOCKS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_curves_are_kept() {
        let point = |rank, ts_ns, in_use_bytes| MemoryCurveRow { rank, ts_ns, in_use_bytes, ..Default::default() };
        let tables = Tables {
            memory_curve: (0..4)
                .flat_map(|rank| (0..10).map(move |t| point(rank, 50 + t, i64::from(rank) * t)))
                .collect(),
            ..Tables::default()
        };
        let mut page = PageData::default();
        let points = curves(&tables, &Limits { memory_points: 25, ..Limits::default() }, &mut page);
        let place = |at: usize| (points[at].rank, points[at].ts_ns, points[at].in_use_bytes);
        assert_eq!((points.len(), place(0), place(9), place(19)), (20, (2, 0, 0), (2, 9, 18), (3, 9, 27)));
        assert!(!page.remarks.is_empty());
    }

    #[test]
    fn memory_lasts_until_the_end_of_the_recording() {
        let point = |ts_ns| MemoryCurveRow { ts_ns, ..Default::default() };
        let tables = Tables { memory_curve: vec![point(50), point(60)], ..Tables::default() };
        assert_eq!((end_ns(&tables, Some((10, 500))), end_ns(&tables, None)), (450, 10));
        assert_eq!(end_ns(&tables, Some((10, 55))), 10, "a point beyond the rows");
    }
}
