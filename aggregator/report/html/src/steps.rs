//! Ranks and steps: the parts of a step, and lateness.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{StandsOn, StepBreakdownRow, StragglerRow};

use crate::page_limits::{Limits, Shortenings, unit_ns};
use crate::string_pool::visible_name;
use model::analysis::{Analysis, Tables};
use model::intervals::{Interval, IntervalSet};
use model::units::plural;

/// The breakdown of the active steps by lane: a device, or the CPU of a rank without devices. Beyond the limit, the
/// means of each lane (without a step) and those of each step (rank −1).
pub(super) fn breakdown(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Vec<StepBreakdownRow> {
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
    notes.add(
        "steps",
        format!(
            "{} and {} are too many to show the breakdown of every rank in every step: the means over the steps are shown. \
             The table step_breakdown has them all.",
            plural(lanes.len(), "rank"),
            plural(steps.len(), "step")
        ),
    );
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
        ..StepBreakdownRow::default()
    }
}

/// Measures of lateness by rank and step. A column is one step or several, a row is one rank or several.
#[derive(Debug, Default, Serialize)]
pub(super) struct Heat {
    /// First and last rank of each row.
    rows: Vec<(i32, i32)>,
    /// First and last step of each column.
    columns: Vec<(i32, i32)>,
    /// Unit of the maps, in ns.
    unit_ns: i64,
    /// Largest delay behind the first rank, over the collectives of the step.
    arrival: Vec<Option<i64>>,
    /// Own work above the lower median of the ranks.
    own: Vec<Option<i64>>,
    /// Time in the range that the verdict stands on, above the lower median of the other ranks.
    range: Vec<Option<i64>>,
    /// That range; `null` if no verdict stands on a range.
    range_name: Option<String>,
    /// Time spent waiting for other ranks; overlapping waits count once.
    suffered: Vec<Option<i64>>,
    /// Largest error of a difference of arrivals; `null` if it is unknown for some collective.
    error_ns: Option<i64>,
}

/// The lateness of one rank in one step.
#[derive(Default)]
struct Cell {
    arrival_ns: i64,
    own_ns: Option<i64>,
    range_ns: Option<i64>,
    waits: Vec<Interval>,
}

/// The values of a rank in a step: arrival, own excess, excess in the range, suffered wait.
type Values = [Option<i64>; 4];

/// Computes the maps from the waits of all ranks. They are empty without waits.
pub(super) fn heat(tables: &Tables, limits: &Limits, notes: &mut Shortenings) -> Heat {
    let instances: FxHashMap<i64, &trace::InstanceRow> =
        tables.collective_instances.iter().map(|i| (i.instance, i)).collect();
    let mut cells: BTreeMap<(i32, i32), Cell> = BTreeMap::new();
    let (mut error_ns, mut unknown) = (0, false);
    for wait in &tables.collective_waits {
        let Some(instance) = instances.get(&wait.instance) else { continue };
        let Some(step) = instance.step.filter(|step| *step >= 0) else { continue };
        let cell = cells.entry((wait.rank, step)).or_default();
        cell.arrival_ns = cell.arrival_ns.max(wait.arrival_ns.saturating_sub(instance.first_start_ns));
        cell.waits.push(Interval::new(wait.arrival_ns, wait.arrival_ns.saturating_add(wait.wait_ns.max(0))));
        unknown |= instance.error_ns.is_none();
        error_ns = error_ns.max(instance.error_ns.unwrap_or(0));
    }
    if cells.is_empty() {
        return Heat::default();
    }
    for row in &tables.straggler_steps {
        if let Some(cell) = cells.get_mut(&(row.rank, row.step)) {
            (cell.own_ns, cell.range_ns) = (row.own_excess_ns, row.evidence_excess_ns);
        }
    }
    let values = |cell: Cell| {
        let suffered_ns = IntervalSet::from_unsorted(cell.waits).len_ns();
        [Some(cell.arrival_ns), cell.own_ns, cell.range_ns, Some(suffered_ns)]
    };
    let values: BTreeMap<(i32, i32), Values> = cells.into_iter().map(|(key, cell)| (key, values(cell))).collect();
    let mut heat = binned(&values, limits, notes);
    heat.error_ns = Some(error_ns).filter(|_| !unknown);
    heat.range_name = range_name(tables);
    heat
}

/// The range that a verdict stands on. Ranks that stand out in ranges of their own may have other ranges.
fn range_name(tables: &Tables) -> Option<String> {
    let by_range = |row: &&StragglerRow| row.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Range);
    let mut names: Vec<Option<&str>> =
        tables.stragglers.iter().filter(by_range).map(|row| row.evidence_range.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => None,
        [None] => Some("outside of all ranges".into()),
        [Some(name)] => Some(format!("in {}", visible_name(name))),
        _ => Some("in the verdicts' ranges".into()),
    }
}

/// Groups ranks into rows and steps into columns, so that the map stays within the limits.
fn binned(values: &BTreeMap<(i32, i32), Values>, limits: &Limits, notes: &mut Shortenings) -> Heat {
    let mut ranks: Vec<i32> = values.keys().map(|(rank, _)| *rank).collect();
    let mut steps: Vec<i32> = values.keys().map(|(_, step)| *step).collect();
    for list in [&mut ranks, &mut steps] {
        list.sort_unstable();
        list.dedup();
    }
    let ranks_a_row = ranks.len().div_ceil(limits.heat_rows);
    let rows = bins(&ranks, ranks_a_row);
    let steps_a_column = steps.len().div_ceil((limits.heat_cells / rows.len().max(1)).max(1));
    let columns = bins(&steps, steps_a_column);
    if ranks_a_row > 1 || steps_a_column > 1 {
        notes.add(
            "lateness",
            format!(
                "{} and {} are too many for one cell each: a cell covers {} and {} and shows their largest value.",
                plural(ranks.len(), "rank"),
                plural(steps.len(), "step"),
                plural(ranks_a_row, "rank"),
                plural(steps_a_column, "step")
            ),
        );
    }
    let largest = values.values().flatten().flatten().map(|v| v.saturating_abs()).max().unwrap_or(0);
    let unit_ns = unit_ns(largest);
    let mut maps = [(); 4].map(|()| vec![None; rows.len() * columns.len()]);
    for ((rank, step), of_rank) in values {
        let row = rows.partition_point(|(_, last)| last < rank);
        let column = columns.partition_point(|(_, last)| last < step);
        for (map, value) in maps.iter_mut().zip(of_rank) {
            let cell: &mut Option<i64> = &mut map[row * columns.len() + column];
            *cell = (*cell).max(value.map(|value| value / unit_ns));
        }
    }
    let [arrival, own, range, suffered] = maps;
    Heat { rows, columns, unit_ns, arrival, own, range, range_name: None, suffered, error_ns: None }
}

fn bins(sorted: &[i32], size: usize) -> Vec<(i32, i32)> {
    sorted.chunks(size.max(1)).filter_map(|c| Some((*c.first()?, *c.last()?))).collect()
}

/// The steps with their lengths, the shortest first.
pub(super) fn steps_by_length(analysis: &Analysis) -> Vec<(i64, i32)> {
    let mut lengths: BTreeMap<i32, i64> = BTreeMap::new();
    for row in &analysis.tables.step_breakdown {
        if let Some(step) = row.step.filter(|step| *step >= 0) {
            let length = lengths.entry(step).or_default();
            *length = (*length).max(row.wall_ns);
        }
    }
    let mut by_length: Vec<(i64, i32)> = lengths.into_iter().map(|(step, length)| (length, step)).collect();
    by_length.sort_unstable();
    by_length
}

/// The step of median length, as a typical step for the timeline.
pub(super) fn typical_step(analysis: &Analysis) -> Option<i32> {
    let by_length = steps_by_length(analysis);
    by_length.get(by_length.len().checked_sub(1)? / 2).map(|(_, step)| *step)
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
        let mut notes = Shortenings::default();
        assert_eq!(breakdown(&tables, &Limits::default(), &mut notes), tables.step_breakdown);
        assert!(notes.is_empty());
        let few = Limits { lane_steps: 3, ..Limits::default() };
        let means: Vec<_> =
            breakdown(&tables, &few, &mut notes).iter().map(|r| (r.rank, r.step, r.compute_ns, r.idle_ns)).collect();
        assert_eq!(means, [(0, None, 2, 5), (1, None, 7, 0), (-1, Some(3), 1, 5), (-1, Some(4), 5, 2)]);
        assert!(!notes.is_empty(), "the shortening is listed");
    }

    #[test]
    fn cells_of_several_ranks_and_steps_show_the_largest() {
        let of_rank = |rank: i32, step: i32| [Some(i64::from(rank * 10 + step)), Some(-5), None, Some(0)];
        let values: BTreeMap<(i32, i32), Values> =
            (0..8).flat_map(|rank| (0..10).map(move |step| ((rank, step), of_rank(rank, step)))).collect();
        let mut notes = Shortenings::default();
        let limits = Limits { heat_rows: 4, heat_cells: 20, ..Limits::default() };
        let heat = binned(&values, &limits, &mut notes);
        assert_eq!(heat.rows, [(0, 1), (2, 3), (4, 5), (6, 7)]);
        assert_eq!(heat.columns.len(), 5);
        assert_eq!(heat.arrival[0], Some(11));
        assert_eq!(heat.arrival[19], Some(79));
        assert_eq!((heat.own[7], heat.range[7]), (Some(-5), None));
        assert!(!notes.is_empty());
    }

    /// Rank 1 is the cause by its range, although rank 0 has the larger own excess.
    #[test]
    fn the_range_of_the_verdict_has_a_map() {
        let wait = |rank| trace::WaitRow { rank, wait_ns: 4, ..Default::default() };
        let step = |rank, own, range| trace::StragglerStepRow {
            rank,
            step: 1,
            own_excess_ns: Some(own),
            evidence_range: Some("forward".into()),
            evidence_excess_ns: Some(range),
        };
        let cause = StragglerRow {
            rank: 1,
            stands_on: Some("range".into()),
            evidence_range: Some("forward".into()),
            ..Default::default()
        };
        let tables = Tables {
            collective_instances: vec![trace::InstanceRow { step: Some(1), ..Default::default() }],
            collective_waits: vec![wait(0), wait(1)],
            stragglers: vec![cause],
            straggler_steps: vec![step(0, 15, 0), step(1, 2, 30)],
            ..Tables::default()
        };
        let heat = heat(&tables, &Limits::default(), &mut Shortenings::default());
        assert_eq!((heat.own, heat.range), (vec![Some(15), Some(2)], vec![Some(0), Some(30)]));
        assert_eq!(heat.range_name.as_deref(), Some("in forward"));
    }

    #[test]
    fn waits_of_two_communicators_at_once_count_once() {
        //  comm A  [~~~~]
        //  comm B    [~~~~]     six of eight ns
        let instance = |instance, first_start_ns| trace::InstanceRow {
            instance,
            step: Some(1),
            first_start_ns,
            error_ns: Some(1),
            ..Default::default()
        };
        let wait =
            |instance, arrival_ns| trace::WaitRow { instance, rank: 3, arrival_ns, wait_ns: 4, ..Default::default() };
        let tables = Tables {
            collective_instances: vec![instance(0, 10), instance(1, 5)],
            collective_waits: vec![wait(0, 10), wait(1, 12)],
            ..Tables::default()
        };
        let heat = heat(&tables, &Limits::default(), &mut Shortenings::default());
        assert_eq!((heat.arrival[0], heat.suffered[0], heat.error_ns), (Some(7), Some(6), Some(1)));
    }
}
