//! Rows that the recorders lost.

use trace::{FindingRow, Severity};

use crate::finding::finding;
use crate::registry::Context;

kind! {
    /// Rows were lost while recording.
    LOST_ROWS: "lost-rows", makes numbers invalid, by lost_rows
}

fn lost_rows(context: &Context<'_>) -> Option<FindingRow> {
    let facts = &context.analysis.facts;
    (facts.dropped > 0).then(|| {
        let total = facts.recorded.saturating_add(facts.dropped).max(1);
        let pct = 100.0 * facts.dropped as f64 / total as f64;
        finding(
            Severity::Warning,
            format!("{} rows were lost while recording ({pct:.2} %)", facts.dropped),
            ("counters", "counters.dropped, summed over ranks; threshold: any".into()),
            "counts and totals are lower bounds; record fewer steps, or give the recorder larger queues",
        )
    })
}
