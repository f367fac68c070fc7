//! Rows that were lost: by the recorders, and launches whose device work has no row.

use std::collections::BTreeMap;

use trace::Severity;

use crate::finding::{Found, finding, step_rows};
use crate::registry::Context;
use measure::lost_launches::WITHOUT_WORK;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};
use model::units::ns;

kind! {
    /// Rows were lost while recording.
    LOST_ROWS: "lost-rows", makes numbers invalid, by lost_rows
}

kind! {
    /// Launches have no device work in the trace, so what a device did in that time is unknown.
    LOST_LAUNCHES: "lost-launches", makes numbers invalid, by lost_launches
}

fn lost_rows(context: &Context<'_>) -> Option<Found> {
    let facts = &context.analysis.facts;
    (facts.dropped > 0).then(|| {
        let total = facts.recorded.saturating_add(facts.dropped).max(1);
        let pct = 100.0 * facts.dropped as f64 / total as f64;
        let claim = Claim::new(Quantity::Rows, Relation::Exceeds, "counters");
        finding(
            claim.value(Value::Count(facts.dropped)).advises(Advice::RecordMore),
            Severity::Warning,
            format!("{} rows were lost while recording ({pct:.2} %)", facts.dropped),
            "counters.dropped, summed over ranks; threshold: any".into(),
            "counts and totals are lower bounds; record fewer steps, or give the recorder larger queues",
        )
    })
}

/// The rank with most unknown time is named.
fn lost_launches(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    // Unknown time, time of the steps, and their number.
    let mut places: BTreeMap<(i32, Option<i64>), (i64, i64, i64)> = BTreeMap::new();
    for row in step_rows(analysis) {
        let (unknown_ns, wall_ns, steps) = places.entry((row.rank, row.device_id)).or_default();
        *unknown_ns = unknown_ns.saturating_add(row.unknown_ns);
        *wall_ns = wall_ns.saturating_add(row.wall_ns);
        *steps += 1;
    }
    let ((rank, device), (unknown_ns, wall_ns, steps)) = places.iter().max_by_key(|(_, (unknown, ..))| *unknown)?;
    let omissions = analysis.tables.omissions.iter().filter(|row| &*row.what == WITHOUT_WORK);
    let launches = omissions.filter(|row| row.rank == Some(*rank)).filter_map(|row| row.amount).sum::<i64>();
    if *unknown_ns <= 0 || launches == 0 {
        return None;
    }
    let per_step_ns = unknown_ns / steps;
    let claim = Claim::new(Quantity::Unknown, Relation::Exceeds, "step_breakdown").of(*rank, *device);
    let count = if launches == 1 { "1 launch".into() } else { format!("{launches} launches") };
    let title = match device {
        None => format!("no device work was recorded for {count} of rank {rank}: what its device did is unknown"),
        Some(device) => format!(
            "device work is missing for {count} of rank {rank}: what its device {device} did in {} of a {} step is unknown",
            ns(per_step_ns),
            ns(wall_ns / steps)
        ),
    };
    Some(finding(
        claim.value(Value::Ns(per_step_ns)).explains(Part::Unknown, per_step_ns).advises(Advice::RecordMore),
        Severity::Warning,
        title,
        "step_breakdown.unknown_ns: from a launch without device work to the end of its call if that blocks, or to the next work of the \
         device; threshold 1 % of the launches (this program's)"
            .into(),
        "record again: the profiler was not permitted to record the device, another profiler held it, or its buffers were full; a blocking \
         copy without its row may also be slow, as from memory that is not pinned",
    ))
}
