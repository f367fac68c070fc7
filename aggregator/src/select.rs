//! The part of a rank that was asked for: steps, a span of time, or the insides of a range.

use regex::Regex;
use trace::{CollectiveRow, StepRow};

use crate::intervals::{Interval, IntervalSet};
use crate::model::{Kind, RankData};
use crate::options::Options;
use crate::steps::host_windows;

/// What of a rank is looked at, in its own clock; `None` is everything. `time` is what `--from` and `--to` mean on this
/// rank's clock.
pub(crate) fn scope(data: &RankData, options: &Options, time: Option<Interval>) -> Option<IntervalSet> {
    let ranges = options.range.as_ref().map(|regex| matching_ranges(data, regex));
    let time = time.map(|window| [window].into_iter().collect::<IntervalSet>());
    [chosen_steps(&data.steps, options), ranges, time].into_iter().flatten().reduce(|a, b| a.intersection(&b))
}

/// The steps of `--steps`; `None` is everything.
pub(crate) fn chosen_steps(steps: &[StepRow], options: &Options) -> Option<IntervalSet> {
    let wanted = options.steps.as_ref()?;
    Some(host_windows(steps).into_iter().filter(|s| wanted.contains(&s.step)).map(|s| s.window).collect())
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

/// Leaves only the steps and collectives that begin in `scope`. Rows of `events` stay: those that begin outside may
/// reach into it.
pub(crate) fn narrow(data: &mut RankData, scope: &IntervalSet) {
    narrow_rows(&mut data.steps, &mut data.collectives, &mut data.comms_ids, scope);
}

/// As [`narrow`], of the small tables themselves.
pub(crate) fn narrow_rows(
    steps: &mut Vec<StepRow>,
    collectives: &mut Vec<CollectiveRow>,
    comms_ids: &mut Vec<Option<u64>>,
    scope: &IntervalSet,
) {
    steps.retain(|s| contains(scope, s.start_ns));
    let keep: Vec<bool> =
        collectives.iter().map(|c| c.start_ns.or(c.enqueue_ns).is_some_and(|t| contains(scope, t))).collect();
    let mut kept = keep.iter().copied();
    collectives.retain(|_| kept.next().unwrap_or(false));
    let mut kept = keep.iter().copied();
    comms_ids.retain(|_| kept.next().unwrap_or(false));
}

/// Whether a point lies in the set.
pub(crate) fn contains(set: &IntervalSet, t: i64) -> bool {
    let i = set.intervals().partition_point(|i| i.start_ns <= t);
    i > 0 && t < set.intervals()[i - 1].end_ns
}
