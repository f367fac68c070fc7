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
//! Ranges are `user_annotation`, `cpu_op` and `python_function` rows. Calls of a runtime or driver count for the range around
//! them, except those that block until a device is done: there the host waits, and whoever is to blame is elsewhere. So with
//! communication and ranges that say `wait`.

use rustc_hash::FxHashMap;
use trace::Text;

use super::RangePart;
use super::map::{Slot, SlotCursor};
use crate::model::{Kind, NONE, RankData};

/// Collects self times of ranges by step.
pub(super) struct RangeTimes<'a> {
    slots: &'a [Slot],
    steps: usize,
    names: Vec<NameClass>,
    texts: &'a [Text],
    position: FxHashMap<(u32, bool), usize>,
    times: Vec<((u32, bool), Vec<i64>)>,
}

/// What a name says about its rows.
#[derive(Clone, Copy)]
struct NameClass {
    /// Rows of this name count as rows of that one: all `ProfilerStep#N` are one range.
    canonical: u32,
    waits: bool,
    synchronizes: bool,
    input: bool,
}

/// A row that is open on a thread.
struct Open {
    end_ns: i64,
    /// Range that its self time counts for.
    range: Option<(u32, bool)>,
    /// Range that transparent rows inside it count for.
    enclosing: Option<(u32, bool)>,
    input: bool,
}

/// A thread's open rows, outermost first, and up to where its time was given away.
struct Thread {
    open: Vec<Open>,
    given_ns: i64,
    cursor: SlotCursor,
}

impl<'a> RangeTimes<'a> {
    /// The times of all host rows of `rank` within `slots`.
    pub(super) fn of(rank: &'a RankData, slots: &'a [Slot], steps: usize) -> Self {
        let names = classify(&rank.names);
        let mut times =
            Self { slots, steps, names, texts: &rank.names, position: FxHashMap::default(), times: Vec::new() };
        let mut threads: Vec<Thread> = Vec::new();
        let mut thread_position: FxHashMap<i64, usize> = FxHashMap::default();
        let events = &rank.events;
        for row in 0..events.len() {
            if !is_host(events.kind[row]) || events.thread[row] == NONE {
                continue;
            }
            let position = *thread_position.entry(events.thread[row]).or_insert_with(|| {
                threads.push(Thread { open: Vec::new(), given_ns: i64::MIN, cursor: SlotCursor::default() });
                threads.len() - 1
            });
            let thread = &mut threads[position];
            let (start_ns, end_ns) = (events.ts_ns[row], events.end_ns(row));
            times.advance(thread, start_ns);
            let opened = times.open(thread, events.kind[row], events.name[row], events.is_comm[row], end_ns);
            thread.open.push(opened);
            thread.given_ns = thread.given_ns.max(start_ns);
        }
        for thread in &mut threads {
            times.advance(thread, i64::MAX);
        }
        times
    }

    /// One part for each range that holds any time.
    pub(super) fn into_parts(self) -> Vec<RangePart> {
        let texts = self.texts;
        let name = |id: u32| {
            let text = &texts[id as usize];
            if text.starts_with(STEP_PREFIX) { STEP_PREFIX.trim_end_matches('#').into() } else { text.clone() }
        };
        self.times.into_iter().map(|((id, input), self_ns)| RangePart { name: name(id), input, self_ns }).collect()
    }

    /// Gives the thread's time up to `to_ns` to the rows that were open, innermost first.
    fn advance(&mut self, thread: &mut Thread, to_ns: i64) {
        while let Some(top) = thread.open.last() {
            let until = top.end_ns.min(to_ns);
            if thread.given_ns < until {
                if let Some(range) = top.range {
                    self.add(range, &mut thread.cursor, thread.given_ns, until);
                }
                thread.given_ns = until;
            }
            if top.end_ns > to_ns {
                break;
            }
            thread.open.pop();
        }
    }

    fn add(&mut self, range: (u32, bool), cursor: &mut SlotCursor, from_ns: i64, to_ns: i64) {
        let (position, times, steps) = (&mut self.position, &mut self.times, self.steps);
        cursor.clip(self.slots, from_ns, to_ns, |step, ns| {
            let at = *position.entry(range).or_insert_with(|| {
                times.push((range, vec![0; steps]));
                times.len() - 1
            });
            times[at].1[step] += ns;
        });
    }

    fn open(&self, thread: &Thread, kind: Kind, name: u32, is_comm: bool, end_ns: i64) -> Open {
        let around = thread.open.last();
        let class = self.names.get(name as usize).copied();
        let class = class.unwrap_or(NameClass { canonical: name, waits: false, synchronizes: false, input: false });
        let input = class.input || around.is_some_and(|o| o.input);
        let enclosing = around.and_then(|o| o.enclosing);
        let range = Some((class.canonical, input));
        match kind {
            Kind::Runtime | Kind::Driver if class.synchronizes => Open { end_ns, range: None, enclosing, input },
            // A call outside of every range stands for itself.
            Kind::Runtime | Kind::Driver => Open { end_ns, range: enclosing.or(range), enclosing, input },
            _ if is_comm || class.waits => Open { end_ns, range: None, enclosing: None, input },
            _ => Open { end_ns, range, enclosing: range, input },
        }
    }
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
        }
    };
    names.iter().enumerate().map(class).collect()
}

/// Calls that return only when a device is done: `cudaStreamSynchronize`, `hipDeviceSynchronize`, `cuCtxSynchronize`, … and
/// copies that are not `Async`.
fn synchronizes(name: &str) -> bool {
    let name = name.strip_suffix("_v2").unwrap_or(name);
    let copy = ["cudaMemcpy", "hipMemcpy", "cuMemcpy"].iter().any(|prefix| name.starts_with(prefix));
    name.ends_with("Synchronize") || (copy && !name.contains("Async"))
}

/// A data loader's range, in PyTorch's words, or the input phase.
fn is_input(lower: &str) -> bool {
    lower == "input" || ["dataloader", "datapipe", "torch/utils/data/"].iter().any(|word| lower.contains(word))
}
