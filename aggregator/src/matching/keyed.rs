//! Matching by what the rows say themselves: `Comms Id`, then communicator and number.

use std::collections::{BTreeMap, BTreeSet};

use trace::{OmissionRow, Text};

use super::{Group, RankCollectives, RowRef, by_rank, is_point_to_point, pair_of};
use crate::model::MatchLevel;

/// What the keys could place, and what they left.
pub(super) struct Keyed {
    pub(super) groups: Vec<Group>,
    /// Rows without a key, or whose key says things that cannot be true; ascending.
    pub(super) rest: Vec<RowRef>,
    pub(super) omissions: Vec<OmissionRow>,
}

/// What is equal on all ranks of one collective and on no other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    CommsId(u64),
    /// Sender and receiver have numbers of their own, beside those of the communicator.
    Seq {
        comm_id: i64,
        /// The operation, on a communicator that numbers each of them for itself.
        op: Option<Text>,
        pair: Option<(i32, i32)>,
        seq: i64,
    },
}

/// Communicators whose numbers count per operation, as NCCL's do: some rank has one number with two of them.
fn numbered_per_op(ranks: &[RankCollectives<'_>]) -> BTreeSet<i64> {
    let mut found = BTreeSet::new();
    for rank in ranks {
        let mut ops: BTreeMap<(i64, i64), &str> = BTreeMap::new();
        for row in rank.rows.iter().filter(|row| !is_point_to_point(row)) {
            let Some(seq) = row.seq else { continue };
            if *ops.entry((row.comm_id, seq)).or_insert(&row.op) != &*row.op {
                found.insert(row.comm_id);
            }
        }
    }
    found
}

/// Groups the rows of all ranks (sorted by rank) by their keys.
pub(super) fn group(ranks: &[RankCollectives<'_>]) -> Keyed {
    let per_op = numbered_per_op(ranks);
    let mut keys: Vec<(Key, RowRef)> = Vec::new();
    let mut rest: Vec<RowRef> = Vec::new();
    for (r, rank) in ranks.iter().enumerate() {
        for (i, row) in rank.rows.iter().enumerate().filter(|(_, row)| row.start_ns.is_some()) {
            let comms_id = rank.comms_ids.get(i).copied().flatten().map(Key::CommsId);
            let pair = pair_of(rank.rank, row);
            // Which of its peers a send without a peer is meant for, its number cannot tell.
            let placed = pair.is_some() || !is_point_to_point(row);
            let op = (pair.is_none() && per_op.contains(&row.comm_id)).then(|| row.op.clone());
            let seq = row.seq.filter(|_| placed).map(|seq| Key::Seq { comm_id: row.comm_id, op, pair, seq });
            match comms_id.or(seq) {
                Some(key) => keys.push((key, (r, i))),
                None => rest.push((r, i)),
            }
        }
    }
    keys.sort_unstable();

    let mut groups = Vec::new();
    let mut disputed: Vec<(RowRef, Text)> = Vec::new();
    for same in keys.chunk_by(|a, b| a.0 == b.0) {
        let rows: Vec<RowRef> = same.iter().map(|(_, row)| *row).collect();
        let level = if matches!(same[0].0, Key::CommsId(_)) { MatchLevel::CommsId } else { MatchLevel::Seq };
        match split(ranks, &rows) {
            Ok(parts) => groups.extend(parts.into_iter().map(|rows| Group { level, rows })),
            Err(why) => disputed.extend(rows.iter().map(|row| (*row, why.clone()))),
        }
    }
    rest.extend(disputed.iter().map(|(row, _)| *row));
    rest.sort_unstable();
    Keyed { groups, rest, omissions: dispute_omissions(ranks, &disputed) }
}

/// The collectives among rows of one key: one, or where every rank holds the key k times (an operation that was split
/// into k kernels), k of them. An error if the rows cannot be the same operation.
fn split(ranks: &[RankCollectives<'_>], rows: &[RowRef]) -> Result<Vec<Vec<RowRef>>, Text> {
    let places = by_rank(rows);
    let times = places.values().map(Vec::len).max().unwrap_or(0);
    if places.values().any(|indices| indices.len() != times) {
        return Err("ranks hold the same number of a communicator unequally often".into());
    }
    let mut parts = Vec::with_capacity(times);
    for k in 0..times {
        let part: Vec<RowRef> = places.iter().map(|(rank, indices)| (*rank, indices[k])).collect();
        let op = |place: &RowRef| {
            let row = &ranks[place.0].rows[place.1];
            if is_point_to_point(row) { "send" } else { &*row.op }
        };
        if part.iter().any(|place| op(place) != op(&part[0])) {
            return Err("ranks name different operations under the same number of a communicator".into());
        }
        parts.push(part);
    }
    Ok(parts)
}

/// What the keys said wrongly, counted by rank and reason; the rows themselves go on to the alignment.
fn dispute_omissions(ranks: &[RankCollectives<'_>], disputed: &[(RowRef, Text)]) -> Vec<OmissionRow> {
    let mut counts: Vec<(i32, Text, i64)> =
        disputed.iter().map(|((r, _), why)| (ranks[*r].rank, why.clone(), 1)).collect();
    counts.sort();
    counts.dedup_by(|next, kept| {
        let same = (next.0, &next.1) == (kept.0, &kept.1);
        kept.2 += i64::from(same) * next.2;
        same
    });
    let row = |(rank, why, amount)| OmissionRow {
        file: None,
        rank: Some(rank),
        what: "numbers of collectives".into(),
        amount: Some(amount),
        why,
    };
    counts.into_iter().map(row).collect()
}
