//! Lateness by rank and step: the quantity that the verdict stands on.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{Row, StandsOn, StragglerRow, WaitRow};

use crate::page_limits::{Limits, unit_ns};
use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::stragglers::add_stragglers;
use crate::string_pool::visible_name;
use model::Error;
use model::analysis::Tables;
use model::intervals::{Interval, IntervalSet};
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "lateness",
    title: "The proof: lateness by rank and step",
    lead: "Time in the range that the verdict stands on, or all own work between collectives, compared with the other ranks. Neither \
           needs a common clock, and a cause stands out in one of them.",
    proof: true,
    tables: &[WaitRow::table],
    data,
    scripts: &[script!("lateness.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    let heat = heat(run.tables(), run.limits, page);
    page.value("heat", &heat)?;
    add_stragglers(run, page)?;
    let tables = run.tables();
    let missing = if tables.collective_instances.is_empty() {
        Some("No collective was recorded, so arrival times are unknown.")
    } else if run.analysis().facts.ranks.len() < 2 {
        Some("Only one rank was recorded, so there is no other rank to compare it with.")
    } else if !tables.collective_instances.iter().any(|i| i.step.is_some_and(|s| s >= 0)) {
        Some("No collective lies in an active step.")
    } else if tables.collective_waits.is_empty() {
        Some("No collective was recorded on several ranks.")
    } else {
        None
    };
    Ok(Some(Chart::unless(missing)))
}

/// Measures of lateness by rank and step. A column is one step or several, a row is one rank or several.
#[derive(Debug, Default, Serialize)]
struct Heat {
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
fn heat(tables: &Tables, limits: &Limits, page: &mut PageData) -> Heat {
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
    let mut heat = binned(&values, limits, page);
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
fn binned(values: &BTreeMap<(i32, i32), Values>, limits: &Limits, page: &mut PageData) -> Heat {
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
        page.note(format!(
            "{} and {} are too many for one cell each: a cell covers {} and {} and shows their largest value.",
            plural(ranks.len(), "rank"),
            plural(steps.len(), "step"),
            plural(ranks_a_row, "rank"),
            plural(steps_a_column, "step")
        ));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_several_ranks_and_steps_show_the_largest() {
        let of_rank = |rank: i32, step: i32| [Some(i64::from(rank * 10 + step)), Some(-5), None, Some(0)];
        let values: BTreeMap<(i32, i32), Values> =
            (0..8).flat_map(|rank| (0..10).map(move |step| ((rank, step), of_rank(rank, step)))).collect();
        let mut page = PageData::default();
        let limits = Limits { heat_rows: 4, heat_cells: 20, ..Limits::default() };
        let heat = binned(&values, &limits, &mut page);
        assert_eq!(heat.rows, [(0, 1), (2, 3), (4, 5), (6, 7)]);
        assert_eq!(heat.columns.len(), 5);
        assert_eq!(heat.arrival[0], Some(11));
        assert_eq!(heat.arrival[19], Some(79));
        assert_eq!((heat.own[7], heat.range[7]), (Some(-5), None));
        assert!(!page.remarks.is_empty());
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
        let heat = heat(&tables, &Limits::default(), &mut PageData::default());
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
        let heat = heat(&tables, &Limits::default(), &mut PageData::default());
        assert_eq!((heat.arrival[0], heat.suffered[0], heat.error_ns), (Some(7), Some(6), Some(1)));
    }
}
