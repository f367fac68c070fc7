//! Lines about where exposed communication comes from.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::ExposedCommRow;

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
    let across_hosts = |row: &ExposedCommRow| {
        let words = match row.nodes? {
            1 => "within a host",
            _ => "across hosts",
        };
        Some(words.to_owned())
    };
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
