//! A row to match: what it says of its collective, and the group of rows that it becomes a member of.

use trace::{MatchLevel, OmissionRow, Op, TimingSource};

use model::windows::Windows;
use model::{Barrier, Collective};

/// A row: position of its rank in the sorted list of ranks, position among that rank's rows.
pub(super) type RowRef = (usize, usize);

/// The rows of one collective, each from a different rank.
pub(super) struct Group {
    pub(super) level: MatchLevel,
    pub(super) rows: Vec<RowRef>,
}

/// The constraint of an operation on the clocks of its ranks.
pub fn barrier_of(row: &Collective) -> Barrier {
    // Empty operations wait for no rank. Rows with enqueue times end before the operation does.
    let empty = row.bytes == Some(0) && row.op != Op::Barrier;
    if empty || row.timing_source == TimingSource::Enqueue {
        return Barrier::OneSided;
    }
    match row.op.known() {
        Some(Op::AllReduce | Op::AllGather | Op::ReduceScatter | Op::Barrier) => Barrier::Strict,
        Some(Op::AllToAll) => Barrier::Weak,
        _ => Barrier::OneSided,
    }
}

/// Sender and receiver of a point-to-point row, if known.
pub(super) fn pair_of(rank: i32, row: &Collective) -> Option<(i32, i32)> {
    match row.op.known() {
        Some(Op::Send) => row.peer().map(|peer| (rank, peer)),
        Some(Op::Recv) => row.peer().map(|peer| (peer, rank)),
        _ => None,
    }
}

/// The window of a row. Sequence numbers begin again where a window belongs to another process, so rows of different
/// windows never match.
pub(super) fn window_of(windows: &Windows, row: &Collective) -> Option<i32> {
    windows.number_at(row.start_ns().or(row.enqueue_ns())?)
}

pub(super) fn is_point_to_point(row: &Collective) -> bool {
    matches!(row.op.known(), Some(Op::Send | Op::Recv))
}

/// The omission of `amount` items of one rank; `None` if the amount is 0.
pub(super) fn omission(rank: i32, what: &str, amount: usize, why: &str) -> Option<OmissionRow> {
    let row = || OmissionRow::left_out(what, why).rank(rank).amount(amount as i64);
    (amount > 0).then(row)
}
