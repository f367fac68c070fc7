//! Rows that the recorders lost.

use trace::Severity;

use crate::finding::{Found, finding};
use crate::registry::Context;
use model::claim::{Advice, Claim, Quantity, Relation, Value};

kind! {
    /// Rows were lost while recording.
    LOST_ROWS: "lost-rows", makes numbers invalid, by lost_rows
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
