//! What the queues carry: fixed-size values that own nothing.

use crate::{CollectiveOp, CollectiveState, Kind, NameId, TimingSource};

/// No value, in fields where every true value is positive.
pub(crate) const NONE: i64 = -1;
/// Flag of [`EventRecord`]: the row is communication.
pub(crate) const IS_COMM: u8 = 1;
/// Flag of [`EventRecord`]: launches made in the row carry its id.
pub(crate) const IS_LINKED: u8 = 2;

/// One finished interval. One cache line, so that a push touches no more.
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

/// A collective as one rank saw it. Start from [`Collective::new`].
///
/// A collective in flight may be reported with state [`Enqueued`](CollectiveState::Enqueued) or
/// [`Started`](CollectiveState::Started) and again, with the same `comm_id`, `seq`, `op` and `peer`, when it is
/// [`Done`](CollectiveState::Done). The first reports become a row only if it is still in flight after
/// [`Options::part_period`](crate::Options::part_period) or at the end, so that a hang stays visible; the `Done` row
/// then stands in a later part.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Communicator, equal on all its ranks.
    pub comm_id: i64,
    /// Communicator's name.
    pub comm_name: Option<NameId>,
    /// Ranks in the communicator.
    pub comm_size: Option<i32>,
    /// Number of the collective on its communicator, equal on all its ranks.
    pub seq: i64,
    /// What it does.
    pub op: CollectiveOp,
    /// Element type.
    pub dtype: Option<NameId>,
    /// Elements.
    pub count: Option<i64>,
    /// Bytes of the whole array.
    pub bytes: Option<i64>,
    /// Root of a rooted operation.
    pub root: Option<i32>,
    /// Other side of a send or receive.
    pub peer: Option<i32>,
    /// Training step; `None`: the current one.
    pub step: Option<i32>,
    /// Gradient bucket.
    pub bucket: Option<i32>,
    /// The bucket's last gradient was produced.
    pub ready_ns: Option<i64>,
    /// Handed to the library.
    pub enqueue_ns: Option<i64>,
    /// Began.
    pub start_ns: Option<i64>,
    /// Ended.
    pub end_ns: Option<i64>,
    /// How far it came.
    pub state: CollectiveState,
    /// How good the times are.
    pub timing_source: TimingSource,
    /// Its row in `events`.
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
    /// What it holds.
    pub name: NameId,
    /// Size, negative for a release.
    pub delta_bytes: i64,
    /// Device; `None`: the host.
    pub device_id: Option<i64>,
    /// In use afterwards; `None` on the host: the recorder adds the deltas up.
    pub allocated_bytes: Option<i64>,
    /// Held by the allocator afterwards.
    pub reserved_bytes: Option<i64>,
    /// Address, by its bits.
    pub address: Option<i64>,
}

impl Memory {
    /// Host memory.
    pub fn host(name: NameId, delta_bytes: i64) -> Self {
        Self { name, delta_bytes, device_id: None, allocated_bytes: None, reserved_bytes: None, address: None }
    }
}

/// A [`Memory`] with its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRecord {
    pub(crate) ts_ns: i64,
    pub(crate) memory: Memory,
}

/// What is too rare to deserve a queue of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RareRecord {
    Collective(Collective),
    Memory(MemoryRecord),
}
