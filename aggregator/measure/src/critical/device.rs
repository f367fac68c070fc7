//! The device work of a rank, and the cause that each device row waited for.

use rustc_hash::FxHashMap;

use model::RankData;
use trace::rank::{Launches, RowsByCorrelation};

/// A longer gap on a stream is more than the usual distance between kernels (HTA's `consecutive_kernel_delay`, 30 µs).
/// Its cause is searched on other streams.
const UNEXPLAINED_NS: i64 = 30_000;
/// A longer gap has a cause that was not recorded (HTA's `KERNEL_KERNEL_DELAY_THRESHOLD_US`, 1500 µs).
pub(super) const MAX_KERNEL_GAP_NS: i64 = 1_500_000;

/// Device work and its launches, by row of the rank's events.
#[derive(Debug)]
pub(super) struct Device<'a> {
    launches: &'a Launches,
    /// The rows of all device work, ascending.
    rows: Vec<u32>,
    /// For each of `rows`, the previous row on the same stream: of the rows that began earlier, the one that ended
    /// last. Or [`NO_ROW`].
    previous: Vec<u32>,
    /// The end and row of all device work, ordered by end.
    by_end: Vec<(i64, u32)>,
    by_correlation: RowsByCorrelation,
}

const NO_ROW: u32 = u32::MAX;

/// The work that a device row waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The launch of the row: this host row.
    Launch(u32),
    /// Another device row.
    Row(u32),
    /// No recorded work.
    Unknown,
}

impl<'a> Device<'a> {
    pub(super) fn of(data: &RankData, launches: &'a Launches) -> Self {
        let events = &data.events;
        let rows: Vec<u32> =
            (0..events.len()).filter(|row| events.kind[*row].is_device_work()).map(|row| row as u32).collect();
        let mut last: FxHashMap<(i64, i64), u32> = FxHashMap::default();
        let previous = |row: &u32| {
            let at = *row as usize;
            let last = last.entry((events.device[at], events.stream[at])).or_insert(NO_ROW);
            let before = *last;
            if before == NO_ROW || events.end_ns(before as usize) <= events.end_ns(at) {
                *last = *row;
            }
            before
        };
        let previous = rows.iter().map(previous).collect();
        let mut by_end: Vec<(i64, u32)> = rows.iter().map(|row| (events.end_ns(*row as usize), *row)).collect();
        // Work on one stream ends in order, so the stable sort only merges these runs.
        by_end.sort();
        let by_correlation = RowsByCorrelation::collect(events, |row| events.kind[row].is_device_work());
        Self { launches, rows, previous, by_end, by_correlation }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    pub(super) fn launch_of(&self, data: &RankData, row: u32) -> Option<u32> {
        self.launches.of(data.events.correlation[row as usize])
    }

    fn previous_of(&self, row: u32) -> Option<u32> {
        let at = self.rows.binary_search(&row).ok()?;
        Some(self.previous[at]).filter(|before| *before != NO_ROW)
    }

    /// The device row with the given correlation id.
    pub(super) fn row_of(&self, correlation: i64) -> Option<u32> {
        self.by_correlation.get(correlation)
    }

    /// The rows that ended after `after_ns` and not later than `until_ns`, the last one first.
    pub(super) fn ended(&self, after_ns: i64, until_ns: i64) -> impl Iterator<Item = u32> {
        let from = self.by_end.partition_point(|(end, _)| *end <= after_ns);
        let to = self.by_end.partition_point(|(end, _)| *end <= until_ns).max(from);
        self.by_end[from..to].iter().rev().map(|(_, row)| *row)
    }

    /// The cause that kept a row from starting earlier.
    pub(super) fn cause(&self, data: &RankData, row: u32) -> Cause {
        let events = &data.events;
        let start = events.ts_ns[row as usize];
        let end_of = |row: u32| events.end_ns(row as usize).min(start);
        let launch = self.launch_of(data, row);
        let previous = self.previous_of(row);
        let launched = launch.map(|l| events.ts_ns[l as usize]);
        let (ready, cause) = match (previous, launch) {
            (Some(p), Some(l)) if launched.is_some_and(|t| t >= end_of(p)) => {
                (events.end_ns(l as usize), Cause::Launch(l))
            }
            (Some(p), _) => (end_of(p), Cause::Row(p)),
            (None, Some(l)) => (events.end_ns(l as usize), Cause::Launch(l)),
            (None, None) => (start, Cause::Unknown),
        };
        if start.saturating_sub(ready) > UNEXPLAINED_NS {
            // The row was ready but did not start. It probably waited for the work on another stream that ended last
            // before its start.
            let is_other = |other: &u32| {
                events.device[*other as usize] == events.device[row as usize]
                    && events.stream[*other as usize] != events.stream[row as usize]
            };
            if let Some(other) = self.ended(ready, start).find(is_other) {
                return Cause::Row(other);
            }
        }
        cause
    }
}
