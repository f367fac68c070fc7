//! Maps CUPTI's times to the recorder's clock.

use std::collections::VecDeque;

/// The most comparisons that are kept: one per second for an hour.
const MAX_SAMPLES: usize = 3600;

/// A comparison of `CLOCK_REALTIME` with the recorder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) utc_ns: i64,
    pub(crate) local_ns: i64,
}

/// Maps the times of records.
///
/// CUPTI uses the recorder's clock if it accepted the timestamp callback, and `CLOCK_REALTIME` otherwise. Records from
/// before the registration may carry times of either clock. The two clocks are decades apart, so that a time belongs to
/// the clock whose current time is nearer.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeMap {
    samples: VecDeque<Sample>,
    /// Number of times in `CLOCK_REALTIME`.
    pub(crate) utc_times: u64,
    /// Number of times in the recorder's clock.
    pub(crate) own_times: u64,
}

impl TimeMap {
    /// Adds a comparison that is later than all others.
    pub(crate) fn add(&mut self, sample: Sample) {
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The recorder's time at CUPTI's time `ns`; `None` for a missing time (0).
    pub(crate) fn local(&mut self, ns: u64) -> Option<i64> {
        let ns = i64::try_from(ns).ok().filter(|ns| *ns != 0)?;
        let Some(last) = self.samples.back().copied() else {
            self.own_times += 1;
            return Some(ns);
        };
        if ns.abs_diff(last.local_ns) <= ns.abs_diff(last.utc_ns) {
            self.own_times += 1;
            return Some(ns);
        }
        self.utc_times += 1;
        Some(self.local_from_utc(ns, last))
    }

    /// Interpolates between two comparisons. Outside of all comparisons it uses the offset of the nearest one, because
    /// extrapolation from two close comparisons would be far off.
    fn local_from_utc(&self, utc_ns: i64, last: Sample) -> i64 {
        let after = self.samples.partition_point(|sample| sample.utc_ns <= utc_ns);
        let around = (after.checked_sub(1).and_then(|before| self.samples.get(before)), self.samples.get(after));
        let (Some(a), Some(b)) = around else {
            let nearest = if after == 0 { self.samples.front().copied().unwrap_or(last) } else { last };
            return nearest.local_ns.saturating_add(utc_ns.saturating_sub(nearest.utc_ns));
        };
        // In i128, because a product of two times exceeds i64.
        let (utc_span, local_span) = (i128::from(b.utc_ns - a.utc_ns).max(1), i128::from(b.local_ns - a.local_ns));
        let ns = i128::from(a.local_ns) + i128::from(utc_ns - a.utc_ns) * local_span / utc_span;
        ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026 in ns since 1970.
    const UTC: i64 = 1_767_225_600_000_000_000;

    fn sample(local_ns: i64, utc_ns: i64) -> Sample {
        Sample { utc_ns: UTC + utc_ns, local_ns }
    }

    #[test]
    fn times_in_the_recorders_clock_stay() {
        let mut map = TimeMap::default();
        assert_eq!(map.local(500), Some(500), "nothing to compare with");
        map.add(sample(1_000_000_000, 0));
        for ns in [1_u64, 999_999_999, 5_000_000_000] {
            assert_eq!(map.local(ns), Some(ns as i64));
        }
        assert_eq!((map.own_times, map.utc_times), (4, 0));
        assert_eq!((map.local(0), map.local(u64::MAX)), (None, None));
    }

    /// ```text
    /// utc    0 ... 1000 ..... 2010      NTP slews between the second and the third
    /// local  0 ... 1000 ..... 2000
    /// ```
    #[test]
    fn utc_times_are_interpolated_between_comparisons() {
        let mut map = TimeMap::default();
        for (local_ns, utc_ns) in [(0, 0), (1000, 1000), (2000, 2010)] {
            map.add(sample(1_000_000 + local_ns, utc_ns));
        }
        for (utc_ns, local_ns) in
            [(0, 0), (500, 500), (1000, 1000), (1505, 1500), (2010, 2000), (2110, 2100), (-50, -50)]
        {
            assert_eq!(map.local((UTC + utc_ns) as u64), Some(1_000_000 + local_ns), "{utc_ns}");
        }
        assert_eq!((map.own_times, map.utc_times), (0, 7));
    }

    #[test]
    fn comparisons_are_bounded() {
        let mut map = TimeMap::default();
        for second in 0..10_000 {
            map.add(sample(second, second));
        }
        assert_eq!(map.samples.len(), MAX_SAMPLES);
    }
}
