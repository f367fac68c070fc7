//! The rows of the part that is open: records as they came, and their way into columns.

use std::collections::BTreeMap;

use trace::{CollectiveRow, EventRow, MemoryRow, RecordBatch, Row, RowBuilder, Table, Text};

use crate::device::DeviceEvent;
use crate::names::{NameId, Strings};
use crate::open::OpenScope;
use crate::record::{Collective, EventRecord, IS_COMM, IS_LINKED, MemoryRecord, NONE};
use crate::thread::unpack;
use crate::{CollectiveOp, CollectiveState};

/// Rows of a small table that the program handed over.
#[derive(Debug)]
pub(crate) struct ColdRows {
    pub(crate) table: Table,
    pub(crate) batch: RecordBatch,
}

/// A record and the index of the thread that it came from.
pub(crate) type Sourced<T> = (u32, T);

/// Identity of a collective in flight.
pub(crate) type CollectiveKey = (i64, i64, &'static str, Option<i32>);

/// The key under which reports of one collective meet.
pub(crate) fn collective_key(c: &Collective) -> CollectiveKey {
    (c.comm_id, c.seq, c.op.as_str(), c.peer)
}

/// What stays the same for all rows of a rank.
#[derive(Debug)]
pub(crate) struct Constants {
    pub(crate) rank: i32,
    pub(crate) pid: i64,
}

/// What a part of `events` is made of.
#[derive(Debug)]
pub(crate) struct Parts<'p> {
    /// The system's thread ids.
    pub(crate) threads: &'p [i64],
    /// What threads recorded.
    pub(crate) records: &'p mut [Sourced<EventRecord>],
    /// What was learnt of devices.
    pub(crate) device: &'p mut [DeviceEvent],
    /// The scopes that are open now.
    pub(crate) open: &'p [Sourced<OpenScope>],
    pub(crate) now_ns: i64,
}

/// Columns of `events`, sorted by start.
pub(crate) fn event_batch(
    constants: &Constants,
    strings: &Strings,
    parts: Parts<'_>,
) -> Result<RecordBatch, trace::Error> {
    let Parts { threads, records, device, open, now_ns } = parts;
    // By id where starts are equal: a parent has begun before its child.
    records.sort_unstable_by_key(|(_, record)| (record.ts_ns, record.id));
    device.sort_unstable_by_key(|event| (event.ts_ns, event.id));
    let mut open: Vec<Sourced<OpenScope>> = open.to_vec();
    open.sort_unstable_by_key(|(_, scope)| (scope.start_ns, scope.id));
    let words = Words::new(strings);
    let mut builder = <EventRow as Row>::Builder::default();
    let empty = EventRow { rank: constants.rank, pid: Some(constants.pid), ..EventRow::default() };
    // A row each: what one kind of row sets must not show in another.
    let (mut row, mut device_row) = (empty.clone(), empty);
    let (mut open, mut device) = (open.iter().peekable(), device.iter().peekable());
    // All that comes before `key`; ends with everything.
    let mut before = |key: (i64, i64), builder: &mut <EventRow as Row>::Builder, row: &mut EventRow| {
        loop {
            let scope_key = open.peek().map_or((i64::MAX, i64::MAX), |(_, scope)| (scope.start_ns, scope.id));
            let limit = key.min(scope_key);
            while let Some(event) = device.next_if(|event| (event.ts_ns, event.id) < limit) {
                event.fill(&mut device_row, &words);
                builder.push(&device_row);
            }
            let Some((thread, scope)) = open.next_if(|_| scope_key < key) else { return };
            fill_open(row, &words, thread_id(threads, *thread), scope, now_ns);
            builder.push(row);
        }
    };
    for (thread, record) in records.iter() {
        before((record.ts_ns, record.id), &mut builder, &mut row);
        fill(&mut row, &words, thread_id(threads, *thread), record);
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

fn fill(row: &mut EventRow, words: &Words<'_>, thread_id: Option<i64>, record: &EventRecord) {
    row.kind = words.kind(record.kind);
    row.name = words.name(record.name);
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
    let shape = words.shape(record.shape);
    row.input_dims = shape.map(|(dims, _)| dims.clone());
    row.input_types = shape.map(|(_, types)| types.clone());
}

fn fill_open(row: &mut EventRow, words: &Words<'_>, thread_id: Option<i64>, scope: &OpenScope, now_ns: i64) {
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
        shape: crate::names::NO_SHAPE,
        kind,
        flags: 0,
    };
    fill(row, words, thread_id, &record);
    row.open = Some(true);
    // Marked when the guard was made, but not known to the slot.
    row.is_comm = None;
}

/// The strings of rows, each shared once.
pub(crate) struct Words<'s> {
    strings: &'s Strings,
    kinds: Vec<Text>,
    unknown: Text,
}

impl<'s> Words<'s> {
    fn new(strings: &'s Strings) -> Self {
        let kinds = crate::Kind::ALL.iter().map(|kind| kind.as_str().into()).collect();
        Self { strings, kinds, unknown: "(name of another recorder)".into() }
    }

    pub(crate) fn kind(&self, kind: crate::Kind) -> Text {
        self.kinds.get(kind as usize).unwrap_or(&self.unknown).clone()
    }

    pub(crate) fn name(&self, name: NameId) -> Text {
        self.strings.names.get(name.0 as usize).unwrap_or(&self.unknown).clone()
    }

    fn shape(&self, shape: u32) -> Option<&(Text, Text)> {
        self.strings.shapes.get(shape as usize)
    }
}

/// Columns of `collectives`, in the order of arrival: the finished ones, then those in flight.
pub(crate) fn collective_batch<'c>(
    constants: &Constants,
    strings: &Strings,
    collectives: impl Iterator<Item = &'c Collective>,
) -> Result<RecordBatch, trace::Error> {
    let words = Words::new(strings);
    let ops: BTreeMap<&str, Text> = CollectiveOp::ALL.iter().map(|op| (op.as_str(), op.as_str().into())).collect();
    let mut builder = <CollectiveRow as Row>::Builder::default();
    for c in collectives {
        let done = c.state == CollectiveState::Done;
        builder.push(&CollectiveRow {
            rank: constants.rank,
            comm_id: c.comm_id,
            comm_name: c.comm_name.map(|name| words.name(name)),
            comm_size: c.comm_size,
            seq: Some(c.seq),
            op: ops.get(c.op.as_str()).unwrap_or(&words.unknown).clone(),
            dtype: c.dtype.map(|name| words.name(name)),
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
            state: c.state.as_str().into(),
            timing_source: c.timing_source.as_str().into(),
            event_id: c.event_id,
            device_id: c.device_id,
            stream_id: c.stream_id,
            ..CollectiveRow::default()
        });
    }
    builder.finish()
}

/// Columns of `memory`, sorted by time.
pub(crate) fn memory_batch(
    constants: &Constants,
    strings: &Strings,
    records: &mut [Sourced<MemoryRecord>],
) -> Result<RecordBatch, trace::Error> {
    records.sort_by_key(|(_, record)| record.ts_ns);
    let words = Words::new(strings);
    let mut builder = <MemoryRow as Row>::Builder::default();
    for (_, MemoryRecord { ts_ns, memory }) in records.iter() {
        builder.push(&MemoryRow {
            rank: constants.rank,
            ts_ns: *ts_ns,
            device_id: memory.device_id,
            name: Some(words.name(memory.name)),
            delta_bytes: memory.delta_bytes,
            allocated_bytes: memory.allocated_bytes,
            reserved_bytes: memory.reserved_bytes,
            address: memory.address,
        });
    }
    builder.finish()
}
