//! Mutual authentication: both sides prove that they know the job's token, without sending it.
//!
//! ```text
//!  client                                      server
//!  magic, rank, size, purpose, nonce c  ────▶
//!                                       ◀────  nonce s
//!  HMAC("client", c, s, hello)          ────▶
//!                                       ◀────  HMAC("server", c, s, hello, rank of the server)
//! ```
//!
//! This keeps jobs apart. Between hosts it keeps other users out, too; on one host the system does, and the token need be no secret.
//! Nothing is encrypted: the messages are clock readings and the name of the run.

use std::io::{self, Read, Write};
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::link::{CHECK_INTERVAL, Failure, read_all, write_all};
use super::stream::Stream;
use crate::Error;
use crate::fabric::Stop;

/// The protocol and its version.
const MAGIC: &[u8; 16] = b"rankscope exec 2";
type Nonce = [u8; 16];
type Proof = [u8; 32];

/// The secret that the ranks of a job share.
#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Token(Vec<u8>);

impl Token {
    /// A token of any length.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Hub = 1,
    Pings = 2,
}

/// A client's first message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) purpose: Purpose,
}

const HELLO_BYTES: usize = 12;

impl Hello {
    fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        for (to, value) in bytes.chunks_exact_mut(4).zip([self.rank, self.size, self.purpose as usize]) {
            to.copy_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
        }
        bytes
    }
}

/// Introduces this rank to the rank `server`, which may serve other ranks first.
pub(super) fn client(
    stream: &Stream,
    hello: &Hello,
    token: &Token,
    server: usize,
    (until, stop): (Instant, &Stop),
) -> Result<(), Error> {
    stream
        .wait_at_most(Some(CHECK_INTERVAL))
        .map_err(|source| Error::Network { what: "a connection".into(), source })?;
    introduce(stream, hello, token, server, (until, stop))
}

/// The client's side over any stream.
pub(super) fn introduce(
    mut stream: impl Read + Write,
    hello: &Hello,
    token: &Token,
    server: usize,
    (until, stop): (Instant, &Stop),
) -> Result<(), Error> {
    let failed = |fault: Failure| match fault {
        Failure::Stop(error) => error,
        Failure::Io(source) if source.kind() == std::io::ErrorKind::TimedOut => {
            Error::Network { what: format!("the answer of rank {server}"), source }
        }
        Failure::Io(source) => Error::WrongPeer(format!(
            "rank {server} refused this rank ({source}): it belongs to another job, or its RANKSCOPE_TOKEN differs"
        )),
    };
    let nonce: Nonce = random()?;
    let words = hello.bytes();
    let first = [&MAGIC[..], &words, &nonce].concat();
    write_all(&mut stream, &first, until).map_err(failed)?;
    let challenge: Nonce = read(&mut stream, until, || stop.check()).map_err(failed)?;
    write_all(&mut stream, &proof(token, b"client", &nonce, &challenge, &words)?, until).map_err(failed)?;
    let theirs: Proof = read(&mut stream, until, || stop.check()).map_err(failed)?;
    let signed = [&words[..], &(server as u64).to_le_bytes()].concat();
    verify(token, b"server", &nonce, &challenge, &signed, &theirs).map_err(|()| {
        Error::WrongPeer(format!("the process that answered as rank {server} has another RANKSCOPE_TOKEN"))
    })
}

/// The side that ranks connect to.
#[derive(Debug)]
pub(super) struct Server<'a> {
    /// This rank.
    pub(super) rank: usize,
    /// Number of ranks of the job.
    pub(super) size: usize,
    pub(super) token: &'a Token,
    pub(super) purpose: Purpose,
}

/// A connection whose rank is not known yet.
#[derive(Debug)]
pub(super) struct Handshake<S = Stream> {
    stream: S,
    received: Vec<u8>,
    challenge: Option<Nonce>,
}

/// The state of a handshake.
pub(super) enum Progress<S = Stream> {
    /// More bytes must come.
    Waits(Handshake<S>),
    /// The rank has proved that it belongs to the job.
    Done(usize, S),
}

/// Length of the client's first message.
const FIRST_BYTES: usize = MAGIC.len() + HELLO_BYTES + size_of::<Nonce>();

impl Handshake {
    /// A handshake that does not wait. A process of another user is refused, if the system tells who it is.
    pub(super) fn new(stream: Stream) -> Result<Self, Error> {
        stream.check_user()?;
        stream.wait_at_most(None).map_err(|source| Error::Network { what: "a connection".into(), source })?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Handshake<S> {
    /// A handshake over a stream that does not wait.
    pub(super) fn over(stream: S) -> Self {
        Self { stream, received: Vec::new(), challenge: None }
    }

    /// Takes the handshake as far as the bytes that have arrived allow; never waits.
    ///
    /// # Errors
    /// [`Error::WrongPeer`] if the peer does not belong to this job.
    pub(super) fn advance(mut self, server: &Server<'_>) -> Result<Progress<S>, Error> {
        let closed = |source| Error::WrongPeer(format!("it closed the connection: {source}"));
        if !self.receive(FIRST_BYTES).map_err(closed)? {
            return Ok(Progress::Waits(self));
        }
        if !self.received.starts_with(MAGIC) {
            return Err(Error::WrongPeer("it uses another protocol, or another version of this one".into()));
        }
        let challenge = match self.challenge {
            Some(challenge) => challenge,
            None => {
                let challenge = random()?;
                // The buffer of a new connection has room for this, so an error is the peer's.
                self.stream.write_all(&challenge).map_err(closed)?;
                *self.challenge.insert(challenge)
            }
        };
        if !self.receive(FIRST_BYTES + size_of::<Proof>()).map_err(closed)? {
            return Ok(Progress::Waits(self));
        }
        let rank = self.verify(server, &challenge)?;
        Ok(Progress::Done(rank, self.stream))
    }

    /// Receives up to `wanted` bytes in all; returns whether they are here. A peer that sends other bytes than a rank
    /// is refused before it has sent them all.
    fn receive(&mut self, wanted: usize) -> io::Result<bool> {
        while self.received.len() < wanted {
            let mut bytes = [0; FIRST_BYTES + size_of::<Proof>()];
            let missing = wanted - self.received.len();
            match self.stream.read(&mut bytes[..missing]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.received.len() >= wanted)
    }

    /// Checks the client's proof, and sends this side's.
    fn verify(&mut self, server: &Server<'_>, challenge: &Nonce) -> Result<usize, Error> {
        let Server { rank: own, size, token, purpose } = server;
        let (first, theirs) = self.received.split_at(FIRST_BYTES);
        let (words, nonce) = first[MAGIC.len()..].split_at(HELLO_BYTES);
        let short = |_| Error::WrongPeer("its message is too short".into());
        let nonce: Nonce = nonce.try_into().map_err(short)?;
        let theirs: Proof = theirs.try_into().map_err(short)?;
        verify(token, b"client", &nonce, challenge, words, &theirs)
            .map_err(|()| Error::WrongPeer("its RANKSCOPE_TOKEN differs from this rank's".into()))?;
        let word =
            |at: usize| words[4 * at..4 * at + 4].try_into().map_or(usize::MAX, |b| u32::from_le_bytes(b) as usize);
        let (rank, its_size, its_purpose) = (word(0), word(1), word(2));
        if its_size != *size || its_purpose != *purpose as usize {
            return Err(Error::WrongPeer(format!(
                "it is rank {rank} of a job with {its_size} ranks, and this job has {size}"
            )));
        }
        let signed = [words, &(*own as u64).to_le_bytes()].concat();
        let proof = proof(token, b"server", &nonce, challenge, &signed)?;
        let closed = |source| Error::WrongPeer(format!("it closed the connection: {source}"));
        self.stream.write_all(&proof).map_err(closed)?;
        Ok(rank)
    }
}

fn read<const N: usize>(
    stream: impl Read,
    until: Instant,
    go_on: impl Fn() -> Result<(), Error>,
) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    read_all(stream, &mut bytes, until, go_on)?;
    Ok(bytes)
}

/// Random bytes of the kernel.
///
/// # Errors
/// [`Error::Network`].
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match read {
        Ok(n) if n == N => Ok(bytes),
        Ok(_) => Err(Error::WrongPeer("the kernel gave too few random bytes".into())),
        Err(error) => Err(Error::Network { what: "random bytes".into(), source: error.into() }),
    }
}

fn mac(token: &Token, side: &[u8], nonce: &Nonce, challenge: &Nonce, signed: &[u8]) -> Result<Hmac<Sha256>, Error> {
    // HMAC accepts keys of any length, so this never fails.
    let mut mac = Hmac::<Sha256>::new_from_slice(&token.0)
        .map_err(|error| Error::WrongPeer(format!("RANKSCOPE_TOKEN: {error}")))?;
    for part in [side, nonce, challenge, signed] {
        mac.update(part);
    }
    Ok(mac)
}

fn proof(token: &Token, side: &[u8], nonce: &Nonce, challenge: &Nonce, signed: &[u8]) -> Result<Proof, Error> {
    Ok(mac(token, side, nonce, challenge, signed)?.finalize().into_bytes().into())
}

fn verify(
    token: &Token,
    side: &[u8],
    nonce: &Nonce,
    challenge: &Nonce,
    signed: &[u8],
    theirs: &Proof,
) -> Result<(), ()> {
    let mac = mac(token, side, nonce, challenge, signed).map_err(|_| ())?;
    // The comparison takes constant time.
    mac.verify_slice(theirs).map_err(|_| ())
}
