//! Which rows of which ranks are one and the same collective.
//!
//! Three ways, best first, each only for the rows that the one before could not place:
//!
//! 1. `comms_id`: Kineto's `Comms Id`, a hash of what is equal on all ranks of the operation.
//! 2. `seq`: communicator, side of a send or receive, and number on the communicator.
//! 3. `ordinal`: an alignment with gaps of the ranks' sequences, see `align`. Never a bare position: the windows of the ranks
//!    begin and end at different collectives.
//!
//! A row that fits nowhere stays unmatched and is counted.

mod align;
mod keyed;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use trace::{CollectiveRow, OmissionRow, Text};

use crate::model::{Barrier, Instance, MatchLevel, Member, RankData};

/// What matching needs of one rank: small enough to hold for every rank of a run.
#[derive(Clone, Copy, Debug)]
pub struct RankCollectives<'a> {
    /// Global rank.
    pub rank: i32,
    /// Ranks in the job, where known.
    pub world_size: Option<i32>,
    /// Its collectives, sorted by start; [`Member::index`](crate::model::Member::index) points into them.
    pub rows: &'a [CollectiveRow],
    /// Kineto's `Comms Id` by position in `rows`, or empty.
    pub comms_ids: &'a [Option<u64>],
}

impl<'a> RankCollectives<'a> {
    /// The part of a loaded rank that matching needs.
    pub fn of(data: &'a RankData) -> Self {
        let RankData { info, collectives, comms_ids, .. } = data;
        Self { rank: info.rank, world_size: info.world_size, rows: collectives, comms_ids }
    }
}

/// A row of one rank: position in the sorted list of ranks, position in that rank's rows.
type RowRef = (usize, usize);

/// Rows that are one collective, each of another rank.
struct Group {
    level: MatchLevel,
    rows: Vec<RowRef>,
}

/// Matches the collectives of all ranks: instances, and the count of what fits nowhere.
///
/// The result does not depend on the order of `ranks`, nor on any rank's clock offset. Instances come ordered by communicator and
/// number; [`number_by_time`](crate::clock::number_by_time) orders them by time once the clocks are known. A rank that is given twice is taken once.
pub fn match_collectives(ranks: &[RankCollectives<'_>]) -> (Vec<Instance>, Vec<OmissionRow>) {
    let mut ranks = ranks.to_vec();
    ranks.sort_by_key(|r| r.rank);
    ranks.dedup_by_key(|r| r.rank);
    let mut omissions = unstarted(&ranks);

    let keyed = keyed::group(&ranks);
    omissions.extend(keyed.omissions);
    let mut groups = keyed.groups;
    if !keyed.rest.is_empty() {
        let aligned = align::group(&ranks, &groups, &keyed.rest);
        groups.extend(aligned.groups);
        omissions.extend(aligned.omissions);
    }

    let mut instances: Vec<Instance> = groups.iter().map(|g| instance(&ranks, g)).collect();
    instances.sort_by_key(|i| (i.comm_id, i.seq, i.members.first().map(|m| (m.rank, m.index))));
    for (id, instance) in instances.iter_mut().enumerate() {
        instance.id = id as i64;
    }
    (instances, omissions)
}

/// Whether the times of a row are a device's. CUPTI turns them into host time, but each device's with an error of its own.
fn device_clock(row: &CollectiveRow) -> bool {
    matches!(&*row.timing_source, "gpu_timer" | "cupti")
}

/// What an operation says about its ranks' clocks.
fn barrier_of(row: &CollectiveRow) -> Barrier {
    // Nothing is waited for where nothing is moved; and the times of a hand-over end before the operation does.
    let empty = row.bytes == Some(0) && &*row.op != "barrier";
    if empty || &*row.timing_source == "enqueue" {
        return Barrier::OneSided;
    }
    match &*row.op {
        "allreduce" | "allgather" | "reducescatter" | "barrier" => Barrier::Strict,
        "alltoall" => Barrier::Weak,
        _ => Barrier::OneSided,
    }
}

/// Sender and receiver of a point-to-point row, where known.
fn pair_of(rank: i32, row: &CollectiveRow) -> Option<(i32, i32)> {
    match &*row.op {
        "send" => row.peer.map(|peer| (rank, peer)),
        "recv" => row.peer.map(|peer| (peer, rank)),
        _ => None,
    }
}

fn is_point_to_point(row: &CollectiveRow) -> bool {
    matches!(&*row.op, "send" | "recv")
}

/// What is said of collectives of which only the hand-over is known.
pub(crate) const WITHOUT_TIMES: &str = "collectives without times";

/// Rows without a start have no place in an instance; their instance is incomplete, and they are counted here: those that
/// a source saw wait in vain apart from those of which no source saw more than that they were handed over.
fn unstarted(ranks: &[RankCollectives<'_>]) -> Vec<OmissionRow> {
    let mut omissions = Vec::new();
    for rank in ranks {
        let (unseen, waiting): (Vec<_>, Vec<_>) =
            rank.rows.iter().filter(|row| row.start_ns.is_none()).partition(|row| &*row.timing_source == "enqueue");
        let why = "they were handed over but never began";
        omissions.extend(omission(rank.rank, "collectives not started", waiting.len(), why));
        let why = "nothing recorded when they ran, only that they were handed over";
        omissions.extend(omission(rank.rank, WITHOUT_TIMES, unseen.len(), why));
    }
    omissions
}

/// The count of something that one rank lost; nothing if it is nothing.
fn omission(rank: i32, what: &str, amount: usize, why: &str) -> Option<OmissionRow> {
    let row = || OmissionRow {
        file: None,
        rank: Some(rank),
        what: what.into(),
        amount: Some(amount as i64),
        why: why.into(),
    };
    (amount > 0).then(row)
}

/// The value that all rows have, where they have one and agree.
fn agreed<T: PartialEq + Copy>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|v| v == Some(first)).then_some(first)
}

/// The step that most rows name, of several the lowest: a rank that lacks the step, or numbers steps otherwise, does
/// not take the collective out of it. Between steps only if no row names one.
fn most_common(mut steps: Vec<i32>) -> Option<i32> {
    if steps.iter().any(|step| *step >= 0) {
        steps.retain(|step| *step >= 0);
    }
    steps.sort_unstable();
    let runs = steps.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| (run.len(), std::cmp::Reverse(run[0]))).map(|run| run[0])
}

fn instance(ranks: &[RankCollectives<'_>], group: &Group) -> Instance {
    let mut places = group.rows.clone();
    places.sort_unstable();
    let rows: Vec<(i32, &CollectiveRow)> = places.iter().map(|(r, i)| (ranks[*r].rank, &ranks[*r].rows[*i])).collect();
    let members: Vec<Member> = places
        .iter()
        .zip(&rows)
        .map(|((_, index), (rank, row))| Member {
            rank: *rank,
            index: *index as u32,
            start_ns: row.start_ns.unwrap_or_default(),
            end_ns: row.end_ns,
            device_clock: device_clock(row),
        })
        .collect();
    let point_to_point = rows.iter().any(|(_, r)| is_point_to_point(r));
    let op: Text = if point_to_point { "send".into() } else { rows[0].1.op.clone() };
    let barrier = rows.iter().map(|(_, r)| barrier_of(r)).max().unwrap_or(Barrier::OneSided);
    Instance {
        id: 0,
        comm_id: rows[0].1.comm_id,
        seq: agreed(rows.iter().map(|(_, r)| r.seq)),
        op,
        bytes: agreed(rows.iter().map(|(_, r)| r.bytes)),
        step: most_common(rows.iter().filter_map(|(_, r)| r.step).collect()),
        bucket: agreed(rows.iter().map(|(_, r)| r.bucket)),
        ranks_expected: if point_to_point { Some(2) } else { ranks_expected(ranks, &places, &rows) },
        level: group.level,
        barrier,
        members,
    }
}

/// The communicator's size; where no row tells it, but all ranks of the job are there, it is theirs.
fn ranks_expected(ranks: &[RankCollectives<'_>], places: &[RowRef], rows: &[(i32, &CollectiveRow)]) -> Option<i32> {
    let told = rows.iter().filter_map(|(_, r)| r.comm_size).max();
    let world = places.iter().filter_map(|(r, _)| ranks[*r].world_size).max();
    told.or_else(|| world.filter(|w| *w as usize == places.len()))
}

/// Members of a list of rows by rank.
fn by_rank(rows: &[RowRef]) -> BTreeMap<usize, Vec<usize>> {
    let mut places: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (rank, index) in rows {
        places.entry(*rank).or_default().insert(*index);
    }
    places.into_iter().map(|(rank, indices)| (rank, indices.into_iter().collect())).collect()
}
