//! The work of a rank's devices, and what each piece of it waited for.

use rustc_hash::FxHashMap;

use crate::device::Launches;
use crate::model::{NONE, RankData};

/// Gaps on a stream beyond this are no mere distance between kernels (HTA's `consecutive_kernel_delay`, 30 µs): there
/// was something to wait for, and it is looked for on other streams.
const UNEXPLAINED_NS: i64 = 30_000;
/// A gap beyond this has a reason that nothing shows (HTA's `KERNEL_KERNEL_DELAY_THRESHOLD_US`, 1500 µs).
pub(super) const MAX_KERNEL_GAP_NS: i64 = 1_500_000;

/// Device work and its launches, by row of the rank's events.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// Ends and rows of all device work, by end.
    by_end: Vec<(i64, u32)>,
    /// The row before, on the same stream: the one that ended last of those that began earlier.
    previous: FxHashMap<u32, u32>,
    /// The host row that launched each row.
    launch: FxHashMap<u32, u32>,
    /// Device work by correlation.
    by_correlation: FxHashMap<i64, u32>,
}

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

impl Device {
    pub(super) fn of(data: &RankData, launches: &Launches) -> Self {
        let events = &data.events;
        let mut device = Self::default();
        let mut last: FxHashMap<(i64, i64), u32> = FxHashMap::default();
        for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
            device.by_end.push((events.end_ns(row), row as u32));
            if let Some(launch) = launches.of(events.correlation[row]) {
                device.launch.insert(row as u32, launch);
            }
            if events.correlation[row] != NONE {
                device.by_correlation.entry(events.correlation[row]).or_insert(row as u32);
            }
            let stream = (events.device[row], events.stream[row]);
            if let Some(before) = last.get(&stream) {
                device.previous.insert(row as u32, *before);
            }
            let ends_later = |before: &u32| events.end_ns(*before as usize) <= events.end_ns(row);
            if last.get(&stream).is_none_or(ends_later) {
                last.insert(stream, row as u32);
            }
        }
        device.by_end.sort_unstable();
        device
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    pub(super) fn launch_of(&self, row: u32) -> Option<u32> {
        self.launch.get(&row).copied()
    }

    /// The device row of a call's own correlation.
    pub(super) fn row_of(&self, correlation: i64) -> Option<u32> {
        if correlation == NONE { None } else { self.by_correlation.get(&correlation).copied() }
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
        let launch = self.launch_of(row);
        let previous = self.previous.get(&row).copied();
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
