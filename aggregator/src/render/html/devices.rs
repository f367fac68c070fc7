//! Devices: causes of idle time, and memory use.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{IdleCategory, MemoryCurveRow};

use crate::base::units::plural;
use crate::model::analysis::Tables;
use crate::render::html::page_limits::{Limits, Shortenings};
use crate::render::html::string_pool::visible_sentence;

/// Number and time of the gaps of one stream by cause, in the order `host_wait`, `kernel_wait`, `other`.
#[derive(Debug, Serialize)]
pub(super) struct StreamGaps {
    rank: i32,
    device: Option<i64>,
    /// `null` for all streams of the device together.
    stream: Option<i64>,
    gaps: [i64; CATEGORIES],
    idle_ns: [i64; CATEGORIES],
}

/// Number of reasons for a gap.
const CATEGORIES: usize = IdleCategory::ALL.len();

/// Rank, device and stream.
type Place = (i32, Option<i64>, Option<i64>);
/// Gaps and idle time, by [`IdleCategory`].
type Sums = ([i64; CATEGORIES], [i64; CATEGORIES]);

/// The gaps of every stream, or of every device if there are too many streams.
pub(super) fn idle(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Vec<StreamGaps> {
    let sums_by = |whole_device: bool| {
        let mut sums: BTreeMap<Place, Sums> = BTreeMap::new();
        for row in &tables.idle_breakdown {
            let Some(cause) = row.category.known().map(|category| category as usize) else { continue };
            let stream = if whole_device { None } else { row.stream_id };
            let (gaps, idle) = sums.entry((row.rank, row.device_id, stream)).or_default();
            gaps[cause] += row.gaps;
            idle[cause] = idle[cause].saturating_add(row.idle_ns);
        }
        sums
    };
    let mut sums = sums_by(false);
    if sums.len() > limits.streams {
        let streams = sums.len();
        sums = sums_by(true);
        notes.add(
            "idle",
            format!("{} are too many to show: each device shows the sum over its streams.", plural(streams, "stream")),
        );
    }
    let row = |((rank, device, stream), (gaps, idle_ns))| StreamGaps { rank, device, stream, gaps, idle_ns };
    sums.into_iter().map(row).collect()
}

/// Memory use of one device or host.
#[derive(Debug, Serialize)]
pub(super) struct MemoryCurve {
    rank: i32,
    device: Option<i64>,
    /// Time in ns since the first point of all curves.
    at_ns: Vec<i64>,
    in_use_bytes: Vec<i64>,
    reserved_bytes: Vec<Option<i64>>,
    peak_bytes: i64,
    /// The largest holders at the peak.
    alive: String,
}

/// The curves with the highest peaks, up to the limit.
pub(super) fn memory(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Vec<MemoryCurve> {
    let mut curves: BTreeMap<(i32, Option<i64>), Vec<&MemoryCurveRow>> = BTreeMap::new();
    for row in &tables.memory_curve {
        curves.entry((row.rank, row.device_id)).or_default().push(row);
    }
    let origin = tables.memory_curve.iter().map(|r| r.ts_ns).min().unwrap_or(0);
    let mut all: Vec<MemoryCurve> = curves
        .into_iter()
        .map(|((rank, device), rows)| {
            let peak = tables.memory_peaks.iter().find(|p| (p.rank, p.device_id) == (rank, device));
            MemoryCurve {
                rank,
                device,
                at_ns: rows.iter().map(|r| r.ts_ns - origin).collect(),
                in_use_bytes: rows.iter().map(|r| r.in_use_bytes).collect(),
                reserved_bytes: rows.iter().map(|r| r.reserved_bytes).collect(),
                peak_bytes: rows.iter().map(|r| r.in_use_bytes).max().unwrap_or(0),
                alive: peak.map(|p| visible_sentence(&p.alive)).unwrap_or_default(),
            }
        })
        .collect();
    all.sort_by_key(|c| (std::cmp::Reverse(c.peak_bytes), c.rank, c.device));
    let mut left = limits.memory_points;
    let fits = |c: &MemoryCurve| {
        left = left.saturating_sub(c.at_ns.len());
        left > 0
    };
    let shown = all.iter().map(fits).take_while(|fits| *fits).count().max(1);
    if shown < all.len() {
        notes.add(
            "memory",
            format!(
                "Only the {} with the highest peaks, of {}, are drawn. analysis/memory_curve.parquet has them all.",
                plural(shown, "curve"),
                all.len()
            ),
        );
        all.truncate(shown);
    }
    all.sort_by_key(|c| (c.rank, c.device));
    all
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
        let curves = memory(&tables, &Limits { memory_points: 25, ..Limits::default() }, &mut notes);
        assert_eq!(curves.iter().map(|c| (c.rank, c.peak_bytes)).collect::<Vec<_>>(), [(2, 18), (3, 27)]);
        assert_eq!(curves[0].at_ns[..2], [0, 1]);
        assert!(!notes.is_empty());
    }

    #[test]
    fn gaps_are_grouped_by_cause_and_summed_beyond_the_limit() {
        let gap = |stream, category: &str, idle_ns| trace::IdleBreakdownRow {
            stream_id: Some(stream),
            category: category.into(),
            gaps: 1,
            idle_ns,
            ..Default::default()
        };
        let rows = vec![gap(7, "host_wait", 5), gap(7, "other", 6), gap(9, "host_wait", 1)];
        let tables = Tables { idle_breakdown: rows, ..Tables::default() };
        let mut notes = Shortenings::default();
        let streams = idle(&tables, &Limits::default(), &mut notes);
        assert_eq!((streams.len(), streams[0].idle_ns), (2, [5, 0, 6]));
        assert!(notes.is_empty());
        let device = idle(&tables, &Limits { streams: 1, ..Limits::default() }, &mut notes);
        assert_eq!((device.len(), device[0].idle_ns, device[0].stream), (1, [6, 0, 6], None));
        assert!(!notes.is_empty());
    }
}
