//! Input: the ranges that load it, and the gaps in which it is likely loaded.

use std::collections::BTreeMap;

use trace::{InputGapRow, Severity};

use crate::finding::{Found, finding, saving, share, step_rows};
use crate::registry::Context;
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::stats::lower_median;
use model::units::{ns, plural};

/// Gaps on a rank below which nothing is likely: a single gap may hold what happens once, such as a checkpoint.
const LEAST_GAPS: usize = 2;

kind! {
    /// Ranges that load input take much of the steps.
    ///
    /// Their mean time in a step, on the named rank.
    INPUT: "input", by named
}

kind! {
    /// No range names the input, but between an optimizer step and the next forward pass the host launches nothing for long.
    ///
    /// The median over the gaps of the named rank (below).
    LIKELY_INPUT: "likely-input", by likely
}

fn named(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits) = (context.analysis, context.limits());
    // Time in ranges, time of the steps, number of steps.
    let mut by_rank: BTreeMap<i32, (i64, i64, i64)> = BTreeMap::new();
    for row in analysis.tables.data_loading.iter().filter(|r| r.step.is_some()) {
        let (total, wall, steps) = by_rank.entry(row.rank).or_default();
        *total = total.saturating_add(row.total_ns);
        *wall = wall.saturating_add(row.wall_ns);
        *steps += 1;
    }
    let (total, wall) = by_rank
        .values()
        .fold((0_i64, 0_i64), |(t, w), (total, wall, _)| (t.saturating_add(*total), w.saturating_add(*wall)));
    let of_rank = |(total, wall, _): &(i64, i64, i64)| share(&(*total, *wall));
    let (worst, sums) = by_rank.iter().max_by(|(_, a), (_, b)| of_rank(a).total_cmp(&of_rank(b)))?;
    let pct = share(&(total, wall));
    (pct > limits.input_pct).then(|| {
        let (total_ns, _, steps) = *sums;
        let per_step_ns = total_ns / steps.max(1);
        let claim = Claim::new(Quantity::Input, Relation::Exceeds, "data_loading").of(*worst, None);
        let found = finding(
            claim.value(Value::Ns(per_step_ns)).explains(Part::Idle, per_step_ns),
            Severity::Warning,
            format!(
                "{pct:.0} % of the step is spent on input, most on rank {worst}: {}, {:.0} % of its steps",
                ns(per_step_ns),
                of_rank(sums)
            ),
            format!(
                "data_loading.total_ns / wall_ns over the steps of {} with input ranges; threshold {} % (TensorBoard plugin)",
                plural(by_rank.len(), "rank"),
                limits.input_pct
            ),
            "load ahead: use more workers, pinned memory, or batches that are prepared while the step runs",
        );
        saving(per_step_ns, found)
    })
}

/// The gaps of one rank.
struct Gaps {
    rank: i32,
    gaps: Vec<i64>,
    quiet_ns: i64,
    /// Part of `quiet_ns` in which no device works; all of it without devices.
    idle_ns: i64,
    named: bool,
    step_ns: i64,
}

impl Gaps {
    fn of(rank: i32, rows: &[&InputGapRow], step_ns: i64) -> Option<Self> {
        let median = |f: fn(&InputGapRow) -> i64| lower_median(rows.iter().map(|row| f(row)));
        Some(Self {
            rank,
            gaps: rows.iter().map(|row| row.quiet_ns).collect(),
            quiet_ns: median(|row| row.quiet_ns)?,
            idle_ns: median(|row| row.device_idle_ns.unwrap_or(row.quiet_ns))?,
            named: rows.iter().any(|row| 2 * row.named_ns > row.quiet_ns),
            step_ns,
        })
    }

    fn idle_pct(&self) -> f64 {
        share(&(self.idle_ns, self.step_ns))
    }
}

fn likely(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits) = (context.analysis, context.limits());
    let mut by_rank: BTreeMap<i32, Vec<&InputGapRow>> = BTreeMap::new();
    for row in &analysis.tables.input_gaps {
        by_rank.entry(row.rank).or_default().push(row);
    }
    let step_of = |rank: i32| lower_median(step_rows(analysis).filter(|row| row.rank == rank).map(|row| row.wall_ns));
    let all: Vec<Gaps> = by_rank
        .iter()
        .filter(|(_, rows)| rows.len() >= LEAST_GAPS)
        .filter_map(|(rank, rows)| Gaps::of(*rank, rows, step_of(*rank)?))
        .collect();
    let over = all.iter().filter(|gaps| gaps.idle_pct() > limits.input_pct);
    let worst = over.clone().max_by(|a, b| a.idle_pct().total_cmp(&b.idle_pct()))?;
    let others = over.count() - 1;
    let others = if others > 0 { format!("; also on {}", plural(others, "other rank")) } else { String::new() };
    let length = |of: Option<&i64>| ns(of.copied().unwrap_or(0));
    let names = if worst.named { "ranges that load input by their name take most of it" } else { "no range names it" };
    let claim = Claim::new(Quantity::Input, Relation::Exceeds, "input_gaps").of(worst.rank, None);
    let found = finding(
        claim.value(Value::Ns(worst.quiet_ns)).explains(Part::Idle, worst.idle_ns),
        Severity::Info,
        format!(
            "likely input: after an optimizer step, the host of rank {} launches nothing for {} before the next forward \
             pass ({:.0} % of a {} step){others}",
            worst.rank,
            ns(worst.quiet_ns),
            share(&(worst.quiet_ns, worst.step_ns)),
            ns(worst.step_ns)
        ),
        format!(
            "input_gaps.quiet_ns: median of {} ({} to {}); for {} of it no device works; {names}; threshold {} % of a step without \
             device work (TensorBoard plugin, data loading)",
            plural(worst.gaps.len(), "gap"),
            length(worst.gaps.iter().min()),
            length(worst.gaps.iter().max()),
            ns(worst.idle_ns),
            limits.input_pct
        ),
        "put record_function(\"input\") around the loading to be sure, because a checkpoint or an evaluation looks the same; if it \
         is input, load ahead: more workers, pinned memory, or batches that are prepared while the step runs",
    );
    Some(saving(worst.quiet_ns, found))
}

#[cfg(test)]
mod tests {
    use trace::{DataLoadingRow, StepBreakdownRow};

    use super::*;
    use model::analysis::Analysis;

    const MS: i64 = 1_000_000;

    fn analysis() -> Analysis {
        let mut analysis = Analysis::default();
        let step = |rank, step| StepBreakdownRow { rank, step: Some(step), wall_ns: 100 * MS, ..Default::default() };
        analysis.tables.step_breakdown = (0..2).flat_map(|rank| (0..3).map(move |s| step(rank, s))).collect();
        analysis
    }

    #[test]
    fn the_rank_with_the_most_input_is_named() {
        let mut analysis = analysis();
        let row = |rank, total_ms| DataLoadingRow {
            rank,
            step: Some(0),
            total_ns: total_ms * MS,
            wall_ns: 100 * MS,
            ..Default::default()
        };
        analysis.tables.data_loading = vec![row(0, 4), row(1, 8)];
        let found = INPUT.in_tables(&analysis);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(&*found[0].title, "6 % of the step is spent on input, most on rank 1: 8.00 ms, 8 % of its steps");
        assert_eq!(found[0].saving_ns, Some(8 * MS));
        analysis.tables.data_loading = vec![row(0, 4), row(1, 5)];
        assert_eq!(INPUT.in_tables(&analysis), []);
    }

    #[test]
    fn long_gaps_are_offered_as_likely_input() {
        let gap = |rank, quiet_ms: i64, idle_ms: i64| InputGapRow {
            rank,
            quiet_ns: quiet_ms * MS,
            device_idle_ns: Some(idle_ms * MS),
            ..Default::default()
        };
        let mut analysis = analysis();
        let found = |gaps: Vec<InputGapRow>, analysis: &mut Analysis| {
            analysis.tables.input_gaps = gaps;
            LIKELY_INPUT.in_tables(analysis).pop()
        };
        let rows = vec![gap(0, 2, 2), gap(0, 1, 1), gap(1, 12, 10), gap(1, 14, 11), gap(1, 90, 90)];
        let row = found(rows, &mut analysis).unwrap();
        assert!(
            row.title
                .starts_with("likely input: after an optimizer step, the host of rank 1 launches nothing for 14.0 ms"),
            "{row:?}"
        );
        assert!(
            row.evidence.contains("median of 3 gaps (12.0 ms to 90.0 ms); for 11.0 ms of it no device works"),
            "{row:?}"
        );
        assert_eq!(row.saving_ns, Some(14 * MS));
        assert_eq!(found(vec![gap(1, 90, 90)], &mut analysis), None, "one gap may be anything");
        assert_eq!(found(vec![gap(1, 90, 4), gap(1, 90, 4)], &mut analysis), None, "the devices work meanwhile");
    }
}
