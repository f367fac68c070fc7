//! Records of callbacks in the queue: fixed-size values that own no memory.

use recorder::CollectiveDetail;

use super::string_table::StringId;

/// Types of events, as bits of the activation mask (NCCL's `nccl_profiler.h`).
pub(crate) mod event_type {
    pub(crate) const GROUP: u64 = 1;
    pub(crate) const COLL: u64 = 1 << 1;
    pub(crate) const P2P: u64 = 1 << 2;
    pub(crate) const PROXY_OP: u64 = 1 << 3;
    pub(crate) const PROXY_STEP: u64 = 1 << 4;
    pub(crate) const KERNEL_CH: u64 = 1 << 6;
    pub(crate) const GROUP_API: u64 = 1 << 8;
    pub(crate) const COLL_API: u64 = 1 << 9;
    pub(crate) const P2P_API: u64 = 1 << 10;
    pub(crate) const KERNEL_LAUNCH: u64 = 1 << 11;
    pub(crate) const CE_COLL: u64 = 1 << 12;
    pub(crate) const CE_SYNC: u64 = 1 << 13;
    pub(crate) const CE_BATCH: u64 = 1 << 14;
    pub(crate) const KERNEL_PHASE: u64 = 1 << 15;
    /// The events of the GPU's channels. NCCL joins a counter of the device, which counts all work, with one of the host,
    /// which must therefore see all work, too: a process asks for these events from its first communicator on, or never.
    pub(crate) const KERNEL: u64 = KERNEL_CH | KERNEL_PHASE;
    /// The program's calls, which say whether they are captured into a CUDA graph.
    pub(crate) const API: u64 = COLL_API | P2P_API;
}

/// The first version of the interface whose NCCL (2.31) counts on the host what the device counts in CUDA graphs and in
/// sends to oneself. (NCCL 2.26 to 2.30: `SaveProxyProfiler` in proxy.cc, `addP2pToPlan` in enqueue.cc.)
pub(crate) const COUNTS_ALL_WORK: u8 = 7;

/// The first version of the interface whose NCCL (2.29) reports only the calls of broadcasts.
pub(crate) const CALLS_OF_BROADCASTS: u8 = 6;

/// The activation mask of a detail.
pub(crate) fn event_mask(detail: CollectiveDetail) -> u64 {
    let coll = event_type::GROUP
        | event_type::COLL
        | event_type::P2P
        | event_type::COLL_API
        | event_type::P2P_API
        | event_type::GROUP_API
        | event_type::KERNEL_LAUNCH
        | event_type::CE_COLL;
    let channels = event_type::KERNEL_CH | event_type::KERNEL_PHASE | event_type::CE_SYNC | event_type::CE_BATCH;
    let proxy = event_type::PROXY_OP | event_type::PROXY_STEP;
    match detail {
        CollectiveDetail::Coll => coll,
        CollectiveDetail::Channels => coll | channels,
        CollectiveDetail::Proxy => coll | channels | proxy,
    }
}

/// States of events, as NCCL numbers them.
pub(crate) mod state {
    pub(crate) const SEND_GPU_WAIT: i32 = 8;
    pub(crate) const SEND_WAIT: i32 = 9;
    pub(crate) const RECV_WAIT: i32 = 10;
    pub(crate) const RECV_FLUSH_WAIT: i32 = 11;
    pub(crate) const RECV_GPU_WAIT: i32 = 12;
    pub(crate) const PROXY_OP_IN_PROGRESS: i32 = 19;
    pub(crate) const SEND_PEER_WAIT: i32 = 20;
    pub(crate) const KERNEL_CH_STOP: i32 = 22;
    pub(crate) const KERNEL_PHASE_STOP: i32 = 31;
}

/// One callback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Record {
    /// Time of the callback, in the recorder's clock.
    pub(crate) at_ns: i64,
    /// Handle of the event.
    pub(crate) handle: u64,
    pub(crate) what: What,
}

/// Content of a callback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// `comm` is the handle of the communicator, and `parent` that of the enclosing event; 0 for none. `alone` is set if
    /// the mask excluded all child events of operations at this time.
    Start {
        comm: u64,
        parent: u64,
        step: i32,
        alone: bool,
        event: Event,
    },
    /// `value` is the state's argument, if it has a 64-bit one.
    State {
        state: i32,
        value: u64,
    },
    Stop,
}

/// An event from its descriptor. Types that only serve as parents are [`Event::Other`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    CollApi(Api),
    P2pApi(Api),
    /// The thread that enters it, and the row that it gets if NCCL reports no launch.
    GroupApi(Launch),
    /// Before version 5 only: a group, which NCCL begins after the launch of its kernel.
    Group(Launch),
    KernelLaunch(Launch),
    Coll(Coll),
    P2p(P2p),
    ProxyOp(ProxyOp),
    ProxyStep,
    KernelCh {
        channel: u8,
        gpu_ns: u64,
    },
    KernelPhase {
        channel: u8,
        name: StringId,
        gpu_ns: u64,
    },
    CeColl(Coll),
    CeSync,
    CeBatch {
        bytes: u64,
    },
    Other,
}

impl Event {
    /// Whether it is a call that was captured into a CUDA graph.
    pub(crate) const fn is_captured(&self) -> bool {
        matches!(self, Self::CollApi(api) | Self::P2pApi(api) if api.captured)
    }
}

/// A call of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Api {
    pub(crate) func: StringId,
    pub(crate) datatype: StringId,
    pub(crate) count: u64,
    /// Root of a collective.
    pub(crate) root: i32,
    /// Whether the call was captured into a CUDA graph. Its time is then not the time of the operation.
    pub(crate) captured: bool,
}

/// The launch of a group's kernel, which becomes a row of `events`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Launch {
    /// Id of the row, which is also the external id of the kernel if CUPTI runs; 0 for none.
    pub(crate) row: i64,
    /// System id of the launching thread.
    pub(crate) thread_id: i64,
}

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coll {
    /// Hash of the communicator if the event carries it (v3); otherwise 0, and the communicator has it.
    pub(crate) comm_hash: u64,
    /// Sequence number per communicator and function.
    pub(crate) seq: u64,
    pub(crate) count: u64,
    pub(crate) root: i32,
    pub(crate) func: StringId,
    pub(crate) datatype: StringId,
    pub(crate) algo: StringId,
    pub(crate) proto: StringId,
    pub(crate) channels: u8,
}

/// A send or receive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct P2p {
    pub(crate) comm_hash: u64,
    pub(crate) count: u64,
    pub(crate) peer: i32,
    pub(crate) func: StringId,
    pub(crate) datatype: StringId,
    /// 0 if NCCL does not report it (v3).
    pub(crate) channels: u8,
}

/// Work of the proxy thread on one channel of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProxyOp {
    /// Process of the operation. With PXN it is another process, and `parent` is not a handle of this one.
    pub(crate) pid: i32,
    pub(crate) peer: i32,
    pub(crate) steps: i32,
    pub(crate) chunk_bytes: i32,
    pub(crate) channel: u8,
    pub(crate) is_send: bool,
}

const _: () = assert!(size_of::<Record>() <= 96, "a record takes at most one and a half cache lines");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_detail_includes_a_lower_one() {
        let details = [CollectiveDetail::Coll, CollectiveDetail::Channels, CollectiveDetail::Proxy];
        let masks = details.map(event_mask);
        assert!(masks.windows(2).all(|pair| pair[0] & pair[1] == pair[0] && pair[0] != pair[1]), "{masks:?}");
    }
}
