//! The cost of profiling itself.

use trace::Severity;
use trace::name_rules::is_work_of_profiler;

use crate::finding::{Found, finding, saving};
use crate::rank_facts::LEAST_PCT;
use crate::registry::Context;
use model::claim::{Claim, Evidence, Quantity, Relation, Value};
use model::units::{ns, plural, ranks};

kind! {
    /// The profiler or the driver takes time of a step.
    ///
    /// The mean time in a step of the profiler's own work, on the named rank; not that of the driver.
    PROFILING_OVERHEAD: "profiling-overhead", by profiling_overhead
}

/// This time is stated as a part of the idle time, and no finding blames the job for it.
fn profiling_overhead(context: &Context<'_>) -> Option<Found> {
    let worst = context.ranks.overhead.as_ref()?;
    let by_name = &worst.of_step.by_name;
    let (own, of_driver): (Vec<_>, Vec<_>) = by_name.iter().partition(|(name, _)| is_work_of_profiler(name));
    let who = match (own.is_empty(), of_driver.is_empty()) {
        (false, true) => "the profiler",
        (true, _) => "the driver",
        (false, false) => "the profiler and the driver",
    };
    let mut names: Vec<_> = by_name.iter().collect();
    names.sort_by_key(|(name, (_, ns))| (std::cmp::Reverse(*ns), *name));
    let words = |(name, (calls, total)): &(&trace::Text, &(i64, i64))| {
        format!("{name} {} ({})", ns(*total), plural(usize::try_from(*calls).unwrap_or(usize::MAX), "row"))
    };
    let names: Vec<String> = names.iter().map(words).collect();
    let more =
        if worst.steps.len() > 1 { format!("; it matters in steps {}", ranks(&worst.steps)) } else { String::new() };
    let claim = Claim::new(Quantity::Overhead, Relation::Exceeds, "step_breakdown").of(worst.rank, None);
    let claim = Claim { evidence: Evidence { step: Some(worst.step), ..claim.evidence.clone() }, ..claim };
    let found = finding(
        claim.value(Value::Ns(worst.of_step.total_ns)),
        Severity::Info,
        format!(
            "{who} took {} of step {} on rank {} ({:.1} % of {}): {}{more}",
            ns(worst.of_step.total_ns),
            worst.step,
            worst.rank,
            worst.pct(),
            ns(worst.wall_ns),
            names.join(", ")
        ),
        format!(
            "events of kind overhead; {} of it in idle time of that step (step_breakdown.overhead_ns, which no finding counts as \
             idle); on {} of {}; threshold {LEAST_PCT} % of a step (this program's)",
            ns(worst.idle_ns),
            worst.on_ranks,
            plural(worst.of_ranks, "rank")
        ),
        "times of these steps are too long by this; the driver's part also occurs without a profiler, when functions are first \
         used: record more warm-up steps, so that both happen before the active ones",
    );
    Some(if own.is_empty() { found } else { saving(worst.own_ns, found) })
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;
    use crate::rank_facts::OfRanks;
    use measure::overhead::StepOverhead;
    use measure::part::RankPart;
    use model::analysis::Analysis;
    use model::options::Options;

    const MS: i64 = 1_000_000;

    /// The finding for ranks with two steps of 100 ms, and overhead of these names and milliseconds in the first.
    fn found(ranks: &[&[(&str, i64)]]) -> Option<trace::FindingRow> {
        let parts: Vec<RankPart> = (0..).zip(ranks).map(|(rank, names)| part(rank, names)).collect();
        let breakdown: Vec<StepBreakdownRow> = (0..).zip(ranks).flat_map(|(rank, _)| steps(rank)).collect();
        found_in(&parts, &breakdown)
    }

    fn found_in(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Option<trace::FindingRow> {
        let ranks = OfRanks::of(parts, breakdown);
        profiling_overhead(&Context::new(&Analysis::default(), &Options::default(), &ranks)).map(|found| found.row)
    }

    fn steps(rank: i32) -> [StepBreakdownRow; 2] {
        let row = |step, overhead_ns| StepBreakdownRow {
            rank,
            step: Some(step),
            wall_ns: 100 * MS,
            idle_ns: 20 * MS,
            overhead_ns,
            ..Default::default()
        };
        [row(3, 2 * MS), row(4, 0)]
    }

    fn part(rank: i32, names: &[(&str, i64)]) -> RankPart {
        let mut part = RankPart::default();
        part.outline.info.rank = rank;
        let total_ns = names.iter().map(|(_, ms)| ms * MS).sum();
        let by_name = names.iter().map(|(name, ms)| ((*name).into(), (2, ms * MS))).collect();
        part.overhead = [(3, StepOverhead { total_ns, by_name })].into();
        part
    }

    #[test]
    fn overhead_is_named_with_its_step_and_its_kind() {
        let found = found(&[&[("Buffer Flush", 1)], &[("Buffer Flush", 5), ("Lazy Function Loading", 3)]]).unwrap();
        assert_eq!(
            &*found.title,
            "the profiler and the driver took 8.00 ms of step 3 on rank 1 (8.0 % of 100 ms): Buffer Flush 5.00 ms (2 rows), \
             Lazy Function Loading 3.00 ms (2 rows)"
        );
        assert!(found.evidence.contains("2.00 ms of it in idle time of that step"), "{found:?}");
        assert_eq!(found.saving_ns, Some(5 * MS / 2), "only the profiler's own work goes with the profiler");
    }

    #[test]
    fn the_drivers_own_work_is_no_saving() {
        let of_driver = found(&[&[("Lazy Function Loading", 3)]]).unwrap();
        assert!(of_driver.title.starts_with("the driver took 3.00 ms"), "{of_driver:?}");
        assert_eq!(of_driver.saving_ns, None);
        assert_eq!(found(&[&[("Buffer Flush", 0)]]), None);
        assert_eq!(found_in(&[RankPart::default()], &[]), None);
    }
}
