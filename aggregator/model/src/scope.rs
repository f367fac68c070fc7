//! The selected part of a rank: steps by their numbers, a span of time, or the insides of ranges.
//!
//! A device works behind its host, so a step is not one span of time on all lanes of a rank. `--steps` therefore
//! selects rows by their step number, not by time.
//!
//! ```text
//!  host       |--- step 1 ---|--- step 2 ---|--- step 3 ---|
//!  device            [  k1  ][A1]    [  k2  ][A2]    [  k3  ][A3]
//!  --steps 2                  ...    ############ k2 and A2, though A2 begins after the host's step 2
//! ```

use std::ops::Range;

use regex::Regex;
use trace::StepRow;

use crate::intervals::{Interval, IntervalSet};
use crate::options::Options;
use crate::steps::{StepWindow, mark_steps, one_step_if_none, step_at};
use crate::{Collective, Events, Kind, RankData, RankOutline};

/// The selected part of a rank; `None` selects everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    /// `--range`, `--from` and `--to`, in the rank's clock.
    pub time: Option<IntervalSet>,
    /// `--steps`.
    pub steps: Option<Range<i32>>,
}

impl Scope {
    /// Builds a scope. `ranges` are the insides of the ranges of `--range`; `time` is the span of `--from` and `--to`
    /// on this rank's clock.
    pub fn new(options: &Options, ranges: Option<IntervalSet>, time: Option<Interval>) -> Self {
        let time = time.map(|window| [window].into_iter().collect::<IntervalSet>());
        let time = [ranges, time].into_iter().flatten().reduce(|a, b| a.intersection(&b));
        Self { time, steps: options.steps.clone() }
    }

    /// Builds the scope of a loaded rank.
    pub fn of(data: &RankData, options: &Options, time: Option<Interval>) -> Self {
        Self::new(options, options.range.as_ref().map(|regex| matching_ranges(data, regex)), time)
    }

    /// Whether a step is selected.
    pub fn has_step(&self, step: i32) -> bool {
        self.steps.as_ref().is_none_or(|steps| steps.contains(&step))
    }

    /// Whether a point in time is selected, whatever its step.
    pub fn has_time(&self, t_ns: i64) -> bool {
        self.time.as_ref().is_none_or(|time| contains(time, t_ns))
    }

    /// Whether the selected time has a part of a recording from its start to its end in ns.
    pub fn meets(&self, recorded_ns: Option<(i64, i64)>) -> bool {
        let Some(time) = &self.time else { return true };
        recorded_ns.is_some_and(|(start, end)| time.intervals().iter().any(|i| i.start_ns <= end && start < i.end_ns))
    }

    /// Whether a row of `events` begins in the selected part.
    pub fn keeps_row(&self, events: &Events, row: usize) -> bool {
        self.has_step(events.step[row]) && self.has_time(events.ts_ns[row])
    }

    /// Whether a host time without a step number lies in the selected part.
    pub fn keeps_host_time(&self, steps: &[StepRow], t_ns: i64) -> bool {
        self.has_time(t_ns) && (self.steps.is_none() || self.has_step(step_at(steps, t_ns)))
    }

    /// Keeps the windows of the selected steps.
    pub fn chosen(&self, mut windows: Vec<StepWindow>) -> Vec<StepWindow> {
        windows.retain(|window| self.has_step(window.step));
        windows
    }

    /// The selected time, given the windows of the selected steps; `None` is everything.
    pub fn within(&self, chosen: &[StepWindow]) -> Option<IntervalSet> {
        let steps =
            self.steps.as_ref().map(|_| IntervalSet::from_unsorted(chosen.iter().map(|step| step.window).collect()));
        match (steps, &self.time) {
            (Some(steps), Some(time)) => Some(steps.intersection(time)),
            (steps, time) => steps.or_else(|| time.clone()),
        }
    }
}

/// The insides of the host ranges whose name matches.
pub fn matching_ranges(data: &RankData, regex: &Regex) -> IntervalSet {
    let wanted: Vec<bool> = data.names.iter().map(|name| regex.is_match(name)).collect();
    let events = &data.events;
    let is_range = |row: &usize| {
        let kind = matches!(events.kind[*row], Kind::UserAnnotation | Kind::CpuOp | Kind::PythonFunction);
        kind && wanted[events.name[*row] as usize]
    };
    let rows = (0..events.len()).filter(is_range);
    rows.map(|row| Interval::new(events.ts_ns[row], events.end_ns(row))).collect()
}

/// Keeps only the steps and collectives that begin in the selected time. Rows of `events` stay, because rows that begin
/// outside of that time may reach into it.
pub fn narrow_to_time(outline: &mut RankOutline, scope: &Scope) {
    if scope.time.is_none() {
        return;
    }
    outline.steps.retain(|s| scope.has_time(s.start_ns));
    outline.collectives.retain(|c| c.start_ns().or(c.enqueue_ns()).is_some_and(|t| scope.has_time(t)));
}

/// Keeps only the selected steps and their collectives. Returns for each position whether the collective was kept.
pub fn narrow_to_steps(outline: &mut RankOutline, scope: &Scope) -> Vec<bool> {
    let RankOutline { steps, collectives, .. } = outline;
    // A collective without a step number belongs to the step in which it begins, as in the straggler analysis.
    let step = |c: &Collective| c.step().or_else(|| Some(step_at(steps, c.start_ns().or(c.enqueue_ns())?)));
    let chosen = |c: &Collective| scope.steps.is_none() || step(c).is_some_and(|step| scope.has_step(step));
    let kept: Vec<bool> = collectives.iter().map(chosen).collect();
    steps.retain(|s| scope.has_step(s.step));
    retain(collectives, &kept);
    kept
}

/// Keeps the rows whose position is `kept`; an empty column stays empty.
pub fn retain<T>(rows: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter().copied();
    rows.retain(|_| kept.next().unwrap_or(false));
}

/// Whether a point lies in the set.
pub(crate) fn contains(set: &IntervalSet, t: i64) -> bool {
    let i = set.intervals().partition_point(|i| i.start_ns <= t);
    i > 0 && t < set.intervals()[i - 1].end_ns
}

/// Narrows a loaded rank as its analysis did. The positions of collectives then match the members of the instances.
pub fn prepare(data: &mut RankData, options: &Options, time: Option<Interval>) -> Scope {
    if let Some(marker) = &options.step_marker {
        mark_steps(data, marker);
    }
    one_step_if_none(data);
    options.communication.decide(data);
    let scope = Scope::of(data, options, time);
    narrow_to_time(&mut data.outline, &scope);
    data.measure_outline();
    narrow_to_steps(&mut data.outline, &scope);
    scope
}
