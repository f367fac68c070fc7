//! The map over ranks: from all rows of a rank to its own stretches and what the program did in them.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use trace::{CollectiveRow, StepRow, Text};

use super::ranges::RangeTimes;
use super::{RangePart, RankPart, StepPart, Stretch, Thresholds};
use crate::model::{Events, RankData};

/// Reduces a rank to its [`RankPart`]; linear in its rows.
pub fn map_rank(rank: &RankData, thresholds: &Thresholds) -> RankPart {
    let spans = active_steps(&rank.steps);
    let stretches = own_stretches(&rank.collectives, &spans);
    let slots: Vec<Slot> = slots(&stretches, &spans);
    let mut steps: Vec<StepPart> =
        spans.iter().map(|s| StepPart { step: s.step, dur_ns: s.end_ns - s.start_ns, device_busy_ns: 0 }).collect();
    add_device_busy(&rank.events, &slots, &mut steps);
    let mut ranges = RangeTimes::of(rank, &slots, steps.len()).into_parts();
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

/// The own stretch before each collective.
///
/// It begins at the latest end of an earlier collective, so what follows the last collective of a step (the optimiser) counts
/// towards the first collective of the next step, which is the one that it delays. Only at the start of an unbroken run of
/// active steps, where nothing earlier was recorded, it begins with the step.
fn own_stretches(collectives: &[CollectiveRow], spans: &[StepSpan]) -> Vec<Stretch> {
    let mut latest: Option<(i64, u32)> = None;
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
        stretches.push(Stretch {
            from_ns: from.unwrap_or(start_ns),
            start_ns,
            end_ns: row.end_ns.map(|end| end.max(start_ns)),
            own_ns: from.map(|from| start_ns - from),
            previous: earlier.map(|(_, index)| index),
            step: span.map(|s| s.step),
        });
        // A collective that never ended holds nobody back that was recorded after it: it counts from its start.
        let end = row.end_ns.unwrap_or(start_ns).max(start_ns);
        if latest.is_none_or(|(last, _)| end >= last) {
            latest = Some((end, index as u32));
        }
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

/// An own stretch with the position of its step: where self times are collected. Slots are disjoint and ascending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    pub(super) step: usize,
}

fn slots(stretches: &[Stretch], spans: &[StepSpan]) -> Vec<Slot> {
    let position: FxHashMap<i32, usize> = spans.iter().enumerate().map(|(i, s)| (s.step, i)).collect();
    stretches
        .iter()
        .filter(|s| s.own_ns.is_some_and(|own| own > 0))
        .filter_map(|s| Some(Slot { from_ns: s.from_ns, to_ns: s.start_ns, step: *position.get(&s.step?)? }))
        .collect()
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
