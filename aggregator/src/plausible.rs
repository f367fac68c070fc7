//! Which times of rows can be true, so that no later sum or difference of them leaves `i64`.
//!
//! A clock of a trace counts from 1970 (1.8 · 10¹⁸ ns today), from the start of the machine, or from the start of the
//! trace. So a true time is not far below zero and lies before 2116, and all rows of a rank lie within some years of
//! each other: the bounds keep everything that a machine can have recorded.
//!
//! ```text
//!           −10 years   0                             2^62 (in 2116)
//!               |———————+———————————————————————————————|
//!                                    |—— 10 years ——middle—— 10 years ——|
//! ```
//!
//! Two such times differ by less than 2^62.1, whatever ranks they are of; the lengths of all rows of a rank sum to at
//! most 2^60, and eight such sums still fit.

use std::ops::Range;

const DAY_NS: i64 = 86_400_000_000_000;
/// Longest that a row can last: no job runs longer.
pub(crate) const MAX_LENGTH_NS: i64 = 366 * DAY_NS;
/// Farthest that a row can begin from the middle of its rank's.
const MAX_FAR_NS: i64 = 3660 * DAY_NS;
/// A clock that counts from the start of a trace may be below zero for what began before.
const EARLIEST_NS: i64 = -MAX_FAR_NS;
const LATEST_NS: i64 = 1 << 62;
/// Largest sum of the lengths of a rank's rows: 36 years, of threads and of rows inside each other.
const MAX_SUM_NS: i64 = 1 << 60;

/// Why rows are left out for their start.
pub(crate) const FAR: &str =
    "they begin more than ten years from the rank's other rows, or at no time that a clock tells";
/// Why rows are left out for their length.
pub(crate) const LONG: &str = "they last longer than a year, or so long that all rows together last decades";

/// The times that can be true, if `middle_ns` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    from_ns: i64,
    to_ns: i64,
}

impl Window {
    /// What any clock can tell.
    pub(crate) const ANY: Self = Self { from_ns: EARLIEST_NS, to_ns: LATEST_NS };

    /// Around the middle of the rank's rows; any time, if that is none.
    pub(crate) fn around(middle_ns: i64) -> Self {
        if !Self::ANY.holds(middle_ns) {
            return Self::ANY;
        }
        Self {
            from_ns: middle_ns.saturating_sub(MAX_FAR_NS).max(EARLIEST_NS),
            to_ns: middle_ns.saturating_add(MAX_FAR_NS).min(LATEST_NS),
        }
    }

    pub(crate) fn holds(self, ts_ns: i64) -> bool {
        (self.from_ns..=self.to_ns).contains(&ts_ns)
    }
}

/// Which of ascending times can be true, and the window that says so: around the middle one of those that a clock can
/// tell.
pub(crate) fn plausible_starts(len: usize, ts_ns: impl Fn(usize) -> i64) -> (Range<usize>, Window) {
    let within = |window: Window, inside: Range<usize>| {
        let from = first(inside.clone(), |at| ts_ns(at) >= window.from_ns);
        from..first(from..inside.end, |at| ts_ns(at) > window.to_ns)
    };
    let told = within(Window::ANY, 0..len);
    if told.is_empty() {
        return (told, Window::ANY);
    }
    let window = Window::around(ts_ns(told.start + told.len() / 2));
    (within(window, told), window)
}

/// The first place from which on `is` holds.
fn first(places: Range<usize>, is: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, mut end } = places;
    while start < end {
        let middle = start + (end - start) / 2;
        if is(middle) { end = middle } else { start = middle + 1 }
    }
    start
}

/// The longest that a row can last, given the number of rows and the sum of their lengths, which may be saturated. Rows
/// that are no longer sum to what is allowed.
pub(crate) fn longest_ns(rows: usize, sum_ns: i64) -> i64 {
    if sum_ns <= MAX_SUM_NS { MAX_LENGTH_NS } else { (MAX_SUM_NS / (rows as i64).max(1)).min(MAX_LENGTH_NS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(ts_ns: &[i64]) -> Range<usize> {
        plausible_starts(ts_ns.len(), |at| ts_ns[at]).0
    }

    #[test]
    fn every_true_clock_is_kept_and_what_is_far_from_the_rest_is_not() {
        let now_ns = 1_795_000_000_000_000_000;
        assert_eq!(kept(&[]), 0..0);
        assert_eq!(kept(&[-5, 0, 90 * DAY_NS]), 0..3);
        assert_eq!(kept(&[now_ns, now_ns + 1, now_ns + 300 * DAY_NS]), 0..3);
        assert_eq!(kept(&[i64::MIN, now_ns, now_ns + 1, i64::MAX]), 1..3);
        // Most decide, not the first.
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
