//! Several processes that record one rank together: `rank-agent exec`, the program it starts, and that one's children.
//!
//! The first process leads: it claims the rank. The others join: each has part numbers and ids of its own, and its own
//! row in `ranks`. What they are told, they are told by environment variables.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::clock::boot_id;
use crate::{Error, Options, Schedule};

/// The environment variables from which a process of a recorded program learns what to do.
pub mod variables {
    /// The run's directory, absolute. Without it nothing is recorded.
    pub const RUN: &str = "RANKSCOPE_RUN";
    /// Run id, as in the manifest.
    pub const RUN_ID: &str = "RANKSCOPE_RUN_ID";
    /// Global rank.
    pub const RANK: &str = "RANKSCOPE_RANK";
    /// Ranks in the job.
    pub const WORLD_SIZE: &str = "RANKSCOPE_WORLD_SIZE";
    /// Rank within the host, where known.
    pub const LOCAL_RANK: &str = "RANKSCOPE_LOCAL_RANK";
    /// What started the ranks, where known.
    pub const LAUNCHER: &str = "RANKSCOPE_LAUNCHER";
    /// Process that leads the session.
    pub const AGENT_PID: &str = "RANKSCOPE_AGENT_PID";
    /// Bytes of rows that each process may write.
    pub const MAX_BYTES: &str = "RANKSCOPE_MAX_BYTES";
    /// File of the page that says when to record, and how much.
    pub const CONTROL: &str = "RANKSCOPE_CONTROL";
    /// Which marked steps are recorded, as [`Schedule`](crate::Schedule) is written.
    pub const SCHEDULE: &str = "RANKSCOPE_SCHEDULE";
}

/// A process's part in the session of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Session {
    /// The process that claims the rank, before any other joins.
    Lead {
        /// Equal for all processes of the session.
        id: String,
    },
    /// A process that records beside it.
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

    /// Its id: boot id and process id of the leader. A process id may come again, but not with the same run and rank:
    /// the leader refuses a rank that is there already.
    pub fn id(&self) -> &str {
        match self {
            Self::Lead { id } | Self::Join { id } => id,
        }
    }

    pub(crate) fn joins(&self) -> bool {
        matches!(self, Self::Join { .. })
    }
}

fn session_id(leader: u32) -> String {
    format!("{} {leader}", boot_id()).trim_start().to_string()
}

impl Options {
    /// What the environment says to a process of a recorded program; `None` if it says nothing.
    ///
    /// # Errors
    /// [`Error::Variable`].
    pub fn from_env() -> Result<Option<Self>, Error> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), from any source of variables.
    ///
    /// # Errors
    /// [`Error::Variable`].
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, Error> {
        let get = |name| get(name).filter(|value| !value.is_empty());
        let Some(run) = get(variables::RUN) else { return Ok(None) };
        let run = PathBuf::from(run);
        if !run.is_absolute() {
            let value = run.display().to_string();
            return Err(Error::Variable { name: variables::RUN, value, why: "it must be an absolute path" });
        }
        let run_id = text(&get, variables::RUN_ID)?;
        let rank: i32 = required(&get, variables::RANK)?;
        let world_size: i32 = required(&get, variables::WORLD_SIZE)?;
        if !(0..world_size).contains(&rank) {
            let why = "it must be a number from 0 to RANKSCOPE_WORLD_SIZE - 1";
            return Err(Error::Variable { name: variables::RANK, value: rank.to_string(), why });
        }
        let agent_pid: u32 = required(&get, variables::AGENT_PID)?;
        Ok(Some(Self {
            local_rank: number(&get, variables::LOCAL_RANK)?,
            launcher: get(variables::LAUNCHER).map(|value| value.to_string_lossy().into_owned()),
            session: Some(Session::join(agent_pid)),
            max_bytes: number(&get, variables::MAX_BYTES)?,
            control: get(variables::CONTROL).map(PathBuf::from),
            schedule: schedule(&get)?,
            ..Self::new(run, run_id, rank, world_size)
        }))
    }

    /// The variables from which a child of this process reads these options again, to join this session.
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
        // Empty rather than not at all: this process may itself be part of another session.
        let schedule = self.schedule.map(|schedule| schedule.to_string()).unwrap_or_default();
        set.push((variables::SCHEDULE, schedule.into()));
        set.push((variables::CONTROL, self.control.clone().unwrap_or_default().into()));
        set
    }
}

fn text(get: &impl Fn(&'static str) -> Option<OsString>, name: &'static str) -> Result<String, Error> {
    let value = get(name).ok_or(Error::Variable { name, value: String::new(), why: "it must be set" })?;
    Ok(value.to_string_lossy().into_owned())
}

fn schedule(get: &impl Fn(&'static str) -> Option<OsString>) -> Result<Option<Schedule>, Error> {
    let name = variables::SCHEDULE;
    let Some(value) = get(name).map(|value| value.to_string_lossy().into_owned()) else { return Ok(None) };
    let why = "it must be a schedule such as wait=1,warmup=2,active=5";
    value.parse().map(Some).map_err(|_| Error::Variable { name, value, why })
}

fn number<T: std::str::FromStr>(
    get: &impl Fn(&'static str) -> Option<OsString>,
    name: &'static str,
) -> Result<Option<T>, Error> {
    let Some(value) = get(name) else { return Ok(None) };
    let value = value.to_string_lossy().into_owned();
    match value.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::Variable { name, value, why: "it must be a number" }),
    }
}

fn required<T: std::str::FromStr>(
    get: &impl Fn(&'static str) -> Option<OsString>,
    name: &'static str,
) -> Result<T, Error> {
    number(get, name)?.ok_or(Error::Variable { name, value: String::new(), why: "it must be set" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Options>, Error> {
        Options::from_variables(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn a_child_reads_what_its_agent_wrote() {
        let agent = Options {
            local_rank: Some(1),
            launcher: Some("slurm".into()),
            max_bytes: Some(1 << 40),
            control: Some("/tmp/page".into()),
            schedule: Some(Schedule { wait: 1, warmup: 0, active: 5, repeat: 2, skip_first: 3 }),
            ..Options::new("/tmp/run", "id", 3, 4)
        };
        let set = agent.variables();
        let child = Options::from_variables(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()));
        let child = child.unwrap().unwrap();
        assert_eq!((&child.run, &*child.run_id, child.rank, child.world_size), (&agent.run, "id", 3, 4));
        assert_eq!((child.local_rank, child.launcher, child.max_bytes), (Some(1), Some("slurm".into()), Some(1 << 40)));
        assert_eq!((&child.control, child.schedule), (&agent.control, agent.schedule));
        let session = child.session.unwrap();
        assert_eq!(session.id(), Session::lead().id());
        assert!(session.joins() && !Session::lead().joins());
    }

    #[test]
    fn silence_is_no_error_but_half_a_sentence_is() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("RANKSCOPE_RUN", ""), ("RANKSCOPE_RANK", "x")]).unwrap().is_none());
        let whole = [
            ("RANKSCOPE_RUN", "/tmp/run"),
            ("RANKSCOPE_RUN_ID", "id"),
            ("RANKSCOPE_RANK", "0"),
            ("RANKSCOPE_WORLD_SIZE", "1"),
            ("RANKSCOPE_AGENT_PID", "7"),
        ];
        assert!(read(&whole).unwrap().is_some());
        for missing in 1..whole.len() {
            let pairs: Vec<_> = whole.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, p)| *p).collect();
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains(whole[missing].0) && error.contains("must be set"), "{error}");
        }
        for (name, value) in [
            ("RUN", "run"),
            ("RANK", "1"),
            ("RANK", "-1"),
            ("AGENT_PID", "x"),
            ("MAX_BYTES", "1G"),
            ("SCHEDULE", "wait=1"),
        ] {
            let name = format!("RANKSCOPE_{name}");
            let mut pairs: Vec<(&str, &str)> = whole.iter().filter(|(n, _)| *n != name).copied().collect();
            pairs.push((&name, value));
            let error = read(&pairs).unwrap_err().to_string();
            assert!(error.contains(&name) && error.contains(value), "{error}");
        }
    }
}
