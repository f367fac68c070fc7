//! Rows that were not recorded by a thread of the program but learnt of later: what a device did, and the calls that
//! made it do so.

use trace::{EventRow, Text};

use crate::buffers::Words;
use crate::record::{Collective, MemoryRecord, NONE};
use crate::{Kind, NameId};

/// Which kernel, copy or wait it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Detail {
    None,
    Kernel { grid: [i32; 3], block: [i32; 3], registers: i32, shared_mem_bytes: i64, occupancy_pct: Option<f64> },
    Copy { kind: &'static str, bytes: i64, devices: Option<(u32, u32)> },
    Fill { bytes: i64 },
    Sync { kind: &'static str },
}

/// One interval. [`NONE`] stands for what is not known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeviceEvent {
    pub(crate) id: i64,
    pub(crate) kind: Kind,
    pub(crate) name: NameId,
    pub(crate) ts_ns: i64,
    pub(crate) dur_ns: i64,
    pub(crate) step: i32,
    pub(crate) thread_id: i64,
    pub(crate) device_id: i64,
    pub(crate) context_id: i64,
    pub(crate) stream_id: i64,
    pub(crate) correlation_id: i64,
    pub(crate) external_id: i64,
    pub(crate) parent_id: i64,
    pub(crate) graph_id: i64,
    pub(crate) graph_node_id: i64,
    pub(crate) is_comm: bool,
    pub(crate) open: bool,
    pub(crate) detail: Detail,
    pub(crate) args: Option<Text>,
}

impl DeviceEvent {
    /// An interval of which nothing else is known yet. An end before the start counts as the start.
    pub(crate) fn new(id: i64, kind: Kind, name: NameId, start_ns: i64, end_ns: i64) -> Self {
        Self {
            id,
            kind,
            name,
            ts_ns: start_ns,
            dur_ns: end_ns.saturating_sub(start_ns).max(0),
            step: -1,
            thread_id: NONE,
            device_id: NONE,
            context_id: NONE,
            stream_id: NONE,
            correlation_id: NONE,
            external_id: NONE,
            parent_id: NONE,
            graph_id: NONE,
            graph_node_id: NONE,
            is_comm: false,
            open: false,
            detail: Detail::None,
            args: None,
        }
    }

    /// As a row; `row` brings what is the same for all.
    pub(crate) fn fill(&self, row: &mut EventRow, words: &Words<'_>) {
        let known = |value: i64| (value != NONE).then_some(value);
        let constant = EventRow { rank: row.rank, pid: row.pid, ..EventRow::default() };
        *row = EventRow {
            kind: words.kind(self.kind),
            name: words.name(self.name),
            ts_ns: self.ts_ns,
            dur_ns: self.dur_ns,
            id: self.id,
            step: Some(self.step),
            thread_id: known(self.thread_id),
            device_id: known(self.device_id),
            context_id: known(self.context_id),
            stream_id: known(self.stream_id),
            correlation_id: known(self.correlation_id),
            external_id: known(self.external_id),
            parent_id: known(self.parent_id),
            graph_id: known(self.graph_id),
            graph_node_id: known(self.graph_node_id),
            is_comm: Some(self.is_comm),
            open: Some(self.open),
            args: self.args.clone(),
            ..constant
        };
        self.fill_detail(row);
    }

    fn fill_detail(&self, row: &mut EventRow) {
        match self.detail {
            Detail::None => {}
            Detail::Kernel { grid, block, registers, shared_mem_bytes, occupancy_pct } => {
                (row.grid, row.block) = (Some(grid.to_vec()), Some(block.to_vec()));
                row.registers = Some(registers);
                row.shared_mem_bytes = Some(shared_mem_bytes);
                row.occupancy_pct = occupancy_pct;
            }
            Detail::Copy { kind, bytes, devices } => {
                row.copy_kind = Some(kind.into());
                row.bytes = Some(bytes);
                row.bandwidth_gbs = self.bandwidth_gbs(bytes);
                row.src_device = devices.map(|(src, _)| src.into());
                row.dst_device = devices.map(|(_, dst)| dst.into());
            }
            Detail::Fill { bytes } => {
                row.bytes = Some(bytes);
                row.bandwidth_gbs = self.bandwidth_gbs(bytes);
            }
            Detail::Sync { kind } => row.sync_kind = Some(kind.into()),
        }
    }

    /// Bytes per nanosecond are GB/s.
    fn bandwidth_gbs(&self, bytes: i64) -> Option<f64> {
        (self.dur_ns > 0).then(|| bytes as f64 / self.dur_ns as f64)
    }
}

/// A kernel of the communication library, in the recorder's clock, with the row of the launch that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommKernel {
    pub(crate) launch: i64,
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
}

/// What a source lost or left out since it last said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) source: String,
    pub(crate) dropped: u64,
    pub(crate) omitted: u64,
    pub(crate) why: String,
}

/// What a source beside the threads of the program hands over at once.
#[derive(Debug, Default)]
pub(crate) struct DeviceBatch {
    pub(crate) events: Vec<DeviceEvent>,
    pub(crate) memory: Vec<MemoryRecord>,
    /// Collectives that are done, with their times.
    pub(crate) collectives: Vec<Collective>,
    pub(crate) missing: Vec<Missing>,
}

impl DeviceBatch {
    /// Rows that it will make.
    pub(crate) fn rows(&self) -> usize {
        self.events.len() + self.memory.len() + self.collectives.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows() == 0 && self.missing.is_empty()
    }
}
