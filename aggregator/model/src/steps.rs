//! Steps: their windows, marks from ranges if a run records none, and the assignment of rows to steps.
//!
//! A step's window on a device differs from its window on the host, because a device works behind its host (the rule of
//! the TensorBoard plugin):
//!
//! ```text
//!  host    |--- step 1 ---|--- step 2 ---|
//!  device      [k1][k1][ k1 ]..[k2][k2]..|      k1 was launched in step 1
//!  step 1  |----------------|
//!  step 2                   |------------|
//! ```

use regex::Regex;
use rustc_hash::FxHashMap;
use trace::{OmissionRow, Phase, StepRow};

use crate::intervals::Interval;
use crate::windows::Windows;
use crate::{Collective, Events, Kind, NO_STEP, RankData, RankOutline};
use trace::rank::Launches;

/// A step's number and its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepWindow {
    /// Number of the step.
    pub step: i32,
    /// From start to end, in the rank's clock.
    pub window: Interval,
}

/// Makes every host range whose name matches a step, and assigns all rows to these steps. Steps are numbered from 0 in
/// order of start. A range that begins before the previous match ended is not a step; it is counted.
pub fn mark_steps(data: &mut RankData, marker: &Regex) {
    let marks: Vec<bool> = data.names.iter().map(|name| marker.is_match(name)).collect();
    let windows = Windows::of(&data.outline.steps);
    let events = &data.events;
    let rank = data.outline.info.rank;
    let mut steps: Vec<StepRow> = Vec::new();
    let mut nested = 0_i64;
    for row in 0..events.len() {
        let is_range = matches!(events.kind[row], Kind::UserAnnotation | Kind::CpuOp | Kind::PythonFunction);
        if !is_range || !marks[events.name[row] as usize] {
            continue;
        }
        if steps.last().is_some_and(|last| events.ts_ns[row] < last.end_ns) {
            nested += 1;
            continue;
        }
        let step = steps.len() as i32;
        let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
        let window = windows.number_at(start_ns);
        steps.push(StepRow { rank, step, phase: Phase::Active.into(), start_ns, end_ns, loss: None, window });
    }
    if nested > 0 {
        data.omissions.push(
            OmissionRow::left_out(
                "ranges that match --step-marker",
                "they begin before the previous match ended, so they are not counted as steps",
            )
            .rank(rank)
            .amount(nested),
        );
    }
    data.outline.steps = steps;
    assign_steps(data);
}

/// Makes a run without steps a single step, from its first row to its last.
pub fn one_step_if_none(data: &mut RankData) {
    if !data.outline.steps.is_empty() {
        return;
    }
    let Some(all) = data.outline.recorded_with(data.rows_ns()) else { return };
    data.outline.steps = vec![whole_as_step(data.outline.info.rank, all, &mut data.outline.collectives)];
    data.events.step.fill(0);
}

/// Makes the whole recording one step, which contains all collectives.
pub fn whole_as_step(rank: i32, (start_ns, end_ns): (i64, i64), collectives: &mut [Collective]) -> StepRow {
    collectives.iter_mut().for_each(|c| c.set_step(Some(0)));
    StepRow { rank, step: 0, phase: Phase::Active.into(), start_ns, end_ns, loss: None, window: None }
}

/// First start to last end of everything that was read of a rank, for each of its windows; ascending.
pub fn recorded(data: &RankData) -> Vec<Interval> {
    let RankData { outline, events, .. } = data;
    let rows = (0..events.len()).map(|row| Interval::new(events.ts_ns[row], events.end_ns(row)));
    let steps = outline.steps.iter().map(|s| Interval::new(s.start_ns, s.end_ns));
    let collectives = outline.collectives.iter().filter_map(|c| {
        let start = c.start_ns().or(c.enqueue_ns())?;
        Some(Interval::new(start, c.end_ns().unwrap_or(start)))
    });
    Windows::of(&outline.steps).hulls(rows.chain(steps).chain(collectives))
}

/// The step that contains `t`; −1: between steps.
pub fn step_at(steps: &[StepRow], t: i64) -> i32 {
    let i = steps.partition_point(|s| s.start_ns <= t);
    if i > 0 && t < steps[i - 1].end_ns { steps[i - 1].step } else { -1 }
}

/// Assigns each row to the step in which it begins, and each device row to the step of its launch. −1: between steps.
pub fn assign_steps(data: &mut RankData) {
    let RankData { outline, events, .. } = data;
    let RankOutline { steps, collectives, .. } = outline;
    let step_at = |t: i64| step_at(steps, t);
    let launches = Launches::collect(events);
    for row in 0..events.len() {
        let ts = events.ts_ns[row];
        let on_device = events.kind[row].is_device_work() || events.kind[row] == Kind::GpuUserAnnotation;
        let launch =
            if on_device { launches.of(events.correlation[row]).map(|call| events.ts_ns[call as usize]) } else { None };
        events.step[row] = step_at(launch.unwrap_or(ts));
    }
    let by_event: FxHashMap<i64, i32> = if collectives.iter().any(|c| c.event_id().is_some()) {
        events.id.iter().copied().zip(events.step.iter().copied()).collect()
    } else {
        FxHashMap::default()
    };
    for collective in collectives {
        let of_event = collective.event_id().and_then(|id| by_event.get(&id).copied());
        collective.set_step(of_event.or_else(|| collective.start_ns().or(collective.enqueue_ns()).map(step_at)));
    }
}

/// The numbers of the active steps, ascending.
pub fn active_numbers(steps: &[StepRow]) -> Vec<i32> {
    let mut numbers: Vec<i32> = host_windows(steps).iter().map(|s| s.step).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The host windows of the active steps.
pub fn host_windows(steps: &[StepRow]) -> Vec<StepWindow> {
    let active = steps.iter().filter(|s| s.phase != Phase::Warmup);
    active.map(|s| StepWindow { step: s.step, window: Interval::new(s.start_ns, s.end_ns) }).collect()
}

/// The end of the last device work that was launched in each step, by device.
#[derive(Clone, Debug, Default)]
pub struct DeviceEnds(FxHashMap<(i64, i32), i64>);

impl DeviceEnds {
    /// Finds the ends in one pass over all rows.
    pub fn of(events: &Events) -> Self {
        let mut ends: FxHashMap<(i64, i32), i64> = FxHashMap::default();
        for row in 0..events.len() {
            let step = events.step[row];
            if events.kind[row].is_device_work() && step >= 0 && step != NO_STEP {
                let end = ends.entry((events.device[row], step)).or_insert(i64::MIN);
                *end = (*end).max(events.end_ns(row));
            }
        }
        Self(ends)
    }
}

/// The device windows of the active steps: from max(host start, previous step's end) to max(host end, end of the last
/// device work launched in the step). They never overlap.
pub fn device_windows(host: &[StepWindow], ends: &DeviceEnds, device: i64) -> Vec<StepWindow> {
    windows_with(host, |step| ends.0.get(&(device, step)).copied())
}

fn windows_with(host: &[StepWindow], device_end: impl Fn(i32) -> Option<i64>) -> Vec<StepWindow> {
    let mut previous_end = i64::MIN;
    let window_of = |step: &StepWindow| {
        let start = step.window.start_ns.max(previous_end);
        let device_end = device_end(step.step).unwrap_or(i64::MIN);
        let end = step.window.end_ns.max(device_end).max(start);
        previous_end = end;
        StepWindow { step: step.step, window: Interval::new(start, end) }
    };
    host.iter().map(window_of).collect()
}

/// The windows of a rank's active steps. Each ends with the last device work that was launched in the step, and they do not
/// overlap.
pub fn rank_windows(data: &RankData) -> Vec<StepWindow> {
    let events = &data.events;
    let mut ends: FxHashMap<i32, i64> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
        let end_ns = ends.entry(events.step[row]).or_insert(i64::MIN);
        *end_ns = (*end_ns).max(events.end_ns(row));
    }
    windows_with(&host_windows(&data.outline.steps), |step| ends.get(&step).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    #[test]
    fn a_marker_makes_steps() {
        let mut data = Drawn::rank(0)
            .host(Kind::UserAnnotation, "iteration 7", 1, ".#####..#####..")
            .host(Kind::UserAnnotation, "iteration inner", 1, "..##...........")
            .host(Kind::CpuOp, "gemm", 1, "#..#..#..#.....")
            .launches(1, "...#...........")
            .device(Kind::Kernel, "sgemm", (0, 7), 1, "......##.......")
            .collectives("...........##..")
            .data();
        mark_steps(&mut data, &Regex::new("^iteration").unwrap());
        let windows: Vec<_> =
            host_windows(&data.outline.steps).iter().map(|s| (s.step, s.window.start_ns, s.window.end_ns)).collect();
        assert_eq!(windows, [(0, 1, 6), (1, 8, 13)]);
        assert_eq!(data.omissions.iter().map(|o| o.amount).collect::<Vec<_>>(), [Some(1)]);
        let step_of = |name: &str| -> Vec<i32> {
            let rows = 0..data.events.len();
            let named = rows.filter(|row| &*data.names[data.events.name[*row] as usize] == name);
            named.map(|row| data.events.step[row]).collect()
        };
        assert_eq!(step_of("gemm"), [-1, 0, -1, 1]);
        // The kernel ran after the step but was launched in it.
        assert_eq!(step_of("sgemm"), [0]);
        assert_eq!(data.outline.collectives[0].step(), Some(1));
    }

    #[test]
    fn a_run_without_steps_is_one_step() {
        let mut data = Drawn::rank(0).host(Kind::CpuOp, "gemm", 1, "..##..##").collectives("....##....#").data();
        one_step_if_none(&mut data);
        assert_eq!((data.outline.steps[0].start_ns, data.outline.steps[0].end_ns), (2, 11));
        assert_eq!(data.events.step, [0, 0]);
        assert_eq!(data.outline.collectives[1].step(), Some(0));
    }
}
