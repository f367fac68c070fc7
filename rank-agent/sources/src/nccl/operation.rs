//! An operation with its launch, its channels and its proxy operations.

use recorder::CollectiveState;
use trace::Text;

use super::record::{ProxyOp, state};

/// An operation that used fewer channels than announced has ended if no event arrived for this long. Sends and receives
/// announce more channels than they use (NCCL's issue 2056).
const QUIET_NS: i64 = 1_000_000_000;

/// The launch of a group's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launched {
    pub(super) at_ns: i64,
    pub(super) end_ns: Option<i64>,
    pub(super) row: i64,
    pub(super) thread_id: i64,
    pub(super) step: i32,
}

/// A group of calls, with broadcasts for which NCCL may report only the call.
#[derive(Debug)]
pub(super) struct CallGroup {
    /// The group, as the launch of its broadcasts.
    pub(super) launch: Launched,
    /// Handles of the calls of broadcasts.
    pub(super) broadcasts: Vec<u64>,
}

/// A channel of an operation, a phase of a channel, or a part of a copy engine's operation.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    pub(super) channel: Option<i32>,
    pub(super) phase: Option<Text>,
    pub(super) gpu_start_ns: u64,
    pub(super) gpu_end_ns: u64,
    pub(super) seen_start_ns: i64,
    pub(super) seen_end_ns: Option<i64>,
    pub(super) bytes: Option<i64>,
    pub(super) suspect: bool,
}

/// Times that the steps of a proxy operation waited, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waits {
    pub(super) gpu_ns: i64,
    pub(super) peer_ns: i64,
    pub(super) net_ns: i64,
    pub(super) flush_ns: i64,
}

impl Waits {
    /// Adds the time that a step spent in a state.
    pub(super) fn add(&mut self, step_state: i32, ns: i64) {
        let wait = match step_state {
            state::SEND_GPU_WAIT | state::RECV_GPU_WAIT => &mut self.gpu_ns,
            state::SEND_PEER_WAIT => &mut self.peer_ns,
            state::SEND_WAIT | state::RECV_WAIT => &mut self.net_ns,
            state::RECV_FLUSH_WAIT => &mut self.flush_ns,
            _ => return,
        };
        *wait += ns.max(0);
    }
}

/// A proxy operation.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    pub(super) op: ProxyOp,
    pub(super) start_ns: i64,
    pub(super) end_ns: Option<i64>,
    pub(super) steps_seen: i32,
    pub(super) bytes: i64,
    pub(super) waits: Waits,
}

/// A collective, send or receive.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// Handle of its communicator.
    pub(super) comm: u64,
    pub(super) comm_id: i64,
    pub(super) comm_name: Option<Text>,
    pub(super) comm_size: Option<i32>,
    /// NCCL's number of a collective; the number of earlier sends or receives, unless one of them was missed.
    pub(super) seq: Option<i64>,
    pub(super) op: Text,
    pub(super) dtype: Option<Text>,
    pub(super) count: Option<i64>,
    pub(super) bytes: Option<i64>,
    pub(super) root: Option<i32>,
    pub(super) peer: Option<i32>,
    pub(super) n_channels: u8,
    pub(super) algo: Option<Text>,
    pub(super) proto: Option<Text>,
    pub(super) step: i32,
    pub(super) enqueue_ns: i64,
    /// Time of the launch: no kernel of the operation begins before it.
    pub(super) launch_ns: Option<i64>,
    /// Id of the launch's row.
    pub(super) launch_row: Option<i64>,
    pub(super) channels: Vec<Channel>,
    pub(super) proxies: Vec<Proxy>,
    /// Start and end of a copy engine's operation.
    pub(super) copy_engine: Option<(i64, Option<i64>)>,
    /// NCCL reports no channel.
    pub(super) only_enqueued: bool,
    /// Its launch, which it shares with the other operations of a group: the id of the launch's row, or before version 5 the
    /// handle of NCCL's group.
    pub(super) batch: Option<u64>,
    /// Another operation of its launch has the same times, because the device carried them out together.
    pub(super) fused: bool,
    pub(super) last_ns: i64,
    pub(super) reported: Option<CollectiveState>,
}

impl Operation {
    /// Whether a channel or a proxy has begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        self.channels.iter().any(|channel| channel.seen_end_ns.is_none())
            || self.proxies.iter().any(|proxy| proxy.end_ns.is_none())
    }

    /// Whether the times of a channel may be wrong.
    pub(super) fn is_suspect(&self) -> bool {
        self.channels.iter().any(|channel| channel.suspect)
    }

    pub(super) fn is_quiet(&self, now_ns: i64) -> bool {
        now_ns.saturating_sub(self.last_ns) >= QUIET_NS
    }

    pub(super) fn state(&self, now_ns: i64) -> CollectiveState {
        let open = self.is_open();
        let kernels = self.channels.iter().filter(|channel| channel.phase.is_none()).count();
        let begun = kernels + self.proxies.len() > 0;
        let all = kernels >= usize::from(self.n_channels.max(1));
        let quiet = self.is_quiet(now_ns);
        match self.copy_engine {
            Some((_, Some(_))) => CollectiveState::Done,
            Some((_, None)) => CollectiveState::Started,
            None if begun && !open && (all || quiet) => CollectiveState::Done,
            None if begun => CollectiveState::Started,
            None => CollectiveState::Enqueued,
        }
    }
}
