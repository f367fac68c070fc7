//! The headline: one sentence from the table of stragglers. It names the slow rank, its cost per step, the reason and
//! the certainty.

use trace::{StandsOn, StragglerRow};

use crate::base::stats::lower_median;
use crate::base::units::ns;
use crate::base::units::spoken_z;
use crate::model::analysis::{Facts, Tables, Verdict, VerdictKind};

/// The verdict on a run.
pub(crate) fn verdict(tables: &Tables, facts: &Facts) -> Verdict {
    let rows = &tables.stragglers;
    let rows_by_delay = |verdict: trace::Verdict| {
        let mut rows: Vec<&StragglerRow> = rows.iter().filter(|r| r.verdict == verdict && r.steps > 0).collect();
        rows.sort_by_key(|r| (std::cmp::Reverse(r.step_delay_ns), r.rank));
        rows
    };
    let (causes, undecided) = (rows_by_delay(trace::Verdict::Cause), rows_by_delay(trace::Verdict::Undecided));
    let most_excess = rows.iter().max_by_key(|r| (r.own_excess_ns, std::cmp::Reverse(r.rank)));
    let steps = tables.step_breakdown.iter().filter(|b| b.step.is_some_and(|s| s >= 0));
    let step_ns = lower_median(steps.map(|b| b.wall_ns));
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

/// A run is not balanced if a rank waits at least this share of a step for others, in percent.
///
/// The limit is five times the smallest effect of a cause, because preemption alone scatters waits over all ranks.
pub(crate) const SCATTERED_WAITS_PCT: f64 = 10.0;

/// The sentence for a run whose ranks wait for different ranks in different steps. Medians over steps miss such waits.
///
/// Returns `None` if the waits are below [`SCATTERED_WAITS_PCT`], or if the error of a clock is unknown: then the waits
/// may be clock offsets.
fn scattered_waits(tables: &Tables, step_ns: Option<i64>) -> Option<String> {
    let step_ns = step_ns.filter(|ns| *ns > 0)?;
    if tables.collective_instances.iter().any(|instance| instance.error_ns.is_none()) {
        return None;
    }
    let judged_rows = || tables.stragglers.iter().filter(|row| row.steps > 0);
    let most = judged_rows().max_by_key(|row| (row.suffered_wait_ns, std::cmp::Reverse(row.rank)))?;
    let pct = 100.0 * most.suffered_wait_ns as f64 / step_ns as f64;
    if pct < SCATTERED_WAITS_PCT {
        return None;
    }
    let charged = judged_rows().max_by_key(|row| (row.caused_wait_ns, std::cmp::Reverse(row.rank)))?;
    Some(format!(
        "no rank slows the others in most steps, but rank {} waits {} per step ({pct:.0} % of a step) for other ranks. The \
         longest waits, {} per step summed over the waiting ranks, are for rank {}. Different ranks may be late in different \
         steps, or several ranks at once.",
        most.rank,
        ns(most.suffered_wait_ns),
        ns(charged.caused_wait_ns),
        charged.rank,
    ))
}

/// Whether the tables hold enough to judge: two ranks, a collective, and a rank with a compared step.
fn judged(tables: &Tables, facts: &Facts) -> bool {
    facts.ranks.len() > 1 && !tables.collective_instances.is_empty() && tables.stragglers.iter().any(|s| s.steps > 0)
}

fn numbers(row: &StragglerRow) -> Verdict {
    let by_range = row.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Range);
    Verdict {
        rank: Some(row.rank),
        step_delay_ns: Some(row.step_delay_ns),
        own_excess_ns: Some(row.own_excess_ns),
        own_excess_low_ns: row.own_excess_low_ns,
        own_excess_high_ns: row.own_excess_high_ns,
        reason: row.reason.clone(),
        evidence_range: row.evidence_range.as_deref().map(String::from),
        evidence_excess_ns: row.evidence_excess_ns,
        stands_on: row.stands_on.clone(),
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
                2 => " 1 other rank slows the steps too.".into(),
                n => format!(" {} other ranks slow the steps too.", n - 1),
            };
            let effect = match share {
                // On fewer cores than ranks, a rank that waits frees its core for the others.
                _ if delay == 0 => {
                    "loses time in every step but does not lengthen the step, because other ranks arrive just as late"
                        .into()
                }
                Some(share) => format!("slows every step by {} ({share:.0} % of a step)", ns(delay)),
                None => format!("slows every step by {}", ns(delay)),
            };
            format!("rank {rank} {effect}: {why}. {sure}.{others}")
        }
        VerdictKind::Undecided => {
            format!(
                "rank {rank} may slow the others, because its own work takes {} longer per step: {why}. {sure}.",
                ns(excess)
            )
        }
        VerdictKind::Balanced | VerdictKind::Nothing => {
            format!(
                "no rank slows the others in most steps. Rank {rank} has the largest own excess: {} per step (median). {sure}.",
                ns(excess)
            )
        }
    }
}

fn why(v: &Verdict) -> String {
    let reason = v.reason.as_deref().unwrap_or("own work");
    match (&v.evidence_range, v.evidence_excess_ns) {
        (Some(range), Some(excess)) => format!("{reason}, {} longer in `{range}` than on the other ranks", ns(excess)),
        _ => {
            format!("{reason}, {} longer between collectives than on the other ranks", ns(v.own_excess_ns.unwrap_or(0)))
        }
    }
}

fn certainty(v: &Verdict) -> String {
    let steps = format!("{} step{}", v.steps, if v.steps == 1 { "" } else { "s" });
    let by_range = v.stands_on.as_ref().map(|basis| *basis == StandsOn::Range);
    let mut parts = Vec::new();
    // The interval covers all own work. It is omitted where the verdict stands on one range, because it does not show
    // how certain that range is.
    if let (Some(low), Some(high)) = (v.own_excess_low_ns, v.own_excess_high_ns)
        && by_range != Some(true)
    {
        parts.push(format!("own excess {} to {} (95 %)", ns(low), ns(high)));
    }
    if let Some(z) = v.z {
        parts.push(spoken_z(z));
    }
    match v.persistence {
        Some(p) => parts.push(format!("seen in {:.0} % of {steps}", 100.0 * p)),
        None => parts.push(format!("measured over {steps}")),
    }
    let basis = match by_range {
        Some(true) => "Certainty, by that range alone: ",
        Some(false) => "Certainty, by all of the rank's own work: ",
        None => "Certainty: ",
    };
    format!("{basis}{}", parts.join(", "))
}

fn nothing(tables: &Tables, facts: &Facts) -> String {
    if !facts.nothing_because.is_empty() {
        return format!("nothing was recorded: {}.", facts.nothing_because.join("; "));
    }
    if facts.ranks.len() < 2 {
        return "only one rank was recorded: it has no other rank to wait for.".into();
    }
    if tables.collective_instances.is_empty() {
        if tables.omissions.iter().any(|row| &*row.what == crate::align::matching::WITHOUT_TIMES) {
            return "no collective was recorded with its times: waits between ranks are unknown.".into();
        }
        let none = match &facts.selection {
            Some(selection) => format!("no collective lies in {selection}"),
            None => "no collective was recorded".into(),
        };
        return format!("{none}: waits between ranks are unknown.");
    }
    "no recorded step has a collective of several ranks: stragglers cannot be judged.".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence for a run in which rank 5 is the only cause.
    fn cause_sentence(step_delay_ns: i64) -> String {
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
    fn the_sentence_of_an_empty_run_has_the_reason() {
        let facts = Facts { ranks: vec![0], nothing_because: vec!["no CUDA".into()], ..Facts::default() };
        assert_eq!(verdict(&Tables::default(), &facts).sentence, "nothing was recorded: no CUDA.");
    }

    /// ```text
    /// rank 0   [work]......    [work    ]      the late rank changes from step to step,
    /// rank 1   [work    ]      [work]......    so medians over steps show no slow rank
    /// ```
    #[test]
    fn waits_for_changing_ranks_are_not_balanced() {
        let row = |rank, suffered_wait_ns| StragglerRow {
            rank,
            steps: 6,
            verdict: "ok".into(),
            suffered_wait_ns,
            caused_wait_ns: 3 * suffered_wait_ns,
            ..StragglerRow::default()
        };
        let judge_waits = |suffered_ns: i64, error_ns: Option<i64>| {
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
        let (kind, rank, sentence) = judge_waits(3_000_000, Some(1000));
        assert_eq!((kind, rank), (VerdictKind::Undecided, None));
        assert!(sentence.contains("rank 0 waits 3.00 ms per step (30 % of a step)"), "{sentence}");
        assert_eq!(judge_waits(900_000, Some(1000)).0, VerdictKind::Balanced, "waits below the limit");
        assert_eq!(judge_waits(3_000_000, None).0, VerdictKind::Balanced, "without a clock error, waits are not used");
    }

    #[test]
    fn an_empty_selection_is_named_as_the_reason() {
        let sentence = |selection: Option<&str>| {
            let facts = Facts { ranks: vec![0, 1], selection: selection.map(String::from), ..Facts::default() };
            verdict(&Tables::default(), &facts).sentence
        };
        let unknown = "waits between ranks are unknown.";
        assert_eq!(sentence(None), format!("no collective was recorded: {unknown}"));
        assert_eq!(sentence(Some("--from +9s")), format!("no collective lies in --from +9s: {unknown}"));
    }

    #[test]
    fn the_sentence_of_a_cause_has_its_cost_even_if_zero() {
        let why = "compute, 30.0 ms longer in `forward` than on the other ranks. Certainty: measured over 5 steps.";
        let delayed = "rank 5 slows every step by 20.0 ms (10 % of a step)";
        assert_eq!(cause_sentence(20_000_000), format!("{delayed}: {why}"));
        let hidden =
            "rank 5 loses time in every step but does not lengthen the step, because other ranks arrive just as late";
        assert_eq!(cause_sentence(0), format!("{hidden}: {why}"));
    }
}
