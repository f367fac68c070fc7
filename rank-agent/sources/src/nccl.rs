//! NCCL's operations, from NCCL's profiler plugin interface: communicators, collectives, sends and receives with their
//! bytes, algorithm and channels, the GPU's times of each channel, and the waits of the proxy.
//!
//! ```text
//!  NCCL's threads      callback ──► handle, record ──► bounded queue
//!                                                          │
//!  worker                             operations in flight ◄──┘──► collectives, nccl_channels, nccl_proxy, comms
//! ```
//!
//! **Times.** NCCL calls "stop" when a collective is enqueued, after the launch of its kernel; that is not its end. A
//! collective ends with the last channel of its kernel, which the GPU stamps with its `globaltimer` (NCCL 2.27 and newer).
//! `nccl_channels` keeps the raw stamps and the times at which the host received them. `collectives` holds them in the
//! host's clock, with `timing_source = gpu_timer`. The module `clock` explains the mapping and its error: CUPTI's kernels
//! bound it from both sides (`kernel_pairs`) if CUPTI runs too, otherwise launches and callbacks bound it. Without a stamp
//! (NCCL 2.26), the times are those of NCCL's callbacks (`host`); without channels, those of its proxy (`proxy`);
//! otherwise only the time of the call is known (`enqueue`). Times that NCCL may have confused are `suspect`, and those of
//! its callbacks are then no better. Collectives of one launch that the device carries out as one batch have the times of
//! the batch, and are `fused`.
//!
//! **Counters.** NCCL finds the times of a channel by a counter of the device, which counts all work, and one of the host.
//! The host misses work that the event mask excludes (NCCL 2.31), captured work and sends to oneself (before 2.31), and combined
//! broadcasts (since 2.29). So the events of channels are asked for from the first communicator on, until a CUDA graph is captured or
//! broadcasts are combined, or never. Operations that begin later have no channels.
//!
//! **Kernels.** Each launch is a row of `events`, `nccl:launch`, on the launching thread; `collectives.event_id` is its id.
//! If CUPTI runs, the kernel carries the same id as `external_id`. The analysis thus finds the kernel of a collective.
//! NCCL 2.26 and 2.27 report a launch only when its call has ended: the row then follows the call, and no kernel carries its id.
//! There the analysis takes the last call of the thread, and the error of the GPU's stamps is unknown.
//!
//! **Hangs.** An operation that is in flight for longer than a part gets a row with state `started` or `enqueued`, which
//! is on disk if the process is killed. At exit every operation in flight gets such a row. NCCL may never report the end
//! of an operation that began before recording was paused or its detail changed: without an end it is counted, and does
//! not look hung. An operation of which NCCL reports no progress at all has the state `unreported`.
//!
//! **Sequence numbers.** NCCL counts `seq` of collectives per communicator and function. The source counts `seq` of sends
//! and receives per communicator, peer and direction. It also counts the broadcasts for which NCCL reports only the call. If one of
//! them was not recorded, later ones have no number.
//!
//! The tests replay the call sequences and layouts of NCCL's source. The guide of GPU clusters lists what was seen on a GPU.

mod bounded_map;
mod callbacks;
mod clock;
#[expect(unsafe_code, reason = "the interface through which NCCL calls")]
pub mod ffi;
mod handles;
#[cfg(test)]
mod handles_loom;
#[cfg(test)]
mod handles_tests;
mod in_flight;
mod kernel_pairs;
mod loom_shim;
mod names;
mod operation;
mod record;
mod rows;
mod string_table;
mod worker;

pub use self::callbacks::Callbacks;
pub use self::ffi::{Found, find};
pub use self::worker::{Settings, Source};
