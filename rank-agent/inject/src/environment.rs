//! The options of the recorder, read from environment variables.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use recorder::{CollectiveDetail, Options, Schedule, Session, variables};

use crate::error::Error;

/// Environment variable with the detail of NCCL's events.
const DETAIL_VARIABLE: &str = "RANKSCOPE_NCCL_DETAIL";

/// The options of this process; `None` if it is not to be recorded.
///
/// # Errors
/// [`Error::Variable`].
pub(crate) fn options() -> Result<Option<Options>, Error> {
    options_from(|name| std::env::var_os(name))
}

/// The detail of NCCL's events.
///
/// # Errors
/// [`Error::Variable`].
pub(crate) fn nccl_detail() -> Result<CollectiveDetail, Error> {
    let Some(value) = std::env::var_os(DETAIL_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(CollectiveDetail::default());
    };
    let value = value.to_string_lossy().into_owned();
    let why = "it must be coll, channels or proxy";
    CollectiveDetail::from_word(&value).ok_or(Error::Variable { name: DETAIL_VARIABLE, value, why })
}

fn options_from(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Options>, Error> {
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
    Ok(Some(Options {
        local_rank: number(&get, variables::LOCAL_RANK)?,
        launcher: get(variables::LAUNCHER).map(|value| value.to_string_lossy().into_owned()),
        session: Some(Session::join(agent_pid)),
        max_bytes: number(&get, variables::MAX_BYTES)?,
        keep: number(&get, variables::KEEP)?.map(Duration::from_millis),
        control: get(variables::CONTROL).map(PathBuf::from),
        schedule: schedule(&get)?,
        ..Options::new(run, run_id, rank, world_size)
    }))
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

/// For fuzzing: any values are options or an error, and options that a child gets from this process are the same. The
/// bytes are the values of the variables, one a line.
///
/// # Panics
/// If they are not.
#[cfg(feature = "fuzzing")]
pub fn check_any_variables(bytes: &[u8]) {
    use std::os::unix::ffi::OsStringExt;
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let names = [
        variables::RUN,
        variables::RUN_ID,
        variables::RANK,
        variables::WORLD_SIZE,
        variables::AGENT_PID,
        variables::LOCAL_RANK,
        variables::LAUNCHER,
        variables::MAX_BYTES,
        variables::KEEP,
        variables::CONTROL,
        variables::SCHEDULE,
    ];
    let set: Vec<(&str, OsString)> =
        names.iter().filter_map(|name| Some((*name, OsString::from_vec(lines.next()?.to_vec())))).collect();
    let read = |set: &[(&str, OsString)]| {
        options_from(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone()))
    };
    match read(&set) {
        Ok(Some(options)) => {
            let of_child = options.variables();
            let child = read(&of_child).map(|child| child.map(|child| child.variables()));
            assert!(matches!(&child, Ok(Some(child)) if *child == of_child), "{of_child:?} became {child:?}");
        }
        Ok(None) => assert!(set.first().is_none_or(|(_, run)| run.is_empty())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Options>, Error> {
        options_from(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_variables_of_an_agent_give_the_same_options() {
        let agent = Options {
            local_rank: Some(1),
            launcher: Some("slurm".into()),
            max_bytes: Some(1 << 40),
            control: Some("/tmp/page".into()),
            schedule: Some(Schedule { wait: 1, warmup: 0, active: 5, repeat: 2, skip_first: 3 }),
            ..Options::new("/tmp/run", "id", 3, 4)
        };
        let set = agent.variables();
        let child = options_from(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()));
        let child = child.unwrap().unwrap();
        assert_eq!((&child.run, &*child.run_id, child.rank, child.world_size), (&agent.run, "id", 3, 4));
        assert_eq!((child.local_rank, child.launcher, child.max_bytes), (Some(1), Some("slurm".into()), Some(1 << 40)));
        assert_eq!((&child.control, child.schedule), (&agent.control, agent.schedule));
        let session = child.session.unwrap();
        assert_eq!(session.id(), Session::lead().id());
        assert!(session.joins() && !Session::lead().joins());
    }

    #[test]
    fn missing_and_invalid_variables_are_errors_only_with_a_run() {
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
