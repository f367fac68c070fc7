//! The lengths of the newest steps, and the window that is judged.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use trace::{Phase, StepRow};

use model::stats::lower_median;

/// Time of the steps that are judged.
///
/// A fault must fill most of it before a verdict names the rank, and must leave it before the rank is cleared. With 4 s
/// from an event to its refresh (a part is closed every 2 s, and looked for every 2 s) and two verdicts for an alarm, a
/// rank is named at most 4 + 0.8 · 6 + 2 ≈ 11 s after the onset, and cleared at most 4 + 6 + 4 = 14 s after the end.
pub const WINDOW: Duration = Duration::from_secs(6);
/// Least number of steps of a window, however long they are.
pub(super) const MIN_STEPS: usize = 5;
/// The most steps of a window: more would cost time and add no certainty.
const MAX_STEPS: usize = 200;
/// Steps that are kept.
const KEPT: usize = 512;

/// The newest active steps.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Length of each step on each rank that has written it.
    by_rank: BTreeMap<i32, BTreeMap<i32, i64>>,
    /// Lengths of the steps that all ranks have written: the lower median over the ranks.
    complete: BTreeMap<i32, i64>,
}

impl Steps {
    /// Adds a step of a rank.
    pub(super) fn add(&mut self, row: &StepRow) {
        let is_new = self.complete.last_key_value().is_none_or(|(last, _)| row.step > *last);
        if row.phase == Phase::Active && is_new {
            let length_ns = row.end_ns.saturating_sub(row.start_ns).max(0);
            self.by_rank.entry(row.step).or_default().insert(row.rank, length_ns);
        }
        // Steps that a rank never writes stay incomplete.
        while self.by_rank.len() > KEPT {
            self.by_rank.pop_first();
        }
    }

    /// The steps that all `ranks` have written since the last call, and their lengths, ascending.
    pub(super) fn complete(&mut self, ranks: &[i32]) -> Vec<(i32, i64)> {
        let has_all = |of_step: &BTreeMap<i32, i64>| ranks.iter().all(|rank| of_step.contains_key(rank));
        let is_complete = self.by_rank.iter().filter(|(_, of_step)| has_all(of_step));
        let length =
            |(step, of_step): (&i32, &BTreeMap<i32, i64>)| Some((*step, lower_median(of_step.values().copied())?));
        let new: Vec<(i32, i64)> = is_complete.filter_map(length).collect();
        if let Some((last, _)) = new.last() {
            self.by_rank = self.by_rank.split_off(&last.saturating_add(1));
        }
        self.complete.extend(new.iter().copied());
        while self.complete.len() > KEPT {
            self.complete.pop_first();
        }
        new
    }

    /// The newest complete steps, ascending.
    pub(super) fn recent(&self) -> Vec<(i32, i64)> {
        self.complete.iter().map(|(step, ns)| (*step, *ns)).collect()
    }

    /// Length of the longest step of those that are kept.
    pub(super) fn longest_ns(&self) -> i64 {
        self.complete.values().copied().max().unwrap_or(0)
    }

    /// The newest steps that together last for [`WINDOW`], from `first` on; `None` if there are too few.
    pub(super) fn window(&self, first: i32) -> Option<Range<i32>> {
        let (mut sum_ns, mut steps) = (0_i64, Vec::new());
        for (step, ns) in self.complete.range(first..).rev().take(MAX_STEPS) {
            sum_ns = sum_ns.saturating_add(*ns);
            if u128::from(sum_ns.unsigned_abs()) > WINDOW.as_nanos() && steps.len() >= MIN_STEPS {
                break;
            }
            steps.push(*step);
        }
        let (last, first) = (steps.first()?, steps.last()?);
        (steps.len() >= MIN_STEPS).then(|| *first..last.saturating_add(1))
    }

    /// The first step that the next window may need, with the one before it: the engine looks at neighbouring steps.
    pub(super) fn first_needed(&self) -> i32 {
        self.window(0).map_or(0, |window| window.start.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(ms: &[i64]) -> Steps {
        let mut steps = Steps::default();
        for (step, ms) in ms.iter().enumerate() {
            for rank in [0, 1] {
                let (start_ns, end_ns) = (0, (ms + i64::from(rank)) * 1_000_000);
                let phase = Phase::Active.into();
                steps.add(&StepRow { rank, step: step as i32, phase, start_ns, end_ns, ..StepRow::default() });
            }
        }
        steps
    }

    #[test]
    fn a_window_has_six_seconds_of_steps_but_never_few_or_too_many() {
        let window = |ms: i64, count: usize, first: i32| {
            let mut steps = steps(&vec![ms; count]);
            steps.complete(&[0, 1]);
            steps.window(first)
        };
        assert_eq!(window(1000, 100, 0), Some(94..100));
        assert_eq!(window(5000, 100, 0), Some(95..100), "five long steps");
        assert_eq!(window(10, 500, 0), Some(300..500), "two hundred short ones");
        assert_eq!(window(1000, 100, 96), None, "four whole steps are too few");
        assert_eq!(window(1000, 100, 95), Some(95..100));
    }

    #[test]
    fn a_step_counts_once_all_ranks_have_it() {
        let mut steps = steps(&[100, 200]);
        let row = StepRow { rank: 0, step: 2, phase: Phase::Active.into(), end_ns: 7, ..StepRow::default() };
        steps.add(&row);
        assert_eq!(steps.complete(&[0, 1]), [(0, 100_000_000), (1, 200_000_000)]);
        assert_eq!(steps.complete(&[0, 1]), []);
        steps.add(&StepRow { rank: 1, ..row });
        assert_eq!(steps.complete(&[0, 1]), [(2, 7)]);
    }
}
