//! The reason why each stream of a device was idle between two of its rows, in HTA's categories.
//!
//! ```text
//!  host          [launch b]                     [launch c]
//!  stream  [ a ].............[ b ]..[ b2 ]..................[ c ]
//!               kernel/other      kernel         host_wait
//! ```
//!
//! - `host_wait`: the next row was launched after the previous row had ended, so the host was late.
//! - `kernel_wait`: the next row was launched in time, and the gap is shorter than [`KERNEL_WAIT_NS`].
//! - `other`: all other gaps, such as waits for an event on another stream.
//!
//! The idle time before the first row and after the last row of a stream does not count. Gaps are summed over streams,
//! so the sum may exceed the wall time.

use std::collections::BTreeMap;

use trace::IdleBreakdownRow;

use crate::breakdown::overhead;
use model::intervals::{Coverage, Interval};
use model::windows::Windows;
use model::{Events, NONE, RankData};
use trace::rank::Launches;

/// HTA's `consecutive_kernel_delay`. HTA documents it as 30 ns, but its code compares it with microseconds.
const KERNEL_WAIT_NS: i64 = 30_000;

const CATEGORIES: [&str; 3] = ["host_wait", "kernel_wait", "other"];

/// The gaps of each stream by category, between the rows for which `keep` returns true.
pub(crate) fn idle_breakdown(
    data: &RankData,
    launches: &Launches,
    keep: &dyn Fn(usize) -> bool,
) -> Vec<IdleBreakdownRow> {
    let Events { kind, device, stream, .. } = &data.events;
    let events = &data.events;
    let windows = Windows::of(&data.outline.steps);
    let overhead = Coverage::new(overhead(events));
    let mut streams: BTreeMap<(i64, i64), Stream> = BTreeMap::new();
    for row in (0..events.len()).filter(|row| kind[*row].is_device_work() && keep(*row)) {
        let launch = launches.of(events.correlation[row]).map(|call| events.ts_ns[call as usize]);
        let stream = streams.entry((device[row], stream[row])).or_default();
        let row = Interval::new(events.ts_ns[row], events.end_ns(row));
        stream.add(windows.at(row.start_ns), row, launch, &overhead);
    }
    let known_id = |id: i64| Some(id).filter(|id| *id != NONE);
    streams
        .into_iter()
        .flat_map(|((device, stream), gaps)| {
            CATEGORIES.iter().zip(gaps.by_category).filter(|(_, sums)| sums.gaps > 0).map(move |(category, sums)| {
                IdleBreakdownRow {
                    rank: data.outline.info.rank,
                    device_id: known_id(device),
                    stream_id: known_id(stream),
                    category: (*category).into(),
                    gaps: sums.gaps,
                    idle_ns: sums.idle_ns,
                    overhead_ns: sums.overhead_ns,
                }
            })
        })
        .collect()
}

#[derive(Clone, Debug, Default)]
struct Stream {
    /// The window of the last row.
    window: usize,
    busy_until_ns: Option<i64>,
    by_category: [Gaps; 3],
}

/// The gaps of one category.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    gaps: i64,
    idle_ns: i64,
    overhead_ns: i64,
}

impl Stream {
    fn add(&mut self, window: usize, row: Interval, launch_ns: Option<i64>, overhead: &Coverage) {
        // A pause between two windows of the recorder is no gap.
        if std::mem::replace(&mut self.window, window) != window {
            self.busy_until_ns = None;
        }
        let previous = self.busy_until_ns.replace(self.busy_until_ns.map_or(row.end_ns, |until| until.max(row.end_ns)));
        let Some(previous_end) = previous else { return };
        let gap = row.start_ns - previous_end;
        if gap <= 0 {
            return;
        }
        let category = match launch_ns {
            Some(launch) if launch > previous_end => 0,
            _ if gap < KERNEL_WAIT_NS => 1,
            _ => 2,
        };
        let sums = &mut self.by_category[category];
        sums.gaps += 1;
        sums.idle_ns += gap;
        sums.overhead_ns += overhead.within_ns(Interval::new(previous_end, row.start_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;
    use model::Kind;

    #[test]
    fn each_gap_has_one_category() {
        // The second kernel was launched while the first one ran, the third only after the second had ended.
        let mut data = Drawn::rank(4)
            .launches(1, ".#.#.........#........")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "...###..###......###..")
            .host(Kind::Overhead, "Resource", 9, "..........####........")
            .data();
        let found = |rows: Vec<IdleBreakdownRow>| -> Vec<(String, i64, i64)> {
            rows.iter().map(|r| (r.category.to_string(), r.gaps, r.idle_ns)).collect()
        };
        let rows = idle_breakdown(&data, &Launches::collect(&data.events), &|_| true);
        assert_eq!(rows.iter().map(|r| (r.rank, r.device_id, r.stream_id)).next(), Some((4, Some(0), Some(7))));
        assert_eq!(rows.iter().map(|r| r.overhead_ns).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(found(rows), [("host_wait".into(), 1, 6), ("kernel_wait".into(), 1, 2)]);

        // With times multiplied by 20 000, the second gap is longer than HTA's cutoff.
        for t in data.events.ts_ns.iter_mut().chain(&mut data.events.dur_ns) {
            *t *= 20_000;
        }
        assert_eq!(
            found(idle_breakdown(&data, &Launches::collect(&data.events), &|_| true)),
            [("host_wait".into(), 1, 120_000), ("other".into(), 1, 40_000)]
        );
    }

    #[test]
    fn overlapping_rows_have_no_gap_between_them() {
        let data = Drawn::rank(0)
            .device(Kind::Kernel, "long", (0, 7), 1, "##########....")
            .device(Kind::Kernel, "short", (0, 7), 9, "..##........##")
            .data();
        let rows = idle_breakdown(&data, &Launches::collect(&data.events), &|_| true);
        assert_eq!(rows.iter().map(|r| (r.gaps, r.idle_ns)).collect::<Vec<_>>(), [(1, 2)]);
    }

    #[test]
    fn a_cpu_has_no_streams() {
        let data = Drawn::rank(0).host(Kind::CpuOp, "gemm", 1, "##..##").data();
        assert_eq!(idle_breakdown(&data, &Launches::collect(&data.events), &|_| true), []);
    }
}
