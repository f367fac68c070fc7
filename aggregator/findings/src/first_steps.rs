//! First steps that take much longer than the others: libraries are initialised, algorithms are chosen, functions are
//! loaded, the allocator grows.

use std::collections::BTreeMap;

use trace::{Severity, StepBreakdownRow};

use crate::finding::{Found, finding, step_rows};
use crate::registry::Context;
use model::analysis::Analysis;
use model::claim::{Claim, Evidence, Quantity, Relation, Value};
use model::stats::{lower_median, robust_sigma_of_sorted};
use model::units::{ns, plural, ranks};

kind! {
    /// The first steps take much longer than the others.
    SLOW_FIRST_STEPS: "slow-first-steps", by first_steps
}

/// Steps after the first ones that show what is usual.
const LEAST_OTHERS: usize = 3;
/// The first steps are at most this part of all steps, but may be one: more of them are no exception.
const LEAST_PARTS: usize = 4;
/// Distance from the other steps, in their standard deviations.
const LEAST_SIGMAS: f64 = 6.0;
/// Smallest effect on the mean over all steps, in percent: as small as a cause's effect may be.
const LEAST_EFFECT_PCT: f64 = 2.0;

/// A part of the breakdown, and its name.
type Part = (&'static str, fn(&StepBreakdownRow) -> i64);

/// The parts of a step that do not overlap.
const PARTS: [Part; 4] = [
    ("compute", |row| row.compute_ns + row.overlap_ns),
    ("exposed communication", |row| row.exposed_comm_ns),
    ("copies", |row| row.memory_ns),
    ("idle", |row| row.idle_ns),
];

/// The first step of a selected part is not that of the run.
fn first_steps(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    if !context.options.takes_whole_ranks() {
        return None;
    }
    let steps = medians(analysis, |row| row.wall_ns);
    let walls: Vec<i64> = steps.values().copied().collect();
    let (slow, usual) = walls.split_at(outliers(&walls));
    if slow.is_empty() {
        return None;
    }
    let numbers: Vec<i32> = steps.keys().copied().take(slow.len()).collect();
    let (mean_ns, usual_mean_ns) = (mean(&walls), mean(usual));
    let usual_ns = lower_median(usual.iter().copied())?;
    let lengths: Vec<String> = slow.iter().map(|wall| ns(*wall)).collect();
    let (excess_of, excess_ns) = largest_part(analysis, slow.len())?;
    let (steps_are, take) =
        if slow.len() == 1 { ("step", "the first one, takes") } else { ("steps", "the first ones, take") };
    let median = if analysis.facts.ranks.len() > 1 { " on the median rank" } else { "" };
    let claim = Claim::new(Quantity::StepTime, Relation::Exceeds, "step_breakdown");
    let evidence = Evidence { step: numbers.first().copied(), ..claim.evidence };
    let claim = Claim { evidence, ..claim };
    Some(finding(
        claim.value(Value::Ns(mean(slow))),
        Severity::Info,
        format!(
            "{steps_are} {}, {take} {}{median}; the other {} take {} (median)",
            ranks(&numbers),
            lengths.join(", "),
            plural(usual.len(), "step"),
            ns(usual_ns)
        ),
        format!(
            "step_breakdown.wall_ns; longest of the others {}; most of the excess is {excess_of}: {} more in a step; thresholds: \
             longer than all others, by {LEAST_SIGMAS} of their standard deviations, and {LEAST_EFFECT_PCT} % on the mean of all \
             steps (this program's)",
            ns(usual.iter().copied().max().unwrap_or(0)),
            ns(excess_ns)
        ),
        &format!(
            "the mean of all steps is {} with and {} without them, and means and totals of kernels and operators contain them; \
             medians and the verdict on ranks do not change: record more warm-up steps, or leave them out with --steps {}..",
            ns(mean_ns),
            ns(usual_mean_ns),
            steps.keys().nth(slow.len()).copied().unwrap_or(0)
        ),
    ))
}

/// The number of first steps that are outliers.
fn outliers(walls: &[i64]) -> usize {
    let most = walls.len().saturating_sub(LEAST_OTHERS).min((walls.len() / LEAST_PARTS).max(1));
    let mut sorted = walls.to_vec();
    sorted.sort_unstable();
    // Of the steps up to each one the shortest; of the steps from each one on the longest, and their sum.
    let mut shortest = walls.to_vec();
    (1..walls.len()).for_each(|at| shortest[at] = shortest[at].min(shortest[at - 1]));
    let mut others: Vec<(i64, i64)> = walls.iter().map(|wall| (*wall, *wall)).collect();
    for at in (1..walls.len()).rev() {
        let (longest, sum_ns) = others[at];
        others[at - 1] = (longest.max(walls[at - 1]), sum_ns.saturating_add(walls[at - 1]));
    }
    let mean_ns = mean(walls);
    let are_outliers = |slow: &usize| {
        let (shortest_slow, (longest, sum_ns)) = (shortest[slow - 1], others[*slow]);
        if shortest_slow <= longest {
            return false;
        }
        // All slow steps are longer than all others, so the others are the first of the sorted steps.
        let usual = &sorted[..walls.len() - slow];
        let median = usual[(usual.len() - 1) / 2];
        let limit = (median as f64 + LEAST_SIGMAS * robust_sigma_of_sorted(usual, median)).max(longest as f64);
        let usual_mean_ns = (sum_ns / usual.len() as i64).max(1);
        let effect_pct = 100.0 * (mean_ns as f64 / usual_mean_ns as f64 - 1.0);
        shortest_slow as f64 > limit && effect_pct >= LEAST_EFFECT_PCT
    };
    (1..=most).rev().find(are_outliers).unwrap_or(0)
}
/// The part of the first `slow` steps that exceeds the median of the other steps most, and by how much in a step.
fn largest_part(analysis: &Analysis, slow: usize) -> Option<(&'static str, i64)> {
    let excess = |(name, part): &Part| {
        let steps: Vec<i64> = medians(analysis, *part).into_values().collect();
        let (slow, usual) = steps.split_at_checked(slow)?;
        Some((*name, mean(slow) - lower_median(usual.iter().copied())?))
    };
    PARTS.iter().filter_map(excess).max_by_key(|(_, ns)| *ns)
}

/// A quantity of each step: the lower median over ranks and devices.
fn medians(analysis: &Analysis, of: fn(&StepBreakdownRow) -> i64) -> BTreeMap<i32, i64> {
    let mut steps: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for row in step_rows(analysis) {
        steps.entry(row.step.unwrap_or(-1)).or_default().push(of(row));
    }
    steps.into_iter().filter_map(|(step, values)| Some((step, lower_median(values)?))).collect()
}

fn mean(values: &[i64]) -> i64 {
    values.iter().fold(0_i64, |sum, value| sum.saturating_add(*value)) / values.len().max(1) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::stats::robust_sigma;

    const MS: i64 = 1_000_000;

    #[test]
    fn first_steps_are_outliers_only_far_beyond_the_others() {
        let count = |ms: &[i64]| outliers(&ms.iter().map(|ms| ms * MS).collect::<Vec<i64>>());
        assert_eq!(count(&[150, 20, 20, 20, 20]), 1);
        assert_eq!(count(&[150, 60, 20, 21, 20, 20, 20, 21]), 2);
        // Half of the steps are no exception.
        assert_eq!(count(&[154, 159, 170, 134, 134, 135]), 0);
        assert_eq!(count(&[20, 20, 20, 20, 20]), 0);
        // The others vary as much, or one of them is as long.
        assert_eq!(count(&[30, 20, 27, 15, 24]), 0);
        assert_eq!(count(&[150, 20, 20, 160, 20]), 0);
        // Two steps are not enough to know what is usual.
        assert_eq!(count(&[150, 20, 20]), 0);
        // Of 200 steps, one of 1.5 times the length changes no mean.
        let mut many = vec![20; 200];
        many[0] = 30;
        assert_eq!(count(&many), 0);
    }

    /// The count from the definition.
    fn outliers_by_definition(walls: &[i64]) -> usize {
        let most = walls.len().saturating_sub(LEAST_OTHERS).min((walls.len() / LEAST_PARTS).max(1));
        let are_outliers = |slow: &usize| {
            let (slow, usual) = walls.split_at(*slow);
            let median = lower_median(usual.iter().copied()).unwrap();
            let sigma = robust_sigma(usual.iter().map(|wall| *wall as f64), median as f64).unwrap();
            let limit = (median as f64 + LEAST_SIGMAS * sigma).max(usual.iter().copied().max().unwrap() as f64);
            let effect_pct = 100.0 * (mean(walls) as f64 / mean(usual).max(1) as f64 - 1.0);
            slow.iter().all(|wall| *wall as f64 > limit) && effect_pct >= LEAST_EFFECT_PCT
        };
        (1..=most).rev().find(are_outliers).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_the_definition(
            slow in prop::collection::vec(60..300_i64, 0..6),
            usual in prop::collection::vec(0..80_i64, 0..20),
        ) {
            let walls = [slow, usual].concat();
            prop_assert_eq!(outliers(&walls), outliers_by_definition(&walls));
        }
    }

    /// Sorting the other steps of each candidate would take hours.
    #[test]
    fn a_million_steps_take_little_time() {
        let mut walls: Vec<i64> = (0..1_000_000).map(|step| 2_000_000 - step).collect();
        assert_eq!(outliers(&walls), 0);
        walls[..9].fill(100_000_000_000);
        assert_eq!(outliers(&walls), 9);
    }

    /// Step 3 of two ranks takes 150 ms, 130 ms of them idle; the others take 20 ms.
    #[test]
    fn a_slow_first_step_is_named_with_its_effect() {
        let mut analysis = Analysis::default();
        analysis.facts.ranks = vec![0, 1];
        let row = |rank, step| StepBreakdownRow {
            rank,
            step: Some(step),
            wall_ns: if step == 3 { 150 } else { 20 } * MS,
            compute_ns: 18 * MS,
            idle_ns: if step == 3 { 132 } else { 2 } * MS,
            ..Default::default()
        };
        analysis.tables.step_breakdown = (0..2).flat_map(|rank| (3..8).map(move |step| row(rank, step))).collect();
        let found = SLOW_FIRST_STEPS.in_tables(&analysis).pop().unwrap();
        assert_eq!(
            &*found.title,
            "step 3, the first one, takes 150 ms on the median rank; the other 4 steps take 20.0 ms (median)"
        );
        assert!(found.evidence.contains("most of the excess is idle: 130 ms more in a step"), "{found:?}");
        assert!(found.suggestion.starts_with("the mean of all steps is 46.0 ms with and 20.0 ms without"), "{found:?}");
        assert!(found.suggestion.ends_with("--steps 4.."), "{found:?}");
        assert_eq!(found.saving_ns, None);
    }
}
