//! Accepts the ranks of a job among any other connections.
//!
//! All handshakes proceed at the same time, each as its bytes arrive, so a silent connection delays no other.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::handshake::{Progress, Server, Visitor};
use crate::Error;
use crate::fabric::Stop;

/// Pause while nothing happens.
const PAUSE: Duration = Duration::from_millis(2);
/// Time for a handshake. A rank on a busy host may need seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Handshakes at the same time. Beyond that, the oldest connection is closed.
const MAX_VISITORS: usize = 512;

/// Accepts the expected ranks; returns their connections by rank.
///
/// # Errors
/// [`Error::Missing`] if ranks do not connect in time, with the last refusal; the error of `stop`; [`Error::Network`]
/// if the listener fails.
pub(super) fn accept(
    listener: &TcpListener,
    expected: &[usize],
    server: &Server<'_>,
    until: Instant,
    stop: &Stop,
) -> Result<BTreeMap<usize, TcpStream>, Error> {
    let network = |source| Error::Network { what: "the listener".into(), source };
    listener.set_nonblocking(true).map_err(network)?;
    let mut lobby = Lobby { server, expected, accepted: BTreeMap::new(), visitors: VecDeque::new(), refused: None };
    while lobby.accepted.len() < expected.len() {
        stop.check()?;
        if Instant::now() >= until {
            return Err(lobby.missing());
        }
        let came = match listener.accept() {
            Ok((stream, from)) => {
                lobby.admit(stream, from);
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
                    && !lobby.visitors.is_empty() =>
            {
                lobby.close_oldest("this process has no free file descriptor");
                true
            }
            Err(error) => return Err(network(error)),
        };
        if !lobby.advance() && !came {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(lobby.accepted)
}

/// The connections that have not proved their rank yet, the oldest first, and those that have.
struct Lobby<'a> {
    server: &'a Server<'a>,
    expected: &'a [usize],
    accepted: BTreeMap<usize, TcpStream>,
    visitors: VecDeque<(Visitor, SocketAddr, Instant)>,
    /// The last connection that was refused, and why.
    refused: Option<String>,
}

impl Lobby<'_> {
    fn admit(&mut self, stream: TcpStream, from: SocketAddr) {
        if self.visitors.len() >= MAX_VISITORS {
            self.close_oldest("there are too many connections");
        }
        match Visitor::new(stream) {
            Ok(visitor) => self.visitors.push_back((visitor, from, Instant::now())),
            Err(error) => self.refused = Some(format!("{from}: {error}")),
        }
    }

    fn close_oldest(&mut self, why: &str) {
        if let Some((_, from, _)) = self.visitors.pop_front() {
            self.refused = Some(format!("{from}: {why}"));
        }
    }

    /// Takes every handshake as far as its bytes allow; returns whether one ended.
    fn advance(&mut self) -> bool {
        let before = self.visitors.len();
        for _ in 0..before {
            let Some((visitor, from, since)) = self.visitors.pop_front() else { break };
            match visitor.advance(self.server) {
                // A foreign connection must not end the wait for the ranks of this job.
                Err(error) => self.refused = Some(format!("{from}: {error}")),
                Ok(Progress::Waits(_)) if since.elapsed() >= PATIENCE => {
                    self.refused = Some(format!("{from}: it did not say its rank within {} s", PATIENCE.as_secs()));
                }
                Ok(Progress::Waits(visitor)) => self.visitors.push_back((visitor, from, since)),
                Ok(Progress::Done(rank, stream))
                    if self.expected.contains(&rank) && !self.accepted.contains_key(&rank) =>
                {
                    self.accepted.insert(rank, stream);
                }
                Ok(Progress::Done(rank, _)) => {
                    self.refused =
                        Some(format!("{from} connected as rank {rank}, which is not expected or already connected"));
                }
            }
        }
        self.visitors.len() < before
    }

    fn missing(&mut self) -> Error {
        if self.refused.is_none()
            && let Some((_, from, _)) = self.visitors.front()
        {
            self.refused = Some(format!("{from}: it did not say its rank"));
        }
        let missing = self.expected.iter().filter(|rank| !self.accepted.contains_key(rank)).copied().collect();
        Error::Missing { ranks: missing, refused: self.refused.take() }
    }
}
