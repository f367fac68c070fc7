//! What the sources of exports share: rows that become the columns of a rank, with steps and the collectives of its kernels.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use trace::name_rules::kind_of;
use trace::rank::{Launches, communicates};
use trace::{CollectiveRow, OmissionRow, fnv_1a};

use crate::names::Names;
use crate::run::{RawColumns, merge_parts};
use kineto::{LEFT_OUT_MARKS, Steps};
use model::steps::assign_steps;
use model::{Events, Kind, NO_STEP, NONE, RankData, RankInfo};

/// Memory of a row, with what the analysis makes of it.
const ROW_BYTES: u64 = 256;

/// A row to add; unknown columns are `None`.
#[derive(Clone, Copy, Default)]
pub(super) struct Added {
    pub(super) start: Option<i64>,
    pub(super) end: Option<i64>,
    pub(super) thread: Option<i64>,
    pub(super) device: Option<i64>,
    pub(super) stream: Option<i64>,
    pub(super) correlation: Option<i64>,
    pub(super) bytes: Option<i64>,
}

/// The rows of a rank while they are read.
pub(super) struct Rows {
    pub(super) raw: RawColumns,
    names: Names,
    max_rows: usize,
    /// Rows without possible times.
    timeless: i64,
    /// Rows beyond the memory.
    too_many: i64,
}

impl Rows {
    /// No rows yet; they may take `max_memory_bytes`.
    pub(super) fn within(max_memory_bytes: u64) -> Self {
        let max_rows = usize::try_from(max_memory_bytes / ROW_BYTES).unwrap_or(usize::MAX).min(u32::MAX as usize - 1);
        Self { raw: RawColumns::with_capacity(0), names: Names::default(), max_rows, timeless: 0, too_many: 0 }
    }

    /// The number of a name.
    pub(super) fn name(&mut self, name: &str) -> u32 {
        self.names.id(name)
    }

    /// Adds a row; `None` if it has no possible times or no room.
    pub(super) fn add(&mut self, kind: Kind, name: &str, row: Added) -> Option<i64> {
        if self.has_room() {
            let name = self.name(name);
            self.add_named(kind, name, row)
        } else {
            None
        }
    }

    /// As [`add`](Self::add), with the number of a name.
    pub(super) fn add_named(&mut self, kind: Kind, name: u32, row: Added) -> Option<i64> {
        let times = row.start.zip(row.end).and_then(|(start, end)| Some((start, end.checked_sub(start)?)));
        let Some((ts_ns, dur_ns)) = times else {
            self.timeless += 1;
            return None;
        };
        if !self.has_room() {
            return None;
        }
        // The runtime of HIP copies by kernels of its own. Their names tell, as in a run.
        let kind =
            if kind == Kind::Kernel { kind_of("kernel", self.names.list[name as usize].as_bytes()) } else { kind };
        let is_comm = communicates(self.names.classes[name as usize], kind, None);
        let events = &mut self.raw.events;
        let id = events.len() as i64;
        events.kind.push(kind);
        events.name.push(name);
        events.ts_ns.push(ts_ns);
        events.dur_ns.push(dur_ns);
        events.id.push(id);
        events.step.push(NO_STEP);
        events.thread.push(row.thread.unwrap_or(NONE));
        events.device.push(row.device.unwrap_or(NONE));
        events.stream.push(row.stream.unwrap_or(NONE));
        events.correlation.push(row.correlation.unwrap_or(NONE));
        events.external.push(NONE);
        events.is_comm.push(is_comm);
        events.bytes.push(row.bytes.unwrap_or(NONE));
        events.flops.push(NONE);
        Some(id)
    }

    /// Whether one more row has room. One that has none is counted.
    fn has_room(&mut self) -> bool {
        self.has_room_beside(0)
    }

    /// As [`has_room`](Self::has_room), beside `more` rows that will be added first.
    pub(super) fn has_room_beside(&mut self, more: usize) -> bool {
        let has_room = self.raw.events.len().saturating_add(more) < self.max_rows;
        self.too_many += i64::from(!has_room);
        has_room
    }

    /// What was counted and not added: what it is, how many, and why.
    pub(super) fn lost(&self) -> [(&'static str, i64, &'static str); 2] {
        [
            ("events", self.timeless, "they have no start or no end, or times beyond 64 bits"),
            ("events", self.too_many, "they need more memory than a rank may take; give more with --max-memory"),
        ]
    }

    /// The rank of these rows. `loose` are ids of rows that enclose nothing, ascending.
    pub(super) fn into_rank(mut self, info: RankInfo, loose: &[i64], mut omissions: Vec<OmissionRow>) -> RankData {
        self.raw.parent_id = parents(&self.raw, loose);
        let mut data = RankData { kernel_use: std::mem::take(&mut self.raw.kernel_use), ..RankData::default() };
        data.names = self.names.list;
        data.events = merge_parts(self.raw, info.rank, &mut omissions);
        data.outline.info = info;
        list(&mut data, omissions);
        data
    }
}

/// The sides of a grid or a block, if all are known.
pub(super) fn sides_of<N: TryFrom<i64>>(sides: [Option<i64>; 3]) -> Option<[N; 3]> {
    let side = |side: Option<i64>| N::try_from(side.filter(|side| *side > 0)?).ok();
    let [x, y, z] = sides;
    Some([side(x)?, side(y)?, side(z)?])
}

/// Omissions of those that were counted.
pub(super) fn counted(
    rows: &[(&'static str, i64, &'static str)],
    make: fn(&'static str, &'static str) -> OmissionRow,
) -> Vec<OmissionRow> {
    let counted = rows.iter().filter(|(_, amount, _)| *amount > 0);
    counted.map(|(what, amount, why)| make(what, why).amount(*amount)).collect()
}

/// Lists omissions with the rank and its file.
pub(super) fn list(data: &mut RankData, omissions: impl IntoIterator<Item = OmissionRow>) {
    let RankInfo { rank, file, .. } = &data.outline.info;
    data.omissions.extend(omissions.into_iter().map(|omission| omission.rank(*rank).file(file.clone())));
}

/// Gives the rows of a rank their steps, and lists the marks that are none.
pub(super) fn step(data: &mut RankData, Steps { rows, left_out }: Steps) {
    if left_out > 0 {
        let (what, why) = LEFT_OUT_MARKS;
        list(data, [OmissionRow::left_out(what, why).amount(left_out)]);
    }
    if !rows.is_empty() {
        data.outline.steps = rows;
        assign_steps(data);
    }
}

/// The row of each id.
pub(super) fn rows_by_id(events: &Events) -> FxHashMap<i64, usize> {
    events.id.iter().enumerate().map(|(row, id)| (*id, row)).collect()
}

/// The kernels that communicate by their names, with their operations.
pub(super) fn collective_kernels(data: &RankData) -> Vec<(usize, &'static str)> {
    let operations: Vec<Option<&'static str>> = data.names.iter().map(|name| kineto::operation(name)).collect();
    let events = &data.events;
    let communicates = |row: &usize| events.kind[*row] == Kind::Kernel && events.is_comm[*row];
    let kernels = (0..events.len()).filter(communicates);
    kernels.filter_map(|row| Some((row, operations[events.name[row] as usize]?))).collect()
}

/// The collective of a kernel.
pub(super) fn collective_row(data: &RankData, (row, op): (usize, &'static str), launches: &Launches) -> CollectiveRow {
    let events = &data.events;
    let known = |value: i64| Some(value).filter(|value| *value != NONE);
    let name = &data.names[events.name[row] as usize];
    let (algo, proto) = kineto::algorithm(name);
    CollectiveRow {
        rank: data.outline.info.rank,
        op: op.into(),
        dtype: kineto::kernel_dtype(name).map(Into::into),
        step: Some(events.step[row]).filter(|step| *step != NO_STEP),
        enqueue_ns: launches.of(events.correlation[row]).map(|launch| events.ts_ns[launch as usize]),
        start_ns: Some(events.ts_ns[row]),
        end_ns: Some(events.end_ns(row)),
        state: "done".into(),
        stream_id: known(events.stream[row]),
        device_id: known(events.device[row]),
        algo: algo.map(Into::into),
        proto: proto.map(Into::into),
        timing_source: "cupti".into(),
        event_id: Some(events.id[row]),
        ..CollectiveRow::default()
    }
}

/// Tells communicators that nothing names apart by the streams of their kernels. Each process numbers its own streams, so their order counts.
pub(super) fn by_order_of_streams(rows: &mut [CollectiveRow]) {
    let streams: BTreeSet<(Option<i64>, Option<i64>)> = rows.iter().map(|row| (row.device_id, row.stream_id)).collect();
    if streams.len() < 2 {
        return;
    }
    for row in rows {
        let stream = (row.device_id, row.stream_id);
        let place = streams.iter().position(|other| *other == stream).unwrap_or_default() as i64 + 1;
        row.comm_id = place;
        row.comm_name = Some(format!("stream {place} of communication").into());
    }
}

/// An id of a communicator that all members compute alike, of what they know of it, such as their numbers. It is never one of a stream,
/// nor that of all ranks.
pub(super) fn comm_id_of(known: &[i32]) -> i64 {
    let hash = fnv_1a(known.iter().flat_map(|number| number.to_le_bytes()));
    (hash | 1 << 62).cast_signed()
}

/// The id of the enclosing row of the same thread, for each row. `loose` are ids of rows that enclose nothing, ascending.
fn parents(raw: &RawColumns, loose: &[i64]) -> Vec<i64> {
    let events = &raw.events;
    let mut parents = vec![NONE; events.len()];
    let is_nested = |row: &usize| events.thread[*row] != NONE && loose.binary_search(&events.id[*row]).is_err();
    let mut host: Vec<usize> = (0..events.len()).filter(is_nested).collect();
    host.sort_by_key(|row| (events.thread[*row], events.ts_ns[*row], std::cmp::Reverse(events.dur_ns[*row]), *row));
    let mut open: Vec<usize> = Vec::new();
    for row in host {
        let is_over = |outer: usize| {
            events.thread[outer] != events.thread[row]
                || events.end_ns(outer) < events.end_ns(row)
                || events.end_ns(outer) <= events.ts_ns[row]
        };
        while open.last().is_some_and(|outer| is_over(*outer)) {
            open.pop();
        }
        parents[row] = open.last().map_or(NONE, |outer| events.id[*outer]);
        open.push(row);
    }
    parents
}
