//! Matches the rows of all ranks that belong to the same collective.
//!
//! There are four ways, best first. Each one handles only the rows that the one before could not match:
//!
//! 1. `comms_id`: Kineto's `Comms Id`, a hash of the properties that are equal on all ranks of the operation.
//! 2. `seq`: communicator, side of a send or receive, and number on the communicator.
//! 3. `ordinal`: for sends and receives, the order of their pair in a step, see `pairs`.
//! 4. `ordinal`: an alignment with gaps of the ranks' sequences, see `align`. Positions alone are not used, because the
//!    recordings of the ranks begin and end at different collectives.
//!
//! A row without a match is counted as unmatched.

mod align;
mod keyed;
mod pairs;
mod row;
mod shares;

#[cfg(test)]
mod tests;

use trace::{OmissionRow, Op, TimingSource};

pub use row::barrier_of;
use row::{Group, RowRef, is_point_to_point, omission};
use shares::shares_of;

use model::{Barrier, Collective, Instance, Member, RankOutline};

/// Matches the collectives of all ranks. Returns the instances and the counts of unmatched rows.
///
/// The result does not depend on the order of `ranks` or on clock offsets. Instances are ordered by communicator and
/// number; [`number_by_time`](crate::clock::number_by_time) orders them by time once the clocks are known. If a
/// rank is given twice, its second outline is ignored.
pub fn match_collectives(ranks: &[&RankOutline]) -> (Vec<Instance>, Vec<OmissionRow>) {
    let mut ranks = ranks.to_vec();
    ranks.sort_by_key(|r| r.info.rank);
    ranks.dedup_by_key(|r| r.info.rank);
    let mut omissions = unstarted(&ranks);

    let keyed = keyed::group(&ranks);
    omissions.extend(keyed.omissions);
    let (mut groups, mut rest) = (keyed.groups, keyed.rest);
    groups.extend(pairs::group(&ranks, &mut rest));
    if !rest.is_empty() {
        let aligned = align::group(&ranks, &groups, &rest);
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

/// Whether the times of a row come from a device. CUPTI converts them to host time, with an error that differs by
/// device.
fn device_clock(row: &Collective) -> bool {
    matches!(&*row.timing_source, "gpu_timer" | "cupti")
}

/// The omission for collectives that have only an enqueue time.
pub const WITHOUT_TIMES: &str = "collectives without times";

/// Counts the rows without a start, because they cannot be members of an instance. Rows that a source observed as never
/// started are counted apart from rows for which only the enqueue was recorded.
fn unstarted(ranks: &[&RankOutline]) -> Vec<OmissionRow> {
    let mut omissions = Vec::new();
    for rank in ranks {
        let (unseen, waiting): (Vec<_>, Vec<_>) = rank
            .collectives
            .iter()
            .filter(|row| row.start_ns().is_none())
            .partition(|row| row.timing_source == TimingSource::Enqueue);
        let why = "they were enqueued but never started";
        omissions.extend(omission(rank.info.rank, "collectives not started", waiting.len(), why));
        let why = "only their enqueue was recorded, not when they ran";
        omissions.extend(omission(rank.info.rank, WITHOUT_TIMES, unseen.len(), why));
    }
    omissions
}

/// The common value of all rows; `None` if one has no value or they differ.
fn agreed<T: PartialEq + Copy>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|v| v == Some(first)).then_some(first)
}

/// The most frequent step among the rows; the lowest one of several. A rank that lacks the step or numbers steps
/// differently does not change it. The result is "between steps" only if no row has a step.
fn most_common(mut steps: Vec<i32>) -> Option<i32> {
    if steps.iter().any(|step| *step >= 0) {
        steps.retain(|step| *step >= 0);
    }
    steps.sort_unstable();
    let runs = steps.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| (run.len(), std::cmp::Reverse(run[0]))).map(|run| run[0])
}

fn instance(ranks: &[&RankOutline], group: &Group) -> Instance {
    let mut places = group.rows.clone();
    places.sort_unstable();
    let rows: Vec<(i32, &Collective)> =
        places.iter().map(|(r, i)| (ranks[*r].info.rank, &ranks[*r].collectives[*i])).collect();
    let members: Vec<Member> = places
        .iter()
        .zip(&rows)
        .map(|((_, index), (rank, row))| Member {
            rank: *rank,
            index: *index as u32,
            start_ns: row.start_ns().unwrap_or_default(),
            end_ns: row.end_ns(),
            device_clock: device_clock(row),
        })
        .collect();
    let point_to_point = rows.iter().any(|(_, r)| is_point_to_point(r));
    let op = if point_to_point { Op::Send.into() } else { rows[0].1.op.clone() };
    let barrier = rows.iter().map(|(_, r)| barrier_of(r)).max().unwrap_or(Barrier::OneSided);
    Instance {
        id: 0,
        comm_id: rows[0].1.comm_id,
        seq: agreed(rows.iter().map(|(_, r)| r.seq())),
        op,
        bytes: agreed(rows.iter().map(|(_, r)| r.bytes)),
        shares: shares_of(places.iter().zip(&rows).map(|((r, _), (_, row))| (ranks[*r], *row))),
        step: most_common(rows.iter().filter_map(|(_, r)| r.step()).collect()),
        sender: rows.iter().find(|(_, r)| r.op == Op::Send).map(|(rank, _)| *rank),
        bucket: agreed(rows.iter().map(|(_, r)| r.bucket())),
        ranks_expected: if point_to_point { Some(2) } else { ranks_expected(ranks, &places, &rows) },
        fused: rows.iter().any(|(_, r)| r.fused == Some(true)),
        level: group.level,
        barrier,
        members,
    }
}

/// The size of the communicator. If no row has it but all ranks of the job are members, it is the size of the job.
fn ranks_expected(ranks: &[&RankOutline], places: &[RowRef], rows: &[(i32, &Collective)]) -> Option<i32> {
    let recorded = rows.iter().filter_map(|(_, r)| r.comm_size).max();
    let world = places.iter().filter_map(|(r, _)| ranks[*r].info.world_size).max();
    recorded.or_else(|| world.filter(|w| *w as usize == places.len()))
}
