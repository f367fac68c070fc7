//! Collectives that never ended: who came, and who did not.
//!
//! ```text
//!             allreduce 6      allreduce 7
//!  rank 0     [####]           [~~~~~~~~~~~~~~~   started, no end
//!  rank 1     [####]           [~~~~~~~~~~~~~~~
//!  rank 2     [####]                              never called: missing
//! ```
//!
//! Read from the rows of `collectives` alone, without clocks and without matching by time: communicator, operation and
//! number say which rows are one collective. A rank belongs to a communicator if it has any row of it, or the communicator
//! names it. Only of a rank that was read, and read as a whole, can be said that it is missing; the others are unknown.

use std::collections::{BTreeMap, BTreeSet};

use trace::{CollectiveRow, Text, UnfinishedRow};

use crate::map::RankPart;

/// What is one collective on all its ranks; for a send or receive also the peer, so that it stands alone.
type Key = (i64, Text, Option<i64>, Option<i32>);

#[derive(Debug, Default)]
struct Seen {
    name: Option<Text>,
    size: Option<i32>,
    /// By rank: 2 done, 1 started, 0 enqueued.
    progress: BTreeMap<i32, u8>,
}

/// What of the rows of one rank says how far its operations came: where only hand-overs are told, no end ever is.
fn tells_ends(rows: &[CollectiveRow]) -> bool {
    rows.iter().any(|row| &*row.timing_source != "enqueue")
}

fn progress(row: &CollectiveRow) -> u8 {
    match &*row.state {
        "done" => 2,
        "started" => 1,
        _ => 0,
    }
}

/// The unfinished collectives of all ranks, those with a missing rank first. `whole`: the ranks' rows are all they have,
/// not those of chosen steps or of a time.
pub(crate) fn unfinished(parts: &[RankPart], whole: bool) -> Vec<UnfinishedRow> {
    let read: BTreeSet<i32> = parts.iter().filter(|_| whole).map(|part| part.info.rank).collect();
    let mut members: BTreeMap<i64, BTreeSet<i32>> = BTreeMap::new();
    let mut seen: BTreeMap<Key, Seen> = BTreeMap::new();
    let mut open: BTreeSet<Key> = BTreeSet::new();
    for part in parts {
        let rank = part.info.rank;
        for comm in &part.comms {
            members.entry(comm.comm_id).or_default().insert(rank);
            members.entry(comm.comm_id).or_default().extend(comm.ranks.iter().flatten());
        }
        let tells_ends = tells_ends(&part.collectives);
        for row in &part.collectives {
            members.entry(row.comm_id).or_default().insert(rank);
            let key: Key = (row.comm_id, row.op.clone(), row.seq, row.peer);
            if progress(row) < 2 && tells_ends {
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
    let none = BTreeSet::new();
    let mut rows: Vec<UnfinishedRow> = open
        .into_iter()
        .filter_map(|key| {
            let seen = seen.get(&key)?;
            Some(row(key.clone(), seen, members.get(&key.0).unwrap_or(&none), (&read, rows_lost)))
        })
        .filter(|row| !(is_empty(&row.started) && is_empty(&row.enqueued)))
        .collect();
    // Where a rank is missing the job stands; what is behind it only waits. Sorting is stable: then by number.
    rows.sort_by_key(|row| (is_empty(&row.missing), is_empty(&row.started), row.comm_id, row.seq));
    rows
}

/// Whether a list of ranks names none.
fn is_empty(ranks: &Option<Vec<i32>>) -> bool {
    ranks.as_ref().is_none_or(Vec::is_empty)
}

fn row(
    (comm_id, op, seq, peer): Key,
    seen: &Seen,
    members: &BTreeSet<i32>,
    (read, rows_lost): (&BTreeSet<i32>, bool),
) -> UnfinishedRow {
    let at = |wanted: u8| Some(seen.progress.iter().filter(|(_, p)| **p == wanted).map(|(rank, _)| *rank).collect());
    // A send or receive is one rank's own; a row without a number may be any.
    let is_shared = peer.is_none() && seq.is_some() && !matches!(&*op, "send" | "recv");
    let is_missing = |rank: &&i32| read.contains(rank) && !seen.progress.contains_key(rank);
    let missing: Option<Vec<i32>> = is_shared.then(|| members.iter().filter(is_missing).copied().collect());
    let expected = if is_shared { seen.size.or_else(|| i32::try_from(members.len()).ok()) } else { None };
    let known = i32::try_from(seen.progress.len() + missing.as_ref().map_or(0, Vec::len)).unwrap_or(i32::MAX);
    UnfinishedRow {
        comm_id,
        comm_name: seen.name.clone(),
        seq,
        op,
        peer,
        ranks_expected: expected,
        done: at(2),
        started: at(1),
        enqueued: at(0),
        missing,
        unknown: expected.map_or(0, |expected| (expected - known).max(0)),
        rows_lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RankInfo;

    /// A rank's rows: `(op, seq, state)`, timed by the GPU unless only enqueued.
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
        let info = RankInfo { rank, ..RankInfo::default() };
        RankPart { info, collectives: rows.iter().map(row).collect(), ..RankPart::default() }
    }

    #[test]
    fn a_rank_that_never_came_is_missing() {
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
    fn who_came_to_all_is_not_missing_and_who_is_not_known_is_counted() {
        let rows = [("allreduce", 0, "done"), ("allreduce", 1, "started")];
        let found = unfinished(&[part(0, &rows), part(1, &rows)], true);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].missing.clone(), found[0].unknown),
            (Some(vec![]), 1),
            "a third rank, of which nothing was read"
        );
    }

    #[test]
    fn hand_overs_alone_are_no_hang() {
        let rows = [("allreduce", 0, "enqueued"), ("allreduce", 1, "enqueued")];
        assert_eq!(unfinished(&[part(0, &rows), part(1, &rows)], true), vec![]);
    }

    #[test]
    fn what_ended_everywhere_is_not_listed() {
        let rows = [("allreduce", 0, "started"), ("allreduce", 0, "done"), ("allreduce", 1, "done")];
        assert_eq!(unfinished(&[part(0, &rows), part(1, &rows[1..])], true), vec![]);
    }

    /// The communicator names ranks 0, 1 and 2. Rank 2 was left aside by `--ranks`, or its shards are gone; or rank 1's
    /// row lies beyond what was chosen.
    #[test]
    fn a_rank_that_nobody_looked_at_is_not_missing() {
        let rows = [("allreduce", 0, "done"), ("allreduce", 1, "started")];
        let comm = trace::CommRow { comm_id: 9, ranks: Some(vec![0, 1, 2]), ..trace::CommRow::default() };
        let with = |rank, rows| RankPart { comms: vec![comm.clone()], ..part(rank, rows) };
        let said = |parts: &[RankPart], whole| {
            let found = unfinished(parts, whole);
            (found[0].missing.clone(), found[0].unknown)
        };
        assert_eq!(said(&[with(0, &rows), with(1, &rows)], true), (Some(vec![]), 1));
        assert_eq!(said(&[with(0, &rows), with(1, &rows[..1])], true), (Some(vec![1]), 1));
        assert_eq!(said(&[with(0, &rows), with(1, &rows[..1])], false), (Some(vec![]), 2));
    }
}
