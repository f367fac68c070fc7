//! `ctl`: starts, stops or queries the recording of programs that `exec` runs on this host.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trace::terminal::{self, Form};

use super::cli::{Action, CtlArguments};
use super::endpoint::{Answer, Request, Status, ask, directories, sockets};
use crate::{Error, console};

/// Runs `ctl`, prints its output or its error under the name of `command`, and returns the exit code.
pub fn main(arguments: &CtlArguments, command: &str) -> ExitCode {
    let form = if arguments.json { Form::Json } else { Form::Text };
    match ctl(arguments).and_then(|text| console::print_output(text.as_bytes(), form)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => console::fail(command, &error, None),
    }
}

/// Runs `ctl` and returns the text to print.
///
/// # Errors
/// [`Error::Usage`]; [`Error::Control`] if there is no such run, more than one, or a rank that does not answer;
/// [`Error::Io`].
pub fn ctl(arguments: &CtlArguments) -> Result<String, Error> {
    let CtlArguments { action, duration, nccl_detail, json, .. } = arguments;
    if *action != Action::Start && (duration.is_some() || nccl_detail.is_some()) {
        return Err(Error::Usage("ctl: --duration and --nccl-detail need the action start".into()));
    }
    let ranks = choose(arguments)?;
    let nccl_detail = nccl_detail.map(|detail| detail.as_str().to_string());
    let request = match action {
        Action::Status => Request::Status {},
        Action::Start => Request::Start { nccl_detail, duration_s: *duration },
        Action::Stop => Request::Stop {},
    };
    let mut statuses = Vec::new();
    for (socket, before) in ranks {
        match (action, ask(&socket, &request)) {
            (Action::Status, _) => statuses.push(before),
            (_, Ok(Answer::Status(status))) => statuses.push(status),
            (_, Ok(Answer::Error(why))) => return Err(Error::Control(format!("rank {}: {why}", before.rank))),
            (_, Err(error)) => return Err(Error::Control(format!("rank {} does not answer: {error}", before.rank))),
        }
    }
    Ok(if *json { as_json(&statuses)? } else { as_text(&statuses) })
}

/// The run that the `exec` with this process id records.
///
/// # Errors
/// The exit code, after the error was printed under the name of `command`: this user has no such process on this host.
pub fn run_of_process(pid: u32, command: &str) -> Result<PathBuf, ExitCode> {
    let found = running().and_then(|(all, silent)| {
        let found = all.into_iter().find(|(_, status)| status.pid == pid);
        found.map(|(_, status)| status.run).ok_or_else(|| Error::Control(no_exec(pid) + &without_answer(silent)))
    });
    found.map_err(|error| console::fail(command, &error, None))
}

fn no_exec(pid: u32) -> String {
    format!("process {pid} is not a running exec of this user on this host")
}

/// Those that may be what is looked for, but say nothing.
fn without_answer(silent: usize) -> String {
    match silent {
        0 => String::new(),
        1 => ", and 1 process that listens does not answer".into(),
        _ => format!(", and {silent} processes that listen do not answer"),
    }
}

/// All ranks of this user on this host, and the number of processes that do not answer in time: other clients keep them busy, or they
/// are ending.
fn running() -> Result<(Vec<(PathBuf, Status)>, usize), Error> {
    let (mut ranks, mut silent) = (Vec::new(), 0);
    for socket in sockets(&directories())? {
        match ask(&socket, &Request::Status {}) {
            Ok(Answer::Status(status)) => ranks.push((socket, status)),
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => silent += 1,
            Ok(Answer::Error(_)) | Err(_) => {}
        }
    }
    Ok((ranks, silent))
}

/// The sockets and the status of the ranks that the arguments select, in the order of runs and ranks.
fn choose(arguments: &CtlArguments) -> Result<Vec<(PathBuf, Status)>, Error> {
    let out = match &arguments.out {
        None => None,
        Some(out) => Some(out.canonicalize().map_err(|source| Error::Io { path: out.clone(), source })?),
    };
    let (mut found, silent) = running()?;
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
            (Some(out), _) => format!("this user has no running exec on this host that records to {}", out.display()),
            (_, Some(pid)) => no_exec(pid),
            _ => "this user has no running exec on this host".into(),
        };
        return Err(Error::Control(what + &without_answer(silent)));
    };
    if runs.iter().any(|run| run != first) && arguments.action != Action::Status {
        let mut names: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
        names.dedup();
        return Err(Error::Control(format!(
            "several runs are being recorded; choose one with --out: {}",
            names.join(", ")
        )));
    }
    Ok(found)
}

pub(super) fn as_json(statuses: &[Status]) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(statuses);
    text.map(|text| text + "\n").map_err(|error| Error::Control(format!("the answer could not be printed: {error}")))
}

pub(super) fn as_text(statuses: &[Status]) -> String {
    let mut text = String::new();
    let mut last: Option<&Path> = None;
    for status in statuses {
        let Status { run, rank, world_size, pid, recording, nccl_detail, running_s, off_s, switches_in_s, .. } = status;
        if last.replace(run) != Some(run) {
            let run = run.display().to_string();
            let plural = if *world_size == 1 { "" } else { "s" };
            let _ = writeln!(text, "{}: {world_size} rank{plural}", terminal::line(&run));
        }
        let state = if *recording { "recording" } else { "not recording" };
        let _ = write!(text, "  rank {rank}, process {pid}: {state}, NCCL {}", terminal::line(nccl_detail));
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
