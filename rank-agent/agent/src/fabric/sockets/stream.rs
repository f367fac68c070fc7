//! Connections: Unix sockets between ranks of one host, and TCP between hosts.
//!
//! The kernel tells who is at the other end of a Unix socket, so it needs no secret. Its name is abstract: it belongs to the network
//! namespace and not to a directory that another user may have made. Any user can take a name, so there are several, and a rank
//! passes those of other users.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::geteuid;
use twox_hash::XxHash3_64;

use crate::Error;

/// Names that a listener may have.
pub(super) const NAMES: u64 = 16;
/// Connections that wait to be accepted: ranks of a large job come together.
const BACKLOG: i32 = 4096;

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Sends words at once, and lets reads and writes wait at most `limit`; `None`: not at all.
    pub(super) fn wait_at_most(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(limit.is_none())?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(limit.is_none())?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
        }
    }

    /// Fails if a process of another user is at the other end. Only Unix sockets know.
    pub(super) fn check_user(&self) -> Result<(), Error> {
        let Self::Unix(stream) = self else { return Ok(()) };
        let peer = socket_peercred(stream)
            .map_err(|source| Error::Network { what: "the user of a connection".into(), source: source.into() })?;
        match peer.uid == geteuid() {
            true => Ok(()),
            false => Err(Error::WrongPeer(format!("a process of user {} connected", peer.uid.as_raw()))),
        }
    }

    /// The addresses of this end and of the other one; `None` of a Unix socket.
    pub(super) fn ips(&self) -> io::Result<Option<[IpAddr; 2]>> {
        match self {
            Self::Tcp(stream) => Ok(Some([stream.local_addr()?.ip(), stream.peer_addr()?.ip()])),
            Self::Unix(_) => Ok(None),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for connections.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    /// With the number of its name.
    Unix(UnixListener, u64),
}

impl Listener {
    /// The next connection, and where it comes from. It does not wait.
    pub(super) fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, from)| (Stream::Tcp(stream), from.to_string())),
            Self::Unix(listener, _) => {
                listener.accept().map(|(stream, _)| (Stream::Unix(stream), "a process of this host".into()))
            }
        }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener, _) => listener.set_nonblocking(true),
        }
    }
}

/// The sockets of a rank: of this user, job and rank.
#[derive(Clone, Debug)]
pub(super) struct Names(String);

impl Names {
    pub(super) fn new(job: &str, port: u16, rank: usize) -> Self {
        let job = XxHash3_64::oneshot(job.as_bytes());
        Self(format!("rankscope-{}-{job:016x}-{port}-{rank}", geteuid().as_raw()))
    }

    fn address(&self, number: u64) -> io::Result<SocketAddrUnix> {
        Ok(SocketAddrUnix::new_abstract_name(format!("{}-{number}", self.0).as_bytes())?)
    }

    fn socket() -> io::Result<rustix::fd::OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
    }

    /// Takes the name of this number, as another user may.
    #[cfg(test)]
    pub(super) fn take(&self, number: u64) -> io::Result<rustix::fd::OwnedFd> {
        let socket = Self::socket()?;
        bind(&socket, &self.address(number)?)?;
        Ok(socket)
    }

    /// Listens at the first name that no other user has. An error of kind `AddrInUse` if all are taken, or this user has one: a rank
    /// of an earlier job may still listen.
    pub(super) fn listen(&self) -> io::Result<Listener> {
        for number in 0..NAMES {
            let socket = Self::socket()?;
            match bind(&socket, &self.address(number)?).map_err(io::Error::from) {
                Ok(()) => {
                    listen(&socket, BACKLOG)?;
                    return Ok(Listener::Unix(UnixListener::from(socket), number));
                }
                Err(error) if error.kind() != ErrorKind::AddrInUse => return Err(error),
                Err(error) if self.connect(number).is_ok_and(|stream| stream.check_user().is_ok()) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Err(io::Error::new(ErrorKind::AddrInUse, "other users have taken the names of all of its sockets"))
    }

    /// A connection to the socket of this number, of whatever user. It does not wait: another user may never accept it.
    pub(super) fn connect(&self, number: u64) -> io::Result<Stream> {
        let socket = Self::socket()?;
        connect(&socket, &self.address(number)?)?;
        Ok(Stream::Unix(UnixStream::from(socket)))
    }

    /// A connection to this user's socket of any number.
    pub(super) fn find(&self) -> io::Result<Stream> {
        let mut error = io::Error::from(ErrorKind::NotFound);
        for number in 0..NAMES {
            match self.connect(number) {
                Ok(stream) if stream.check_user().is_ok() => return Ok(stream),
                Ok(_) => error = io::Error::new(ErrorKind::PermissionDenied, "another user listens at its name"),
                // Of many names, the one that exists says more than those that do not.
                Err(why) if why.kind() != ErrorKind::ConnectionRefused => error = why,
                Err(why) if error.kind() == ErrorKind::NotFound => error = why,
                Err(_) => {}
            }
        }
        Err(error)
    }
}
