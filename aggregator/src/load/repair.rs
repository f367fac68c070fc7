//! Rows that cannot be true: times that run backwards. They are left out, and said.

use trace::{CollectiveRow, OmissionRow, StepRow};

use crate::model::RankData;

const BACKWARDS: &str = "the clock jumped backwards";

/// Sorts the small tables and leaves out what cannot be true.
pub(super) fn repair(data: &mut RankData) {
    let rank = data.info.rank;
    repair_collectives(&mut data.collectives, rank, &mut data.omissions);
    repair_steps(&mut data.steps, rank, &mut data.omissions);
    data.memory.sort_by_key(|m| m.ts_ns);
    data.clock_samples.sort_by_key(|s| s.local_ns);
    data.buckets.sort_by_key(|b| b.bucket);
    data.buckets.dedup_by_key(|b| b.bucket);
    let torn = data.clock_samples.len();
    data.clock_samples.retain(|s| s.rtt_ns >= 0);
    omit(&mut data.omissions, rank, "clock samples", torn - data.clock_samples.len(), BACKWARDS);
    if data.info.closed_cleanly == Some(false) {
        let why = "the rank did not end in order; its last part may be missing";
        data.omissions.push(row(rank, "rows after the last part", None, why));
    }
}

/// Leaves out the rows of collectives that were in flight when a part closed and that a later row completes. `rows` stand in the order
/// of their parts. Nothing is lost by it, so that nothing is said.
fn supersede_unfinished(rows: &mut Vec<CollectiveRow>) {
    if rows.iter().all(is_done) {
        return;
    }
    let key = |row: &CollectiveRow| (row.comm_id, row.seq, row.op.clone(), row.peer);
    let mut later = rustc_hash::FxHashSet::default();
    let mut kept: Vec<CollectiveRow> = Vec::with_capacity(rows.len());
    for row in rows.drain(..).rev() {
        let first = later.insert(key(&row));
        if first || row.seq.is_none() || is_done(&row) {
            kept.push(row);
        }
    }
    kept.reverse();
    *rows = kept;
}

fn is_done(row: &CollectiveRow) -> bool {
    &*row.state == "done"
}

fn repair_collectives(rows: &mut Vec<CollectiveRow>, rank: i32, omissions: &mut Vec<OmissionRow>) {
    supersede_unfinished(rows);
    let before = rows.len();
    rows.retain(|c| !matches!((c.start_ns, c.end_ns), (Some(start), Some(end)) if end < start));
    omit(omissions, rank, "collectives", before - rows.len(), &format!("they end before they start: {BACKWARDS}"));
    let before = rows.len();
    rows.retain(|c| c.start_ns.or(c.enqueue_ns).is_some());
    omit(omissions, rank, "collectives", before - rows.len(), "they have neither a start nor a time of enqueueing");
    rows.sort_by_key(|c| (c.start_ns.or(c.enqueue_ns), c.end_ns, c.comm_id, c.seq));
}

/// Steps by number must also be steps by time.
fn repair_steps(rows: &mut Vec<StepRow>, rank: i32, omissions: &mut Vec<OmissionRow>) {
    let before = rows.len();
    rows.retain(|s| s.end_ns >= s.start_ns);
    omit(omissions, rank, "steps", before - rows.len(), &format!("they end before they start: {BACKWARDS}"));
    rows.sort_by_key(|s| (s.step, s.start_ns));
    let mut kept: Vec<StepRow> = Vec::with_capacity(rows.len());
    let (mut backwards, mut twice) = (0, 0);
    for step in rows.drain(..) {
        match kept.last() {
            Some(last) if last.step == step.step => twice += 1,
            Some(last) if step.start_ns < last.end_ns => backwards += 1,
            _ => kept.push(step),
        }
    }
    *rows = kept;
    omit(omissions, rank, "steps", backwards, &format!("they begin before the step before them ended: {BACKWARDS}"));
    omit(omissions, rank, "steps", twice, "their number was used twice");
}

fn omit(omissions: &mut Vec<OmissionRow>, rank: i32, what: &str, amount: usize, why: &str) {
    if amount > 0 {
        omissions.push(row(rank, what, Some(amount as i64), why));
    }
}

fn row(rank: i32, what: &str, amount: Option<i64>, why: &str) -> OmissionRow {
    OmissionRow { file: None, rank: Some(rank), what: what.into(), amount, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collective_in_flight_gives_way_to_its_end() {
        let row = |seq, op: &str, state: &str| CollectiveRow {
            seq,
            op: op.into(),
            state: state.into(),
            start_ns: Some(1),
            ..CollectiveRow::default()
        };
        let all_reduce = |seq, state| row(Some(seq), "allreduce", state);
        // Number 1 ended, 2 came as far as `started`, 3 stands twice because it was split, and 4 is another operation's number too.
        let mut rows = vec![
            all_reduce(1, "enqueued"),
            all_reduce(2, "enqueued"),
            all_reduce(1, "started"),
            all_reduce(4, "started"),
            row(None, "allreduce", "started"),
            all_reduce(1, "done"),
            all_reduce(2, "started"),
            all_reduce(3, "done"),
            all_reduce(3, "done"),
            row(Some(4), "barrier", "done"),
        ];
        let mut omissions = Vec::new();
        repair_collectives(&mut rows, 0, &mut omissions);
        let mut seen: Vec<_> = rows.iter().map(|r| (r.seq, r.op.to_string(), r.state.to_string())).collect();
        seen.sort();
        let of = |seq, op: &str, state: &str| (seq, op.to_string(), state.to_string());
        let expected = [
            of(None, "allreduce", "started"),
            of(Some(1), "allreduce", "done"),
            of(Some(2), "allreduce", "started"),
            of(Some(3), "allreduce", "done"),
            of(Some(3), "allreduce", "done"),
            of(Some(4), "allreduce", "started"),
            of(Some(4), "barrier", "done"),
        ];
        assert_eq!((seen.as_slice(), omissions.len()), (expected.as_slice(), 0));
    }
}
