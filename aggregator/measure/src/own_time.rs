//! The map over ranks: reduces all rows of a rank to its own stretches and the host ranges in them.

mod path_work;
mod ranges;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trace::{Phase, StepRow};

use crate::graph::Condensed;
pub use crate::own_time::path_work::{Done, PathWork};
use crate::own_time::path_work::{Waits, path_steps};
pub use crate::own_time::ranges::RangePart;
pub(crate) use crate::own_time::ranges::operating;
use crate::own_time::ranges::{Largest, Slot, SlotCursor, leaf_operators, self_times, time_beside_waits};
use model::intervals::{Coverage, Interval, IntervalSet};
use model::steps::StepWindow;
use model::thresholds::Thresholds;
use model::{Collective, Events, Kind, RankData};

/// The part of one rank that the reduction needs. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnTime {
    /// The global rank.
    pub rank: i32,
    /// One stretch for each of [`RankOutline::collectives`](model::RankOutline::collectives), in the same order. The
    /// reduction drops them when it has joined the collectives.
    pub stretches: Vec<Stretch>,
    /// The rank's active steps, ascending. Warm-up steps are excluded.
    pub steps: Vec<StepPart>,
    /// Host ranges by time inside the rank's own stretches, largest first; at most [`Thresholds::max_ranges`].
    pub ranges: Vec<RangePart>,
    /// The number of ranges that exceed that limit.
    pub ranges_dropped: usize,
    /// The largest self time of a dropped range in one step. It bounds the error of treating a range that is not listed
    /// as absent.
    pub dropped_max_ns: i64,
    /// Whether the rank has device work.
    pub has_device: bool,
    /// Whether the rank has device work or operators, so that [`StepPart::busy_ns`] is known.
    pub has_work: bool,
    /// Its active steps on critical paths of the job, ascending.
    pub path_steps: Vec<StepWindow>,
    /// Its work on critical paths of the job; empty if the reduction reads it later.
    pub path: Arc<PathWork>,
    /// Whether waits that the rank recorded count as nothing: this is [`by_operators`](Self::by_operators) of another.
    pub without_waits: bool,
    /// If waits that the rank recorded tell its work from waiting: the same without them. See [`of_run`].
    pub by_operators: Option<Box<OwnTime>>,
    /// Its work as a graph; `None` unless that was asked for.
    pub graph: Option<Arc<Condensed>>,
}

/// The time before one of a rank's collectives in which the rank works on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// The time at which the rank entered the previous collective, or the start of the first recorded step.
    pub since_ns: i64,
    /// The latest end of an earlier collective, or the start of the first recorded step.
    pub from_ns: i64,
    /// The time at which the rank enters the collective.
    pub start_ns: i64,
    /// The time at which the rank leaves the collective; `None` if it did not end.
    pub end_ns: Option<i64>,
    /// The time from `since_ns` to `start_ns` without exposed communication. It is the rank's own work after the
    /// previous collective or overlapping it. `None` if its begin is unknown.
    pub own_ns: Option<i64>,
    /// The collective whose end is `from_ns`, as a position in the same list; `None` if `from_ns` is the start of a
    /// step.
    pub previous: Option<u32>,
    /// The collective that the rank entered at `since_ns`; `None` if that is the start of a step.
    pub entered: Option<u32>,
    /// The last collective that the rank waited for before this one: work begins with its end, which ends exposed
    /// communication.
    pub waited: Option<u32>,
    /// The step of the collective; `None` outside of active steps.
    pub step: Option<i32>,
}

/// One active step of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepPart {
    /// The number of the step.
    pub step: i32,
    /// The length of the step.
    pub dur_ns: i64,
    /// The time within the own stretches of the step in which a device of the rank worked. Without a device: in which an
    /// operator ran on the host.
    pub busy_ns: i64,
}

/// The own time of all ranks, by one definition of work under a collective on the host, because a rank's own time is
/// compared with that of the others. It is the time beside recorded waits if every rank recorded its waits, else that of
/// operators.
pub fn of_run(ranks: Vec<OwnTime>) -> Vec<OwnTime> {
    let mut on_hosts = ranks.iter().filter(|rank| !rank.has_device && !rank.stretches.is_empty());
    let all_record_waits = on_hosts.all(|rank| rank.by_operators.is_some());
    let chosen = |mut rank: OwnTime| match rank.by_operators.take().filter(|_| !all_record_waits) {
        Some(by_operators) => OwnTime { graph: rank.graph, ..*by_operators },
        None => rank,
    };
    ranks.into_iter().map(chosen).collect()
}

/// Reduces a rank to its [`OwnTime`], in time linear in its rows.
pub fn map_rank(rank: &RankData, thresholds: &Thresholds) -> OwnTime {
    let events = &rank.events;
    if events.kind.iter().any(|k| k.is_device_work()) {
        let work = (0..events.len()).filter(|&row| events.kind[row].is_device_work() && !events.is_comm[row]);
        let work = work.map(|row| Interval::new(events.ts_ns[row], events.end_ns(row))).collect();
        return beside(rank, &work, None, thresholds);
    }
    let operating = Coverage::new(operating(rank));
    let by_operators = || beside(rank, &leaf_operators(rank), Some(&operating), thresholds);
    let work = if rank.outline.collectives.is_empty() { None } else { time_beside_waits(rank) };
    let Some(work) = work else { return by_operators() };
    let (own, by_operators) = rayon::join(|| beside(rank, &work, Some(&operating), thresholds), by_operators);
    OwnTime { by_operators: Some(Box::new(OwnTime { without_waits: true, ..by_operators })), ..own }
}

/// The own time of a rank that works under its collectives at the times `work`. `operating` are the times of operators of a
/// rank without a device.
fn beside(rank: &RankData, work: &IntervalSet, operating: Option<&Coverage>, thresholds: &Thresholds) -> OwnTime {
    let spans = active_steps(&rank.outline.steps);
    let exposed = exposed(rank, work);
    let stretches = own_stretches(&rank.outline.collectives, &spans, &exposed);
    let slots: Vec<Slot> = slots(&stretches, &spans, &exposed);
    let mut steps: Vec<StepPart> =
        spans.iter().map(|s| StepPart { step: s.step, dur_ns: s.end_ns - s.start_ns, busy_ns: 0 }).collect();
    match operating {
        None => add_device_busy(&rank.events, &slots, &mut steps),
        Some(times) => {
            slots.iter().for_each(|s| steps[s.step].busy_ns += times.within_ns(Interval::new(s.from_ns, s.to_ns)))
        }
    }
    let Largest { ranges, dropped, dropped_max_ns } =
        self_times(rank, &slots, (steps.len(), operating.is_some()), thresholds.max_ranges);
    let path_steps = path_steps(rank);
    let path = PathWork::of(rank, operating.map(Coverage::set), &path_steps);
    OwnTime {
        rank: rank.outline.info.rank,
        stretches,
        steps,
        ranges,
        ranges_dropped: dropped,
        dropped_max_ns,
        has_device: operating.is_none(),
        has_work: operating.is_none() || rank.events.kind.contains(&Kind::CpuOp),
        path_steps,
        path: Arc::new(path),
        without_waits: false,
        by_operators: None,
        graph: None,
    }
}

/// An active step, and the start of its unbroken run of active steps, which ends with its window at the latest.
struct StepSpan {
    step: i32,
    window: Option<i32>,
    start_ns: i64,
    end_ns: i64,
    run_start_ns: i64,
}

/// The active steps by number. Of several steps with the same number, only the first one is used.
fn active_steps(rows: &[StepRow]) -> Vec<StepSpan> {
    let mut rows: Vec<&StepRow> = rows.iter().filter(|s| s.phase != Phase::Warmup && s.step >= 0).collect();
    rows.sort_by_key(|s| (s.step, s.start_ns));
    rows.dedup_by_key(|s| s.step);
    let mut spans: Vec<StepSpan> = Vec::with_capacity(rows.len());
    for row in rows {
        let follows = spans
            .last()
            .filter(|last| last.step + 1 == row.step && last.window == row.window && last.start_ns <= row.start_ns);
        let run_start_ns = follows.map_or(row.start_ns, |last| last.run_start_ns);
        let end_ns = row.end_ns.max(row.start_ns);
        spans.push(StepSpan { step: row.step, window: row.window, start_ns: row.start_ns, end_ns, run_start_ns });
    }
    spans
}

/// The exposed communication of a rank: the time in a collective without `work`.
fn exposed(rank: &RankData, work: &IntervalSet) -> Coverage {
    let times = |row: &Collective| Some(Interval::new(row.start_ns()?, row.end_ns()?));
    let communication: IntervalSet = rank.outline.collectives.iter().filter_map(times).collect();
    Coverage::new(communication.difference(work))
}

/// The own time before each collective: the time since the entry into the previous collective, without exposed
/// communication.
///
/// ```text
///   collective         [~~~~~A~~~~~]    [B]
///   compute       #########      .  ####            # computes, also during A
///   own before B       ####         ####
/// ```
///
/// Work after the last collective of a step (the optimiser) counts for the first collective of the next step, because
/// it delays that one. A stretch begins with a step only at the start of an unbroken run of active steps, where no
/// earlier events were recorded.
fn own_stretches(collectives: &[Collective], spans: &[StepSpan], exposed: &Coverage) -> Vec<Stretch> {
    // The collective that ended last, and the entry into the most recent collective.
    let mut latest: Option<(i64, u32)> = None;
    let mut entered: Option<(i64, u32)> = None;
    let mut unended = false;
    let mut waits = Waits::new(exposed);
    let mut stretches = Vec::with_capacity(collectives.len());
    let finder = StepFinder { spans, by_time: OnceCell::new() };
    for (index, row) in collectives.iter().enumerate() {
        let Some(start_ns) = row.start_ns().or(row.enqueue_ns()) else {
            stretches.push(Stretch::default());
            continue;
        };
        let span = finder.span_of(row, start_ns);
        let floor = span.map(|s| s.run_start_ns);
        let earlier = latest.filter(|&(end, _)| floor.is_none_or(|floor| end > floor));
        let from = earlier.map(|(end, _)| end).or(floor).map(|from| from.min(start_ns));
        let entered_ns = entered.map(|(entry, _)| entry);
        let since = entered_ns.max(floor).map(|since| since.min(start_ns));
        let is_known = !unended || entered_ns < floor;
        let own = since
            .filter(|_| is_known)
            .map(|since| start_ns - since - exposed.within_ns(Interval::new(since, start_ns)));
        stretches.push(Stretch {
            since_ns: since.unwrap_or(start_ns),
            from_ns: from.unwrap_or(start_ns),
            start_ns,
            end_ns: row.end_ns().map(|end| end.max(start_ns)),
            own_ns: own,
            previous: earlier.map(|(_, index)| index),
            entered: entered.filter(|(entry, _)| Some(*entry) >= floor).map(|(_, index)| index),
            waited: waits.last(start_ns),
            step: span.map(|s| s.step),
        });
        // If the end of a collective is missing, the own time after it is unknown.
        unended = row.end_ns().is_none();
        let end = row.end_ns().unwrap_or(start_ns).max(start_ns);
        if latest.is_none_or(|(last, _)| end >= last) {
            latest = Some((end, index as u32));
        }
        waits.ended(Some(end), index as u32);
        entered = entered.max(Some((start_ns, index as u32)));
    }
    stretches
}

/// Finds the active step of a collective: the recorded step, or else the step in which the collective begins.
struct StepFinder<'a> {
    spans: &'a [StepSpan],
    /// The times at which the first of the steps that contain a time changes, and that step. Most collectives have a
    /// recorded step, so this is made when it is needed.
    by_time: OnceCell<Vec<(i64, Option<usize>)>>,
}

impl<'a> StepFinder<'a> {
    fn span_of(&self, row: &Collective, start_ns: i64) -> Option<&'a StepSpan> {
        let at = match row.step() {
            Some(step) => self.spans.binary_search_by_key(&step, |s| s.step).ok(),
            None => {
                let by_time = self.by_time.get_or_init(|| first_by_time(self.spans));
                by_time[..by_time.partition_point(|(from, _)| *from <= start_ns)].last().and_then(|(_, first)| *first)
            }
        };
        at.map(|at| &self.spans[at])
    }
}

fn first_by_time(spans: &[StepSpan]) -> Vec<(i64, Option<usize>)> {
    let ends = |(at, span): (usize, &StepSpan)| [(span.start_ns, true, at), (span.end_ns, false, at)];
    let mut changes: Vec<_> = spans.iter().enumerate().filter(|(_, s)| s.start_ns < s.end_ns).flat_map(ends).collect();
    changes.sort_unstable();
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let mut by_time: Vec<(i64, Option<usize>)> = Vec::with_capacity(changes.len());
    for (at_ns, begins, at) in changes {
        if begins {
            open.insert(at)
        } else {
            open.remove(&at)
        };
        by_time.push((at_ns, open.first().copied()));
    }
    by_time
}

fn slots(stretches: &[Stretch], spans: &[StepSpan], exposed: &Coverage) -> Vec<Slot> {
    let position: FxHashMap<i32, usize> = spans.iter().enumerate().map(|(i, s)| (s.step, i)).collect();
    let mut slots = Vec::with_capacity(stretches.len());
    for stretch in stretches.iter().filter(|s| s.own_ns.is_some_and(|own| own > 0)) {
        let Some(&step) = stretch.step.and_then(|step| position.get(&step)) else { continue };
        let window = Interval::new(stretch.since_ns, stretch.start_ns);
        let pieces = exposed.set().clip(window).gaps(window);
        slots.extend(pieces.intervals().iter().map(|i| Slot { from_ns: i.start_ns, to_ns: i.end_ns, step }));
    }
    slots
}

/// Adds to each step the time of device work within its slots. Communication is excluded, and overlapping work counts
/// once.
fn add_device_busy(events: &Events, slots: &[Slot], steps: &mut [StepPart]) {
    let mut cursor = SlotCursor::default();
    let mut covered_ns = i64::MIN;
    for row in 0..events.len() {
        if !events.kind[row].is_device_work() || events.is_comm[row] {
            continue;
        }
        let from = events.ts_ns[row].max(covered_ns);
        let to = events.end_ns(row);
        if from < to {
            cursor.clip(slots, from, to, |step, ns| steps[step].busy_ns += ns);
            covered_ns = to;
        }
    }
}
