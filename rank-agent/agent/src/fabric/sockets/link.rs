//! Messages over one connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::stream::Stream;
use crate::Error;
use crate::fabric::Stop;

/// Interval at which a wait checks its end.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Bytes of a message that are read first. Each next part is as long as all before.
const PART_BYTES: usize = 64 << 10;

/// The reason why a message failed.
#[derive(Debug)]
pub(super) enum Failure {
    Io(io::Error),
    /// A signal, or another rank, ends the wait.
    Stop(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Messages of any length; a reader sleeps until a message arrives.
#[derive(Debug)]
pub(super) struct Link(Stream);

impl Link {
    pub(super) fn new(stream: Stream) -> Result<Self, Error> {
        stream
            .wait_at_most(Some(CHECK_INTERVAL))
            .map_err(|source| Error::Network { what: "a connection".into(), source })?;
        Ok(Self(stream))
    }

    /// The addresses of this end and of the other one; `None` of a Unix socket.
    pub(super) fn ips(&self) -> Result<Option<[IpAddr; 2]>, Error> {
        self.0.ips().map_err(|source| Error::Network { what: "the addresses of a connection".into(), source })
    }

    pub(super) fn send(&self, bytes: &[u8], until: Instant) -> Result<(), Failure> {
        let mut frame = (bytes.len() as u64).to_le_bytes().to_vec();
        frame.extend_from_slice(bytes);
        write_all(&self.0, &frame, until)
    }

    pub(super) fn receive(&self, most_bytes: usize, until: Instant, stop: &Stop) -> Result<Vec<u8>, Failure> {
        receive(&self.0, most_bytes, until, stop)
    }
}

/// Reads one message.
pub(super) fn receive(
    mut stream: impl Read,
    most_bytes: usize,
    until: Instant,
    stop: &Stop,
) -> Result<Vec<u8>, Failure> {
    let mut length = [0; 8];
    read_all(&mut stream, &mut length, until, || stop.check())?;
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= most_bytes);
    let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a message is too long"))?;
    let mut bytes = Vec::new();
    while bytes.len() < length {
        // The length is a claim, so memory grows only with the bytes that arrive.
        let (from, to) = (bytes.len(), length.min((2 * bytes.len()).max(PART_BYTES)));
        bytes.reserve_exact(to - from);
        bytes.resize(to, 0);
        read_all(&mut stream, &mut bytes[from..], until, || stop.check())?;
    }
    Ok(bytes)
}

/// Words, for pings; a reader spins, because a pause would be measured.
#[derive(Debug)]
pub(super) struct Words(Stream);

impl Words {
    pub(super) fn new(stream: Stream) -> Result<Self, Error> {
        stream.wait_at_most(None).map_err(|source| Error::Network { what: "a connection".into(), source })?;
        Ok(Self(stream))
    }

    pub(super) fn send(&self, word: i64, until: Instant) -> Result<(), Failure> {
        write_all(&self.0, &word.to_le_bytes(), until)
    }

    pub(super) fn receive(&self, until: Instant, stop: &Stop) -> Result<i64, Failure> {
        let mut word = [0; 8];
        read_all(&self.0, &mut word, until, || {
            std::thread::yield_now();
            stop.check()
        })?;
        Ok(i64::from_le_bytes(word))
    }
}

fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads until the buffer is full; calls `go_on` whenever no bytes have arrived.
pub(super) fn read_all(
    mut stream: impl Read,
    mut buffer: &mut [u8],
    until: Instant,
    go_on: impl Fn() -> Result<(), Error>,
) -> Result<(), Failure> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(error) if !is_wait(&error) => return Err(error.into()),
            Err(_) => go_on().map_err(Failure::Stop)?,
        }
        // Checked after every read, because a peer may send single bytes for ever.
        if !buffer.is_empty() && Instant::now() >= until {
            return Err(io::Error::from(ErrorKind::TimedOut).into());
        }
    }
    Ok(())
}

/// Writes all bytes, or fails when the time is up.
pub(super) fn write_all(mut stream: impl Write, mut bytes: &[u8], until: Instant) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if !is_wait(&error) => return Err(error.into()),
            Err(_) if Instant::now() >= until => return Err(io::Error::from(ErrorKind::TimedOut).into()),
            Err(_) => std::thread::yield_now(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a peer, and the largest part of a message that was asked for.
    struct Peer {
        bytes: io::Cursor<Vec<u8>>,
        most_asked: usize,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.most_asked = self.most_asked.max(buffer.len());
            self.bytes.read(buffer)
        }
    }

    fn received(claimed: usize, sent: usize) -> (Result<Vec<u8>, Failure>, usize) {
        let mut bytes = (claimed as u64).to_le_bytes().to_vec();
        bytes.extend((0..sent).map(|at| at as u8));
        let mut peer = Peer { bytes: io::Cursor::new(bytes), most_asked: 0 };
        let until = Instant::now() + Duration::from_secs(60);
        let message = receive(&mut peer, 16 << 20, until, &Stop::default());
        (message, peer.most_asked)
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        for sent in [3, PART_BYTES, PART_BYTES + 1] {
            let (message, most_asked) = received(16 << 20, sent);
            assert!(matches!(&message, Err(Failure::Io(error)) if error.kind() == ErrorKind::UnexpectedEof));
            assert!(most_asked <= PART_BYTES, "{most_asked} bytes for {sent}");
        }
        for length in [0, 1, PART_BYTES, 5 * PART_BYTES + 7] {
            let whole: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(received(length, length).0.unwrap(), whole);
        }
        assert!(received((16 << 20) + 1, 3).0.is_err());
    }
}
