//! Writes one rank as packets: a process with tracks for its steps, threads, streams and communicators, and counters.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::rank::Details;
use trace::{FlowKind, Text, TimingSource};

use crate::perfetto::annotations::{Annotations, Annotator};
use crate::perfetto::job::{Job, JobInstance, RankTimes, Shared};
use crate::perfetto::lanes::Lanes;
use crate::perfetto::packets::{Annotation, Category, Counts, Name, Rank as RankId, Sequence, Slice, Track, Value};
use model::in_order::{Closed, Sink};
use model::scope::Scope;
use model::steps::host_windows;
use model::{Collective, Kind, NONE, RankData};

/// Kinds of rows.
const KINDS: usize = Kind::Other as usize + 1;

/// The common property of the rows on a track. Tracks are drawn in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Group {
    Thread(i64),
    Stream(i64, i64),
    Other,
}

/// The end of a collective that did not end.
const OPEN: i64 = i64::MAX;

/// Number of bytes that are written at once, small enough for the allocator to reuse the memory.
const PIECE_BYTES: usize = 1 << 16;

/// Writes a rank. `scope` is the selected part, in the rank's clock.
pub(super) fn write(
    (data, details): (&RankData, &Details),
    scope: &Scope,
    shared: &Shared<'_>,
    job: &Job,
    sink: &mut Sink<'_>,
) -> Counts {
    let rank = data.outline.info.rank;
    let out = Sequence::new(RankId(rank));
    let mut writer = RankWriter { data, details, scope, times: shared.of_rank(rank), job, out, sink };
    // A closed sink ends the export.
    let _ = writer.write();
    writer.out.counts
}

struct RankWriter<'a, 's> {
    data: &'a RankData,
    details: &'a Details,
    scope: &'a Scope,
    times: RankTimes,
    job: &'a Job,
    out: Sequence,
    sink: &'a mut Sink<'s>,
}

impl<'a> RankWriter<'a, '_> {
    fn write(&mut self) -> Result<(), Closed> {
        let info = &self.data.outline.info;
        let mut name = format!("rank {}", info.rank);
        let pid = (info.pid > 0).then(|| format!("pid {}", info.pid));
        let place: Vec<String> =
            Some(info.host.clone()).filter(|host| !host.is_empty()).into_iter().chain(pid).collect();
        if !place.is_empty() {
            name.push_str(&format!(" ({})", place.join(", ")));
        }
        self.out.process(&name);
        self.steps()?;
        self.events()?;
        self.collectives()?;
        self.memory()?;
        self.metrics()?;
        self.queues()?;
        self.hand_on(0)
    }

    /// Passes the buffered packets on if they have at least `bytes` bytes.
    fn hand_on(&mut self, bytes: usize) -> Result<(), Closed> {
        self.out.piece_of(bytes).map_or(Ok(()), |piece| self.sink.push(piece))
    }

    fn keeps(&self, row: usize) -> bool {
        self.scope.keeps_row(&self.data.events, row)
    }

    fn steps(&mut self) -> Result<(), Closed> {
        // Steps and collectives are narrowed to the selection already.
        let steps = host_windows(&self.data.outline.steps);
        if steps.is_empty() {
            return Ok(());
        }
        let track = self.out.track(Track::Steps, "steps");
        let category = self.out.category("step");
        for step in steps {
            let (start, end) =
                (self.times.time(false, step.window.start_ns), self.times.time(false, step.window.end_ns));
            let name = self.out.name(&format!("step {}", step.step));
            self.out.begin(&Slice { track, at_ns: start, category, name, annotations: &[], flows: &[] });
            self.out.end(track, end);
            self.out.counts.marks += 1;
            self.hand_on(PIECE_BYTES)?;
        }
        Ok(())
    }

    fn events(&mut self) -> Result<(), Closed> {
        let (launches, backwards) = (self.launch_flows(), self.backward_flows());
        let mut annotator = Annotator::of(self.data, self.details);
        let (mut annotations, mut flows) = (Annotations::new(), Vec::new());
        let mut groups: FxHashMap<Group, usize> = FxHashMap::default();
        let mut lines: Vec<Lines> = Vec::new();
        // Rows come in bursts of one thread, so the map is searched only if the thread changes.
        let mut current: Option<(Group, usize)> = None;
        let mut strings = Strings { names: vec![None; self.data.names.len()], categories: [None; KINDS] };
        let mut ended = Vec::new();
        let events = &self.data.events;
        for row in 0..events.len() {
            if !self.keeps(row) {
                continue;
            }
            let (group, device) = group(self.data, row);
            let at = match current {
                Some((last, at)) if last == group => at,
                _ => *groups.entry(group).or_insert_with(|| {
                    lines.push(Lines { group, lanes: Lanes::default(), tracks: Vec::new() });
                    lines.len() - 1
                }),
            };
            current = Some((group, at));
            let lines = &mut lines[at];
            let (start, end) =
                (self.times.time(device, events.ts_ns[row]), self.times.time(device, events.end_ns(row)));
            let lane = lines.lanes.place(start, end, |lane, end| ended.push((lane, end)));
            for (lane, end) in ended.drain(..) {
                let track = lines.track(lane, &mut self.out);
                self.out.end(track, end);
            }
            let kind = events.kind[row];
            let may_flow = events.correlation[row] != NONE && (is_launch(kind) || kind.is_device_work());
            flows.clear();
            flows.extend(launches.get(&events.correlation[row]).filter(|_| may_flow));
            flows.extend(backwards.get(&events.id[row]).into_iter().flatten());
            self.out.counts.flow_ends += flows.len() as u64;
            annotator.fill(row, &mut annotations, &mut self.out);
            let slice = Slice {
                track: lines.track(lane, &mut self.out),
                at_ns: start,
                category: strings.category(kind, &mut self.out),
                name: strings.name(&self.data.names, events.name[row], &mut self.out),
                annotations: &annotations,
                flows: &flows,
            };
            self.out.begin(&slice);
            self.out.counts.events += 1;
            self.hand_on(PIECE_BYTES)?;
        }
        lines.sort_unstable_by_key(|lines| lines.group);
        for mut lines in lines {
            lines.lanes.finish(|lane, end| ended.push((lane, end)));
            for (lane, end) in ended.drain(..) {
                let track = lines.track(lane, &mut self.out);
                self.out.end(track, end);
            }
        }
        Ok(())
    }

    /// Arrows from launches to launched work by correlation id, if both ends are drawn.
    fn launch_flows(&self) -> FxHashMap<i64, u64> {
        let events = &self.data.events;
        let drawn = |row: &usize| events.correlation[*row] != NONE && self.keeps(*row);
        let rows = || (0..events.len()).filter(drawn);
        let launched: FxHashSet<i64> =
            rows().filter(|row| events.kind[*row].is_device_work()).map(|row| events.correlation[row]).collect();
        let launches = rows().filter(|row| is_launch(events.kind[*row])).map(|row| events.correlation[row]);
        let rank = self.data.outline.info.rank;
        launches.filter(|id| launched.contains(id)).map(|id| (id, self.out.flow_of_launch(rank, id))).collect()
    }

    /// Arrows from forward operators to their backward operators, by the id of the row, if both ends are drawn.
    fn backward_flows(&self) -> FxHashMap<i64, Vec<u64>> {
        let mut by_row: FxHashMap<i64, Vec<u64>> = FxHashMap::default();
        let flows: Vec<_> = self.data.flows.iter().filter(|flow| flow.kind == FlowKind::Fwdbwd).collect();
        if flows.is_empty() {
            return by_row;
        }
        let events = &self.data.events;
        let drawn: FxHashSet<i64> =
            (0..events.len()).filter(|row| self.keeps(*row)).map(|row| events.id[row]).collect();
        let rank = self.data.outline.info.rank;
        for flow in flows.into_iter().filter(|flow| drawn.contains(&flow.src_id) && drawn.contains(&flow.dst_id)) {
            let arrow = self.out.flow_of_backward(rank, flow.id);
            by_row.entry(flow.src_id).or_default().push(arrow);
            by_row.entry(flow.dst_id).or_default().push(arrow);
        }
        by_row
    }

    fn collectives(&mut self) -> Result<(), Closed> {
        let mut communicators: BTreeMap<i64, (Lanes, Vec<u64>)> = BTreeMap::new();
        let mut ended: Vec<i64> = Vec::new();
        for bar in self.bars() {
            let row = bar.row;
            let (lanes, tracks) = communicators.entry(row.comm_id).or_default();
            let lane = lanes.place(bar.start_ns, bar.end_ns, |_, end| ended.push(end));
            let comm = row.comm_name.as_deref().map_or_else(|| format!("{:x}", row.comm_id), String::from);
            let more = if lane == 0 { String::new() } else { format!(" ({})", lane + 1) };
            let track = self.out.track(Track::Communicator(row.comm_id, lane), &format!("communicator {comm}{more}"));
            if lane == tracks.len() {
                tracks.push(track);
            }
            ended.drain(..).for_each(|end| self.out.end(track, end));
            self.begin(&bar, track);
            self.hand_on(PIECE_BYTES)?;
        }
        let mut ends: Vec<(u64, i64)> = Vec::new();
        for (mut lanes, tracks) in communicators.into_values() {
            lanes.finish(|lane, end| ends.push((tracks[lane], end)));
        }
        ends.retain(|(_, end)| *end != OPEN);
        ends.sort_unstable();
        for (track, end) in ends {
            self.out.end(track, end);
        }
        Ok(())
    }

    /// The collectives, each before its wait and its transfer, by start.
    fn bars(&self) -> Vec<Bar<'a>> {
        let (data, job): (&'a RankData, &'a Job) = (self.data, self.job);
        let mut bars = Vec::new();
        for (index, row) in data.outline.collectives.iter().enumerate() {
            let Some(start_ns) = row.start_ns() else { continue };
            let on_device = row.device_id.is_some() && row.timing_source != TimingSource::Host;
            let start_ns = self.times.time(on_device, start_ns);
            // A collective that did not end is drawn open.
            let end_ns = row.end_ns().map_or(OPEN, |end_ns| self.times.time(on_device, end_ns));
            let instance = job.instance_of(data.outline.info.rank, index);
            let bar = Bar { row, instance, part: Part::Whole, start_ns, end_ns };
            bars.push(bar);
            if let Some((last_ns, rank)) = instance.and_then(|instance| instance.last).filter(|_| end_ns != OPEN) {
                let middle_ns = last_ns.clamp(start_ns, end_ns);
                let parts = [(Part::Wait(rank), start_ns, middle_ns), (Part::Transfer, middle_ns, end_ns)];
                let parts = parts.into_iter().filter(|(_, start_ns, end_ns)| start_ns < end_ns);
                bars.extend(parts.map(|(part, start_ns, end_ns)| Bar { part, start_ns, end_ns, ..bar }));
            }
        }
        // The sort is stable: a collective stays before a part that is as long.
        bars.sort_by_key(|bar| (bar.start_ns, Reverse(bar.end_ns)));
        bars
    }

    /// Begins the slice of a bar.
    fn begin(&mut self, bar: &Bar<'_>, track: u64) {
        let Bar { row, instance, start_ns, .. } = *bar;
        let (category, name) = match bar.part {
            Part::Whole => ("collective", self.out.name(&row.op)),
            Part::Wait(rank) => ("wait", self.out.name(&format!("wait for rank {rank}"))),
            Part::Transfer => ("move", self.out.name("transfer")),
        };
        let category = self.out.category(category);
        let mut slice = Slice { track, at_ns: start_ns, category, name, annotations: &[], flows: &[] };
        if !matches!(bar.part, Part::Whole) {
            self.out.begin(&slice);
            return;
        }
        let flow = instance.map(|i| self.out.flow_of_instance(i.id));
        let last_rank = instance.and_then(|i| i.last).map(|(_, rank)| i64::from(rank));
        let annotations = [
            (Annotation::Instance, instance.map(|i| i.id)),
            (Annotation::Seq, row.seq()),
            (Annotation::Bytes, row.bytes),
            (Annotation::Step, row.step().map(i64::from)),
            (Annotation::Bucket, row.bucket().map(i64::from)),
            (Annotation::WaitNs, instance.and_then(|i| i.wait_ns(start_ns))),
            (Annotation::LastRank, last_rank),
        ]
        .map(|(annotation, number)| (annotation, number.map(Value::Number)));
        (slice.annotations, slice.flows) = (&annotations, flow.as_slice());
        self.out.begin(&slice);
        self.out.counts.flow_ends += u64::from(flow.is_some());
        self.out.counts.collectives += 1;
    }

    /// Writes the allocated bytes by device.
    fn memory(&mut self) -> Result<(), Closed> {
        let data = self.data;
        for row in &data.memory {
            let Some(bytes) =
                row.allocated_bytes.filter(|_| self.scope.keeps_host_time(&data.outline.steps, row.ts_ns))
            else {
                continue;
            };
            let device = row.device_id.filter(|d| *d >= 0);
            let name = device.map_or_else(|| "host memory".to_string(), |d| format!("device {d} memory"));
            let track = self.out.counter(Track::Memory(device.unwrap_or(-1)), &name, "B");
            self.out.count(track, self.times.time(false, row.ts_ns), bytes as f64);
            self.hand_on(PIECE_BYTES)?;
        }
        Ok(())
    }

    /// Writes the samples of hardware metrics.
    fn metrics(&mut self) -> Result<(), Closed> {
        let data = self.data;
        for sample in &data.metric_samples {
            if !self.scope.keeps_host_time(&data.outline.steps, sample.ts_ns) {
                continue;
            }
            let Some(metric) = data.metrics.get(sample.metric as usize) else { continue };
            let name = format!("device {} {}", metric.device_id, metric.name);
            let track = self.out.counter(Track::Metric(sample.metric), &name, "");
            self.out.count(track, self.times.time(false, sample.ts_ns), sample.value as f64);
            self.hand_on(PIECE_BYTES)?;
        }
        Ok(())
    }

    /// Writes the number of launched kernels, copies and fills that have not begun, by stream.
    fn queues(&mut self) -> Result<(), Closed> {
        let events = &self.data.events;
        let mut launched: FxHashMap<i64, usize> = FxHashMap::default();
        for row in (0..events.len()).filter(|row| is_launch(events.kind[*row]) && events.correlation[*row] != NONE) {
            launched.insert(events.correlation[row], row);
        }
        let mut changes: Vec<((i64, i64), i64, i64)> = Vec::new();
        for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
            let Some(launch) = launched.get(&events.correlation[row]).copied() else { continue };
            if self.keeps(launch) && self.keeps(row) {
                let stream = (events.device[row], events.stream[row]);
                let began = self.times.time(true, events.ts_ns[row]);
                // With clock errors, a kernel may seem to begin before its launch. It did not wait then.
                let launched = self.times.time(false, events.ts_ns[launch]).min(began);
                changes.extend([(stream, launched, 1), (stream, began, -1)]);
            }
        }
        // At equal times, launches come first, so that the length is never negative.
        changes.sort_unstable_by_key(|&(stream, at, change)| (stream, at, -change));
        for of_stream in changes.chunk_by(|a, b| a.0 == b.0) {
            let (device, stream) = of_stream[0].0;
            let name = format!("device {device} stream {stream} queue");
            let track = self.out.counter(Track::Queue(device, stream), &name, "");
            let mut length = 0;
            for &(_, at, change) in of_stream {
                length += change;
                self.out.count(track, at, length as f64);
                self.hand_on(PIECE_BYTES)?;
            }
        }
        Ok(())
    }
}

/// A collective, or a part of it.
#[derive(Clone, Copy)]
struct Bar<'a> {
    row: &'a Collective,
    instance: Option<&'a JobInstance>,
    part: Part,
    /// In the time of the trace.
    start_ns: i64,
    end_ns: i64,
}

#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// Until the last rank arrives, which is this one.
    Wait(i32),
    /// After the last arrival.
    Transfer,
}

/// The tracks of a thread or stream.
struct Lines {
    group: Group,
    lanes: Lanes,
    /// Ids of the tracks that exist so far.
    tracks: Vec<u64>,
}

impl Lines {
    /// Returns the track of a lane. New lanes come in order, so all earlier lanes have tracks.
    fn track(&mut self, lane: usize, out: &mut Sequence) -> u64 {
        while self.tracks.len() <= lane {
            let at = self.tracks.len();
            let more = if at == 0 { String::new() } else { format!(" ({})", at + 1) };
            self.tracks.push(match self.group {
                Group::Thread(id) => out.track(Track::Thread(id, at), &format!("thread {id}{more}")),
                Group::Stream(device, stream) => {
                    out.track(Track::Stream(device, stream, at), &format!("device {device} stream {stream}{more}"))
                }
                Group::Other => out.track(Track::Other(at), &format!("other{more}")),
            });
        }
        self.tracks[lane]
    }
}

/// Interned names and categories by the numbers that rows use for them.
struct Strings {
    names: Vec<Option<Name>>,
    categories: [Option<Category>; KINDS],
}

impl Strings {
    fn name(&mut self, names: &[Text], id: u32, out: &mut Sequence) -> Name {
        *self.names[id as usize].get_or_insert_with(|| out.name(&names[id as usize]))
    }

    fn category(&mut self, kind: Kind, out: &mut Sequence) -> Category {
        *self.categories[kind as usize].get_or_insert_with(|| out.category(category(kind)))
    }
}

/// The track group of a row, and whether its times are device times.
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
