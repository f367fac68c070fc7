//! Collectives that never ended: the ranks that called them, and the ranks that are missing.
//!
//! ```text
//!             allreduce 6      allreduce 7
//!  rank 0     [####]           [~~~~~~~~~~~~~~~   started, no end
//!  rank 1     [####]           [~~~~~~~~~~~~~~~
//!  rank 2     [####]                              never called: missing
//! ```
//!
//! The rows of `collectives` suffice; no clock and no matching by time is needed. Rows with the same communicator,
//! operation and number are one collective. A rank belongs to a communicator if it has a row of it, or if the
//! communicator lists it. A rank counts as missing only if all of its rows were read and none of its last rows are lost;
//! otherwise its state is unknown.
//!
//! ```text
//!             allreduce 6      allreduce 7      allreduce 8
//!  rank 0     [####]           [####]           [~~~~~~~~~~~   started, no end
//!  rank 1     [####]                                           left 6 and entered 7, or rank 0 could not have left 7:
//!                                                              the recording was cut, and its last rows are lost
//! ```

use std::collections::{BTreeMap, BTreeSet};

use trace::{Op, Text, TimingSource, UnfinishedRow, Word};

use align::matching::barrier_of;
use measure::part::RankPart;
use model::{Barrier, Collective};

/// Identifies one collective on all of its ranks: communicator, operation, number and peer. Only a send or a receive
/// has a peer, which keeps it apart from the calls of other ranks.
type Key = (i64, Word<Op>, Option<i64>, Option<i32>);

/// The recorded facts about one collective, merged from the rows of all ranks.
#[derive(Debug, Default)]
struct Seen {
    name: Option<Text>,
    size: Option<i32>,
    /// The furthest state of each rank: 2 done, 1 started, 0 enqueued.
    progress: BTreeMap<i32, u8>,
}

/// The ranks of a communicator. It may list many more than were read.
#[derive(Debug, Default)]
struct Members {
    count: usize,
    /// Those whose rows were all read, ascending.
    read: Vec<i32>,
}

/// Whether the rows of one rank record ends. A source that records only the enqueue never records an end, so its rows
/// are no sign of a hang.
pub(crate) fn records_ends(rows: &[Collective]) -> bool {
    rows.iter().any(|row| row.timing_source != TimingSource::Enqueue)
}

/// How far a row says that the operation is: 2 done, 1 started, 0 enqueued.
pub(crate) fn progress(row: &Collective) -> u8 {
    row.state.known().map_or(0, |state| state as u8)
}

/// The unfinished collectives of all ranks, those with a missing rank first. `whole` is true if all rows of the ranks
/// were read, not only those of chosen steps or of a time range.
pub fn unfinished(parts: &[RankPart], whole: bool) -> Vec<UnfinishedRow> {
    let cut = cut_short(parts);
    let rank_of = |part: &RankPart| part.outline.info.rank;
    let read: BTreeSet<i32> = parts.iter().filter(|_| whole).map(rank_of).filter(|rank| !cut.contains(rank)).collect();
    let mut members: BTreeMap<i64, BTreeSet<i32>> = BTreeMap::new();
    let mut seen: BTreeMap<Key, Seen> = BTreeMap::new();
    let mut open: BTreeSet<Key> = BTreeSet::new();
    for part in parts {
        let rank = part.outline.info.rank;
        for comm in &part.outline.comms {
            members.entry(comm.comm_id).or_default().insert(rank);
            members.entry(comm.comm_id).or_default().extend(comm.ranks.iter().flatten());
        }
        let records_ends = records_ends(&part.outline.collectives);
        for row in &part.outline.collectives {
            members.entry(row.comm_id).or_default().insert(rank);
            let key: Key = (row.comm_id, row.op.clone(), row.seq(), row.peer());
            if progress(row) < 2 && records_ends {
                open.insert(key.clone());
            }
            let entry = seen.entry(key).or_default();
            entry.name = entry.name.take().or_else(|| row.comm_name.clone());
            entry.size = entry.size.or(row.comm_size);
            let best = entry.progress.entry(rank).or_default();
            *best = progress(row).max(*best);
        }
    }
    let rows_lost = parts.iter().flat_map(|part| &part.counters).any(|counter| counter.dropped > 0);
    let of_comm = |(comm_id, ranks): (i64, BTreeSet<i32>)| {
        (comm_id, Members { count: ranks.len(), read: ranks.intersection(&read).copied().collect() })
    };
    let members: BTreeMap<i64, Members> = members.into_iter().map(of_comm).collect();
    let none = Members::default();
    let mut rows: Vec<UnfinishedRow> = open
        .into_iter()
        .filter_map(|key| {
            let seen = seen.get(&key)?;
            Some(row(key.clone(), seen, members.get(&key.0).unwrap_or(&none), rows_lost))
        })
        .filter(|row| !(is_empty(&row.started) && is_empty(&row.enqueued)))
        .collect();
    // A collective with a missing rank comes first: it stops the job, and later collectives only wait for it.
    rows.sort_by_key(|row| (is_empty(&row.missing), is_empty(&row.started), row.comm_id, row.seq));
    rows
}

/// Ranks that lack the ends of the last collectives that others left, although no rank leaves these before all have
/// entered. Their last rows are lost, or they still are in such a collective. Either way, what they called later is
/// unknown.
pub(crate) fn cut_short(parts: &[RankPart]) -> BTreeSet<i32> {
    let mut members: BTreeMap<i64, BTreeSet<i32>> = BTreeMap::new();
    let mut last_left: BTreeMap<(i64, &str), BTreeMap<i32, i64>> = BTreeMap::new();
    for part in parts {
        let rank = part.outline.info.rank;
        for row in &part.outline.collectives {
            members.entry(row.comm_id).or_default().insert(rank);
            let Some(seq) = row.seq().filter(|_| progress(row) == 2 && barrier_of(row) != Barrier::OneSided) else {
                continue;
            };
            let last = last_left.entry((row.comm_id, &row.op)).or_default().entry(rank).or_insert(seq);
            *last = seq.max(*last);
        }
    }
    let mut cut = BTreeSet::new();
    for ((comm_id, _), last) in &last_left {
        let most = last.values().max();
        cut.extend(members.get(comm_id).into_iter().flatten().filter(|rank| last.get(rank) < most));
    }
    cut
}

/// Whether a list of ranks is absent or empty.
fn is_empty(ranks: &Option<Vec<i32>>) -> bool {
    ranks.as_ref().is_none_or(Vec::is_empty)
}

fn row((comm_id, op, seq, peer): Key, seen: &Seen, members: &Members, rows_lost: bool) -> UnfinishedRow {
    let ranks_at =
        |wanted: u8| Some(seen.progress.iter().filter(|(_, p)| **p == wanted).map(|(rank, _)| *rank).collect());
    // A send or receive belongs to one rank. A row without a number cannot be matched with the rows of other ranks.
    let is_shared = peer.is_none() && seq.is_some() && !matches!(op.known(), Some(Op::Send | Op::Recv));
    let is_missing = |rank: &&i32| !seen.progress.contains_key(rank);
    let missing: Option<Vec<i32>> = is_shared.then(|| members.read.iter().filter(is_missing).copied().collect());
    let expected = if is_shared { seen.size.or_else(|| i32::try_from(members.count).ok()) } else { None };
    let known = i32::try_from(seen.progress.len() + missing.as_ref().map_or(0, Vec::len)).unwrap_or(i32::MAX);
    UnfinishedRow {
        comm_id,
        comm_name: seen.name.clone(),
        seq,
        op,
        peer,
        ranks_expected: expected,
        done: ranks_at(2),
        started: ranks_at(1),
        enqueued: ranks_at(0),
        missing,
        unknown: expected.map_or(0, |expected| (expected - known).max(0)),
        rows_lost,
    }
}

#[cfg(test)]
mod tests {
    use trace::CollectiveRow;

    use super::*;

    /// A rank with rows `(op, seq, state)`. The GPU timed every row that is not just enqueued.
    fn part(rank: i32, rows: &[(&str, i64, &str)]) -> RankPart {
        let row = |(op, seq, state): &(&str, i64, &str)| CollectiveRow {
            rank,
            comm_id: 9,
            comm_name: Some("dp".into()),
            comm_size: Some(3),
            seq: Some(*seq),
            op: (*op).into(),
            state: (*state).into(),
            timing_source: if *state == "enqueued" { "enqueue" } else { "gpu_timer" }.into(),
            ..CollectiveRow::default()
        };
        let mut part = RankPart::default();
        part.outline.info.rank = rank;
        part.outline.collectives = rows.iter().map(row).map(Collective::from).collect();
        part
    }

    #[test]
    fn a_rank_that_never_called_a_collective_is_missing() {
        let waits = [("allreduce", 0, "done"), ("allreduce", 1, "started"), ("allgather", 0, "enqueued")];
        let parts = [part(0, &waits), part(1, &waits), part(2, &waits[..1])];
        let rows = unfinished(&parts, true);
        let found: Vec<_> =
            rows.iter().map(|r| (&*r.op, r.seq, r.started.clone(), r.enqueued.clone(), r.missing.clone())).collect();
        assert_eq!(
            found,
            [
                ("allreduce", Some(1), Some(vec![0, 1]), Some(vec![]), Some(vec![2])),
                ("allgather", Some(0), Some(vec![]), Some(vec![0, 1]), Some(vec![2])),
            ]
        );
        assert!(rows.iter().all(|row| row.unknown == 0 && !row.rows_lost));
    }

    #[test]
    fn ranks_that_called_it_are_not_missing_and_unread_ranks_are_counted() {
        let rows = [("allreduce", 0, "done"), ("allreduce", 1, "started")];
        let found = unfinished(&[part(0, &rows), part(1, &rows)], true);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].missing.clone(), found[0].unknown), (Some(vec![]), 1), "rank 2 of three was not read");
    }

    /// Ranks 0 and 1 could leave allreduce 1 only after rank 2 had entered it.
    #[test]
    fn a_rank_whose_last_rows_are_lost_is_unknown_and_not_missing() {
        let rows = [("allreduce", 0, "done"), ("allreduce", 1, "done"), ("allreduce", 2, "started")];
        let of_rank_2 = |last: &[(&str, i64, &str)]| {
            let found = unfinished(&[part(0, &rows), part(1, &rows), part(2, last)], true);
            found.iter().find(|row| row.seq == Some(2)).map(|row| (row.missing.clone(), row.unknown))
        };
        assert_eq!(of_rank_2(&rows[..1]), Some((Some(vec![]), 1)), "its rows end with allreduce 0");
        let in_it = [rows[0], ("allreduce", 1, "started")];
        assert_eq!(of_rank_2(&in_it), Some((Some(vec![]), 1)), "it may still be in allreduce 1");
        assert_eq!(of_rank_2(&rows[..2]), Some((Some(vec![2]), 0)), "it left allreduce 1 and did not enter the next");
        assert_eq!(of_rank_2(&rows[1..2]), Some((Some(vec![2]), 0)), "its recording began later");
    }

    /// A broadcast ends on its root before the others have called it.
    #[test]
    fn the_end_of_a_broadcast_says_nothing_about_other_ranks() {
        let rows = [("broadcast", 0, "done"), ("broadcast", 1, "done"), ("allreduce", 0, "started")];
        let found = unfinished(&[part(0, &rows), part(1, &rows), part(2, &rows[..1])], true);
        assert_eq!((found[0].missing.clone(), found[0].unknown), (Some(vec![2]), 0));
    }

    #[test]
    fn enqueue_rows_alone_are_not_a_hang() {
        let rows = [("allreduce", 0, "enqueued"), ("allreduce", 1, "enqueued")];
        assert_eq!(unfinished(&[part(0, &rows), part(1, &rows)], true), vec![]);
    }

    #[test]
    fn a_collective_that_ended_on_all_ranks_is_not_listed() {
        let rows = [("allreduce", 0, "started"), ("allreduce", 0, "done"), ("allreduce", 1, "done")];
        assert_eq!(unfinished(&[part(0, &rows), part(1, &rows[1..])], true), vec![]);
    }

    /// The communicator lists ranks 0, 1 and 2. Rank 2 was not read: `--ranks` excludes it, or its shards are gone. In
    /// the last case the selection excludes a row of rank 1.
    #[test]
    fn a_rank_that_was_not_read_is_unknown_and_not_missing() {
        let rows = [("allreduce", 0, "done"), ("allreduce", 1, "started")];
        let comm = trace::CommRow { comm_id: 9, ranks: Some(vec![0, 1, 2]), ..trace::CommRow::default() };
        let with = |rank, rows| {
            let mut part = part(rank, rows);
            part.outline.comms = vec![comm.clone()];
            part
        };
        let missing_and_unknown = |parts: &[RankPart], whole| {
            let found = unfinished(parts, whole);
            (found[0].missing.clone(), found[0].unknown)
        };
        assert_eq!(missing_and_unknown(&[with(0, &rows), with(1, &rows)], true), (Some(vec![]), 1));
        assert_eq!(missing_and_unknown(&[with(0, &rows), with(1, &rows[..1])], true), (Some(vec![1]), 1));
        assert_eq!(missing_and_unknown(&[with(0, &rows), with(1, &rows[..1])], false), (Some(vec![]), 2));
    }
}
