//! Agreements of the ranks before the first step: the run's directory and id, and that every rank is able to begin.

use std::hash::Hasher;
use std::io::ErrorKind;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use trace::{Manifest, SCHEMA_VERSION};
use twox_hash::XxHash3_64;

use crate::Error;
use crate::fabric::{Control, Lane};

/// The run that all ranks write into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPlace {
    /// Its directory, absolute.
    pub path: PathBuf,
    /// The directory as the user wrote it, for messages.
    pub shown: PathBuf,
    /// The run's unique id.
    pub run_id: String,
}

/// The requested run.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// Its directory; `None`: a new one in the current directory.
    pub out: Option<PathBuf>,
    /// The command line for the manifest, program first.
    pub command: Vec<String>,
    /// The launcher of the ranks.
    pub launcher: String,
    /// Settings for the manifest.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Number of ranks of the job.
    pub world_size: usize,
}

/// Key of the manifest's `config` for the name of the job, by which ranks that have not met find their run.
pub const JOB: &str = "job";

/// Rank 0's result, for the other ranks.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready(RunPlace),
    Exists(PathBuf),
    Failed(String),
}

/// Rank 0 creates the directory and writes the manifest; all ranks get the place or the same error. Collective.
///
/// # Errors
/// [`Error::RunExists`], or [`Error::Peer`] with the error of the file system.
pub fn agree_on_run(fabric: &dyn Control, request: &RunRequest) -> Result<RunPlace, Error> {
    let answer = if fabric.rank() == 0 {
        match find_or_create_run(request, fabric.size()) {
            Ok(place) => Answer::Ready(place),
            Err(Error::RunExists(path)) => Answer::Exists(path),
            Err(error) => Answer::Failed(error.to_string()),
        }
    } else {
        Answer::Failed(String::new())
    };
    // Paths that JSON cannot hold are refused before; an empty message would be refused below.
    let bytes = fabric.broadcast(serde_json::to_vec(&answer).unwrap_or_default())?;
    match serde_json::from_slice(&bytes) {
        Ok(Answer::Ready(place)) => Ok(place),
        Ok(Answer::Exists(path)) => Err(Error::RunExists(path)),
        Ok(Answer::Failed(message)) => Err(Error::Peer { rank: 0, message }),
        Err(error) => Err(Error::WrongPeer(format!("rank 0 sent no place for the run: {error}"))),
    }
}

/// Fails on all ranks if `mine` is an error on any rank. Collective.
///
/// # Errors
/// This rank's own error, or [`Error::Peer`] for the first rank that failed.
pub fn agree_on_success<T, E: From<Error>>(fabric: &dyn Control, mine: Result<T, E>) -> Result<T, E> {
    let all = fabric.all_gather(Lane::Control, &[u64::from(mine.is_err())])?;
    let value = mine?;
    match all.iter().position(|failed| *failed != 0) {
        Some(rank) => Err(Error::Peer { rank: fabric.rank_in_job(rank), message: "see its message".into() }.into()),
        None => Ok(value),
    }
}

/// Time until a run that another rank begins has its manifest.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// Creates the run. If ranks are absent from the fabric, they may have created it, or do so at this moment.
fn find_or_create_run(request: &RunRequest, present: usize) -> Result<RunPlace, Error> {
    if present >= request.world_size {
        return create_run(request);
    }
    let until = Instant::now() + BEGINS_WITHIN;
    loop {
        if let Some(place) = run_of_job(request) {
            return Ok(place);
        }
        match create_run(request) {
            Err(Error::RunExists(path)) => {
                let is_begun = Manifest::read(&path).is_ok();
                if Instant::now() >= until || is_begun && run_of_job(request).is_none() {
                    return Err(Error::RunExists(path));
                }
            }
            created => return created,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The run that another rank of this job has created in the requested directory. A rank that the run already holds is
/// refused when its recorder starts.
fn run_of_job(request: &RunRequest) -> Option<RunPlace> {
    let shown = request.out.clone()?;
    let path = std::path::absolute(&shown).ok()?;
    let manifest = Manifest::read(&path).ok()?;
    let is_same = i32::try_from(request.world_size) == Ok(manifest.world_size)
        && request.config.get(JOB).is_some_and(|job| manifest.config.get(JOB) == Some(job));
    is_same.then_some(RunPlace { path, shown, run_id: manifest.run_id })
}

fn create_run(request: &RunRequest) -> Result<RunPlace, Error> {
    let created_utc_ns = utc_now_ns();
    let shown = match &request.out {
        Some(path) => path.clone(),
        None => fresh_name(created_utc_ns),
    };
    let io = |source| Error::Io { path: shown.clone(), source };
    let path = std::path::absolute(&shown).map_err(io)?;
    if path.to_str().is_none() {
        let why = "the name of the run's directory is not UTF-8; give --out another";
        return Err(Error::Usage(format!("{}: {why}", path.display())));
    }
    let run_id = format!("{created_utc_ns:x}-{:x}", std::process::id());
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: run_id.clone(),
        world_size: i32::try_from(request.world_size).unwrap_or(i32::MAX),
        created_utc_ns,
        tool: format!("rank-agent {}", env!("CARGO_PKG_VERSION")),
        command: request.command.clone(),
        config: request.config.clone(),
    };
    let locked = manifest.begin(&path).map_err(|error| match error {
        trace::Error::Occupied { .. } => Error::RunExists(shown.clone()),
        trace::Error::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists => Error::RunExists(shown.clone()),
        other => other.into(),
    })?;
    // The lock ends with this process, which outlives the recording of its rank.
    let _ = locked.into_raw_fd();
    Ok(RunPlace { path, shown, run_id })
}

/// A hash of the host's name: equal on the ranks of one host.
pub fn host_hash() -> u64 {
    hash(&[rustix::system::uname().nodename().to_bytes()])
}

/// A hash that every rank computes alike: XXH3 of the parts, one after the other.
pub fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::default();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

fn utc_now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// `run-20261121-073812` in the current directory, in UTC, or the first `-2`, `-3`, … of it that does not exist.
fn fresh_name(utc_ns: i64) -> PathBuf {
    let seconds = utc_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let name = format!("run-{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}");
    let mut path = PathBuf::from(&name);
    let mut number = 2;
    while path.exists() {
        path = PathBuf::from(format!("{name}-{number}"));
        number += 1;
    }
    path
}

/// The Gregorian date of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms"). One
/// directory name does not justify a date library.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_rank_that_cannot_begin_stops_all() {
        let results = crate::fabric::threads::run(3, |fabric| {
            let mine = if fabric.rank() == 1 { Err(Error::EngineGone) } else { Ok(()) };
            agree_on_success(&*fabric, mine).unwrap_err().to_string()
        });
        assert_eq!(results[0], "rank 1 could not begin: see its message");
        assert_eq!(results[1], Error::EngineGone.to_string());
        assert_eq!(results[2], results[0]);
        assert!(
            crate::fabric::threads::run(3, |fabric| agree_on_success::<_, Error>(&*fabric, Ok(7)).unwrap()) == [7; 3]
        );
    }

    /// Invariant (recorder): Ranks that have not met record to one run.
    #[test]
    fn ranks_that_begin_a_run_at_the_same_time_find_it() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..50 {
            let config = serde_json::Map::from_iter([(JOB.to_string(), "a job".into())]);
            let out = Some(directory.path().join(number.to_string()));
            let request = RunRequest { out, config, world_size: 4, ..RunRequest::default() };
            let ids: Vec<String> = std::thread::scope(|scope| {
                let ranks: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| find_or_create_run(&request, 1).unwrap().run_id)).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
            let other = serde_json::Map::from_iter([(JOB.to_string(), "another".into())]);
            let other = find_or_create_run(&RunRequest { config: other, ..request }, 1);
            assert!(matches!(other, Err(Error::RunExists(_))), "{other:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_utf_8_is_refused_with_the_reason() {
        let out = PathBuf::from(std::ffi::OsStr::from_bytes(b"/nowhere/run-\xff"));
        let request = RunRequest { out: Some(out), world_size: 2, ..RunRequest::default() };
        for error in crate::fabric::threads::run(2, |fabric| agree_on_run(&*fabric, &request).unwrap_err().to_string())
        {
            assert!(error.contains("not UTF-8; give --out another"), "{error}");
        }
    }

    #[test]
    fn dates_are_gregorian() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil_from_days(days), date);
        }
    }
}
