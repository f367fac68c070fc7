//! The rows of the open part as columns.

use trace::{CollectiveRow, EventRow, MemoryRow, RecordBatch, Row, RowBuilder, Text};

use crate::kinds::CollectiveState;
use crate::names::{NO_SHAPE, NameId, Strings};
use crate::open_scopes::OpenScope;
use crate::queue_entry::{Collective, EventRecord, IS_COMM, IS_LINKED, MemoryRecord, NONE};
use crate::source_batch::{EventDetail, SourceEvent};
use crate::thread::unpack;

/// A value and the index of the thread or source that it came from.
pub(super) type Sourced<T> = (u32, T);

/// Columns with one value for all rows of a rank.
#[derive(Debug)]
pub(super) struct Constants {
    pub(super) rank: i32,
    pub(super) pid: i64,
}

/// Input of a part of `events`.
#[derive(Debug)]
pub(super) struct Parts<'p> {
    /// System ids of the threads, by index.
    pub(super) threads: &'p [i64],
    /// Intervals that threads recorded.
    pub(super) records: &'p mut [Sourced<EventRecord>],
    /// Events that sources handed over.
    pub(super) source_events: &'p mut [Sourced<SourceEvent>],
    /// Scopes that are open now.
    pub(super) open: &'p [Sourced<OpenScope>],
    pub(super) now_ns: i64,
}

/// Columns of `events`, sorted by start.
pub(super) fn event_batch(
    constants: &Constants,
    strings: &Strings,
    parts: Parts<'_>,
) -> Result<RecordBatch, trace::Error> {
    let Parts { threads, records, source_events, open, now_ns } = parts;
    // Equal starts are ordered by id: a parent has begun before its child.
    records.sort_unstable_by_key(|(_, record)| (record.ts_ns, record.id));
    source_events.sort_unstable_by_key(|(_, event)| (event.ts_ns, event.id));
    let mut open: Vec<Sourced<OpenScope>> = open.to_vec();
    open.sort_unstable_by_key(|(_, scope)| (scope.start_ns, scope.id));
    let texts = RowTexts::new(strings);
    let mut builder = <EventRow as Row>::Builder::default();
    let empty = EventRow { rank: constants.rank, pid: Some(constants.pid), ..EventRow::default() };
    // One row for each kind of input: a column that one kind sets must not leak into another.
    let (mut row, mut source_row) = (empty.clone(), empty);
    let (mut open, mut source_events) = (open.iter().peekable(), source_events.iter().peekable());
    // Pushes all rows that come before `key`.
    let mut before = |key: (i64, i64), builder: &mut <EventRow as Row>::Builder, row: &mut EventRow| {
        loop {
            let scope_key = open.peek().map_or((i64::MAX, i64::MAX), |(_, scope)| (scope.start_ns, scope.id));
            let limit = key.min(scope_key);
            while let Some((_, event)) = source_events.next_if(|(_, event)| (event.ts_ns, event.id) < limit) {
                fill_source(&mut source_row, &texts, event);
                builder.push(&source_row);
            }
            let Some((thread, scope)) = open.next_if(|_| scope_key < key) else { return };
            fill_open(row, &texts, thread_id(threads, *thread), scope, now_ns);
            builder.push(row);
        }
    };
    for (thread, record) in records.iter() {
        before((record.ts_ns, record.id), &mut builder, &mut row);
        fill(&mut row, &texts, thread_id(threads, *thread), record);
        builder.push(&row);
    }
    before((i64::MAX, i64::MAX), &mut builder, &mut row);
    builder.finish()
}

fn thread_id(threads: &[i64], thread: u32) -> Option<i64> {
    threads.get(thread as usize).copied().filter(|id| *id != 0)
}

fn known(value: i64) -> Option<i64> {
    (value != NONE).then_some(value)
}

fn fill(row: &mut EventRow, texts: &RowTexts<'_>, thread_id: Option<i64>, record: &EventRecord) {
    row.kind = record.kind.into();
    row.name = texts.name(record.name);
    row.ts_ns = record.ts_ns;
    row.dur_ns = record.dur_ns;
    row.id = record.id;
    row.step = Some(record.step);
    row.thread_id = thread_id;
    row.parent_id = known(record.parent_id);
    row.open = Some(false);
    row.is_comm = Some(record.flags & IS_COMM != 0);
    row.external_id = (record.flags & IS_LINKED != 0).then_some(record.id);
    row.bytes = known(record.bytes);
    row.flops = known(record.flops);
    let shape = texts.shape(record.shape);
    row.input_dims = shape.map(|(dims, _)| dims.clone());
    row.input_types = shape.map(|(_, types)| types.clone());
}

fn fill_open(row: &mut EventRow, texts: &RowTexts<'_>, thread_id: Option<i64>, scope: &OpenScope, now_ns: i64) {
    let Some((kind, name)) = unpack(scope.what) else { return };
    let record = EventRecord {
        id: scope.id,
        parent_id: scope.parent_id,
        ts_ns: scope.start_ns,
        dur_ns: now_ns.saturating_sub(scope.start_ns).max(0),
        bytes: NONE,
        flops: NONE,
        step: scope.step,
        name,
        shape: NO_SHAPE,
        kind,
        flags: 0,
    };
    fill(row, texts, thread_id, &record);
    row.open = Some(true);
    // The slot does not hold the guard's mark for communication.
    row.is_comm = None;
}

/// Fills in an event of a source; `row` already holds rank and process.
fn fill_source(row: &mut EventRow, texts: &RowTexts<'_>, event: &SourceEvent) {
    let constant = EventRow { rank: row.rank, pid: row.pid, ..EventRow::default() };
    *row = EventRow {
        kind: event.kind.into(),
        name: texts.name(event.name),
        ts_ns: event.ts_ns,
        dur_ns: event.dur_ns,
        id: event.id,
        step: Some(event.step),
        thread_id: known(event.thread_id),
        device_id: known(event.device_id),
        context_id: known(event.context_id),
        stream_id: known(event.stream_id),
        correlation_id: known(event.correlation_id),
        external_id: known(event.external_id),
        parent_id: known(event.parent_id),
        graph_id: known(event.graph_id),
        graph_node_id: known(event.graph_node_id),
        is_comm: Some(event.is_comm),
        open: Some(event.open),
        args: event.args.clone(),
        ..constant
    };
    match event.detail {
        EventDetail::None => {}
        EventDetail::Kernel { grid, block, registers, shared_mem_bytes, occupancy_pct } => {
            (row.grid, row.block) = (Some(grid.to_vec()), Some(block.to_vec()));
            row.registers = Some(registers);
            row.shared_mem_bytes = Some(shared_mem_bytes);
            row.occupancy_pct = occupancy_pct;
        }
        EventDetail::Copy { kind, bytes, devices } => {
            row.copy_kind = Some(kind.into());
            row.bytes = Some(bytes);
            row.bandwidth_gbs = bandwidth_gbs(bytes, event.dur_ns);
            row.src_device = devices.map(|(src, _)| src.into());
            row.dst_device = devices.map(|(_, dst)| dst.into());
        }
        EventDetail::Fill { bytes } => {
            row.bytes = Some(bytes);
            row.bandwidth_gbs = bandwidth_gbs(bytes, event.dur_ns);
        }
        EventDetail::Sync { kind } => row.sync_kind = Some(kind.into()),
    }
}

/// Bytes per nanosecond are GB/s.
fn bandwidth_gbs(bytes: i64, dur_ns: i64) -> Option<f64> {
    (dur_ns > 0).then(|| bytes as f64 / dur_ns as f64)
}

/// The texts of rows. Rows share each of them.
struct RowTexts<'s> {
    strings: &'s Strings,
    unknown: Text,
}

impl<'s> RowTexts<'s> {
    fn new(strings: &'s Strings) -> Self {
        Self { strings, unknown: "(name of another recorder)".into() }
    }

    fn name(&self, name: NameId) -> Text {
        self.strings.names.get(name.0 as usize).unwrap_or(&self.unknown).clone()
    }

    fn shape(&self, shape: u32) -> Option<&(Text, Text)> {
        self.strings.shapes.get(shape as usize)
    }
}

/// Columns of `collectives`, in the order of the iterator.
pub(super) fn collective_batch<'c>(
    constants: &Constants,
    strings: &Strings,
    collectives: impl Iterator<Item = &'c Collective>,
) -> Result<RecordBatch, trace::Error> {
    let texts = RowTexts::new(strings);
    let mut builder = <CollectiveRow as Row>::Builder::default();
    for c in collectives {
        let done = c.state == CollectiveState::Done;
        builder.push(&CollectiveRow {
            rank: constants.rank,
            comm_id: c.comm_id,
            comm_name: c.comm_name.map(|name| texts.name(name)),
            comm_size: c.comm_size,
            seq: Some(c.seq),
            op: c.op.into(),
            dtype: c.dtype.map(|name| texts.name(name).into()),
            count: c.count,
            bytes: c.bytes,
            root: c.root,
            peer: c.peer,
            step: c.step,
            bucket: c.bucket,
            ready_ns: c.ready_ns,
            enqueue_ns: c.enqueue_ns,
            start_ns: c.start_ns,
            end_ns: c.end_ns.filter(|_| done),
            state: c.state.into(),
            timing_source: c.timing_source.into(),
            event_id: c.event_id,
            device_id: c.device_id,
            stream_id: c.stream_id,
            ..CollectiveRow::default()
        });
    }
    builder.finish()
}

/// Columns of `memory`, sorted by time.
pub(super) fn memory_batch(
    constants: &Constants,
    strings: &Strings,
    records: &mut [Sourced<MemoryRecord>],
) -> Result<RecordBatch, trace::Error> {
    records.sort_by_key(|(_, record)| record.ts_ns);
    let texts = RowTexts::new(strings);
    let mut builder = <MemoryRow as Row>::Builder::default();
    for (_, MemoryRecord { ts_ns, memory }) in records.iter() {
        builder.push(&MemoryRow {
            rank: constants.rank,
            ts_ns: *ts_ns,
            device_id: memory.device_id,
            name: Some(texts.name(memory.name)),
            delta_bytes: memory.delta_bytes,
            allocated_bytes: memory.allocated_bytes,
            reserved_bytes: memory.reserved_bytes,
            address: memory.address,
            thread_id: None,
            stack: None,
        });
    }
    builder.finish()
}
