//! For fuzzing: the handshake of two ranks over a connection that changes bytes, and messages of any bytes.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::handshake::{Handshake, Hello, Progress, Purpose, Server, introduce};
use super::{MAX_FRAME_BYTES, Token, frames_joined, frames_split, ip_of, ip_words, link};
use crate::fabric::Stop;

/// Bytes of a whole handshake: from the client, and from the server.
const FROM_CLIENT: usize = 76;
const FROM_SERVER: usize = 48;
const LIMIT: Duration = Duration::from_secs(60);

/// For fuzzing: two ranks join each other exactly if no byte between them changes, and any bytes are a message or an error.
///
/// ```text
/// rank, size, purpose, token of the client │ the same of the server │ bytes that arrive at once │ position, change …
/// ```
///
/// # Panics
/// If a check fails.
pub fn check_any_connection(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<9>() else { return };
    match head[8] % 3 {
        0 => check_frames(usize::from(head[0]), rest),
        1 => check_noise(head, rest),
        _ => check_changes(head, rest),
    }
}

/// One side of a handshake: rank, size, purpose, token.
fn side([rank, size, purpose, token]: [u8; 4]) -> (Hello, Token) {
    let purpose = if purpose % 2 == 0 { Purpose::Hub } else { Purpose::Pings };
    let hello = Hello { rank: rank.into(), size: usize::from(size % 4) + 1, purpose };
    (hello, Token::new(vec![token; usize::from(token % 3) + 1]))
}

fn check_changes(head: &[u8; 9], rest: &[u8]) {
    let [a, b, c, d, e, f, g, h, pieces] = *head;
    let ((hello, token), (own, own_token)) = (side([a, b, c, d]), side([e, f, g, h]));
    let mut changes = [0; FROM_CLIENT + FROM_SERVER];
    for [at, change] in rest.as_chunks::<2>().0 {
        let at = usize::from(*at) % changes.len();
        changes[at] ^= change;
    }
    let server = Server { rank: own.rank, size: own.size, token: &own_token, purpose: own.purpose };
    let pipe = Rc::new(RefCell::new(Pipe::default()));
    let handshake = Some(Handshake::over(End(pipe.clone())));
    let piece = usize::from(pieces / 3) + 1;
    let mut wire = Wire { server: &server, handshake, pipe, changes, sent: 0, answered: 0, piece, accepted: None };
    let stop = Stop::default();
    let joined = introduce(&mut wire, &hello, &token, server.rank, (Instant::now() + LIMIT, &stop));
    wire.drive();
    let one_job = hello.size == own.size && hello.purpose == own.purpose && d == h;
    let is_same = |part: &[u8]| part.iter().all(|change| *change == 0);
    let expected = one_job && is_same(&changes[..FROM_CLIENT + 16]);
    assert_eq!(wire.accepted, expected.then_some(hello.rank), "the server's verdict");
    assert_eq!(joined.is_ok(), one_job && is_same(&changes), "the client's verdict: {joined:?}");
}

/// The connection: the server's ends of both directions.
#[derive(Debug, Default)]
struct Pipe {
    to_server: Vec<u8>,
    from_server: Vec<u8>,
}

/// The server's end, which never waits.
#[derive(Debug)]
struct End(Rc<RefCell<Pipe>>);

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.0.borrow_mut();
        let count = buffer.len().min(pipe.to_server.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        buffer[..count].copy_from_slice(&pipe.to_server[..count]);
        pipe.to_server.drain(..count);
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().from_server.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The client's end. Its bytes reach the server in pieces, changed.
struct Wire<'a> {
    server: &'a Server<'a>,
    handshake: Option<Handshake<End>>,
    pipe: Rc<RefCell<Pipe>>,
    /// In the order of the conversation: 44 bytes of the client, 16 of the server, 32 of the client, 32 of the server.
    changes: [u8; FROM_CLIENT + FROM_SERVER],
    sent: usize,
    answered: usize,
    piece: usize,
    accepted: Option<usize>,
}

impl Wire<'_> {
    fn drive(&mut self) {
        let Some(handshake) = self.handshake.take() else { return };
        match handshake.advance(self.server) {
            Ok(Progress::Waits(handshake)) => self.handshake = Some(handshake),
            Ok(Progress::Done(rank, _)) => self.accepted = Some(rank),
            Err(_) => {}
        }
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.piece);
        for byte in &bytes[..count] {
            let change = self.changes[if self.sent < 44 { self.sent } else { self.sent + 16 }];
            self.pipe.borrow_mut().to_server.push(byte ^ change);
            self.sent += 1;
        }
        self.drive();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.pipe.borrow_mut();
        // Without an answer the server has closed the connection.
        let count = buffer.len().min(self.piece).min(pipe.from_server.len());
        for (to, byte) in buffer.iter_mut().zip(pipe.from_server.drain(..count)) {
            *to = byte ^ self.changes[if self.answered < 16 { 44 + self.answered } else { 76 + self.answered }];
            self.answered += 1;
        }
        Ok(count)
    }
}

/// No bytes are accepted without the token.
fn check_noise(head: &[u8; 9], noise: &[u8]) {
    let [a, b, c, d, .., pieces] = *head;
    let (own, token) = side([a, b, c, d]);
    let server = Server { rank: own.rank, size: own.size, token: &token, purpose: own.purpose };
    let pipe = Rc::new(RefCell::new(Pipe::default()));
    let mut handshake = Some(Handshake::over(End(pipe.clone())));
    for piece in noise.chunks(usize::from(pieces / 3) + 1) {
        pipe.borrow_mut().to_server.extend_from_slice(piece);
        let Some(waits) = handshake.take() else { break };
        match waits.advance(&server) {
            Ok(Progress::Waits(waits)) => handshake = Some(waits),
            Ok(Progress::Done(rank, _)) => unreachable!("noise was taken for rank {rank}"),
            Err(_) => {}
        }
    }
}

fn check_frames(count: usize, bytes: &[u8]) {
    if let Some(all) = frames_split(bytes, count) {
        assert_eq!((all.len(), frames_joined(&all)), (count, bytes.to_vec()), "frames");
    }
    let frames: Vec<Vec<u8>> = bytes.chunks(count + 1).map(<[u8]>::to_vec).collect();
    assert_eq!(frames_split(&frames_joined(&frames), frames.len()), Some(frames), "frames there and back");
    let (until, stop) = (Instant::now() + LIMIT, Stop::default());
    let mut rest = bytes;
    while let Ok(message) = link::receive(&mut rest, MAX_FRAME_BYTES, until, &stop) {
        assert!(message.len() < bytes.len());
    }
    for words in bytes.as_chunks::<16>().0 {
        let bits = u128::from_le_bytes(*words);
        let words = [(bits >> 64) as u64, bits as u64];
        assert_eq!(ip_words(ip_of(words)), words, "an address");
    }
}
