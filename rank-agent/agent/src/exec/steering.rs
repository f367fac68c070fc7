//! Steers the recording of a rank's program: the page that its processes follow, the switch, and the socket for `ctl`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use launch::Identity;
use recorder::ControlPage;
use trace::RankRow;

use super::cli::ExecArguments;
use super::endpoint::{Answer, Endpoint, Request, Status, home, sockets, stem};
use super::switch::{NcclDetail, Switch, TimeSchedule};
use crate::Error;
use crate::fabric::agree::RunPlace;

/// Steers one rank; removes its files when dropped.
#[derive(Debug)]
pub(super) struct Steering {
    /// Turns recording on and off.
    pub(super) switch: Switch,
    /// File of the page, for the program's processes.
    pub(super) page: Option<PathBuf>,
    /// The reason why `ctl` cannot reach this rank.
    pub(super) problem: Option<String>,
    stem: Option<PathBuf>,
    endpoint: Option<Endpoint>,
}

impl Steering {
    /// Creates the page. Without it `ctl` cannot reach this rank, which is a `problem`; for a schedule it is an error.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub(super) fn prepare(arguments: &ExecArguments) -> Result<Self, Error> {
        let schedule = arguments.time_schedule();
        let order = Switch::first_order(schedule, arguments.nccl_detail);
        let made = home().and_then(|directory| {
            // Removes what killed processes left: without this nothing would, on a host where no user runs `ctl`. An error
            // leaves it to the next process.
            let _ = sockets(std::slice::from_ref(&directory));
            let stem = stem(&directory);
            let path = stem.with_extension("page");
            let page = ControlPage::create(&path, order).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok((stem, path, page))
        });
        match made {
            Ok((stem, path, page)) => {
                let switch = Switch::new(Some(page), schedule, order);
                Ok(Self { switch, page: Some(path), problem: None, stem: Some(stem), endpoint: None })
            }
            Err(why) if schedule == TimeSchedule::default() => {
                let switch = Switch::new(None, schedule, order);
                Ok(Self { switch, page: None, problem: Some(why), stem: None, endpoint: None })
            }
            Err(why) => Err(Error::Control(format!(
                "--paused, --delay and --duration need a directory that only this user can access: {why}"
            ))),
        }
    }

    /// Starts to answer `ctl`.
    pub(super) fn listen(&mut self, place: &RunPlace, identity: &Identity) {
        let Some(stem) = &self.stem else { return };
        let answers = Answers {
            switch: self.switch.clone(),
            run: place.path.canonicalize().unwrap_or_else(|_| place.path.clone()),
            run_id: place.run_id.clone(),
            rank: identity.rank,
            world_size: identity.world_size,
        };
        match Endpoint::start(stem, move |request| answers.answer(request)) {
            Ok(endpoint) => self.endpoint = Some(endpoint),
            Err(error) => self.problem = Some(format!("{}: {error}", stem.with_extension("sock").display())),
        }
    }

    /// The program has ended: stops to answer `ctl`.
    pub(super) fn finish(&mut self) {
        self.switch.finish();
        self.endpoint = None;
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        self.finish();
        self.switch.close();
        if let Some(page) = &self.page {
            // Processes that have mapped the page keep their mapping.
            let _ = std::fs::remove_file(page);
        }
    }
}

/// Answers the requests of `ctl`.
pub(super) struct Answers {
    pub(super) switch: Switch,
    pub(super) run: PathBuf,
    pub(super) run_id: String,
    pub(super) rank: i32,
    pub(super) world_size: i32,
}

impl Answers {
    pub(super) fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status {} => {}
            Request::Stop {} => self.switch.by_hand(false, None, None),
            Request::Start { nccl_detail, duration_s } => {
                let detail = match nccl_detail.as_deref().map(|word| (word, NcclDetail::from_name(word))) {
                    None => None,
                    Some((_, Some(detail))) => Some(detail),
                    Some((word, None)) => {
                        return Answer::Error(format!("{word:?} is not an NCCL detail: use coll, channels or proxy"));
                    }
                };
                let duration = match duration_s.map(Duration::try_from_secs_f64) {
                    None => None,
                    Some(Ok(duration)) if duration <= LONGEST => Some(duration),
                    Some(_) => return Answer::Error("the duration must be a number of seconds from 0 to 1e9".into()),
                };
                self.switch.by_hand(true, detail, duration);
            }
        }
        Answer::Status(self.status())
    }

    fn status(&self) -> Status {
        let now = self.switch.now();
        Status {
            run: self.run.clone(),
            run_id: self.run_id.clone(),
            rank: self.rank,
            world_size: self.world_size,
            pid: std::process::id(),
            recording: now.order.record,
            nccl_detail: now.order.detail.as_str().into(),
            running_s: now.running.map(|running| running.as_secs_f64()),
            off_s: now.off.as_secs_f64(),
            switches_in_s: now.next.map(|next| next.as_secs_f64()),
        }
    }
}

/// Longest duration of a `start`: the sum of two stays within the range of `Instant`.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Whether a process of the program has joined the rank's session, which means that it loaded the library.
pub(super) fn program_joined(run: &Path, rank: i32) -> bool {
    parts_of(run, "ranks", rank) > 1
}

/// What is lost because processes of the program did not close their recording; `None`: all did.
pub(super) fn unclosed(run: &Path, rank: i32) -> Option<String> {
    let own = i64::from(std::process::id());
    let rows = trace::Run::open_ranks(run, |other| other == rank).ok()?.rows::<RankRow>(rank).0;
    let mut open: BTreeMap<i64, i32> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.pid != own) {
        *open.entry(row.pid).or_default() += if row.closed_cleanly { -1 } else { 1 };
    }
    let pids: Vec<String> = open.iter().filter(|(_, open)| **open > 0).map(|(pid, _)| pid.to_string()).collect();
    let (which, its) = match &pids[..] {
        [] => return None,
        [pid] => (format!("process {pid}"), "its"),
        [first, .., last] => (format!("{} processes ({first} to {last})", pids.len()), "their"),
    };
    // A signal, `_exit`, a disk that is full, or a directory that the process could not reach any more.
    Some(format!("{which} ended without closing {its} recording: what was recorded last, and not written yet, is lost"))
}

/// Number of parts of a table that this rank's processes have written.
pub(super) fn parts_of(run: &Path, table: &str, rank: i32) -> usize {
    let prefix = format!("rank-{rank:05}-");
    let entries = std::fs::read_dir(run.join(table)).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Answers {
        let order = Switch::first_order(TimeSchedule::default(), NcclDetail::Coll);
        let switch = Switch::new(None, TimeSchedule::default(), order);
        Answers { switch, run: "/runs/a".into(), run_id: "id".into(), rank: 3, world_size: 8 }
    }

    #[test]
    fn a_rank_reports_its_status_and_follows_requests() {
        let answers = answers();
        let recording = |request| match answers.answer(request) {
            Answer::Status(status) => (status.recording, status.nccl_detail, status.switches_in_s.is_some()),
            Answer::Error(why) => unreachable!("{why}"),
        };
        assert_eq!(recording(Request::Status {}), (true, "coll".into(), false));
        assert_eq!(recording(Request::Stop {}), (false, "coll".into(), false));
        let start = Request::Start { nccl_detail: Some("proxy".into()), duration_s: Some(60.0) };
        assert_eq!(recording(start), (true, "proxy".into(), true));
    }

    #[test]
    fn an_invalid_request_changes_nothing() {
        let answers = answers();
        for (detail, duration_s) in [
            (Some("all"), None),
            (None, Some(-1.0)),
            (None, Some(f64::NAN)),
            (None, Some(f64::INFINITY)),
            (None, Some(1e18)),
        ] {
            let request = Request::Start { nccl_detail: detail.map(Into::into), duration_s };
            assert!(matches!(answers.answer(request), Answer::Error(_)), "{detail:?} {duration_s:?}");
        }
        assert_eq!(answers.switch.word() >> 8, 0);
    }
}
