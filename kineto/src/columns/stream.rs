//! Streams a whole file. The calling thread reads (and inflates) blocks and cuts them into pieces. rayon's threads
//! parse the pieces, and so does the calling thread whenever it would have to wait.
//!
//! The pieces in flight and the kept columns bound the memory. The result is that of one pass from front to back:
//! pieces are joined in the order of the file, and a piece that does not end where the next one begins is parsed again
//! together with it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use trace::lock;

use crate::bytes::input::Input;
use crate::bytes::memory::Room;
use crate::columns::batch::{Columns, Scratch};
use crate::columns::header::{Header, HeaderParser, HeaderStep};
use crate::columns::piece::{Edges, End, anchor, last_event_start, read_piece};
use crate::columns::processes::Processes;
use crate::columns::wanted_args::Wanted;

/// Size of a block, which becomes one piece: large compared with an event. The blocks in flight of several files fit into
/// the cache of a core, and the last blocks of a small file are shared out evenly.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// Size of a block of the header, which is short.
const HEAD_BYTES: usize = 64 << 10;

/// A value of the header of this length is read even if there is no room for rows, so that the file is known as a trace.
const HEADER_ROOM_BYTES: usize = 1 << 20;

/// Most pieces that are read and not yet joined. One thread cannot read faster than about this many threads parse.
const MAX_IN_FLIGHT: usize = 18;

/// Longest single event or value of the header: all of it must be in memory at once.
pub(crate) const MAX_VALUE_BYTES: usize = 256 << 20;

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    pub(crate) header: Header,
    /// Kept events in the order of the file, with the number of the scratch that their ids belong to.
    pub(crate) pieces: Vec<(u32, Columns)>,
    /// Names and tracks, by number.
    pub(crate) scratches: BTreeMap<u32, Scratch>,
    /// The place where reading stopped, if it is not the end.
    pub(crate) missing: Option<Missing>,
    /// It stopped there because the next rows have no room.
    pub(crate) is_full: bool,
    /// Text after the document, which was not read.
    pub(crate) trailing: Option<Missing>,
    /// Bytes of JSON text that were read.
    pub(crate) bytes: u64,
    /// Memory that the rows take until they are one table: an estimate.
    pub(crate) memory_bytes: u64,
}

/// A place in a file after which nothing was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Byte of the (inflated) text.
    pub(crate) byte: u64,
    pub(crate) why: String,
}

/// Reads a whole stream, or as much of it as has room.
pub(crate) fn read_stream(input: Input, wanted: Wanted, block_bytes: usize, room: Room) -> Streamed {
    read_processes(input, wanted, block_bytes, room, None)
}

/// As [`read_stream`], but only the events of these processes; those of all for `None`.
pub(crate) fn read_processes(
    input: Input,
    wanted: Wanted,
    block_bytes: usize,
    room: Room,
    only: Option<Arc<[i64]>>,
) -> Streamed {
    let mut reader = Reader::new(input, wanted, block_bytes, room, only);
    reader.read_document();
    reader.finish()
}

/// A piece on its way to a parser.
struct Piece {
    number: u64,
    bytes: Vec<u8>,
    /// Length of the piece in `bytes`. The rest is spare room for the buffer's next use.
    filled: usize,
}

/// A parsed piece.
struct Parsed {
    piece: Piece,
    read: Read,
}

/// The result of parsing some bytes.
struct Read {
    scratch: u32,
    columns: Columns,
    end: End,
    edges: Edges,
}

/// The state that the reading thread and the parsers share.
struct Shared {
    wanted: Wanted,
    only: Option<Arc<[i64]>>,
    queue: Mutex<VecDeque<Piece>>,
    scratches: Mutex<Vec<(u32, Scratch)>>,
    next_scratch: AtomicU32,
    /// Memory of the texts and tracks in all scratches.
    scratch_bytes: AtomicU64,
    done: Sender<Parsed>,
}

impl Shared {
    /// Parses the next piece in the queue; false if the queue is empty.
    fn work_one(&self) -> bool {
        let Some(piece) = lock(&self.queue).pop_front() else { return false };
        let read = self.parse(&piece.bytes[..piece.filled]);
        // The receiver is gone only if the reader has given up. Then the piece is not needed.
        let _ = self.done.send(Parsed { piece, read });
        true
    }

    fn parse(&self, bytes: &[u8]) -> Read {
        let kept = lock(&self.scratches).pop();
        let (number, mut scratch) = kept.unwrap_or_else(|| {
            let scratch = Scratch::of(Processes::only(self.only.clone()));
            (self.next_scratch.fetch_add(1, Ordering::Relaxed), scratch)
        });
        let mut room = std::mem::take(&mut scratch.room);
        let before_bytes = scratch.memory_bytes();
        let (end, edges) = read_piece(bytes, self.wanted, &mut scratch, &mut room);
        let columns = room.take_exact();
        scratch.room = room;
        self.scratch_bytes.fetch_add(scratch.memory_bytes() - before_bytes, Ordering::Relaxed);
        lock(&self.scratches).push((number, scratch));
        Read { scratch: number, columns, end, edges }
    }
}

/// The end of the list of events.
enum Ended {
    /// At its bracket; these bytes follow.
    Closed(Vec<u8>),
    /// The stream ended, or a byte is wrong; `missing` has the reason.
    Stopped,
}

struct Reader {
    input: Input,
    room: Room,
    /// Memory of the joined rows without their texts.
    rows_bytes: u64,
    shared: Arc<Shared>,
    results: Receiver<Parsed>,
    block_bytes: usize,
    free: Vec<Vec<u8>>,
    parser: HeaderParser,
    out: Streamed,
    /// Absolute position of the first byte that neither the header nor a joined piece has consumed.
    at: u64,
    /// Beginning of an event that extends beyond its piece.
    tail: Vec<u8>,
    /// Length at which `tail` is parsed again. It doubles each time, so that a long event is not parsed too often.
    tail_due: usize,
    /// The last piece was sent.
    all_sent: bool,
    /// The joined pieces end with a whole item, so a comma must follow.
    after_item: bool,
    next_number: u64,
    next_join: u64,
    early: BTreeMap<u64, Parsed>,
}

impl Reader {
    fn new(input: Input, wanted: Wanted, block_bytes: usize, room: Room, only: Option<Arc<[i64]>>) -> Self {
        let (done, results) = channel();
        let shared = Shared {
            wanted,
            only,
            queue: Mutex::default(),
            scratches: Mutex::default(),
            next_scratch: AtomicU32::new(0),
            scratch_bytes: AtomicU64::new(0),
            done,
        };
        Self {
            input,
            room,
            rows_bytes: 0,
            shared: Arc::new(shared),
            results,
            block_bytes: block_bytes.max(16),
            free: Vec::new(),
            parser: HeaderParser::new(),
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
        self.out.memory_bytes = self.memory_bytes();
        self.out.header = std::mem::take(&mut self.parser.header);
        self.out.scratches = std::mem::take(&mut *lock(&self.shared.scratches)).into_iter().collect();
        // If the stream failed after a complete document, for example by a wrong checksum, the document may be damaged.
        // If text follows the document, reading stopped there: whether it met the failure depends on the blocks, so
        // the failure is not reported.
        if self.out.missing.is_none()
            && self.out.trailing.is_none()
            && let Some(failure) = self.input.failure.take()
        {
            let why = format!("{failure}; the document before it is whole, but may be damaged");
            self.out.trailing = Some(Missing { byte: self.input.read_bytes, why });
        }
        self.out
    }

    /// Memory of the joined rows, and of the texts that were read.
    fn memory_bytes(&self) -> u64 {
        self.rows_bytes.saturating_add(self.shared.scratch_bytes.load(Ordering::Relaxed))
    }

    /// Whether the joined rows leave room for `more` bytes.
    fn has_room(&self, more: u64) -> bool {
        self.memory_bytes().saturating_add(more) <= self.room.bytes
    }

    /// Ends the reading because the next rows have no room.
    fn full(&mut self) -> Ended {
        self.out.is_full = true;
        let why = self.room.full.clone();
        self.missing(self.at, why);
        Ended::Stopped
    }

    fn missing(&mut self, byte: u64, why: impl Into<String>) {
        self.out.missing = Some(Missing { byte, why: why.into() });
    }

    /// Records that the stream ended too early, with the failure of the input if there was one.
    fn ended_early(&mut self, why: &str) {
        let why = self.input.failure.take().unwrap_or_else(|| why.to_string());
        self.missing(self.at, why);
    }

    /// Reads the header, and the list of events within it.
    fn read_document(&mut self) {
        let mut bytes = Vec::new();
        loop {
            match self.parser.step(&bytes) {
                HeaderStep::More(safe) => {
                    bytes.drain(..safe);
                    self.at += safe as u64;
                    if bytes.len() > MAX_VALUE_BYTES {
                        return self.missing(self.at, format!("a value is longer than {MAX_VALUE_BYTES} bytes"));
                    }
                    if bytes.len() > HEADER_ROOM_BYTES && !self.has_room(bytes.len() as u64) {
                        self.full();
                        return;
                    }
                    if !self.more(&mut bytes) {
                        let empty = self.input.read_bytes == 0;
                        return self.ended_early(if empty { "the file is empty" } else { "the file ends early" });
                    }
                }
                HeaderStep::Events(at) => {
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
                HeaderStep::Done(at) => return self.end_of_document(&bytes[at..], at),
                HeaderStep::Wrong(fault) => return self.missing(self.at + fault.at as u64, fault.what.describe()),
            }
        }
    }

    /// Appends a block to `bytes`; false at the end of the stream.
    fn more(&mut self, bytes: &mut Vec<u8>) -> bool {
        let before = bytes.len();
        // The block doubles each time, so that a long value is not parsed from its start too often.
        bytes.resize(before + self.block_bytes.min(HEAD_BYTES).max(before), 0);
        let got = self.input.fill(&mut bytes[before..]);
        bytes.truncate(before + got);
        got > 0
    }

    /// Checks whether only blanks follow the document. `rest` was read already.
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
                // Later events in the tail show that the file goes on where this one should end. Its own first key finds them: that of
                // the blocks depends on their size.
                let goes_on = anchor(&self.tail).is_some_and(|key| last_event_start(&self.tail, &key).is_some());
                match (self.tail.is_empty(), goes_on) {
                    (true, _) => self.ended_early("the file ends inside the list of events"),
                    (_, false) => self.ended_early("the file ends inside an event"),
                    (_, true) => self.missing(self.at, "the event that begins here has no end, and others follow it"),
                }
                return Ended::Stopped;
            }
        }
    }

    /// Reads the next block and cuts it before its last event. The bytes after the cut become the next carry.
    fn next_piece(&mut self, carry: &mut Vec<u8>, key: &mut Option<Vec<u8>>) -> (Piece, bool) {
        let mut bytes = self.free.pop().unwrap_or_default();
        let held = carry.len();
        let size = self.block_bytes.max(held + self.block_bytes / 4);
        if bytes.len() < size {
            // Fresh zeros cost nothing until they are written, so a small file touches only the memory that it fills.
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
            // The reader may have taken the piece before this runs.
            rayon::spawn(move || {
                shared.work_one();
            });
        }
    }

    /// The next piece in the order of the file. It blocks only while another thread parses a piece, so it cannot
    /// deadlock.
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

    /// Joins the next piece to those before; returns the end if reading ends with it.
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
        let rows_bytes = read.columns.memory_bytes();
        if !self.has_room(rows_bytes) {
            return Some(self.full());
        }
        self.rows_bytes += rows_bytes;
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
                if !self.has_room(self.tail.len() as u64) {
                    return Some(self.full());
                }
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

    /// Waits for the pieces that were read after the end of the list, and takes their bytes back.
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
