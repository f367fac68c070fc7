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
//! This keeps jobs apart. It keeps other users out as far as the token is secret. Nothing is encrypted: the messages are
//! clock readings and the name of the run.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::link::{Failure, read_all, write_all};
use crate::Error;
use crate::fabric::Stop;

/// The protocol and its version.
const MAGIC: &[u8; 16] = b"rankscope exec 1";
/// Longest time for the handshake of a peer, so that a silent connection does not block the others.
const PATIENCE: Duration = Duration::from_secs(2);

type Nonce = [u8; 16];
type Proof = [u8; 32];

/// The secret that the ranks of a job share.
#[derive(Clone)]
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
    stream: &TcpStream,
    hello: &Hello,
    token: &Token,
    server: usize,
    (until, stop): (Instant, &Stop),
) -> Result<(), Error> {
    prepare(stream)?;
    let failed = |fault: Failure| match fault {
        Failure::Stop(error) => error,
        Failure::Io(source) if source.kind() == std::io::ErrorKind::TimedOut => {
            Error::Network { what: format!("the answer of rank {server}"), source }
        }
        Failure::Io(source) => Error::WrongPeer(format!(
            "rank {server} closed the connection ({source}): it belongs to another job, or has another RANKSCOPE_TOKEN"
        )),
    };
    let nonce = random()?;
    let words = hello.bytes();
    let first = [&MAGIC[..], &words, &nonce].concat();
    write_all(stream, &first, until).map_err(failed)?;
    let challenge: Nonce = read(stream, until, || stop.check()).map_err(failed)?;
    write_all(stream, &proof(token, b"client", &nonce, &challenge, &words)?, until).map_err(failed)?;
    let theirs: Proof = read(stream, until, || stop.check()).map_err(failed)?;
    let signed = [&words[..], &(server as u64).to_le_bytes()].concat();
    verify(token, b"server", &nonce, &challenge, &signed, &theirs).map_err(|()| {
        Error::WrongPeer(format!("the process that answered as rank {server} does not know this job's token"))
    })
}

/// Returns the rank that has connected; `own` is this rank.
pub(super) fn server(
    stream: &TcpStream,
    size: usize,
    token: &Token,
    purpose: Purpose,
    own: usize,
) -> Result<usize, Error> {
    prepare(stream)?;
    let until = Instant::now() + PATIENCE;
    let failed = |fault: Failure| match fault {
        Failure::Stop(error) => error,
        Failure::Io(source) => Error::WrongPeer(format!("it closed the connection: {source}")),
    };
    let magic: [u8; MAGIC.len()] = read(stream, until, || Ok(())).map_err(failed)?;
    if magic != *MAGIC {
        return Err(Error::WrongPeer("it uses another protocol, or another version of this one".into()));
    }
    let words: [u8; HELLO_BYTES] = read(stream, until, || Ok(())).map_err(failed)?;
    let nonce: Nonce = read(stream, until, || Ok(())).map_err(failed)?;
    let challenge = random()?;
    write_all(stream, &challenge, until).map_err(failed)?;
    let theirs: Proof = read(stream, until, || Ok(())).map_err(failed)?;
    verify(token, b"client", &nonce, &challenge, &words, &theirs)
        .map_err(|()| Error::WrongPeer("it does not know this job's token (RANKSCOPE_TOKEN)".into()))?;
    let word = |at: usize| words[4 * at..4 * at + 4].try_into().map_or(usize::MAX, |b| u32::from_le_bytes(b) as usize);
    let (rank, its_size, its_purpose) = (word(0), word(1), word(2));
    if its_size != size || its_purpose != purpose as usize {
        return Err(Error::WrongPeer(format!(
            "it is rank {rank} of a job with {its_size} ranks, and this job has {size}"
        )));
    }
    let signed = [&words[..], &(own as u64).to_le_bytes()].concat();
    write_all(stream, &proof(token, b"server", &nonce, &challenge, &signed)?, until).map_err(failed)?;
    Ok(rank)
}

fn prepare(stream: &TcpStream) -> Result<(), Error> {
    let set = || {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))
    };
    set().map_err(|source| Error::Network { what: "a connection".into(), source })
}

fn read<const N: usize>(
    stream: &TcpStream,
    until: Instant,
    go_on: impl Fn() -> Result<(), Error>,
) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    read_all(stream, &mut bytes, until, go_on)?;
    Ok(bytes)
}

fn random() -> Result<Nonce, Error> {
    let mut nonce = [0; 16];
    let read = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    match read {
        Ok(n) if n == nonce.len() => Ok(nonce),
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
