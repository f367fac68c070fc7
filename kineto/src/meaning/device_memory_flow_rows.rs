//! Rows of the tables of devices, memory and arrows.

use rustc_hash::FxHashMap;
use trace::rank::{Events, Kind, NO_PARENT, NONE};
use trace::{DeviceRow, FlowRow, MemoryRow};

use crate::bytes::value::Value;
use crate::columns::batch::Allocation;
use crate::columns::rows::Rows;
/// torch's `DeviceType` of the host.
const DEVICE_TYPE_CPU: i64 = 0;

/// Allocations and releases, sorted by time, each with the outermost operator around it.
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

/// The outermost operator on a thread at a time, for places sorted by time.
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

/// The rows of `deviceProperties`.
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

/// Arrows between forward and backward operators, and the number of arrows that lack an end.
///
/// An arrow's end has a thread and a time instead of a row. It belongs to the operator that begins there.
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
    let mut incomplete = 0;
    for id in order {
        match arrows.get(&id) {
            Some((Some(src_id), Some(dst_id))) => {
                flows.push(FlowRow { rank, id, kind: "fwdbwd".into(), src_id: *src_id, dst_id: *dst_id });
            }
            _ => incomplete += 1,
        }
    }
    (flows, incomplete)
}
