//! Removes impossible rows: times that run backwards or that no clock can show. Each removal is reported.

use rustc_hash::FxHashMap;
use trace::{OmissionRow, StepRow};

use model::{Collective, RankData, RankOutline};
use trace::time_limits::{FAR, LONG, MAX_LENGTH_NS, Window, plausible_starts};

const BACKWARDS: &str = "the clock jumped backwards";

/// Sorts the small tables and removes impossible rows.
pub(super) fn repair(data: &mut RankData) {
    let rank = data.outline.info.rank;
    drop_impossible(data);
    repair_collectives(&mut data.outline.collectives, rank, &mut data.omissions);
    repair_steps(&mut data.outline.steps, rank, &mut data.omissions);
    data.memory.sort_by_key(|m| m.ts_ns);
    data.outline.clock_samples.sort_by_key(|s| s.local_ns);
    data.buckets.sort_by_key(|b| b.bucket);
    data.buckets.dedup_by_key(|b| b.bucket);
    let torn = data.outline.clock_samples.len();
    data.outline.clock_samples.retain(|s| s.rtt_ns >= 0);
    omit(&mut data.omissions, rank, "clock samples", torn - data.outline.clock_samples.len(), BACKWARDS);
}

/// The median of the rows determines which times are plausible; without rows, that of the collectives and steps.
fn drop_impossible(data: &mut RankData) {
    let RankData { outline, events, memory, omissions, .. } = data;
    let RankOutline { info, collectives, steps, clock_samples, .. } = outline;
    let rank = info.rank;
    let window = if events.is_empty() {
        let starts = collectives.iter().filter_map(|c| c.start_ns().or(c.enqueue_ns()));
        let mut starts: Vec<i64> = starts.chain(steps.iter().map(|s| s.start_ns)).collect();
        starts.sort_unstable();
        plausible_starts(starts.len(), |at| starts[at]).1
    } else {
        Window::around(events.ts_ns[events.len() / 2])
    };
    let is_long = |start_ns: i64, end_ns: i64| end_ns.saturating_sub(start_ns) > MAX_LENGTH_NS;
    let before = collectives.len();
    collectives.retain(|c| {
        [c.ready_ns(), c.enqueue_ns(), c.start_ns(), c.end_ns()].into_iter().flatten().all(|ts_ns| window.holds(ts_ns))
    });
    omit(omissions, rank, "collectives", before - collectives.len(), FAR);
    let before = collectives.len();
    collectives.retain(|c| !matches!((c.start_ns(), c.end_ns()), (Some(start), Some(end)) if is_long(start, end)));
    omit(omissions, rank, "collectives", before - collectives.len(), LONG);
    let before = steps.len();
    steps.retain(|s| window.holds(s.start_ns) && window.holds(s.end_ns));
    omit(omissions, rank, "steps", before - steps.len(), FAR);
    let before = memory.len();
    memory.retain(|m| window.holds(m.ts_ns));
    omit(omissions, rank, "memory events", before - memory.len(), FAR);
    // The peer's clock may count from any origin, so its times need only be plausible for some clock.
    let before = clock_samples.len();
    clock_samples.retain(|s| window.holds(s.local_ns) && Window::ANY.holds(s.remote_ns) && s.rtt_ns <= MAX_LENGTH_NS);
    omit(omissions, rank, "clock samples", before - clock_samples.len(), FAR);
}

fn repair_collectives(rows: &mut Vec<Collective>, rank: i32, omissions: &mut Vec<OmissionRow>) {
    drop_superseded(rows);
    let before = rows.len();
    rows.retain(|c| !matches!((c.start_ns(), c.end_ns()), (Some(start), Some(end)) if end < start));
    omit(omissions, rank, "collectives", before - rows.len(), &format!("they end before they start: {BACKWARDS}"));
    let before = rows.len();
    rows.retain(|c| c.start_ns().or(c.enqueue_ns()).is_some());
    omit(omissions, rank, "collectives", before - rows.len(), "they have neither a start time nor an enqueue time");
    rows.sort_by_key(Collective::order);
}

/// Drops superseded rows. A collective that was in flight when a part closed has a row in that part and another in a
/// later one. The most advanced row counts; the other is no omission. Two finished rows stay: one of them is wrong, and
/// matching reports it.
fn drop_superseded(rows: &mut Vec<Collective>) {
    let progress = |c: &Collective| c.state.known().map_or(0, |state| state as u8);
    // NCCL numbers each operation separately, and this recorder numbers sends and receives per peer.
    let key = |c: &Collective| Some((c.comm_id, c.seq()?, c.op.clone(), c.peer()));
    let mut farthest: FxHashMap<_, u8> = FxHashMap::default();
    for c in rows.iter() {
        let Some(key) = key(c) else { continue };
        let best = farthest.entry(key).or_default();
        *best = progress(c).max(*best);
    }
    rows.retain(|c| {
        match key(c).and_then(|key| farthest.get_mut(&key)) {
            Some(best) if progress(c) < 2 => {
                let keep = progress(c) == *best;
                // Two rows with the same state count once.
                *best = if keep { 2 } else { *best };
                keep
            }
            _ => true,
        }
    });
}

/// Drops steps whose order by number differs from their order by time.
fn repair_steps(rows: &mut Vec<StepRow>, rank: i32, omissions: &mut Vec<OmissionRow>) {
    let before = rows.len();
    rows.retain(|s| s.end_ns >= s.start_ns);
    omit(omissions, rank, "steps", before - rows.len(), &format!("they end before they start: {BACKWARDS}"));
    rows.sort_by_key(|s| (s.step, s.start_ns));
    let mut ordered: Vec<StepRow> = Vec::with_capacity(rows.len());
    let (mut backwards, mut twice) = (0, 0);
    for step in rows.drain(..) {
        match ordered.last() {
            Some(last) if last.step == step.step => twice += 1,
            Some(last) if step.start_ns < last.end_ns => backwards += 1,
            _ => ordered.push(step),
        }
    }
    *rows = ordered;
    omit(omissions, rank, "steps", backwards, &format!("they begin before the previous step ended: {BACKWARDS}"));
    omit(omissions, rank, "steps", twice, "their step number was used twice");
}

fn omit(omissions: &mut Vec<OmissionRow>, rank: i32, what: &str, amount: usize, why: &str) {
    if amount > 0 {
        omissions.push(OmissionRow::lost(what, why).rank(rank).amount(amount as i64));
    }
}

#[cfg(test)]
mod tests {
    use trace::CollectiveRow;

    use super::*;

    fn row(seq: Option<i64>, state: &str, start_ns: i64) -> CollectiveRow {
        CollectiveRow { seq, state: state.into(), start_ns: Some(start_ns), ..Default::default() }
    }

    #[test]
    fn a_collective_that_spans_parts_counts_once() {
        let rows = vec![
            row(Some(1), "enqueued", 10),
            row(Some(1), "started", 10),
            row(Some(2), "started", 20),
            row(Some(2), "started", 20),
            row(None, "started", 25),
            row(Some(1), "done", 10),
            row(Some(3), "done", 30),
            row(Some(3), "done", 31),
        ];
        let mut rows: Vec<Collective> = rows.into_iter().map(Collective::from).collect();
        let mut omissions = Vec::new();
        repair_collectives(&mut rows, 0, &mut omissions);
        let remaining: Vec<_> = rows.iter().map(|c| (c.seq(), c.state.to_string(), c.start_ns().unwrap())).collect();
        let expected = [
            (Some(1), "done", 10),
            (Some(2), "started", 20),
            (None, "started", 25),
            (Some(3), "done", 30),
            (Some(3), "done", 31),
        ];
        assert_eq!(remaining, expected.map(|(seq, state, start)| (seq, state.to_string(), start)));
        assert_eq!(omissions, vec![]);
    }

    #[test]
    fn impossible_times_are_left_out_and_counted() {
        let now_ns = 1_795_000_000_000_000_000;
        let step = |step, start_ns, end_ns| StepRow { step, start_ns, end_ns, ..StepRow::default() };
        let collectives = [
            row(Some(1), "done", now_ns),
            row(Some(2), "done", i64::MIN),
            CollectiveRow { end_ns: Some(now_ns + 2 * MAX_LENGTH_NS), ..row(Some(3), "done", now_ns) },
            CollectiveRow { enqueue_ns: Some(7), ..row(Some(4), "done", now_ns + 5) },
        ];
        let mut data = RankData::default();
        data.outline.collectives = collectives.map(Collective::from).into();
        data.outline.steps = vec![step(0, now_ns, now_ns + 9), step(1, now_ns + 9, i64::MAX)];
        repair(&mut data);
        assert_eq!((data.outline.collectives.len(), data.outline.steps.len()), (1, 1));
        let omitted: Vec<_> = data.omissions.iter().map(|o| (&*o.what, o.amount, &*o.why)).collect();
        assert_eq!(omitted, [("collectives", Some(2), FAR), ("collectives", Some(1), LONG), ("steps", Some(1), FAR)]);
    }
}
