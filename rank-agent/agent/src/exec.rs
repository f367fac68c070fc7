//! `exec`: records an unmodified program.
//!
//! ```text
//!  launcher ─▶ rankscope exec ─▶ program, with CUDA_INJECTION64_PATH and NCCL_PROFILER_PLUGIN
//!                 │ meets the other ranks, compares clocks        │ librankscope_inject.so
//!                 ▼                                               ▼
//!              ranks, clock_samples, counters                  events, collectives, …        one run
//! ```
//!
//! Wrong options, a run that exists and a disk that fails are errors before the program starts, so that no job computes for
//! hours without being recorded. Ranks that do not meet, and a network that fails, are no error: each group that has met is recorded,
//! and the run states whose clocks were not compared. After the start a problem never stops the program: it is printed, and counted
//! in the run.

mod agent;
mod child;
mod cli;
pub mod ctl;
pub mod doctor;
mod endpoint;
mod environment;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod join;
mod secret;
mod steering;
mod switch;
mod sync;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use launch::Identity;
use recorder::{Recorder, Summary};
use trace::command_line::{self, without_values};
use trace::{CLOCK_SOURCE, CUT_SOURCE, CounterRow};

use crate::error::signal_text;
use crate::fabric::Stop;
use crate::fabric::agree::{JOB, RunPlace, RunRequest, host_hash};
use crate::fabric::ping::PingTree;
use crate::{Error, console};
use child::{Forwarder, Target};
use environment::{Environment, ExecContext, find_library};
use join::{Joined, join, rank_of};
use steering::{Steering, parts_of, program_joined, unclosed};
use switch::Switch;
use sync::{Progress, Steps, Sync};

pub use agent::{Agent, AgentOptions, AgentPlace};
pub use cli::{CtlArguments, ExecArguments};

/// Runs `exec`, prints messages and errors under the name of `command`, and returns the program's exit code.
pub fn main(arguments: &ExecArguments, command: &'static str) -> ExitCode {
    let identity = match Identity::from_env(&|name| std::env::var(name).ok()) {
        Ok(identity) => identity,
        Err(error) => return console::fail(command, &Error::from(error), None),
    };
    match exec(arguments, &identity, command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => console::fail(command, &error, Some(&identity)),
    }
}

/// Runs the program and returns its exit code.
///
/// # Errors
/// If the run cannot be created, or the program cannot be started. Later problems are no errors.
fn exec(arguments: &ExecArguments, identity: &Identity, command: &'static str) -> Result<u8, Error> {
    let target = Target::default();
    let _forwarder = Forwarder::start(target.clone())?;
    let exec = Exec { arguments, identity, command, target };
    let mut joined = exec.join()?;
    let request = RunRequest {
        out: arguments.out.clone(),
        command: exec.command_line(),
        launcher: identity.launcher.as_str().into(),
        config: exec.config(joined.job.clone()),
        world_size: rank_of(identity.world_size),
    };
    let place = joined.run(&request)?;
    let library = find_library(std::env::var_os("RANKSCOPE_INJECT_LIB"), std::env::current_exe().ok().as_deref());
    let mut steering = joined.all_succeed(Steering::prepare(arguments))?;
    let recording = recorder::Options { control: steering.page.clone(), ..exec.recording(&place) };
    let context = ExecContext { recording: &recording, detail: arguments.nccl_detail, library: &library };
    let environment = Environment::new(&context, &|name| std::env::var_os(name));
    // --max-bytes and --keep limit the program's rows. This process writes few rows, and the analysis needs all of them.
    let recorder = Recorder::start(recorder::Options { max_bytes: None, keep: None, ..recording }).map_err(Error::from);
    let recorder = joined.all_succeed(recorder)?;
    steering.listen(&place, identity);
    exec.record(joined, &place, &environment, &recorder, steering)
}

struct Exec<'a> {
    arguments: &'a ExecArguments,
    identity: &'a Identity,
    /// The command's name in messages.
    command: &'static str,
    target: Target,
}

impl Exec<'_> {
    /// Prints a message that concerns the whole job; rank 0 only.
    fn say(&self, text: &str) {
        if self.identity.rank == 0 && !self.arguments.quiet {
            console::print(self.command, text);
        }
    }

    /// Prints a problem of this rank.
    fn warn(&self, text: &str) {
        match self.identity.world_size {
            1 => console::print(self.command, text),
            _ => console::print(self.command, &format!("rank {}: {text}", self.identity.rank)),
        }
    }

    /// Prints that ranks have not met, what that means, and what to do.
    fn warn_apart(&self, apart: &str, place: &RunPlace) {
        let names =
            if self.arguments.out.is_some() { "" } else { "; give --out, or such ranks record to different runs" };
        self.warn(&format!(
            "{apart}; the program runs and is recorded to {}. To compare all clocks, let all hosts reach this address \
             (--rendezvous HOST:PORT), or wait longer (--join-timeout SECONDS){names}",
            place.shown.display()
        ));
    }

    fn join(&self) -> Result<Joined, Error> {
        let timeout = Duration::from_secs(self.arguments.join_timeout.into());
        let stop = Stop::default();
        self.target.interrupt(Some(stop.clone()));
        let given = (self.arguments.rendezvous.as_deref(), self.arguments.out.as_deref());
        let joined = join(self.identity, given, timeout, stop);
        self.target.interrupt(None);
        let joined = joined?;
        if let Some(note) = &joined.note {
            self.warn(note);
        }
        Ok(joined)
    }

    /// The program and its arguments, as the run shows them to all who may read it.
    fn program(&self) -> Vec<String> {
        let words = self.arguments.program.iter().map(|word| word.to_string_lossy());
        if self.arguments.record_command { words.map(Cow::into_owned).collect() } else { without_values(words) }
    }

    fn command_line(&self) -> Vec<String> {
        let mut words = command_line::texts();
        words.truncate(words.len().saturating_sub(self.arguments.program.len()));
        words.extend(self.program());
        words
    }

    fn config(&self, job: Option<String>) -> serde_json::Map<String, serde_json::Value> {
        serde_json::Map::from_iter([
            ("program".into(), self.program().into()),
            ("launcher".into(), self.identity.launcher.as_str().into()),
            ("nccl_detail".into(), self.arguments.nccl_detail.as_str().into()),
            ("ping_every_s".into(), self.arguments.ping_every.into()),
            ("schedule".into(), self.arguments.schedule.map(|schedule| schedule.to_string()).into()),
            ("paused".into(), self.arguments.paused.into()),
            ("delay_s".into(), self.arguments.delay.into()),
            ("duration_s".into(), self.arguments.duration.into()),
            ("keep_s".into(), self.arguments.keep.map(|keep| keep.as_secs_f64()).into()),
            (JOB.into(), job.into()),
        ])
    }

    fn recording(&self, place: &RunPlace) -> recorder::Options {
        let Identity { rank, world_size, local_rank, launcher } = *self.identity;
        recorder::Options {
            local_rank,
            launcher: Some(launcher.as_str().into()),
            versions: BTreeMap::from([("rank-agent".into(), env!("CARGO_PKG_VERSION").into())]),
            // The program and its children join this session through the injected library.
            session: Some(recorder::Session::lead()),
            max_bytes: self.arguments.max_bytes,
            keep: self.arguments.keep,
            schedule: self.arguments.schedule,
            ..recorder::Options::new(&place.path, &place.run_id, rank, world_size)
        }
    }

    fn record(
        &self,
        mut joined: Joined,
        place: &RunPlace,
        environment: &Environment,
        recorder: &Recorder,
        mut steering: Steering,
    ) -> Result<u8, Error> {
        let progress = Progress::default();
        let sync = joined.together(|control| {
            let (tree, _) = PingTree::for_fabric(&**control, host_hash())?;
            let sync = Sync {
                control: control.clone(),
                tree,
                recorder: recorder.clone(),
                every: self.arguments.ping_every(),
                progress: progress.clone(),
                switch: steering.switch.clone(),
                steps: Steps::default(),
                error_ns: 0,
            };
            sync.burst().map(|()| sync)
        })?;
        if let Some(apart) = &joined.apart {
            self.warn_apart(apart, place);
        }
        if self.arguments.paused {
            let shown = place.shown.display();
            self.say(&format!("nothing is recorded until: rankscope ctl start --out {shown}"));
        }
        environment.problems.iter().for_each(|problem| self.say(problem));
        if let Some(why) = &steering.problem {
            self.warn(&format!("ctl cannot reach this rank: {why}"));
        }
        let switch = steering.switch.clone();
        let schedule = std::thread::Builder::new().name("rankscope-schedule".into()).spawn(move || switch.run());
        let schedule = schedule.map_err(Error::Spawn)?;
        let meeting = std::thread::Builder::new().name("rankscope-clocks".into()).spawn(move || sync.run());
        let meeting = meeting.map_err(Error::Spawn)?;
        let started = child::start(&self.arguments.program, &environment.variables, &self.target);
        steering.switch.begin();
        let ended = started.and_then(|program| child::wait(program, &self.target));
        steering.finish();
        match &ended {
            Ok(status) if status.success() => progress.done(),
            _ => progress.failed(),
        }
        meeting.thread().unpark();
        while !meeting.is_finished() {
            if self.target.pending().is_some() {
                // A signal came while this rank waits for the other ranks' programs.
                progress.failed();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let synced = meeting.join().unwrap_or_else(|_| Err((0, Error::EngineGone)));
        steering.switch.close();
        // The thread returns at once and has no result.
        let _ = schedule.join();
        let mut rows = self.explanations(place, environment, &synced, &ended, &steering.switch);
        rows.extend(joined.apart.map(|why| self.counter(CLOCK_SOURCE, 0, why)));
        if let Err(error) = recorder.rows(rows) {
            self.warn(&format!("the run does not list its missing rows: {error}"));
        }
        let summary = recorder.finish();
        let status = ended?;
        self.end(place, &summary, status);
        Ok(child::exit_code(status))
    }

    /// Counter rows that explain missing data.
    fn explanations(
        &self,
        place: &RunPlace,
        environment: &Environment,
        synced: &Result<u64, (u64, Error)>,
        ended: &Result<ExitStatus, Error>,
        switch: &Switch,
    ) -> Vec<CounterRow> {
        let mut rows = Vec::new();
        if let Err((bursts, error)) = synced {
            // Plus the burst before the program.
            let why = format!("the comparison of clocks stopped: {error}");
            self.warn(&format!("{why}; the clock error of later times is larger"));
            rows.push(self.counter(CLOCK_SOURCE, bursts + 1, why));
        }
        rows.extend(switch.row(self.identity.rank));
        rows.extend(ended.as_ref().ok().and_then(ended_by_signal).map(|why| self.counter(CUT_SOURCE, 0, why)));
        if !has_rows(&place.path, self.identity.rank) {
            let why = match ended {
                // Printed as the error of this command.
                Err(error) => Some(error.to_string()),
                Ok(_) => self.why_empty(&place.path, environment, switch),
            };
            rows.extend(why.map(|why| self.counter("inject", 0, why)));
        }
        rows
    }

    /// A counter row that states a reason.
    fn counter(&self, source: &str, recorded: u64, why: String) -> CounterRow {
        CounterRow {
            rank: self.identity.rank,
            source: source.into(),
            recorded: i64::try_from(recorded).unwrap_or(i64::MAX),
            why: Some(why.into()),
            ..CounterRow::default()
        }
    }

    /// The reason why the program left no rows; `None`: recording was off, which another row explains.
    fn why_empty(&self, run: &Path, environment: &Environment, switch: &Switch) -> Option<String> {
        // Printed before the program started.
        if let Some(problem) = environment.problems.first() {
            return Some(problem.clone());
        }
        if let Some(why) = unclosed(run, self.identity.rank) {
            // Printed at the end.
            return Some(why);
        }
        let why = match (program_joined(run, self.identity.rank), switch.was_on()) {
            (false, _) => "the program loaded neither CUDA nor NCCL, so there was nothing to record",
            (true, true) => "the program loaded CUDA or NCCL, but made no call that is recorded",
            (true, false) => return None,
        };
        self.say(why);
        Some(why.into())
    }

    fn end(&self, place: &RunPlace, summary: &Summary, status: ExitStatus) {
        if let Some(why) = &summary.failure {
            self.warn(&format!("the run is incomplete: {why}"));
        }
        if let Some(why) = unclosed(&place.path, self.identity.rank) {
            self.warn(&why);
        }
        let shown = place.shown.display();
        let cut = ended_by_signal(&status).map(|cut| cut + "; ").unwrap_or_default();
        self.say(&format!("{cut}recorded to {shown}; next: rankscope analyze {shown}"));
    }
}

/// Which signal ended the program, in words.
fn ended_by_signal(status: &ExitStatus) -> Option<String> {
    status.signal().map(|signal| format!("signal {} ended the program", signal_text(signal)))
}

/// Whether the injected library has written rows of this rank.
fn has_rows(run: &Path, rank: i32) -> bool {
    ["events", "collectives", "comms", "memory"].iter().any(|table| parts_of(run, table, rank) > 0)
}
