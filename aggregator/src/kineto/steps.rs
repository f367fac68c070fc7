//! Training steps, from the `ProfilerStep#N` ranges of the host, and the step of every row.

use rayon::prelude::*;
use trace::{StepRow, Text};

pub(crate) use crate::device::Launches;
use crate::kineto::event::is_device_row;
use crate::model::{Events, Kind, NO_STEP};

/// Between steps.
const BETWEEN: i32 = -1;

/// The steps of a rank.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Steps {
    /// Sorted by start; they do not overlap. Empty if nothing marks a step.
    pub(crate) rows: Vec<StepRow>,
    /// Marks of a step that was marked before, or that begin inside another step.
    pub(crate) left_out: i64,
}

/// Finds the steps.
pub(crate) fn find_steps(events: &Events, names: &[Text], rank: i32) -> Steps {
    let number = |name: &Text| name.strip_prefix("ProfilerStep#")?.parse::<i32>().ok().filter(|n| *n >= 0);
    let numbers: Vec<Option<i32>> = names.iter().map(number).collect();
    let mut steps = Steps::default();
    for row in 0..events.len() {
        // In 2021 every range was an `Operator`.
        if !matches!(events.kind[row], Kind::UserAnnotation | Kind::CpuOp) {
            continue;
        }
        let Some(step) = numbers[events.name[row] as usize] else { continue };
        let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
        let overlaps = steps.rows.last().is_some_and(|last| start_ns < last.end_ns);
        if overlaps || steps.rows.iter().any(|other| other.step == step) {
            steps.left_out += 1;
            continue;
        }
        steps.rows.push(StepRow { rank, step, phase: "active".into(), start_ns, end_ns, loss: None });
    }
    steps
}

/// The step at a time: the one that holds it, or [`BETWEEN`].
pub(crate) fn step_at(steps: &[StepRow], ts_ns: i64) -> i32 {
    let after = steps.partition_point(|step| step.start_ns <= ts_ns);
    match after.checked_sub(1).map(|at| &steps[at]) {
        Some(step) if ts_ns < step.end_ns => step.step,
        _ => BETWEEN,
    }
}

/// Gives every row its step: a host row the one it begins in, a device row that of its launch.
///
/// A device row without a launch in the trace was launched before the trace began: its step is unknown. Only where
/// nothing was recorded of any launch do device rows get the step they begin in.
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
            // A range on the device has no launch of its own; it lies where its kernels lie.
            None if kind[row] == Kind::GpuUserAnnotation || launches.is_empty() => step_at(steps, ts_ns[row]),
            None => NO_STEP,
        }
    };
    events.step = (0..kind.len()).into_par_iter().with_min_len(1 << 14).map(step_of).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kineto::tests::rank_from_events;

    /// ```text
    /// host    |-- step 3 --| launch |-- step 4 --|
    ///           l1 ─                   l2 ─
    /// device  k0 ──  k1 ─────          k2 ──
    /// ```
    #[test]
    fn device_rows_have_the_step_of_their_launch() {
        let data = rank_from_events(
            r#"
            {"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":0,"dur":100},
            {"ph":"X","cat":"user_annotation","name":"ProfilerStep#4","pid":1,"tid":1,"ts":200,"dur":100},
            {"ph":"X","cat":"user_annotation","name":"ProfilerStep#4","pid":1,"tid":2,"ts":400,"dur":100},
            {"ph":"X","cat":"cuda_runtime","name":"l1","pid":1,"tid":1,"ts":10,"dur":5,"args":{"correlation":1}},
            {"ph":"X","cat":"cuda_runtime","name":"l2","pid":1,"tid":1,"ts":210,"dur":5,"args":{"correlation":2}},
            {"ph":"X","cat":"cpu_op","name":"gap","pid":1,"tid":1,"ts":150,"dur":5},
            {"ph":"X","cat":"kernel","name":"k0","pid":0,"tid":7,"ts":0,"dur":5,"args":{"correlation":9}},
            {"ph":"X","cat":"kernel","name":"k1","pid":0,"tid":7,"ts":110,"dur":5,"args":{"correlation":1}},
            {"ph":"X","cat":"kernel","name":"k2","pid":0,"tid":7,"ts":250,"dur":5,"args":{"correlation":2}}"#,
        );
        let step = |name: &str| {
            let row = (0..data.events.len()).find(|r| &*data.names[data.events.name[*r] as usize] == name).unwrap();
            data.events.step[row]
        };
        assert_eq!((step("l1"), step("l2"), step("gap")), (3, 4, BETWEEN));
        assert_eq!((step("k0"), step("k1"), step("k2")), (NO_STEP, 3, 4));
        assert_eq!(data.steps.len(), 2);
        assert!(data.omissions.iter().any(|o| o.what.contains("ProfilerStep") && o.amount == Some(1)));
    }
}
