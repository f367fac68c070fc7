//! From the shards of a rank to one [`RankData`].
//!
//! Nothing that is wrong with one rank's rows stops the others: what cannot be read or makes no sense is left out,
//! counted and listed with its reason.

mod columns;
mod details;
mod kernels;
mod order;
mod repair;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use trace::{OmissionRow, Problem, RankRow, Row, Run};

use crate::details::Details;
use crate::model::{RankData, RankInfo};
use crate::outline::Outline;

pub use order::{merge_parts, sort_rows};

/// Loads everything of one rank that an analysis needs. Rows that cannot be used are in [`RankData::omissions`].
pub fn load_rank(run: &Run, rank: i32) -> RankData {
    let mut data = RankData { info: rank_info(run, rank), ..RankData::default() };
    let mut omissions = Vec::new();
    data.collectives = rows(run, rank, &mut omissions);
    data.steps = rows(run, rank, &mut omissions);
    data.clock_samples = rows(run, rank, &mut omissions);
    data.memory = rows(run, rank, &mut omissions);
    data.buckets = rows(run, rank, &mut omissions);
    data.comms = rows(run, rank, &mut omissions);
    data.devices = rows(run, rank, &mut omissions);
    data.flows = rows(run, rank, &mut omissions);
    data.counters = rows(run, rank, &mut omissions);
    data.omissions = omissions;
    columns::load_events(run, rank, &mut data);
    repair::repair(&mut data);
    kernels::join(&mut data);
    data
}

/// Loads what puts one rank on the clock of all. What cannot be read of it is listed by whoever loads its rows.
pub fn outline_rank(run: &Run, rank: i32) -> Outline {
    let mut data = RankData { info: rank_info(run, rank), ..RankData::default() };
    let mut listed_later = Vec::new();
    data.collectives = rows(run, rank, &mut listed_later);
    data.steps = rows(run, rank, &mut listed_later);
    data.comms = rows(run, rank, &mut listed_later);
    data.clock_samples = rows(run, rank, &mut listed_later);
    repair::repair(&mut data);
    let span = columns::span(run, rank);
    // Then collectives have the times of kernels, and those are among the rows.
    if span.has_device_rows && data.collectives.iter().any(kernels::may_time) {
        return Outline::of(load_rank(run, rank));
    }
    Outline { rows: span.rows, has_device_rows: span.has_device_rows, ..Outline::of(data) }
}

/// As [`load_rank`], with shapes, stacks and modules.
pub fn load_rank_detailed(run: &Run, rank: i32) -> (RankData, Details) {
    let mut data = load_rank(run, rank);
    let details = details::load_details(run, rank, &mut data);
    (data, details)
}

/// The omission that a problem of a run is.
pub fn omission_of(problem: Problem, run: &Path) -> OmissionRow {
    let Problem { path, rank, what, amount, why } = problem;
    let file = path.map(|p| relative(&p, run));
    OmissionRow { file, rank, what: what.into(), amount, why: why.into() }
}

fn relative(path: &Path, run: &Path) -> Arc<str> {
    path.strip_prefix(run).unwrap_or(path).display().to_string().into()
}

fn rows<R: Row>(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<R> {
    let (rows, problems) = run.rows::<R>(rank);
    omissions.extend(problems.into_iter().map(|p| omission_of(p, &run.path)));
    rows
}

/// What the first process of the rank says in `ranks`; without a row there, what its shards say of themselves. The rank
/// ended in order if the last row of every process says so.
fn rank_info(run: &Run, rank: i32) -> RankInfo {
    let (rows, _) = run.rows::<RankRow>(rank);
    if let Some(row) = rows.first() {
        let last: BTreeMap<i64, bool> = rows.iter().map(|row| (row.pid, row.closed_cleanly)).collect();
        return RankInfo {
            rank,
            world_size: Some(row.world_size),
            host: row.host.to_string(),
            pid: row.pid,
            clock_domain: row.clock_domain.to_string(),
            closed_cleanly: Some(last.values().all(|closed| *closed)),
        };
    }
    let mut info = RankInfo { rank, world_size: Some(run.manifest.world_size), ..RankInfo::default() };
    let tables = trace::rank_tables();
    if let Some(shard) = tables.iter().flat_map(|t| run.shards(rank, t.name)).next() {
        info.host = shard.meta.host.clone();
        info.pid = shard.meta.pid;
        info.clock_domain = shard.meta.clock_domain.clone();
    }
    info
}
