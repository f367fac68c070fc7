//! The lanes of one rank: bars that do not overlap.

use rustc_hash::FxHashMap;
use trace::name_rules::synchronizes;
use trace::rank::Details;

use crate::sections::timeline::collectives::Instances;
use crate::sections::timeline::descriptions::{Describer, Description};
use align::clock::{Clocks, Map};
use model::intervals::Interval;
use model::{Collective, Events, Kind, NONE, RankData};

pub(super) const LANES: usize = 4;
/// Positions of lanes; ranges and operators come before them.
pub(super) const COMPUTE: usize = 2;
pub(super) const COMMUNICATION: usize = 3;

/// A bar in global time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) what: What,
    /// Number of rows in the bar.
    pub(super) rows: u32,
}

/// The content of a bar. Only drawn bars are described in the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// A row of `events`.
    Row(u32),
    /// A collective by its position in the rank, and what the rank does in it.
    Collective(u32, Does),
    /// Described: the number of the description, and a number that the lane defines (see `described`).
    Described(u32, i64),
}

/// What a rank does in a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Does {
    /// Waits for the last rank.
    Waits,
    /// Transfers data.
    Transfers,
    /// Either: the end of waiting is unknown.
    Either,
}

/// One step of a rank before it is fitted to the limits of the page.
#[derive(Debug)]
pub(super) struct DrawnStep {
    pub(super) window: Interval,
    pub(super) lanes: [Vec<Bar>; LANES],
    /// Number of collectives without a last arrival: their bars do not separate waiting from transfer.
    pub(super) undivided: usize,
}

impl DrawnStep {
    /// Number of bars.
    pub(super) fn bars(&self) -> usize {
        self.lanes.iter().map(Vec::len).sum()
    }
}

/// The steps of one rank before they are fitted to the limits of the page.
#[derive(Debug, Default)]
pub(super) struct Drawn {
    pub(super) rank: i32,
    pub(super) descriptions: Vec<Description>,
    pub(super) steps: FxHashMap<i32, DrawnStep>,
    /// Names of communicators.
    pub(super) comm_names: FxHashMap<i64, trace::Text>,
}

/// The rows of one step, and what all steps share.
struct StepRows<'a> {
    data: &'a RankData,
    host: &'a Map,
    device: &'a Map,
    /// Ascending.
    rows: &'a [usize],
    has_device: bool,
}

/// A bar that is shorter than the step divided by this is not seen at the deepest zoom.
pub(super) const SEEN: i64 = 20_000_000;

/// Draws the steps of a rank for which `most_bars` has the greatest number of bars.
pub(super) fn draw_rank(
    data: &RankData,
    details: &Details,
    clocks: &Clocks,
    instances: &Instances<'_>,
    most_bars: &dyn Fn(i32) -> Option<usize>,
) -> Drawn {
    let rank = data.outline.info.rank;
    let (host, device) = (clocks.map(rank, false), clocks.map(rank, true));
    let mut by_step: FxHashMap<i32, Vec<usize>> = FxHashMap::default();
    for row in 0..data.events.len() {
        by_step.entry(data.events.step[row]).or_default().push(row);
    }
    let has_device = data.events.kind.iter().any(|kind| kind.is_device_work());
    let mut describer = Describer::of(data, details);
    let rows_by_id = collective_rows(data);
    let mut drawn = Drawn { rank, ..Drawn::default() };
    for own in &data.outline.steps {
        let Some(most) = most_bars(own.step) else { continue };
        let none = Vec::new();
        let rows = by_step.get(&own.step).unwrap_or(&none);
        let step = StepRows { data, host: &host, device: &device, rows, has_device };
        let mut drawn_step = step.draw(own, instances);
        let least = least_for(&[&drawn_step.lanes], drawn_step.window.len_ns(), most);
        for lane in &mut drawn_step.lanes {
            *lane = joined(lane, least);
            for bar in lane {
                bar.what = described(bar.what, &step, &mut describer, instances, &rows_by_id);
            }
        }
        drawn.steps.insert(own.step, drawn_step);
    }
    let named = data.outline.collectives.iter().filter_map(|c| Some((c.comm_id, c.comm_name.clone()?)));
    drawn.comm_names = named.collect();
    drawn.descriptions = describer.list;
    drawn
}

/// The rows of the collectives' events, by id.
fn collective_rows(data: &RankData) -> FxHashMap<i64, usize> {
    let wanted: rustc_hash::FxHashSet<i64> = data.outline.collectives.iter().filter_map(|c| c.event_id()).collect();
    let rows = (0..data.events.len()).filter(|row| wanted.contains(&data.events.id[*row]));
    rows.map(|row| (data.events.id[row], row)).collect()
}

/// Describes a bar. The number beside the description is, of device work, the time from the start of its launch to its start in ns, + 1;
/// of a collective, three times the position in `collectives` + 1, plus 0 for waiting, 1 for data transfer, 2 for both. 0 is unknown.
fn described(
    what: What,
    step: &StepRows<'_>,
    describer: &mut Describer<'_>,
    instances: &Instances<'_>,
    rows_by_id: &FxHashMap<i64, usize>,
) -> What {
    let events = &step.data.events;
    match what {
        What::Row(row) => {
            let row = row as usize;
            let device_work = events.kind[row].is_device_work();
            let launch = describer.launches.of(events.correlation[row]).filter(|_| device_work);
            let delay = launch.map(|launch| {
                let began = step.device.apply(events.ts_ns[row]);
                began.saturating_sub(step.host.apply(events.ts_ns[launch as usize])).max(0) + 1
            });
            let communicates = device_work && events.is_comm[row];
            What::Described(describer.row(row), if communicates { 2 } else { delay.unwrap_or(0) })
        }
        What::Collective(at, does) => {
            let collective = &step.data.outline.collectives[at as usize];
            let row = collective.event_id().and_then(|id| rows_by_id.get(&id));
            let number = match row {
                Some(row) => describer.row(*row),
                None => describer.named(collective.op.text()),
            };
            let rank = step.data.outline.info.rank;
            let instance = step.arrival(collective).and_then(|at| instances.of_arrival(rank, at));
            What::Described(number, 3 * instance.map_or(0, |at| at as i64 + 1) + does as i64)
        }
        What::Described(..) => what,
    }
}

impl StepRows<'_> {
    fn draw(&self, own: &trace::StepRow, instances: &Instances<'_>) -> DrawnStep {
        let events = &self.data.events;
        let mut window = Interval::new(self.host.apply(own.start_ns), self.host.apply(own.end_ns));
        // A device works behind its host, so its step ends later.
        let ends = self.rows.iter().filter(|row| events.kind[**row].is_device_work()).map(|row| self.bar(*row).end);
        window.end_ns = ends.fold(window.end_ns, i64::max);
        let compute = self.rows.iter().filter(|row| events.kind[**row].is_device_work() && !events.is_comm[**row]);
        let compute = compute.map(|row| self.bar(*row)).collect();
        let (communication, undivided) = self.communication(own.step, instances);
        DrawnStep {
            window,
            lanes: [
                innermost(events, &self.ranges(own.end_ns - own.start_ns), &|row| self.bar(row)),
                self.operators(),
                flat(compute),
                flat(communication),
            ],
            undivided,
        }
    }

    fn map(&self, on_device: bool) -> &Map {
        if on_device { self.device } else { self.host }
    }

    fn bar(&self, row: usize) -> Bar {
        let events = &self.data.events;
        let map = self.map(events.kind[row].is_device_work());
        let (start, end) = (map.apply(events.ts_ns[row]), map.apply(events.end_ns(row)));
        Bar { start, end, what: What::Row(row as u32), rows: 1 }
    }

    /// The named ranges of the thread with the most ranges, without ranges as long as the step.
    fn ranges(&self, step_ns: i64) -> Vec<usize> {
        let events = &self.data.events;
        let whole = |row: usize| events.dur_ns[row] as f64 > 0.97 * step_ns as f64;
        let rows = self.rows.iter().copied();
        let threads = by_thread(events, rows.filter(|row| events.kind[*row] == Kind::UserAnnotation && !whole(*row)));
        threads.into_iter().next().unwrap_or_default()
    }

    /// The innermost operator at each time, and the calls that wait for the device. Where several threads have operators, those of
    /// the thread with the most time are drawn. Without a device, communication has its own lane and is left out here.
    fn operators(&self) -> Vec<Bar> {
        let events = &self.data.events;
        let waits = |row: usize| {
            let call = matches!(events.kind[row], Kind::Runtime | Kind::Driver);
            call && synchronizes(&self.data.names[events.name[row] as usize])
        };
        let rows = self.rows.iter().copied();
        let threads = by_thread(events, rows.filter(|row| events.kind[*row] == Kind::CpuOp || waits(*row)));
        let mut bars = Vec::new();
        for rows in threads {
            let mut more = innermost(events, &rows, &|row| self.bar(row));
            let drawn =
                |bar: &Bar| matches!(bar.what, What::Row(row) if self.has_device || !events.is_comm[row as usize]);
            more.retain(drawn);
            bars = filled(bars, &more);
        }
        bars
    }

    /// When the rank entered a collective, in global time.
    fn arrival(&self, row: &Collective) -> Option<i64> {
        let on_device = row.device_id.is_some() && row.timing_source != trace::TimingSource::Host;
        Some(self.map(on_device).apply(row.start_ns()?))
    }

    /// The collectives of the step, each divided at its last arrival, and the number of undivided ones.
    fn communication(&self, step: i32, instances: &Instances<'_>) -> (Vec<Bar>, usize) {
        let rank = self.data.outline.info.rank;
        let (mut bars, mut undivided) = (Vec::new(), 0);
        let of_step = |(_, c): &(u32, &Collective)| c.step() == Some(step);
        for (at, row) in (0..).zip(&self.data.outline.collectives).filter(of_step) {
            let (Some(start), Some(end)) = (self.arrival(row), row.end_ns()) else {
                undivided += 1;
                continue;
            };
            let on_device = row.device_id.is_some() && row.timing_source != trace::TimingSource::Host;
            let end = self.map(on_device).apply(end);
            let until = instances.last_arrival(rank, start).map(|last| last.clamp(start, end));
            undivided += usize::from(until.is_none());
            let mut part = |start: i64, end: i64, does: Does| {
                bars.push(Bar { start, end, what: What::Collective(at, does), rows: 1 });
            };
            match until {
                None => part(start, end, Does::Either),
                Some(until) => {
                    part(start, until, Does::Waits);
                    part(until, end, Does::Transfers);
                }
            }
        }
        bars.extend(self.kernels_alone());
        (bars, undivided)
    }

    /// The device work of the step that communicates, but carries out no recorded collective.
    fn kernels_alone(&self) -> Vec<Bar> {
        let events = &self.data.events;
        let recorded: rustc_hash::FxHashSet<i64> =
            self.data.outline.collectives.iter().filter_map(|c| c.event_id()).collect();
        let alone = |row: &usize| {
            let communicates = events.kind[*row].is_device_work() && events.is_comm[*row];
            communicates && !recorded.contains(&events.id[*row])
        };
        self.rows.iter().copied().filter(alone).map(|row| self.bar(row)).collect()
    }
}

/// Rows by thread; first the thread with the most time.
fn by_thread(events: &Events, rows: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut threads: std::collections::BTreeMap<i64, (i64, Vec<usize>)> = std::collections::BTreeMap::new();
    for row in rows.filter(|row| events.thread[*row] != NONE) {
        let (time, rows) = threads.entry(events.thread[row]).or_default();
        *time = time.saturating_add(events.dur_ns[row]);
        rows.push(row);
    }
    let mut threads: Vec<(i64, Vec<usize>)> = threads.into_values().collect();
    threads.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    threads.into_iter().map(|(_, rows)| rows).collect()
}

/// Cuts nested rows into bars of the innermost row at each time. Rows are sorted by start, longest first.
///
/// ```text
///  rows      [ outer         ]
///              [ inner ]
///  bars      [o][inner ][ o  ]
/// ```
fn innermost(events: &Events, rows: &[usize], bar: &dyn Fn(usize) -> Bar) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut open: Vec<Bar> = Vec::new();
    let mut from = i64::MIN;
    let mut emit = |bar: &Bar, from: i64, to: i64| {
        if to > from {
            bars.push(Bar { start: from, end: to, ..*bar });
        }
    };
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| (events.ts_ns[*row], std::cmp::Reverse(events.dur_ns[*row])));
    for row in sorted {
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

/// Adds the parts of `more` that lie in the gaps of `bars`. Neither list overlaps itself, and both are sorted.
fn filled(bars: Vec<Bar>, more: &[Bar]) -> Vec<Bar> {
    let mut parts = Vec::new();
    let mut first = 0;
    for bar in more {
        while bars.get(first).is_some_and(|other| other.end <= bar.start) {
            first += 1;
        }
        let mut from = bar.start;
        for other in bars[first..].iter().take_while(|other| other.start < bar.end) {
            if other.start > from {
                parts.push(Bar { start: from, end: other.start, ..*bar });
            }
            from = from.max(other.end);
        }
        if from < bar.end {
            parts.push(Bar { start: from, ..*bar });
        }
    }
    parts.extend(bars);
    parts.sort_unstable_by_key(|bar| bar.start);
    parts
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

/// Joins bars shorter than `least` with neighbours within that distance. The joined bar is described as the longest.
pub(super) fn joined(bars: &[Bar], least: i64) -> Vec<Bar> {
    let mut found: Vec<Bar> = Vec::new();
    let mut longest = 0;
    for bar in bars {
        let short = |b: &Bar| b.end - b.start < least;
        match found.last_mut() {
            // A joined bar takes further bars, however long it is.
            Some(before) if (short(before) || before.rows > 1) && short(bar) && bar.start - before.end < least => {
                if bar.end - bar.start > longest {
                    longest = bar.end - bar.start;
                    before.what = bar.what;
                }
                before.end = bar.end;
                before.rows += bar.rows;
            }
            _ => {
                longest = bar.end - bar.start;
                found.push(*bar);
            }
        }
    }
    found
}

/// The length below which bars are joined, so that at most `most` are left: the longest that is not seen, doubled until they fit.
pub(super) fn least_for(drawn: &[&[Vec<Bar>; LANES]], span_ns: i64, most: usize) -> i64 {
    let mut least = span_ns / SEEN + 1;
    while total(drawn, least) > most && least < span_ns {
        least = least.saturating_mul(2);
    }
    least
}

/// The number of bars after joining.
pub(super) fn total(drawn: &[&[Vec<Bar>; LANES]], least: i64) -> usize {
    drawn.iter().flat_map(|lanes| lanes.iter()).map(|lane| joined(lane, least).len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::string_pool::StringPool;
    use align::aligned::Analyzed;
    use drawn::Drawn as Rank;

    fn bars(spans: &[(i64, i64)]) -> Vec<Bar> {
        spans.iter().map(|(start, end)| Bar { start: *start, end: *end, what: What::Row(0), rows: 1 }).collect()
    }

    fn spans(bars: &[Bar]) -> Vec<(i64, i64, u32)> {
        bars.iter().map(|b| (b.start, b.end, b.rows)).collect()
    }

    /// Draws the operators of step 1 as text: the name's first letter in every column.
    fn operators(data: &RankData) -> String {
        let rows: Vec<usize> = (0..data.events.len()).collect();
        let map = Map::default();
        let has_device = data.events.kind.iter().any(|kind| kind.is_device_work());
        let step = StepRows { data, host: &map, device: &map, rows: &rows, has_device };
        let mut text = vec!['.'; 20];
        for bar in step.operators() {
            let What::Row(row) = bar.what else { panic!("{bar:?}") };
            let name = &data.names[data.events.name[row as usize] as usize];
            text[bar.start as usize..bar.end as usize].fill(name.chars().next().unwrap());
        }
        text.into_iter().collect()
    }

    #[test]
    fn the_lane_of_operators_has_the_innermost_ones_and_what_waits_for_the_device() {
        let data = Rank::rank(0)
            .host(Kind::CpuOp, "linear", 1, ".#######............")
            .host(Kind::CpuOp, "addmm", 1, "...###..............")
            .host(Kind::Runtime, "ucudaLaunchKernel", 1, "....#...............")
            .host(Kind::Runtime, "cudaStreamSynchronize", 1, "..........########..")
            .host(Kind::CpuOp, "backward", 2, "......###########...")
            .device(Kind::Kernel, "gemm", (0, 7), 5, "...........####.....")
            .data();
        assert_eq!(operators(&data), ".llaaallbbcccccccc..");
    }

    #[test]
    fn without_a_device_communication_is_no_operator() {
        let data = Rank::rank(0)
            .host(Kind::CpuOp, "optimizer", 1, ".##########.........")
            .host(Kind::CpuOp, "c10d::allreduce_", 1, "....###.............")
            .data();
        assert_eq!(operators(&data), ".ooo...oooo.........");
    }

    /// Rank 0 waits for rank 1 in the first collective; the second has no instance.
    #[test]
    fn a_collective_is_divided_where_the_last_rank_arrives() {
        let mut data = Rank::rank(0).collectives("...#######..####").data();
        data.outline.collectives.iter_mut().for_each(|c| c.set_step(Some(1)));
        let instance = trace::InstanceRow {
            step: Some(1),
            first_start_ns: 3,
            last_start_ns: 7,
            last_rank: 1,
            transfer_ns: Some(3),
            ..Default::default()
        };
        let wait = |rank, arrival_ns| trace::WaitRow { rank, arrival_ns, ..Default::default() };
        let mut analyzed = Analyzed {
            analysis: Default::default(),
            clocks: Clocks::default(),
            time: Default::default(),
            devices: Vec::new(),
            recorded_ns: None,
        };
        analyzed.analysis.tables.collective_instances = vec![instance];
        analyzed.analysis.tables.collective_waits = vec![wait(0, 3), wait(1, 7)];
        let instances = Instances::of(&analyzed, &|step| step == 1);
        let map = Map::default();
        let step = StepRows { data: &data, host: &map, device: &map, rows: &[], has_device: false };
        let (bars, undivided) = step.communication(1, &instances);
        let parts: Vec<(i64, i64, What)> = bars.iter().map(|bar| (bar.start, bar.end, bar.what)).collect();
        let part = |at, does| What::Collective(at, does);
        let expected =
            [(3, 7, part(0, Does::Waits)), (7, 10, part(0, Does::Transfers)), (12, 16, part(1, Does::Either))];
        assert_eq!((parts.as_slice(), undivided), (expected.as_slice(), 1));
        // In the page, the collective has the arrivals of both ranks, if there is room for them.
        let shown = |most| {
            let mut names = StringPool::default();
            let (calls, without) = instances.shown(&[0], &FxHashMap::default(), &mut names, most);
            (serde_json::to_value(&calls[0]).unwrap()["arrivals"].clone(), without)
        };
        assert_eq!(shown(2), (serde_json::json!([0, 0, 1, 4]), 0));
        assert_eq!(shown(1), (serde_json::json!([]), 1));
    }

    #[test]
    fn kernels_without_a_collective_are_drawn_as_communication() {
        let mut data = Rank::rank(0)
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 1), 0, "##........")
            .device(Kind::Kernel, "cross_device_reduce_1stage", (0, 1), 1, "...##.....")
            .device(Kind::Kernel, "gemm", (0, 2), 9, "..........####")
            .collectives("##........")
            .data();
        data.outline.collectives[0].set_event_id(Some(data.events.id[0]));
        let rows: Vec<usize> = (0..data.events.len()).collect();
        let map = Map::default();
        let step = StepRows { data: &data, host: &map, device: &map, rows: &rows, has_device: true };
        assert_eq!(spans(&step.kernels_alone()), [(3, 5, 1)]);
    }

    #[test]
    fn bars_do_not_overlap() {
        //  [0----5]  [8--10]
        //     [3---7]
        assert_eq!(spans(&flat(bars(&[(8, 10), (0, 5), (3, 7), (1, 2)]))), [(0, 5, 1), (5, 7, 1), (8, 10, 1)]);
    }

    #[test]
    fn gaps_are_filled_with_the_bars_of_other_threads() {
        //  main      [2--5]   [8-10]  [14-15]
        //  other   [1----6][7--------------16]
        let filled = filled(bars(&[(2, 5), (8, 10), (14, 15)]), &bars(&[(1, 6), (7, 16)]));
        let expected = [(1, 2), (2, 5), (5, 6), (7, 8), (8, 10), (10, 14), (14, 15), (15, 16)];
        assert_eq!(spans(&filled), expected.map(|(start, end)| (start, end, 1)));
    }

    #[test]
    fn short_bars_are_joined_and_counted() {
        let many = bars(&[(0, 1), (2, 3), (4, 5), (20, 60), (61, 62), (100, 101)]);
        assert_eq!(spans(&joined(&many, 10)), [(0, 5, 3), (20, 60, 1), (61, 62, 1), (100, 101, 1)]);
        assert_eq!(joined(&many, 0).len(), many.len());
        assert_eq!(joined(&many, 1_000).iter().map(|b| b.rows).sum::<u32>(), 6);
    }

    #[test]
    fn bars_are_joined_only_where_they_have_no_room_or_are_not_seen() {
        let kernels: Vec<(i64, i64)> = (0..80_004).map(|at| (2_000 * at, 2_000 * at + 1_000)).collect();
        let lanes = [Vec::new(), Vec::new(), bars(&kernels), Vec::new()];
        let drawn = |most, span_ns| total(&[&lanes], least_for(&[&lanes], span_ns, most));
        assert_eq!(drawn(1_000_000, 160_008_000), 80_004);
        assert_eq!(drawn(1_000_000, SEEN * 2_000), 1, "each is half as long as what is seen");
        assert!(drawn(80_003, 160_008_000) < 80_003);
    }

    #[test]
    fn the_innermost_range_is_drawn() {
        let range = Kind::UserAnnotation;
        let data = Rank::rank(0).host(range, "forward", 1, ".########.").host(range, "layer", 1, "...##.....").data();
        let rows: Vec<usize> = (0..data.events.len()).collect();
        let map = Map::default();
        let step = StepRows { data: &data, host: &map, device: &map, rows: &rows, has_device: false };
        let found = innermost(&data.events, &rows, &|row| step.bar(row));
        let named: Vec<(&str, i64, i64)> = found
            .iter()
            .map(|b| match b.what {
                What::Row(row) => (&*data.names[data.events.name[row as usize] as usize], b.start, b.end),
                _ => ("", 0, 0),
            })
            .collect();
        assert_eq!(named, [("forward", 1, 3), ("layer", 3, 5), ("forward", 5, 9)]);
    }
}
