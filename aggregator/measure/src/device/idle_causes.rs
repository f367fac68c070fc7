//! The rows of the host that are open while the devices of its rank idle.
//!
//! ```text
//!  device   ####..................####.........####
//!  thread      [forward                           ]
//!                 [view         ]  [L]        [L]       L: launches the next work
//!  idle         fff vvvvvvvvvvvvv f LL  fffffff LL      time of `forward`, of `view`, of the launches
//! ```
//!
//! The thread that launches the next work sets the pace. Where no row is open on it, the thread with the most launches does: autograd's
//! thread waits for the forward pass. After the end of the launch, nothing is the host's: `idle_breakdown` has that time. After the launch
//! of a graph, work without rows may run.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::{IdleCauseRow, Text, Word};

use crate::breakdown::overhead;
use crate::device::View;
use crate::device::stalls::Around;
use model::intervals::{Coverage, Interval};
use model::stats::lower_median;
use model::steps::rank_windows;
use model::{Events, Kind, NONE};
use trace::name_rules::{is_step, launches_graph, synchronizes};

/// A shorter time is no stall.
const LEAST_STALL_NS: i64 = 1_000_000;
/// An operator or a call stalls if it takes so many medians of its name.
const LEAST_MEDIANS: i64 = 20;

/// The kind, the name, the outermost operator and the annotation of a place, as ids of names.
type Key = (Option<Kind>, Option<u32>, Option<u32>, Option<u32>);

/// The idle time while one row is the innermost one of its thread.
#[derive(Clone, Copy, Debug, Default)]
struct OfRow {
    idle_ns: i64,
    /// In pieces of [`LEAST_STALL_NS`] or more in which no row begins or ends, and their number.
    long_ns: i64,
    long: i64,
    /// After the end of the row, which launched a graph.
    graph_ns: i64,
}

/// One row for each place of the host, the longest idle time first; none without devices. `outermost` holds the outermost operator around
/// each row.
pub(super) fn idle_causes(view: &View<'_>, busy: Option<&Coverage>, outermost: &[u32]) -> Vec<IdleCauseRow> {
    let Some(busy) = busy else { return Vec::new() };
    let (data, events) = (view.data, &view.data.events);
    let steps: Vec<bool> = data.names.iter().map(|name| is_step(name)).collect();
    let of_rows = idle_of_rows(view, busy, &steps);
    let known = Known::of(view, &of_rows);
    let mut around = Around::new(events, &steps);
    let mut places: BTreeMap<Key, IdleCauseRow> = BTreeMap::new();
    for (row, of_row) in of_rows {
        let key = row.map_or((None, None, None, None), |row| {
            let (name, _, outer, annotation) = around.place(row, outermost[row]);
            let kind = events.kind[row];
            let outer = outer.or((kind == Kind::CpuOp).then_some(name));
            (Some(kind), Some(name), outer, if kind == Kind::UserAnnotation { Some(name) } else { annotation })
        });
        let place = places.entry(key).or_default();
        place.calls += i64::from(row.is_some());
        place.idle_ns = place.idle_ns.saturating_add(of_row.idle_ns);
        place.graph_ns = place.graph_ns.saturating_add(of_row.graph_ns);
        place.max_ns = place.max_ns.max(of_row.idle_ns);
        let (stalled_ns, stalls, first_ns) = match row.filter(|row| is_call(events.kind[*row])) {
            None => (of_row.long_ns, of_row.long, 0),
            Some(row) if !known.is_stalled(events.name[row], of_row.idle_ns) => (0, 0, 0),
            Some(row) if known.is_first(events, row) => (0, 0, of_row.idle_ns),
            Some(_) => (of_row.idle_ns, 1, 0),
        };
        place.stalled_ns = place.stalled_ns.saturating_add(stalled_ns);
        place.stalls += stalls;
        place.first_ns = place.first_ns.saturating_add(first_ns);
    }
    let text = |id: Option<u32>| -> Option<Text> { id.map(|id| data.names[id as usize].clone()) };
    let rank = data.outline.info.rank;
    let filled = |((kind, name, outer, annotation), place): (Key, IdleCauseRow)| IdleCauseRow {
        rank,
        kind: kind.map(Word::from),
        name: text(name),
        outer_operator: text(outer),
        annotation: text(annotation),
        ..place
    };
    let mut rows: Vec<IdleCauseRow> = places.into_iter().map(filled).collect();
    let place = |row: &IdleCauseRow| (row.name.clone(), row.outer_operator.clone(), row.annotation.clone());
    rows.sort_by(|a, b| b.idle_ns.cmp(&a.idle_ns).then_with(|| place(a).cmp(&place(b))));
    rows
}

/// Whether a row is one of many of its name, which take about as long.
fn is_call(kind: Kind) -> bool {
    matches!(kind, Kind::CpuOp | Kind::Runtime | Kind::Driver)
}

/// Names with a long row: their usual lengths, and their first rows.
struct Known {
    usual_ns: FxHashMap<u32, i64>,
    first: FxHashMap<u32, usize>,
    /// The rows that launch a kernel for the first time, which may load it.
    loading: FxHashSet<usize>,
}

impl Known {
    fn of(view: &View<'_>, of_rows: &BTreeMap<Option<usize>, OfRow>) -> Self {
        let (events, names) = (&view.data.events, &view.data.names);
        let long = of_rows.iter().filter(|(_, of_row)| of_row.idle_ns >= LEAST_STALL_NS);
        // A host that waits for a device does not stall.
        let long = long.filter_map(|(row, _)| row.filter(|row| is_call(events.kind[*row])));
        let long = long.map(|row| events.name[row]).filter(|name| !synchronizes(&names[*name as usize]));
        let mut durations: FxHashMap<u32, Vec<i64>> = long.map(|name| (name, Vec::new())).collect();
        let mut first = FxHashMap::default();
        for row in (0..events.len()).filter(|row| is_call(events.kind[*row])) {
            if let Some(durations) = durations.get_mut(&events.name[row]) {
                durations.push(events.dur_ns[row]);
                first.entry(events.name[row]).or_insert(row);
            }
        }
        // Of one row alone, nothing is usual.
        let usual_ns = |of: Vec<i64>| if of.len() == 1 { Some(0) } else { lower_median(of) };
        let usual_ns = durations.into_iter().filter_map(|(name, of)| Some((name, usual_ns(of)?)));
        let mut kernels: FxHashSet<u32> = FxHashSet::default();
        let is_new = |row: &usize| events.kind[*row].is_device_work() && kernels.insert(events.name[*row]);
        let new = (0..events.len()).filter(is_new).filter_map(|row| view.launches.of(events.correlation[row]));
        let loading = new.map(|launch| launch as usize).collect();
        Self { usual_ns: usual_ns.collect(), first, loading }
    }

    fn is_first(&self, events: &Events, row: usize) -> bool {
        self.first.get(&events.name[row]) == Some(&row) || self.loading.contains(&row)
    }

    fn is_stalled(&self, name: u32, idle_ns: i64) -> bool {
        let is_unusual = |usual_ns: &i64| idle_ns >= usual_ns.saturating_mul(LEAST_MEDIANS);
        idle_ns >= LEAST_STALL_NS && self.usual_ns.get(&name).is_some_and(is_unusual)
    }
}

/// The idle time of the devices in active steps, for the innermost row of the host there; `None` where no row is open, or only that of a
/// step.
fn idle_of_rows(view: &View<'_>, busy: &Coverage, steps: &[bool]) -> BTreeMap<Option<usize>, OfRow> {
    let events = &view.data.events;
    let Gaps { of_threads: mut gaps, main, of_graphs } = Gaps::of(view, busy);
    let mut rows: FxHashMap<i64, Vec<u32>> = gaps.keys().map(|thread| (*thread, Vec::new())).collect();
    let is_host = |row: &usize| is_call(events.kind[*row]) || is_code(events.kind[*row]);
    for row in (0..events.len()).filter(|row| events.thread[*row] != NONE).filter(is_host) {
        if let Some(rows) = rows.get_mut(&events.thread[row]) {
            rows.push(row as u32);
        }
    }
    let mut of_rows: BTreeMap<Option<usize>, OfRow> = BTreeMap::new();
    for (row, graph_ns) in of_graphs {
        let of_row = of_rows.entry(Some(row)).or_default();
        of_row.graph_ns = of_row.graph_ns.saturating_add(graph_ns);
    }
    let mut of_main = gaps.remove(&main).unwrap_or_default();
    let mut add = |row: Option<u32>, piece: Interval| {
        let row = row.map(|row| row as usize).filter(|row| !steps[events.name[*row] as usize]);
        let of_row = of_rows.entry(row).or_default();
        of_row.idle_ns = of_row.idle_ns.saturating_add(piece.len_ns());
        if piece.len_ns() >= LEAST_STALL_NS {
            (of_row.long_ns, of_row.long) = (of_row.long_ns.saturating_add(piece.len_ns()), of_row.long + 1);
        }
    };
    for (thread, gaps) in &gaps {
        each_innermost(events, &rows[thread], gaps, |row, piece| match row {
            None => of_main.push(piece),
            row => add(row, piece),
        });
    }
    of_main.sort_unstable_by_key(|gap| gap.start_ns);
    each_innermost(events, rows.get(&main).map_or(&[], Vec::as_slice), &of_main, add);
    of_rows
}

fn is_code(kind: Kind) -> bool {
    matches!(kind, Kind::UserAnnotation | Kind::PythonFunction)
}

/// The time in active steps in which no device works, without time of the profiler and time whose rows are lost.
struct Gaps {
    /// Until the next work is launched, by the thread that launches it, in order. After the last work, the thread with the most launches
    /// counts. Time before work whose launch is unknown is left out.
    of_threads: BTreeMap<i64, Vec<Interval>>,
    /// The thread with the most launches.
    main: i64,
    /// Launches of graphs, and the time from each until the next row of its work.
    of_graphs: Vec<(usize, i64)>,
}

impl Gaps {
    fn of(view: &View<'_>, busy: &Coverage) -> Self {
        let (events, names) = (&view.data.events, &view.data.names);
        let work = (0..events.len()).filter(|row| events.kind[*row].is_device_work());
        let work: Vec<(i64, Option<usize>)> = work
            .map(|row| (events.ts_ns[row], view.launches.of(events.correlation[row]).map(|launch| launch as usize)))
            .collect();
        let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
        let launches = work.iter().filter_map(|(_, launch)| *launch);
        launches.for_each(|row| *counts.entry(events.thread[row]).or_default() += 1);
        let main = counts.into_iter().max_by_key(|(_, count)| *count).map_or(NONE, |(thread, _)| thread);
        let left_out = overhead(events).union(view.unknown);
        let mut all = Self { of_threads: BTreeMap::new(), main, of_graphs: Vec::new() };
        for step in view.scope.chosen(rank_windows(view.data)) {
            let idle = busy.set().gaps(step.window);
            let idle = if left_out.is_empty() { idle } else { idle.difference(&left_out.clip(step.window)) };
            for gap in idle.intervals() {
                let next = work.get(work.partition_point(|(start_ns, _)| *start_ns < gap.start_ns));
                let (thread, until_ns) = match next {
                    None if main != NONE => (main, gap.end_ns),
                    Some((_, Some(launch))) => (events.thread[*launch], events.end_ns(*launch)),
                    None | Some((_, None)) => continue,
                };
                if until_ns > gap.start_ns {
                    let of_host = Interval::new(gap.start_ns, until_ns.min(gap.end_ns));
                    all.of_threads.entry(thread).or_default().push(of_host);
                }
                let of_graph_ns = gap.end_ns.saturating_sub(until_ns.max(gap.start_ns));
                let launch = next.and_then(|(_, launch)| *launch);
                let of_graph = launch.filter(|row| launches_graph(&names[events.name[*row] as usize]));
                all.of_graphs.extend(of_graph.filter(|_| of_graph_ns > 0).map(|row| (row, of_graph_ns)));
            }
        }
        all
    }
}

/// Calls `piece` for each part of the gaps in which one row, or none, is the innermost one. Rows and gaps are in the order of their
/// starts.
fn each_innermost(events: &Events, rows: &[u32], gaps: &[Interval], mut piece: impl FnMut(Option<u32>, Interval)) {
    let Some(first) = gaps.first() else { return };
    let (mut open, mut at_ns, mut next): (Vec<u32>, i64, usize) = (Vec::new(), first.start_ns, 0);
    let mut assign = |row: Option<u32>, time: Interval| {
        while gaps.get(next).is_some_and(|gap| gap.end_ns <= time.start_ns) {
            next += 1;
        }
        let meeting = gaps[next..].iter().take_while(|gap| gap.start_ns < time.end_ns);
        meeting.map(|gap| gap.intersection(time)).filter(|part| !part.is_empty()).for_each(|part| piece(row, part));
    };
    let starts = rows.iter().map(|row| (events.ts_ns[*row as usize], Some(*row)));
    for (to_ns, row) in starts.chain([(i64::MAX, None)]) {
        loop {
            let top = open.last().copied();
            let end_ns = top.map_or(i64::MAX, |row| events.end_ns(row as usize));
            let until_ns = end_ns.min(to_ns);
            if at_ns < until_ns {
                assign(top, Interval::new(at_ns, until_ns));
                at_ns = until_ns;
            }
            if top.is_none() || end_ns > to_ns {
                break;
            }
            open.pop();
        }
        open.extend(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::tables;
    use drawn::Drawn;

    /// Times of a drawing, in columns of half a millisecond.
    fn causes(drawn: Drawn) -> Vec<(Option<String>, [i64; 4])> {
        let mut data = drawn.data();
        let column_ns = LEAST_STALL_NS / 2;
        data.events.ts_ns.iter_mut().chain(&mut data.events.dur_ns).for_each(|t| *t *= column_ns);
        data.outline.steps.iter_mut().for_each(|s| {
            s.start_ns *= column_ns;
            s.end_ns *= column_ns;
        });
        let rows = tables(&data).idle_causes;
        let of = |row: &IdleCauseRow| [row.idle_ns, row.max_ns, row.stalled_ns, row.first_ns].map(|ns| ns / column_ns);
        rows.iter().map(|row| (row.name.as_ref().map(ToString::to_string), of(row))).collect()
    }

    fn of(name: &str, columns: [i64; 4]) -> (Option<String>, [i64; 4]) {
        (Some(name.into()), columns)
    }

    /// The device idles in [4, 10) and [13, 16). The second kernel is launched in 9, the third one in 15.
    #[test]
    fn idle_time_is_that_of_the_innermost_row_until_the_next_work_is_launched() {
        let drawn = Drawn::rank(0)
            .steps("#################")
            .host(Kind::UserAnnotation, "forward", 1, "..########.......")
            .host(Kind::CpuOp, "aten::view", 1, "...#.####........")
            .launches(1, "#.........#....#..")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "#####......###..#");
        // `view` once takes 4 columns and once one: 4 are no stall of 20 medians.
        assert_eq!(
            causes(drawn),
            [
                of("aten::view", [4, 4, 0, 0]),
                of("cudaLaunchKernel", [2, 1, 0, 0]),
                (None, [1, 1, 0, 0]),
                of("forward", [1, 1, 0, 0])
            ]
        );
    }

    /// One of three calls takes 30 times as long as the others. Of a name with one call, it is the first one.
    #[test]
    fn a_call_that_takes_far_longer_than_usual_is_a_stall_unless_it_is_the_first() {
        let view = |line: &str| {
            let drawn = Drawn::rank(0).steps(&"#".repeat(40)).host(Kind::CpuOp, "aten::view", 1, line);
            drawn.launches(1, "#.....................................#.").device(
                Kind::Kernel,
                "gemm",
                (0, 7),
                1,
                "#......................................#",
            )
        };
        let found = causes(view("..#.#.##############################...."));
        assert_eq!(found[0], of("aten::view", [32, 30, 30, 0]));
        let found = causes(view("..##############################..#.#..."));
        assert_eq!(found[0], of("aten::view", [32, 30, 0, 30]));
    }

    /// The device waits for a kernel that was launched before, or works on what a graph launched without rows.
    #[test]
    fn time_after_the_launch_is_not_the_hosts() {
        let drawn = |call: &str| {
            let drawn = Drawn::rank(0).steps("############").host(Kind::Runtime, call, 1, "..#.........");
            let mut data = drawn.device(Kind::Kernel, "gemm", (0, 7), 1, "###......###").data();
            let row = data.events.kind.iter().position(|kind| *kind == Kind::Runtime).unwrap();
            data.events.correlation = vec![NONE; data.events.len()];
            let last = data.events.len() - 1;
            (data.events.correlation[row], data.events.correlation[last]) = (5, 5);
            tables(&data).idle_causes
        };
        assert_eq!(drawn("cudaLaunchKernel"), []);
        let rows = drawn("cudaGraphLaunch");
        assert_eq!(rows.iter().map(|row| (row.idle_ns, row.graph_ns)).collect::<Vec<_>>(), [(0, 6)]);
    }
}
