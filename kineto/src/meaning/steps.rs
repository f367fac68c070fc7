//! Training steps, from the host's `ProfilerStep#N` ranges, and the step of every row.

use rayon::prelude::*;
use rustc_hash::FxHashSet;
use trace::name_rules::step_number;
use trace::rank::{Events, Kind, Launches, NO_STEP};
use trace::{StepRow, Text};

use crate::columns::event::is_device_row;
/// Two marks overlap by no more where their times were rounded: the earlier one ends where the later one begins.
const ROUNDING_NS: i64 = 1_000;
/// Between steps.
const BETWEEN: i32 = -1;

/// The steps of a rank.
#[derive(Debug, Default, PartialEq)]
pub struct Steps {
    /// Sorted by start, without overlap. Empty if no range marks a step.
    pub rows: Vec<StepRow>,
    /// Ranges that repeat a step or begin inside another.
    pub left_out: i64,
}

/// Why marks of steps are left out.
pub const LEFT_OUT_MARKS: (&str, &str) = ("ProfilerStep marks", "they repeat a step or begin inside another");

/// Finds the steps that the host's ranges mark. `events` are in the order of time.
pub fn find_steps(events: &Events, names: &[Text], rank: i32) -> Steps {
    let numbers: Vec<Option<i32>> = names.iter().map(|name| step_number(name)).collect();
    // In 2021 every range was an `Operator`.
    let is_range = |row: &usize| matches!(events.kind[*row], Kind::UserAnnotation | Kind::CpuOp);
    let ranges = (0..events.len()).filter(is_range);
    let mark = |row: usize| Some((numbers[events.name[row] as usize]?, events.ts_ns[row], events.end_ns(row)));
    steps_of_marks(ranges.filter_map(mark), rank)
}

/// The steps of marks in the order of time: the number of each, its start and its end, in ns.
pub fn steps_of_marks(marks: impl IntoIterator<Item = (i32, i64, i64)>, rank: i32) -> Steps {
    let mut steps = Steps::default();
    let mut known: FxHashSet<i32> = FxHashSet::default();
    for (step, start_ns, end_ns) in marks {
        let overlap_ns = steps.rows.last().map_or(0, |last| last.end_ns - start_ns);
        let is_new = !known.contains(&step);
        if let Some(last) = steps.rows.last_mut().filter(|last| is_new && start_ns > last.start_ns)
            && (1..=ROUNDING_NS).contains(&overlap_ns)
        {
            last.end_ns = start_ns;
        }
        let overlaps = steps.rows.last().is_some_and(|last| start_ns < last.end_ns);
        if overlaps || !known.insert(step) {
            steps.left_out += 1;
            continue;
        }
        steps.rows.push(StepRow { rank, step, phase: "active".into(), start_ns, end_ns, loss: None, window: None });
    }
    steps
}

/// The step at a time, or [`BETWEEN`].
pub(crate) fn step_at(steps: &[StepRow], ts_ns: i64) -> i32 {
    let after = steps.partition_point(|step| step.start_ns <= ts_ns);
    match after.checked_sub(1).map(|at| &steps[at]) {
        Some(step) if ts_ns < step.end_ns => step.step,
        _ => BETWEEN,
    }
}

/// Gives every row its step. A host row gets the step in which it begins, a device row that of its launch.
///
/// A device row without a launch in the trace was launched before the trace began, so its step is unknown. If the trace
/// has no launches at all, device rows get the step in which they begin.
pub(crate) fn assign_steps(events: &mut Events, steps: &[StepRow], launches: &Launches) {
    if steps.is_empty() {
        return;
    }
    let Events { kind, ts_ns, correlation, .. } = &*events;
    let step_of = |row: usize| {
        if !is_device_row(kind[row]) {
            return step_at(steps, ts_ns[row]);
        }
        match launches.of(correlation[row]) {
            Some(launch) => step_at(steps, ts_ns[launch as usize]),
            // A range on the device has no launch of its own; it spans its kernels.
            None if kind[row] == Kind::GpuUserAnnotation || launches.is_empty() => step_at(steps, ts_ns[row]),
            None => NO_STEP,
        }
    };
    events.step = (0..kind.len()).into_par_iter().with_min_len(1 << 14).map(step_of).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_that_overlap_by_their_rounding_are_cut_and_others_left_out() {
        let found = |marks: &[(i32, i64, i64)]| {
            let steps = steps_of_marks(marks.iter().copied(), 0);
            (steps.rows.iter().map(|s| (s.step, s.start_ns, s.end_ns)).collect::<Vec<_>>(), steps.left_out)
        };
        let kept = (vec![(1, 0, 9_000), (2, 9_000, 20_000)], 0);
        assert_eq!(found(&[(1, 0, 9_001), (2, 9_000, 20_000)]), kept);
        assert_eq!(found(&[(1, 0, 10_000), (2, 9_000, 20_000)]), kept);
        assert_eq!(found(&[(1, 0, 10_001), (2, 9_000, 20_000)]), (vec![(1, 0, 10_001)], 1));
        // A mark that repeats the step changes nothing, and neither does one that begins with it.
        assert_eq!(found(&[(1, 0, 500), (1, 0, 500), (1, 400, 900)]), (vec![(1, 0, 500)], 2));
        assert_eq!(found(&[(1, 0, 500), (2, 0, 400)]), (vec![(1, 0, 500)], 1));
    }
}
