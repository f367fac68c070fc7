//! The steps of a trace in which only devices have ranges `ProfilerStep#N`. Torch draws such a range on each stream, from the first to
//! the last kernel that the step launched there.
//!
//! ```text
//!   host          [l1][l1] [l2][l2]                  launches of the kernels
//!   stream 7           |==#1==| |==#2==|
//!   stream 20            |=#1=|   |==#2==|
//!   steps         |1       |2            |           from the first launch to that of the next step, or to the end of its ranges
//! ```

use std::collections::BTreeMap;
use std::ops::Deref;

use trace::Text;
use trace::name_rules::step_number;
use trace::rank::{Events, Kind, Launches};

use crate::meaning::steps::{Steps, steps_of_marks};

/// The note on steps that were found so.
pub(crate) const NOTE: (&str, &str) =
    ("marks of steps", "only ranges on devices mark the steps; a step begins when its first kernel is launched");

/// The ranges of the steps on a stream: start, end and number.
type Ranges = Vec<(i64, i64, i32)>;

/// When a step ran.
struct Span {
    first_launch_ns: Option<i64>,
    start_ns: i64,
    end_ns: i64,
}

/// Finds the steps that ranges on devices mark; none if there are no such ranges. `events` are in the order of time.
pub(crate) fn steps_on_devices(
    events: &Events,
    names: &[Text],
    launches: &impl Deref<Target = Launches>,
    rank: i32,
) -> Steps {
    let numbers: Vec<Option<i32>> = names.iter().map(|name| step_number(name)).collect();
    if numbers.iter().all(Option::is_none) {
        return Steps::default();
    }
    let mut streams: BTreeMap<(i64, i64), Ranges> = BTreeMap::new();
    let mut spans: BTreeMap<i32, Span> = BTreeMap::new();
    for row in 0..events.len() {
        let Some(step) = numbers[events.name[row] as usize] else { continue };
        if events.kind[row] != Kind::GpuUserAnnotation {
            continue;
        }
        let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
        streams.entry((events.device[row], events.stream[row])).or_default().push((start_ns, end_ns, step));
        let span = spans.entry(step).or_insert(Span { first_launch_ns: None, start_ns, end_ns });
        span.end_ns = span.end_ns.max(end_ns);
    }
    if streams.is_empty() {
        return Steps::default();
    }
    for row in 0..events.len() {
        let Some(ranges) = streams.get(&(events.device[row], events.stream[row])) else { continue };
        let Some(launch) = launches.of(events.correlation[row]).filter(|_| events.kind[row].is_device_work()) else {
            continue;
        };
        let after = ranges.partition_point(|(start_ns, ..)| *start_ns <= events.ts_ns[row]);
        let range = after.checked_sub(1).map(|at| ranges[at]).filter(|(_, end_ns, _)| events.ts_ns[row] < *end_ns);
        if let Some(span) = range.and_then(|(.., step)| spans.get_mut(&step)) {
            let launch_ns = events.ts_ns[launch as usize];
            span.first_launch_ns = Some(span.first_launch_ns.map_or(launch_ns, |first| first.min(launch_ns)));
        }
    }
    steps_of_marks(marks(spans), rank)
}

/// The number, start and end of each step, in the order of time.
fn marks(spans: BTreeMap<i32, Span>) -> Vec<(i32, i64, i64)> {
    let mut marks: Vec<(i32, i64, i64)> = spans
        .into_iter()
        .map(|(step, span)| (step, span.first_launch_ns.unwrap_or(span.start_ns), span.end_ns))
        .collect();
    marks.sort_by_key(|(_, start_ns, _)| *start_ns);
    for at in 1..marks.len() {
        let (next, next_ns, _) = marks[at];
        let (step, start_ns, end_ns) = &mut marks[at - 1];
        // Where numbers are missing, the profiler may have been off between the two.
        let follows = step.checked_add(1) == Some(next);
        *end_ns = if follows { next_ns } else { next_ns.min(*end_ns) }.max(*start_ns);
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_before_a_gap_of_numbers_ends_with_its_ranges() {
        let spans = [(3, Some(0), 150), (4, Some(40), 190), (9, Some(500), 700)];
        let span = |(step, first_launch_ns, end_ns)| (step, Span { first_launch_ns, start_ns: 100, end_ns });
        assert_eq!(marks(spans.into_iter().map(span).collect()), [(3, 0, 40), (4, 40, 190), (9, 500, 700)]);
    }
}
