//! The history of steps: gives device work, which a source reports late, the step of its launch.

use std::collections::VecDeque;

/// The most changes that are kept. A source looks a launch up seconds after the call, not hours.
const MAX_CHANGES: usize = if cfg!(miri) { 1 << 8 } else { 1 << 16 };

#[derive(Clone, Copy, Debug)]
struct Change {
    ts_ns: i64,
    step: i32,
    active: bool,
}

/// Changes of step and activity, in order.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    changes: VecDeque<Change>,
    /// Whether older changes were discarded.
    discarded: bool,
}

/// The step of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAt {
    /// Rows were made, and belong to this step.
    Active(i32),
    /// No rows were made.
    Inactive,
    /// The moment is before the oldest change that is kept.
    Unknown,
}

impl Timeline {
    /// From `ts_ns` on, rows belong to this step, and exist if `active`.
    pub(crate) fn push(&mut self, ts_ns: i64, step: i32, active: bool) {
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
            self.discarded = true;
        }
        // The clocks of two cores may differ by some ns: never go back.
        let ts_ns = self.changes.back().map_or(ts_ns, |last| ts_ns.max(last.ts_ns));
        self.changes.push_back(Change { ts_ns, step, active });
    }

    /// The step at `ts_ns`.
    pub(crate) fn step_at(&self, ts_ns: i64) -> StepAt {
        let after = self.changes.partition_point(|change| change.ts_ns <= ts_ns);
        match after.checked_sub(1).and_then(|last| self.changes.get(last)) {
            Some(change) if change.active => StepAt::Active(change.step),
            None if self.discarded => StepAt::Unknown,
            _ => StepAt::Inactive,
        }
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
    fn a_moment_belongs_to_the_last_step_that_began_before_it() {
        let mut timeline = Timeline::default();
        for (ts_ns, step, active) in [(10, 0, false), (20, -1, false), (30, 1, true), (40, -1, true)] {
            timeline.push(ts_ns, step, active);
        }
        let (inactive, active) = (StepAt::Inactive, StepAt::Active);
        for (ts_ns, step) in
            [(5, inactive), (10, inactive), (25, inactive), (30, active(1)), (39, active(1)), (40, active(-1))]
        {
            assert_eq!(timeline.step_at(ts_ns), step, "{ts_ns}");
        }
        timeline.push(35, 2, true);
        assert_eq!((timeline.step_at(39), timeline.step_at(40), timeline.step_at(0)), (active(1), active(2), inactive));
    }

    #[test]
    fn old_changes_are_discarded() {
        let mut timeline = Timeline::default();
        for ts_ns in 0..=MAX_CHANGES as i64 {
            timeline.push(ts_ns, 7, true);
        }
        assert_eq!((timeline.changes.len(), timeline.step_at(0)), (MAX_CHANGES, StepAt::Unknown));
        assert_eq!(timeline.step_at(1), StepAt::Active(7));
    }
}
