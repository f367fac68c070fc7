//! The part of a rank that was asked for: steps by their numbers, a span of time, or the insides of a range.
//!
//! A device works behind its host, so a step is no span of time of the whole rank: what belongs to it says so by its
//! number, and `--steps` asks for that.
//!
//! ```text
//!  host       |--- step 1 ---|--- step 2 ---|--- step 3 ---|
//!  device            [  k1  ][A1]    [  k2  ][A2]    [  k3  ][A3]
//!  --steps 2                  ...    ############ k2 and A2, though A2 begins after the host's step 2
//! ```

use std::ops::Range;

use regex::Regex;
use trace::{CollectiveRow, StepRow};

use crate::intervals::{Interval, IntervalSet};
use crate::map::RankPart;
use crate::model::{Events, Kind, RankData};
use crate::options::Options;
use crate::steps::{StepWindow, step_at};
use crate::straggler;

/// What of a rank is looked at; `None` is everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scope {
    /// `--range`, `--from` and `--to`, in the rank's clock.
    pub(crate) time: Option<IntervalSet>,
    /// `--steps`.
    pub(crate) steps: Option<Range<i32>>,
}

impl Scope {
    /// `ranges` are the insides of the ranges of `--range`; `time` is what `--from` and `--to` mean on this rank's
    /// clock.
    pub(crate) fn new(options: &Options, ranges: Option<IntervalSet>, time: Option<Interval>) -> Self {
        let time = time.map(|window| [window].into_iter().collect::<IntervalSet>());
        let time = [ranges, time].into_iter().flatten().reduce(|a, b| a.intersection(&b));
        Self { time, steps: options.steps.clone() }
    }

    /// The scope of a loaded rank.
    pub(crate) fn of(data: &RankData, options: &Options, time: Option<Interval>) -> Self {
        Self::new(options, options.range.as_ref().map(|regex| matching_ranges(data, regex)), time)
    }

    /// Whether a step was chosen.
    pub(crate) fn has_step(&self, step: i32) -> bool {
        self.steps.as_ref().is_none_or(|steps| steps.contains(&step))
    }

    /// Whether a point of time was chosen, whatever step it is in.
    pub(crate) fn has_time(&self, t_ns: i64) -> bool {
        self.time.as_ref().is_none_or(|time| contains(time, t_ns))
    }

    /// Whether a row of `events` begins in the chosen part.
    pub(crate) fn keeps_row(&self, events: &Events, row: usize) -> bool {
        self.has_step(events.step[row]) && self.has_time(events.ts_ns[row])
    }

    /// Whether something that names no step, and happens on the host at `t_ns`, lies in the chosen part.
    pub(crate) fn keeps_host_time(&self, steps: &[StepRow], t_ns: i64) -> bool {
        self.has_time(t_ns) && (self.steps.is_none() || self.has_step(step_at(steps, t_ns)))
    }

    /// Of the windows of all steps, those that were chosen.
    pub(crate) fn chosen(&self, mut windows: Vec<StepWindow>) -> Vec<StepWindow> {
        windows.retain(|window| self.has_step(window.step));
        windows
    }

    /// The time that was chosen, if steps have the windows of [`chosen`](Self::chosen); `None` is everything.
    pub(crate) fn within(&self, chosen: &[StepWindow]) -> Option<IntervalSet> {
        let steps =
            self.steps.as_ref().map(|_| IntervalSet::from_unsorted(chosen.iter().map(|step| step.window).collect()));
        match (steps, &self.time) {
            (Some(steps), Some(time)) => Some(steps.intersection(time)),
            (steps, time) => steps.or_else(|| time.clone()),
        }
    }
}

/// The insides of the host's ranges of a name.
pub(crate) fn matching_ranges(data: &RankData, regex: &Regex) -> IntervalSet {
    let wanted: Vec<bool> = data.names.iter().map(|name| regex.is_match(name)).collect();
    let events = &data.events;
    let is_range = |row: &usize| {
        let kind = matches!(events.kind[*row], Kind::UserAnnotation | Kind::CpuOp | Kind::PythonFunction);
        kind && wanted[events.name[*row] as usize]
    };
    let rows = (0..events.len()).filter(is_range);
    rows.map(|row| Interval::new(events.ts_ns[row], events.end_ns(row))).collect()
}

/// Leaves only the steps and collectives that begin in the chosen time. Rows of `events` stay: those that begin outside
/// may reach into it.
pub(crate) fn narrow_to_time(
    steps: &mut Vec<StepRow>,
    collectives: &mut Vec<CollectiveRow>,
    comms_ids: &mut Vec<Option<u64>>,
    scope: &Scope,
) {
    if scope.time.is_none() {
        return;
    }
    steps.retain(|s| scope.has_time(s.start_ns));
    let begins = |c: &CollectiveRow| c.start_ns.or(c.enqueue_ns).is_some_and(|t| scope.has_time(t));
    let kept: Vec<bool> = collectives.iter().map(begins).collect();
    retain(collectives, &kept);
    retain(comms_ids, &kept);
}

/// Leaves only the chosen steps and their collectives, and says which of the collectives these are.
pub(crate) fn narrow_to_steps(
    steps: &mut Vec<StepRow>,
    collectives: &mut Vec<CollectiveRow>,
    comms_ids: &mut Vec<Option<u64>>,
    scope: &Scope,
) -> Vec<bool> {
    // One that names no step belongs to the step that it begins in, as for stragglers.
    let step = |c: &CollectiveRow| c.step.or_else(|| Some(step_at(steps, c.start_ns.or(c.enqueue_ns)?)));
    let chosen = |c: &CollectiveRow| scope.steps.is_none() || step(c).is_some_and(|step| scope.has_step(step));
    let kept: Vec<bool> = collectives.iter().map(chosen).collect();
    steps.retain(|s| scope.has_step(s.step));
    retain(collectives, &kept);
    retain(comms_ids, &kept);
    kept
}

/// Leaves of a part that was made of all steps the chosen ones. The first of them so knows when the device was done
/// with the step before it.
pub(crate) fn select_steps(part: &mut RankPart, scope: &Scope) {
    if scope.steps.is_none() {
        return;
    }
    let RankPart { steps, collectives, comms_ids, exposed_ns, .. } = part;
    let kept = narrow_to_steps(steps, collectives, comms_ids, scope);
    retain(exposed_ns, &kept);
    select_stretches(&mut part.straggler, &kept, scope);
}

/// Own stretches keep the length that they have in the whole recording.
fn select_stretches(part: &mut straggler::RankPart, kept: &[bool], scope: &Scope) {
    let places = kept.iter().scan(0, |next, kept| {
        let place = kept.then_some(*next);
        *next += u32::from(*kept);
        Some(place)
    });
    let places: Vec<Option<u32>> = places.collect();
    retain(&mut part.stretches, kept);
    for stretch in &mut part.stretches {
        stretch.previous = stretch.previous.and_then(|at| places.get(at as usize).copied().flatten());
    }
    let in_steps: Vec<bool> = part.steps.iter().map(|s| scope.has_step(s.step)).collect();
    retain(&mut part.steps, &in_steps);
    part.ranges.iter_mut().for_each(|range| retain(&mut range.self_ns, &in_steps));
}

/// Leaves what is `kept`, by position; an empty column stays empty.
fn retain<T>(rows: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter().copied();
    rows.retain(|_| kept.next().unwrap_or(false));
}

/// Whether a point lies in the set.
pub(crate) fn contains(set: &IntervalSet, t: i64) -> bool {
    let i = set.intervals().partition_point(|i| i.start_ns <= t);
    i > 0 && t < set.intervals()[i - 1].end_ns
}

#[cfg(test)]
mod tests;
