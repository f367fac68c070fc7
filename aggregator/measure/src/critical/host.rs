//! The host threads of a rank: their rows, their pauses, and the work that they waited for.

use rustc_hash::FxHashMap;
use trace::name_rules::is_data_loader;

use crate::critical::device::Device;
use crate::critical::waits::{Wait, waits};
use model::intervals::{Coverage, Interval, IntervalSet};
use model::{Collective, Kind, NO_PARENT, NONE, RankData};

/// A shorter pause of a thread does not count as a wait for another thread.
const MIN_PAUSE_NS: i64 = 50_000;
/// Up to so many threads, each is asked for the work that it ended in a pause.
const FEW_THREADS: usize = 64;

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
    /// The user's annotations on all threads.
    annotations: Vec<u32>,
    /// With more than [`FEW_THREADS`], the ends of their busy intervals with the thread, ascending.
    ends: Option<Vec<(i64, usize)>>,
    /// The host collectives, ordered by end.
    collectives: Vec<Interval>,
}

impl Host {
    pub(super) fn of(data: &RankData, device: &Device<'_>) -> Self {
        let events = &data.events;
        let mut rows: FxHashMap<i64, Vec<u32>> = FxHashMap::default();
        let mut annotations = Vec::new();
        for row in 0..events.len() {
            let is_host = matches!(
                events.kind[row],
                Kind::CpuOp | Kind::UserAnnotation | Kind::PythonFunction | Kind::Runtime | Kind::Driver
            );
            if is_host && events.thread[row] != NONE {
                rows.entry(events.thread[row]).or_default().push(row as u32);
                if events.kind[row] == Kind::UserAnnotation {
                    annotations.push(row as u32);
                }
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
        let interval = |c: &Collective| Some(Interval::new(c.start_ns().or(c.enqueue_ns())?, c.end_ns()?));
        let mut collectives: Vec<Interval> = on_host.filter_map(interval).collect();
        collectives.sort_unstable_by_key(|c| (c.end_ns, c.start_ns));
        let ends = (threads.len() > FEW_THREADS).then(|| ends(&threads));
        Self { threads, annotations, ends, collectives }
    }

    /// The main thread of each step: the thread with the annotation that marks the step, or else the busiest thread. The
    /// windows of the steps ascend and do not overlap.
    pub(super) fn main_threads(&self, data: &RankData, windows: &[Interval]) -> Vec<Option<usize>> {
        let marked = self.marked(data);
        let mut main: Vec<Option<usize>> = windows.iter().map(|window| marked.get(&window.start_ns).copied()).collect();
        let unmarked: Vec<Interval> =
            windows.iter().zip(&main).filter(|(_, thread)| thread.is_none()).map(|(window, _)| *window).collect();
        let mut busiest = self.busiest(&unmarked).into_iter();
        main.iter_mut().filter(|thread| thread.is_none()).for_each(|thread| *thread = busiest.next());
        main
    }

    /// For the starts of annotations, the first thread on which one is the first row at that time.
    fn marked(&self, data: &RankData) -> FxHashMap<i64, usize> {
        let events = &data.events;
        let mut marked = FxHashMap::default();
        for row in &self.annotations {
            let Some(at) = self.thread_of(data, *row) else { continue };
            let (rows, ts_ns) = (&self.threads[at].rows, events.ts_ns[*row as usize]);
            if rows.get(rows.partition_point(|row| events.ts_ns[*row as usize] < ts_ns)) == Some(row) {
                let first = marked.entry(ts_ns).or_insert(at);
                *first = at.min(*first);
            }
        }
        marked
    }

    /// The thread with the most time in operators in each window; of equals, the last one. Empty without threads.
    fn busiest(&self, windows: &[Interval]) -> Vec<usize> {
        let Some(last) = self.threads.len().checked_sub(1) else { return Vec::new() };
        let mut most: Vec<(i64, usize)> = vec![(0, last); windows.len()];
        // From each window, the next one that no thread fills yet. The last of the threads that fill a window is its busiest.
        let mut next: Vec<usize> = (0..=windows.len()).collect();
        for (at, thread) in self.threads.iter().enumerate().rev() {
            let mut count = |window: usize| {
                let ns = thread.in_operator.within_ns(windows[window]);
                most[window] = most[window].max((ns, at));
            };
            let busy = thread.in_operator.set().intervals();
            if busy.len() >= windows.len() {
                (0..windows.len()).for_each(&mut count);
                continue;
            }
            // Only the first and the last window of an interval can be filled in part.
            for interval in busy {
                let from = windows.partition_point(|window| window.end_ns <= interval.start_ns);
                let to = windows.partition_point(|window| window.start_ns < interval.end_ns);
                let (Some(end), true) = (to.checked_sub(1), from < to) else { continue };
                count(from);
                count(end);
                let mut window = unfilled(&mut next, from + 1);
                while window < end {
                    count(window);
                    next[window] = window + 1;
                    window = unfilled(&mut next, window);
                }
            }
        }
        most.into_iter().map(|(_, at)| at).collect()
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
        let ended = |ends: &Vec<(i64, usize)>| {
            let from = ends.partition_point(|(end, _)| *end <= pause.start_ns);
            from..ends.partition_point(|(end, _)| *end <= pause.end_ns).max(from)
        };
        // The pauses of a walk do not overlap, so the walk passes each end about once.
        let other = match self.ends.as_ref().map(|ends| &ends[ended(ends)]) {
            Some(ends) if ends.len() < self.threads.len() => {
                let mut others = ends.iter().rev().filter(|(_, at)| *at != thread);
                others.find_map(|(end, at)| end_on_thread(*at).filter(|(last, _)| last == end))
            }
            _ => {
                let others = (0..self.threads.len()).filter(|at| *at != thread);
                others.filter_map(end_on_thread).max_by_key(|(end, _)| *end)
            }
        };
        let before = self.collectives.partition_point(|c| c.end_ns <= pause.end_ns);
        let collective = before.checked_sub(1).map(|at| self.collectives[at]).filter(|c| {
            let waited = Interval::new(c.start_ns, c.end_ns).intersection(pause);
            c.end_ns > pause.start_ns && fills_half(waited.len_ns())
        });
        let collective = collective.map(|c| (c.end_ns, Release::Collective(c.start_ns)));
        // If a collective and a thread end together, the collective counts: the thread drives the collective.
        other
            .into_iter()
            .chain(collective)
            .max_by_key(|(end, release)| (*end, matches!(release, Release::Collective(_))))
    }
}

fn ends(threads: &[Thread]) -> Vec<(i64, usize)> {
    let of_thread = |(at, thread): (usize, &Thread)| -> Vec<(i64, usize)> {
        thread.busy.intervals().iter().map(|interval| (interval.end_ns, at)).collect()
    };
    let mut ends: Vec<(i64, usize)> = threads.iter().enumerate().flat_map(of_thread).collect();
    ends.sort_unstable();
    ends
}

/// The first entry from `at` that points to itself. The entries on the way then point to it.
fn unfilled(next: &mut [usize], at: usize) -> usize {
    let mut end = at;
    while next[end] != end {
        end = next[end];
    }
    let mut at = at;
    while next[at] != at {
        at = std::mem::replace(&mut next[at], end);
    }
    end
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::rank::Launches;

    use super::*;
    use drawn::Drawn;

    /// The rows of some threads in columns of half of the least pause; the first has annotations too.
    fn ranks() -> impl Strategy<Value = RankData> {
        let line = || prop::collection::vec(prop::sample::select(&['#', '#', '.', '.', '.'][..]), 40);
        (prop::collection::vec(line(), 1..6), line(), 0..6_i64).prop_map(|(lines, annotated, thread)| {
            let text = |line: Vec<char>| line.into_iter().collect::<String>();
            let mut drawn = Drawn::rank(0).host(Kind::UserAnnotation, "step", thread, &text(annotated));
            for (thread, line) in (0..).zip(lines) {
                drawn = drawn.host(Kind::CpuOp, "op", thread, &text(line));
            }
            let mut data = drawn.data();
            data.events.ts_ns.iter_mut().chain(&mut data.events.dur_ns).for_each(|t| *t *= MIN_PAUSE_NS / 2);
            data
        })
    }

    fn host(data: &RankData) -> Host {
        Host::of(data, &Device::of(data, &Launches::default()))
    }

    /// From the definition, for one window.
    fn main_thread(host: &Host, data: &RankData, window: Interval) -> Option<usize> {
        let events = &data.events;
        let marks = |thread: &Thread| {
            let first = thread.rows.iter().find(|row| events.ts_ns[**row as usize] >= window.start_ns);
            first.is_some_and(|row| {
                let row = *row as usize;
                events.ts_ns[row] == window.start_ns && events.kind[row] == Kind::UserAnnotation
            })
        };
        let busiest = || (0..host.threads.len()).max_by_key(|at| host.threads[*at].in_operator.within_ns(window));
        host.threads.iter().position(marks).or_else(busiest)
    }

    proptest! {
        #[test]
        fn the_main_thread_of_each_window_is_marked_or_the_busiest(
            data in ranks(),
            cuts in prop::collection::btree_set(0..80_i64, 2..40),
        ) {
            let cuts: Vec<i64> = cuts.into_iter().map(|at| at * MIN_PAUSE_NS / 4).collect();
            let windows: Vec<Interval> = cuts.windows(2).map(|cut| Interval::new(cut[0], cut[1])).collect();
            let host = host(&data);
            let expected: Vec<Option<usize>> = windows.iter().map(|w| main_thread(&host, &data, *w)).collect();
            prop_assert_eq!(host.main_threads(&data, &windows), expected);
        }

        #[test]
        fn the_ends_of_all_threads_tell_what_each_thread_tells(data in ranks(), from in 0..40_i64, length in 2..30_i64) {
            let mut host = host(&data);
            let pause = Interval::new(from * MIN_PAUSE_NS / 2, (from + length) * MIN_PAUSE_NS / 2);
            let by_threads: Vec<_> = (0..host.threads.len()).map(|at| host.last_end(at, pause)).collect();
            host.ends = Some(ends(&host.threads));
            prop_assert_eq!((0..host.threads.len()).map(|at| host.last_end(at, pause)).collect::<Vec<_>>(), by_threads);
        }
    }
}
