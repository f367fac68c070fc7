//! The fabric of `exec`: plain TCP, because the recorded program owns MPI and NCCL.
//!
//! ```text
//!  control   rank 0 is the hub: 1 ── 0 ── 2, 3 ── 0 …      frames: length, bytes
//!  pings     one connection for each edge of the tree       words of 8 bytes, read without sleeping
//! ```
//!
//! Rank 0 listens only at the address of [`launch::Meeting`]: on the loopback if all ranks share a host. Both ends of every
//! connection prove that they know the job's token (`handshake`). Every wait ends: with an answer, with the end of the
//! connection, or after [`Limits`].

mod accept;
mod fuzz;
mod handshake;
mod link;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use launch::Meeting;

use super::{Control, Lane, Stop};
use crate::Error;
use crate::fabric::ping::PingTree;
use accept::accept;
pub use fuzz::check_any_connection;
pub use handshake::Token;
use handshake::{Hello, Purpose, Server};
use link::{Link, Words};

/// Longest waits of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time for the other ranks to connect.
    pub join: Duration,
    /// Time for a peer to answer in the middle of an exchange.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { join: Duration::from_secs(60), answer: Duration::from_secs(10) }
    }
}

/// Pause between attempts to reach rank 0, which may not have started.
const RETRY: Duration = Duration::from_millis(50);
/// Longest message: the words of some hundred thousand ranks.
const MAX_FRAME_BYTES: usize = 16 << 20;

/// A rank with its connections to the others.
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    size: usize,
    hub: Hub,
    pairs: BTreeMap<usize, Words>,
    stop: Stop,
    limits: Limits,
    /// Note to the user if rank 0 listens at other addresses than the meeting's.
    note: Option<String>,
}

#[derive(Debug)]
enum Hub {
    /// On rank 0: the links to ranks 1, 2, ….
    Here(Vec<Link>),
    /// On other ranks: the link to rank 0.
    There(Link),
}

/// Rank and size of a job.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// This rank.
    pub rank: usize,
    /// Number of ranks, at least 2.
    pub size: usize,
}

impl Tcp {
    /// Connects with the other ranks. Collective.
    ///
    /// # Errors
    /// [`Error::Network`] if rank 0 cannot listen or be reached, [`Error::Missing`] if ranks do not connect in time,
    /// [`Error::WrongPeer`] if the peer does not belong to this job.
    pub fn join(place: Place, meeting: &Meeting, token: &Token, limits: Limits, stop: Stop) -> Result<Self, Error> {
        let Place { rank, size } = place;
        let until = Instant::now() + limits.join;
        let (hub, own_ip, note) = if rank == 0 {
            let (listener, note) = listen(meeting, until, &stop)?;
            let ip = listener.local_addr().map_err(network("the address of rank 0"))?.ip();
            let expected: Vec<usize> = (1..size).collect();
            let server = Server { rank, size, token, purpose: Purpose::Hub };
            let streams = accept(&listener, &expected, &server, until, &stop)?;
            (Hub::Here(streams.into_values().map(Link::new).collect::<Result<_, _>>()?), ip, note)
        } else {
            let hello = Hello { rank, size, purpose: Purpose::Hub };
            let stream = reach(meeting, &hello, token, until, &stop)?;
            let ip = stream.local_addr().map_err(network("this rank's address"))?.ip();
            (Hub::There(Link::new(stream)?), ip, None)
        };
        let mut fabric = Self { rank, size, hub, pairs: BTreeMap::new(), stop, limits, note };
        fabric.connect_pairs(own_ip, token, until)?;
        Ok(fabric)
    }

    /// A note to the user on the address at which rank 0 listens.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Opens one connection for each edge of the ping tree that touches this rank.
    fn connect_pairs(&mut self, own_ip: IpAddr, token: &Token, until: Instant) -> Result<(), Error> {
        let edges = PingTree::new(self.size, usize::MAX).edges();
        let listener = TcpListener::bind((own_ip, 0)).map_err(network("a port for pings"))?;
        let port = listener.local_addr().map_err(network("a port for pings"))?.port();
        let [high, low] = ip_words(own_ip);
        let all = self.all_gather(Lane::Control, &[high, low, u64::from(port)])?;
        let of = |rank: usize| {
            let words = &all[3 * rank..3 * rank + 3];
            (ip_of([words[0], words[1]]), words[2] as u16)
        };
        for (_, parent) in edges.iter().filter(|(child, _)| *child == self.rank) {
            let (ip, port) = of(*parent);
            // If rank 0 listens on all its addresses, use the one that this rank is connected to.
            let ip = if ip.is_unspecified() { self.hub_ip()? } else { ip };
            let hello = Hello { rank: self.rank, size: self.size, purpose: Purpose::Pings };
            let stream = TcpStream::connect_timeout(&SocketAddr::new(ip, port), remaining(until))
                .map_err(network(format!("rank {parent} at {ip} port {port}")))?;
            handshake::client(&stream, &hello, token, *parent, (until, &self.stop))?;
            self.pairs.insert(*parent, Words::new(stream)?);
        }
        let children: Vec<usize> = edges.iter().filter(|(_, p)| *p == self.rank).map(|(child, _)| *child).collect();
        let server = Server { rank: self.rank, size: self.size, token, purpose: Purpose::Pings };
        for (child, stream) in accept(&listener, &children, &server, until, &self.stop)? {
            self.pairs.insert(child, Words::new(stream)?);
        }
        Ok(())
    }

    fn hub_ip(&self) -> Result<IpAddr, Error> {
        match &self.hub {
            Hub::There(link) => link.peer_ip(),
            Hub::Here(_) => Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        }
    }

    /// Returns the bytes of all ranks in rank order, on every rank.
    fn exchange(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let until = Instant::now() + self.limits.answer.max(self.limits.join);
        match &self.hub {
            Hub::Here(links) => {
                let mut all = vec![mine];
                for (at, link) in links.iter().enumerate() {
                    all.push(link.receive(MAX_FRAME_BYTES, until, &self.stop).map_err(of_rank(at + 1))?);
                }
                let joined = frames_joined(&all);
                for (at, link) in links.iter().enumerate() {
                    link.send(&joined, until).map_err(of_rank(at + 1))?;
                }
                Ok(all)
            }
            Hub::There(link) => {
                link.send(&mine, until).map_err(of_rank(0))?;
                let joined = link.receive(MAX_FRAME_BYTES, until, &self.stop).map_err(of_rank(0))?;
                frames_split(&joined, self.size)
                    .ok_or_else(|| Error::WrongPeer("rank 0 sent a malformed message".into()))
            }
        }
    }

    fn pair(&self, peer: usize) -> Result<&Words, Error> {
        self.pairs.get(&peer).ok_or(Error::Abandoned)
    }
}

impl Control for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn version(&self) -> String {
        "tcp".into()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.exchange(Vec::new()).map(|_| ())
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let mine = if self.rank == 0 { bytes } else { Vec::new() };
        Ok(self.exchange(mine)?.swap_remove(0))
    }

    fn all_gather(&self, _lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error> {
        let bytes = mine.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = self.exchange(bytes)?;
        if let Some(rank) = all.iter().position(|given| given.len() != 8 * mine.len()) {
            return Err(Error::WrongPeer(format!(
                "rank {rank} sent {} bytes instead of {}: it is in another exchange",
                all[rank].len(),
                8 * mine.len()
            )));
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(all.concat().chunks_exact(8).map(word).collect())
    }

    fn send_word(&self, peer: usize, word: i64) -> Result<(), Error> {
        let until = Instant::now() + self.limits.answer;
        self.pair(peer)?.send(word, until).map_err(of_rank(peer))
    }

    fn receive_word(&self, peer: usize) -> Result<i64, Error> {
        let until = Instant::now() + self.limits.answer;
        self.pair(peer)?.receive(until, &self.stop).map_err(of_rank(peer))
    }

    fn abandon(&self, _exit_code: u8) {
        self.stop.abandon();
    }
}

fn network(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Network { what: what.into(), source }
}

fn of_rank(rank: usize) -> impl FnOnce(link::Failure) -> Error {
    move |failure| match failure {
        link::Failure::Io(source) => Error::Network { what: format!("the connection with rank {rank}"), source },
        link::Failure::Stop(error) => error,
    }
}

fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Rank 0's listener. Waits until the port is free, because a short connection of another process may use it.
fn listen(meeting: &Meeting, until: Instant, stop: &Stop) -> Result<(TcpListener, Option<String>), Error> {
    loop {
        match listen_now(meeting) {
            Err(Error::Network { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < until =>
            {
                stop.check()?;
                std::thread::sleep(RETRY);
            }
            other => return other,
        }
    }
}

/// Listens at the meeting's address or, if this host does not have that address, at all of its addresses.
fn listen_now(meeting: &Meeting) -> Result<(TcpListener, Option<String>), Error> {
    let Meeting { host, port, source, .. } = meeting;
    let what = || format!("rank 0 cannot listen at {host} port {port} ({source})");
    let addresses: Vec<SocketAddr> = (host.as_str(), *port).to_socket_addrs().map_err(network(what()))?.collect();
    match TcpListener::bind(&addresses[..]) {
        Ok(listener) => Ok((listener, None)),
        // The name belongs to a service, or its address is translated on the way to this host.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let note = format!("{host} is not an address of this host: rank 0 listens at all of its addresses");
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", *port)))
                .map_err(network(what()))?;
            Ok((listener, Some(note)))
        }
        Err(error) => Err(network(what())(error)),
    }
}

/// Connects to rank 0; retries until rank 0 listens.
fn reach(meeting: &Meeting, hello: &Hello, token: &Token, until: Instant, stop: &Stop) -> Result<TcpStream, Error> {
    let Meeting { host, port, source, .. } = meeting;
    loop {
        let attempt = || {
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, remaining(until).min(Duration::from_secs(2))) {
                    // Without a listener, a connection from the same port connects to itself.
                    Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = error,
                }
            }
            Err(last)
        };
        match attempt() {
            Ok(stream) => {
                handshake::client(&stream, hello, token, 0, (until, stop))?;
                return Ok(stream);
            }
            Err(error) if Instant::now() >= until => {
                return Err(network(format!("rank 0 could not be reached at {host} port {port} ({source})"))(error));
            }
            Err(_) => {
                stop.check()?;
                std::thread::sleep(RETRY);
            }
        }
    }
}

fn ip_words(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

fn ip_of([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

/// The frames one after the other, each with its length before it.
fn frames_joined(all: &[Vec<u8>]) -> Vec<u8> {
    all.iter().flat_map(|frame| (frame.len() as u64).to_le_bytes().into_iter().chain(frame.iter().copied())).collect()
}

fn frames_split(mut joined: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::with_capacity(count);
    while !joined.is_empty() {
        let (length, rest) = joined.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (frame, rest) = rest.split_at_checked(length)?;
        all.push(frame.to_vec());
        joined = rest;
    }
    (all.len() == count).then_some(all)
}

#[cfg(test)]
mod tests;
