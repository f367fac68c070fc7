//! Matching by the keys in the rows: Kineto's `Comms Id`, then communicator and sequence number.

use std::collections::{BTreeMap, BTreeSet};

use trace::{MatchLevel, OmissionRow, Op, Text, Word};

use crate::matching::row::{Group, RowRef, is_point_to_point, pair_of, window_of};
use model::RankOutline;
use model::windows::Windows;

/// Groups that the keys formed, and the rows that they could not place.
pub(super) struct Keyed {
    pub(super) groups: Vec<Group>,
    /// Rows without a key, or with a key that contradicts other rows; ascending.
    pub(super) rest: Vec<RowRef>,
    pub(super) omissions: Vec<OmissionRow>,
}

/// A value that is equal on all ranks of one collective and on no other collective.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    CommsId(u64),
    /// Sends and receives are numbered per pair of ranks, apart from the communicator's other operations.
    Seq {
        comm_id: i64,
        /// The operation, on a communicator that numbers each operation separately.
        op: Option<Word<Op>>,
        pair: Option<(i32, i32)>,
        seq: i64,
    },
}

/// Communicators that number each operation separately, as NCCL does: one rank has one number on two operations.
fn numbered_per_op(ranks: &[&RankOutline]) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    for rank in ranks {
        let windows = Windows::of(&rank.steps);
        let mut ops: BTreeMap<(Option<i32>, i64, i64), &str> = BTreeMap::new();
        for row in rank.collectives.iter().filter(|row| !is_point_to_point(row)) {
            let Some(seq) = row.seq() else { continue };
            if *ops.entry((window_of(&windows, row), row.comm_id, seq)).or_insert(&row.op) != &*row.op {
                found.insert(row.comm_id);
            }
        }
    }
    found
}

/// Groups the rows of all ranks (sorted by rank) by their keys.
pub(super) fn group(ranks: &[&RankOutline]) -> Keyed {
    let per_op = numbered_per_op(ranks);
    let mut keys: Vec<((Option<i32>, Key), RowRef)> = Vec::new();
    let mut rest: Vec<RowRef> = Vec::new();
    for (r, rank) in ranks.iter().enumerate() {
        let windows = Windows::of(&rank.steps);
        for (i, row) in rank.collectives.iter().enumerate().filter(|(_, row)| row.start_ns().is_some()) {
            let comms_id = row.comms_id().map(Key::CommsId);
            let pair = pair_of(rank.info.rank, row);
            // The number of a send without a recorded peer does not identify its receiver.
            let placed = pair.is_some() || !is_point_to_point(row);
            let op = (pair.is_none() && per_op.contains(&row.comm_id)).then(|| row.op.clone());
            let seq = row.seq().filter(|_| placed).map(|seq| Key::Seq { comm_id: row.comm_id, op, pair, seq });
            match comms_id.or(seq) {
                Some(key) => keys.push(((window_of(&windows, row), key), (r, i))),
                None => rest.push((r, i)),
            }
        }
    }
    keys.sort_unstable();

    let mut groups = Vec::new();
    let mut disputed: Vec<(RowRef, Text)> = Vec::new();
    for same in keys.chunk_by(|a, b| a.0 == b.0) {
        let rows: Vec<RowRef> = same.iter().map(|(_, row)| *row).collect();
        let level = if matches!(same[0].0.1, Key::CommsId(_)) { MatchLevel::CommsId } else { MatchLevel::Seq };
        match split(ranks, &rows) {
            Ok(parts) => groups.extend(parts.into_iter().map(|rows| Group { level, rows })),
            Err(why) => disputed.extend(rows.iter().map(|row| (*row, why.clone()))),
        }
    }
    rest.extend(disputed.iter().map(|(row, _)| *row));
    rest.sort_unstable();
    Keyed { groups, rest, omissions: dispute_omissions(ranks, &disputed) }
}

/// Splits the rows of one key into collectives. There is one, or k if every rank holds the key k times (an operation
/// split into k kernels).
///
/// # Errors
/// The reason why the rows cannot be the same operation.
fn split(ranks: &[&RankOutline], rows: &[RowRef]) -> Result<Vec<Vec<RowRef>>, Text> {
    let places = by_rank(rows);
    let times = places.values().map(Vec::len).max().unwrap_or(0);
    if places.values().any(|indices| indices.len() != times) {
        return Err("ranks recorded different numbers of rows for one sequence number".into());
    }
    let mut parts = Vec::with_capacity(times);
    for k in 0..times {
        let part: Vec<RowRef> = places.iter().map(|(rank, indices)| (*rank, indices[k])).collect();
        let op = |place: &RowRef| {
            let row = &ranks[place.0].collectives[place.1];
            if is_point_to_point(row) { "send" } else { &*row.op }
        };
        if part.iter().any(|place| op(place) != op(&part[0])) {
            return Err("ranks recorded different operations for one sequence number".into());
        }
        parts.push(part);
    }
    Ok(parts)
}

/// Groups rows by rank, each group sorted and without duplicates.
fn by_rank(rows: &[RowRef]) -> BTreeMap<usize, Vec<usize>> {
    let mut places: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (rank, index) in rows {
        places.entry(*rank).or_default().insert(*index);
    }
    places.into_iter().map(|(rank, indices)| (rank, indices.into_iter().collect())).collect()
}

/// Counts contradicting keys by rank and reason. Their rows go on to the alignment.
fn dispute_omissions(ranks: &[&RankOutline], disputed: &[(RowRef, Text)]) -> Vec<OmissionRow> {
    let mut counts: Vec<(i32, Text, i64)> =
        disputed.iter().map(|((r, _), why)| (ranks[*r].info.rank, why.clone(), 1)).collect();
    counts.sort();
    counts.dedup_by(|next, kept| {
        let same = (next.0, &next.1) == (kept.0, &kept.1);
        kept.2 += i64::from(same) * next.2;
        same
    });
    let row =
        |(rank, why, amount)| OmissionRow::left_out("sequence numbers of collectives", why).rank(rank).amount(amount);
    counts.into_iter().map(row).collect()
}
