//! Devices: causes of idle time, and memory use.

use std::collections::{BTreeMap, BTreeSet};

use trace::{IdleBreakdownRow, MemoryAtPeakRow, MemoryCurveRow, MemoryPeakRow};

use crate::base::units::plural;
use crate::model::analysis::Tables;
use crate::render::html::page_limits::{Limits, Shortenings};

/// Number of peaks whose holders are shown.
const PEAKS: usize = 8;
/// Number of blocks that are shown.
const BLOCKS: usize = 12;

/// The gaps of every stream by cause, or of every device if there are too many streams.
pub(super) fn idle(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Vec<IdleBreakdownRow> {
    let rows = &tables.idle_breakdown;
    let streams: BTreeSet<_> = rows.iter().map(|r| (r.rank, r.device_id, r.stream_id)).collect();
    if streams.len() <= limits.streams {
        return rows.clone();
    }
    let text = "are too many to show: each device shows the sum over its streams.";
    notes.add("idle", format!("{} {text}", plural(streams.len(), "stream")));
    let mut sums: BTreeMap<(i32, Option<i64>, &str), IdleBreakdownRow> = BTreeMap::new();
    for row in rows {
        let none = || IdleBreakdownRow { stream_id: None, gaps: 0, idle_ns: 0, overhead_ns: 0, ..row.clone() };
        let sum = sums.entry((row.rank, row.device_id, row.category.as_str())).or_insert_with(none);
        sum.gaps += row.gaps;
        sum.idle_ns = sum.idle_ns.saturating_add(row.idle_ns);
        sum.overhead_ns = sum.overhead_ns.saturating_add(row.overhead_ns);
    }
    sums.into_values().collect()
}

/// The curves with the highest peaks, up to the limit. Times count from the first point of all curves.
pub(super) fn memory(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Vec<MemoryCurveRow> {
    let mut curves: BTreeMap<(i32, Option<i64>), Vec<&MemoryCurveRow>> = BTreeMap::new();
    for row in &tables.memory_curve {
        curves.entry((row.rank, row.device_id)).or_default().push(row);
    }
    let mut all: Vec<_> = curves.into_iter().collect();
    all.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.iter().map(|r| r.in_use_bytes).max()));
    let mut left = limits.memory_points;
    let fits = |(_, rows): &(_, Vec<_>)| {
        left = left.saturating_sub(rows.len());
        left > 0
    };
    let shown = all.iter().map(fits).take_while(|fits| *fits).count().max(1);
    if shown < all.len() {
        notes.add(
            "memory",
            format!(
                "Only the {} with the highest peaks, of {}, are drawn. The table memory_curve has them all.",
                plural(shown, "curve"),
                all.len()
            ),
        );
        all.truncate(shown);
    }
    all.sort_by_key(|(place, _)| *place);
    let origin = tables.memory_curve.iter().map(|r| r.ts_ns).min().unwrap_or(0);
    let relative = |r: &MemoryCurveRow| MemoryCurveRow { ts_ns: r.ts_ns - origin, ..r.clone() };
    all.into_iter().flat_map(|(_, rows)| rows).map(relative).collect()
}

/// The highest peaks, highest first.
pub(super) fn peaks(tables: &Tables) -> Vec<&MemoryPeakRow> {
    let mut peaks: Vec<&MemoryPeakRow> = tables.memory_peaks.iter().collect();
    peaks.sort_by_key(|p| (std::cmp::Reverse(p.peak_bytes), p.rank, p.device_id));
    peaks.truncate(PEAKS);
    peaks
}

/// The largest blocks at the highest peak.
pub(super) fn blocks(tables: &Tables) -> Vec<&MemoryAtPeakRow> {
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
        let mut notes = Shortenings::default();
        let points = memory(&tables, &Limits { memory_points: 25, ..Limits::default() }, &mut notes);
        let place = |at: usize| (points[at].rank, points[at].ts_ns, points[at].in_use_bytes);
        assert_eq!((points.len(), place(0), place(9), place(19)), (20, (2, 0, 0), (2, 9, 18), (3, 9, 27)));
        assert!(!notes.is_empty());
    }

    #[test]
    fn gaps_are_summed_by_device_beyond_the_limit() {
        let gap = |stream, category: &str, idle_ns| IdleBreakdownRow {
            stream_id: Some(stream),
            category: category.into(),
            gaps: 1,
            idle_ns,
            ..Default::default()
        };
        let rows = vec![gap(7, "host_wait", 5), gap(7, "other", 6), gap(9, "host_wait", 1)];
        let tables = Tables { idle_breakdown: rows, ..Tables::default() };
        let mut notes = Shortenings::default();
        assert_eq!(idle(&tables, &Limits::default(), &mut notes), tables.idle_breakdown);
        assert!(notes.is_empty());
        let device = idle(&tables, &Limits { streams: 1, ..Limits::default() }, &mut notes);
        let sums: Vec<_> = device.iter().map(|r| (r.category.as_str(), r.idle_ns, r.stream_id)).collect();
        assert_eq!(sums, [("host_wait", 6, None), ("other", 6, None)]);
        assert!(!notes.is_empty());
    }
}
