//! Writes one rank as packets: a process with tracks for its steps, threads, streams and communicators, and counters.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use trace::{Text, TimingSource};

use crate::base::in_order::{Closed, Sink};
use crate::model::scope::Scope;
use crate::model::steps::host_windows;
use crate::model::{Collective, Kind, NO_STEP, NONE, RankData};
use crate::render::perfetto::lanes::Lanes;
use crate::render::perfetto::packets::{Annotation, Category, Counts, Name, Rank as RankId, Sequence, Slice, Track};
use crate::render::perfetto::{Job, RankTimes, Shared};

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
pub(super) fn write(data: &RankData, scope: &Scope, shared: &Shared<'_>, job: &Job, sink: &mut Sink<'_>) -> Counts {
    let rank = data.outline.info.rank;
    let out = Sequence::new(RankId(rank));
    let mut writer = RankWriter { data, scope, times: shared.of_rank(rank), job, out, sink };
    // A closed sink ends the export.
    let _ = writer.write();
    writer.out.counts
}

struct RankWriter<'a, 's> {
    data: &'a RankData,
    scope: &'a Scope,
    times: RankTimes,
    job: &'a Job,
    out: Sequence,
    sink: &'a mut Sink<'s>,
}

impl RankWriter<'_, '_> {
    fn write(&mut self) -> Result<(), Closed> {
        let info = &self.data.outline.info;
        let mut name = format!("rank {}", info.rank);
        if !info.host.is_empty() {
            name.push_str(&format!(" ({})", info.host));
        }
        self.out.process(&name);
        self.steps()?;
        self.events()?;
        self.collectives()?;
        self.memory()?;
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
            self.out.begin(&Slice { track, at_ns: start, category, name, annotations: &[], flow: None });
            self.out.end(track, end);
            self.out.counts.marks += 1;
            self.hand_on(PIECE_BYTES)?;
        }
        Ok(())
    }

    fn events(&mut self) -> Result<(), Closed> {
        let flows = self.launch_flows();
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
            let flow = flows.get(&events.correlation[row]).copied().filter(|_| may_flow);
            self.out.counts.flow_ends += u64::from(flow.is_some());
            let slice = Slice {
                track: lines.track(lane, &mut self.out),
                at_ns: start,
                category: strings.category(kind, &mut self.out),
                name: strings.name(&self.data.names, events.name[row], &mut self.out),
                annotations: &annotations(self.data, row),
                flow,
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

    fn collectives(&mut self) -> Result<(), Closed> {
        let mut communicators: BTreeMap<i64, (Lanes, Vec<u64>)> = BTreeMap::new();
        let rows: Vec<(usize, &Collective, i64)> = self
            .data
            .outline
            .collectives
            .iter()
            .enumerate()
            .filter_map(|(index, row)| Some((index, row, row.start_ns?)))
            .collect();
        let mut ended: Vec<i64> = Vec::new();
        for (index, row, start_ns) in rows {
            let on_device = row.device_id.is_some() && row.timing_source != TimingSource::Host;
            let start = self.times.time(on_device, start_ns);
            // A collective that did not end is drawn open.
            let end = row.end_ns.map_or(OPEN, |end_ns| self.times.time(on_device, end_ns));
            let (lanes, tracks) = communicators.entry(row.comm_id).or_default();
            let lane = lanes.place(start, end, |_, end| ended.push(end));
            let comm = row.comm_name.as_deref().map_or_else(|| format!("{:x}", row.comm_id), String::from);
            let more = if lane == 0 { String::new() } else { format!(" ({})", lane + 1) };
            let track = self.out.track(Track::Communicator(row.comm_id, lane), &format!("communicator {comm}{more}"));
            if lane == tracks.len() {
                tracks.push(track);
            }
            ended.drain(..).for_each(|end| self.out.end(track, end));
            let instance = self.job.instance_of(self.data.outline.info.rank, index);
            let flow = instance.map(|i| self.out.flow_of_instance(i.id));
            self.out.counts.flow_ends += u64::from(flow.is_some());
            let annotations = [
                (Annotation::Instance, instance.map(|i| i.id)),
                (Annotation::Seq, row.seq),
                (Annotation::Bytes, row.bytes),
                (Annotation::Step, row.step.map(i64::from)),
                (Annotation::Bucket, row.bucket.map(i64::from)),
                (Annotation::WaitNs, instance.and_then(|i| i.wait_ns(start))),
            ];
            let (category, name) = (self.out.category("collective"), self.out.name(&row.op));
            self.out.begin(&Slice { track, at_ns: start, category, name, annotations: &annotations, flow });
            self.out.counts.collectives += 1;
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

fn annotations(data: &RankData, row: usize) -> [(Annotation, Option<i64>); 6] {
    let events = &data.events;
    let step = Some(i64::from(events.step[row])).filter(|_| events.step[row] != NO_STEP);
    let some = |value: i64| Some(value).filter(|v| *v != NONE);
    [
        (Annotation::Id, some(events.id[row])),
        (Annotation::Step, step),
        (Annotation::Bytes, some(events.bytes[row])),
        (Annotation::Flops, some(events.flops[row])),
        (Annotation::Correlation, some(events.correlation[row])),
        (Annotation::ExternalId, some(events.external[row])),
    ]
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
