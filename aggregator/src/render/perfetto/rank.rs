//! One rank as packets: a process with a lane for its steps, each thread, stream and communicator, and its counters.

use rustc_hash::{FxHashMap, FxHashSet};
use trace::CollectiveRow;

use super::packets::{Annotation, Counts, Rank as RankId, Sequence, Track};
use super::{Job, Shared};
use crate::intervals::IntervalSet;
use crate::model::{Kind, NO_STEP, NONE, RankData};
use crate::render::perfetto::lanes::Lanes;
use crate::select::contains;
use crate::steps::host_windows;

/// What a lane's rows have in common. The order is that of the lanes on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Group {
    Thread(i64),
    Stream(i64, i64),
    Other,
}

/// Writes a rank. `scope` is the part of it that was asked for, in its clock.
pub(super) fn write(data: &RankData, scope: Option<&IntervalSet>, shared: &Shared<'_>, job: &Job) -> (Vec<u8>, Counts) {
    let rank = RankWriter { data, scope, shared, job, out: Sequence::new(RankId(data.info.rank)) };
    rank.write()
}

struct RankWriter<'a> {
    data: &'a RankData,
    scope: Option<&'a IntervalSet>,
    shared: &'a Shared<'a>,
    job: &'a Job,
    out: Sequence,
}

impl RankWriter<'_> {
    fn write(mut self) -> (Vec<u8>, Counts) {
        let info = &self.data.info;
        let mut name = format!("rank {}", info.rank);
        if !info.host.is_empty() {
            name.push_str(&format!(" ({})", info.host));
        }
        self.out.process(&name);
        self.steps();
        self.events();
        self.collectives();
        self.memory();
        self.queues();
        self.out.finish()
    }

    fn keeps(&self, t_ns: i64) -> bool {
        self.scope.is_none_or(|scope| contains(scope, t_ns))
    }

    /// Time in the trace of a time of the rank.
    fn time(&self, device: bool, t_ns: i64) -> i64 {
        self.shared.time(self.data.info.rank, device, t_ns)
    }

    fn steps(&mut self) {
        let mut steps = host_windows(&self.data.steps);
        steps.retain(|s| self.keeps(s.window.start_ns));
        if steps.is_empty() {
            return;
        }
        let track = self.out.track(Track::Steps, "steps");
        for step in steps {
            let (start, end) = (self.time(false, step.window.start_ns), self.time(false, step.window.end_ns));
            self.out.begin(track, start, "step", &format!("step {}", step.step), &[], &[]);
            self.out.end(track, end);
            self.out.counts.marks += 1;
        }
    }

    fn events(&mut self) {
        let flows = self.launch_flows();
        let mut lanes: FxHashMap<Group, Lanes> = FxHashMap::default();
        let events = &self.data.events;
        for row in 0..events.len() {
            if !self.keeps(events.ts_ns[row]) {
                continue;
            }
            let (group, device) = group(self.data, row);
            let (start, end) = (self.time(device, events.ts_ns[row]), self.time(device, events.end_ns(row)));
            let mut ended = Vec::new();
            let lane = lanes.entry(group).or_default().place(start, end, |lane, end| ended.push((lane, end)));
            for (lane, end) in ended {
                let track = self.lane(group, lane);
                self.out.end(track, end);
            }
            let track = self.lane(group, lane);
            let name = &self.data.names[events.name[row] as usize];
            let correlation = events.correlation[row];
            let flow: &[u64] = match flows.get(&correlation) {
                Some(flow) if is_launch(events.kind[row]) || events.kind[row].is_device_work() => &[*flow],
                _ => &[],
            };
            self.out.counts.flow_ends += flow.len() as u64;
            self.out.begin(track, start, category(events.kind[row]), name, &annotations(self.data, row), flow);
            self.out.counts.events += 1;
        }
        // Sorted, because the order of a hash map would make two exports of one run differ.
        let mut rest: Vec<(Group, Lanes)> = lanes.into_iter().collect();
        rest.sort_unstable_by_key(|(group, _)| *group);
        for (group, mut lanes) in rest {
            let mut ended = Vec::new();
            lanes.finish(|lane, end| ended.push((lane, end)));
            for (lane, end) in ended {
                let track = self.lane(group, lane);
                self.out.end(track, end);
            }
        }
    }

    fn lane(&mut self, group: Group, lane: usize) -> u64 {
        let more = if lane == 0 { String::new() } else { format!(" ({})", lane + 1) };
        match group {
            Group::Thread(id) => self.out.track(Track::Thread(id, lane), &format!("thread {id}{more}")),
            Group::Stream(device, stream) => {
                self.out.track(Track::Stream(device, stream, lane), &format!("device {device} stream {stream}{more}"))
            }
            Group::Other => self.out.track(Track::Other(lane), &format!("other{more}")),
        }
    }

    /// Arrows from launches to what they launched, by correlation id: only where both ends are drawn.
    fn launch_flows(&self) -> FxHashMap<i64, u64> {
        let events = &self.data.events;
        let drawn = |row: &usize| events.correlation[*row] != NONE && self.keeps(events.ts_ns[*row]);
        let rows = || (0..events.len()).filter(drawn);
        let launched: FxHashSet<i64> =
            rows().filter(|row| events.kind[*row].is_device_work()).map(|row| events.correlation[row]).collect();
        let launches = rows().filter(|row| is_launch(events.kind[*row])).map(|row| events.correlation[row]);
        let rank = self.data.info.rank;
        launches.filter(|id| launched.contains(id)).map(|id| (id, self.out.flow_of_launch(rank, id))).collect()
    }

    fn collectives(&mut self) {
        let mut lanes: FxHashMap<i64, Lanes> = FxHashMap::default();
        let rows: Vec<(usize, &CollectiveRow, i64)> = self
            .data
            .collectives
            .iter()
            .enumerate()
            .filter_map(|(index, row)| Some((index, row, row.start_ns?)))
            .filter(|(_, _, start_ns)| self.keeps(*start_ns))
            .collect();
        let mut ends: Vec<(u64, i64)> = Vec::new();
        for (index, row, start_ns) in rows {
            let on_device = row.device_id.is_some() && &*row.timing_source != "host";
            let start = self.time(on_device, start_ns);
            // One that never ended is drawn open.
            let end = row.end_ns.map_or(i64::MAX, |end_ns| self.time(on_device, end_ns));
            let lane = lanes.entry(row.comm_id).or_default().place(start, end, |_, _| ());
            let comm = row.comm_name.as_deref().map_or_else(|| format!("{:x}", row.comm_id), String::from);
            let more = if lane == 0 { String::new() } else { format!(" ({})", lane + 1) };
            let track = self.out.track(Track::Communicator(row.comm_id, lane), &format!("communicator {comm}{more}"));
            if let Some(at) = ends.iter().position(|(t, end)| *t == track && *end <= start) {
                let (track, end) = ends.swap_remove(at);
                self.out.end(track, end);
            }
            let instance = self.job.instance_of(self.data.info.rank, index);
            let flows: Vec<u64> = instance.map(|i| self.out.flow_of_instance(i.id)).into_iter().collect();
            self.out.counts.flow_ends += flows.len() as u64;
            let values = [
                ("instance", instance.map(|i| i.id)),
                ("seq", row.seq),
                ("bytes", row.bytes),
                ("step", row.step.map(i64::from)),
                ("bucket", row.bucket.map(i64::from)),
                ("wait_ns", instance.and_then(|i| i.wait_ns(start))),
            ];
            let known: Vec<Annotation<'_>> =
                values.into_iter().filter_map(|(name, value)| Some(Annotation { name, value: value? })).collect();
            self.out.begin(track, start, "collective", &row.op, &known, &flows);
            self.out.counts.collectives += 1;
            if row.end_ns.is_some() {
                ends.push((track, end));
            }
        }
        ends.sort_unstable();
        for (track, end) in ends {
            self.out.end(track, end);
        }
    }

    /// Bytes allocated, by device.
    fn memory(&mut self) {
        let data = self.data;
        for row in &data.memory {
            let Some(bytes) = row.allocated_bytes.filter(|_| self.keeps(row.ts_ns)) else { continue };
            let device = row.device_id.filter(|d| *d >= 0);
            let name = device.map_or_else(|| "host memory".to_string(), |d| format!("device {d} memory"));
            let track = self.out.counter(Track::Memory(device.unwrap_or(-1)), &name, "B");
            let at = self.shared.time(self.data.info.rank, false, row.ts_ns);
            self.out.count(track, at, bytes as f64);
        }
    }

    /// Kernels, copies and fills that were launched and have not begun, by stream.
    fn queues(&mut self) {
        let events = &self.data.events;
        let mut launched_ns: FxHashMap<i64, i64> = FxHashMap::default();
        for row in (0..events.len()).filter(|row| is_launch(events.kind[*row]) && events.correlation[*row] != NONE) {
            launched_ns.insert(events.correlation[row], events.ts_ns[row]);
        }
        let mut changes: Vec<((i64, i64), i64, i64)> = Vec::new();
        for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
            let Some(launch_ns) = launched_ns.get(&events.correlation[row]).copied() else { continue };
            if self.keeps(launch_ns) && self.keeps(events.ts_ns[row]) {
                let stream = (events.device[row], events.stream[row]);
                let began = self.time(true, events.ts_ns[row]);
                // A device's clock may say that a kernel began before it was launched; it did not wait then.
                let launched = self.time(false, launch_ns).min(began);
                changes.extend([(stream, launched, 1), (stream, began, -1)]);
            }
        }
        // Of what happens at once, launches come first: the length is never negative.
        changes.sort_unstable_by_key(|&(stream, at, change)| (stream, at, -change));
        for of_stream in changes.chunk_by(|a, b| a.0 == b.0) {
            let (device, stream) = of_stream[0].0;
            let name = format!("device {device} stream {stream} queue");
            let track = self.out.counter(Track::Queue(device, stream), &name, "");
            let mut length = 0;
            for &(_, at, change) in of_stream {
                length += change;
                self.out.count(track, at, length as f64);
            }
        }
    }
}

/// Where a row is drawn, and whether its times are a device's.
fn group(data: &RankData, row: usize) -> (Group, bool) {
    let events = &data.events;
    let device_kind =
        events.kind[row].is_device_work() || matches!(events.kind[row], Kind::GpuUserAnnotation | Kind::Sync);
    match (device_kind && events.device[row] != NONE, events.thread[row]) {
        (true, _) => (Group::Stream(events.device[row], events.stream[row].max(-1)), true),
        (false, NONE) => (Group::Other, device_kind),
        (false, thread) => (Group::Thread(thread), device_kind),
    }
}

fn is_launch(kind: Kind) -> bool {
    matches!(kind, Kind::Runtime | Kind::Driver)
}

fn annotations(data: &RankData, row: usize) -> Vec<Annotation<'static>> {
    let events = &data.events;
    let step = Some(i64::from(events.step[row])).filter(|_| events.step[row] != NO_STEP);
    let known = |value: i64| Some(value).filter(|v| *v != NONE);
    let values = [
        ("id", known(events.id[row])),
        ("step", step),
        ("bytes", known(events.bytes[row])),
        ("flops", known(events.flops[row])),
        ("correlation", known(events.correlation[row])),
        ("external_id", known(events.external[row])),
    ];
    values.into_iter().filter_map(|(name, value)| Some(Annotation { name, value: value? })).collect()
}

/// Kineto's word for a kind of row.
fn category(kind: Kind) -> &'static str {
    match kind {
        Kind::CpuOp => "cpu_op",
        Kind::UserAnnotation => "user_annotation",
        Kind::PythonFunction => "python_function",
        Kind::Runtime => "cuda_runtime",
        Kind::Driver => "cuda_driver",
        Kind::Kernel => "kernel",
        Kind::GpuMemcpy => "gpu_memcpy",
        Kind::GpuMemset => "gpu_memset",
        Kind::GpuUserAnnotation => "gpu_user_annotation",
        Kind::Sync => "cuda_sync",
        Kind::Overhead => "overhead",
        Kind::Other => "other",
    }
}
