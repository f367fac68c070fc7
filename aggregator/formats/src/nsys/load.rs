//! A process as a rank: its rows in the order of time, with steps, collectives and devices.

use kineto::find_steps;
use trace::Text;
use trace::name_rules::roles::roles_in;
use trace::rank::mark_below_operators;

use crate::nsys::collectives::collectives;
use crate::nsys::database::Database;
use crate::nsys::devices::{Numbers, devices};
use crate::nsys::metrics::add_metrics;
use crate::nsys::mpi::add_collectives;
use crate::nsys::processes::Process;
use crate::nsys::rows::Loader;
use crate::rows::{list, step};
use model::Error;
use model::{RankData, RankInfo};

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
    let Loader { rows, omissions, loose, calls, mpi_calls, .. } = loader;
    let info = RankInfo {
        rank: process.rank,
        world_size,
        host: process.session.host.clone(),
        pid: process.pid(),
        clock_domain: process.clock_domain.to_string(),
        closed_cleanly: None,
        roles: roles_in(&process.file.to_string_lossy()).map(Text::from),
        file: Text::from(process.file.to_string_lossy()),
    };
    let mut data = rows.into_rank(info, &loose, omissions);
    let mut unread = Vec::new();
    let numbers = Numbers::read(&database, &mut unread);
    data.devices = devices(&database, (process, &numbers), &data.events, &mut unread);
    list(&mut data, unread);
    add_metrics(&mut data, (&database, process), &numbers, max_memory_bytes / 4);
    // Ranges such as `ProfilerStep#7` mark steps.
    let steps = find_steps(&data.events, &data.names, process.rank);
    step(&mut data, steps);
    collectives(&mut data, &calls, world_size);
    add_collectives(&mut data, &mpi_calls, (&database, process), world_size);
    mark_below_operators(&mut data.events, &data.names, None);
    Ok(data)
}
