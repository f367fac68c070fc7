//! The bandwidth of copies and fills by kind, as in HTA's `trace_analysis.get_memory_bw_summary`, and plain totals.
//!
//! ```text
//!  copy 1   [ 4 GB/s ]
//!  copy 2       [ 2 GB/s ]
//!  sum      44446666222222             points: 4, 6, 2; time without a copy is not a point
//! ```

use std::collections::BTreeMap;

use trace::{MemcpyBandwidthRow, Text};

use model::stats::{describe, is_covered};
use model::{Kind, NONE, RankData};

/// The assumed length of a copy with length 0, which is shorter than the clock can resolve. HTA assumes the same.
const LEAST_NS: i64 = 1_000;

#[derive(Debug, Default)]
struct Copies {
    copies: i64,
    total_ns: i64,
    bytes: Option<i64>,
    /// The time of the copies whose bytes are known.
    known_ns: i64,
    /// The changes of bandwidth: time, whether a copy begins, and its bandwidth. At the same time, ends sort before
    /// begins, because a copy that follows another one does not overlap it.
    changes: Vec<(i64, bool, f64)>,
}

/// Makes one row for each device and kind of copy, from the rows for which `keep` returns true.
pub(super) fn memcpy_bandwidth(data: &RankData, keep: &dyn Fn(usize) -> bool) -> Vec<MemcpyBandwidthRow> {
    let events = &data.events;
    let kinds: Vec<Text> = data.names.iter().map(|name| kind_of_copy(name)).collect();
    let mut all: BTreeMap<(i64, Text), Copies> = BTreeMap::new();
    for row in 0..events.len() {
        if !matches!(events.kind[row], Kind::GpuMemcpy | Kind::GpuMemset) || !keep(row) {
            continue;
        }
        let kind = kinds[events.name[row] as usize].clone();
        let copies = all.entry((events.device[row], kind)).or_default();
        copies.add(events.ts_ns[row], events.dur_ns[row], events.bytes[row], measured(data, events.id[row]));
    }
    all.into_iter().map(|((device, name), copies)| copies.row(data.outline.info.rank, device, name)).collect()
}

/// The kind of a copy: `Memcpy HtoD` for `Memcpy HtoD (Pageable -> Device)`.
fn kind_of_copy(name: &str) -> Text {
    name.split(" (").next().unwrap_or(name).into()
}

/// The bandwidth that the profiler measured. The profiler knows the length in nanoseconds, even if the trace has
/// microseconds.
fn measured(data: &RankData, id: i64) -> Option<f64> {
    let rates = &data.copy_rates;
    rates.binary_search_by_key(&id, |rate| rate.id).ok().map(|at| rates[at].bandwidth_gbs)
}

impl Copies {
    fn add(&mut self, start_ns: i64, dur_ns: i64, bytes: i64, measured_gbs: Option<f64>) {
        self.copies += 1;
        self.total_ns = self.total_ns.saturating_add(dur_ns);
        let known = bytes != NONE;
        if known {
            self.bytes = Some(self.bytes.unwrap_or(0).saturating_add(bytes));
            self.known_ns = self.known_ns.saturating_add(dur_ns);
        }
        let by_length = || (known && dur_ns > 0).then(|| bytes as f64 / dur_ns as f64);
        if let Some(gbs) = measured_gbs.or_else(by_length).filter(|gbs| *gbs > 0.0) {
            let lasts_ns = if dur_ns > 0 { dur_ns } else { LEAST_NS };
            self.changes.push((start_ns, true, gbs));
            self.changes.push((start_ns.saturating_add(lasts_ns), false, gbs));
        }
    }

    /// The summed bandwidth after each change, except where no copy runs.
    fn points(&mut self) -> Vec<f64> {
        self.changes.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
        let (mut under_way, mut sum) = (0_i64, 0_f64);
        let mut points = Vec::with_capacity(self.changes.len());
        for (_, begins, gbs) in &self.changes {
            under_way += if *begins { 1 } else { -1 };
            sum += if *begins { *gbs } else { -gbs };
            if under_way == 0 {
                // No copy runs, so a rounding remainder in the sum is discarded.
                sum = 0.0;
            } else {
                points.push(sum);
            }
        }
        points
    }

    fn row(mut self, rank: i32, device: i64, name: Text) -> MemcpyBandwidthRow {
        let summary = describe(self.points());
        let statistic = |value: fn(&model::stats::Summary) -> f64| summary.as_ref().map(value);
        MemcpyBandwidthRow {
            rank,
            device_id: Some(device).filter(|id| *id != NONE),
            name,
            copies: self.copies,
            total_ns: self.total_ns,
            bytes: self.bytes,
            mean_gbs: self
                .bytes
                .filter(|_| is_covered(self.known_ns as f64, self.total_ns as f64))
                .map(|bytes| bytes as f64 / self.known_ns as f64),
            points: summary.map_or(0, |s| s.count),
            point_mean_gbs: statistic(|s| s.mean),
            point_std_gbs: summary.and_then(|s| s.std),
            point_min_gbs: statistic(|s| s.min),
            point_p25_gbs: statistic(|s| s.p25),
            point_p50_gbs: statistic(|s| s.p50),
            point_p75_gbs: statistic(|s| s.p75),
            point_max_gbs: statistic(|s| s.max),
        }
    }
}
