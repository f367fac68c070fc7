//! The self time of each host range inside a rank's own stretches.
//!
//! ```text
//!   ProfilerStep  |-------------------------------|
//!   forward          |------------------|
//!   gemm                 |----|   |---|
//!   self time      ooofffggggggffffggggggffooooooooo      o ProfilerStep, f forward, g gemm
//!   own stretch    |----------------------|               only this counts
//! ```
//!
//! Ranges are `user_annotation`, `cpu_op` and `python_function` rows. Runtime and driver calls count for the range
//! around them. Calls that block until a device is done do not count, because the host only waits there. The same holds
//! for communication, and for operators and frames with `wait` in their name. A user may name any range so; it counts.
//!
//! If the Python stack was recorded, the innermost row is usually a frame such as `<built-in function sleep>`. If such
//! a frame [fills](RangePart::fills) a user's range, reports show the name of that range, because the user knows it.

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::{Op, Text, TimingSource};

use model::intervals::{Interval, IntervalSet};
use model::{Collective, Kind, NONE, RankData};
use trace::name_rules;

/// The self time of one host range inside own stretches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangePart {
    /// The name of the range. `None` is the self time of the step's own range: the time outside of all other ranges.
    pub name: Option<Text>,
    /// Whether the range loads input: it is a data loader's range, or is inside the `input` phase.
    pub input: bool,
    /// If this Python frame covers a user's range almost completely, the name of that range.
    pub fills: Option<Text>,
    /// The user's Python function, as `train.py(11): load`, that is the innermost one for more than half of this time. `None` without
    /// one, and without recorded stacks.
    pub code: Option<Text>,
    /// Whether it is a user's range or a Python frame inside of an operator of a host without a device. Its self time counts as
    /// that operator's in [`StepPart::busy_ns`](super::StepPart::busy_ns), but no operator explains it.
    pub in_operator: bool,
    /// The self time without blocking synchronisation calls, for each of [`OwnTime::steps`](super::OwnTime::steps).
    pub self_ns: Vec<i64>,
}

/// A piece of own time with the position of its step. Self times are collected in slots, which are disjoint and
/// ascending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) step: usize,
}

/// Finds the slots of ascending segments in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotCursor(usize);

impl SlotCursor {
    /// Calls `add(step, ns)` for every part of [`from_ns`, `to_ns`) that lies in a slot. Segments must ascend over
    /// calls.
    pub(crate) fn clip(&mut self, slots: &[Slot], from_ns: i64, to_ns: i64, mut add: impl FnMut(usize, i64)) {
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

/// A range: the id of its name, and whether it loads input.
type Range = (u32, bool);

/// The properties that a name gives to its rows.
#[derive(Clone, Copy, Default)]
struct NameClass {
    /// The id of the name that rows of this name count for.
    canonical: u32,
    waits: bool,
    /// Whether a range of this name waits.
    waits_as_range: bool,
    synchronizes: bool,
    input: bool,
    /// Whether the name is a `ProfilerStep#N`, which comes from the profiler and not from the user.
    is_step: bool,
    /// Whether the name is that of a Python function of the user.
    is_users_python: bool,
}

impl NameClass {
    fn waits(self, kind: Kind) -> bool {
        if kind == Kind::UserAnnotation { self.waits_as_range } else { self.waits }
    }
}

/// The id that all ranges of steps have as a [`Range`].
const STEP: u32 = u32::MAX;

/// A row that is open on a thread.
#[derive(Clone, Copy)]
struct Open {
    start_ns: i64,
    end_ns: i64,
    /// The range that the self time of the row counts for; `None` if the row waits.
    range: Option<Range>,
    /// The range that runtime and driver calls inside the row count for.
    enclosing: Option<Range>,
    /// Whether `range` is a frame of a Python stack.
    frame: bool,
    /// Whether the row is an operator or inside of one.
    operator: bool,
    /// Whether the row is a user's range or a Python frame inside of an operator.
    in_operator: bool,
    /// The name of the innermost user's range that contains the row or is the row.
    named: Option<u32>,
    /// The innermost Python function of the user that contains the row or is the row.
    code: Option<u32>,
    input: bool,
}

/// The open rows of a thread, outermost first.
struct Thread {
    open: Vec<Open>,
    /// The end of the time that was assigned to rows so far.
    assigned_ns: i64,
}

/// Walks the host rows of a rank.
struct Walk<'a> {
    rank: &'a RankData,
    names: &'a [NameClass],
    /// Start and end of every step. A range with exactly these times is the step's own range, whatever its name.
    steps: FxHashSet<(i64, i64)>,
    threads: Vec<Thread>,
}

impl<'a> Walk<'a> {
    /// Calls `segment(thread, row, from_ns, to_ns)` for every stretch of time in which `row` is the innermost row of
    /// its thread. For each thread, segments ascend and do not overlap.
    ///
    /// `thread` is an index into the returned list of thread ids.
    fn each(rank: &'a RankData, names: &'a [NameClass], mut segment: impl FnMut(usize, &Open, i64, i64)) -> Vec<i64> {
        let steps = rank.outline.steps.iter().map(|step| (step.start_ns, step.end_ns)).collect();
        let mut walk = Self { rank, names, steps, threads: Vec::new() };
        let mut position: FxHashMap<i64, usize> = FxHashMap::default();
        let mut ids = Vec::new();
        for (row, id) in host_rows(rank) {
            let thread = *position.entry(id).or_insert_with(|| {
                ids.push(id);
                walk.threads.push(Thread { open: Vec::new(), assigned_ns: i64::MIN });
                walk.threads.len() - 1
            });
            walk.open(thread, row, &mut segment);
        }
        for thread in 0..walk.threads.len() {
            walk.advance(thread, i64::MAX, &mut segment);
        }
        ids
    }

    /// Assigns the thread's time up to `to_ns` to its open rows, innermost first.
    fn advance(&mut self, at: usize, to_ns: i64, segment: &mut impl FnMut(usize, &Open, i64, i64)) {
        let thread = &mut self.threads[at];
        while let Some(top) = thread.open.last() {
            let until_ns = top.end_ns.min(to_ns);
            if thread.assigned_ns < until_ns {
                segment(at, top, thread.assigned_ns, until_ns);
                thread.assigned_ns = until_ns;
            }
            if top.end_ns > to_ns {
                break;
            }
            thread.open.pop();
        }
    }

    fn open(&mut self, at: usize, row: usize, segment: &mut impl FnMut(usize, &Open, i64, i64)) {
        let events = &self.rank.events;
        self.advance(at, events.ts_ns[row], segment);
        let thread = &mut self.threads[at];
        let around = thread.open.last().copied();
        let class = self.names.get(events.name[row] as usize).copied().unwrap_or_default();
        let input = class.input || around.is_some_and(|o| o.input);
        let enclosing = around.and_then(|o| o.enclosing);
        let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
        let is_step = class.is_step || self.steps.contains(&(start_ns, end_ns));
        let range = Some((if is_step { STEP } else { class.canonical }, input));
        let operator = (events.kind[row] == Kind::CpuOp && !is_step) || around.is_some_and(|o| o.operator);
        let is_code = matches!(events.kind[row], Kind::UserAnnotation | Kind::PythonFunction);
        let in_operator = operator && is_code && !is_step;
        let frame = match events.kind[row] {
            Kind::Runtime | Kind::Driver => around.is_some_and(|o| o.frame),
            kind => kind == Kind::PythonFunction,
        };
        let named = match events.kind[row] {
            Kind::UserAnnotation if !is_step => Some(class.canonical),
            _ => around.and_then(|o| o.named),
        };
        let code = match events.kind[row] {
            Kind::PythonFunction if class.is_users_python => Some(class.canonical),
            _ => around.and_then(|o| o.code),
        };
        let (range, enclosing) = match events.kind[row] {
            Kind::Runtime | Kind::Driver if class.synchronizes => (None, enclosing),
            // A call outside of all ranges is a range of its own.
            Kind::Runtime | Kind::Driver => (enclosing.or(range), enclosing),
            _ if events.is_comm[row] || class.waits(events.kind[row]) => (None, None),
            _ => (range, range),
        };
        thread.open.push(Open { start_ns, end_ns, range, enclosing, frame, operator, in_operator, named, code, input });
        thread.assigned_ns = thread.assigned_ns.max(start_ns);
    }
}

/// The positions of all host rows, with their threads.
fn host_rows(rank: &RankData) -> impl Iterator<Item = (usize, i64)> {
    let events = &rank.events;
    (0..events.len())
        .filter(|&row| is_host(events.kind[row]) && events.thread[row] != NONE)
        .map(|row| (row, events.thread[row]))
}

/// The ranges of a rank with the largest self times, and what is known of the others.
pub(super) struct Largest {
    /// The largest first, then by name, so that the result does not depend on the order of rows.
    pub(super) ranges: Vec<RangePart>,
    /// The number of the others.
    pub(super) dropped: usize,
    /// Their largest self time in one step.
    pub(super) dropped_max_ns: i64,
}

/// The self time of each range of `rank` within `slots`, for each of `steps` steps. At most `max_ranges` are kept. The flag says
/// whether operators of the host are the rank's work.
pub(super) fn self_times(
    rank: &RankData,
    slots: &[Slot],
    (steps, on_host): (usize, bool),
    max_ranges: usize,
) -> Largest {
    let names = classify(&rank.names);
    let mut position: FxHashMap<Range, usize> = FxHashMap::default();
    let mut times: Vec<RangeTime> = Vec::new();
    let mut cursors: Vec<SlotCursor> = Vec::new();
    // The time in each user's range, including the time of the rows inside.
    let mut named_ns: FxHashMap<u32, i64> = FxHashMap::default();
    Walk::each(rank, &names, |thread, row, from_ns, to_ns| {
        if cursors.len() <= thread {
            cursors.resize(thread + 1, SlotCursor::default());
        }
        let Some(range) = row.range else { return };
        cursors[thread].clip(slots, from_ns, to_ns, |step, ns| {
            let at = *position.entry(range).or_insert_with(|| {
                let (frame, in_operator) = (row.frame, row.in_operator && on_host);
                let (self_ns, code_ns) = (Vec::new(), Vec::new());
                times.push(RangeTime { range, self_ns, code_ns, frame, in_operator, named: row.named, spread: false });
                times.len() - 1
            });
            times[at].add(step, ns);
            times[at].add_code(row.code, ns);
            times[at].spread |= (times[at].frame, times[at].named) != (row.frame, row.named);
            if let Some(named) = row.named {
                *named_ns.entry(named).or_default() += ns;
            }
        });
    });
    let name = |id: u32| (id != STEP).then(|| rank.names.get(id as usize).cloned().unwrap_or_default());
    times.sort_by_cached_key(|time| (Reverse(time.total_ns()), name(time.range.0), time.range.1));
    let dropped = times.split_off(times.len().min(max_ranges));
    let part = |time: RangeTime| {
        let (fills, code) = (time.fills(&named_ns).and_then(name), time.code().and_then(name));
        let (in_operator, self_ns) = (time.in_operator, time.by_step(steps));
        RangePart { name: name(time.range.0), input: time.range.1, fills, code, in_operator, self_ns }
    };
    Largest {
        ranges: times.into_iter().map(part).collect(),
        dropped: dropped.len(),
        dropped_max_ns: dropped.into_iter().map(RangeTime::most_in_a_step).max().unwrap_or(0),
    }
}

/// A frame fills a user's range if it covers at least this share of it.
const FILLED: f64 = 0.9;

/// A range keeps the times of so many functions. A function with more than half of the time of a range comes early in it.
const MAX_CODES: usize = 16;

/// The self time of one range while it is collected.
struct RangeTime {
    range: Range,
    /// Steps and times. Most ranges are in few of many steps. A step that several threads share may have several times.
    self_ns: Vec<(usize, i64)>,
    /// Python functions of the user and the time in each, of the first [`MAX_CODES`].
    code_ns: Vec<(u32, i64)>,
    frame: bool,
    /// Whether the first row of this range is code inside of an operator.
    in_operator: bool,
    /// The user's range around the first row of this range.
    named: Option<u32>,
    /// Whether later rows are inside other user's ranges.
    spread: bool,
}

impl RangeTime {
    fn add(&mut self, step: usize, ns: i64) {
        match self.self_ns.last_mut() {
            Some((last, sum)) if *last == step => *sum += ns,
            _ => self.self_ns.push((step, ns)),
        }
    }

    fn add_code(&mut self, code: Option<u32>, ns: i64) {
        let Some(code) = code else { return };
        if let Some((_, sum)) = self.code_ns.iter_mut().find(|(known, _)| *known == code) {
            *sum += ns;
        } else if self.code_ns.len() < MAX_CODES {
            self.code_ns.push((code, ns));
        }
    }

    /// The function with more than half of the time.
    fn code(&self) -> Option<u32> {
        let total_ns = self.total_ns();
        self.code_ns.iter().find(|(_, ns)| 2 * ns > total_ns).map(|(code, _)| *code)
    }

    fn total_ns(&self) -> i64 {
        self.self_ns.iter().map(|(_, ns)| ns).sum()
    }

    fn by_step(&self, steps: usize) -> Vec<i64> {
        let mut by_step = vec![0; steps];
        self.self_ns.iter().for_each(|(step, ns)| by_step[*step] += ns);
        by_step
    }

    fn most_in_a_step(mut self) -> i64 {
        self.self_ns.sort_unstable();
        let steps = self.self_ns.chunk_by(|(a, _), (b, _)| a == b);
        steps.map(|step| step.iter().map(|(_, ns)| ns).sum()).max().unwrap_or(0)
    }

    /// The user's range that this frame fills; `named_ns` holds the time in each user's range.
    fn fills(&self, named_ns: &FxHashMap<u32, i64>) -> Option<u32> {
        let named = self.named.filter(|_| self.frame && !self.spread)?;
        let whole_ns = named_ns.get(&named).copied().unwrap_or(0);
        (self.total_ns() as f64 >= FILLED * whole_ns as f64).then_some(named)
    }
}

/// The time in which the threads that record their waits compute: all of their time without these waits, and without those that
/// have no row. Threads without recorded waits are excluded, because their rows may include blocked time. `None` if no thread
/// records its waits.
pub(super) fn time_beside_waits(rank: &RankData) -> Option<IntervalSet> {
    let names = classify(&rank.names);
    let events = &rank.events;
    let mut recording_waits: Vec<i64> = host_rows(rank)
        .filter(|&(row, _)| matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation))
        .filter(|&(row, _)| names.get(events.name[row] as usize).is_some_and(|class| class.waits(events.kind[row])))
        .map(|(_, thread)| thread)
        .collect();
    recording_waits.sort_unstable();
    recording_waits.dedup();
    if recording_waits.is_empty() {
        return None;
    }
    let waits = SilentWaits::of(rank);
    let threads = times_by_thread(rank, &names, |row, from_ns, to_ns| waits.before(row, from_ns, to_ns));
    let trusted = threads.iter().filter(|(id, _)| recording_waits.binary_search(id).is_ok());
    Some(IntervalSet::union_of(trusted.map(|(_, set)| set)))
}

/// Waits for collectives of the host that have no row, such as those of FSDP:
///
/// ```text
///   thread       pre_forward |--[call]............[copy]--|      no operator runs until the collective ends
///   collective                     |~~~~~~~~~~~~~|
/// ```
struct SilentWaits {
    /// End and start of each collective of the host, by end.
    collectives: Vec<(i64, i64)>,
}

/// The least length of a silent wait, and the time in which a thread goes on after the end of its collective, or before it where
/// the row of the collective ends late.
const SILENT_NS: i64 = 1_000_000;

impl SilentWaits {
    fn of(rank: &RankData) -> Self {
        // The row of a send ends when the program asks for it, whatever the program did until then.
        let waits = |row: &&Collective| row.timing_source == TimingSource::Host && row.op != Op::Send;
        let on_host = rank.outline.collectives.iter().filter(waits);
        let mut collectives: Vec<(i64, i64)> = on_host.filter_map(|row| row.end_ns().zip(row.start_ns())).collect();
        collectives.sort_unstable();
        Self { collectives }
    }

    /// The begin of the wait that ends a stretch of time in which `row` is the innermost row; the end of that time without one.
    /// A row that contains no other may be the user's own work.
    fn before(&self, row: &Open, from_ns: i64, to_ns: i64) -> i64 {
        if (row.start_ns, row.end_ns) == (from_ns, to_ns) { to_ns } else { self.begin_ns(from_ns, to_ns) }
    }

    /// The begin of the wait that ends a stretch of time; the end of that time without one.
    fn begin_ns(&self, from_ns: i64, to_ns: i64) -> i64 {
        if to_ns - from_ns < SILENT_NS {
            return to_ns;
        }
        let first = self.collectives.partition_point(|(end_ns, _)| *end_ns < to_ns - SILENT_NS);
        let ended = self.collectives[first..].iter().take_while(|(end_ns, _)| *end_ns <= to_ns + SILENT_NS);
        let begin_ns = ended.map(|(_, start_ns)| *start_ns).min().map_or(to_ns, |start_ns| start_ns.max(from_ns));
        if to_ns - begin_ns < SILENT_NS { to_ns } else { begin_ns }
    }
}

/// The time of the operators, and of ranges inside of operators, that contain no other one, on any thread, without communication
/// and waits. One that contains others may also contain a wait that has no row, and so may any range of the user's.
pub(super) fn leaf_operators(rank: &RankData) -> IntervalSet {
    let names = classify(&rank.names);
    let events = &rank.events;
    let waits = |row: usize| names.get(events.name[row] as usize).is_some_and(|class| class.waits(events.kind[row]));
    let silent = SilentWaits::of(rank);
    let mut last_of_thread: FxHashMap<i64, usize> = FxHashMap::default();
    let mut leaves = Vec::new();
    let mut operator_ends: FxHashMap<i64, i64> = FxHashMap::default();
    for (row, thread) in host_rows(rank) {
        let operator_end_ns = operator_ends.entry(thread).or_insert(i64::MIN);
        match events.kind[row] {
            Kind::CpuOp => *operator_end_ns = (*operator_end_ns).max(events.end_ns(row)),
            Kind::UserAnnotation if events.ts_ns[row] < *operator_end_ns && !events.is_comm[row] => {}
            _ => continue,
        }
        let last = last_of_thread.insert(thread, row);
        leaves.extend(last.filter(|&last| events.end_ns(last) <= events.ts_ns[row]));
    }
    leaves.extend(last_of_thread.into_values());
    let work = leaves.into_iter().filter(|&row| !events.is_comm[row] && !waits(row));
    let until = |row: usize| match events.kind[row] {
        Kind::UserAnnotation => silent.begin_ns(events.ts_ns[row], events.end_ns(row)),
        _ => events.end_ns(row),
    };
    work.map(|row| Interval::new(events.ts_ns[row], until(row))).collect()
}

/// The time in which an operator ran on any thread of the host, without communication and waits. An operator that contains a wait
/// does not run while it waits.
pub(crate) fn operating(rank: &RankData) -> IntervalSet {
    let waits = SilentWaits::of(rank);
    let threads = times_by_thread(rank, &classify(&rank.names), |row, from_ns, to_ns| match row.operator {
        true => waits.before(row, from_ns, to_ns),
        false => i64::MIN,
    });
    IntervalSet::union_of(threads.iter().map(|(_, set)| set))
}

/// For each thread, its id and the times of the innermost rows, from their begin to the time that `until` returns. Waits are
/// excluded.
fn times_by_thread(
    rank: &RankData,
    names: &[NameClass],
    until: impl Fn(&Open, i64, i64) -> i64,
) -> Vec<(i64, IntervalSet)> {
    let mut sets: Vec<IntervalSet> = Vec::new();
    let ids = Walk::each(rank, names, |thread, row, from_ns, to_ns| {
        if sets.len() <= thread {
            sets.resize(thread + 1, IntervalSet::new());
        }
        let to_ns = until(row, from_ns, to_ns);
        if row.range.is_some() && from_ns < to_ns {
            sets[thread].push(Interval::new(from_ns, to_ns));
        }
    });
    sets.resize(ids.len(), IntervalSet::new());
    ids.into_iter().zip(sets).collect()
}

pub(super) fn is_host(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction | Kind::Runtime | Kind::Driver | Kind::Overhead
    )
}

fn classify(names: &[Text]) -> Vec<NameClass> {
    let class = |(id, name): (usize, &Text)| NameClass {
        canonical: id as u32,
        waits: name_rules::waits(name),
        // Users name ranges as they like. TorchRec's names look like `## wait() ##`.
        waits_as_range: name_rules::waits(name) && (name_rules::is_backend_range(name) || name.starts_with("## ")),
        synchronizes: name_rules::synchronizes(name),
        input: name_rules::is_input(name),
        is_step: name_rules::is_step(name),
        is_users_python: name_rules::is_users_python(name),
    };
    names.iter().enumerate().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// ```text
    /// collective      10 |~~~~~~~~~~~~~~~| 60
    /// container     5 [..................| 61      waits from 10 on
    ///              20      [.............| 61      waits from its begin
    ///               5 [......| 40                  works: the collective goes on
    ///               5 [#################] 61       a row without others inside: the user's own work
    /// ```
    #[test]
    fn a_thread_that_goes_on_when_a_collective_ends_waited_for_it() {
        let waits = SilentWaits { collectives: vec![(60 * MS, 10 * MS)] };
        let row = Open {
            start_ns: 0,
            end_ns: 200 * MS,
            range: None,
            enclosing: None,
            frame: false,
            operator: false,
            in_operator: false,
            named: None,
            code: None,
            input: false,
        };
        let before = |from_ms: i64, to_ms: i64| waits.before(&row, from_ms * MS, to_ms * MS) / MS;
        assert_eq!((before(5, 61), before(20, 61), before(5, 40), before(5, 59)), (10, 20, 40, 10));
        assert_eq!((before(5, 70), before(59, 60)), (70, 59), "it went on long before; a pause of 1 ms");
        let leaf = Open { start_ns: 5 * MS, end_ns: 61 * MS, ..row };
        assert_eq!(waits.before(&leaf, 5 * MS, 61 * MS), 61 * MS);
    }
}
