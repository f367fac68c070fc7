//! How to record one rank.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use trace::RankRow;

use crate::clock::{Clock, boot_id, host_name};
use crate::schedule::Schedule;
use crate::session::Session;
use crate::variables;

/// How to record one rank. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the run.
    pub run: PathBuf,
    /// Run id, as in the manifest.
    pub run_id: String,
    /// Global rank.
    pub rank: i32,
    /// Number of ranks in the job.
    pub world_size: i32,
    /// Rank within the host.
    pub local_rank: Option<i32>,
    /// Host name. Default: the name of this host.
    pub host: String,
    /// Launcher that started the ranks: `openmpi`, `slurm`, …
    pub launcher: Option<String>,
    /// Name and uuid of the device that the rank computes on.
    pub device: Option<(String, String)>,
    /// Clock of all timestamps. Default: the system's clock.
    pub clock: Clock,
    /// Capacity of a thread's queue, in entries of 64 bytes. Default: 32 768.
    pub queue_records: usize,
    /// The writer closes a part at least this often while rows arrive. Default: 0.8 s.
    pub part_period: Duration,
    /// Number of rows of a table at which the writer closes a part early, and the most rows that it keeps while it
    /// cannot write. Default: 262 144.
    pub part_rows: usize,
    /// Longest time that [`finish`](crate::Recorder::finish) waits for the writer. Default: 30 s.
    pub finish_timeout: Duration,
    /// Versions of the tools involved, for the `ranks` row.
    pub versions: BTreeMap<String, String>,
    /// Session of the processes that record this rank together. Default: this process records alone.
    pub session: Option<Session>,
    /// Limit on the bytes of rows that this process writes. Rows beyond it are left out and counted. A part that began
    /// below the limit is written whole; `ranks` and `counters` are not limited. Default: no limit.
    pub max_bytes: Option<u64>,
    /// The parts of `events`, `collectives`, `memory` and `steps` that this process wrote longer ago than this are removed, and
    /// `counters` states how many rows that were, and from which time on nothing is missing. Parts of processes that have ended stay.
    /// Default: all parts are kept.
    pub keep: Option<Duration>,
    /// File of the [`ControlPage`](crate::ControlPage) that switches recording in the processes of the program.
    /// Default: recording is always on.
    pub control: Option<PathBuf>,
    /// Marked steps to record. Default: all of them, and the time between them.
    pub schedule: Option<Schedule>,
}

impl Options {
    /// The defaults.
    pub fn new(run: impl Into<PathBuf>, run_id: impl Into<String>, rank: i32, world_size: i32) -> Self {
        Self {
            run: run.into(),
            run_id: run_id.into(),
            rank,
            world_size,
            local_rank: None,
            host: host_name(),
            launcher: None,
            device: None,
            clock: Clock::system(),
            queue_records: 32_768,
            part_period: Duration::from_millis(800),
            part_rows: 262_144,
            finish_timeout: Duration::from_secs(30),
            versions: BTreeMap::new(),
            session: None,
            max_bytes: None,
            keep: None,
            control: None,
            schedule: None,
        }
    }

    /// Environment variables with which a child of this process joins the session with the same options.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut set: Vec<(&'static str, OsString)> = vec![
            (variables::RUN, std::path::absolute(&self.run).unwrap_or_else(|_| self.run.clone()).into()),
            (variables::RUN_ID, self.run_id.clone().into()),
            (variables::RANK, self.rank.to_string().into()),
            (variables::WORLD_SIZE, self.world_size.to_string().into()),
            (variables::AGENT_PID, std::process::id().to_string().into()),
        ];
        let mut optional = |name, value: Option<String>| set.extend(value.map(|value| (name, value.into())));
        optional(variables::LOCAL_RANK, self.local_rank.map(|rank| rank.to_string()));
        optional(variables::LAUNCHER, self.launcher.clone());
        optional(variables::MAX_BYTES, self.max_bytes.map(|bytes| bytes.to_string()));
        optional(variables::KEEP, self.keep.map(|keep| keep.as_millis().to_string()));
        // Set even if empty: this process may have inherited values from another session.
        let schedule = self.schedule.map(|schedule| schedule.to_string()).unwrap_or_default();
        set.push((variables::SCHEDULE, schedule.into()));
        set.push((variables::CONTROL, self.control.clone().unwrap_or_default().into()));
        set
    }

    pub(crate) fn rank_row(&self) -> RankRow {
        let text = |s: &String| s.as_str().into();
        RankRow {
            rank: self.rank,
            world_size: self.world_size,
            local_rank: self.local_rank,
            host: text(&self.host),
            pid: i64::from(std::process::id()),
            boot_id: Some(boot_id()).filter(|id| !id.is_empty()).map(Into::into),
            clock_domain: self.clock.domain().into(),
            launcher: self.launcher.as_ref().map(text),
            device_name: self.device.as_ref().map(|(name, _)| text(name)),
            device_uuid: self.device.as_ref().map(|(_, uuid)| text(uuid)),
            versions: (!self.versions.is_empty()).then(|| serde_json::json!(self.versions).to_string()).map(Into::into),
            ..RankRow::default()
        }
    }
}
