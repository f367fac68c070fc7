//! One event as Kineto writes it.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use trace::{CollectiveRow, CommRow, EventRow, MemoryRow};

/// µs with all three decimals, which no double passes on.
pub(super) fn us(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:03}", ns / 1000, ns % 1000)
}

/// What an event of any kind begins with.
pub(super) struct Head<'a> {
    pub(super) phase: &'static str,
    pub(super) category: &'a str,
    pub(super) name: &'a str,
    pub(super) pid: i64,
    pub(super) tid: i64,
    pub(super) ts_ns: i64,
}

impl Head<'_> {
    /// Writes the event up to its time; what follows is the caller's.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{{\"ph\": \"{}\", \"cat\": ", self.phase)?;
        string(out, self.category)?;
        out.write_all(b", \"name\": ")?;
        string(out, self.name)?;
        write!(out, ", \"pid\": {}, \"tid\": {}, \"ts\": {}", self.pid, self.tid, us(self.ts_ns))
    }
}

/// A string, escaped.
pub(super) fn string(out: &mut impl Write, text: &str) -> io::Result<()> {
    serde_json::to_writer(out, text).map_err(io::Error::from)
}

/// Process and thread that Kineto draws a row on: of a device, its number and the stream.
pub(super) fn place(event: &EventRow, process: i64) -> (i64, i64) {
    match (event.thread_id, event.device_id) {
        (None, Some(device)) => (device, event.stream_id.unwrap_or(-1)),
        (thread, _) => (event.pid.unwrap_or(process), thread.unwrap_or(process)),
    }
}

/// The arguments of a row, with those of its collective.
pub(super) fn arguments(
    event: &EventRow,
    collective: Option<(&CollectiveRow, Option<&CommRow>, i32)>,
) -> Map<String, Value> {
    let mut args = Map::new();
    let integers = [
        ("External id", event.external_id),
        ("device", event.device_id),
        ("context", event.context_id),
        ("stream", event.stream_id),
        ("correlation", event.correlation_id),
        ("bytes", event.bytes.filter(|_| event.device_id.is_some())),
        ("registers per thread", event.registers.map(i64::from)),
        ("shared memory", event.shared_mem_bytes),
        ("fromDevice", event.src_device),
        ("toDevice", event.dst_device),
        ("graph id", event.graph_id),
        ("graph node id", event.graph_node_id),
    ];
    for (key, value) in integers.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        args.insert(key.into(), value.into());
    }
    let decimals =
        [("memory bandwidth (GB/s)", event.bandwidth_gbs), ("est. achieved occupancy %", event.occupancy_pct)];
    for (key, value) in decimals.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        args.insert(key.into(), json!(value));
    }
    for (key, value) in [("grid", &event.grid), ("block", &event.block)] {
        if let Some(value) = value {
            args.insert(key.into(), json!(value));
        }
    }
    // Lists of JSON, kept as they were written.
    for (key, value) in [("Input Dims", &event.input_dims), ("Input type", &event.input_types)] {
        if let Some(value) = value.as_deref() {
            let list = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            args.insert(key.into(), list);
        }
    }
    for (key, value) in [("cuda_sync_kind", &event.sync_kind), ("Module Hierarchy", &event.module)] {
        if let Some(value) = value.as_deref() {
            args.insert(key.into(), value.into());
        }
    }
    if let Some(stack) = event.stack.as_deref() {
        // Kineto has the innermost frame first.
        args.insert("Call stack".into(), stack.split(';').rev().collect::<Vec<_>>().join(";").into());
    }
    if let Some(Value::Object(rest)) = event.args.as_deref().and_then(|args| serde_json::from_str(args).ok()) {
        args.extend(rest);
    }
    if let Some((row, comm, world_size)) = collective {
        put_collective(&mut args, row, comm, world_size);
    }
    args
}

/// What `record_param_comms` says of a collective, unless the trace that the run was made of said it.
fn put_collective(args: &mut Map<String, Value>, row: &CollectiveRow, comm: Option<&CommRow>, world_size: i32) {
    if args.contains_key("Collective name") {
        return;
    }
    // A trace that names no group has none of these; Kineto's own reader would otherwise believe in one.
    let Some(name) = comm.and_then(|c| c.name.as_deref()).or(row.comm_name.as_deref()) else {
        return;
    };
    let ranks = comm.and_then(|c| c.ranks.clone()).unwrap_or_else(|| (0..world_size).collect());
    let known = [
        ("Collective name", Some(json!(*row.op))),
        ("Process Group Name", Some(json!(name))),
        ("Process Group Ranks", Some(json!(format!("{ranks:?}")))),
        ("Group size", Some(json!(ranks.len()))),
        ("Seq", row.seq.map(Value::from)),
        ("In msg nelems", row.count.map(Value::from)),
        ("Out msg nelems", row.count.map(Value::from)),
        ("dtype", row.dtype.as_deref().map(Value::from)),
    ];
    for (key, value) in known.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        args.insert(key.into(), value);
    }
}

/// An allocation.
pub(super) fn memory_arguments(row: &MemoryRow) -> Map<String, Value> {
    let mut args = Map::new();
    args.insert("Bytes".into(), row.delta_bytes.into());
    let device = row.device_id.filter(|device| *device >= 0);
    // torch's DeviceType: 0 is the CPU, 1 CUDA.
    args.insert("Device Type".into(), i64::from(device.is_some()).into());
    args.insert("Device Id".into(), device.unwrap_or(-1).into());
    let known =
        [("Total Allocated", row.allocated_bytes), ("Total Reserved", row.reserved_bytes), ("Addr", row.address)];
    for (key, value) in known.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        args.insert(key.into(), value.into());
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_ns() {
        assert_eq!((us(1_234_567), us(5), us(-1_500)), ("1234.567".into(), "0.005".into(), "-1.500".into()));
    }

    #[test]
    fn a_kernel_is_on_its_device_and_says_what_kineto_says() {
        let event = EventRow {
            kind: "kernel".into(),
            device_id: Some(1),
            stream_id: Some(7),
            correlation_id: Some(42),
            grid: Some(vec![8, 1, 1]),
            args: Some(r#"{"queued":0,"blocks per SM":0.1}"#.into()),
            ..EventRow::default()
        };
        assert_eq!(place(&event, 99), (1, 7));
        let args = Value::from(arguments(&event, None));
        let expected =
            json!({"device": 1, "stream": 7, "correlation": 42, "grid": [8, 1, 1], "queued": 0, "blocks per SM": 0.1});
        assert_eq!(args, expected);
    }

    #[test]
    fn names_are_escaped() {
        let mut out = Vec::new();
        let head = Head { phase: "X", category: "cpu_op", name: "a\"</script>\u{1}", pid: 1, tid: 2, ts_ns: 3 };
        head.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap() + "}";
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["name"], "a\"</script>\u{1}");
    }
}
