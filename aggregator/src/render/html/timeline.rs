//! One step of all ranks as a chart: named ranges, compute and communication of each rank.
//!
//! ```text
//!  rank 0  ranges          |input|forward     |backward          |  the innermost named range of the host
//!          compute         |##|###|##|########|########|#########|  kernels; without a device, operators
//!          communication                 [~~~~~~~~####]             ~ waits for the last rank, # moves data
//! ```
//!
//! Bars are not nested, so a lane is a list of gaps and lengths. Bars that are too short to be seen are joined with
//! their neighbours and have a count.

use rayon::prelude::*;
use serde::Serialize;
use trace::{JobPathRow, OmissionRow, PathKind};

use crate::align::clock::Clocks;
use crate::base::intervals::Interval;
use crate::base::units::{ns, plural};
use crate::ingest::source::Source;
use crate::judge::reduce::Analyzed;
use crate::model::options::Options;
use crate::model::{Events, Kind, NONE, RankData};
use crate::render::html::page_limits::{Limits, Shortenings};
use crate::render::html::string_pool::StringPool;
use crate::render::perfetto::prepare;
use crate::render::rank_order::by_prominence;

/// A bar in global time.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    start: i64,
    end: i64,
    name: Name,
    /// Number of rows in the bar.
    rows: u32,
}

/// The name of a bar. Only names of drawn bars are stored in the page.
#[derive(Clone, Debug, PartialEq)]
enum Name {
    /// Name of an event of the rank.
    Event(u32),
    /// Wait in a collective, with the rank that is waited for.
    Wait(trace::Text),
    /// Data transfer in a collective of this operation.
    Transfer(trace::Text),
    /// A collective of this operation whose end of waiting is unknown.
    Whole(trace::Text),
}

const LANES: usize = 3;

/// The last arrival at a collective, its time and rank, by the rank that waits and its arrival.
type LastArrivals = rustc_hash::FxHashMap<(i32, i64), (i64, i32)>;

/// One rank of the step before it is fitted to the limits of the page.
#[derive(Default)]
struct Drawn {
    rank: i32,
    window: Option<Interval>,
    names: Vec<trace::Text>,
    lanes: [Vec<Bar>; LANES],
    /// Number of collectives without a last arrival: their bars do not separate waiting from transfer.
    undivided: usize,
}

/// The timeline of one step. Times count from the start of the step.
#[derive(Debug, Default, Serialize)]
pub(super) struct Timeline {
    step: Option<i32>,
    /// Length of the timeline.
    span_ns: i64,
    /// Unit of the lanes, in ns.
    unit_ns: i64,
    ranks: Vec<RankLanes>,
    /// The critical path of the job in the step. Four numbers for each piece: position in `ranks`, 0 for work, 1 for a transfer
    /// or 2 for time that is not explained, start, length.
    path: Vec<i64>,
}

impl Timeline {
    /// Whether there is nothing to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }
}

#[derive(Debug, Serialize)]
struct RankLanes {
    rank: i32,
    /// Start and end of the rank's step.
    window: (i64, i64),
    /// Four numbers for each bar of each lane: gap since the end of the previous bar, length, name, rows. In the lane
    /// of communication, the name is three times its number plus 0 for waiting, 1 for data transfer, 2 for both.
    lanes: [Vec<i64>; LANES],
}

/// Draws `step` of all ranks of an analyzed source. Ranks that cannot be loaded again are left out and counted. Returns
/// also what could not be read this time, though it was read for the analysis.
pub(super) fn timeline(
    source: &dyn Source,
    options: &Options,
    analyzed: &Analyzed,
    step: i32,
    limits: &Limits,
    (names, notes): (&mut StringPool, &mut Shortenings),
) -> (Timeline, Vec<OmissionRow>) {
    let last = last_arrivals(analyzed, step);
    let ranks = &analyzed.analysis.facts.ranks;
    let listed = &analyzed.analysis.tables.omissions;
    let draw = |rank: &i32| {
        let mut data = match source.load(*rank) {
            Ok(data) => data,
            Err(error) => {
                let why = format!("it could not be read a second time: {error}");
                return (None, vec![OmissionRow::lost("rank in the timeline", why).rank(*rank).amount(1)]);
            }
        };
        let is_new = |row: &OmissionRow| !listed.iter().any(|listed| listed.rank == row.rank && listed == row);
        let new: Vec<OmissionRow> = std::mem::take(&mut data.omissions).into_iter().filter(is_new).collect();
        prepare(&mut data, options, analyzed.time.get(rank).copied());
        (Some(draw_rank(&data, &analyzed.clocks, step, &last)), new)
    };
    let (drawn, omissions): (Vec<Option<Drawn>>, Vec<Vec<OmissionRow>>) =
        ranks.par_iter().with_max_len(1).map(draw).unzip();
    let failed = omissions.iter().filter(|of_rank| !of_rank.is_empty()).count();
    if failed > 0 {
        notes.add("timeline", format!("{} could not be read a second time as a whole.", plural(failed, "rank")));
    }
    let mut drawn: Vec<Drawn> = drawn.into_iter().flatten().filter(|d| d.window.is_some()).collect();
    // The ranks that the verdict names come first.
    let named = by_prominence(&analyzed.analysis.tables.stragglers).into_iter().filter(|row| row.stands_on.is_some());
    let named: Vec<i32> = named.map(|row| row.rank).collect();
    drawn.sort_by_key(|d| (named.iter().position(|rank| *rank == d.rank).unwrap_or(named.len()), d.rank));
    let undivided: usize = drawn.iter().map(|d| d.undivided).sum();
    if undivided > 0 {
        notes.add(
            "timeline",
            format!(
                "{} of single ranks are drawn without separating waiting from transfer: peers are missing, or the collective is \
                 one-sided or did not end.",
                plural(undivided, "collective")
            ),
        );
    }
    let path = &analyzed.analysis.tables.job_critical_path;
    (fit(drawn, (step, path), limits, names, notes), omissions.concat())
}

/// The last arrival, its time and rank, by (rank, arrival). Only collectives that synchronise their ranks have one: those with
/// a transfer time, or with a bandwidth with waits if the transfer time is below the clock error.
fn last_arrivals(analyzed: &Analyzed, step: i32) -> LastArrivals {
    let tables = &analyzed.analysis.tables;
    let waited: rustc_hash::FxHashMap<i64, &trace::InstanceRow> = tables
        .collective_instances
        .iter()
        .filter(|i| i.step == Some(step) && (i.transfer_ns.is_some() || i.busbw_incl_wait_gbs.is_some()))
        .map(|i| (i.instance, i))
        .collect();
    let entry = |w: &trace::WaitRow| {
        let instance = waited.get(&w.instance)?;
        Some(((w.rank, w.arrival_ns), (instance.last_start_ns, instance.last_rank)))
    };
    tables.collective_waits.iter().filter_map(entry).collect()
}

fn draw_rank(data: &RankData, clocks: &Clocks, step: i32, last: &LastArrivals) -> Drawn {
    let rank = data.outline.info.rank;
    let events = &data.events;
    let rows: Vec<usize> = (0..events.len()).filter(|row| events.step[*row] == step).collect();
    let on_device = |row: usize| events.kind[row].is_device_work();
    let has_device = rows.iter().any(|row| on_device(*row));
    let global = |row: usize| {
        let clock = clocks.map(rank, on_device(row));
        Interval::new(clock.apply(events.ts_ns[row]), clock.apply(events.end_ns(row)))
    };
    let bar = |row: &usize| {
        let Interval { start_ns: start, end_ns: end } = global(*row);
        Bar { start, end, name: Name::Event(events.name[*row]), rows: 1 }
    };
    let computes = |row: &usize| {
        let kind = events.kind[*row];
        let work = if has_device { kind.is_device_work() } else { kind == Kind::CpuOp };
        work && !events.is_comm[*row]
    };
    let compute = rows.iter().filter(|row| computes(row)).map(bar).collect();
    let (communication, undivided) = communication(data, clocks, step, last);
    let host = clocks.map(rank, false);
    let own = data.outline.steps.iter().find(|s| s.step == step);
    let mut window = own.map(|s| Interval::new(host.apply(s.start_ns), host.apply(s.end_ns)));
    // A device works behind its host, so its step ends later.
    if let Some(window) = &mut window {
        let ends = rows.iter().filter(|row| on_device(**row)).map(|row| global(*row).end_ns);
        window.end_ns = ends.fold(window.end_ns, i64::max);
    }
    Drawn {
        rank,
        window,
        names: data.names.clone(),
        lanes: [
            innermost(events, &ranges(events, &rows, own.map(|s| s.end_ns - s.start_ns)), &bar),
            flat(compute),
            flat(communication),
        ],
        undivided,
    }
}

/// The named ranges of the thread with the most ranges, without ranges as long as the step.
fn ranges(events: &Events, rows: &[usize], step_ns: Option<i64>) -> Vec<usize> {
    let mut by_thread: std::collections::BTreeMap<i64, (i64, Vec<usize>)> = std::collections::BTreeMap::new();
    for row in rows.iter().copied().filter(|row| events.kind[*row] == Kind::UserAnnotation) {
        let whole = step_ns.is_some_and(|step| events.dur_ns[row] as f64 > 0.97 * step as f64);
        if whole || events.thread[row] == NONE {
            continue;
        }
        let (time, rows) = by_thread.entry(events.thread[row]).or_default();
        *time = time.saturating_add(events.dur_ns[row]);
        rows.push(row);
    }
    by_thread.into_values().max_by_key(|(time, _)| *time).map(|(_, rows)| rows).unwrap_or_default()
}

/// Cuts nested rows into bars of the innermost row at each time. Rows are sorted by start, longest first.
///
/// ```text
///  rows      [ outer         ]
///              [ inner ]
///  bars      [o][inner ][ o  ]
/// ```
fn innermost(events: &Events, rows: &[usize], bar: &impl Fn(&usize) -> Bar) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut open: Vec<Bar> = Vec::new();
    let mut from = i64::MIN;
    let mut emit = |bar: &Bar, from: i64, to: i64| {
        if to > from {
            bars.push(Bar { start: from, end: to, ..bar.clone() });
        }
    };
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| (events.ts_ns[*row], std::cmp::Reverse(events.dur_ns[*row])));
    for row in &sorted {
        let next = bar(row);
        while let Some(inner) = open.pop_if(|inner| inner.end <= next.start) {
            emit(&inner, from.max(inner.start), inner.end);
            from = from.max(inner.end);
        }
        if let Some(outer) = open.last() {
            emit(outer, from.max(outer.start), next.start);
        }
        from = from.max(next.start);
        open.push(next);
    }
    while let Some(inner) = open.pop() {
        emit(&inner, from.max(inner.start), inner.end);
        from = from.max(inner.end);
    }
    bars
}

/// The collectives of the step, each divided at its last arrival, and the number of undivided ones.
fn communication(data: &RankData, clocks: &Clocks, step: i32, last: &LastArrivals) -> (Vec<Bar>, usize) {
    let (mut bars, mut undivided) = (Vec::new(), 0);
    for row in data.outline.collectives.iter().filter(|c| c.step == Some(step)) {
        let (Some(start), Some(end)) = (row.start_ns, row.end_ns) else {
            undivided += 1;
            continue;
        };
        let on_device = row.device_id.is_some() && row.timing_source != trace::TimingSource::Host;
        let clock = clocks.map(data.outline.info.rank, on_device);
        let (start, end) = (clock.apply(start), clock.apply(end));
        let last = last.get(&(data.outline.info.rank, start));
        let until = last.map(|(at, _)| (*at).clamp(start, end));
        undivided += usize::from(until.is_none());
        if let Some(((_, rank), until)) = last.zip(until).filter(|(_, until)| *until > start) {
            let name = Name::Wait(format!("waits for rank {rank}: {}", row.op).into());
            bars.push(Bar { start, end: until, name, rows: 1 });
        }
        let name = if until.is_some() { Name::Transfer(row.op.text()) } else { Name::Whole(row.op.text()) };
        bars.push(Bar { start: until.unwrap_or(start), end, name, rows: 1 });
    }
    bars.extend(kernels_alone(data, clocks, step));
    (bars, undivided)
}

/// The device work of the step that communicates, but carries out no recorded collective.
fn kernels_alone(data: &RankData, clocks: &Clocks, step: i32) -> Vec<Bar> {
    let events = &data.events;
    let clock = clocks.map(data.outline.info.rank, true);
    let recorded: rustc_hash::FxHashSet<i64> = data.outline.collectives.iter().filter_map(|c| c.event_id).collect();
    let alone = |row: &usize| {
        let communicates = events.kind[*row].is_device_work() && events.is_comm[*row];
        communicates && events.step[*row] == step && !recorded.contains(&events.id[*row])
    };
    let bar = |row: usize| {
        let name = Name::Whole(data.names[events.name[row] as usize].clone());
        Bar { start: clock.apply(events.ts_ns[row]), end: clock.apply(events.end_ns(row)), name, rows: 1 }
    };
    (0..events.len()).filter(alone).map(bar).collect()
}

/// Removes overlaps: a bar inside an earlier one is left out, a bar that reaches beyond it begins at its end.
fn flat(mut bars: Vec<Bar>) -> Vec<Bar> {
    bars.sort_by_key(|b| (b.start, std::cmp::Reverse(b.end)));
    let mut until = i64::MIN;
    bars.retain_mut(|bar| {
        bar.start = bar.start.max(until);
        let keep = bar.end > bar.start;
        if keep {
            until = bar.end;
        }
        keep
    });
    bars
}

/// Joins bars shorter than `least` with neighbours within that distance. The joined bar has the name of the longest.
fn joined(bars: &[Bar], least: i64) -> Vec<Bar> {
    let mut found: Vec<Bar> = Vec::new();
    let mut longest = 0;
    for bar in bars {
        let short = |b: &Bar| b.end - b.start < least;
        match found.last_mut() {
            // A joined bar takes further bars, however long it is.
            Some(before) if (short(before) || before.rows > 1) && short(bar) && bar.start - before.end < least => {
                if bar.end - bar.start > longest {
                    longest = bar.end - bar.start;
                    before.name = bar.name.clone();
                }
                before.end = bar.end;
                before.rows += bar.rows;
            }
            _ => {
                longest = bar.end - bar.start;
                found.push(bar.clone());
            }
        }
    }
    found
}

/// Fits the bars of all ranks into the page: doubles the length below which bars are joined until they fit.
fn fit(
    drawn: Vec<Drawn>,
    (step, path): (i32, &[JobPathRow]),
    limits: &Limits,
    names: &mut StringPool,
    notes: &mut Shortenings,
) -> Timeline {
    let windows = || drawn.iter().filter_map(|d| d.window);
    let (Some(from), Some(to)) = (windows().map(|w| w.start_ns).min(), windows().map(|w| w.end_ns).max()) else {
        return Timeline::default();
    };
    let span_ns = (to - from).max(1);
    let mut least = span_ns / 20_000 + 1;
    let total = |least: i64| -> usize { drawn.iter().flat_map(|d| &d.lanes).map(|l| joined(l, least).len()).sum() };
    let bars = total(0);
    while total(least) > limits.slices && least < span_ns {
        least = least.saturating_mul(2);
    }
    let drawn_bars = total(least);
    if drawn_bars < bars {
        notes.add(
            "timeline",
            format!(
                "{bars} bars are drawn as {drawn_bars}: bars under {} are merged with their neighbours. `aggregator export` writes all \
                 bars for Perfetto.",
                ns(least)
            ),
        );
    }
    let unit_ns = (span_ns / 1_000_000).max(1);
    let at = |t: i64| (t - from).div_euclid(unit_ns);
    let mut ranks = Vec::new();
    for rank in &drawn {
        let Some(window) = rank.window else { continue };
        let lanes = [0, 1, 2].map(|lane| encode(&joined(&rank.lanes[lane], least), &rank.names, &at, names));
        ranks.push(RankLanes { rank: rank.rank, window: (at(window.start_ns), at(window.end_ns)), lanes });
    }
    let path: Vec<&JobPathRow> = path.iter().filter(|row| row.step == step).collect();
    let short = path.iter().filter(|row| row.dur_ns < least).count();
    if short > 0 {
        let text = format!("{} of the critical path under {} are not drawn.", plural(short, "piece"), ns(least));
        notes.add("timeline", text);
    }
    let place_of: rustc_hash::FxHashMap<i32, usize> = ranks.iter().enumerate().map(|(at, r)| (r.rank, at)).collect();
    let piece = |row: &&JobPathRow| {
        let place = *place_of.get(&row.rank)?;
        let kind = match row.kind.known() {
            _ if row.unexplained_ns == row.dur_ns => 2,
            Some(PathKind::Transfer) => 1,
            _ => 0,
        };
        let (start, end) = (at(row.ts_ns), at(row.ts_ns.saturating_add(row.dur_ns)));
        Some([place as i64, kind, start, end - start])
    };
    let path = path.iter().filter(|row| row.dur_ns >= least).filter_map(piece).flatten().collect();
    Timeline { step: Some(step), span_ns, unit_ns, ranks, path }
}

fn encode(bars: &[Bar], texts: &[trace::Text], at: &impl Fn(i64) -> i64, names: &mut StringPool) -> Vec<i64> {
    let mut numbers = Vec::with_capacity(4 * bars.len());
    let mut until = 0;
    for bar in bars {
        let (start, end) = (at(bar.start).max(until), at(bar.end));
        let name = match &bar.name {
            Name::Event(id) => names.id(&texts[*id as usize]) as i64,
            Name::Wait(op) => names.id(op) as i64 * 3,
            Name::Transfer(op) => names.id(op) as i64 * 3 + 1,
            Name::Whole(op) => names.id(op) as i64 * 3 + 2,
        };
        numbers.extend([start - until, (end - start).max(0), name, i64::from(bar.rows)]);
        until = start.max(end);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::drawn::Drawn as Rank;

    fn bars(spans: &[(i64, i64)]) -> Vec<Bar> {
        spans.iter().map(|(start, end)| Bar { start: *start, end: *end, name: Name::Event(0), rows: 1 }).collect()
    }

    fn spans(bars: &[Bar]) -> Vec<(i64, i64, u32)> {
        bars.iter().map(|b| (b.start, b.end, b.rows)).collect()
    }

    #[test]
    fn kernels_without_a_collective_are_drawn_as_communication() {
        let mut data = Rank::rank(0)
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 1), 0, "##........")
            .device(Kind::Kernel, "cross_device_reduce_1stage", (0, 1), 1, "...##.....")
            .device(Kind::Kernel, "gemm", (0, 2), 9, "..........####")
            .collectives("##........")
            .data();
        data.outline.collectives[0].event_id = Some(data.events.id[0]);
        data.events.step.fill(3);
        assert_eq!(spans(&kernels_alone(&data, &Clocks::default(), 3)), [(3, 5, 1)]);
        assert_eq!(kernels_alone(&data, &Clocks::default(), 4).len(), 0);
    }

    #[test]
    fn bars_do_not_overlap() {
        //  [0----5]  [8--10]
        //     [3---7]
        assert_eq!(spans(&flat(bars(&[(8, 10), (0, 5), (3, 7), (1, 2)]))), [(0, 5, 1), (5, 7, 1), (8, 10, 1)]);
    }

    #[test]
    fn short_bars_are_joined_and_counted() {
        let many = bars(&[(0, 1), (2, 3), (4, 5), (20, 60), (61, 62), (100, 101)]);
        assert_eq!(spans(&joined(&many, 10)), [(0, 5, 3), (20, 60, 1), (61, 62, 1), (100, 101, 1)]);
        assert_eq!(joined(&many, 0).len(), many.len());
        assert_eq!(joined(&many, 1_000).iter().map(|b| b.rows).sum::<u32>(), 6);
    }

    #[test]
    fn the_innermost_range_is_drawn() {
        let range = Kind::UserAnnotation;
        let data = Rank::rank(0).host(range, "forward", 1, ".########.").host(range, "layer", 1, "...##.....").data();
        let rows: Vec<usize> = (0..data.events.len()).collect();
        let events = &data.events;
        let bar = |row: &usize| Bar {
            start: events.ts_ns[*row],
            end: events.end_ns(*row),
            name: Name::Event(events.name[*row]),
            rows: 1,
        };
        let found = innermost(events, &rows, &bar);
        let named: Vec<(&str, i64, i64)> = found
            .iter()
            .map(|b| match b.name {
                Name::Event(id) => (&*data.names[id as usize], b.start, b.end),
                _ => ("", 0, 0),
            })
            .collect();
        assert_eq!(named, [("forward", 1, 3), ("layer", 3, 5), ("forward", 5, 9)]);
    }
}
