//! Rows of the tables of devices, memory and arrows.

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::name_rules::is_step;
use trace::rank::{Kind, NO_PARENT, NONE, enclosing, innermost_at, outermost};
use trace::{DeviceRow, FlowRow, MemoryRow};

use crate::bytes::value::Value;
use crate::columns::batch::Allocation;
use crate::columns::rows::Rows;
/// torch's `DeviceType` of the host.
const DEVICE_TYPE_CPU: i64 = 0;
/// Rows in one task of a thread.
const MIN_ROWS: usize = 1 << 14;

/// Allocations and releases, sorted by time, each with the outermost operator around it.
pub(crate) fn memory_rows(rows: &Rows, allocations: Vec<(Allocation, (i64, i64))>, rank: i32) -> Vec<MemoryRow> {
    let known = |value: i64| Some(value).filter(|v| *v != NONE);
    if allocations.is_empty() {
        return Vec::new();
    }
    // Old traces have steps as operators.
    let is_mark: Vec<bool> = rows.names.iter().map(|name| is_step(name)).collect();
    let is_operator = |row: usize| rows.events.kind[row] == Kind::CpuOp && !is_mark[rows.events.name[row] as usize];
    let (around, operators) = rayon::join(
        || innermost_at(&rows.events, allocations.iter().map(|(a, (_, thread))| (a.ts_ns, *thread))),
        || outermost(&rows.events, &is_operator),
    );
    allocations
        .into_par_iter()
        .zip(around)
        .with_min_len(MIN_ROWS)
        .map(|((a, (_, thread)), row)| MemoryRow {
            rank,
            ts_ns: a.ts_ns,
            device_id: known(a.device_id).filter(|id| a.device_type != DEVICE_TYPE_CPU && *id >= 0),
            name: outermost_operator(rows, &is_operator, &operators, row, a.ts_ns)
                .map(|row| rows.names[rows.events.name[row] as usize].clone()),
            delta_bytes: a.bytes,
            allocated_bytes: known(a.allocated),
            reserved_bytes: known(a.reserved).filter(|_| a.device_type != DEVICE_TYPE_CPU),
            address: known(a.address),
            thread_id: known(thread),
            stack: None,
        })
        .collect()
}

/// The outermost operator that encloses a time, from `row`, the innermost row there. `operators` has the outermost
/// operator around each row.
fn outermost_operator(
    rows: &Rows,
    is_operator: &impl Fn(usize) -> bool,
    operators: &[u32],
    row: u32,
    ts_ns: i64,
) -> Option<usize> {
    let row = (row != NO_PARENT).then_some(row as usize);
    let encloses = |row: &usize| is_operator(*row) && rows.events.end_ns(*row) >= ts_ns;
    let outermost = row.map(|row| operators[row]).filter(|operator| *operator != NO_PARENT);
    // In whole µs, an operator may seem to end before the last row inside of it does.
    let around = || std::iter::successors(row, |row| enclosing(&rows.events, *row));
    outermost.map(|row| row as usize).filter(encloses).or_else(|| around().filter(encloses).last())
}

/// The rows of `deviceProperties`.
pub(crate) fn device_rows(properties: Option<&Value>, rank: i32) -> Vec<DeviceRow> {
    let row = |device: &Value| {
        let text = |key: &str| device.get(key).and_then(Value::text).map(Into::into);
        let integer = |key: &str| device.get(key).and_then(Value::integer);
        let narrow = |key: &str| integer(key).and_then(|n| i32::try_from(n).ok());
        Some(DeviceRow {
            rank,
            device_id: integer("id")?,
            name: text("name"),
            uuid: text("uuid"),
            sm_count: narrow("numSms"),
            max_threads_per_sm: narrow("maxThreadsPerMultiprocessor"),
            registers_per_sm: narrow("regsPerMultiprocessor"),
            shared_mem_per_sm_bytes: integer("sharedMemPerMultiprocessor"),
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
    let mut times: Vec<i64> = ends.iter().map(|(end, _)| end.ts_ns).collect();
    times.sort_unstable();
    let mut times = times.into_iter().peekable();
    let mut starts: FxHashMap<(i64, i64), i64> = FxHashMap::default();
    // Rows are sorted by start too, and few operators begin where an arrow ends.
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::CpuOp) {
        let ts_ns = events.ts_ns[row];
        while times.next_if(|time| *time < ts_ns).is_some() {}
        if times.peek() == Some(&ts_ns) {
            starts.entry((events.thread[row], ts_ns)).or_insert(events.id[row]);
        }
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
