//! From the table of stragglers to one line: who, how much per step, why, how sure.

use trace::StragglerRow;

use crate::analysis::{Facts, Tables, Verdict, VerdictKind};
use crate::instances::lower_median;
use crate::render::text::ns;
use crate::straggler::spoken_z;

/// The verdict on a run.
pub(crate) fn verdict(tables: &Tables, facts: &Facts) -> Verdict {
    let rows = &tables.stragglers;
    let of = |verdict: &str| {
        let mut rows: Vec<&StragglerRow> = rows.iter().filter(|r| &*r.verdict == verdict && r.steps > 0).collect();
        rows.sort_by_key(|r| (std::cmp::Reverse(r.step_delay_ns), r.rank));
        rows
    };
    let (causes, undecided) = (of("cause"), of("undecided"));
    let most_excess = rows.iter().max_by_key(|r| (r.own_excess_ns, std::cmp::Reverse(r.rank)));
    let steps = tables.step_breakdown.iter().filter(|b| b.step.is_some_and(|s| s >= 0));
    let step_ns = lower_median(steps.map(|b| b.wall_ns).collect());
    let scattered = scattered_waits(tables, step_ns).filter(|_| judged(tables, facts));
    let (kind, row) = match (causes.first(), undecided.first()) {
        (Some(row), _) => (VerdictKind::Cause, Some(*row)),
        (None, Some(row)) => (VerdictKind::Undecided, Some(*row)),
        (None, None) if scattered.is_some() => (VerdictKind::Undecided, None),
        (None, None) if judged(tables, facts) => (VerdictKind::Balanced, most_excess),
        (None, None) => (VerdictKind::Nothing, None),
    };
    let mut verdict = match row {
        Some(row) => numbers(row),
        None => Verdict::default(),
    };
    verdict.kind = kind;
    verdict.causes = causes.iter().map(|r| r.rank).collect();
    verdict.step_ns = step_ns;
    verdict.sentence = match (kind, row, scattered) {
        (VerdictKind::Undecided, None, Some(waits)) => waits,
        _ => sentence(&verdict, tables, facts),
    };
    verdict
}

/// Share of a step that ranks may wait for one another before a run is not called balanced, in percent: five times what
/// one rank's effect must reach, because the waits of a machine that is merely restless scatter, too.
const SCATTERED_WAITS_PCT: f64 = 10.0;

/// What is said where ranks wait, but not for one rank in most steps: medians over steps then see nothing. `None` if they
/// wait less, or what they seem to wait may be nothing but clocks.
fn scattered_waits(tables: &Tables, step_ns: Option<i64>) -> Option<String> {
    let step_ns = step_ns.filter(|ns| *ns > 0)?;
    if tables.collective_instances.iter().any(|instance| instance.error_ns.is_none()) {
        return None;
    }
    let of_steps = || tables.stragglers.iter().filter(|row| row.steps > 0);
    let most = of_steps().max_by_key(|row| (row.suffered_wait_ns, std::cmp::Reverse(row.rank)))?;
    let pct = 100.0 * most.suffered_wait_ns as f64 / step_ns as f64;
    if pct < SCATTERED_WAITS_PCT {
        return None;
    }
    let charged = of_steps().max_by_key(|row| (row.caused_wait_ns, std::cmp::Reverse(row.rank)))?;
    Some(format!(
        "no rank slows the others in most steps, yet rank {} waits {} per step ({pct:.0} % of a step) for others; most waits, \
         {} per step in sum, are for rank {}. Different ranks may be late in different steps, or several at once.",
        most.rank,
        ns(most.suffered_wait_ns),
        ns(charged.caused_wait_ns),
        charged.rank,
    ))
}

/// Whether there was anything to judge.
fn judged(tables: &Tables, facts: &Facts) -> bool {
    facts.ranks.len() > 1 && !tables.collective_instances.is_empty() && tables.stragglers.iter().any(|s| s.steps > 0)
}

fn numbers(row: &StragglerRow) -> Verdict {
    let text = |t: &Option<trace::Text>| t.as_deref().map(String::from);
    let by_range = row.stands_on.as_deref() == Some("range");
    Verdict {
        rank: Some(row.rank),
        step_delay_ns: Some(row.step_delay_ns),
        own_excess_ns: Some(row.own_excess_ns),
        own_excess_low_ns: row.own_excess_low_ns,
        own_excess_high_ns: row.own_excess_high_ns,
        reason: text(&row.reason),
        evidence_range: text(&row.evidence_range),
        evidence_excess_ns: row.evidence_excess_ns,
        stands_on: text(&row.stands_on),
        z: if by_range { row.evidence_z } else { row.z },
        persistence: if by_range { row.evidence_persistence } else { row.persistence },
        steps: row.steps,
        ..Verdict::default()
    }
}

fn sentence(v: &Verdict, tables: &Tables, facts: &Facts) -> String {
    let Some(rank) = v.rank else { return nothing(tables, facts) };
    let sure = certainty(v);
    let excess = v.own_excess_ns.unwrap_or(0);
    let why = why(v);
    match v.kind {
        VerdictKind::Cause => {
            let delay = v.step_delay_ns.unwrap_or(0);
            let share = v.step_ns.filter(|step| *step > 0).map(|step| 100.0 * delay as f64 / step as f64);
            let others = match v.causes.len() {
                0 | 1 => String::new(),
                n => format!(" {} more cause{}.", n - 1, if n == 2 { "" } else { "s" }),
            };
            let effect = match share {
                // On fewer cores than ranks, a rank that waits frees its core for the others.
                _ if delay == 0 => {
                    "loses time in every step, but makes none longer, as other ranks are as late by then".into()
                }
                Some(share) => format!("slows every step by {} ({share:.0} % of a step)", ns(delay)),
                None => format!("slows every step by {}", ns(delay)),
            };
            format!("rank {rank} {effect}: {why}. {sure}.{others}")
        }
        VerdictKind::Undecided => {
            format!("rank {rank} may slow the others, by {} of own work per step: {why}. {sure}.", ns(excess))
        }
        VerdictKind::Balanced | VerdictKind::Nothing => {
            format!(
                "no rank slows the others in most steps; the most own work above the others' has rank {rank}: {} per step \
                 (median). {sure}.",
                ns(excess)
            )
        }
    }
}

fn why(v: &Verdict) -> String {
    let reason = v.reason.as_deref().unwrap_or("own work");
    match (&v.evidence_range, v.evidence_excess_ns) {
        (Some(range), Some(excess)) => format!("{reason}, {} more in `{range}` than other ranks", ns(excess)),
        _ => format!("{reason}, {} more between collectives than other ranks", ns(v.own_excess_ns.unwrap_or(0))),
    }
}

fn certainty(v: &Verdict) -> String {
    let steps = format!("{} step{}", v.steps, if v.steps == 1 { "" } else { "s" });
    let mut parts = Vec::new();
    // The interval is that of all own work; where the verdict stands on one range it says nothing of how sure that is.
    if let (Some(low), Some(high)) = (v.own_excess_low_ns, v.own_excess_high_ns)
        && v.stands_on.as_deref() != Some("range")
    {
        parts.push(format!("own excess {} to {} (95 %)", ns(low), ns(high)));
    }
    if let Some(z) = v.z {
        parts.push(spoken_z(z));
    }
    match v.persistence {
        Some(p) => parts.push(format!("in {:.0} % of {steps}", 100.0 * p)),
        None => parts.push(format!("over {steps}")),
    }
    let basis = match v.stands_on.as_deref() {
        Some("range") => "By that range alone: ",
        Some(_) => "By all of its own work: ",
        None => "",
    };
    format!("{basis}{}", parts.join(", "))
}

fn nothing(tables: &Tables, facts: &Facts) -> String {
    if !facts.nothing_because.is_empty() {
        return format!("nothing was recorded: {}.", facts.nothing_because.join("; "));
    }
    if facts.ranks.len() < 2 {
        return "one rank only: there is nobody to wait for.".into();
    }
    if tables.collective_instances.is_empty() {
        if tables.omissions.iter().any(|row| &*row.what == crate::matching::WITHOUT_TIMES) {
            return "no collective was recorded with its times: nothing says whether ranks waited for each other."
                .into();
        }
        let none = match &facts.selection {
            Some(selection) => format!("no collective lies in {selection}"),
            None => "no collective was recorded".into(),
        };
        return format!("{none}: nothing says whether ranks waited for each other.");
    }
    "no step with collectives of several ranks was recorded: stragglers cannot be judged.".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(step_delay_ns: i64) -> String {
        let cause = StragglerRow {
            rank: 5,
            steps: 5,
            verdict: "cause".into(),
            reason: Some("compute".into()),
            evidence_range: Some("forward".into()),
            evidence_excess_ns: Some(30_000_000),
            step_delay_ns,
            ..StragglerRow::default()
        };
        let step = trace::StepBreakdownRow { step: Some(3), wall_ns: 200_000_000, ..Default::default() };
        let tables = Tables { stragglers: vec![cause], step_breakdown: vec![step], ..Tables::default() };
        verdict(&tables, &Facts::default()).sentence
    }

    #[test]
    fn an_empty_run_says_why_it_is_empty() {
        let facts = Facts { ranks: vec![0], nothing_because: vec!["no CUDA".into()], ..Facts::default() };
        assert_eq!(verdict(&Tables::default(), &facts).sentence, "nothing was recorded: no CUDA.");
    }

    /// ```text
    /// rank 0   [work]......    [work]          who is late changes from step to step,
    /// rank 1   [work    ]      [work]......    so that medians over steps see no one
    /// ```
    #[test]
    fn waits_for_ever_another_rank_are_not_called_balanced() {
        let row = |rank, suffered_wait_ns| StragglerRow {
            rank,
            steps: 6,
            verdict: "ok".into(),
            suffered_wait_ns,
            caused_wait_ns: 3 * suffered_wait_ns,
            ..StragglerRow::default()
        };
        let said = |suffered_ns: i64, error_ns: Option<i64>| {
            let step = trace::StepBreakdownRow { step: Some(3), wall_ns: 10_000_000, ..Default::default() };
            let tables = Tables {
                stragglers: vec![row(0, suffered_ns), row(1, suffered_ns / 2)],
                step_breakdown: vec![step],
                collective_instances: vec![trace::InstanceRow { error_ns, ..Default::default() }],
                ..Tables::default()
            };
            let verdict = verdict(&tables, &Facts { ranks: vec![0, 1], ..Facts::default() });
            (verdict.kind, verdict.rank, verdict.sentence)
        };
        let (kind, rank, sentence) = said(3_000_000, Some(1000));
        assert_eq!((kind, rank), (VerdictKind::Undecided, None));
        assert!(sentence.contains("rank 0 waits 3.00 ms per step (30 % of a step)"), "{sentence}");
        assert_eq!(said(900_000, Some(1000)).0, VerdictKind::Balanced, "a restless machine");
        assert_eq!(said(3_000_000, None).0, VerdictKind::Balanced, "clocks that nobody compared say nothing of waits");
    }

    #[test]
    fn what_was_not_chosen_is_not_called_unrecorded() {
        let said = |selection: Option<&str>| {
            let facts = Facts { ranks: vec![0, 1], selection: selection.map(String::from), ..Facts::default() };
            verdict(&Tables::default(), &facts).sentence
        };
        let nothing = "nothing says whether ranks waited for each other.";
        assert_eq!(said(None), format!("no collective was recorded: {nothing}"));
        assert_eq!(said(Some("--from +9s")), format!("no collective lies in --from +9s: {nothing}"));
    }

    #[test]
    fn a_cause_says_what_it_costs_even_if_that_is_nothing() {
        let why = "compute, 30.0 ms more in `forward` than other ranks. over 5 steps.";
        assert_eq!(said(20_000_000), format!("rank 5 slows every step by 20.0 ms (10 % of a step): {why}"));
        let nothing = "rank 5 loses time in every step, but makes none longer, as other ranks are as late by then";
        assert_eq!(said(0), format!("{nothing}: {why}"));
    }
}
