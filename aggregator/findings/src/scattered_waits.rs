//! Long waits for which the verdict names no rank.

use trace::Severity;

use crate::finding::{Found, finding, saving};
use crate::registry::Context;
use model::analysis::VerdictKind;
use model::claim::{Claim, Part, Quantity, Relation, Value};

/// Waits of this share of a step are long, in percent.
const SCATTERED_WAITS_PCT: f64 = 5.0;

kind! {
    /// Ranks wait, but for different ranks in different steps.
    ///
    /// The `suffered_wait_ns` of the rank that waits most.
    SCATTERED_WAITS: "scattered-waits", by scattered_waits
}

fn scattered_waits(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    let verdict = &analysis.verdict;
    let wait_ns = verdict.exposed_wait_ns.unwrap_or(0) as f64;
    let is_long = 100.0 * wait_ns >= SCATTERED_WAITS_PCT * verdict.step_ns.unwrap_or(i64::MAX) as f64;
    (verdict.kind == VerdictKind::Undecided && verdict.rank.is_none() && is_long).then(|| {
        let evidence = format!(
            "collective_waits.exposed_wait_ns less the clocks' error, by rank; threshold {SCATTERED_WAITS_PCT} % of a step (this \
             program's)"
        );
        // Without any wait, the rank that waits most needs its step less its waits.
        let most_ns = analysis.tables.stragglers.iter().map(|row| row.suffered_wait_ns).max().unwrap_or(0);
        let claim = Claim::new(Quantity::Wait, Relation::Exceeds, "stragglers").value(Value::Ns(most_ns));
        let found = finding(
            claim.explains(Part::Wait, most_ns),
            Severity::Warning,
            verdict.sentence.clone(),
            evidence,
            verdict.action.as_deref().unwrap_or("record more steps"),
        );
        saving(most_ns, found)
    })
}
