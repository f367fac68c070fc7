//! When which step was recorded: what is learnt of late, from a device, is given its step by the time of its launch.

use std::collections::VecDeque;

/// Changes that are remembered: a launch is looked up seconds after it was made, not hours.
const MAX_CHANGES: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Change {
    ts_ns: i64,
    step: i32,
    active: bool,
}

/// The changes of step and activity, in order.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    changes: VecDeque<Change>,
    /// Whether older changes were forgotten.
    forgot: bool,
}

impl Timeline {
    /// From `ts_ns` on, rows get this step, and exist if `active`.
    pub(crate) fn push(&mut self, ts_ns: i64, step: i32, active: bool) {
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
            self.forgot = true;
        }
        // Clocks of a machine's cores agree to the ns only nearly: never go back.
        let ts_ns = self.changes.back().map_or(ts_ns, |last| ts_ns.max(last.ts_ns));
        self.changes.push_back(Change { ts_ns, step, active });
    }

    /// The step at `ts_ns`; `None` if nothing was recorded then, or it is too long ago.
    pub(crate) fn active_step(&self, ts_ns: i64) -> Option<i32> {
        let after = self.changes.partition_point(|change| change.ts_ns <= ts_ns);
        let change = after.checked_sub(1).and_then(|last| self.changes.get(last))?;
        change.active.then_some(change.step)
    }

    /// Whether `ts_ns` is before all that is remembered, but not before the recording.
    pub(crate) fn forgot(&self, ts_ns: i64) -> bool {
        self.forgot && self.changes.front().is_some_and(|first| ts_ns < first.ts_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```text
    /// time     5      10     20     30     40
    /// step     .      0      -1     1      -1
    /// active   .      no     no     yes    yes
    /// ```
    #[test]
    fn a_moment_has_the_step_that_was_set_last_before_it() {
        let mut timeline = Timeline::default();
        for (ts_ns, step, active) in [(10, 0, false), (20, -1, false), (30, 1, true), (40, -1, true)] {
            timeline.push(ts_ns, step, active);
        }
        for (ts_ns, step) in [(5, None), (10, None), (25, None), (30, Some(1)), (39, Some(1)), (40, Some(-1))] {
            assert_eq!(timeline.active_step(ts_ns), step, "{ts_ns}");
        }
        timeline.push(35, 2, true);
        assert_eq!((timeline.active_step(39), timeline.active_step(40)), (Some(1), Some(2)));
        assert!(!timeline.forgot(0));
    }

    #[test]
    fn old_changes_are_forgotten() {
        let mut timeline = Timeline::default();
        for ts_ns in 0..=MAX_CHANGES as i64 {
            timeline.push(ts_ns, 7, true);
        }
        assert_eq!((timeline.changes.len(), timeline.active_step(0), timeline.forgot(0)), (MAX_CHANGES, None, true));
        assert_eq!(timeline.active_step(1), Some(7));
    }
}
