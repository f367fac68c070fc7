//! The tables of an export: which are read, and what the others hold.

use trace::OmissionRow;

use crate::nsys::database::Database;

/// Tables whose rows are of devices.
pub(super) const OF_DEVICES: [&str; 5] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
];
/// Calls of MPI.
pub(super) const MPI: [&str; 4] = [MPI_COLLECTIVES, "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"];
pub(super) const MPI_COLLECTIVES: &str = "MPI_COLLECTIVES_EVENTS";
/// Samples of hardware metrics.
pub(super) const METRICS: &str = "GPU_METRICS";
/// Overhead of the profiler.
pub(super) const OVERHEAD: [&str; 2] = ["PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"];
/// Ranges and marks of NVTX, under their names in all versions of nsys.
pub(super) const NVTX: [&str; 2] = ["NVTX_EVENTS", "NVTX_EVENTS_V2"];
/// The other tables whose rows are of threads.
const OF_THREADS: [&str; 1] = ["CUPTI_ACTIVITY_KIND_RUNTIME"];
/// How the names of tables begin that describe the others, or the machine.
const DESCRIBING: [&str; 14] = [
    "StringIds",
    "ENUM_",
    "TARGET_INFO_",
    "META_DATA_",
    "EXPORT_META_DATA",
    "ANALYSIS_",
    "ThreadNames",
    "ProcessStreams",
    "PROCESSES",
    "NVTX_PAYLOAD_",
    "MPI_RANKS",
    "MPI_COMMUNICATORS",
    "UnwindMethodType",
    "sqlite_",
];
/// Rows of a table that are counted.
const MAX_COUNTED: u64 = 1_000_000;
/// Tables that a message names.
const MAX_NAMED: usize = 8;

/// Whether the rows of a table become rows of a rank.
fn is_read(table: &str) -> bool {
    [&OF_DEVICES[..], &OF_THREADS, &NVTX, &MPI, &OVERHEAD, &[METRICS]].into_iter().any(|tables| tables.contains(&table))
}

/// What an export holds that is not read: rows of other tables, and views under the names of tables.
pub(super) fn unread(database: &Database) -> Vec<OmissionRow> {
    let mut omissions = Vec::new();
    let (mut named, mut total) = (Vec::new(), 0_i64);
    let is_other = |table: &&str| !is_read(table) && !DESCRIBING.iter().any(|known| table.starts_with(known));
    for table in database.tables().filter(is_other) {
        match database.count(table, MAX_COUNTED) {
            Ok(Some(0)) => {}
            Ok(Some(rows)) => {
                total = total.saturating_add(rows);
                named.push(format!("{table} {rows}"));
            }
            Ok(None) => {
                total = total.saturating_add(MAX_COUNTED as i64);
                named.push(format!("{table} more than {MAX_COUNTED}"));
            }
            Err(why) => omissions.push(OmissionRow::lost(format!("rest of table {table}"), why)),
        }
    }
    if !named.is_empty() {
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        let more = if more > 0 { format!(", and {more} more tables") } else { String::new() };
        let why = format!("nothing is made of them: {}{more}", named.join(", "));
        omissions.push(OmissionRow::left_out("rows of other tables", why).amount(total));
    }
    let is_known = |view: &&String| is_read(view) || *view == "StringIds";
    let damaged = database.damaged().iter();
    omissions.extend(damaged.map(|(table, why)| OmissionRow::lost(format!("table {table}"), why.as_str())));
    for view in database.views().iter().filter(is_known) {
        let why = "it is a view, and only tables are read: a view may hold anything";
        omissions.push(OmissionRow::lost(format!("rows of {view}"), why));
    }
    omissions
}
