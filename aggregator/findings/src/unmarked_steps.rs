//! Recordings that mark no steps.

use trace::Severity;

use crate::finding::{Found, finding};
use crate::rank_facts::OfRanks;
use crate::registry::Context;
use model::analysis::{Analysis, VerdictKind};
use model::claim::{Advice, Claim, Quantity, Relation};
use model::thresholds::Thresholds;

kind! {
    /// No steps are marked, and a range may be the step or ranks cannot be compared without steps.
    UNMARKED_STEPS: "unmarked-steps", by unmarked
}

fn unmarked(context: &Context<'_>) -> Option<Found> {
    let suggestion = suggestion(context.analysis, context.ranks)?;
    let claim = Claim::new(Quantity::StepMarks, Relation::Absent, "").advises(Advice::RecordMore);
    Some(finding(
        claim,
        Severity::Info,
        "no steps are marked, so the whole recording counts as one step".into(),
        "a step is a ProfilerStep, an NVTX range that --step-marker names, or a step that the recorder marked".into(),
        &suggestion,
    ))
}

/// How to mark the steps; `None` if they are marked, or one rank alone has nothing that may be a step.
fn suggestion(analysis: &Analysis, ranks: &OfRanks) -> Option<String> {
    if ranks.have_marked_steps {
        return None;
    }
    let compares = analysis.facts.ranks.len() > 1 && !analysis.tables.collective_instances.is_empty();
    match ranks.may_be_steps.first() {
        Some(pattern) => Some(format!("--step-marker '{pattern}' makes each of these ranges a step")),
        None if compares => Some(
            "no range recurs equally on all ranks with a collective in each: put record_function or an NVTX range around each batch, and \
             give its name to --step-marker"
                .into(),
        ),
        None => None,
    }
}

/// Asks for marks where the verdict would ask for more steps.
pub fn take_action(analysis: &mut Analysis, ranks: &OfRanks, t: &Thresholds) {
    let has_few = (analysis.verdict.steps.max(0) as usize) < t.min_steps;
    if analysis.verdict.kind == VerdictKind::Undecided && has_few {
        let marks =
            suggestion(analysis, ranks).map(|words| format!("mark the steps, so that they can be compared: {words}"));
        analysis.verdict.action = marks.or(analysis.verdict.action.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::analysis::Verdict;
    use model::options::Options;
    use trace::InstanceRow;

    fn said(ranks: Vec<i32>, may_be_steps: &[&str]) -> (Option<String>, Option<String>) {
        let mut analysis = Analysis::default();
        analysis.facts.ranks = ranks;
        analysis.tables.collective_instances = vec![InstanceRow::default()];
        analysis.verdict = Verdict { kind: VerdictKind::Undecided, steps: 1, ..Verdict::default() };
        let may_be_steps = may_be_steps.iter().map(|pattern| (*pattern).into()).collect();
        let ranks = OfRanks { may_be_steps, ..OfRanks::default() };
        let options = Options::default();
        let found = UNMARKED_STEPS.found(&Context::new(&analysis, &options, &ranks)).pop();
        take_action(&mut analysis, &ranks, &options.thresholds);
        (found.map(|found| found.row.suggestion.to_string()), analysis.verdict.action)
    }

    #[test]
    fn the_range_that_recurs_is_the_marker() {
        let (suggestion, action) = said(vec![0, 1], &["^batch$", "^inner$"]);
        assert_eq!(suggestion.unwrap(), "--step-marker '^batch$' makes each of these ranges a step");
        assert!(action.unwrap().contains("--step-marker '^batch$'"));
        let (suggestion, action) = said(vec![0, 1], &[]);
        assert!(suggestion.unwrap().starts_with("no range recurs equally on all ranks"));
        assert!(action.unwrap().contains("give its name to --step-marker"));
        assert_eq!(said(vec![0], &[]), (None, None), "one rank without such a range");
    }
}
