//! Lines about communicators: where exposed communication comes from, and how fast they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::{CommunicatorRow, ExposedCommRow};

use crate::summary::style::{TerminalStyle, sentence};
use model::analysis::Analysis;
use model::units::ns;

/// The most communicators or modules that a line names.
const NAMED: usize = 4;

/// Prints how much communication of each kind of communicator and of each module no compute hides. One of a kind says nothing.
pub(super) fn by_origin(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let rows = &analysis.tables.exposed_communication;
    let steps: BTreeSet<(i32, Option<i64>, i32)> = rows.iter().map(|row| (row.rank, row.device_id, row.step)).collect();
    let of_comm = |row: &ExposedCommRow| {
        let name = row.comm_description.as_ref().or(row.comm_name.as_ref());
        name.map_or_else(|| row.comm_id.map_or("unmatched kernels".into(), |id| format!("{id:x}")), ToString::to_string)
    };
    let across_hosts = |row: &ExposedCommRow| row.nodes.map(|nodes| place(nodes).to_owned());
    let lines = [
        ("communicator", sums(rows, &|row| Some(of_comm(row)))),
        ("module", sums(rows, &|row| row.module.as_ref().map(ToString::to_string))),
        ("place", sums(rows, &across_hosts)),
    ];
    for (what, sums) in lines.into_iter().filter(|(_, sums)| sums.len() > 1) {
        let one = |(name, all_ns): &(String, i64)| format!("{name} {}", ns(all_ns / steps.len().max(1) as i64));
        let mut parts: Vec<String> = sums.iter().take(NAMED).map(one).collect();
        if let Some(rest) = sums.get(NAMED..).filter(|rest| !rest.is_empty()) {
            parts.push(one(&(format!("{} others", rest.len()), rest.iter().map(|(_, ns)| ns).sum())));
        }
        sentence(text, &format!("exposed by {what}, mean of a rank's step: {}", parts.join(", ")), terminal);
    }
}

fn place(nodes: i32) -> &'static str {
    if nodes == 1 { "within a host" } else { "across hosts" }
}

/// Prints the bus bandwidth of each kind of communicator if some span hosts: the bytes on the bus over all time in transfers.
pub(super) fn bandwidths(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let comms: BTreeMap<i64, &CommunicatorRow> = analysis.tables.communicators.iter().map(|c| (c.comm_id, c)).collect();
    let mut sums: BTreeMap<(String, i32), (f64, f64)> = BTreeMap::new();
    for row in &analysis.tables.collective_instances {
        let (Some(rate), Some(transfer_ns)) = (row.busbw_gbs, row.transfer_ns) else { continue };
        let Some((comm, nodes)) = comms.get(&row.comm_id).and_then(|comm| Some((comm, comm.nodes?))) else { continue };
        let name = comm.description.as_ref().or(comm.name.as_ref());
        let name = name.map_or_else(|| format!("{:x}", row.comm_id), ToString::to_string);
        let (bytes, time_ns) = sums.entry((name, nodes.min(2))).or_default();
        (*bytes, *time_ns) = (*bytes + rate * transfer_ns as f64, *time_ns + transfer_ns as f64);
    }
    if sums.keys().all(|(_, nodes)| *nodes == 1) {
        return;
    }
    let mut rates: Vec<(&String, i32, f64)> = Vec::new();
    for ((name, nodes), (bytes, time_ns)) in sums.iter().filter(|(_, (_, time_ns))| *time_ns > 0.0) {
        rates.push((name, *nodes, bytes / time_ns));
    }
    rates.sort_by(|x, y| y.2.total_cmp(&x.2));
    let one = |(name, nodes, rate): &(&String, i32, f64)| format!("{name} {rate:.2} {}", place(*nodes));
    let mut parts: Vec<String> = rates.iter().take(NAMED).map(one).collect();
    if rates.len() > NAMED {
        parts.push(format!("{} others", rates.len() - NAMED));
    }
    sentence(
        text,
        &format!("busbw by communicator, all bytes over all transfer time, GB/s: {}", parts.join(", ")),
        terminal,
    );
}

/// The exposed time by name, the longest first.
fn sums(rows: &[ExposedCommRow], name: &dyn Fn(&ExposedCommRow) -> Option<String>) -> Vec<(String, i64)> {
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for (name, row) in rows.iter().filter_map(|row| Some((name(row)?, row))) {
        *sums.entry(name).or_default() += row.exposed_ns;
    }
    let mut sums: Vec<(String, i64)> = sums.into_iter().filter(|(_, ns)| *ns > 0).collect();
    sums.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    sums
}
