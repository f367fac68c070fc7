//! What a callback leaves in the queue: a fixed-size value that owns nothing.

use super::words::Word;

/// Types of events, as bits of the activation mask (NCCL's `nccl_profiler.h`).
pub(crate) mod event_type {
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
    /// When it came, in the recorder's clock.
    pub(crate) at_ns: i64,
    /// The event's own handle.
    pub(crate) handle: u64,
    pub(crate) what: What,
}

/// What a callback says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// `comm` is the handle of the communicator, `parent` that of the enclosing event; 0: none. `alone`: nothing that
    /// hangs below an operation was asked for when it came.
    Start {
        comm: u64,
        parent: u64,
        step: i32,
        alone: bool,
        event: Event,
    },
    /// `value` is the state's argument, where it has one of 64 bits.
    State {
        state: i32,
        value: u64,
    },
    Stop,
}

/// An event as its descriptor says. Types of which nothing is kept but their place in the tree are [`Event::Other`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    CollApi(Api),
    P2pApi(Api),
    GroupApi,
    KernelLaunch(Launch),
    Coll(Coll),
    P2p(P2p),
    ProxyOp(ProxyOp),
    ProxyStep,
    KernelCh { channel: u8, gpu_ns: u64 },
    KernelPhase { channel: u8, name: Word, gpu_ns: u64 },
    CeColl(Coll),
    CeSync,
    CeBatch { bytes: u64 },
    Other,
}

/// What the program called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Api {
    pub(crate) func: Word,
    pub(crate) datatype: Word,
    pub(crate) count: u64,
    /// The call was captured into a CUDA graph: its times say nothing of the run.
    pub(crate) captured: bool,
}

/// The launch of a group's kernel, as a row of `events` to be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Launch {
    /// Id of the row, which is also the external id of the kernel where CUPTI runs; 0: none was given.
    pub(crate) row: i64,
    /// The system's id of the thread that launches.
    pub(crate) thread_id: i64,
}

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coll {
    /// Hash of the communicator where the event carries it (v3); 0: see the communicator.
    pub(crate) comm_hash: u64,
    /// Number per communicator and function.
    pub(crate) seq: u64,
    pub(crate) count: u64,
    pub(crate) root: i32,
    pub(crate) func: Word,
    pub(crate) datatype: Word,
    pub(crate) algo: Word,
    pub(crate) proto: Word,
    pub(crate) channels: u8,
}

/// A send or receive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct P2p {
    pub(crate) comm_hash: u64,
    pub(crate) count: u64,
    pub(crate) peer: i32,
    pub(crate) func: Word,
    pub(crate) datatype: Word,
    /// 0: not said (v3).
    pub(crate) channels: u8,
}

/// Work of the proxy thread on one channel of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProxyOp {
    /// The process whose operation it is: with PXN another than this, and then `parent` is not ours.
    pub(crate) pid: i32,
    pub(crate) peer: i32,
    pub(crate) steps: i32,
    pub(crate) chunk_bytes: i32,
    pub(crate) channel: u8,
    pub(crate) is_send: bool,
}

const _: () = assert!(size_of::<Record>() <= 96, "a record is no more than a line and a half of cache");
