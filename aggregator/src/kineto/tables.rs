//! The small tables: memory, devices and arrows.

use rustc_hash::FxHashMap;
use trace::{DeviceRow, FlowRow, MemoryRow};

use crate::kineto::columns::Allocation;
use crate::kineto::rows::Rows;
use crate::kineto::value::Value;
use crate::model::{Events, Kind, NO_PARENT, NONE};

/// Torch's `DeviceType` of the host.
const DEVICE_TYPE_CPU: i64 = 0;

/// Allocations and releases, sorted by time, each with the outermost operator that made it.
pub(crate) fn memory_rows(rows: &Rows, allocations: Vec<(Allocation, (i64, i64))>, rank: i32) -> Vec<MemoryRow> {
    let known = |value: i64| Some(value).filter(|v| *v != NONE);
    let places: Vec<(i64, i64)> = allocations.iter().map(|(a, (_, thread))| (a.ts_ns, *thread)).collect();
    let operators = operators_at(&rows.events, &places);
    allocations
        .into_iter()
        .zip(operators)
        .map(|((a, _), operator)| MemoryRow {
            rank,
            ts_ns: a.ts_ns,
            device_id: known(a.device_id).filter(|id| a.device_type != DEVICE_TYPE_CPU && *id >= 0),
            name: operator.map(|row| rows.names[rows.events.name[row as usize] as usize].clone()),
            delta_bytes: a.bytes,
            allocated_bytes: known(a.allocated),
            reserved_bytes: known(a.reserved).filter(|_| a.device_type != DEVICE_TYPE_CPU),
            address: known(a.address),
        })
        .collect()
}

/// The outermost operator that runs on a thread at a time, for places in the order of time.
///
/// ```text
/// operators   linear ───────────       copy ──
///                addmm ────
/// places            x      y       z
///                linear  linear  none
/// ```
fn operators_at(events: &Events, places: &[(i64, i64)]) -> Vec<Option<u32>> {
    let mut last: FxHashMap<i64, u32> = FxHashMap::default();
    let mut next = 0;
    let mut operators = Vec::with_capacity(places.len());
    for (ts_ns, thread) in places {
        while next < events.len() && events.ts_ns[next] <= *ts_ns {
            if events.thread[next] != NONE {
                last.insert(events.thread[next], next as u32);
            }
            next += 1;
        }
        let mut row = last.get(thread).copied().unwrap_or(NO_PARENT);
        let mut outermost = None;
        while row != NO_PARENT {
            let at = row as usize;
            if events.kind[at] == Kind::CpuOp && events.end_ns(at) >= *ts_ns {
                outermost = Some(row);
            }
            row = events.parent[at];
        }
        operators.push(outermost);
    }
    operators
}

/// `deviceProperties`.
pub(crate) fn device_rows(properties: Option<&Value>, rank: i32) -> Vec<DeviceRow> {
    let row = |device: &Value| {
        let text = |key: &str| device.get(key).and_then(Value::text).map(Into::into);
        let integer = |key: &str| device.get(key).and_then(Value::integer);
        Some(DeviceRow {
            rank,
            device_id: integer("id")?,
            name: text("name"),
            uuid: text("uuid"),
            sm_count: integer("numSms").and_then(|n| i32::try_from(n).ok()),
            memory_bytes: integer("totalGlobalMem"),
            ..DeviceRow::default()
        })
    };
    properties.map(Value::items).unwrap_or_default().iter().filter_map(row).collect()
}

/// Arrows between forward and backward operators, and how many lack an end.
///
/// An arrow's end names no row, but a thread and a time: those of a row that begins there.
pub(crate) fn flow_rows(rows: &Rows, rank: i32) -> (Vec<FlowRow>, i64) {
    let ends = &rows.flows;
    if ends.is_empty() {
        return (Vec::new(), 0);
    }
    let events = &rows.events;
    let mut starts: FxHashMap<(i64, i64), i64> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::CpuOp) {
        starts.entry((events.thread[row], events.ts_ns[row])).or_insert(events.id[row]);
    }
    let mut arrows: FxHashMap<i64, (Option<i64>, Option<i64>)> = FxHashMap::default();
    let mut order = Vec::new();
    for (end, (_, thread)) in ends {
        let row = starts.get(&(*thread, end.ts_ns)).copied();
        let arrow = arrows.entry(end.id).or_insert_with(|| {
            order.push(end.id);
            (None, None)
        });
        let slot = if end.start { &mut arrow.0 } else { &mut arrow.1 };
        *slot = row;
    }
    let mut flows = Vec::with_capacity(order.len());
    let mut torn = 0;
    for id in order {
        match arrows.get(&id) {
            Some((Some(src_id), Some(dst_id))) => {
                flows.push(FlowRow { rank, id, kind: "fwdbwd".into(), src_id: *src_id, dst_id: *dst_id });
            }
            _ => torn += 1,
        }
    }
    (flows, torn)
}

#[cfg(test)]
mod tests {
    use crate::kineto::tests::rank_from_text;

    #[test]
    fn memory_devices_and_arrows_are_read() {
        let data = rank_from_text(
            r#"{"deviceProperties": [{"id": 1, "name": "GPU", "numSms": 80, "totalGlobalMem": 5}], "traceEvents": [
            {"ph":"X","cat":"cpu_op","name":"fwd","pid":1,"tid":1,"ts":1,"dur":2},
            {"ph":"X","cat":"cpu_op","name":"bwd","pid":1,"tid":2,"ts":5,"dur":2},
            {"ph":"X","cat":"cpu_op","name":"linear","pid":1,"tid":1,"ts":7.5,"dur":1},
            {"ph":"X","cat":"cpu_op","name":"addmm","pid":1,"tid":1,"ts":7.6,"dur":0.3},
            {"ph":"s","id":7,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"fwdbwd"},
            {"ph":"f","id":7,"pid":1,"tid":2,"ts":5,"cat":"fwdbwd","name":"fwdbwd","bp":"e"},
            {"ph":"s","id":8,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"fwdbwd"},
            {"ph":"i","s":"t","name":"[memory]","pid":1,"tid":1,"ts":9,"args":{"Device Type":1,"Device Id":1,"Addr":3,"Bytes":-4,"Total Allocated":6,"Total Reserved":8}},
            {"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":1,"tid":1,"ts":8,"args":{"Device Type":0,"Device Id":-1,"Bytes":4}},
            {"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":9}]}"#,
        );
        assert_eq!(data.devices.len(), 1);
        assert_eq!((data.devices[0].device_id, data.devices[0].sm_count), (1, Some(80)));
        let memory: Vec<_> = data
            .memory
            .iter()
            .map(|m| (m.ts_ns, m.device_id, m.delta_bytes, m.allocated_bytes, m.name.as_deref()))
            .collect();
        assert_eq!(memory, [(8000, None, 4, None, Some("linear")), (9000, Some(1), -4, Some(6), None)]);
        let flows: Vec<_> = data.flows.iter().map(|f| (f.id, f.src_id, f.dst_id)).collect();
        assert_eq!(flows, [(7, 0, 1)]);
        let left_out: Vec<_> = data.omissions.iter().map(|o| (o.what.to_string(), o.amount)).collect();
        assert_eq!(left_out, [("memory events".to_string(), Some(1)), ("arrows".to_string(), Some(1))]);
    }
}
