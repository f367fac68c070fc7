//! The cost of profiling itself.

use std::collections::BTreeMap;

use trace::name_rules::is_work_of_profiler;
use trace::{FindingRow, Severity, StepBreakdownRow};

use crate::{Context, finding, saving, share};
use measure::overhead::StepOverhead;
use measure::part::RankPart;
use model::units::{ns, plural, ranks};

kind! {
    /// The profiler or the driver takes time of a step.
    ///
    /// The mean time in a step of the profiler's own work, on the named rank; not that of the driver.
    PROFILING_OVERHEAD: "profiling-overhead", by profiling_overhead
}

/// Smallest share of a step that matters, in percent: a smaller cost has no finding.
const LEAST_PCT: f64 = 1.0;

/// The overhead of a rank in one step.
struct Cost<'a> {
    rank: i32,
    step: i32,
    wall_ns: i64,
    overhead: &'a StepOverhead,
}

impl Cost<'_> {
    fn pct(&self) -> f64 {
        share(&(self.overhead.total_ns, self.wall_ns))
    }
}

/// The overhead in the step where its share is largest, with the steps and the number of ranks where it matters.
#[derive(Debug)]
pub(crate) struct Overhead {
    rank: i32,
    step: i32,
    wall_ns: i64,
    of_step: StepOverhead,
    /// The part of it in idle time of that step.
    idle_ns: i64,
    /// The profiler's own work in a step of that rank.
    own_ns: i64,
    /// The steps of that rank in which it matters.
    steps: Vec<i32>,
    /// The number of ranks on which it matters, and of all ranks.
    on_ranks: usize,
    of_ranks: usize,
}

impl Overhead {
    /// `None` if it takes too little of every step. `breakdown` has the steps of all ranks, in the order of ranks.
    pub(super) fn of(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Option<Self> {
        let costs: Vec<Cost<'_>> = parts.iter().flat_map(|part| costs_of(part, breakdown)).collect();
        let over: Vec<&Cost<'_>> = costs.iter().filter(|cost| cost.pct() >= LEAST_PCT).collect();
        let worst = over.iter().copied().max_by(|a, b| a.pct().total_cmp(&b.pct()))?;
        let of_rank = |cost: &&&Cost<'_>| cost.rank == worst.rank;
        let mut on_ranks: Vec<i32> = over.iter().map(|cost| cost.rank).collect();
        on_ranks.dedup();
        let part = parts.iter().find(|part| part.outline.info.rank == worst.rank)?;
        Some(Self {
            rank: worst.rank,
            step: worst.step,
            wall_ns: worst.wall_ns,
            of_step: worst.overhead.clone(),
            idle_ns: idle_part(steps_of(part, breakdown), worst.step),
            own_ns: own_ns_per_step(part, breakdown),
            steps: over.iter().filter(of_rank).map(|cost| cost.step).collect(),
            on_ranks: on_ranks.len(),
            of_ranks: parts.len(),
        })
    }

    fn pct(&self) -> f64 {
        share(&(self.of_step.total_ns, self.wall_ns))
    }
}

/// This time is stated as a part of the idle time, and no finding blames the job for it.
fn profiling_overhead(context: &Context<'_>) -> Option<FindingRow> {
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
    let found = finding(
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
        (
            "step_breakdown",
            format!(
                "events of kind overhead; {} of it in idle time of that step (step_breakdown.overhead_ns, which no finding counts as \
                 idle); on {} of {}; threshold {LEAST_PCT} % of a step (this program's)",
                ns(worst.idle_ns),
                worst.on_ranks,
                plural(worst.of_ranks, "rank")
            ),
        ),
        "times of these steps are too long by this; the driver's part also occurs without a profiler, when functions are first \
         used: record more warm-up steps, so that both happen before the active ones",
    );
    Some(if own.is_empty() { found } else { saving(worst.own_ns, found) })
}

/// The overhead in each step of a rank whose length is known.
fn costs_of<'a>(part: &'a RankPart, breakdown: &[StepBreakdownRow]) -> impl Iterator<Item = Cost<'a>> + use<'a> {
    let mut walls: BTreeMap<i32, i64> = BTreeMap::new();
    for row in steps_of(part, breakdown) {
        let wall = walls.entry(row.step.unwrap_or(-1)).or_default();
        *wall = row.wall_ns.max(*wall);
    }
    let rank = part.outline.info.rank;
    part.overhead.iter().filter_map(move |(step, overhead)| {
        let wall_ns = walls.get(step).copied().filter(|wall| *wall > 0)?;
        Some(Cost { rank, step: *step, wall_ns, overhead })
    })
}

fn steps_of<'a>(part: &RankPart, breakdown: &'a [StepBreakdownRow]) -> &'a [StepBreakdownRow] {
    let rank = part.outline.info.rank;
    let from = breakdown.partition_point(|row| row.rank < rank);
    &breakdown[from..from + breakdown[from..].partition_point(|row| row.rank == rank)]
}

/// The largest idle time of a device in a step that overhead covers.
fn idle_part(rows: &[StepBreakdownRow], step: i32) -> i64 {
    let of_step = |row: &&StepBreakdownRow| row.step == Some(step);
    rows.iter().filter(of_step).map(|row| row.overhead_ns).max().unwrap_or(0)
}

/// The profiler's own work in a step of the rank: the mean over its steps.
fn own_ns_per_step(part: &RankPart, breakdown: &[StepBreakdownRow]) -> i64 {
    let names = part.overhead.values().flat_map(|step| &step.by_name);
    let own = names.filter(|(name, _)| is_work_of_profiler(name)).map(|(_, (_, ns))| *ns).fold(0, i64::saturating_add);
    let steps = steps_of(part, breakdown).iter().filter_map(|row| row.step).filter(|step| *step >= 0);
    own / (steps.collect::<std::collections::BTreeSet<i32>>().len().max(1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OfRanks;
    use model::analysis::Analysis;
    use model::options::Options;

    const MS: i64 = 1_000_000;

    /// The finding for ranks with two steps of 100 ms, and overhead of these names and milliseconds in the first.
    fn found(ranks: &[&[(&str, i64)]]) -> Option<FindingRow> {
        let parts: Vec<RankPart> = (0..).zip(ranks).map(|(rank, names)| part(rank, names)).collect();
        let breakdown: Vec<StepBreakdownRow> = (0..).zip(ranks).flat_map(|(rank, _)| steps(rank)).collect();
        found_in(&parts, &breakdown)
    }

    fn found_in(parts: &[RankPart], breakdown: &[StepBreakdownRow]) -> Option<FindingRow> {
        let ranks = OfRanks::of(parts, breakdown);
        profiling_overhead(&Context::new(&Analysis::default(), &Options::default(), &ranks))
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
