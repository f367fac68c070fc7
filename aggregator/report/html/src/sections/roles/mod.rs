//! The roles of the ranks of a job with several communicators, as a grid.
//!
//! ```text
//!              data 0 · tensor 0   data 0 · tensor 1   data 1 · tensor 0 …
//!   stage 0    rank 0              rank 1              rank 2               rows: stages of the pipeline
//!   stage 1    rank 4              rank 5 ◀ slow       rank 6               columns: positions in the other communicators
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::stragglers::add_stragglers;
use crate::string_pool::visible_name;
use model::Error;
use model::analysis::Analysis;
use topology::same_work::{dimensions, stages_by_rank};

pub(crate) static SECTION: Section = Section {
    id: "roles",
    title: "Ranks by role",
    lead: "Each rank at its place in the job: its stage of the pipeline, and its position in the other communicators. The further a \
           cell's colour is from the page, the more time the rank costs. A rank is compared with the ranks of its role.",
    proof: true,
    tables: &[],
    data,
    scripts: &[script!("roles.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    add_stragglers(run, page)?;
    let roles = roles(run.analysis());
    page.value("roles", &roles)?;
    // A job with one role does not lack the section.
    Ok(roles.map(|_| Chart::unless(None)))
}

/// A grid of ranks.
#[derive(Debug, PartialEq, Serialize)]
struct Roles {
    /// The name of the rows: `stage`.
    row_name: String,
    /// What the columns are: `data · tensor`.
    column_name: String,
    rows: Vec<String>,
    columns: Vec<String>,
    /// Row, column and rank.
    cells: Vec<(usize, usize, i32)>,
}

/// The roles of the ranks; `None` if the job has one role.
fn roles(analysis: &Analysis) -> Option<Roles> {
    let ranks = &analysis.facts.ranks;
    let stages = stages_by_rank(&analysis.tables, ranks);
    let dimensions = dimensions(&analysis.tables.communicators, ranks, &stages);
    let is_pipeline = stages.values().collect::<BTreeSet<_>>().len() > 1;
    if !is_pipeline && dimensions.len() < 2 {
        return None;
    }
    // Without stages, the outermost dimension makes the rows.
    let (row_name, row_of, inner) = match dimensions.split_first() {
        Some((first, inner)) if !is_pipeline => (visible_name(&first.name), first.place.clone(), inner),
        _ => ("stage".to_string(), stages, &dimensions[..]),
    };
    let mut places: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    let mut taken: BTreeMap<(usize, Vec<usize>), usize> = BTreeMap::new();
    for rank in ranks {
        let row = *row_of.get(rank)?;
        let mut place: Vec<usize> = inner.iter().filter_map(|dimension| dimension.place.get(rank)).copied().collect();
        // Ranks that no recorded communicator tells apart are counted.
        let same = taken.entry((row, place.clone())).or_default();
        place.push(*same);
        *same += 1;
        places.insert(*rank, place);
    }
    let counts_members = taken.values().any(|count| *count > 1);
    if !counts_members {
        for place in places.values_mut() {
            place.pop();
        }
    }
    let purposes = inner.iter().map(|dimension| visible_name(&dimension.name));
    let names: Vec<String> = purposes.chain(counts_members.then(|| "member".into())).collect();
    let columns: Vec<Vec<usize>> = places.values().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let column = |place: &[usize]| {
        let parts: Vec<String> = names.iter().zip(place).map(|(name, at)| format!("{name} {at}")).collect();
        if parts.is_empty() { "rank".to_string() } else { parts.join(" · ") }
    };
    let rows: BTreeSet<usize> = row_of.values().copied().collect();
    let cell = |(rank, place): (&i32, &Vec<usize>)| {
        let at = columns.binary_search(place).ok()?;
        Some((rows.iter().position(|row| Some(row) == row_of.get(rank))?, at, *rank))
    };
    Some(Roles {
        rows: rows.iter().map(|row| format!("{row_name} {row}")).collect(),
        columns: columns.iter().map(|place| column(place)).collect(),
        cells: places.iter().filter_map(cell).collect(),
        column_name: names.join(" · "),
        row_name,
    })
}

#[cfg(test)]
mod tests {
    use trace::{CommunicatorRow, PipelineRow};

    use super::*;
    use model::analysis::{Facts, Tables};

    fn job(groups: &[(&str, &[i32])], stage_of: &[i32]) -> Analysis {
        let row = |(description, ranks): &(&str, &[i32])| CommunicatorRow {
            description: Some((*description).into()),
            ranks: Some(ranks.to_vec()),
            ..CommunicatorRow::default()
        };
        let stage =
            |(rank, stage): (usize, &i32)| PipelineRow { rank: rank as i32, stage: *stage, ..Default::default() };
        Analysis {
            facts: Facts { ranks: (0..8).collect(), ..Facts::default() },
            tables: Tables {
                communicators: groups.iter().map(row).collect(),
                pipeline: stage_of.iter().enumerate().map(stage).collect(),
                ..Tables::default()
            },
            ..Analysis::default()
        }
    }

    const GRID: [(&str, &[i32]); 12] = [
        ("mesh_tp", &[0, 1]),
        ("mesh_tp", &[2, 3]),
        ("mesh_tp", &[4, 5]),
        ("mesh_tp", &[6, 7]),
        ("mesh_dp", &[0, 2]),
        ("mesh_dp", &[1, 3]),
        ("mesh_dp", &[4, 6]),
        ("mesh_dp", &[5, 7]),
        ("mesh_pp", &[0, 4]),
        ("mesh_pp", &[1, 5]),
        ("mesh_pp", &[2, 6]),
        ("mesh_pp", &[3, 7]),
    ];

    #[test]
    fn stages_are_rows_and_other_communicators_are_columns() {
        let found = roles(&job(&GRID, &[0, 0, 0, 0, 4, 4, 4, 4])).unwrap();
        assert_eq!((found.row_name.as_str(), found.column_name.as_str()), ("stage", "data · tensor"));
        assert_eq!(found.rows, ["stage 0", "stage 1"]);
        assert_eq!(found.columns, ["data 0 · tensor 0", "data 0 · tensor 1", "data 1 · tensor 0", "data 1 · tensor 1"]);
        assert!(found.cells.contains(&(1, 1, 5)) && found.cells.len() == 8, "{:?}", found.cells);
    }

    #[test]
    fn a_missing_rank_hides_no_dimension() {
        let mut analysis = job(&GRID, &[0, 0, 0, 0, 4, 4, 4, 4]);
        analysis.facts.ranks.pop();
        let found = roles(&analysis).unwrap();
        assert_eq!((found.column_name.as_str(), found.cells.len()), ("data · tensor", 7));
    }

    #[test]
    fn ranks_that_no_communicator_tells_apart_are_counted() {
        let found = roles(&job(&[], &[0, 0, 0, 0, 4, 4, 4, 4])).unwrap();
        assert_eq!(found.columns, ["member 0", "member 1", "member 2", "member 3"]);
        assert_eq!(
            found.cells.iter().filter(|(row, ..)| *row == 1).map(|cell| cell.2).collect::<Vec<_>>(),
            [4, 5, 6, 7]
        );
    }

    #[test]
    fn a_job_of_one_role_has_no_grid() {
        assert_eq!(roles(&job(&[("default_pg", &[0, 1, 2, 3, 4, 5, 6, 7])], &[])), None);
        let halves: [(&str, &[i32]); 2] = [("mesh_dp", &[0, 1, 2, 3]), ("mesh_dp", &[4, 5, 6, 7])];
        assert_eq!(roles(&job(&halves, &[])), None, "one dimension is no grid");
    }

    #[test]
    fn without_stages_the_outer_dimension_makes_the_rows() {
        let groups: [(&str, &[i32]); 6] = [
            ("tp", &[0, 1, 2, 3]),
            ("tp", &[4, 5, 6, 7]),
            ("dp", &[0, 4]),
            ("dp", &[1, 5]),
            ("dp", &[2, 6]),
            ("dp", &[3, 7]),
        ];
        let found = roles(&job(&groups, &[])).unwrap();
        assert_eq!((found.rows, found.columns.len()), (vec!["data 0".to_string(), "data 1".into()], 4));
    }
}
