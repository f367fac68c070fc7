//! The work of a rank's devices, and what each piece of it waited for.

use rustc_hash::FxHashMap;

use crate::device::{Launches, RowsByCorrelation};
use crate::model::{Kind, RankData};

/// Gaps on a stream beyond this are no mere distance between kernels (HTA's `consecutive_kernel_delay`, 30 µs): there
/// was something to wait for, and it is looked for on other streams.
const UNEXPLAINED_NS: i64 = 30_000;
/// A gap beyond this has a reason that nothing shows (HTA's `KERNEL_KERNEL_DELAY_THRESHOLD_US`, 1500 µs).
pub(super) const MAX_KERNEL_GAP_NS: i64 = 1_500_000;

/// Device work and its launches, by row of the rank's events.
#[derive(Debug)]
pub(super) struct Device<'a> {
    launches: &'a Launches,
    /// All device work, ascending.
    rows: Vec<u32>,
    /// The row before each, on the same stream: the one that ended last of those that began earlier; or
    /// [`NO_ROW`].
    previous: Vec<u32>,
    /// Ends and rows of all device work, by end.
    by_end: Vec<(i64, u32)>,
    by_correlation: RowsByCorrelation,
}

const NO_ROW: u32 = u32::MAX;

/// What a device row waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its launch: this host row.
    Launch(u32),
    /// Another device row.
    Row(u32),
    /// Nothing that was recorded.
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
        // Each stream ends its work in order: the stable sort merges such runs.
        by_end.sort();
        let by_correlation = RowsByCorrelation::collect(events, Kind::is_device_work);
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

    /// The device row of a call's own correlation.
    pub(super) fn row_of(&self, correlation: i64) -> Option<u32> {
        self.by_correlation.get(correlation)
    }

    /// The rows that ended up to `until_ns` and after `after_ns`, the last first.
    pub(super) fn ended(&self, after_ns: i64, until_ns: i64) -> impl Iterator<Item = u32> {
        let from = self.by_end.partition_point(|(end, _)| *end <= after_ns);
        let to = self.by_end.partition_point(|(end, _)| *end <= until_ns).max(from);
        self.by_end[from..to].iter().rev().map(|(_, row)| *row)
    }

    /// What kept a row from starting earlier.
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
            // It could have run and did not. What ended last before it began is what it waited for, as far as anything
            // is.
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
