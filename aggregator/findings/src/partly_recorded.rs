//! Periods in which recording was off.

use trace::Severity;

use crate::finding::{Found, finding};
use crate::registry::Context;
use model::claim::{Claim, Quantity, Relation};

kind! {
    /// Recording was off during a part of the program.
    PARTLY_RECORDED: "partly-recorded", by partly_recorded
}

/// If recording was off all the time, the verdict has that as its reason.
fn partly_recorded(context: &Context<'_>) -> Option<Found> {
    const NAMED: usize = 4;
    let facts = &context.analysis.facts;
    let pauses = &facts.recording_was_off;
    (facts.nothing_because.is_empty() && !pauses.is_empty()).then(|| {
        let rest = pauses.len().saturating_sub(NAMED);
        let rest = if rest > 0 { format!("; and {rest} more like these") } else { String::new() };
        finding(
            Claim::new(Quantity::Recorded, Relation::Below, "counters"),
            Severity::Info,
            "part of the program was not recorded: recording was off for some of the time".into(),
            format!("{}{rest}", pauses[..pauses.len().min(NAMED)].join("; ")),
            "counts and totals cover the recorded part only; --paused, --delay, --duration and rankscope ctl choose that part",
        )
    })
}
