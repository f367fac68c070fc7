//! Writes a native run as torch.profiler would have: one JSON file a rank.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use trace::{CollectiveRow, CommRow, EventRow, MemoryRow, RankRow, StepRow};

use crate::tables::{open, rows};

/// The operator that DDP's hook leaves around the hand-over of a bucket.
pub(crate) const HOOK: &str = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad";
/// How the names of the ranges of steps begin.
pub(crate) const STEP: &str = "ProfilerStep";
/// How operators begin that hand over a collective.
pub(crate) const CALL: &str = "c10d::";

/// Writes the run's ranks as `traces/rank<N>.json`.
pub(crate) fn write_traces(run: &Path, traces: &Path) {
    let run = open(run);
    std::fs::create_dir_all(traces).unwrap();
    for rank in run.ranks() {
        let process = rows::<RankRow>(&run, rank).pop().unwrap();
        let comms: BTreeMap<i64, CommRow> = rows::<CommRow>(&run, rank).into_iter().map(|c| (c.comm_id, c)).collect();
        let mut writer = Writer { process, comms, events: Vec::new() };
        writer.steps(&rows::<StepRow>(&run, rank), &rows::<EventRow>(&run, rank));
        writer.rows(rows::<EventRow>(&run, rank), &rows::<CollectiveRow>(&run, rank));
        writer.memory(&rows::<MemoryRow>(&run, rank));
        std::fs::write(traces.join(format!("rank{rank}.json")), writer.document()).unwrap();
    }
}

struct Writer {
    process: RankRow,
    comms: BTreeMap<i64, CommRow>,
    events: Vec<String>,
}

/// µs with all three decimals, which no double passes on.
fn us(ns: i64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl Writer {
    /// A trace has no other steps than their ranges. A run has both, and its steps begin and end a little outside their
    /// ranges.
    fn steps(&mut self, steps: &[StepRow], events: &[EventRow]) {
        for step in steps.iter().filter(|step| &*step.phase == "active") {
            let name = format!("{STEP}#{}", step.step);
            let thread = events.iter().find(|e| *e.name == *name).and_then(|e| e.thread_id);
            let dur_ns = step.end_ns - step.start_ns;
            self.complete("user_annotation", &name, thread, step.start_ns, dur_ns, &json!({}));
        }
    }

    fn rows(&mut self, events: Vec<EventRow>, collectives: &[CollectiveRow]) {
        // A row that was open when its part closed is completed by a later one.
        let events: BTreeMap<i64, EventRow> =
            events.into_iter().filter(|e| e.open != Some(true)).map(|e| (e.id, e)).collect();
        let of_row: BTreeMap<i64, &CollectiveRow> = collectives.iter().filter_map(|c| Some((c.event_id?, c))).collect();
        let main_thread = events.values().find(|e| e.name.starts_with(STEP)).and_then(|e| e.thread_id);
        for event in events.values().filter(|e| !e.name.starts_with(STEP)) {
            let args = of_row.get(&event.id).map_or(json!({}), |c| self.arguments(c));
            self.complete(&event.kind, &event.name, event.thread_id, event.ts_ns, event.dur_ns, &args);
        }
        for collective in collectives {
            let Some(enqueue_ns) = collective.enqueue_ns else { continue };
            // The hook encloses the call; of two rows of no length the first in the file is the outer one.
            if collective.bucket.is_some() {
                self.complete("cpu_op", HOOK, main_thread, enqueue_ns, 0, &json!({}));
            }
            self.complete("cpu_op", &format!("{CALL}{}_", collective.op), main_thread, enqueue_ns, 0, &json!({}));
        }
    }

    fn arguments(&self, collective: &CollectiveRow) -> Value {
        let comm = self.comms.get(&collective.comm_id);
        let ranks = comm.and_then(|c| c.ranks.clone()).unwrap_or_else(|| (0..self.process.world_size).collect());
        let mut args = Map::new();
        let mut put = |key: &str, value: Value| args.insert(key.into(), value);
        put("Collective name", json!(*collective.op));
        put("Process Group Name", json!(comm.and_then(|c| c.name.as_deref()).unwrap_or("0")));
        put("Process Group Ranks", json!(format!("{ranks:?}")));
        put("Group size", json!(ranks.len()));
        if let Some(seq) = collective.seq {
            put("Seq", json!(seq));
        }
        if let Some(count) = collective.count {
            put("In msg nelems", json!(count));
            put("Out msg nelems", json!(count));
        }
        if let Some(dtype) = collective.dtype.as_deref() {
            put("dtype", json!(dtype));
        }
        Value::Object(args)
    }

    fn complete(&mut self, kind: &str, name: &str, thread: Option<i64>, ts_ns: i64, dur_ns: i64, args: &Value) {
        let (name, pid) = (json!(name), self.process.pid);
        let tid = thread.unwrap_or(pid);
        self.events.push(format!(
            "{{\"ph\": \"X\", \"cat\": \"{kind}\", \"name\": {name}, \"pid\": {pid}, \"tid\": {tid}, \"ts\": {}, \"dur\": {}, \
             \"args\": {args}}}",
            us(ts_ns),
            us(dur_ns),
        ));
    }

    fn memory(&mut self, memory: &[MemoryRow]) {
        let pid = self.process.pid;
        for row in memory {
            let mut args = json!({"Bytes": row.delta_bytes, "Device Type": 0, "Device Id": -1});
            if let Some(allocated) = row.allocated_bytes {
                args["Total Allocated"] = json!(allocated);
            }
            let ts = us(row.ts_ns);
            self.events.push(format!(
                "{{\"ph\": \"i\", \"cat\": \"cpu_instant_event\", \"s\": \"t\", \"name\": \"[memory]\", \"pid\": {pid}, \
                 \"tid\": {pid}, \"ts\": {ts}, \"args\": {args}}}"
            ));
        }
    }

    fn document(&self) -> String {
        let group = |comm: &CommRow| json!({"pg_name": comm.name.as_deref().unwrap_or("0"), "pg_size": comm.size, "ranks": comm.ranks});
        let info = json!({
            "backend": "mpi",
            "rank": self.process.rank,
            "world_size": self.process.world_size,
            "pg_config": self.comms.values().map(group).collect::<Vec<_>>(),
        });
        let mut text = String::new();
        let host = json!(*self.process.host);
        writeln!(
            text,
            "{{\"schemaVersion\": 1, \"distributedInfo\": {info}, \"host_name\": {host}, \"traceEvents\": ["
        )
        .unwrap();
        text.push_str(&self.events.join(",\n"));
        text.push_str("\n]}\n");
        text
    }
}
