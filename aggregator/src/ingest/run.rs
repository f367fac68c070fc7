//! Loads the shards of a rank into one [`RankData`].
//!
//! A problem with one rank's rows does not stop the other ranks: rows that are unreadable or impossible are left out,
//! counted, and listed with the reason.

mod collective_kernels;
mod columns;
mod merge_parts;
mod op_details;
mod repair;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use trace::{CollectiveRow, OmissionRow, RankRow, Row, Run};

use crate::model::{Collective, RankData, RankInfo, RankOutline};
use trace::rank::{BelowOperators, Details, Launches};

pub use merge_parts::{merge_parts, sort_rows};

/// Loads all data of one rank that an analysis needs. Unusable rows are listed in [`RankData::omissions`].
pub fn load_rank(run: &Run, rank: i32) -> RankData {
    let mut data = RankData::default();
    data.outline.info = rank_info(run, rank);
    let mut omissions = Vec::new();
    data.outline.collectives = collectives(run, rank, &mut omissions);
    data.outline.steps = rows(run, rank, &mut omissions);
    data.outline.clock_samples = rows(run, rank, &mut omissions);
    data.memory = rows(run, rank, &mut omissions);
    data.buckets = rows(run, rank, &mut omissions);
    data.outline.comms = rows(run, rank, &mut omissions);
    data.devices = rows(run, rank, &mut omissions);
    data.flows = rows(run, rank, &mut omissions);
    data.counters = rows(run, rank, &mut omissions);
    data.omissions = omissions;
    columns::load_events(run, rank, &mut data);
    repair::repair(&mut data);
    collective_kernels::join(&mut data);
    if let Some(below) = BelowOperators::find(&data.events, &data.names) {
        let launches = Launches::collect(&data.events);
        below.mark(&mut data.events, &launches);
    }
    data
}

/// Loads the outline of one rank. Problems of its shards are listed by the loader of its rows.
pub fn outline_rank(run: &Run, rank: i32) -> RankOutline {
    let mut data = RankData::default();
    data.outline.info = rank_info(run, rank);
    let mut listed_later = Vec::new();
    data.outline.collectives = collectives(run, rank, &mut listed_later);
    data.outline.steps = rows(run, rank, &mut listed_later);
    data.outline.comms = rows(run, rank, &mut listed_later);
    data.outline.clock_samples = rows(run, rank, &mut listed_later);
    repair::repair(&mut data);
    let span = columns::span(run, rank);
    // Then collectives have the times of kernels, and those are among the rows.
    if span.has_device_rows && data.outline.collectives.iter().any(|c| collective_kernels::may_time(c)) {
        let mut data = load_rank(run, rank);
        data.measure_outline();
        return data.outline;
    }
    let recorded_ns = data.outline.recorded_with(span.rows.map(|rows| (rows.start_ns, rows.end_ns)));
    RankOutline { recorded_ns, has_device_rows: span.has_device_rows, ..data.outline }
}

fn collectives(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<Collective> {
    rows::<CollectiveRow>(run, rank, omissions).into_iter().map(Collective::from).collect()
}

/// Loads a rank as [`load_rank`] does, and also its shapes, stacks and modules.
pub fn load_rank_detailed(run: &Run, rank: i32) -> (RankData, Details) {
    let mut data = load_rank(run, rank);
    let details = op_details::load_details(run, rank, &mut data);
    (data, details)
}

fn relative(path: &Path, run: &Path) -> Arc<str> {
    path.strip_prefix(run).unwrap_or(path).display().to_string().into()
}

fn rows<R: Row>(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<R> {
    let (rows, problems) = run.rows::<R>(rank);
    omissions.extend(problems.into_iter().map(|p| p.into_omission(&run.path)));
    rows
}

/// The information about a rank from its first process's row in `ranks`; without such a row, from its shards. The rank
/// closed cleanly if the last row of each of its processes records that.
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
