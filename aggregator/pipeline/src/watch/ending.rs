//! Whether the processes that record a run still do.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, test_kill_process};
use rustix::system::uname;
use trace::RankRow;

/// The processes of a run by rank and process id, and the last row of each in `ranks`.
#[derive(Debug, Default)]
pub(super) struct Processes(BTreeMap<(i32, i64), RankRow>);

impl Processes {
    /// Takes a row of `ranks`; it replaces the earlier one of its process.
    pub(super) fn add(&mut self, row: RankRow) {
        self.0.insert((row.rank, row.pid), row);
    }

    /// Whether each of them has closed its recording.
    pub(super) fn all_closed(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|row| row.closed_cleanly)
    }

    /// Whether all of them ran on this host and none exists any more. Of other hosts nothing is known.
    pub(super) fn all_gone(&self) -> bool {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = uname().nodename().to_string_lossy().into_owned();
        let is_here = |row: &RankRow| row.boot_id.as_deref() == Some(boot_id.trim()) && *row.host == *host;
        let pid = |row: &RankRow| i32::try_from(row.pid).ok().and_then(Pid::from_raw);
        // A process of another user exists, though it may not be signalled.
        let is_gone =
            |row: &RankRow| pid(row).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
        !self.0.is_empty() && self.0.values().all(|row| row.closed_cleanly || (is_here(row) && is_gone(row)))
    }
}
