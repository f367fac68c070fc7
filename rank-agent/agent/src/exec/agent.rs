//! The same inside of a program that imports rankscope: no program is started, and the program's profiler records.
//!
//! ```text
//!  program's thread   start ── step ── step … window ends ── step … ── finish        never waits, except in finish
//!  agent's thread     meet ── run ── compare clocks ─ ticks ─ compare ─ ticks ─ compare ── end
//!  another thread     the wall clock against the rank's clock, every 0.1 s
//! ```
//!
//! No error reaches the program: it is kept as a problem, and counted in the run where there is one.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use launch::Identity;
use recorder::{Clock, Recorder, Session, lock};
use trace::command_line::{self, without_values};
use trace::{CLOCK_SOURCE, CounterRow, OmissionRow, PROFILER_ERROR_NS};

use super::endpoint::{Answer, Endpoint, Request, home, sockets, stem};
use super::join::{Joined, join, rank_of};
use super::steering::Answers;
use super::switch::{NcclDetail, Switch, TimeSchedule};
use super::sync::{Progress, Steps, Sync};
use crate::Error;
use crate::fabric::Stop;
use crate::fabric::agree::{JOB, RunPlace, RunRequest, host_hash};
use crate::fabric::ping::{INTERVAL, PingTree};

/// How a program's rank is recorded.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Directory for the run; it must be new or empty.
    pub out: PathBuf,
    /// The rank.
    pub identity: Identity,
    /// Address of rank 0, `host:port`; `None`: from the launcher's variables.
    pub rendezvous: Option<String>,
    /// Time to wait for the other ranks.
    pub join_timeout: Duration,
    /// What records, for the manifest.
    pub recorded_by: String,
}

/// The run of a rank that has met the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlace {
    /// Its directory.
    pub run: PathBuf,
    /// Its id.
    pub run_id: String,
    /// The session, which other processes of the rank join.
    pub session: String,
    /// Name of this host.
    pub host: String,
    /// Id of this boot of the host.
    pub boot_id: String,
    /// Domain of the rank's clock.
    pub clock_domain: String,
}

/// Records what a program's profiler does not: clocks, and orders of `ctl`.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    steps: Steps,
    switch: Switch,
    progress: Progress,
    stop: Stop,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    rank: i32,
    clock: Clock,
    place: Mutex<Option<AgentPlace>>,
    /// The reason why there is no run.
    failure: Mutex<Option<String>>,
    /// Problems that were not taken yet.
    problems: Mutex<Vec<String>>,
    /// Counter rows for the run.
    rows: Mutex<Vec<CounterRow>>,
    wall_clock: Mutex<Vec<(i64, i64, i64)>>,
    over: AtomicBool,
}

/// Interval of the comparisons with the wall clock.
const WALL_CLOCK_TICK: Duration = Duration::from_millis(100);
/// Comparisons with the wall clock that are kept. Beyond it, every second one of the older half is forgotten.
const WALL_CLOCK_KEPT: usize = 2048;
/// Problems that are kept; the program prints them.
const MAX_PROBLEMS: usize = 64;

impl Agent {
    /// Starts to meet the other ranks, in a thread of its own.
    ///
    /// # Errors
    /// [`Error::Spawn`].
    pub fn start(options: AgentOptions) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            rank: options.identity.rank,
            clock: Clock::system(),
            place: Mutex::default(),
            failure: Mutex::default(),
            problems: Mutex::default(),
            rows: Mutex::default(),
            wall_clock: Mutex::default(),
            over: AtomicBool::new(false),
        });
        shared.compare_with_wall_clock();
        let order = recorder::Order { record: false, ..Switch::first_order(TimeSchedule::default(), NcclDetail::Coll) };
        let switch = Switch::new(None, TimeSchedule::default(), order);
        let (steps, progress, stop) = (Steps::default(), Progress::default(), Stop::default());
        switch.begin();
        let sampling = shared.clone();
        recorder::spawn("rankscope-wall", move || sampling.sample()).map_err(Error::Spawn)?;
        let agent = Agent { shared, steps, switch, progress, stop, thread: Mutex::default() };
        let working = agent.working(options);
        let thread = recorder::spawn("rankscope-agent", working).map_err(Error::Spawn)?;
        *lock(&agent.thread) = Some(thread);
        Ok(agent)
    }

    fn working(&self, options: AgentOptions) -> impl FnOnce() + Send + 'static {
        let shared = self.shared.clone();
        let work = Work {
            shared: self.shared.clone(),
            steps: self.steps.clone(),
            switch: self.switch.clone(),
            progress: self.progress.clone(),
            stop: self.stop.clone(),
            options,
        };
        move || {
            if let Err(error) = work.run() {
                *lock(&shared.failure) = Some(error.to_string());
            }
        }
    }

    /// The run, once the ranks have met; `None` as long as they have not.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn place(&self) -> Result<Option<AgentPlace>, String> {
        match (lock(&self.shared.place).clone(), lock(&self.shared.failure).clone()) {
            (None, Some(why)) => Err(why),
            (place, _) => Ok(place),
        }
    }

    /// Takes the problems since the last call.
    pub fn take_problems(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.problems))
    }

    /// Notes the step that runs now.
    pub fn step(&self, step: u64) {
        self.steps.at(step);
    }

    /// Notes whether the profiler records. The clocks are compared when it ends.
    pub fn records(&self, records: bool) {
        self.steps.records(records);
    }

    /// Asks for a comparison of the clocks, at the next time at which no rank records.
    pub fn compare(&self) {
        self.steps.compare();
    }

    /// The last step that the ranks chose to begin to record at, on an order of `ctl` or of [`open`](Self::open).
    pub fn opens(&self) -> Option<u64> {
        self.steps.opens()
    }

    /// Orders all ranks to record from the same step on, as `ctl start` does.
    pub fn open(&self) {
        self.switch.by_hand(true, None, None);
    }

    /// Notes that the recording which was ordered has ended.
    pub fn opened(&self) {
        self.switch.by_hand(false, None, None);
    }

    /// Comparisons of the rank's clock with the wall clock until now: the rank's clock, UTC, and their duration, all in ns.
    pub fn wall_clock(&self) -> Vec<(i64, i64, i64)> {
        self.shared.compare_with_wall_clock();
        lock(&self.shared.wall_clock).clone()
    }

    /// Counts something that is missing in the run.
    pub fn omit(&self, what: &str, amount: u64, why: &str) {
        count_omission(&mut lock(&self.shared.rows), self.shared.rank, (what, why), amount);
    }

    /// Ends the recording of this rank: the clocks are compared a last time when all ranks have ended, or one has `failed`. Waits
    /// for that at most `patience`; then it goes on without the others, which is a problem. A second call does nothing.
    pub fn finish(&self, failed: bool, patience: Duration) {
        if failed {
            self.progress.failed();
        } else {
            self.progress.done();
        }
        self.switch.finish();
        let Some(thread) = lock(&self.thread).take() else { return };
        thread.thread().unpark();
        let until = Instant::now() + patience;
        let mut is_late = false;
        // After it was told to stop, the thread ends with its next exchange, which has a limit.
        while !thread.is_finished() && Instant::now() < until + 2 * WALL_CLOCK_TICK + Duration::from_secs(10) {
            if !is_late && Instant::now() >= until {
                is_late = true;
                self.stop.abandon();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.shared.over.store(true, Ordering::Relaxed);
        if thread.is_finished() {
            let _ = thread.join();
        } else {
            self.shared.problem("the agent's thread did not end; the run lacks its last rows".into());
        }
    }
}

impl Shared {
    fn problem(&self, text: String) {
        let mut problems = lock(&self.problems);
        if problems.len() < MAX_PROBLEMS {
            problems.push(text);
        }
    }

    /// Compares the rank's clock with the wall clock until the recording ends.
    fn sample(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(WALL_CLOCK_TICK);
            self.compare_with_wall_clock();
        }
    }

    fn compare_with_wall_clock(&self) {
        let sample = self.clock.utc_sample();
        let mut all = lock(&self.wall_clock);
        // Two threads compare: an older comparison than the last is of no use.
        if all.last().is_none_or(|last| last.0 < sample.0) {
            all.push(sample);
        }
        if all.len() > WALL_CLOCK_KEPT {
            let mut at = 0;
            all.retain(|_| {
                at += 1;
                at > WALL_CLOCK_KEPT / 2 || at % 2 == 1
            });
        }
    }
}

/// What the agent's thread works with.
struct Work {
    shared: Arc<Shared>,
    steps: Steps,
    switch: Switch,
    progress: Progress,
    stop: Stop,
    options: AgentOptions,
}

impl Work {
    fn run(&self) -> Result<(), Error> {
        let AgentOptions { out, identity, rendezvous, join_timeout, recorded_by } = &self.options;
        let given = (rendezvous.as_deref(), Some(out.as_path()));
        let mut joined = join(identity, given, *join_timeout, self.stop.clone())?;
        joined.note.take().into_iter().for_each(|note| self.shared.problem(note));
        let config = serde_json::Map::from_iter([
            (trace::RECORDED_BY.to_string(), recorded_by.as_str().into()),
            ("launcher".to_string(), identity.launcher.as_str().into()),
            (JOB.to_string(), joined.job.clone().into()),
        ]);
        let request = RunRequest {
            out: Some(out.clone()),
            command: without_values(command_line::texts().into_iter().map(Cow::Owned)),
            launcher: identity.launcher.as_str().into(),
            config,
            world_size: rank_of(identity.world_size),
        };
        let place = joined.run(&request)?;
        let options = recorder::Options {
            local_rank: identity.local_rank,
            launcher: Some(identity.launcher.as_str().into()),
            versions: [("rank-agent".into(), env!("CARGO_PKG_VERSION").into())].into(),
            session: Some(Session::lead()),
            ..recorder::Options::new(&place.path, &place.run_id, identity.rank, identity.world_size)
        };
        let known = known_place(&place, &options);
        let recorder = Recorder::start(options).map_err(Error::from);
        let recorder = joined.all_succeed(recorder)?;
        let endpoint = self.listen(&place);
        let ended = self.compare(&mut joined, &recorder, known);
        drop(endpoint);
        self.end(&recorder, joined.apart, ended);
        Ok(())
    }

    /// Compares the clocks until all ranks have ended. The run is known to the program after the first comparison.
    fn compare(&self, joined: &mut Joined, recorder: &Recorder, known: AgentPlace) -> Result<u64, (u64, Error)> {
        let sync = joined.together(|control| {
            let (tree, _) = PingTree::for_fabric(&**control, host_hash())?;
            let sync = Sync {
                control: control.clone(),
                tree,
                recorder: recorder.clone(),
                every: Some(INTERVAL),
                progress: self.progress.clone(),
                switch: self.switch.clone(),
                steps: self.steps.clone(),
                error_ns: PROFILER_ERROR_NS,
            };
            sync.burst().map(|()| sync)
        });
        *lock(&self.shared.place) = Some(known);
        sync.map_err(|error| (0, error))?.run()
    }

    /// Answers `ctl`. Without it, `ctl` cannot reach this rank, which is a problem.
    fn listen(&self, place: &RunPlace) -> Option<Endpoint> {
        let answers = Answers {
            switch: self.switch.clone(),
            run: place.path.canonicalize().unwrap_or_else(|_| place.path.clone()),
            run_id: place.run_id.clone(),
            rank: self.options.identity.rank,
            world_size: self.options.identity.world_size,
        };
        let answer = move |request: Request| {
            match request {
            Request::Start { nccl_detail: None, duration_s: None } | Request::Stop {} | Request::Status {} => {
                answers.answer(request)
            }
            Request::Start { .. } => Answer::Error(
                "torch.profiler records, for as many steps as the program says: --duration and --nccl-detail do not apply"
                    .into(),
            ),
        }
        };
        let made = home().and_then(|directory| {
            // Removes what killed processes left; an error leaves it to the next process.
            let _ = sockets(std::slice::from_ref(&directory));
            Endpoint::start(&stem(&directory), answer).map_err(|error| error.to_string())
        });
        made.map_err(|why| self.shared.problem(format!("ctl cannot reach this rank: {why}"))).ok()
    }

    /// Writes what is missing, and ends the recording.
    fn end(&self, recorder: &Recorder, apart: Option<String>, ended: Result<u64, (u64, Error)>) {
        let stopped = ended.err().map(|(bursts, error)| {
            let why = match error {
                Error::Abandoned => "this rank ended, and other ranks did not end in time".to_string(),
                error => format!("the comparison of clocks stopped: {error}"),
            };
            (bursts + 1, why)
        });
        let mut rows = std::mem::take(&mut *lock(&self.shared.rows));
        for (bursts, why) in stopped.into_iter().chain(apart.map(|why| (0, why))) {
            self.shared.problem(format!("{why}; the guaranteed clock error is larger, or there is none"));
            rows.push(CounterRow {
                rank: self.shared.rank,
                source: CLOCK_SOURCE.into(),
                recorded: i64::try_from(bursts).unwrap_or(i64::MAX),
                why: Some(why.into()),
                ..CounterRow::default()
            });
        }
        if let Err(error) = recorder.rows(rows) {
            self.shared.problem(format!("the run does not list its missing rows: {error}"));
        }
        if let Some(why) = recorder.finish().failure {
            self.shared.problem(format!("the run is incomplete: {why}"));
        }
    }
}

/// Most omissions that are listed one by one. A job that runs for weeks may lose something at each step.
const MAX_OMISSIONS: usize = 100;

/// Adds `amount` to the row that counts the omission `what` for the reason `why`. Reasons beyond the limit share a row.
fn count_omission(rows: &mut Vec<CounterRow>, rank: i32, (what, why): (&str, &str), amount: u64) {
    let amount = i64::try_from(amount).unwrap_or(i64::MAX);
    let place = |rows: &[CounterRow], why: &str| {
        let is_of = |row: &CounterRow| row.kept_omission().is_some_and(|(_, item)| item == what);
        rows.iter().position(|row| is_of(row) && row.why.as_deref() == Some(why))
    };
    let why =
        if rows.len() < MAX_OMISSIONS || place(rows, why).is_some() { why } else { "more reasons than are listed" };
    if let Some(known) = place(rows, why) {
        rows[known].dropped = rows[known].dropped.saturating_add(amount);
        return;
    }
    rows.push(CounterRow::of_omission(rank, &OmissionRow::lost(what, why).amount(amount)));
}

fn known_place(place: &RunPlace, options: &recorder::Options) -> AgentPlace {
    AgentPlace {
        run: place.path.clone(),
        run_id: place.run_id.clone(),
        session: options.session.as_ref().map(|session| session.id().to_string()).unwrap_or_default(),
        host: options.host.clone(),
        boot_id: recorder::boot_id(),
        clock_domain: options.clock.domain(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omissions_of_one_reason_are_one_row_and_rows_are_bounded() {
        let mut rows = Vec::new();
        for step in 0..1000 {
            count_omission(&mut rows, 3, ("windows", "the disk was full"), 2);
            count_omission(&mut rows, 3, ("windows", &format!("step {step} came too late")), 1);
        }
        assert_eq!((rows[0].rank, rows[0].dropped), (3, 2000));
        assert_eq!(rows.len(), MAX_OMISSIONS + 1);
        assert_eq!(rows.iter().map(|row| row.dropped).sum::<i64>(), 3000, "every window is counted");
        assert_eq!(rows[MAX_OMISSIONS].why.as_deref(), Some("more reasons than are listed"));
    }
}
