//! A process as a rank: its rows in the order of time, with steps, collectives and devices.

use kineto::{LEFT_OUT_MARKS, Steps, find_steps};
use trace::rank::{BelowOperators, Launches};
use trace::{OmissionRow, Text};

use crate::Error;
use crate::ingest::nsys::collectives::collectives;
use crate::ingest::nsys::database::Database;
use crate::ingest::nsys::devices::devices;
use crate::ingest::nsys::host::parents;
use crate::ingest::nsys::processes::Process;
use crate::ingest::nsys::rows::Loader;
use crate::ingest::run::merge_parts;
use crate::model::steps::assign_steps;
use crate::model::{RankData, RankInfo};

/// Loads a process, whose rows may take `max_memory_bytes`.
///
/// # Errors
/// [`Error::NoInput`] if its file cannot be opened.
pub(super) fn load(process: &Process, world_size: Option<i32>, max_memory_bytes: u64) -> Result<RankData, Error> {
    let database = Database::open(&process.file)?;
    let mut loader = Loader::of(process, &database, max_memory_bytes);
    loader.devices();
    loader.host();
    loader.list_counts();
    let Loader { mut raw, names, mut omissions, loose, calls, .. } = loader;
    let rank = process.rank;
    raw.parent_id = parents(&raw, &loose);
    let file = Text::from(process.file.to_string_lossy());
    let mut data = RankData { kernel_use: std::mem::take(&mut raw.kernel_use), ..RankData::default() };
    data.outline.info = RankInfo {
        rank,
        world_size,
        host: process.session.host.clone(),
        pid: process.pid(),
        clock_domain: process.clock_domain.to_string(),
        closed_cleanly: None,
        file: file.clone(),
    };
    data.names = names.list;
    data.events = merge_parts(raw, rank, &mut omissions);
    data.devices = devices(&database, process, &data.events, &mut omissions);
    data.omissions = omissions.into_iter().map(|omission| listed(omission, rank, &file)).collect();
    steps(&mut data);
    collectives(&mut data, &calls, world_size);
    if let Some(below) = BelowOperators::find(&data.events, &data.names) {
        let launches = Launches::collect(&data.events);
        below.mark(&mut data.events, &launches);
    }
    Ok(data)
}

fn listed(omission: OmissionRow, rank: i32, file: &Text) -> OmissionRow {
    omission.rank(rank).file(file.clone())
}

/// The steps that ranges such as `ProfilerStep#7` mark.
fn steps(data: &mut RankData) {
    let rank = data.outline.info.rank;
    let Steps { rows, left_out } = find_steps(&data.events, &data.names, rank);
    if left_out > 0 {
        let (what, why) = LEFT_OUT_MARKS;
        let omission = OmissionRow::left_out(what, why).amount(left_out);
        data.omissions.push(listed(omission, rank, &data.outline.info.file));
    }
    if !rows.is_empty() {
        data.outline.steps = rows;
        assign_steps(data);
    }
}
