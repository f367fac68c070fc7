//! `rank-agent ctl`: switches recording of a program that `rank-agent exec` runs on this host, or says how it stands.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::Error;
use crate::exec::cli::NcclDetail;
use crate::exec::endpoint::{Answer, Request, Status, ask, directories, sockets};

/// Switches the recording of a program that `rank-agent exec` runs, or says how it stands.
///
/// It reaches the ranks of this host; the job's other ranks follow them.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CtlArguments {
    /// What to do
    #[arg(value_enum)]
    action: Action,

    /// The run's directory [default: the only run of this user on this host]
    #[arg(long, value_name = "RUN", conflicts_with = "pid")]
    out: Option<PathBuf>,

    /// The process of `rank-agent exec`, or of one of its ranks
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// start: record for so long only
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<f64>,

    /// start: how much NCCL is asked for from now on [default: as before]
    #[arg(long, value_enum)]
    nccl_detail: Option<NcclDetail>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  rank-agent exec --out run --delay 1e9 -- python train.py     record nothing until somebody says so
  rank-agent ctl start --out run --duration 30
  rank-agent ctl stop
  rank-agent ctl status --json

Exit codes: 0 done; 1 no such run, or more than one; 2 usage.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Record from now on
    Start,
    /// Record nothing from now on
    Stop,
    /// Say how it stands
    Status,
}

/// A length of time on the command line, in s.
///
/// # Errors
/// A sentence, if it is none.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds from 0 to 1e9".into()),
    }
}

/// Carries out the command; returns what to print.
///
/// # Errors
/// [`Error::Usage`]; [`Error::Control`] if there is no such run, more than one, or a rank that does not answer.
pub fn ctl(arguments: &CtlArguments) -> Result<String, Error> {
    let CtlArguments { action, duration, nccl_detail, json, .. } = arguments;
    if *action != Action::Start && (duration.is_some() || nccl_detail.is_some()) {
        return Err(Error::Usage("ctl: --duration and --nccl-detail are for start".into()));
    }
    let chosen = choose(arguments)?;
    let nccl_detail = nccl_detail.map(|detail| detail.as_str().to_string());
    let request = match action {
        Action::Status => Request::Status {},
        Action::Start => Request::Start { nccl_detail, duration_s: *duration },
        Action::Stop => Request::Stop {},
    };
    let mut now = Vec::new();
    for (socket, was) in chosen {
        match (action, ask(&socket, &request)) {
            (Action::Status, _) => now.push(was),
            (_, Ok(Answer::Status(status))) => now.push(status),
            (_, Ok(Answer::Error(why))) => return Err(Error::Control(format!("rank {}: {why}", was.rank))),
            (_, Err(error)) => return Err(Error::Control(format!("rank {} does not answer: {error}", was.rank))),
        }
    }
    Ok(if *json { as_json(&now)? } else { as_text(&now) })
}

/// The ranks that are meant, by rank.
fn choose(arguments: &CtlArguments) -> Result<Vec<(PathBuf, Status)>, Error> {
    let out = match &arguments.out {
        None => None,
        Some(out) => Some(out.canonicalize().map_err(|source| Error::Io { path: out.clone(), source })?),
    };
    // What does not answer is ending, or not ours.
    let mut found: Vec<(PathBuf, Status)> = sockets(&directories())
        .into_iter()
        .filter_map(|socket| match ask(&socket, &Request::Status {}) {
            Ok(Answer::Status(status)) => Some((socket, status)),
            _ => None,
        })
        .collect();
    if let Some(pid) = arguments.pid {
        found.retain(|(_, status)| status.pid == pid);
    }
    if let Some(out) = &out {
        found.retain(|(_, status)| status.run == *out);
    }
    found.sort_by(|(_, a), (_, b)| (&a.run, a.rank).cmp(&(&b.run, b.rank)));
    let runs: Vec<&Path> = found.iter().map(|(_, status)| &*status.run).collect();
    let Some(first) = runs.first() else {
        let what = match (&out, arguments.pid) {
            (Some(out), _) => format!("no rank-agent exec of this user on this host records to {}", out.display()),
            (_, Some(pid)) => format!("process {pid} is no rank-agent exec of this user on this host"),
            _ => "no rank-agent exec of this user runs on this host".into(),
        };
        return Err(Error::Control(what));
    };
    if runs.iter().any(|run| run != first) && arguments.action != Action::Status {
        let mut names: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
        names.dedup();
        return Err(Error::Control(format!(
            "several runs are being recorded; choose one by --out: {}",
            names.join(", ")
        )));
    }
    Ok(found)
}

fn as_json(now: &[Status]) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(now);
    text.map(|text| text + "\n").map_err(|error| Error::Control(format!("the answer could not be printed: {error}")))
}

fn as_text(now: &[Status]) -> String {
    let mut text = String::new();
    let mut last: Option<&Path> = None;
    for status in now {
        let Status { run, rank, world_size, pid, recording, nccl_detail, running_s, off_s, switches_in_s, .. } = status;
        if last.replace(run) != Some(run) {
            let _ = writeln!(text, "{}: {world_size} rank{}", run.display(), if *world_size == 1 { "" } else { "s" });
        }
        let state = if *recording { "recording" } else { "not recording" };
        let _ = write!(text, "  rank {rank}, process {pid}: {state}, NCCL {nccl_detail}");
        match running_s {
            Some(running_s) => drop(write!(text, "; {running_s:.1} s of the program, {off_s:.1} s not recorded")),
            None => text.push_str("; the program has not started yet"),
        }
        if let Some(switches_in_s) = switches_in_s {
            let what = if *recording { "stops" } else { "starts" };
            let _ = write!(text, "; {what} in {switches_in_s:.1} s");
        }
        text.push('\n');
    }
    text
}
