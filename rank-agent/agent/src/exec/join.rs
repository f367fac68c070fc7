//! Meets the other ranks of a job, and does with them what all ranks do together.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use launch::{Identity, Meeting};

use super::secret::{Left, find_secret};
use crate::Error;
use crate::error::ranks_text;
use crate::fabric::agree::{RunPlace, RunRequest, agree_on_run, agree_on_success};
use crate::fabric::sockets::{Limits, Place, Sockets, Token};
use crate::fabric::solo::Solo;
use crate::fabric::{Control, Stop};

/// The ranks that have met.
pub(super) struct Joined {
    pub(super) control: Arc<dyn Control>,
    /// Name of the job; `None` for a job of one rank.
    pub(super) job: Option<String>,
    /// The ranks with which this rank's clock is not compared, and why; `None`: all have met.
    pub(super) apart: Option<String>,
    /// A note to the user on the address at which rank 0 listens.
    pub(super) note: Option<String>,
    /// How this rank waits once it is alone.
    alone: (usize, Limits, Stop),
}

/// Waits for the other ranks, at most `timeout`. Ranks that do not come are no error. `rendezvous` is the user's address of
/// rank 0, and `out` the directory of the run. Collective.
///
/// # Errors
/// [`Error::Launch`] if nothing gives the address of rank 0; [`Error::Stopped`].
pub(super) fn join(
    identity: &Identity,
    (rendezvous, out): (Option<&str>, Option<&Path>),
    timeout: Duration,
    stop: Stop,
) -> Result<Joined, Error> {
    let limits = Limits { join: timeout, ..Limits::default() };
    let place = Place { rank: rank_of(identity.rank), size: rank_of(identity.world_size) };
    let alone = (place.rank, limits, stop.clone());
    if identity.world_size == 1 {
        return Ok(Joined { control: Arc::new(Solo), job: None, apart: None, note: None, alone });
    }
    let env = |name: &str| std::env::var(name).ok();
    let meeting = Meeting::find(identity, rendezvous, &env)?;
    let token = env("RANKSCOPE_TOKEN").filter(|token| !token.is_empty());
    let met = match token {
        Some(token) => Sockets::join(place, &meeting, &Token::new(token), limits, stop),
        // The system says that the ranks of a host belong to one user. The name of the job keeps those of other jobs apart.
        None if meeting.is_local => Sockets::join(place, &meeting, &Token::new(meeting.job.clone()), limits, stop),
        None => out.ok_or(Error::NoSecret).and_then(|out| join_by_file(place, &meeting, out, (limits, stop))),
    };
    let mut joined = Joined { control: Arc::new(Solo), job: Some(meeting.job), apart: None, note: None, alone };
    match met {
        Err(error) if error.is_of_peers() => joined.go_on_alone(&error),
        met => joined.take(met?),
    }
    Ok(joined)
}

/// Meets by the secret that rank 0 leaves in the directory of the run.
fn join_by_file(place: Place, meeting: &Meeting, out: &Path, (limits, stop): (Limits, Stop)) -> Result<Sockets, Error> {
    let until = Instant::now() + limits.join;
    if place.rank == 0 {
        // The file is removed when all ranks have met, or the time is up.
        let left = Left::new(out)?;
        return Sockets::join(place, meeting, left.token(), limits, stop);
    }
    loop {
        let token = find_secret(out, until, &stop)?;
        match Sockets::join(place, meeting, &token, limits, stop.clone()) {
            // An earlier job that was killed may have left another secret there.
            Err(Error::WrongPeer(_)) if Instant::now() < until => std::thread::sleep(super::secret::AGAIN),
            met => return met,
        }
    }
}

impl Joined {
    fn take(&mut self, fabric: Sockets) {
        self.note = fabric.note().map(String::from);
        let others = |why: &Error| match (why, fabric.size()) {
            (Error::Missing { ranks, .. }, 2..) => ranks_text(ranks),
            _ => "the other ranks".into(),
        };
        self.apart = fabric.absent().map(|why| not_compared(&others(why), why));
        self.control = Arc::new(fabric);
    }

    fn go_on_alone(&mut self, why: &Error) {
        let (rank, limits, stop) = self.alone.clone();
        self.apart = Some(not_compared("the other ranks", why));
        self.control = Arc::new(Sockets::alone(rank, limits, stop));
    }

    /// Does what all ranks do together before the program starts. If the network or a peer fails, this rank does it alone: nothing that
    /// peers do keeps a program from starting.
    ///
    /// # Errors
    /// Those of `act` that are not of the network.
    pub(super) fn together<T>(&mut self, act: impl Fn(&Arc<dyn Control>) -> Result<T, Error>) -> Result<T, Error> {
        match act(&self.control) {
            Err(error) if error.is_of_peers() => {
                self.go_on_alone(&error);
                act(&self.control)
            }
            done => done,
        }
    }

    /// The run of all ranks. A rank that was told a directory writes into no other one.
    ///
    /// # Errors
    /// Those of [`agree_on_run`] that are not of the network.
    pub(super) fn run(&mut self, request: &RunRequest) -> Result<RunPlace, Error> {
        self.together(|control| {
            let place = agree_on_run(&**control, request)?;
            match request.out.as_deref().filter(|out| !is_same(out, &place.path)) {
                None => Ok(place),
                Some(out) => Err(Error::WrongPeer(format!(
                    "rank 0 records to {}, and this rank was told to record to {}",
                    place.path.display(),
                    out.display()
                ))),
            }
        })
    }

    /// Fails if `mine` does, or if that of another rank does.
    ///
    /// # Errors
    /// Those of [`agree_on_success`] that are not of the network.
    pub(super) fn all_succeed<T>(&mut self, mine: Result<T, Error>) -> Result<T, Error> {
        let is_ready = mine.is_ok();
        let agreed = self
            .together(|control| agree_on_success(&**control, if is_ready { Ok(()) } else { Err(Error::Abandoned) }));
        let value = mine?;
        agreed.map(|()| value)
    }
}

fn not_compared(others: &str, why: &Error) -> String {
    format!("clocks are not compared with {others}: {why}")
}

fn is_same(out: &Path, path: &Path) -> bool {
    let absolute = std::path::absolute(out).is_ok_and(|out| out == path);
    absolute || out.canonicalize().is_ok_and(|out| path.canonicalize().is_ok_and(|path| out == path))
}

pub(super) fn rank_of(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Lane;
    use crate::fabric::threads;

    fn joined(control: Arc<dyn Control>) -> Joined {
        let alone = (control.rank(), Limits::default(), Stop::default());
        Joined { control, job: Some("a job".into()), apart: None, note: None, alone }
    }

    /// Invariant (recorder): No peer keeps a program from starting.
    #[test]
    fn a_rank_goes_on_alone_if_the_network_fails() {
        let gathered = threads::run(2, |fabric| {
            let mut joined = joined(fabric);
            let words = joined.together(|control| match control.size() {
                2 => Err(Error::WrongPeer("it sends nonsense".into())),
                _ => control.all_gather(Lane::Control, &[7]),
            });
            let apart = joined.apart.unwrap();
            assert!(apart.ends_with("with the other ranks: it sends nonsense"), "{apart}");
            (words.unwrap(), joined.control.rank_in_job(0))
        });
        assert_eq!(gathered, [(vec![7], 0), (vec![7], 1)]);
        let mut alone = joined(Arc::new(Solo));
        assert!(matches!(alone.all_succeed::<()>(Err(Error::EngineGone)), Err(Error::EngineGone)));
        assert!(alone.apart.is_none(), "its own error is none of the network");
    }

    /// Invariant (recorder): A rank that was told a directory writes into no other one.
    #[test]
    fn rank_0_chooses_no_directory_for_a_rank_that_was_told_one() {
        let directory = tempfile::tempdir().unwrap();
        let places = threads::run(3, |fabric| {
            let rank = fabric.rank();
            let out = directory.path().join(["theirs", "mine", "theirs/../theirs"][rank]);
            let request = RunRequest { out: Some(out), world_size: 3, ..RunRequest::default() };
            let mut joined = joined(fabric);
            let place = joined.run(&request).unwrap();
            (place.path.canonicalize().unwrap(), joined.apart)
        });
        let directory = directory.path().canonicalize().unwrap();
        let paths: Vec<&Path> = places.iter().map(|(path, _)| path.strip_prefix(&directory).unwrap()).collect();
        assert_eq!(paths, [Path::new("theirs"), Path::new("mine"), Path::new("theirs")]);
        let apart: Vec<bool> = places.iter().map(|(_, apart)| apart.is_some()).collect();
        assert_eq!(apart, [false, true, false]);
    }
}
