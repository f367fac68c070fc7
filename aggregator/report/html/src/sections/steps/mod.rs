//! The time of each step by activity.

use std::collections::BTreeMap;

use trace::{Row, StepBreakdownRow, StragglerRow, Verdict};

use crate::columns::columns;
use crate::page_limits::Limits;
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::stragglers::add_stragglers;
use model::Error;
use model::analysis::Tables;
use model::units::{plural, ranks};

pub(crate) static SECTION: Section = Section {
    id: "steps",
    title: "Step time",
    lead: "The time of each rank's step by activity. The parts sum to the length of the step. Communication that no compute hides is \
           waiting for other ranks (at least) or transfer.",
    proof: true,
    tables: &[StragglerRow::table, StepBreakdownRow::table],
    data,
    scripts: &[script!("steps.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let tables = run.tables();
    run.note_ranks(&tables.step_breakdown, page);
    let mut breakdown = breakdown(tables, run.limits, page);
    // Rank −1 has the means of the steps.
    breakdown.retain(|row| row.rank < 0 || run.shown.has(row.rank));
    let wanted = columns!(StepBreakdownRow: rank device_id step compute_ns overlap_ns exposed_comm_ns exposed_wait_ns memory_ns
        idle_ns);
    page.table(&breakdown, wanted)?;
    add_stragglers(run, page)?;
    let is_undecided = |row: &&StragglerRow| row.verdict == Verdict::Undecided;
    let undecided: Vec<i32> = tables.stragglers.iter().filter(is_undecided).map(|row| row.rank).collect();
    if !undecided.is_empty() {
        page.remark("undecided", format!("It is undecided whether ranks {} slow the others", ranks(&undecided)));
    }
    let is_active = |row: &StepBreakdownRow| row.step.is_some_and(|step| step >= 0);
    Ok(Some(Chart::unless(
        (!tables.step_breakdown.iter().any(is_active))
            .then_some("No active step was recorded. Use `--step-marker REGEX` to take host ranges as steps."),
    )))
}

/// The breakdown of the active steps by lane: a device, or the CPU of a rank without devices. Beyond the limit, the
/// means of each lane (without a step) and those of each step (rank −1).
fn breakdown(tables: &Tables, limits: &Limits, page: &mut PageData) -> Vec<StepBreakdownRow> {
    let rows = || tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|step| step >= 0));
    let mut lanes: BTreeMap<(i32, Option<i64>), Vec<&StepBreakdownRow>> = BTreeMap::new();
    let mut steps: BTreeMap<Option<i32>, Vec<&StepBreakdownRow>> = BTreeMap::new();
    for row in rows() {
        lanes.entry((row.rank, row.device_id)).or_default().push(row);
        steps.entry(row.step).or_default().push(row);
    }
    if lanes.len() * steps.len() <= limits.lane_steps {
        return rows().cloned().collect();
    }
    page.note(format!(
        "{} and {} are too many to show the breakdown of every rank in every step: the means over the steps are shown. The table \
         step_breakdown has them all.",
        plural(lanes.len(), "rank"),
        plural(steps.len(), "step")
    ));
    let of_lane = |((rank, device_id), rows)| StepBreakdownRow { rank, device_id, ..mean(rows) };
    let of_step = |(step, rows)| StepBreakdownRow { rank: -1, step, ..mean(rows) };
    lanes.into_iter().map(of_lane).chain(steps.into_iter().map(of_step)).collect()
}

fn mean(rows: Vec<&StepBreakdownRow>) -> StepBreakdownRow {
    let of = |part: fn(&StepBreakdownRow) -> i64| {
        rows.iter().map(|r| part(r)).fold(0, i64::saturating_add) / rows.len().max(1) as i64
    };
    let is_split = rows.iter().all(|r| r.exposed_wait_ns.is_some() || r.exposed_comm_ns == 0);
    StepBreakdownRow {
        compute_ns: of(|r| r.compute_ns),
        overlap_ns: of(|r| r.overlap_ns),
        exposed_comm_ns: of(|r| r.exposed_comm_ns),
        exposed_wait_ns: is_split.then(|| of(|r| r.exposed_wait_ns.unwrap_or(0))),
        memory_ns: of(|r| r.memory_ns),
        idle_ns: of(|r| r.idle_ns),
        overhead_ns: of(|r| r.overhead_ns),
        unknown_ns: of(|r| r.unknown_ns),
        ..StepBreakdownRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rank: i32, step: i32, five: [i64; 5]) -> StepBreakdownRow {
        let [compute_ns, overlap_ns, exposed_comm_ns, memory_ns, idle_ns] = five;
        let wall_ns = five.iter().sum();
        StepBreakdownRow {
            rank,
            step: Some(step),
            wall_ns,
            compute_ns,
            overlap_ns,
            exposed_comm_ns,
            memory_ns,
            idle_ns,
            ..Default::default()
        }
    }

    #[test]
    fn breakdowns_beyond_the_limit_are_means_by_lane_and_by_step() {
        let tables = Tables {
            step_breakdown: vec![row(0, 3, [1, 2, 3, 4, 5]), row(0, 4, [3, 2, 3, 4, 5]), row(1, 4, [7, 0, 0, 0, 0])],
            ..Tables::default()
        };
        let mut page = PageData::default();
        assert_eq!(breakdown(&tables, &Limits::default(), &mut page), tables.step_breakdown);
        assert!(page.remarks.is_empty());
        let few = Limits { lane_steps: 3, ..Limits::default() };
        let means: Vec<_> =
            breakdown(&tables, &few, &mut page).iter().map(|r| (r.rank, r.step, r.compute_ns, r.idle_ns)).collect();
        assert_eq!(means, [(0, None, 2, 5), (1, None, 7, 0), (-1, Some(3), 1, 5), (-1, Some(4), 5, 2)]);
        assert!(!page.remarks.is_empty(), "the shortening is listed");
    }
}
