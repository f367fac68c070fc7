//! Where the host spent a rank's own stretches: self time by range.
//!
//! ```text
//!   ProfilerStep  |-------------------------------|
//!   forward          |------------------|
//!   gemm                 |----|   |---|
//!   self time      ooofffggggggffffggggggffooooooooo      o ProfilerStep, f forward, g gemm
//!   own stretch    |----------------------|               only this counts
//! ```
//!
//! Ranges are `user_annotation`, `cpu_op` and `python_function` rows. Calls of a runtime or driver count for the range
//! around them, except those that block until a device is done: there the host waits, and whoever is to blame is
//! elsewhere. So with communication and ranges that say `wait`.
//!
//! Where Python's stack was recorded, the innermost row is mostly a frame such as `<built-in function sleep>`. If such
//! a frame [fills](RangePart::fills) a range that the user named, that name is what the user wants to read.

use rustc_hash::FxHashMap;
use trace::Text;

use super::RangePart;
use super::map::{Slot, SlotCursor};
use crate::intervals::{Interval, IntervalSet};
use crate::model::{Kind, NONE, RankData};
use crate::names::synchronizes;

/// A range: its name, and whether it brings in data.
type Range = (u32, bool);

/// What a name says about its rows.
#[derive(Clone, Copy, Default)]
struct NameClass {
    /// Rows of this name count as rows of that one: all `ProfilerStep#N` are one range.
    canonical: u32,
    waits: bool,
    synchronizes: bool,
    input: bool,
    /// A `ProfilerStep#N`, which the profiler named and not the user.
    is_step: bool,
}

/// A row that is open on a thread.
#[derive(Clone, Copy)]
struct Open {
    end_ns: i64,
    /// Range that its self time counts for.
    range: Option<Range>,
    /// Range that transparent rows inside it count for.
    enclosing: Option<Range>,
    /// What its self time counts for is a frame of Python's stack.
    frame: bool,
    /// Name of the innermost range around it, or it itself, that the user named.
    named: Option<u32>,
    input: bool,
}

/// A thread's open rows, outermost first, and up to where its time was given away.
struct Thread {
    open: Vec<Open>,
    given_ns: i64,
}

/// Walks the host rows of a rank.
struct Walk<'a> {
    rank: &'a RankData,
    names: &'a [NameClass],
    threads: Vec<Thread>,
}

impl<'a> Walk<'a> {
    /// Calls `segment(thread, row, from_ns, to_ns)` for every stretch of time in which one row is the innermost of its
    /// thread; its `range` is `None` where it waits. For each thread segments ascend and do not overlap.
    ///
    /// Threads are numbered; the result holds their ids.
    fn each(rank: &'a RankData, names: &'a [NameClass], mut segment: impl FnMut(usize, &Open, i64, i64)) -> Vec<i64> {
        let mut walk = Self { rank, names, threads: Vec::new() };
        let mut position: FxHashMap<i64, usize> = FxHashMap::default();
        let mut ids = Vec::new();
        for (row, id) in host_rows(rank) {
            let thread = *position.entry(id).or_insert_with(|| {
                ids.push(id);
                walk.threads.push(Thread { open: Vec::new(), given_ns: i64::MIN });
                walk.threads.len() - 1
            });
            walk.open(thread, row, &mut segment);
        }
        for thread in 0..walk.threads.len() {
            walk.advance(thread, i64::MAX, &mut segment);
        }
        ids
    }

    /// Gives the thread's time up to `to_ns` to the rows that were open, innermost first.
    fn advance(&mut self, at: usize, to_ns: i64, segment: &mut impl FnMut(usize, &Open, i64, i64)) {
        let thread = &mut self.threads[at];
        while let Some(top) = thread.open.last() {
            let until_ns = top.end_ns.min(to_ns);
            if thread.given_ns < until_ns {
                segment(at, top, thread.given_ns, until_ns);
                thread.given_ns = until_ns;
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
        let range = Some((class.canonical, input));
        let frame = match events.kind[row] {
            Kind::Runtime | Kind::Driver => around.is_some_and(|o| o.frame),
            kind => kind == Kind::PythonFunction,
        };
        let named = match events.kind[row] {
            Kind::UserAnnotation if !class.is_step => Some(class.canonical),
            _ => around.and_then(|o| o.named),
        };
        let (range, enclosing) = match events.kind[row] {
            Kind::Runtime | Kind::Driver if class.synchronizes => (None, enclosing),
            // A call outside of every range stands for itself.
            Kind::Runtime | Kind::Driver => (enclosing.or(range), enclosing),
            _ if events.is_comm[row] || class.waits => (None, None),
            _ => (range, range),
        };
        thread.open.push(Open { end_ns: events.end_ns(row), range, enclosing, frame, named, input });
        thread.given_ns = thread.given_ns.max(events.ts_ns[row]);
    }
}

/// Positions of host rows, with their threads.
fn host_rows(rank: &RankData) -> impl Iterator<Item = (usize, i64)> {
    let events = &rank.events;
    (0..events.len())
        .filter(|&row| is_host(events.kind[row]) && events.thread[row] != NONE)
        .map(|row| (row, events.thread[row]))
}

/// Self time of each range of `rank` within `slots`, for each of `steps` steps.
pub(super) fn self_times(rank: &RankData, slots: &[Slot], steps: usize) -> Vec<RangePart> {
    let names = classify(&rank.names);
    let mut position: FxHashMap<Range, usize> = FxHashMap::default();
    let mut times: Vec<RangeTime> = Vec::new();
    let mut cursors: Vec<SlotCursor> = Vec::new();
    // Time in each range that the user named, whatever was innermost there.
    let mut named_ns: FxHashMap<u32, i64> = FxHashMap::default();
    Walk::each(rank, &names, |thread, row, from_ns, to_ns| {
        if cursors.len() <= thread {
            cursors.resize(thread + 1, SlotCursor::default());
        }
        let Some(range) = row.range else { return };
        cursors[thread].clip(slots, from_ns, to_ns, |step, ns| {
            let at = *position.entry(range).or_insert_with(|| {
                let self_ns = vec![0; steps];
                times.push(RangeTime { range, self_ns, frame: row.frame, named: row.named, spread: false });
                times.len() - 1
            });
            times[at].self_ns[step] += ns;
            times[at].spread |= (times[at].frame, times[at].named) != (row.frame, row.named);
            if let Some(named) = row.named {
                *named_ns.entry(named).or_default() += ns;
            }
        });
    });
    let name = |id: u32| match rank.names.get(id as usize) {
        Some(text) if text.starts_with(STEP_PREFIX) => STEP_PREFIX.trim_end_matches('#').into(),
        Some(text) => text.clone(),
        None => "".into(),
    };
    let part = |time: RangeTime| {
        let fills = time.fills(&named_ns).map(name);
        RangePart { name: name(time.range.0), input: time.range.1, fills, self_ns: time.self_ns }
    };
    times.into_iter().map(part).collect()
}

/// Share of a named range from which on a frame inside is said to fill it.
const FILLED: f64 = 0.9;

/// Self time of one range while it is collected.
struct RangeTime {
    range: Range,
    self_ns: Vec<i64>,
    frame: bool,
    /// The range around it that the user named, where it was seen first.
    named: Option<u32>,
    /// It was seen inside of others, too.
    spread: bool,
}

impl RangeTime {
    /// The named range that this frame fills, given the time in each.
    fn fills(&self, named_ns: &FxHashMap<u32, i64>) -> Option<u32> {
        let named = self.named.filter(|_| self.frame && !self.spread)?;
        let whole_ns = named_ns.get(&named).copied().unwrap_or(0);
        let own_ns: i64 = self.self_ns.iter().sum();
        (own_ns as f64 >= FILLED * whole_ns as f64).then_some(named)
    }
}

/// When the host computed although a collective was on its way (`within`): the time of the threads that record their
/// waits, less these waits. Other threads' rows do not tell computing from being blocked.
pub(super) fn computing(rank: &RankData, within: &IntervalSet) -> IntervalSet {
    let names = classify(&rank.names);
    let events = &rank.events;
    let mut tells: Vec<i64> = host_rows(rank)
        .filter(|&(row, _)| matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation))
        .filter(|&(row, _)| names.get(events.name[row] as usize).is_some_and(|class| class.waits))
        .map(|(_, thread)| thread)
        .collect();
    tells.sort_unstable();
    tells.dedup();
    if tells.is_empty() || within.is_empty() {
        return IntervalSet::new();
    }
    let mut sets: Vec<IntervalSet> = Vec::new();
    let ids = Walk::each(rank, &names, |thread, row, from_ns, to_ns| {
        if sets.len() <= thread {
            sets.resize(thread + 1, IntervalSet::new());
        }
        if row.range.is_some() {
            sets[thread].push(Interval::new(from_ns, to_ns));
        }
    });
    let telling = sets.iter().zip(ids).filter(|(_, id)| tells.binary_search(id).is_ok());
    telling.fold(IntervalSet::new(), |all, (set, _)| all.union(&set.intersection(within)))
}

const STEP_PREFIX: &str = "ProfilerStep#";

fn is_host(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction | Kind::Runtime | Kind::Driver | Kind::Overhead
    )
}

fn classify(names: &[Text]) -> Vec<NameClass> {
    let mut step_name = None;
    let class = |(id, name): (usize, &Text)| {
        let id = id as u32;
        let canonical = if name.starts_with(STEP_PREFIX) { *step_name.get_or_insert(id) } else { id };
        let lower = name.to_ascii_lowercase();
        NameClass {
            canonical,
            waits: lower.contains("wait"),
            synchronizes: synchronizes(name),
            input: is_input(&lower),
            is_step: name.starts_with(STEP_PREFIX),
        }
    };
    names.iter().enumerate().map(class).collect()
}

/// A data loader's range, in PyTorch's words, or the input phase.
fn is_input(lower: &str) -> bool {
    lower == "input" || ["dataloader", "datapipe", "torch/utils/data/"].iter().any(|word| lower.contains(word))
}
