//! The rank that the verdict names.

use trace::{Reason, Severity, StragglerRow, Word};

use crate::finding::{Found, finding, saving};
use crate::registry::Context;
use model::analysis::VerdictKind;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};

kind! {
    /// A rank slows the others, or may.
    ///
    /// Its `step_delay_ns` ([verdicts](verdicts.md)).
    STRAGGLER: "straggler", by straggler
}

fn straggler(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    let verdict = &analysis.verdict;
    let severity = match verdict.kind {
        VerdictKind::Cause => Severity::Critical,
        VerdictKind::Undecided if verdict.within_variation => Severity::Info,
        VerdictKind::Undecided => Severity::Warning,
        _ => Severity::Info,
    };
    let row = analysis.tables.stragglers.iter().find(|s| Some(s.rank) == verdict.rank)?;
    if verdict.kind.acquits_all() {
        return None;
    }
    let evidence = row.evidence.clone().unwrap_or_else(|| verdict.sentence.as_str().into());
    let suggestion = verdict.action.as_deref().unwrap_or("record more steps");
    let relation = match verdict.kind {
        VerdictKind::Cause => Relation::Exceeds,
        VerdictKind::Undecided if !verdict.within_variation => Relation::Unknown,
        _ => Relation::Within,
    };
    let claim =
        Claim::new(Quantity::StepDelay, relation, "stragglers").of(row.rank, None).value(Value::Ns(row.step_delay_ns));
    let claim = claim.interval(row.step_delay_low_ns, row.step_delay_high_ns).advises(Advice::CompareRanks);
    let claim = match verdict.kind {
        kind if kind.acquits_all() => claim,
        _ => claim.explains(part_of(row, analysis.facts.has_device_rows), row.step_delay_ns),
    };
    let found = finding(claim, severity, verdict.sentence.clone(), evidence.to_string(), suggestion);
    Some(saving(row.step_delay_ns, found))
}

/// The part of that rank's step in which its delay is seen: its device idles while its host is late.
fn part_of(row: &StragglerRow, has_device_rows: bool) -> Part {
    match row.reason.as_ref().and_then(Word::known) {
        Some(Reason::Host | Reason::Input | Reason::Waiting) if has_device_rows => Part::Idle,
        Some(Reason::Network) => Part::Transfer,
        _ => Part::Work,
    }
}
