//! Follows a run that is being written: judges its newest steps by the rule of `analyze`, and raises alarms.
//!
//! ```text
//!  steps of the run   ─────────────────────[ window: 6 s of steps ]··· not on disk on all ranks yet
//!  each refresh        opens new shards → chooses the window → analyzes it → alarms
//! ```
//!
//! Only shards that can hold rows of the window are read, so a refresh costs the same after days as after a minute.

mod alarm;
mod ending;
mod hang;
mod steps;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use trace::files::is_temporary;
use trace::{
    CUT_SOURCE, CounterRow, Growing, OmissionKind, Problem, RankRow, Row, Shard, StepRow, io_reason, place,
    rows_from_batch,
};

use crate::analyze;
use alarm::{Alarms, Cause};
use ending::Processes;
use formats::run_source::RunSource;
use hang::Hangs;
use model::Error;
use model::analysis::{Analysis, RankIdentity, VerdictKind};
use model::options::Options;
pub use model::watch::{Event, Phase, SlowRank, State};
use steps::Steps;

pub use alarm::{CLEAR_AFTER, RAISE_AFTER};
pub use steps::WINDOW;

/// Time without a new shard after which the run counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// The most rows of `events` that are held of a rank.
const MAX_EVENT_ROWS: u64 = 1 << 20;
/// The most problems of shards that are listed one by one; the others are counted.
const MAX_TOLD: u64 = 20;

/// Follows one run.
#[derive(Debug)]
pub struct Watch {
    growing: Option<Growing>,
    state: State,
    steps: Steps,
    alarms: Alarms,
    hangs: Hangs,
    processes: Processes,
    /// Damaged shards that are counted and still held.
    counted: Vec<trace::Text>,
    last_shard: Duration,
}

impl Watch {
    /// A watch of a run, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self {
            growing: None,
            state: State::new(path),
            steps: Steps::default(),
            alarms: Alarms::default(),
            hangs: Hangs::default(),
            processes: Processes::default(),
            counted: Vec::new(),
            last_shard: Duration::ZERO,
        }
    }

    /// The state after the last refresh.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Reads what is new and returns what has changed. `now` is the time since the watch began.
    ///
    /// # Errors
    /// If the path cannot become a run: it is a file, or its manifest cannot be read.
    pub fn refresh(&mut self, now: Duration) -> Result<Vec<Event>, Error> {
        if matches!(self.state.phase, Phase::Ended { .. }) {
            return Ok(Vec::new());
        }
        let mut events = Vec::new();
        let Some(mut growing) = self.open()? else { return Ok(events) };
        let shards = growing.refresh();
        self.take(&shards, &mut events);
        for problem in growing.take_problems() {
            self.problem(problem, &mut events);
        }
        if !shards.is_empty() {
            self.last_shard = now;
        }
        let is_new_step = self.follow_steps(&growing, now);
        if is_new_step {
            self.judge(&mut growing, &mut events);
        }
        // Of a job that was stopped, collectives in flight are no sign of a hang.
        if self.state.stopped.is_none() {
            let hang = self.hangs.look(&mut growing, !shards.is_empty(), self.steps.longest_ns(), now);
            self.report_hang(hang, &mut events);
        }
        // What was closed last may have come while the shards were read.
        let is_read = shards.is_empty() && !growing.is_pending();
        self.end_or_fall_silent(is_read, now, &mut events);
        self.growing = Some(growing);
        Ok(events)
    }

    /// The run, once it exists.
    fn open(&mut self) -> Result<Option<Growing>, Error> {
        if let Some(growing) = self.growing.take() {
            return Ok(Some(growing));
        }
        let path = &self.state.path;
        if path.is_file() {
            return Err(Error::NoInput { path: path.clone(), why: "it is a file, and a run is a directory".into() });
        }
        let waiting = match place::is_file(&path.join(trace::MANIFEST_FILE)) {
            Ok(true) => None,
            Ok(false) if holds_files(path) => {
                let why = "it has files and no run.json: only a run can be watched, which ranks record; traces can be analyzed".into();
                return Err(Error::NoInput { path: path.clone(), why });
            }
            Ok(false) if path.is_dir() => Some("it has no run.json yet".to_string()),
            Ok(false) => Some("it does not exist yet".to_string()),
            Err(error) => Some(io_reason(path, &error)),
        };
        if let Some(why) = waiting {
            self.state.phase = Phase::Waiting(why);
            return Ok(None);
        }
        let growing = Growing::open(path)?;
        self.state.run_id.clone_from(&growing.manifest().run_id);
        self.state.world_size = growing.manifest().world_size;
        self.state.phase = Phase::Waiting("no rank has begun to record yet".into());
        Ok(Some(growing))
    }

    /// Reads the small tables of new shards.
    fn take(&mut self, shards: &[Shard], events: &mut Vec<Event>) {
        let (mut lost, mut why) = (0_i64, None);
        for shard in shards {
            if self.state.ranks.binary_search(&shard.meta.rank).is_err() {
                self.state.ranks.push(shard.meta.rank);
                self.state.ranks.sort_unstable();
            }
            if shard.table == StepRow::table().name {
                self.rows::<StepRow>(shard, events).into_iter().for_each(|row| self.steps.add(&row));
            } else if shard.table == RankRow::table().name {
                self.rows::<RankRow>(shard, events).into_iter().for_each(|row| self.processes.add(row));
            } else if shard.table == CounterRow::table().name {
                for row in self.rows::<CounterRow>(shard, events) {
                    if &*row.source == CUT_SOURCE {
                        self.state.stopped = row.why.as_ref().map(ToString::to_string);
                    }
                    lost = lost.saturating_add(row.dropped.max(0));
                    why = row.why.filter(|_| row.dropped > 0).or(why);
                }
            }
        }
        if matches!(self.state.phase, Phase::Waiting(_)) && !shards.is_empty() {
            self.state.phase = Phase::Recording;
            events.push(Event::Began);
        }
        if lost > 0 {
            self.state.lost_rows = self.state.lost_rows.saturating_add(lost);
            let why = why.map_or_else(|| "the reason was not recorded".into(), |why| why.to_string());
            events.push(Event::Lost { rows: lost, why });
        }
    }

    fn rows<R: Row>(&mut self, shard: &Shard, events: &mut Vec<Event>) -> Vec<R> {
        let mut rows = Vec::new();
        let read = shard.read(&R::table(), None, |batch| -> Result<(), trace::Error> {
            rows.extend(rows_from_batch::<R>(batch)?);
            Ok(())
        });
        if let Err(error) = read {
            let what = format!("rows of {}", shard.table);
            let (path, rank, why) = (Some(shard.path.clone()), Some(shard.meta.rank), error.to_string());
            self.problem(Problem { kind: OmissionKind::Lost, path, rank, what, amount: None, why }, events);
        }
        rows
    }

    fn problem(&mut self, problem: Problem, events: &mut Vec<Event>) {
        let row = problem.into_omission(&self.state.path);
        if let Some(file) = &row.file {
            if self.counted.contains(file) {
                return;
            }
            self.counted.push(file.clone());
        }
        self.state.unreadable += 1;
        if self.state.unreadable <= MAX_TOLD {
            events.push(Event::Unreadable(row));
        }
    }

    /// Updates the steps of the state. Returns whether all ranks have written a further one.
    fn follow_steps(&mut self, growing: &Growing, now: Duration) -> bool {
        let new = self.steps.complete(&self.state.ranks);
        new.iter().for_each(|(_, ns)| self.state.histogram.add(*ns));
        self.state.recent = self.steps.recent();
        self.state.step = self.state.recent.last().map(|(step, _)| *step);
        if !new.is_empty() {
            self.hangs.progress(now);
        }
        !new.is_empty() && self.state.step.is_some() && !growing.manifest().run_id.is_empty()
    }

    /// Judges the newest steps.
    fn judge(&mut self, growing: &mut Growing, events: &mut Vec<Event>) {
        let window = self.steps.window(growing.first_whole_step());
        let Some(window) = window else {
            self.state.not_judged = Some(format!("fewer than {} whole steps are recorded yet", steps::MIN_STEPS));
            return;
        };
        let options = Options { steps: Some(window.clone()), ..Options::default() };
        match analyze(&RunSource::of(growing.excerpt()), &options, &|_, _| ()) {
            Ok(analysis) => {
                self.state.window = window;
                self.state.not_judged = None;
                self.count_damage(&analysis, events);
                self.alarm(&analysis, events);
                self.state.analysis = Some(analysis);
            }
            Err(error) => self.state.not_judged = Some(error.to_string()),
        }
    }

    /// Counts shards whose rows turned out to be damaged, each once.
    fn count_damage(&mut self, analysis: &Analysis, events: &mut Vec<Event>) {
        let damaged =
            analysis.tables.omissions.iter().filter(|row| row.kind == OmissionKind::Lost && row.file.is_some());
        for row in damaged {
            let path = row.file.as_deref().map(|file| self.state.path.join(file));
            let (rank, what, why) = (row.rank, row.what.to_string(), row.why.to_string());
            self.problem(Problem { kind: OmissionKind::Lost, path, rank, what, amount: row.amount, why }, events);
        }
    }

    fn alarm(&mut self, analysis: &Analysis, events: &mut Vec<Event>) {
        let verdict = &analysis.verdict;
        let causes = if verdict.kind == VerdictKind::Cause { &verdict.causes[..] } else { &[] };
        let cause = |rank: &i32| {
            let row = analysis.tables.stragglers.iter().find(|row| row.rank == *rank);
            Cause { rank: *rank, is_lasting: row.is_some_and(|row| row.delayed_steps.is_none()) }
        };
        let named: Vec<Cause> = causes.iter().map(cause).collect();
        let (raised, cleared) = self.alarms.judge(&named, &self.state.window);
        let slow = |rank: &i32| slow_rank(analysis, *rank);
        // A rank whose alarm is not cleared yet keeps the words of its last cause.
        self.state.slow.retain(|known| !cleared.contains(&known.identity.rank));
        for rank in self.alarms.raised().into_iter().filter(|rank| causes.contains(rank)) {
            let Some(new) = slow(&rank) else { continue };
            match self.state.slow.iter_mut().find(|known| known.identity.rank == rank) {
                Some(known) => *known = new,
                None => self.state.slow.push(new),
            }
        }
        self.state.slow.sort_by_key(|slow| (std::cmp::Reverse(slow.step_delay_ns), slow.identity.rank));
        if !raised.is_empty() {
            let new = self.state.slow.iter().filter(|slow| raised.contains(&slow.identity.rank));
            events.push(Event::Slow(new.cloned().collect()));
        }
        if !cleared.is_empty() {
            events.push(Event::Cleared(cleared));
        }
    }

    fn report_hang(&mut self, found: Option<hang::Hang>, events: &mut Vec<Event>) {
        let (words, missing) = found.map_or((None, Vec::new()), |hang| (Some(hang.words), hang.missing));
        match (&self.state.hang, &words) {
            (was, Some(words)) if was.as_ref() != Some(words) => events.push(Event::Hang(words.clone())),
            (Some(_), None) => events.push(Event::HangOver),
            _ => {}
        }
        (self.state.hang, self.state.missing) = (words, missing);
    }

    fn end_or_fall_silent(&mut self, is_read: bool, now: Duration, events: &mut Vec<Event>) {
        if matches!(self.state.phase, Phase::Waiting(_)) {
            return;
        }
        let silent = now.saturating_sub(self.last_shard);
        let is_silent = silent >= SILENT_AFTER;
        let all_began = self.state.ranks.len() as i64 >= i64::from(self.state.world_size);
        let ended = match self.processes.all_closed() {
            _ if !is_read => None,
            // A rank that has not begun may still come.
            true if all_began || is_silent => Some(true),
            false if is_silent && self.processes.all_gone() => Some(false),
            _ => None,
        };
        if let Some(clean) = ended {
            self.state.phase = Phase::Ended { clean };
            return events.push(Event::Ended);
        }
        let was_silent = matches!(self.state.phase, Phase::Silent(_));
        match (was_silent, is_silent) {
            (false, true) => events.push(Event::Silent),
            (true, false) => events.push(Event::Resumed),
            _ => {}
        }
        self.state.phase = if is_silent { Phase::Silent(silent) } else { Phase::Recording };
    }

    /// Forgets the shards that the next window cannot need.
    pub fn forget(&mut self) {
        let first = self.steps.first_needed();
        if let Some(growing) = &mut self.growing {
            growing.forget_before(first, MAX_EVENT_ROWS);
        }
        let surplus = self.counted.len().saturating_sub(1 << 10);
        self.counted.drain(..surplus);
    }
}

fn slow_rank(analysis: &Analysis, rank: i32) -> Option<SlowRank> {
    let row = analysis.tables.stragglers.iter().find(|row| row.rank == rank)?;
    let identity = analysis.identity(rank).cloned().unwrap_or_else(|| RankIdentity { rank, ..RankIdentity::default() });
    Some(SlowRank {
        identity: RankIdentity { file: None, ..identity },
        step_delay_ns: row.step_delay_ns,
        interval_ns: row.step_delay_low_ns.zip(row.step_delay_high_ns),
        location: findings::headline::place(row),
    })
}

/// Whether a directory has a file that is neither hidden nor temporary. Those of a run are in directories of its tables, but for its
/// manifest, which is first written under a temporary name.
fn holds_files(directory: &Path) -> bool {
    let is_other_file = |entry: std::fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && !entry.file_name().as_encoded_bytes().starts_with(b".") && !is_temporary(&entry.path())
    };
    std::fs::read_dir(directory).is_ok_and(|entries| entries.flatten().any(is_other_file))
}
