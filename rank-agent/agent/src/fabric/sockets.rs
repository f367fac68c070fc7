//! The fabric of `exec`: plain sockets, because the recorded program owns MPI and NCCL.
//!
//! ```text
//!  control   rank 0 is the hub: 1 ── 0 ── 2, 3 ── 0 …      frames: length, bytes
//!  pings     one connection for each edge of the tree       words of 8 bytes, read without sleeping
//! ```
//!
//! If all ranks share a host, they meet at Unix sockets, and the kernel says that they belong to one user (`stream`). Between hosts,
//! rank 0 listens at the TCP address of [`launch::Meeting`], and both ends of every connection prove that they know the job's token
//! (`handshake`). Every wait ends: with an answer, with the end of the connection, or after [`Limits`].

mod accept;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod handshake;
mod link;
mod stream;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use launch::Meeting;

use super::{Control, Lane, Stop};
use crate::Error;
use crate::fabric::ping::PingTree;
use accept::{Accepted, accept};
pub use handshake::Token;
pub(crate) use handshake::random;
use handshake::{Hello, Purpose, Server};
use link::{Link, Words};
use stream::{Listener, Names, Stream};

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
/// The same where rank 0 listens, but has no room for a further connection.
const RETRY_SOON: Duration = Duration::from_millis(2);
/// Longest message: the words of some hundred thousand ranks.
const MAX_FRAME_BYTES: usize = 16 << 20;

/// A rank with its connections to the others. It counts the ranks that have met; [`Control::rank_in_job`] names them.
#[derive(Debug)]
pub struct Sockets {
    rank: usize,
    /// The ranks of the job that have met, ascending.
    members: Vec<usize>,
    /// The ranks of the job that have not, and why.
    absent: Option<Error>,
    hub: Hub,
    pairs: BTreeMap<usize, Words>,
    /// Name of the job and its port, which name the Unix sockets.
    job: (String, u16),
    /// This rank's address on the connection with rank 0; `None`: all ranks are on this host.
    own_ip: Option<IpAddr>,
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

impl Sockets {
    /// Connects with the other ranks. Collective. Ranks that do not come are [`absent`](Self::absent) for rank 0.
    ///
    /// # Errors
    /// [`Error::Network`] if rank 0 cannot listen or be reached, [`Error::WrongPeer`] if the peer does not belong to this
    /// job or user, [`Error::Missing`] if a rank that rank 0 has met does not reach this one.
    pub fn join(place: Place, meeting: &Meeting, token: &Token, limits: Limits, stop: Stop) -> Result<Self, Error> {
        let until = Instant::now() + limits.join;
        let mut fabric = match place.rank {
            0 => Self::receive_all(place, meeting, token, (limits, until), stop)?,
            _ => Self::reach_rank_0(place, meeting, token, (limits, until), stop)?,
        };
        // The ranks that have come may connect to each other in as much time again.
        fabric.connect_pairs(place.size, token, Instant::now() + limits.join)?;
        Ok(fabric)
    }

    /// The fabric of a rank that has met no other one.
    pub fn alone(rank: usize, limits: Limits, stop: Stop) -> Self {
        Self::new((0, vec![rank]), Hub::Here(Vec::new()), None, (limits, stop))
    }

    fn new(
        (rank, members): (usize, Vec<usize>),
        hub: Hub,
        meeting: Option<&Meeting>,
        (limits, stop): (Limits, Stop),
    ) -> Self {
        let job = meeting.map(|meeting| (meeting.job.clone(), meeting.port)).unwrap_or_default();
        let (pairs, own_ip) = (BTreeMap::new(), None);
        Self { rank, members, absent: None, hub, pairs, job, own_ip, stop, limits, note: None }
    }

    /// Rank 0: waits for the others, and sends each the list of the ranks that have come.
    fn receive_all(
        place: Place,
        meeting: &Meeting,
        token: &Token,
        (limits, until): (Limits, Instant),
        stop: Stop,
    ) -> Result<Self, Error> {
        let Place { rank, size } = place;
        let (listener, note) = listen(meeting, until, &stop)?;
        let own_ip = match &listener {
            Listener::Tcp(listener) => Some(listener.local_addr().map_err(network("the address of rank 0"))?.ip()),
            Listener::Unix(..) => None,
        };
        let expected: Vec<usize> = (1..size).collect();
        let server = Server { rank, size, token, purpose: Purpose::Hub };
        let accepted = accept(&listener, &expected, &server, until, &stop)?;
        let members: Vec<usize> = [0].into_iter().chain(accepted.streams.keys().copied()).collect();
        let links: Vec<Link> = accepted.streams.into_values().map(Link::new).collect::<Result<_, _>>()?;
        let roster: Vec<u8> = members.iter().flat_map(|member| (*member as u64).to_le_bytes()).collect();
        for (link, member) in links.iter().zip(&members[1..]) {
            link.send(&roster, Instant::now() + limits.answer).map_err(of_rank(*member))?;
        }
        let missing = |ranks| Error::Missing {
            ranks,
            place: place_of(meeting),
            limit_s: limits.join.as_secs(),
            refused: accepted.refused,
        };
        let absent = (!accepted.absent.is_empty()).then(|| missing(accepted.absent));
        let fabric = Self::new((rank, members), Hub::Here(links), Some(meeting), (limits, stop));
        Ok(Self { absent, own_ip, note, ..fabric })
    }

    /// Any other rank: connects to rank 0, and learns which ranks have come.
    fn reach_rank_0(
        place: Place,
        meeting: &Meeting,
        token: &Token,
        (limits, until): (Limits, Instant),
        stop: Stop,
    ) -> Result<Self, Error> {
        let Place { rank, size } = place;
        let hello = Hello { rank, size, purpose: Purpose::Hub };
        let stream = reach(meeting, &hello, token, (until, limits.join), &stop)?;
        let link = Link::new(stream)?;
        let own_ip = link.ips()?.map(|[own, _]| own);
        // Rank 0 has only now begun to wait, if it started later than this rank.
        let until = Instant::now() + limits.join + limits.answer;
        let roster = link.receive(MAX_FRAME_BYTES, until, &stop).map_err(of_rank(0))?;
        let members = members_of(&roster, place)
            .ok_or_else(|| Error::WrongPeer("rank 0 sent a malformed list of ranks".into()))?;
        let at = members.binary_search(&rank).unwrap_or_default();
        let fabric = Self::new((at, members), Hub::There(link), Some(meeting), (limits, stop));
        Ok(Self { own_ip, ..fabric })
    }

    /// A note to the user on the address at which rank 0 listens.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The reason why ranks of the job are not in this fabric. Only rank 0 knows it.
    pub fn absent(&self) -> Option<&Error> {
        self.absent.as_ref()
    }

    /// Opens one connection for each edge of the ping tree that touches this rank.
    fn connect_pairs(&mut self, size: usize, token: &Token, until: Instant) -> Result<(), Error> {
        let edges = PingTree::new(self.members.len(), usize::MAX).edges();
        let (rank, members) = (self.members[self.rank], self.members.clone());
        let listener = self.listen_for_pings(rank)?;
        let (mine, place) = match &listener {
            Listener::Tcp(listener) => {
                let address = listener.local_addr().map_err(network("a port for pings"))?;
                let [high, low] = ip_words(address.ip());
                ([high, low, u64::from(address.port())], format!("{} port {}", address.ip(), address.port()))
            }
            Listener::Unix(_, number) => ([0, 0, *number], "a socket of this host".into()),
        };
        let all = self.all_gather(Lane::Control, &mine)?;
        for (_, parent) in edges.iter().filter(|(child, _)| *child == self.rank) {
            let stream = self.reach_parent(members[*parent], &all[3 * parent..3 * parent + 3], until)?;
            let hello = Hello { rank, size, purpose: Purpose::Pings };
            handshake::client(&stream, &hello, token, members[*parent], (until, &self.stop))?;
            self.pairs.insert(*parent, Words::new(stream)?);
        }
        let children: Vec<usize> = edges.iter().filter(|(_, p)| *p == self.rank).map(|(child, _)| *child).collect();
        let expected: Vec<usize> = children.iter().map(|child| members[*child]).collect();
        let server = Server { rank, size, token, purpose: Purpose::Pings };
        let Accepted { streams, absent, refused } = accept(&listener, &expected, &server, until, &self.stop)?;
        if !absent.is_empty() {
            let place = format!("{place}, where rank {rank} compares clocks");
            return Err(Error::Missing { ranks: absent, place, limit_s: self.limits.join.as_secs(), refused });
        }
        for (child, stream) in children.into_iter().zip(streams.into_values()) {
            self.pairs.insert(child, Words::new(stream)?);
        }
        Ok(())
    }

    fn listen_for_pings(&self, rank: usize) -> Result<Listener, Error> {
        let what = "a socket for pings";
        match self.own_ip {
            Some(ip) => TcpListener::bind((ip, 0)).map(Listener::Tcp).map_err(network(what)),
            // Rank 0 of one more meeting of this job must not be found here.
            None => Names::new(&format!("pings of {}", self.job.0), self.job.1, rank).listen().map_err(network(what)),
        }
    }

    /// A connection to the rank of the job at the other end of an edge of the ping tree. `words` are what it said of its listener.
    fn reach_parent(&self, parent: usize, words: &[u64], until: Instant) -> Result<Stream, Error> {
        let Some(_) = self.own_ip else {
            let names = Names::new(&format!("pings of {}", self.job.0), self.job.1, parent);
            loop {
                match names.connect(words[2]) {
                    Ok(stream) => return stream.check_user().map(|()| stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                        self.stop.check()?;
                        std::thread::sleep(RETRY_SOON);
                    }
                    Err(error) => return Err(network(format!("the socket of rank {parent}"))(error)),
                }
            }
        };
        let (ip, port) = (ip_of([words[0], words[1]]), words[2] as u16);
        // If rank 0 listens on all its addresses, use the one that this rank is connected to.
        let ip = if ip.is_unspecified() { self.hub_ip()? } else { ip };
        TcpStream::connect_timeout(&SocketAddr::new(ip, port), remaining(until))
            .map(Stream::Tcp)
            .map_err(network(format!("rank {parent} cannot be reached at {ip} port {port}")))
    }

    fn hub_ip(&self) -> Result<IpAddr, Error> {
        let ips = match &self.hub {
            Hub::There(link) => link.ips()?,
            Hub::Here(_) => None,
        };
        Ok(ips.map_or(IpAddr::V6(Ipv6Addr::LOCALHOST), |[_, peer]| peer))
    }

    /// Returns the bytes of all ranks in rank order, on every rank.
    fn exchange(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let until = Instant::now() + self.limits.answer.max(self.limits.join);
        match &self.hub {
            Hub::Here(links) => {
                let mut all = vec![mine];
                for (link, member) in links.iter().zip(self.members.iter().skip(1)) {
                    all.push(link.receive(MAX_FRAME_BYTES, until, &self.stop).map_err(of_rank(*member))?);
                }
                let joined = frames_joined(&all);
                for (link, member) in links.iter().zip(self.members.iter().skip(1)) {
                    link.send(&joined, until).map_err(of_rank(*member))?;
                }
                Ok(all)
            }
            Hub::There(link) => {
                link.send(&mine, until).map_err(of_rank(0))?;
                let joined = link.receive(MAX_FRAME_BYTES, until, &self.stop).map_err(of_rank(0))?;
                frames_split(&joined, self.members.len())
                    .ok_or_else(|| Error::WrongPeer("rank 0 sent a malformed message".into()))
            }
        }
    }

    fn pair(&self, peer: usize) -> Result<&Words, Error> {
        self.pairs.get(&peer).ok_or(Error::Abandoned)
    }
}

impl Control for Sockets {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn rank_in_job(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or(rank)
    }

    fn version(&self) -> String {
        if self.own_ip.is_some() { "tcp".into() } else { "unix".into() }
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
                "rank {} sent {} bytes instead of {}: it is in another exchange",
                self.rank_in_job(rank),
                all[rank].len(),
                8 * mine.len()
            )));
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(all.concat().chunks_exact(8).map(word).collect())
    }

    fn send_word(&self, peer: usize, word: i64) -> Result<(), Error> {
        let until = Instant::now() + self.limits.answer;
        self.pair(peer)?.send(word, until).map_err(of_rank(self.rank_in_job(peer)))
    }

    fn receive_word(&self, peer: usize) -> Result<i64, Error> {
        let until = Instant::now() + self.limits.answer;
        self.pair(peer)?.receive(until, &self.stop).map_err(of_rank(self.rank_in_job(peer)))
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

/// Rank 0's listener. Waits until its address is free, because a short connection of another process may use it.
fn listen(meeting: &Meeting, until: Instant, stop: &Stop) -> Result<(Listener, Option<String>), Error> {
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
fn listen_now(meeting: &Meeting) -> Result<(Listener, Option<String>), Error> {
    let Meeting { host, port, .. } = meeting;
    let what = || format!("rank 0 cannot listen at {}", place_of(meeting));
    if meeting.is_local {
        return Names::new(&meeting.job, *port, 0).listen().map(|listener| (listener, None)).map_err(network(what()));
    }
    let addresses: Vec<SocketAddr> = (host.as_str(), *port).to_socket_addrs().map_err(network(what()))?.collect();
    match TcpListener::bind(&addresses[..]) {
        Ok(listener) => Ok((Listener::Tcp(listener), None)),
        // The name belongs to a service, or its address is translated on the way to this host.
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let note = format!("{host} is not an address of this host: rank 0 listens at all of its addresses");
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", *port)))
                .map_err(network(what()))?;
            Ok((Listener::Tcp(listener), Some(note)))
        }
        Err(error) => Err(network(what())(error)),
    }
}

/// Connects to rank 0; retries until rank 0 listens.
fn reach(
    meeting: &Meeting,
    hello: &Hello,
    token: &Token,
    (until, limit): (Instant, Duration),
    stop: &Stop,
) -> Result<Stream, Error> {
    let Meeting { host, port, .. } = meeting;
    loop {
        let attempt = || {
            if meeting.is_local {
                return Names::new(&meeting.job, *port, 0).find();
            }
            let mut last = io::Error::from(io::ErrorKind::NotFound);
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, remaining(until).min(Duration::from_secs(2))) {
                    // Without a listener, a connection from the same port connects to itself.
                    Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {}
                    Ok(stream) => return Ok(Stream::Tcp(stream)),
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
                let (place, limit_s) = (place_of(meeting), limit.as_secs());
                return Err(network(format!("rank 0 could not be reached at {place} within {limit_s} s"))(error));
            }
            Err(error) => {
                stop.check()?;
                let is_full = error.kind() == io::ErrorKind::WouldBlock;
                std::thread::sleep(if is_full { RETRY_SOON } else { RETRY });
            }
        }
    }
}

/// The address of a meeting for messages, and the variable or option that gives it.
fn place_of(meeting: &Meeting) -> String {
    let Meeting { host, port, source, .. } = meeting;
    if meeting.is_local {
        format!("the socket of this host's ranks ({source})")
    } else {
        format!("{host} port {port} ({source})")
    }
}

/// The ranks in rank 0's list; `None` if they cannot be those of a job that holds rank 0 and this rank.
fn members_of(roster: &[u8], place: Place) -> Option<Vec<usize>> {
    let (words, []) = roster.as_chunks::<8>() else { return None };
    let members: Vec<usize> =
        words.iter().map(|word| usize::try_from(u64::from_le_bytes(*word)).ok()).collect::<Option<_>>()?;
    let is_sorted = members.is_sorted_by(|a, b| a < b);
    let belongs = members.first() == Some(&0) && members.last()? < &place.size && members.contains(&place.rank);
    (is_sorted && belongs).then_some(members)
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
