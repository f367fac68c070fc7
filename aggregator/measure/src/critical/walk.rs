//! The walk back from the end of a step to its start.

use rustc_hash::FxHashMap;

use crate::critical::device::{Cause, Device, MAX_KERNEL_GAP_NS};
use crate::critical::host::{Host, Release};
use model::intervals::Interval;
use model::{Kind, RankData};

/// The time on a path by kind, in nanoseconds. The parts sum to the window, except `host_gap`, which is part of `cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) cpu: i64,
    /// The part of `cpu` outside of any operator.
    pub(crate) host_gap: i64,
    pub(crate) data_loading: i64,
    pub(crate) gpu_compute: i64,
    pub(crate) gpu_memory: i64,
    pub(crate) communication: i64,
    pub(crate) launch: i64,
    pub(crate) kernel_gap: i64,
    pub(crate) other: i64,
}

impl Parts {
    /// The kind of work that the path is bound by: the largest part.
    pub(super) fn bound_by(&self) -> &'static str {
        let parts = [
            ("cpu", self.cpu),
            ("data_loading", self.data_loading),
            ("gpu", self.gpu_compute + self.gpu_memory + self.kernel_gap),
            ("communication", self.communication),
            ("launch", self.launch),
            ("other", self.other),
        ];
        // Of equal parts, the first one counts.
        parts.iter().rev().max_by_key(|(_, ns)| *ns).map_or("other", |(word, _)| word)
    }
}

/// The place of the path at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On this host thread.
    Host(usize),
    /// In this device row.
    Device(u32),
    /// In time without recorded work.
    Nowhere,
}

/// The sums over a path, filled by one walk.
pub(super) struct Walk<'a> {
    data: &'a RankData,
    host: &'a Host,
    device: &'a Device<'a>,
    /// The start of the step, where the walk ends.
    start_ns: i64,
    pub(super) parts: Parts,
    pub(super) by_name: FxHashMap<u32, i64>,
    pub(super) device_rows: i64,
    pub(super) inferred_waits: i64,
}

impl<'a> Walk<'a> {
    /// Walks over the window of a step whose main thread is at this position.
    pub(super) fn over(
        data: &'a RankData,
        host: &'a Host,
        device: &'a Device<'a>,
        (window, main_thread): (Interval, Option<usize>),
    ) -> Self {
        let mut walk = Self {
            data,
            host,
            device,
            start_ns: window.start_ns,
            parts: Parts::default(),
            by_name: FxHashMap::default(),
            device_rows: 0,
            inferred_waits: 0,
        };
        let mut t = window.end_ns;
        let mut place = walk.last_place(window, main_thread);
        // Each turn goes back in time, or from a device row to its cause. The limit guards against damaged rows.
        let mut turns = 4 * data.events.len() + 64;
        while t > window.start_ns {
            let (next_place, next) = match place {
                Place::Host(thread) if turns > 0 => walk.on_host(thread, t),
                Place::Device(row) if turns > 0 => walk.on_device(row, t),
                _ => {
                    walk.parts.other += t - window.start_ns;
                    (Place::Nowhere, window.start_ns)
                }
            };
            turns = turns.saturating_sub(1);
            (place, t) = (next_place, next.min(t));
        }
        walk
    }

    /// The place at the end of the step: the last device work if it ended last, or else the main thread.
    fn last_place(&self, window: Interval, main_thread: Option<usize>) -> Place {
        let main = main_thread.map_or(Place::Nowhere, Place::Host);
        let last = self.device.ended(window.end_ns - 1, window.end_ns).next();
        last.map_or(main, Place::Device)
    }

    /// The part of `from` to `t` that lies in the step.
    fn span(&self, from: i64, t: i64) -> Interval {
        Interval::new(from.max(self.start_ns).min(t), t)
    }

    fn add_host(&mut self, thread: usize, from: i64, t: i64) {
        let span = self.span(from, t);
        if span.is_empty() {
            return;
        }
        let thread = &self.host.threads[thread];
        let stretch = thread.stretch(span);
        self.parts.data_loading += stretch.data_loading;
        self.parts.communication += stretch.communication;
        self.parts.host_gap += stretch.gap;
        self.parts.cpu += span.len_ns() - stretch.data_loading - stretch.communication;
        thread.add_names(self.data, span, &mut self.by_name);
    }

    /// Goes back along a thread to the work that it waited for last.
    fn on_host(&mut self, thread: usize, t: i64) -> (Place, i64) {
        let waits = &self.host.threads[thread].waits;
        let wait = waits.partition_point(|w| w.end_ns <= t).checked_sub(1).map(|at| waits[at]);
        let wait = wait.filter(|w| self.data.events.end_ns(w.row as usize) > self.start_ns);
        let after = wait.map_or(self.start_ns, |w| w.end_ns.max(self.start_ns));
        if let Some((end, release)) = self.host.release(thread, after, t) {
            self.add_host(thread, end, t);
            return match release {
                Release::Thread(other) => (Place::Host(other), end),
                Release::Collective(start) => {
                    let span = self.span(start.min(end), end);
                    self.parts.communication += span.len_ns();
                    (Place::Host(thread), span.start_ns)
                }
            };
        }
        let Some(wait) = wait else {
            self.add_host(thread, self.start_ns, t);
            return (Place::Nowhere, self.start_ns);
        };
        let until = self.data.events.end_ns(wait.row as usize).min(wait.end_ns);
        self.add_host(thread, until, t);
        self.inferred_waits += i64::from(wait.inferred);
        (Place::Device(wait.row), until)
    }

    /// Goes back over a device row to the cause that kept it from starting earlier.
    fn on_device(&mut self, row: u32, t: i64) -> (Place, i64) {
        let events = &self.data.events;
        let at = row as usize;
        let span = self.span(events.ts_ns[at], t);
        self.device_rows += 1;
        *self.by_name.entry(events.name[at]).or_default() += span.len_ns();
        let part = match events.kind[at] {
            _ if events.is_comm[at] => &mut self.parts.communication,
            Kind::GpuMemcpy | Kind::GpuMemset => &mut self.parts.gpu_memory,
            _ => &mut self.parts.gpu_compute,
        };
        *part += span.len_ns();
        let t = span.start_ns;
        match self.device.cause(self.data, row) {
            Cause::Launch(launch) => {
                let from = events.ts_ns[launch as usize].min(t);
                self.parts.launch += self.span(from, t).len_ns();
                let place = self.host.thread_of(self.data, launch).map_or(Place::Nowhere, Place::Host);
                (place, from)
            }
            Cause::Row(other) => {
                let end = events.end_ns(other as usize).min(t);
                let gap = self.span(end, t).len_ns();
                let part = if gap > MAX_KERNEL_GAP_NS { &mut self.parts.other } else { &mut self.parts.kernel_gap };
                *part += gap;
                (Place::Device(other), end)
            }
            Cause::Unknown => (Place::Nowhere, t),
        }
    }
}
