//! The types that the stages of the analysis exchange, and the tools that all stages use.
//!
//! * A [`source`] gives ranks; a rank is a [`RankData`] with its [`steps`] and collectives; a collective with the rows of all its
//!   ranks is an [`Instance`]. [`options`] select what is analyzed, and [`analysis::Analysis`] is the result.
//! * [`intervals`], [`stats`], [`units`], [`in_order`] and [`protobuf`] know no trace.

pub mod analysis;
pub mod claim;
pub mod clock_choice;
pub mod communication;
pub mod error;
#[cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "options and calls of the C library's allocator"))]
pub mod ffi;
pub mod in_order;
pub mod intervals;
pub mod limits;
pub mod options;
pub mod parts_of_step;
pub mod peaks;
pub mod places;
pub mod protobuf;
pub mod rank_order;
pub mod scope;
pub mod selection;
pub mod shown_ranks;
pub mod sort_rows;
pub mod source;
pub mod stats;
pub mod steps;
pub mod thresholds;
pub mod units;
pub mod watch;
pub mod windows;

pub use error::Error;
pub use kineto::Room;

pub use trace::rank::{
    Collective, CollectiveShape, CollectiveShapes, CopyRate, Events, KernelUse, Kind, MAX_RANKS, NO_PARENT, NO_STEP,
    NONE, RankData, RankInfo, RankOutline,
};
use trace::{MatchLevel, Op, Word};

/// Whether an operation makes its ranks wait for each other. If it does, no rank leaves before every rank has entered,
/// which is evidence about their clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barrier {
    /// All-reduce, all-gather, reduce-scatter, barrier: every rank needs data from every other rank.
    Strict,
    /// All-to-all: consists of pairs, so it is only nearly a barrier; see [`WEAK_SLACK_NS`].
    Weak,
    /// Broadcast, reduce, send, receive, empty operations, and operations timed only by their enqueue calls.
    OneSided,
}

/// A rank may leave a [`Barrier::Weak`] operation this long before another rank enters it. Measured on real all-to-alls
/// of sends and receives: down to 73 µs.
pub const WEAK_SLACK_NS: i64 = 100_000;

/// One rank's part in an [`Instance`], in that rank's own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Global rank.
    pub rank: i32,
    /// Position in that rank's collectives.
    pub index: u32,
    /// Time of entry.
    pub start_ns: i64,
    /// Time of departure; `None` while the operation has not ended.
    pub end_ns: Option<i64>,
    /// Whether the times are on the device's clock instead of the host's.
    pub device_clock: bool,
}

/// The bytes that the ranks of an all-to-all exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// Equal shares, or another operation.
    #[default]
    Equal,
    /// Unequal shares. No rank sends or receives more than `array_bytes`, of which `crossing_bytes` are for or from other ranks.
    Unequal {
        /// The most that a rank sends or receives, its own share included.
        array_bytes: i64,
        /// The most that a rank sends to others, or receives from them.
        crossing_bytes: i64,
    },
    /// Unequal shares of unknown sizes.
    Unknown,
    /// A rank says that it received something else than another one says it sent.
    Contradicted,
}

/// One collective, with the rows of all its ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Index in the list of instances.
    pub id: i64,
    /// Communicator.
    pub comm_id: i64,
    /// Sequence number on the communicator, if known.
    pub seq: Option<i64>,
    /// Operation, with the words of `collectives.op`.
    pub op: Word<Op>,
    /// Size of the whole array.
    pub bytes: Option<i64>,
    /// What each rank exchanges with the others, of an all-to-all.
    pub shares: Shares,
    /// Step that most of its ranks record.
    pub step: Option<i32>,
    /// Of a send, the rank that sends.
    pub sender: Option<i32>,
    /// Gradient bucket, if its ranks agree.
    pub bucket: Option<i32>,
    /// Number of ranks in the communicator, if known.
    pub ranks_expected: Option<i32>,
    /// Whether a member's times are those of several collectives, which the library carried out together.
    pub fused: bool,
    /// Evidence that matched the rows.
    pub level: MatchLevel,
    /// Whether the operation makes its ranks wait for each other.
    pub barrier: Barrier,
    /// One member for each rank, ascending.
    pub members: Vec<Member>,
}

impl Instance {
    /// Whether every expected rank is present and has ended.
    pub fn complete(&self) -> bool {
        let all_done = self.members.iter().all(|m| m.end_ns.is_some());
        all_done && self.ranks_expected.is_some_and(|n| n as usize == self.members.len())
    }
}
