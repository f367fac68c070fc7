//! A session: the processes that record one rank together, such as `rank-agent exec`, the program that it starts, and
//! the children of that program.
//!
//! The first process leads the session: it claims the rank. The others join it: each has its own part numbers, its own
//! ids and its own row in `ranks`. They read the session from environment variables.

use crate::clock::boot_id;

/// Membership of a process in the session of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Session {
    /// This process claims the rank before any other process joins.
    Lead {
        /// Equal for all processes of the session.
        id: String,
    },
    /// This process records beside the leader.
    Join {
        /// Equal for all processes of the session.
        id: String,
    },
}

impl Session {
    /// A session that this process leads.
    pub fn lead() -> Self {
        Self::Lead { id: session_id(std::process::id()) }
    }

    /// The session that process `agent_pid` of this host leads.
    pub fn join(agent_pid: u32) -> Self {
        Self::Join { id: session_id(agent_pid) }
    }

    /// The session's id: boot id and process id of the leader. The kernel may use a process id again, but never for the
    /// same run and rank: a leader refuses a rank that the run already holds.
    pub fn id(&self) -> &str {
        match self {
            Self::Lead { id } | Self::Join { id } => id,
        }
    }

    /// Whether this process joins a session that another process leads.
    pub fn joins(&self) -> bool {
        matches!(self, Self::Join { .. })
    }
}

fn session_id(leader: u32) -> String {
    format!("{} {leader}", boot_id()).trim_start().to_string()
}
