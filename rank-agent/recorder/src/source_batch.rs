//! Batches of rows from a source: a library beside the program's threads that reports later what a device did, and
//! which calls launched that work.

use trace::Text;

use crate::kinds::Kind;
use crate::names::NameId;
use crate::queue_entry::{Collective, MemoryRecord, NONE};

/// Columns of an event that depend on its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventDetail {
    /// No such columns.
    None,
    /// A kernel.
    Kernel {
        /// Grid dimensions.
        grid: [i32; 3],
        /// Block dimensions.
        block: [i32; 3],
        /// Registers per thread.
        registers: i32,
        /// Static and dynamic shared memory.
        shared_mem_bytes: i64,
        /// Estimated achieved occupancy.
        occupancy_pct: Option<f64>,
    },
    /// A copy.
    Copy {
        /// Direction, as in the column `copy_kind`.
        kind: &'static str,
        /// Size.
        bytes: i64,
        /// Source and destination device of a copy between devices.
        devices: Option<(u32, u32)>,
    },
    /// A memset.
    Fill {
        /// Size.
        bytes: i64,
    },
    /// A synchronization.
    Sync {
        /// Word of the column `sync_kind`.
        kind: &'static str,
    },
}

/// A row of `events` from a source. [`NONE`] stands for an unknown value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are the columns of `events`")]
pub struct SourceEvent {
    pub id: i64,
    pub kind: Kind,
    pub name: NameId,
    pub ts_ns: i64,
    pub dur_ns: i64,
    pub step: i32,
    pub thread_id: i64,
    pub device_id: i64,
    pub context_id: i64,
    pub stream_id: i64,
    pub correlation_id: i64,
    pub external_id: i64,
    pub parent_id: i64,
    pub graph_id: i64,
    pub graph_node_id: i64,
    pub is_comm: bool,
    pub open: bool,
    pub detail: EventDetail,
    pub args: Option<Text>,
}

impl SourceEvent {
    /// An interval with all other columns unknown. An end before the start counts as the start.
    pub fn new(id: i64, kind: Kind, name: NameId, start_ns: i64, end_ns: i64) -> Self {
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
            detail: EventDetail::None,
            args: None,
        }
    }
}

/// Rows that a source lost or left out since its last batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Value of the column `source` of `counters`.
    pub source: String,
    /// Number of rows lost.
    pub dropped: u64,
    /// Number of rows left out on purpose.
    pub omitted: u64,
    /// Reason.
    pub why: String,
}

/// Rows that a source hands over at once.
#[derive(Debug, Default)]
pub struct SourceBatch {
    /// Name of the source in the column `source` of `counters`.
    pub source: &'static str,
    /// Rows of `events`.
    pub events: Vec<SourceEvent>,
    /// Rows of `memory`.
    pub memory: Vec<MemoryRecord>,
    /// Finished collectives with their times.
    pub collectives: Vec<Collective>,
    /// Rows that are missing.
    pub missing: Vec<Missing>,
}

impl SourceBatch {
    /// Number of rows that the batch becomes.
    pub fn rows(&self) -> usize {
        self.events.len() + self.memory.len() + self.collectives.len()
    }

    /// Whether the batch holds neither rows nor counts of missing rows.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0 && self.missing.is_empty()
    }
}
