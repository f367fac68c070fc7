//! Writes one rank of a run as Kineto's JSON, row by row.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use trace::name_rules::{COLLECTIVE_CALL_PREFIX, STEP};
use trace::{
    CollectiveRow, CommRow, DeviceRow, EventRow, FlowKind, FlowRow, MemoryRow, OmissionRow, Phase, RankRow, Row, Run,
    StepRow, Text, batch_from_rows,
};

use crate::Error;
use crate::bytes::input::Input;
use crate::write::event_columns::Columns;
use crate::write::event_json::{Group, Head, put_collective, write_memory_arguments};
use crate::write::json_text::{us, value};

/// Counts of the written events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ranks.
    pub ranks: u64,
    /// Rows of `events`.
    pub events: u64,
    /// Ends of arrows.
    pub flow_ends: u64,
    /// Allocations.
    pub allocations: u64,
}

impl Counts {
    /// Adds the counts of another rank.
    pub fn add(&mut self, other: Self) {
        self.ranks += other.ranks;
        self.events += other.events;
        self.flow_ends += other.flow_ends;
        self.allocations += other.allocations;
    }
}

/// The operator that DDP's hook records around the call that hands a bucket over.
pub const HOOK: &str = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";

/// The part of a rank that is written. Times are in the rank's clock.
pub trait Selection {
    /// Whether to write the row `id`, which starts at `ts_ns` and names `step` as its own.
    fn keeps_row(&self, id: i64, ts_ns: i64, step: Option<i32>) -> bool;
    /// Whether to write the range of a step.
    fn keeps_step(&self, step: &StepRow) -> bool;
    /// Whether to write something that happened on the host and names no step.
    fn keeps_host_time(&self, t_ns: i64) -> bool;
}

/// Writes one rank of a run as a trace.
#[derive(Clone, Copy)]
pub struct TraceWriter<'a> {
    /// The run.
    pub run: &'a Run,
    /// The rank.
    pub rank: i32,
    /// Its steps. Their ranges are written from these rows.
    pub steps: &'a [StepRow],
    /// The part of it that is written.
    pub selection: &'a dyn Selection,
    /// The time that the trace's times count from.
    pub base_ns: i64,
}

/// The ends of the arrows, by the row that they touch.
fn flow_ends(flows: Vec<FlowRow>) -> FxHashMap<i64, Vec<FlowEnd>> {
    let mut ends: FxHashMap<i64, Vec<FlowEnd>> = FxHashMap::default();
    for flow in flows {
        let launch = flow.kind == FlowKind::Launch;
        ends.entry(flow.src_id).or_default().push(FlowEnd { id: flow.id, launch, begins: true });
        ends.entry(flow.dst_id).or_default().push(FlowEnd { id: flow.id, launch, begins: false });
    }
    ends
}

impl TraceWriter<'_> {
    /// Writes the trace. Returns the number of rows, and the rows of the run that could not be read.
    ///
    /// # Errors
    /// [`Error::Output`] if `out` cannot be written, [`Error::Trace`] if rows without an end cannot be put together.
    pub fn write(&self, out: &mut impl Write) -> Result<(Counts, Vec<OmissionRow>), Error> {
        let mut omissions = Vec::new();
        let process = self.rows::<RankRow>(&mut omissions).pop();
        let comms = self.rows::<CommRow>(&mut omissions);
        let devices = self.rows::<DeviceRow>(&mut omissions);
        let pid = process.as_ref().map_or(i64::from(self.rank), |p| p.pid);
        let world_size = process.as_ref().map_or(self.run.manifest.world_size, |p| p.world_size);
        self.header(out, process.as_ref(), world_size, &comms, &devices)?;
        let collectives = self.rows::<CollectiveRow>(&mut omissions);
        let mut writer = Writer {
            rank: self,
            out,
            bytes: Vec::with_capacity(2 * PIECE_BYTES),
            pid,
            world_size,
            of_row: collectives.iter().filter_map(|c| Some((c.event_id?, c))).collect(),
            groups: comms.iter().map(|c| (c.comm_id, Group::of(c, world_size))).collect(),
            world: OnceCell::new(),
            steps: self.steps.iter().map(|step| step.step).collect(),
            ends: flow_ends(self.rows(&mut omissions)),
            open: BTreeMap::new(),
            step_threads: BTreeMap::new(),
            calls_recorded: false,
            counts: Counts { ranks: 1, ..Counts::default() },
        };
        writer.process_name();
        for shard in self.run.shards(self.rank, EventRow::table().name) {
            let mut rows_read = 0;
            let mut failed = None;
            let read = shard.read(&EventRow::table(), None, |batch| -> Result<(), trace::Error> {
                let columns = Columns::open(batch)?;
                for row in 0..batch.num_rows() {
                    if let Err(error) = writer.event(&columns, row) {
                        failed = Some(error);
                        break;
                    }
                }
                rows_read += batch.num_rows();
                Ok(())
            });
            // A full disk ends the export; a damaged shard does not.
            if let Some(error) = failed {
                return Err(error.into());
            }
            if let Err(error) = read {
                omissions.push(
                    OmissionRow::lost("rows of events", error.to_string())
                        .rank(self.rank)
                        .file(Text::from(shard.path.display().to_string()))
                        .amount((shard.rows as i64).saturating_sub(rows_read as i64)),
                );
            }
        }
        writer.unfinished(&mut omissions)?;
        writer.steps()?;
        writer.calls(&collectives)?;
        for row in self.rows::<MemoryRow>(&mut omissions) {
            writer.memory(&row)?;
        }
        writer.bytes.extend_from_slice(b"\n]}\n");
        writer.flush_from(0)?;
        let counts = writer.counts;
        out.flush()?;
        Ok((counts, omissions))
    }

    fn rows<R: Row>(&self, omissions: &mut Vec<OmissionRow>) -> Vec<R> {
        let (rows, problems) = self.run.rows::<R>(self.rank);
        omissions.extend(problems.into_iter().map(|p| p.into_omission(&self.run.path)));
        rows
    }

    fn header(
        &self,
        out: &mut impl Write,
        process: Option<&RankRow>,
        world_size: i32,
        comms: &[CommRow],
        devices: &[DeviceRow],
    ) -> Result<(), Error> {
        let group = |comm: &CommRow| {
            let name = comm.name.as_deref().unwrap_or("0");
            json!({"pg_name": name, "pg_desc": comm.description, "pg_size": comm.size, "ranks": comm.ranks})
        };
        // A group without a name is not configured; its collectives have its ranks.
        let groups: Vec<Value> = comms.iter().filter(|c| c.name.is_some()).map(group).collect();
        // With the blanks that Kineto writes: HTA looks for `"rank": ` in the text.
        let info = format!(
            "{{\"rank\": {}, \"world_size\": {world_size}, \"pg_config\": {}}}",
            self.rank,
            Value::Array(groups)
        );
        let device = |d: &DeviceRow| {
            let mut properties = Map::new();
            properties.insert("id".into(), d.device_id.into());
            let known = [
                ("name", d.name.as_deref().map(Value::from)),
                ("uuid", d.uuid.as_deref().map(Value::from)),
                ("numSms", d.sm_count.map(Value::from)),
                ("maxThreadsPerMultiprocessor", d.max_threads_per_sm.map(Value::from)),
                ("regsPerMultiprocessor", d.registers_per_sm.map(Value::from)),
                ("sharedMemPerMultiprocessor", d.shared_mem_per_sm_bytes.map(Value::from)),
                ("totalGlobalMem", d.memory_bytes.map(Value::from)),
            ];
            properties.extend(known.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))));
            Value::Object(properties)
        };
        write!(out, "{BEGINNING}{info}")?;
        if !devices.is_empty() {
            write!(out, ", \"deviceProperties\": {}", devices.iter().map(device).collect::<Value>())?;
        }
        if let Some(host) = process.map(|p| &*p.host).filter(|host| !host.is_empty()) {
            write!(out, ", \"host_name\": {}", json!(host))?;
        }
        if self.base_ns != 0 {
            write!(out, ", \"baseTimeNanoseconds\": {}", self.base_ns)?;
        }
        Ok(out.write_all(b", \"traceEvents\": [\n")?)
    }
}

/// The first bytes of every trace that [`TraceWriter`] writes. Kineto begins with a line break after the brace.
const BEGINNING: &str = "{\"schemaVersion\": 1, \"distributedInfo\": ";

/// Whether [`TraceWriter`] wrote the file. A file that cannot be read is none of its files.
pub fn is_exported(path: &Path) -> bool {
    let mut head = [0; BEGINNING.len()];
    Input::open(path).is_ok_and(|mut input| input.fill(&mut head) == head.len()) && head == *BEGINNING.as_bytes()
}

/// One end of an arrow.
struct FlowEnd {
    id: i64,
    launch: bool,
    begins: bool,
}

/// Bytes that are collected before they are written.
const PIECE_BYTES: usize = 1 << 16;

struct Writer<'a, W> {
    rank: &'a TraceWriter<'a>,
    out: &'a mut W,
    /// Bytes that are not written yet.
    bytes: Vec<u8>,
    pid: i64,
    world_size: i32,
    of_row: FxHashMap<i64, &'a CollectiveRow>,
    /// The groups of collectives, by communicator.
    groups: BTreeMap<i64, Group>,
    /// The group of collectives whose communicator is not in the run.
    world: OnceCell<Group>,
    /// Numbers of the rank's steps.
    steps: BTreeSet<i32>,
    /// Ends of arrows, by the id of their row.
    ends: FxHashMap<i64, Vec<FlowEnd>>,
    /// Rows that had not ended when their part closed, by id, until a later row completes them.
    open: BTreeMap<i64, EventRow>,
    /// The thread of each step's range.
    step_threads: BTreeMap<i32, i64>,
    /// The run has rows of the calls that hand over collectives.
    calls_recorded: bool,
    counts: Counts,
}

impl<W: Write> Writer<'_, W> {
    /// Writes the collected bytes, if there are at least `bytes`.
    fn flush_from(&mut self, bytes: usize) -> std::io::Result<()> {
        if self.bytes.len() >= bytes {
            self.out.write_all(&self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }

    fn process_name(&mut self) {
        let name = format!("rank {}", self.rank.rank);
        let (pid, name) = (self.pid, json!({ "name": name }));
        // Without a comma before it: it is the first.
        let event = format!(
            "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {pid}, \"tid\": 0, \"ts\": 0, \"args\": {name}}}"
        );
        self.bytes.extend_from_slice(event.as_bytes());
    }

    fn event(&mut self, columns: &Columns, row: usize) -> std::io::Result<()> {
        if columns.is_open(row) {
            self.open.insert(columns.id(row), columns.row(row));
            return Ok(());
        }
        if !self.open.is_empty() {
            self.open.remove(&columns.id(row));
        }
        self.calls_recorded |= columns.hands_over(row);
        if let Some(step) = columns.step(row) {
            if let (Some(step), Some(thread)) = (step, columns.thread(row)) {
                self.step_threads.insert(step, thread);
            }
            // A run has rows of steps, a little longer than their ranges. The trace gets the steps, so the ranges are
            // left out.
            if step.is_some_and(|step| self.steps.contains(&step)) {
                return Ok(());
            }
        }
        let keeps = self.rank.selection.keeps_row(columns.id(row), columns.ts_ns(row), columns.in_step(row));
        if keeps { self.complete(columns, row) } else { Ok(()) }
    }

    fn complete(&mut self, columns: &Columns, row: usize) -> std::io::Result<()> {
        let id = columns.id(row);
        let collective = if self.of_row.is_empty() { None } else { self.of_row.get(&id).copied() };
        let (pid, tid) = columns.place(row, self.pid);
        let ts_ns = columns.ts_ns(row) - self.rank.base_ns;
        let (category, name) = columns.words(row);
        Head { phase: b'X', category, name, pid, tid, ts_ns }.write(&mut self.bytes);
        self.bytes.extend_from_slice(b", \"dur\": ");
        us(&mut self.bytes, columns.dur_ns(row));
        self.bytes.extend_from_slice(b", \"args\": ");
        let (groups, world, world_size) = (&self.groups, &self.world, self.world_size);
        columns.write_arguments(
            row,
            |arguments| {
                if let Some(collective) = collective {
                    let of_world = || world.get_or_init(|| Group::world(world_size));
                    let group = groups.get(&collective.comm_id).unwrap_or_else(of_world);
                    put_collective(arguments, collective, group);
                }
            },
            &mut self.bytes,
        );
        self.bytes.push(b'}');
        self.counts.events += 1;
        if !self.ends.is_empty()
            && let Some(ends) = self.ends.remove(&id)
        {
            for end in ends {
                self.flow_end(&end, (pid, tid), ts_ns);
            }
        }
        self.flush_from(PIECE_BYTES)
    }

    fn flow_end(&mut self, end: &FlowEnd, (pid, tid): (i64, i64), ts_ns: i64) {
        let word: &[u8] = if end.launch { b"\"ac2g\"" } else { b"\"fwdbwd\"" };
        let phase = if end.begins { b's' } else { b'f' };
        Head { phase, category: word, name: word, pid, tid, ts_ns }.write(&mut self.bytes);
        self.bytes.extend_from_slice(b", \"id\": ");
        value(&mut self.bytes, &end.id);
        self.bytes.extend_from_slice(if end.begins { b"}" } else { b", \"bp\": \"e\"}" });
        self.counts.flow_ends += 1;
    }

    /// Writes an event that the run has no row of, without arguments.
    fn span(
        &mut self,
        category: &str,
        name: &str,
        (pid, tid): (i64, i64),
        (ts_ns, dur_ns): (i64, i64),
    ) -> std::io::Result<()> {
        let (category, name) = (Value::from(category).to_string(), Value::from(name).to_string());
        let ts_ns = ts_ns - self.rank.base_ns;
        Head { phase: b'X', category: category.as_bytes(), name: name.as_bytes(), pid, tid, ts_ns }
            .write(&mut self.bytes);
        self.bytes.extend_from_slice(b", \"dur\": ");
        us(&mut self.bytes, dur_ns);
        self.bytes.extend_from_slice(b", \"args\": {}}");
        self.flush_from(PIECE_BYTES)
    }

    /// Writes the rows that never ended, with the length that they had reached.
    fn unfinished(&mut self, omissions: &mut Vec<OmissionRow>) -> Result<(), Error> {
        let open: Vec<EventRow> = std::mem::take(&mut self.open).into_values().collect();
        if open.is_empty() {
            return Ok(());
        }
        omissions.push(
            OmissionRow::lost(
                "ends of rows of events",
                "the rank stopped before they ended; their lengths are lower bounds",
            )
            .rank(self.rank.rank)
            .amount(open.len() as i64),
        );
        let columns = Columns::open(&batch_from_rows(&open)?)?;
        for (row, event) in open.iter().enumerate() {
            if self.rank.selection.keeps_row(event.id, event.ts_ns, event.step) {
                self.complete(&columns, row)?;
            }
        }
        Ok(())
    }

    fn main_thread(&self) -> i64 {
        self.step_threads.values().next().copied().unwrap_or(self.pid)
    }

    fn steps(&mut self) -> std::io::Result<()> {
        let rank = self.rank;
        for step in rank.steps.iter().filter(|step| step.phase != Phase::Warmup && rank.selection.keeps_step(step)) {
            let thread = self.step_threads.get(&step.step).copied().unwrap_or_else(|| self.main_thread());
            let times = (step.start_ns, step.end_ns.saturating_sub(step.start_ns));
            let name = format!("{STEP}#{}", step.step);
            self.span("user_annotation", &name, (self.pid, thread), times)?;
            self.counts.events += 1;
        }
        Ok(())
    }

    /// Writes calls that hand over collectives, where the run has no rows of them. Readers recognise buckets by them.
    fn calls(&mut self, collectives: &[CollectiveRow]) -> std::io::Result<()> {
        if self.calls_recorded {
            return Ok(());
        }
        let place = (self.pid, self.main_thread());
        for row in collectives {
            let Some(at) = row.enqueue_ns.filter(|at| self.rank.selection.keeps_host_time(*at)) else { continue };
            // The hook encloses the call. Of two rows without length, the first in the file is the outer one.
            if row.bucket.is_some() {
                self.span("cpu_op", HOOK, place, (at, 0))?;
            }
            self.span("cpu_op", &format!("{COLLECTIVE_CALL_PREFIX}{}_", row.op), place, (at, 0))?;
        }
        Ok(())
    }

    fn memory(&mut self, row: &MemoryRow) -> std::io::Result<()> {
        if !self.rank.selection.keeps_host_time(row.ts_ns) {
            return Ok(());
        }
        let ts_ns = row.ts_ns - self.rank.base_ns;
        // No thread has the number 0, so an unknown thread gets the name of no operator.
        let (pid, tid) = (self.pid, row.thread_id.unwrap_or(0));
        let (category, name) = (b"\"cpu_instant_event\"", b"\"[memory]\"");
        Head { phase: b'i', category, name, pid, tid, ts_ns }.write(&mut self.bytes);
        self.bytes.extend_from_slice(b", \"s\": \"t\", \"args\": ");
        write_memory_arguments(row, &mut self.bytes);
        self.bytes.push(b'}');
        self.counts.allocations += 1;
        self.flush_from(PIECE_BYTES)
    }
}
