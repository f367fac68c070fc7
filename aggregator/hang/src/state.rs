//! What is known of one rank of a job that hangs.

use std::sync::Arc;

use trace::Text;

use crate::posted::Posted;

/// A rank whose dump or rows were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankState {
    pub(crate) rank: i32,
    pub(crate) comms: Vec<CommState>,
    /// Whether the library counts an operation that has not ended, which the ring may have lost.
    pub(crate) in_flight: bool,
}

/// A rank in one communicator. Where operations are numbered separately, as in runs, there is one for each operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommState {
    /// Name of the communicator, equal on all its ranks.
    pub(crate) name: Text,
    /// Its purpose; empty if the program does not state it.
    pub(crate) description: Text,
    /// The operation whose numbers these are; empty if all operations share one numbering.
    pub(crate) numbering: Text,
    /// Global ranks by their number in the communicator, where they are listed.
    pub(crate) members: Option<Arc<[i32]>>,
    /// The numbers that the library counted. Where ranks send to each other, it counts these as well, and differently on each rank.
    pub(crate) counted: Option<Position>,
    /// The numbers of the recorded collectives.
    pub(crate) seen: Option<Position>,
    /// Whether the rank recorded sends or receives in it.
    pub(crate) has_transfers: bool,
    /// Operations that have not ended.
    pub(crate) pending: Vec<Pending>,
    /// The recorded sends and receives, ended or not.
    pub(crate) posted: Option<Posted>,
}

/// Numbers of the last collectives of a communicator. What is done was enqueued before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) enqueued: i64,
    pub(crate) done: i64,
}

impl Position {
    /// Whether a collective has not ended.
    pub(crate) fn is_waiting(self) -> bool {
        self.enqueued > self.done
    }

    /// The furthest of both numbers.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { enqueued: self.enqueued.max(other.enqueued), done: self.done.max(other.done) }
    }
}

/// An operation that a rank called and that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Place in the order of the rank's calls.
    pub(crate) order: i64,
    pub(crate) what: What,
    pub(crate) facts: Facts,
    /// Of a send or receive, the number of the batch that carries it out: its own end is not recorded.
    pub(crate) batch: Option<i64>,
}

/// An operation within its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A collective with this number.
    Collective(i64),
    /// A send or a receive.
    Transfer {
        /// Global rank of the other side.
        peer: i32,
        is_send: bool,
    },
}

/// What the program asked for. Unknown facts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Operation, as in `collectives.op`.
    pub(crate) op: Text,
    /// Elements of the inputs of this rank.
    pub(crate) input_elements: Option<i64>,
    /// Elements of the outputs of this rank.
    pub(crate) output_elements: Option<i64>,
    /// Type of the elements.
    pub(crate) dtype: Option<Text>,
    /// Size of the inputs, or else of the outputs.
    pub(crate) bytes: Option<i64>,
    /// Time of the call in UTC, in ns since 1970.
    pub(crate) called_utc_ns: Option<i64>,
    /// Line of the program, as in `train.py:36 (forward)`.
    pub(crate) source_line: Option<Text>,
}
