//! The map over ranks: from all rows of a rank to its own stretches and what the program did in them.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use trace::{CollectiveRow, StepRow, Text};

use super::ranges::{computing, self_times};
use super::{RangePart, RankPart, StepPart, Stretch, Thresholds};
use crate::intervals::{Coverage, Interval, IntervalSet};
use crate::model::{Events, RankData};

/// Reduces a rank to its [`RankPart`]; linear in its rows.
pub fn map_rank(rank: &RankData, thresholds: &Thresholds) -> RankPart {
    let spans = active_steps(&rank.steps);
    let exposed = exposed(rank);
    let stretches = own_stretches(&rank.collectives, &spans, &exposed);
    let slots: Vec<Slot> = slots(&stretches, &spans, &exposed);
    let mut steps: Vec<StepPart> =
        spans.iter().map(|s| StepPart { step: s.step, dur_ns: s.end_ns - s.start_ns, device_busy_ns: 0 }).collect();
    add_device_busy(&rank.events, &slots, &mut steps);
    let mut ranges = self_times(rank, &slots, steps.len());
    ranges.sort_by_cached_key(by_size);
    let dropped = ranges.split_off(ranges.len().min(thresholds.max_ranges));
    RankPart {
        rank: rank.info.rank,
        stretches,
        steps,
        ranges,
        ranges_dropped: dropped.len(),
        dropped_max_ns: dropped.iter().flat_map(|r| r.self_ns.iter().copied()).max().unwrap_or(0),
        has_device: rank.events.kind.iter().any(|k| k.is_device_work()),
    }
}

/// Largest first; equal sizes by name, so that the result does not depend on the order of rows.
fn by_size(range: &RangePart) -> (Reverse<i64>, Text, bool) {
    (Reverse(range.self_ns.iter().sum()), range.name.clone(), range.input)
}

/// An active step, and where the unbroken run of active steps that it belongs to began.
struct StepSpan {
    step: i32,
    start_ns: i64,
    end_ns: i64,
    run_start_ns: i64,
}

/// Active steps by number. A step whose number is taken already is left out: two steps cannot share a number.
fn active_steps(rows: &[StepRow]) -> Vec<StepSpan> {
    let mut rows: Vec<&StepRow> = rows.iter().filter(|s| &*s.phase != "warmup" && s.step >= 0).collect();
    rows.sort_by_key(|s| (s.step, s.start_ns));
    rows.dedup_by_key(|s| s.step);
    let mut spans: Vec<StepSpan> = Vec::with_capacity(rows.len());
    for row in rows {
        let follows = spans.last().filter(|last| last.step + 1 == row.step && last.start_ns <= row.start_ns);
        let run_start_ns = follows.map_or(row.start_ns, |last| last.run_start_ns);
        let end_ns = row.end_ns.max(row.start_ns);
        spans.push(StepSpan { step: row.step, start_ns: row.start_ns, end_ns, run_start_ns });
    }
    spans
}

/// The rank's exposed communication: when a collective was on its way and the rank did nothing else.
fn exposed(rank: &RankData) -> Coverage {
    let times = |row: &CollectiveRow| Some(Interval::new(row.start_ns?, row.end_ns?));
    let communication: IntervalSet = rank.collectives.iter().filter_map(times).collect();
    let events = &rank.events;
    let computing = if events.kind.iter().any(|k| k.is_device_work()) {
        let work = (0..events.len()).filter(|&row| events.kind[row].is_device_work() && !events.is_comm[row]);
        work.map(|row| Interval::new(events.ts_ns[row], events.end_ns(row))).collect()
    } else {
        computing(rank, &communication)
    };
    Coverage::new(communication.difference(&computing))
}

/// The own time before each collective: since the rank entered the collective before, without exposed communication.
///
/// ```text
///   collective         [~~~~~A~~~~~]    [B]
///   compute       #########      .  ####            # computes, also while A is on its way
///   own before B       ####         ####
/// ```
///
/// What follows the last collective of a step (the optimiser) so counts towards the first collective of the next step,
/// which is the one that it delays. Only at the start of an unbroken run of active steps, where nothing earlier was
/// recorded, a stretch begins with the step.
fn own_stretches(collectives: &[CollectiveRow], spans: &[StepSpan], exposed: &Coverage) -> Vec<Stretch> {
    // The collective that ended last, and when the last one was entered.
    let mut latest: Option<(i64, u32)> = None;
    let mut entered_ns: Option<i64> = None;
    let mut unended = false;
    let mut stretches = Vec::with_capacity(collectives.len());
    for (index, row) in collectives.iter().enumerate() {
        let Some(start_ns) = row.start_ns.or(row.enqueue_ns) else {
            stretches.push(Stretch::default());
            continue;
        };
        let span = span_of(row, start_ns, spans);
        let floor = span.map(|s| s.run_start_ns);
        let earlier = latest.filter(|&(end, _)| floor.is_none_or(|floor| end > floor));
        let from = earlier.map(|(end, _)| end).or(floor).map(|from| from.min(start_ns));
        let since = entered_ns.max(floor).map(|since| since.min(start_ns));
        let known = !unended || entered_ns < floor;
        let own =
            since.filter(|_| known).map(|since| start_ns - since - exposed.within_ns(Interval::new(since, start_ns)));
        stretches.push(Stretch {
            since_ns: since.unwrap_or(start_ns),
            from_ns: from.unwrap_or(start_ns),
            start_ns,
            end_ns: row.end_ns.map(|end| end.max(start_ns)),
            own_ns: own,
            previous: earlier.map(|(_, index)| index),
            step: span.map(|s| s.step),
        });
        // Nothing says how long a rank was in a collective whose end is missing, so nothing tells its own time after
        // that.
        unended = row.end_ns.is_none();
        let end = row.end_ns.unwrap_or(start_ns).max(start_ns);
        if latest.is_none_or(|(last, _)| end >= last) {
            latest = Some((end, index as u32));
        }
        entered_ns = entered_ns.max(Some(start_ns));
    }
    stretches
}

/// The active step of a collective: the one it names, else the one that it begins in.
fn span_of<'a>(row: &CollectiveRow, start_ns: i64, spans: &'a [StepSpan]) -> Option<&'a StepSpan> {
    match row.step {
        Some(step) => spans.binary_search_by_key(&step, |s| s.step).ok().map(|i| &spans[i]),
        None => spans.iter().find(|s| s.start_ns <= start_ns && start_ns < s.end_ns),
    }
}

/// A piece of own time with the position of its step: where self times are collected. Slots are disjoint and ascending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    pub(super) step: usize,
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

/// Walks ascending segments through ascending slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotCursor(usize);

impl SlotCursor {
    /// Calls `add(step, ns)` for every part of [`from_ns`, `to_ns`) that lies in a slot. Calls must ascend.
    pub(super) fn clip(&mut self, slots: &[Slot], from_ns: i64, to_ns: i64, mut add: impl FnMut(usize, i64)) {
        while slots.get(self.0).is_some_and(|slot| slot.to_ns <= from_ns) {
            self.0 += 1;
        }
        for slot in &slots[self.0..] {
            if slot.from_ns >= to_ns {
                break;
            }
            let ns = to_ns.min(slot.to_ns) - from_ns.max(slot.from_ns);
            if ns > 0 {
                add(slot.step, ns);
            }
        }
    }
}

/// Adds to each step the union of device work, communication apart, within its slots.
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
            cursor.clip(slots, from, to, |step, ns| steps[step].device_busy_ns += ns);
            covered_ns = to;
        }
    }
}
