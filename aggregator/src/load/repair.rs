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

fn repair_collectives(rows: &mut Vec<CollectiveRow>, rank: i32, omissions: &mut Vec<OmissionRow>) {
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
