//! Converts the profiler's times to the rank's clock.
//!
//! Kineto's times are of the wall clock (`CLOCK_REALTIME`), which time daemons adjust and which hosts do not share. Kineto compares
//! the processor's counter with it when a window begins and when it ends; in between, its times lie on the straight line through
//! both. Comparisons of the wall clock with the rank's clock that were made meanwhile give the line in the rank's clock:
//!
//! ```text
//! rank's clock │        ·/ ·
//!              │      /·         · comparisons; their distance from the line is the error
//!              │  · /
//!              └────┴────┴──── wall clock
//!                 start  end of the window
//! ```

use trace::rank::RankData;

/// A comparison of the rank's clock with the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The rank's clock, in the middle of the comparison.
    pub local_ns: i64,
    /// The wall clock: UTC since 1970.
    pub utc_ns: i64,
    /// Duration of the comparison on the rank's clock.
    pub rtt_ns: i64,
}

/// Most that a wall clock is slewed by: NTP's limit of 500 ppm (RFC 5905), as a divisor.
const SLEW_DIVISOR: i64 = 2_000;

/// The line from the profiler's times to the rank's clock in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WallClock {
    first: Comparison,
    last: Comparison,
    /// Largest error of the converted times, as far as the comparisons show it.
    pub(super) error_ns: i64,
}

impl WallClock {
    /// The line for a window from `start_ns` to `end_ns` of the wall clock. `comparisons` are in the order of time. `None` without
    /// two of them at different times.
    pub(super) fn of(comparisons: &[Comparison], start_ns: i64, end_ns: i64) -> Option<Self> {
        let before_last = comparisons.len().checked_sub(2)?;
        let begin = comparisons.iter().rposition(|c| c.utc_ns <= start_ns).unwrap_or(0).min(before_last);
        let until = comparisons.iter().position(|c| c.utc_ns >= end_ns).unwrap_or(before_last + 1).max(begin + 1);
        let (first, last) = (comparisons[begin], comparisons[until]);
        let line = Self { first, last, error_ns: 0 };
        if last.utc_ns <= first.utc_ns || last.local_ns <= first.local_ns {
            return None;
        }
        let off = |c: &Comparison| line.local_ns(c.utc_ns).abs_diff(c.local_ns) as i64 + c.rtt_ns / 2 + 1;
        let shown = comparisons[begin..=until].iter().map(off).max().unwrap_or(0);
        let outside = first.utc_ns.saturating_sub(start_ns).max(end_ns.saturating_sub(last.utc_ns)).max(0);
        Some(Self { error_ns: shown.saturating_add(outside / SLEW_DIVISOR), ..line })
    }

    /// The rank's clock at a time of the profiler.
    fn local_ns(&self, utc_ns: i64) -> i64 {
        let Self { first, last, .. } = self;
        let span = |of: fn(&Comparison) -> i64| i128::from(of(last)) - i128::from(of(first));
        let after = i128::from(utc_ns) - i128::from(first.utc_ns);
        let local = i128::from(first.local_ns) + after * span(|c| c.local_ns) / span(|c| c.utc_ns);
        local.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Converts all times of a window.
    pub(super) fn convert(&self, data: &mut RankData) {
        let events = &mut data.events;
        for (ts_ns, dur_ns) in events.ts_ns.iter_mut().zip(&mut events.dur_ns) {
            let end_ns = self.local_ns(ts_ns.saturating_add(*dur_ns));
            *ts_ns = self.local_ns(*ts_ns);
            *dur_ns = end_ns.saturating_sub(*ts_ns);
        }
        for row in &mut data.outline.collectives {
            row.map_times(|ns| self.local_ns(ns));
        }
        for step in &mut data.outline.steps {
            (step.start_ns, step.end_ns) = (self.local_ns(step.start_ns), self.local_ns(step.end_ns));
        }
        data.memory.iter_mut().for_each(|row| row.ts_ns = self.local_ns(row.ts_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTC: i64 = 1_800_000_000_000_000_000;

    /// A wall clock that is `slew_ppm` faster, compared every 0.1 s for 2 s.
    fn slewed(slew_ppm: i64) -> Vec<Comparison> {
        let at = |tick: i64| {
            let local_ns = tick * 100_000_000;
            Comparison { local_ns, utc_ns: UTC + local_ns + local_ns * slew_ppm / 1_000_000, rtt_ns: 100 }
        };
        (0..20).map(at).collect()
    }

    #[test]
    fn a_slewed_wall_clock_is_converted_within_a_comparison() {
        for slew_ppm in [-500, 0, 3, 500] {
            let comparisons = slewed(slew_ppm);
            let (start, end) = (comparisons[3].utc_ns + 7, comparisons[9].utc_ns - 7);
            let clock = WallClock::of(&comparisons, start, end).unwrap();
            assert!(clock.error_ns <= 52, "{}", clock.error_ns);
            assert!(clock.local_ns(comparisons[6].utc_ns).abs_diff(comparisons[6].local_ns) <= 1);
        }
    }

    /// Invariant (clocks): The bound of the clocks of `rankscope.torch` contains the error of the profiler's times, or
    /// the run says that it does not.
    #[test]
    fn a_wall_clock_that_is_set_in_the_window_is_an_error_of_that_size() {
        let mut comparisons = slewed(0);
        comparisons[6..].iter_mut().for_each(|c| c.utc_ns += 40_000_000);
        let clock = WallClock::of(&comparisons, comparisons[3].utc_ns, comparisons[9].utc_ns).unwrap();
        assert!((10_000_000..40_000_000).contains(&clock.error_ns), "{}", clock.error_ns);
        // A window after it is not harmed.
        let later = WallClock::of(&comparisons, comparisons[8].utc_ns, comparisons[12].utc_ns).unwrap();
        assert!(later.error_ns < 60);
    }

    #[test]
    fn a_window_that_the_comparisons_do_not_cover_has_a_larger_error() {
        let comparisons = slewed(0);
        let clock = WallClock::of(&comparisons, UTC - 1_000_000_000, comparisons[4].utc_ns).unwrap();
        assert_eq!(clock.error_ns / 1000, 500);
        assert_eq!(WallClock::of(&comparisons[..1], UTC, UTC), None);
        let backwards = [comparisons[5], Comparison { utc_ns: UTC, ..comparisons[6] }];
        assert_eq!(WallClock::of(&backwards, UTC, UTC), None);
    }

    #[test]
    fn rows_keep_their_order_and_ends() {
        let mut data = RankData::default();
        data.events.ts_ns = vec![UTC + 100, UTC + 200];
        data.events.dur_ns = vec![500, 0];
        let comparisons = slewed(0);
        WallClock::of(&comparisons, UTC, UTC + 1000).unwrap().convert(&mut data);
        assert_eq!((data.events.ts_ns, data.events.dur_ns), (vec![100, 200], vec![500, 0]));
    }
}
