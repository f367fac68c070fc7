//! The environment variables that carry the recorder's options to the processes of a recorded program.

/// Directory of the run, absolute. A process without this variable is not recorded.
pub const RUN: &str = "RANKSCOPE_RUN";
/// Run id, as in the manifest.
pub const RUN_ID: &str = "RANKSCOPE_RUN_ID";
/// Global rank.
pub const RANK: &str = "RANKSCOPE_RANK";
/// Number of ranks in the job.
pub const WORLD_SIZE: &str = "RANKSCOPE_WORLD_SIZE";
/// Rank within the host, where known.
pub const LOCAL_RANK: &str = "RANKSCOPE_LOCAL_RANK";
/// Launcher that started the ranks, where known.
pub const LAUNCHER: &str = "RANKSCOPE_LAUNCHER";
/// Process that leads the session.
pub const AGENT_PID: &str = "RANKSCOPE_AGENT_PID";
/// Limit on the bytes of rows that each process writes.
pub const MAX_BYTES: &str = "RANKSCOPE_MAX_BYTES";
/// Milliseconds after which each process removes its parts.
pub const KEEP: &str = "RANKSCOPE_KEEP_MS";
/// File of the [`ControlPage`](crate::ControlPage).
pub const CONTROL: &str = "RANKSCOPE_CONTROL";
/// Steps to record, in the text form of [`Schedule`](crate::Schedule).
pub const SCHEDULE: &str = "RANKSCOPE_SCHEDULE";
