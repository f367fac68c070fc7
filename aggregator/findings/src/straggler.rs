//! The rank that the verdict names.

use trace::{FindingRow, Severity};

use crate::finding::{finding, saving};
use crate::headline::is_without_cost;
use crate::registry::Context;
use model::analysis::VerdictKind;

kind! {
    /// A rank slows the others, or may.
    ///
    /// Its `step_delay_ns` ([verdicts](verdicts.md)).
    STRAGGLER: "straggler", by straggler
}

fn straggler(context: &Context<'_>) -> Option<FindingRow> {
    let analysis = context.analysis;
    let verdict = &analysis.verdict;
    let severity = match verdict.kind {
        VerdictKind::Cause => Severity::Critical,
        VerdictKind::Undecided if verdict.within_variation => Severity::Info,
        VerdictKind::Undecided => Severity::Warning,
        VerdictKind::Balanced | VerdictKind::Nothing | VerdictKind::Hung => Severity::Info,
    };
    let row = analysis.tables.stragglers.iter().find(|s| Some(s.rank) == verdict.rank)?;
    if verdict.kind == VerdictKind::Balanced && !is_without_cost(row) {
        return None;
    }
    let evidence = row.evidence.clone().unwrap_or_else(|| verdict.sentence.as_str().into());
    let suggestion = match verdict.kind {
        VerdictKind::Balanced => "nothing to do: the step would not be shorter without it",
        _ => verdict.action.as_deref().unwrap_or("record more steps"),
    };
    let found = finding(severity, verdict.sentence.clone(), ("stragglers", evidence.to_string()), suggestion);
    Some(saving(row.step_delay_ns, found))
}
