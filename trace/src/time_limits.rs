//! Plausible times of rows. They keep later sums and differences within `i64`.
//!
//! A clock of a trace counts from 1970 (1.8 · 10¹⁸ ns today), from the start of the machine, or from the start of the
//! trace. A true time is therefore not far below zero and lies before 2116, and all rows of a rank lie within some
//! years of each other. The limits admit everything that a machine can have recorded.
//!
//! ```text
//!           −10 years   0                             2^62 (in 2116)
//!               |———————+———————————————————————————————|
//!                                    |—— 10 years ——middle—— 10 years ——|
//! ```
//!
//! Two such times differ by less than 2^62.1, on any ranks. The durations of all rows of a rank sum to at most 2^60,
//! and eight such sums still fit.

use std::ops::Range;

const DAY_NS: i64 = 86_400_000_000_000;
/// Maximum duration of a row: no job runs longer.
pub const MAX_LENGTH_NS: i64 = 366 * DAY_NS;
/// Maximum distance of a row's start from the median start of its rank.
const MAX_FAR_NS: i64 = 3660 * DAY_NS;
/// Earliest plausible time. A clock that counts from the start of a trace is negative for rows that began earlier.
const EARLIEST_NS: i64 = -MAX_FAR_NS;
const LATEST_NS: i64 = 1 << 62;
/// Maximum sum of the durations of a rank's rows: 36 years, over all threads and nested rows.
const MAX_SUM_NS: i64 = 1 << 60;

/// Reason for leaving out rows with an implausible start.
pub const FAR: &str = "they begin more than ten years from the rank's other rows, or at an impossible time";
/// Reason for leaving out rows with an implausible duration.
pub const LONG: &str = "they last longer than a year, or all rows together would last decades";

/// A window of plausible times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from_ns: i64,
    to_ns: i64,
}

impl Window {
    /// The times that any clock can show.
    pub const ANY: Self = Self { from_ns: EARLIEST_NS, to_ns: LATEST_NS };

    /// The window around the median of the rank's rows; any time, if that median is implausible itself.
    pub fn around(middle_ns: i64) -> Self {
        if !Self::ANY.holds(middle_ns) {
            return Self::ANY;
        }
        Self {
            from_ns: middle_ns.saturating_sub(MAX_FAR_NS).max(EARLIEST_NS),
            to_ns: middle_ns.saturating_add(MAX_FAR_NS).min(LATEST_NS),
        }
    }

    /// Whether a row may start at `ts_ns`.
    pub fn holds(self, ts_ns: i64) -> bool {
        (self.from_ns..=self.to_ns).contains(&ts_ns)
    }
}

/// The plausible range of sorted times, and its window. The window surrounds the median of the times that a clock can
/// show.
pub fn plausible_starts(len: usize, ts_ns: impl Fn(usize) -> i64) -> (Range<usize>, Window) {
    let within = |window: Window, inside: Range<usize>| {
        let from = first(inside.clone(), |at| ts_ns(at) >= window.from_ns);
        from..first(from..inside.end, |at| ts_ns(at) > window.to_ns)
    };
    let possible = within(Window::ANY, 0..len);
    if possible.is_empty() {
        return (possible, Window::ANY);
    }
    let window = Window::around(ts_ns(possible.start + possible.len() / 2));
    (within(window, possible), window)
}

/// The first index at which `is` holds; `is` must be monotonic.
fn first(places: Range<usize>, is: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, mut end } = places;
    while start < end {
        let middle = start + (end - start) / 2;
        if is(middle) { end = middle } else { start = middle + 1 }
    }
    start
}

/// The maximum duration of a row, given the number of rows and the sum of their durations, which may be saturated. Rows
/// up to this duration do not exceed the allowed sum.
pub fn longest_ns(rows: usize, sum_ns: i64) -> i64 {
    if sum_ns <= MAX_SUM_NS { MAX_LENGTH_NS } else { (MAX_SUM_NS / (rows as i64).max(1)).min(MAX_LENGTH_NS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(ts_ns: &[i64]) -> Range<usize> {
        plausible_starts(ts_ns.len(), |at| ts_ns[at]).0
    }

    #[test]
    fn every_true_clock_is_kept_and_distant_times_are_not() {
        let now_ns = 1_795_000_000_000_000_000;
        assert_eq!(kept(&[]), 0..0);
        assert_eq!(kept(&[-5, 0, 90 * DAY_NS]), 0..3);
        assert_eq!(kept(&[now_ns, now_ns + 1, now_ns + 300 * DAY_NS]), 0..3);
        assert_eq!(kept(&[i64::MIN, now_ns, now_ns + 1, i64::MAX]), 1..3);
        // The majority decides, not the first time.
        assert_eq!(kept(&[0, now_ns, now_ns + 1]), 1..3);
        assert_eq!(kept(&[0, 1, now_ns]), 0..2);
        assert!(kept(&[i64::MAX - 1, i64::MAX]).is_empty());
        assert!(kept(&[i64::MIN, i64::MIN]).is_empty());
    }

    #[test]
    fn differences_and_sums_stay_in_range() {
        assert!(LATEST_NS.checked_sub(EARLIEST_NS).and_then(|span| span.checked_add(MAX_LENGTH_NS)).is_some());
        assert_eq!(longest_ns(10, 1000), MAX_LENGTH_NS);
        for rows in [1, 40, 1_000_000, u32::MAX as usize] {
            let sum_ns = longest_ns(rows, i64::MAX).checked_mul(rows as i64);
            assert!(sum_ns.is_some_and(|sum_ns| sum_ns <= MAX_SUM_NS), "{rows}");
        }
    }
}
