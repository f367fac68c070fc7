//! Accepts the ranks of a job among any other connections.
//!
//! All handshakes proceed at the same time, each as its bytes arrive, so a silent connection delays no other.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::handshake::{Handshake, Progress, Server};
use super::stream::{Listener, Stream};
use crate::Error;
use crate::fabric::Stop;

/// Pause while nothing happens.
const PAUSE: Duration = Duration::from_millis(2);
/// Time for a handshake. A rank on a busy host may need seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Handshakes at the same time. Beyond that, the oldest connection is closed.
const MAX_HANDSHAKES: usize = 512;

/// The ranks that connected in time, and those that did not.
pub(super) struct Accepted {
    /// The connections by rank.
    pub(super) streams: BTreeMap<usize, Stream>,
    /// The expected ranks that did not connect.
    pub(super) absent: Vec<usize>,
    /// The last connection that was refused, and why.
    pub(super) refused: Option<String>,
}

/// Accepts the expected ranks until all have connected or the time is up.
///
/// # Errors
/// The error of `stop`; [`Error::Network`] if the listener fails.
pub(super) fn accept(
    listener: &Listener,
    expected: &[usize],
    server: &Server<'_>,
    until: Instant,
    stop: &Stop,
) -> Result<Accepted, Error> {
    let network = |source| Error::Network { what: "the listener".into(), source };
    listener.set_nonblocking().map_err(network)?;
    let mut pending =
        Pending { server, expected, accepted: BTreeMap::new(), handshakes: VecDeque::new(), refused: None };
    while pending.accepted.len() < expected.len() {
        stop.check()?;
        if Instant::now() >= until {
            break;
        }
        let came = match listener.accept() {
            Ok((stream, from)) => {
                pending.admit(stream, from);
                true
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) =>
            {
                false
            }
            // Foreign connections have taken all descriptors.
            Err(error)
                if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE))
                    && !pending.handshakes.is_empty() =>
            {
                pending.close_oldest("this process has no free file descriptor");
                true
            }
            Err(error) => return Err(network(error)),
        };
        if !pending.advance() && !came {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(pending.end())
}

/// The connections that have not proved their rank yet, the oldest first, and those that have.
struct Pending<'a> {
    server: &'a Server<'a>,
    expected: &'a [usize],
    accepted: BTreeMap<usize, Stream>,
    handshakes: VecDeque<(Handshake, String, Instant)>,
    /// The last connection that was refused, and why.
    refused: Option<String>,
}

impl Pending<'_> {
    fn admit(&mut self, stream: Stream, from: String) {
        if self.handshakes.len() >= MAX_HANDSHAKES {
            self.close_oldest("there are too many connections");
        }
        match Handshake::new(stream) {
            Ok(handshake) => self.handshakes.push_back((handshake, from, Instant::now())),
            Err(error) => self.refused = Some(format!("{from}: {error}")),
        }
    }

    fn close_oldest(&mut self, why: &str) {
        if let Some((_, from, _)) = self.handshakes.pop_front() {
            self.refused = Some(format!("{from}: {why}"));
        }
    }

    /// Takes every handshake as far as its bytes allow; returns whether one ended.
    fn advance(&mut self) -> bool {
        let before = self.handshakes.len();
        for _ in 0..before {
            let Some((handshake, from, since)) = self.handshakes.pop_front() else { break };
            match handshake.advance(self.server) {
                // A foreign connection must not end the wait for the ranks of this job.
                Err(error) => self.refused = Some(format!("{from}: {error}")),
                Ok(Progress::Waits(_)) if since.elapsed() >= PATIENCE => {
                    self.refused = Some(format!("{from}: sent no rank within {} s", PATIENCE.as_secs()));
                }
                Ok(Progress::Waits(handshake)) => self.handshakes.push_back((handshake, from, since)),
                Ok(Progress::Done(rank, stream))
                    if self.expected.contains(&rank) && !self.accepted.contains_key(&rank) =>
                {
                    self.accepted.insert(rank, stream);
                }
                Ok(Progress::Done(rank, _)) => {
                    self.refused =
                        Some(format!("{from}: connected as rank {rank}, which is not expected or already connected"));
                }
            }
        }
        self.handshakes.len() < before
    }

    fn end(self) -> Accepted {
        let silent = || self.handshakes.front().map(|(_, from, _)| format!("{from}: sent no rank"));
        let refused = self.refused.or_else(silent);
        let absent = self.expected.iter().filter(|rank| !self.accepted.contains_key(rank)).copied().collect();
        Accepted { streams: self.accepted, absent, refused }
    }
}
