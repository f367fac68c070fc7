//! Entries of the threads' queues: fixed-size values that own no memory.

use crate::kinds::{CollectiveOp, CollectiveState, Kind, TimingSource};
use crate::names::NameId;

/// Stands for an unknown value in fields whose known values are positive.
pub const NONE: i64 = -1;
/// Flag of [`EventRecord`]: the row is communication.
pub(crate) const IS_COMM: u8 = 1;
/// Flag of [`EventRecord`]: launches made inside the row carry its id.
pub(crate) const IS_LINKED: u8 = 2;

/// A finished interval. It fills one cache line, so that a push touches only one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRecord {
    pub(crate) id: i64,
    pub(crate) parent_id: i64,
    pub(crate) ts_ns: i64,
    pub(crate) dur_ns: i64,
    pub(crate) bytes: i64,
    pub(crate) flops: i64,
    pub(crate) step: i32,
    pub(crate) name: NameId,
    pub(crate) shape: u32,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
}

const _: () = assert!(size_of::<EventRecord>() == 64, "an event record is one cache line");

/// A collective as one rank recorded it. Start from [`Collective::new`].
///
/// A collective in flight may be reported with state [`Enqueued`](CollectiveState::Enqueued) or
/// [`Started`](CollectiveState::Started), and again, with the same `comm_id`, `seq`, `op` and `peer`, when it is
/// [`Done`](CollectiveState::Done) or [`Unreported`](CollectiveState::Unreported). The earlier reports become a row only if the collective is still in flight after
/// [`Options::part_period`](crate::Options::part_period) or at the end, so that a hang stays visible; a later part then
/// holds the `Done` row.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Communicator id, equal on all its ranks.
    pub comm_id: i64,
    /// Name of the communicator.
    pub comm_name: Option<NameId>,
    /// Number of ranks in the communicator.
    pub comm_size: Option<i32>,
    /// Sequence number on the communicator, equal on all its ranks.
    pub seq: i64,
    /// Operation.
    pub op: CollectiveOp,
    /// Element type.
    pub dtype: Option<NameId>,
    /// Number of elements.
    pub count: Option<i64>,
    /// Bytes of the whole array.
    pub bytes: Option<i64>,
    /// Root of a rooted operation.
    pub root: Option<i32>,
    /// Peer of a send or receive.
    pub peer: Option<i32>,
    /// Training step; `None`: the current one.
    pub step: Option<i32>,
    /// Gradient bucket.
    pub bucket: Option<i32>,
    /// Time at which the bucket's last gradient was ready.
    pub ready_ns: Option<i64>,
    /// Time of the call to the communication library.
    pub enqueue_ns: Option<i64>,
    /// Start time.
    pub start_ns: Option<i64>,
    /// End time.
    pub end_ns: Option<i64>,
    /// State.
    pub state: CollectiveState,
    /// Source of the times.
    pub timing_source: TimingSource,
    /// Id of the row in `events`.
    pub event_id: Option<i64>,
    /// Device it ran on.
    pub device_id: Option<i64>,
    /// Stream it ran on.
    pub stream_id: Option<i64>,
}

impl Collective {
    /// Collective number `seq` on `comm_id`, done, timed by the host, everything else unknown.
    pub fn new(comm_id: i64, seq: i64, op: CollectiveOp) -> Self {
        Self {
            comm_id,
            comm_name: None,
            comm_size: None,
            seq,
            op,
            dtype: None,
            count: None,
            bytes: None,
            root: None,
            peer: None,
            step: None,
            bucket: None,
            ready_ns: None,
            enqueue_ns: None,
            start_ns: None,
            end_ns: None,
            state: CollectiveState::Done,
            timing_source: TimingSource::Host,
            event_id: None,
            device_id: None,
            stream_id: None,
        }
    }
}

/// An allocation or a release.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Name of the allocation.
    pub name: NameId,
    /// Size in bytes, negative for a release.
    pub delta_bytes: i64,
    /// Device; `None`: the host.
    pub device_id: Option<i64>,
    /// Bytes in use afterwards. `None` for host memory: the recorder sums up the deltas.
    pub allocated_bytes: Option<i64>,
    /// Bytes that the allocator holds afterwards.
    pub reserved_bytes: Option<i64>,
    /// Address, with its bits unchanged.
    pub address: Option<i64>,
}

impl Memory {
    /// An allocation or a release of host memory.
    pub fn host(name: NameId, delta_bytes: i64) -> Self {
        Self { name, delta_bytes, device_id: None, allocated_bytes: None, reserved_bytes: None, address: None }
    }
}

/// A [`Memory`] with its time.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRecord {
    /// Time of the allocation or release, in the recorder's clock.
    pub ts_ns: i64,
    /// The allocation or release.
    pub memory: Memory,
}

/// An entry of the queue that rare kinds of rows share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RareRecord {
    Collective(Collective),
    Memory(MemoryRecord),
}
