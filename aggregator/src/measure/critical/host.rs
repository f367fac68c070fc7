//! The host threads of a rank: their rows, their pauses, and the work that they waited for.

use rustc_hash::FxHashMap;
use trace::CollectiveRow;
use trace::name_rules::is_data_loader;

use crate::base::intervals::{Coverage, Interval, IntervalSet};
use crate::measure::critical::device::Device;
use crate::measure::critical::waits::{Wait, waits};
use crate::model::{Kind, NO_PARENT, NONE, RankData};

/// A shorter pause of a thread does not count as a wait for another thread.
const MIN_PAUSE_NS: i64 = 50_000;

/// One host thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: i64,
    /// All rows of the thread, ordered by start.
    pub(super) rows: Vec<u32>,
    /// The time in operators and in runtime or driver calls.
    pub(super) busy: IntervalSet,
    /// The calls that waited for a device, ordered by end.
    pub(super) waits: Vec<Wait>,
    in_operator: Coverage,
    data_loading: Coverage,
    communication: Coverage,
}

/// The work whose end released a thread from a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// An operator of this thread.
    Thread(usize),
    /// A host collective that began at this time.
    Collective(i64),
}

/// The threads of a rank.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) threads: Vec<Thread>,
    /// The host collectives, ordered by end.
    collectives: Vec<Interval>,
}

impl Host {
    pub(super) fn of(data: &RankData, device: &Device<'_>) -> Self {
        let events = &data.events;
        let mut rows: FxHashMap<i64, Vec<u32>> = FxHashMap::default();
        for row in 0..events.len() {
            let is_host = matches!(
                events.kind[row],
                Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction | Kind::Runtime | Kind::Driver
            );
            if is_host && events.thread[row] != NONE {
                rows.entry(events.thread[row]).or_default().push(row as u32);
            }
        }
        let mut waits = waits(data, device);
        let loads: Vec<bool> = data.names.iter().map(|name| is_data_loader(name)).collect();
        let mut threads: Vec<Thread> = rows
            .into_iter()
            .map(|(id, rows)| thread(data, id, rows, waits.remove(&id).unwrap_or_default(), &loads, device.is_empty()))
            .collect();
        threads.sort_by_key(|thread| thread.id);
        let on_host = data.outline.collectives.iter().filter(|c| c.device_id.is_none() && device.is_empty());
        let interval = |c: &CollectiveRow| Some(Interval::new(c.start_ns.or(c.enqueue_ns)?, c.end_ns?));
        let mut collectives: Vec<Interval> = on_host.filter_map(|c| interval(c)).collect();
        collectives.sort_unstable_by_key(|c| (c.end_ns, c.start_ns));
        Self { threads, collectives }
    }

    /// The main thread of a step: the thread with the annotation that marks the step, or else the busiest thread.
    pub(super) fn main_thread(&self, data: &RankData, window: Interval) -> Option<usize> {
        let events = &data.events;
        let marks = |thread: &Thread| {
            let from = thread.rows.partition_point(|row| events.ts_ns[*row as usize] < window.start_ns);
            let first = thread.rows.get(from).map(|row| *row as usize);
            first.is_some_and(|row| events.ts_ns[row] == window.start_ns && events.kind[row] == Kind::UserAnnotation)
        };
        let busiest = || (0..self.threads.len()).max_by_key(|at| self.threads[*at].in_operator.within_ns(window));
        self.threads.iter().position(marks).or_else(busiest)
    }

    pub(super) fn thread_of(&self, data: &RankData, row: u32) -> Option<usize> {
        let id = data.events.thread[row as usize];
        self.threads.binary_search_by_key(&id, |thread| thread.id).ok()
    }

    /// The last time in `(after_ns, until_ns]` at which other work released the thread from a pause, and that work.
    pub(super) fn release(&self, thread: usize, after_ns: i64, until_ns: i64) -> Option<(i64, Release)> {
        if self.threads.len() < 2 && self.collectives.is_empty() {
            return None;
        }
        // The search goes backwards, so that a walk visits each interval about once in all of its calls.
        let busy = self.threads[thread].busy.intervals();
        let mut until = until_ns;
        let mut before = busy.partition_point(|i| i.start_ns < until_ns);
        while until > after_ns {
            let end = before.checked_sub(1).map_or(after_ns, |at| busy[at].end_ns).clamp(after_ns, until);
            let pause = Interval::new(end, until);
            if pause.len_ns() >= MIN_PAUSE_NS
                && let Some(release) = self.last_end(thread, pause)
            {
                return Some(release);
            }
            let Some(at) = before.checked_sub(1) else { break };
            until = busy[at].start_ns.min(until);
            before = at;
        }
        None
    }

    /// The work that ended last in a pause. Work that ran for less than half of the pause is ignored, because it cannot
    /// have blocked the thread.
    fn last_end(&self, thread: usize, pause: Interval) -> Option<(i64, Release)> {
        let fills_half = |ns: i64| ns >= pause.len_ns() / 2;
        let end_on_thread = |at: usize| {
            let other = &self.threads[at];
            let busy = other.busy.intervals();
            let before = busy.partition_point(|i| i.end_ns <= pause.end_ns);
            let end = busy.get(before.checked_sub(1)?)?.end_ns;
            let is_cause = end > pause.start_ns && fills_half(other.in_operator.within_ns(pause));
            is_cause.then_some((end, Release::Thread(at)))
        };
        let others = (0..self.threads.len()).filter(|at| *at != thread).filter_map(end_on_thread);
        let before = self.collectives.partition_point(|c| c.end_ns <= pause.end_ns);
        let collective = before.checked_sub(1).map(|at| self.collectives[at]).filter(|c| {
            let waited = Interval::new(c.start_ns, c.end_ns).intersection(pause);
            c.end_ns > pause.start_ns && fills_half(waited.len_ns())
        });
        let collective = collective.map(|c| (c.end_ns, Release::Collective(c.start_ns)));
        // If a collective and a thread end together, the collective counts: the thread drives the collective.
        others.chain(collective).max_by_key(|(end, release)| (*end, matches!(release, Release::Collective(_))))
    }
}

fn thread(data: &RankData, id: i64, rows: Vec<u32>, waits: Vec<Wait>, loads: &[bool], host_only: bool) -> Thread {
    let events = &data.events;
    let interval = |row: u32| Interval::new(events.ts_ns[row as usize], events.end_ns(row as usize));
    let set = |wanted: &dyn Fn(usize) -> bool| -> IntervalSet {
        rows.iter().filter(|row| wanted(**row as usize)).map(|row| interval(*row)).collect()
    };
    let busy = set(&|row| matches!(events.kind[row], Kind::CpuOp | Kind::Runtime | Kind::Driver));
    let data_loading = set(&|row| loads[events.name[row] as usize]);
    // With devices, communication is device work. Without, it is host work, including the waits for it.
    let communication = if host_only { set(&|row| events.is_comm[row]) } else { IntervalSet::default() };
    let communication = communication.difference(&data_loading);
    let in_operator = busy.union(&data_loading).union(&communication);
    Thread {
        id,
        rows,
        busy,
        waits,
        in_operator: Coverage::new(in_operator),
        data_loading: Coverage::new(data_loading),
        communication: Coverage::new(communication),
    }
}

/// The parts of a stretch of a thread's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) data_loading: i64,
    pub(super) communication: i64,
    /// Time outside of any operator.
    pub(super) gap: i64,
}

impl Thread {
    pub(super) fn stretch(&self, window: Interval) -> Stretch {
        Stretch {
            data_loading: self.data_loading.within_ns(window),
            communication: self.communication.within_ns(window),
            gap: window.len_ns() - self.in_operator.within_ns(window),
        }
    }

    /// Adds the self times of the thread's rows within a window to `by_name`.
    pub(super) fn add_names(&self, data: &RankData, window: Interval, by_name: &mut FxHashMap<u32, i64>) {
        let events = &data.events;
        let within = |row: u32| {
            let row = row as usize;
            Interval::new(events.ts_ns[row], events.end_ns(row)).intersection(window).len_ns().max(0)
        };
        let mut add = |row: u32| {
            let ns = within(row);
            *by_name.entry(events.name[row as usize]).or_default() += ns;
            let parent = events.parent[row as usize];
            if parent != NO_PARENT {
                // Time inside a child row is not self time of its parent.
                *by_name.entry(events.name[parent as usize]).or_default() -= within(parent).min(ns);
            }
        };
        let from = self.rows.partition_point(|row| events.ts_ns[*row as usize] < window.start_ns);
        let to = self.rows.partition_point(|row| events.ts_ns[*row as usize] < window.end_ns);
        self.rows[from..to].iter().for_each(|row| add(*row));
        // The last row before the window and the rows around it are the only earlier rows that can reach into the
        // window.
        let mut at = from.checked_sub(1).map(|before| self.rows[before]);
        while let Some(row) = at {
            if within(row) > 0 {
                add(row);
            }
            // A parent must have a smaller index, so that a damaged run cannot make this loop endless.
            at = Some(events.parent[row as usize]).filter(|parent| *parent < row);
        }
    }
}
