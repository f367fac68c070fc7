//! Devices: causes of idle time, and memory use.

use std::collections::BTreeMap;

use trace::{IdleBreakdownRow, MemoryAtPeakRow, MemoryCurveRow, MemoryPeakRow};

use crate::columns::five_digits;
use crate::page_limits::{Limits, Shortenings};
use model::analysis::Tables;
use model::shown_ranks::ShownRanks;
use model::units::plural;

/// Number of peaks whose holders are shown.
const PEAKS: usize = 8;
/// Number of blocks that are shown.
const BLOCKS: usize = 12;

/// The gaps of the busiest stream of each device: of the one with the most gaps, which is the one that computes. Also their
/// share of the recorded time, in percent.
pub(super) fn idle<'a>(tables: &'a Tables, shown: &ShownRanks) -> (Vec<&'a IdleBreakdownRow>, Vec<Option<f64>>) {
    let mut gaps: BTreeMap<(i32, Option<i64>, Option<i64>), i64> = BTreeMap::new();
    for row in &tables.idle_breakdown {
        *gaps.entry((row.rank, row.device_id, row.stream_id)).or_default() += row.gaps;
    }
    let mut busiest: BTreeMap<(i32, Option<i64>), (i64, Option<i64>)> = BTreeMap::new();
    for ((rank, device, stream), gaps) in gaps {
        let most = busiest.entry((rank, device)).or_insert((gaps, stream));
        if gaps > most.0 {
            *most = (gaps, stream);
        }
    }
    let is_busiest = |row: &&IdleBreakdownRow| {
        busiest.get(&(row.rank, row.device_id)).is_some_and(|(_, stream)| *stream == row.stream_id)
    };
    let of_shown = tables.idle_breakdown.iter().filter(|row| shown.has(row.rank));
    let rows: Vec<&IdleBreakdownRow> = of_shown.filter(is_busiest).collect();
    let whole = tables.step_breakdown.iter().filter(|row| row.step.is_none() && row.wall_ns > 0);
    let recorded: BTreeMap<(i32, Option<i64>), i64> =
        whole.map(|row| ((row.rank, row.device_id), row.wall_ns)).collect();
    let share = |row: &&IdleBreakdownRow| {
        let wall_ns = recorded.get(&(row.rank, row.device_id))?;
        Some(five_digits(100.0 * row.idle_ns as f64 / *wall_ns as f64))
    };
    let shares = rows.iter().map(share).collect();
    (rows, shares)
}

/// The end of the recording since the first point of the curves: an allocation that nothing frees lasts until then.
pub(super) fn memory_end_ns(tables: &Tables, recorded_ns: Option<(i64, i64)>) -> i64 {
    let points = || tables.memory_curve.iter().map(|row| row.ts_ns);
    let (first, last) = (points().min().unwrap_or(0), points().max().unwrap_or(0));
    recorded_ns.map_or(last, |(_, end)| end.max(last)) - first
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
    fn gaps_of_the_busiest_stream_are_shares_of_the_recording() {
        let gap = |stream, category: &str, gaps, idle_ns| IdleBreakdownRow {
            stream_id: Some(stream),
            category: category.into(),
            gaps,
            idle_ns,
            ..Default::default()
        };
        let whole = trace::StepBreakdownRow { wall_ns: 200, ..Default::default() };
        let tables = Tables {
            idle_breakdown: vec![gap(7, "host_wait", 2, 5), gap(7, "other", 2, 6), gap(9, "host_wait", 3, 90)],
            step_breakdown: vec![whole],
            ..Tables::default()
        };
        let (rows, shares) = idle(&tables, &ShownRanks::default());
        assert_eq!(rows.iter().map(|r| (r.stream_id, r.idle_ns)).collect::<Vec<_>>(), [(Some(7), 5), (Some(7), 6)]);
        assert_eq!(shares, [Some(2.5), Some(3.0)]);
    }

    #[test]
    fn memory_lasts_until_the_end_of_the_recording() {
        let point = |ts_ns| MemoryCurveRow { ts_ns, ..Default::default() };
        let tables = Tables { memory_curve: vec![point(50), point(60)], ..Tables::default() };
        assert_eq!((memory_end_ns(&tables, Some((10, 500))), memory_end_ns(&tables, None)), (450, 10));
        assert_eq!(memory_end_ns(&tables, Some((10, 55))), 10, "a point beyond the rows");
    }
}
