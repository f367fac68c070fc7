//! A whole file, streamed: the thread that calls reads (and inflates) blocks and cuts them into pieces; rayon's
//! threads, and the caller whenever it would have to wait, parse them.
//!
//! Memory is bounded by the pieces in flight and by what is kept. The result is that of one pass from front to back:
//! pieces are joined in the order of the file, and a piece that did not end where the next one begins is read again
//! together with it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kineto::chunk::{Edges, End, anchor, last_event_start, read_piece};
use crate::kineto::columns::{Columns, Scratch};
use crate::kineto::event::Wanted;
use crate::kineto::input::Input;
use crate::kineto::top::{Step, Top, TopParser};

/// Size of a block that is cut into one piece: large against an event, small against the caches that the thread which
/// inflates and the thread which parses share.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// Size of a block of the top level, which is short.
const HEAD_BYTES: usize = 64 << 10;

/// Pieces that are read and not yet joined, at most: one thread cannot read faster than about that many parse.
const MAX_IN_FLIGHT: usize = 18;

/// Longest single event or value of the top level; all of it must be in memory at once.
pub(crate) const MAX_VALUE_BYTES: usize = 256 << 20;

/// What a file gave.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    pub(crate) top: Top,
    /// Kept events in the order of the file, each with the number of the scratch its ids belong to.
    pub(crate) pieces: Vec<(u32, Columns)>,
    /// Names and tracks, by number.
    pub(crate) scratches: BTreeMap<u32, Scratch>,
    /// Where and why reading stopped, if it was not at the end.
    pub(crate) missing: Option<Missing>,
    /// What follows the document and was not read.
    pub(crate) trailing: Option<Missing>,
    /// Bytes of JSON text that were read.
    pub(crate) bytes: u64,
}

/// A place in a file from which on it was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Byte of the (inflated) text.
    pub(crate) byte: u64,
    pub(crate) why: String,
}

/// Reads a whole stream.
pub(crate) fn read_stream(input: Input, wanted: Wanted, block_bytes: usize) -> Streamed {
    let mut reader = Reader::new(input, wanted, block_bytes);
    reader.read_document();
    reader.finish()
}

/// A piece on its way to a parser.
struct Piece {
    number: u64,
    bytes: Vec<u8>,
    /// How much of `bytes` the piece is; the rest is room for a later use of the buffer.
    filled: usize,
}

/// A parsed piece.
struct Parsed {
    piece: Piece,
    read: Read,
}

/// What the parse of some bytes gave.
struct Read {
    scratch: u32,
    columns: Columns,
    end: End,
    edges: Edges,
}

/// What the reading thread and the parsers share.
struct Shared {
    wanted: Wanted,
    queue: Mutex<VecDeque<Piece>>,
    scratches: Mutex<Vec<(u32, Scratch)>>,
    next_scratch: AtomicU32,
    done: Sender<Parsed>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Parses the next piece in the queue; false if there is none.
    fn work_one(&self) -> bool {
        let Some(piece) = lock(&self.queue).pop_front() else { return false };
        let read = self.parse(&piece.bytes[..piece.filled]);
        // The receiver is gone only if the reader has given up; then nobody wants the piece.
        let _ = self.done.send(Parsed { piece, read });
        true
    }

    fn parse(&self, bytes: &[u8]) -> Read {
        let kept = lock(&self.scratches).pop();
        let (number, mut scratch) =
            kept.unwrap_or_else(|| (self.next_scratch.fetch_add(1, Ordering::Relaxed), Scratch::default()));
        let mut room = std::mem::take(&mut scratch.room);
        let (end, edges) = read_piece(bytes, self.wanted, &mut scratch, &mut room);
        let columns = room.take_exact();
        scratch.room = room;
        lock(&self.scratches).push((number, scratch));
        Read { scratch: number, columns, end, edges }
    }
}

/// How reading the list of events ended.
enum Ended {
    /// At its bracket; these bytes follow.
    Closed(Vec<u8>),
    /// The stream ended, or something is wrong; `missing` says what.
    Stopped,
}

struct Reader {
    input: Input,
    shared: Arc<Shared>,
    results: Receiver<Parsed>,
    block_bytes: usize,
    free: Vec<Vec<u8>>,
    parser: TopParser,
    out: Streamed,
    /// Absolute position of the first byte not yet consumed by the top level or by a joined piece.
    at: u64,
    /// Beginning of an event that its piece did not hold whole.
    tail: Vec<u8>,
    /// Length at which `tail` is parsed again: twice as long each time, so that a long event is not read over and over.
    tail_due: usize,
    /// The last piece was sent.
    all_sent: bool,
    /// The last thing joined was a whole item, so a comma must follow.
    after_item: bool,
    next_number: u64,
    next_join: u64,
    early: BTreeMap<u64, Parsed>,
}

impl Reader {
    fn new(input: Input, wanted: Wanted, block_bytes: usize) -> Self {
        let (done, results) = channel();
        let shared = Shared {
            wanted,
            queue: Mutex::default(),
            scratches: Mutex::default(),
            next_scratch: AtomicU32::new(0),
            done,
        };
        Self {
            input,
            shared: Arc::new(shared),
            results,
            block_bytes: block_bytes.max(16),
            free: Vec::new(),
            parser: TopParser::new(),
            out: Streamed::default(),
            at: 0,
            tail: Vec::new(),
            tail_due: 0,
            all_sent: false,
            after_item: false,
            next_number: 0,
            next_join: 0,
            early: BTreeMap::new(),
        }
    }

    fn finish(mut self) -> Streamed {
        self.out.bytes = self.input.read_bytes;
        self.out.top = std::mem::take(&mut self.parser.top);
        self.out.scratches = std::mem::take(&mut *lock(&self.shared.scratches)).into_iter().collect();
        // A stream that failed behind a complete document, such as by a wrong checksum, may have damaged what was read.
        // Where other text follows the document, reading stops at that, and whether the failure was met depends on the
        // blocks.
        if self.out.missing.is_none()
            && self.out.trailing.is_none()
            && let Some(failure) = self.input.failure.take()
        {
            let why = format!("{failure}; the document before it is whole, but may be damaged");
            self.out.trailing = Some(Missing { byte: self.input.read_bytes, why });
        }
        self.out
    }

    fn missing(&mut self, byte: u64, why: impl Into<String>) {
        self.out.missing = Some(Missing { byte, why: why.into() });
    }

    /// The stream ended too early: by the failure of the input, if there was one.
    fn ended_early(&mut self, why: &str) {
        let why = self.input.failure.take().unwrap_or_else(|| why.to_string());
        self.missing(self.at, why);
    }

    /// Reads the top level, and the list of events within it.
    fn read_document(&mut self) {
        let mut bytes = Vec::new();
        loop {
            match self.parser.step(&bytes) {
                Step::More(safe) => {
                    bytes.drain(..safe);
                    self.at += safe as u64;
                    if bytes.len() > MAX_VALUE_BYTES {
                        return self.missing(self.at, format!("a value is longer than {MAX_VALUE_BYTES} bytes"));
                    }
                    if !self.more(&mut bytes) {
                        let empty = self.input.read_bytes == 0;
                        return self.ended_early(if empty { "the file is empty" } else { "the file ends early" });
                    }
                }
                Step::Events(at) => {
                    self.at += at as u64;
                    bytes.drain(..at);
                    match self.read_events(bytes) {
                        Ended::Closed(rest) => {
                            self.parser.events_closed();
                            bytes = rest;
                        }
                        Ended::Stopped => return,
                    }
                }
                Step::Done(at) => return self.end_of_document(&bytes[at..], at),
                Step::Wrong(fault) => return self.missing(self.at + fault.at as u64, fault.what.describe()),
            }
        }
    }

    /// Appends a block to `bytes`; false at the end of the stream.
    fn more(&mut self, bytes: &mut Vec<u8>) -> bool {
        let before = bytes.len();
        // Twice as much each time, so that a long value is not read over and over from its start.
        bytes.resize(before + self.block_bytes.min(HEAD_BYTES).max(before), 0);
        let got = self.input.fill(&mut bytes[before..]);
        bytes.truncate(before + got);
        got > 0
    }

    /// Looks whether anything but blanks follows the document, of which `rest` was read already.
    fn end_of_document(&mut self, rest: &[u8], at: usize) {
        let text = |bytes: &[u8]| bytes.iter().position(|b| !matches!(b, b' ' | b'\n' | b'\r' | b'\t' | 0));
        let mut from = self.at + at as u64;
        let mut found = text(rest);
        let mut block = vec![0; self.block_bytes.min(4096)];
        let mut got = rest.len();
        let mut ended = false;
        while found.is_none() && !ended {
            from += got as u64;
            got = self.input.fill(&mut block);
            ended = got < block.len();
            found = text(&block[..got]);
        }
        if let Some(found) = found {
            let why = "more text follows the end of the document".to_string();
            self.out.trailing = Some(Missing { byte: from + found as u64, why });
        }
    }

    /// Reads the list of events, whose first bytes are in `first`.
    fn read_events(&mut self, first: Vec<u8>) -> Ended {
        self.after_item = false;
        let in_flight_max = (rayon::current_num_threads() + 2).min(MAX_IN_FLIGHT) as u64;
        self.all_sent = false;
        let mut carry = first;
        let mut key: Option<Vec<u8>> = None;
        loop {
            let (piece, ended) = self.next_piece(&mut carry, &mut key);
            self.dispatch(piece);
            self.all_sent = ended;
            let in_flight_allowed = if ended { 0 } else { in_flight_max };
            while self.next_number - self.next_join > in_flight_allowed {
                if let Some(ended) = self.join_next() {
                    return self.unwind(ended, carry);
                }
            }
            if ended {
                let inside = if self.tail.is_empty() { "the list of events" } else { "an event" };
                self.ended_early(&format!("the file ends inside {inside}"));
                return Ended::Stopped;
            }
        }
    }

    /// Reads the next block and cuts it at its last event; what is behind the cut becomes the next carry.
    fn next_piece(&mut self, carry: &mut Vec<u8>, key: &mut Option<Vec<u8>>) -> (Piece, bool) {
        let mut bytes = self.free.pop().unwrap_or_default();
        let held = carry.len();
        let size = self.block_bytes.max(held + self.block_bytes / 4);
        if bytes.len() < size {
            // Fresh zeros cost nothing until they are written, so a small file touches no more than it fills.
            bytes = vec![0; size];
        }
        bytes[..held].copy_from_slice(carry);
        let room = bytes.len();
        let got = self.input.fill(&mut bytes[held..room]);
        let filled = held + got;
        let ended = filled < room;
        if key.is_none() {
            *key = anchor(&bytes[..filled]);
        }
        let cut = match key {
            Some(key) if !ended => last_event_start(&bytes[..filled], key).unwrap_or(filled),
            _ => filled,
        };
        carry.clear();
        carry.extend_from_slice(&bytes[cut..filled]);
        let piece = Piece { number: self.next_number, bytes, filled: cut };
        self.next_number += 1;
        (piece, ended)
    }

    fn dispatch(&mut self, piece: Piece) {
        lock(&self.shared.queue).push_back(piece);
        if rayon::current_num_threads() > 1 {
            let shared = Arc::clone(&self.shared);
            // The piece may be taken by the reader before this runs; then there is nothing left to do.
            rayon::spawn(move || {
                shared.work_one();
            });
        }
    }

    /// The next piece in the order of the file. Blocks only while another thread is busy with a piece, so it cannot
    /// dead-lock.
    fn next_parsed(&mut self) -> Option<Parsed> {
        loop {
            if let Some(parsed) = self.early.remove(&self.next_join) {
                self.next_join += 1;
                return Some(parsed);
            }
            let parsed = match self.results.try_recv() {
                Ok(parsed) => parsed,
                Err(_) if self.shared.work_one() => continue,
                Err(_) => self.results.recv().ok()?,
            };
            self.early.insert(parsed.piece.number, parsed);
        }
    }

    /// Joins the next piece to what was read; says so if reading ends with it.
    fn join_next(&mut self) -> Option<Ended> {
        let Parsed { piece: Piece { mut bytes, filled, .. }, mut read } = self.next_parsed()?;
        let mut length = filled;
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(&bytes[..filled]);
            self.recycle(bytes);
            let last = self.all_sent && self.next_join == self.next_number;
            if self.tail.len() < self.tail_due && !last {
                return None;
            }
            bytes = std::mem::take(&mut self.tail);
            length = bytes.len();
            read = self.shared.parse(&bytes);
        }
        if let Err(fault) = read.edges.check(self.after_item) {
            self.missing(self.at + fault.at as u64, fault.what.describe());
            return Some(Ended::Stopped);
        }
        self.after_item = read.edges.after_item(self.after_item);
        self.out.pieces.push((read.scratch, read.columns));
        let ended = match read.end {
            End::Exact => {
                self.at += length as u64;
                None
            }
            End::Partial(from) => {
                self.at += from as u64;
                self.tail.extend_from_slice(&bytes[from..length]);
                self.tail_due = (2 * self.tail.len()).min(MAX_VALUE_BYTES + 1);
                (self.tail.len() > MAX_VALUE_BYTES).then(|| {
                    self.missing(self.at, format!("an event is longer than {MAX_VALUE_BYTES} bytes"));
                    Ended::Stopped
                })
            }
            End::Closed(at) => {
                self.at += at as u64 + 1;
                Some(Ended::Closed(bytes[at + 1..length].to_vec()))
            }
            End::Wrong(fault) => {
                self.missing(self.at + fault.at as u64, fault.what.describe());
                Some(Ended::Stopped)
            }
        };
        self.recycle(bytes);
        ended
    }

    /// Keeps a buffer for the next piece.
    fn recycle(&mut self, bytes: Vec<u8>) {
        if bytes.len() >= self.block_bytes && bytes.len() <= 2 * self.block_bytes && self.free.len() <= MAX_IN_FLIGHT {
            self.free.push(bytes);
        }
    }

    /// The list ended before pieces that were already on their way: waits for them, and takes their bytes back.
    fn unwind(&mut self, ended: Ended, carry: Vec<u8>) -> Ended {
        let mut following = Vec::new();
        while self.next_join < self.next_number {
            let Some(parsed) = self.next_parsed() else { break };
            following.extend_from_slice(&parsed.piece.bytes[..parsed.piece.filled]);
        }
        match ended {
            Ended::Closed(rest) => Ended::Closed([rest, following, carry].concat()),
            Ended::Stopped => Ended::Stopped,
        }
    }
}
