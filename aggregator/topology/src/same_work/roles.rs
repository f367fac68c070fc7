//! The places of ranks in the parallelism of the job: stages, and positions in the communicators that divide the ranks of a stage.
//!
//! The stages are in the table `pipeline`. The other communicators of one purpose divide the ranks of each
//! stage, and the position of a rank in its communicator is its place along that dimension.

use std::collections::{BTreeMap, BTreeSet};

use trace::CommunicatorRow;

use model::analysis::Tables;

/// Communicators of one purpose, which divide the ranks.
#[derive(Debug)]
pub struct Dimension {
    /// The purpose, as the trace names it.
    pub name: String,
    /// The place of each rank in its communicator.
    pub place: BTreeMap<i32, usize>,
    /// The distance of the first two ranks of a communicator: dimensions with larger ones are further outside.
    stride: i32,
}

/// The ranks of each stage of the pipeline, in the order of their lowest ranks; empty without a pipeline.
pub fn pipeline_stages(tables: &Tables) -> Vec<BTreeSet<i32>> {
    let mut stages: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
    for row in &tables.pipeline {
        stages.entry(row.stage).or_default().insert(row.rank);
    }
    stages.into_values().collect()
}

/// Whether each rank is a stage of the pipeline by itself.
pub fn each_rank_is_a_stage(tables: &Tables) -> bool {
    !tables.pipeline.is_empty() && tables.pipeline.iter().all(|row| row.rank == row.stage)
}

/// The number of each rank's stage, counted from 0. All ranks are one stage, if that of one is unknown.
pub fn stages_by_rank(tables: &Tables, ranks: &[i32]) -> BTreeMap<i32, usize> {
    let stages = pipeline_stages(tables);
    let number = |rank: &i32| Some((*rank, stages.iter().position(|members| members.contains(rank))?));
    let known: BTreeMap<i32, usize> = ranks.iter().filter_map(number).collect();
    if known.len() == ranks.len() { known } else { ranks.iter().map(|rank| (*rank, 0)).collect() }
}

/// The dimensions inside of stages that tell ranks apart, the outermost first.
pub fn dimensions(rows: &[CommunicatorRow], ranks: &[i32], stages: &BTreeMap<i32, usize>) -> Vec<Dimension> {
    let mut groups: BTreeMap<String, Vec<&[i32]>> = BTreeMap::new();
    for row in rows {
        let Some(members) = row.ranks.as_deref().filter(|members| members.len() > 1) else { continue };
        // Members that were not read have no stage.
        let of_stage: BTreeSet<&usize> = members.iter().filter_map(|rank| stages.get(rank)).collect();
        if of_stage.len() > 1 || members.len() == ranks.len() {
            continue;
        }
        groups.entry(purpose(row, members.len())).or_default().push(members);
    }
    let mut all: Vec<Dimension> = groups.into_iter().filter_map(|(name, of)| dimension(name, &of, ranks)).collect();
    all.sort_by(|a, b| b.stride.cmp(&a.stride).then_with(|| a.name.cmp(&b.name)));
    let mut told: BTreeSet<Vec<usize>> = BTreeSet::from([Vec::new()]);
    let mut kept: Vec<Dimension> = Vec::new();
    for dimension in all {
        let place = |rank: &i32| {
            let of = kept.iter().chain([&dimension]).filter_map(|d| d.place.get(rank)).copied();
            stages.get(rank).copied().into_iter().chain(of).collect::<Vec<usize>>()
        };
        let tells: BTreeSet<Vec<usize>> = ranks.iter().map(place).collect();
        if tells.len() > told.len() {
            told = tells;
            kept.push(dimension);
        }
    }
    kept
}

/// The purpose of a communicator, by its description: `data` for `mesh_dp`. Its size if it has no description.
fn purpose(row: &CommunicatorRow, size: usize) -> String {
    // torch's word for a process group without a description.
    let text = row.description.as_deref().filter(|text| *text != "undefined").unwrap_or_default();
    let lower = text.to_lowercase();
    let has =
        |words: &[&str]| words.iter().any(|word| lower.split(|c: char| !c.is_alphanumeric()).any(|part| part == *word));
    match () {
        () if has(&["dp", "data", "ddp", "fsdp", "replicate", "shard"]) => "data".into(),
        () if has(&["tp", "tensor"]) => "tensor".into(),
        () if has(&["cp", "context"]) => "context".into(),
        () if has(&["ep", "expert"]) => "expert".into(),
        () if text.is_empty() => format!("group of {size}"),
        () => text.into(),
    }
}

/// A dimension of these communicators, if they divide the ranks: each rank is in exactly one.
fn dimension(name: String, of: &[&[i32]], ranks: &[i32]) -> Option<Dimension> {
    let mut place = BTreeMap::new();
    for members in of {
        for (at, rank) in members.iter().enumerate() {
            if place.insert(*rank, at).is_some() {
                return None;
            }
        }
    }
    let stride = of.first().map_or(0, |members| members[1] - members[0]);
    ranks.iter().all(|rank| place.contains_key(rank)).then_some(Dimension { name, place, stride })
}
