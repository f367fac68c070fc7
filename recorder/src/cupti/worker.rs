//! The worker thread: takes CUPTI's buffers, makes rows of them, and asks for more now and then.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Instant;

use trace::ClockSampleRow;

use super::Summary;
use super::collectives::Announced;
use super::ffi::Buffer;
use super::layout::Version;
use super::record::{End, Parsed, Record, Walk, layout_of, parse, split};
use super::rows::{Rows, Strings};
use super::session::Session;
use super::time::Sample;

/// Buffers that are read before their rows are handed over.
const AT_ONCE: usize = 16;
/// Comparisons of clocks of which the tightest is kept.
const SAMPLE_TRIES: usize = 5;

/// What the worker is sent.
#[derive(Debug)]
pub(crate) enum Message {
    /// A buffer, and how many of its bytes are records.
    Buffer(Buffer, usize),
    /// Buffers have come: look.
    Look,
    /// Ask for what is complete.
    Flush,
    /// Read what is there, reply, and end.
    Finish(SyncSender<()>),
}

impl Strings for &'static Session {
    fn string_at(&self, address: u64) -> Option<String> {
        self.library.string_at(address)
    }

    fn call_name(&self, domain: u32, id: u32) -> Option<String> {
        self.library.call_name(domain, id)
    }
}

pub(crate) struct Worker {
    session: &'static Session,
    inbox: Receiver<Message>,
    announced: Receiver<Announced>,
    rows: Rows<&'static Session>,
    records: Vec<Record>,
    starts: Vec<usize>,
    last_flush: Instant,
    said_own_iterator: bool,
    said_odd_size: bool,
}

impl Worker {
    pub(crate) fn new(session: &'static Session, inbox: Receiver<Message>, announced: Receiver<Announced>) -> Self {
        let mut rows = Rows::new(session, session.recorder.shared().clone(), session.recorder.rank());
        session.settings.devices.iter().for_each(|device| rows.know(device));
        let (records, starts) = (Vec::new(), Vec::new());
        let (last_flush, said_own_iterator, said_odd_size) = (Instant::now(), false, false);
        Self { session, inbox, announced, rows, records, starts, last_flush, said_own_iterator, said_odd_size }
    }

    pub(crate) fn run(mut self) {
        self.compare_clocks();
        loop {
            let period = self.session.settings.flush_period;
            let message = self.inbox.recv_timeout(period.saturating_sub(self.last_flush.elapsed()));
            let mut reply = None;
            let mut flush = self.last_flush.elapsed() >= period;
            let mut buffers = Vec::new();
            match message {
                Ok(message) => {
                    let more = std::iter::from_fn(|| self.inbox.try_recv().ok());
                    for message in std::iter::once(message).chain(more).take(AT_ONCE) {
                        match message {
                            Message::Buffer(buffer, valid) => buffers.push((buffer, valid)),
                            Message::Look => {}
                            Message::Flush => flush = true,
                            Message::Finish(to) => reply = Some(to),
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => flush = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.read(buffers);
            if flush && reply.is_none() {
                // Somebody may ask for the end while this waits for CUPTI.
                reply = self.flush();
            }
            if let Some(reply) = reply {
                self.finish();
                // Whoever asked may have stopped waiting.
                let _ = reply.send(());
                return;
            }
            self.hand_over();
        }
    }

    /// Asks for what is complete, and reads it. Returns whom to tell of the end, if that was asked for meanwhile.
    fn flush(&mut self) -> Option<SyncSender<()>> {
        self.last_flush = Instant::now();
        if let Err(error) = self.session.library.flush(false) {
            tracing::debug!("{error}");
        }
        self.compare_clocks();
        // What the flush has brought, before what waits for it grows older.
        let reply = self.read_inbox();
        self.rows.flushed();
        reply
    }

    /// Reads the buffers that are there. Returns whom to tell of the end, if that is asked for; other messages are
    /// answered by what is happening.
    fn read_inbox(&mut self) -> Option<SyncSender<()>> {
        let (mut buffers, mut reply) = (Vec::new(), None);
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Buffer(buffer, valid) => buffers.push((buffer, valid)),
                Message::Finish(to) => reply = Some(to),
                Message::Look | Message::Flush => {}
            }
        }
        self.read(buffers);
        reply
    }

    fn finish(&mut self) {
        self.compare_clocks();
        self.read_inbox();
        self.rows.finish(self.session.recorder.clock().now_ns());
        self.hand_over();
    }

    fn read(&mut self, buffers: Vec<(Buffer, usize)>) {
        // Announced before the launch, so that what is in these buffers has been announced by now.
        while let Ok(announced) = self.announced.try_recv() {
            self.rows.announce(announced);
        }
        if buffers.is_empty() {
            return;
        }
        self.rows.calls_come = self.session.calls_come();
        self.records.clear();
        for (buffer, valid) in &buffers {
            self.read_buffer(buffer.bytes(*valid));
        }
        self.session.summary().records += self.records.len() as u64;
        // Strings that records point to are CUPTI's: read here, before the buffers go back.
        let records = std::mem::take(&mut self.records);
        self.rows.take(&records);
        self.records = records;
        for (buffer, _) in buffers {
            self.session.pool.give(buffer);
        }
    }

    fn read_buffer(&mut self, bytes: &[u8]) {
        let version = self.session.library.version();
        let whole = self.session.library.record_starts(bytes, &mut self.starts);
        if !whole && self.starts.is_empty() {
            return self.read_by_sizes(bytes);
        }
        let mut unknown = BTreeMap::<u32, u64>::new();
        let mut truncated = !whole;
        for (index, record) in split(bytes, &self.starts).enumerate() {
            let short = layout_of(kind_of(record)).and_then(|layout| layout.size(version));
            if index + 1 == self.starts.len() && short.is_some_and(|size| record.len() < size.bytes) {
                truncated = true;
                break;
            }
            let odd = odd_size(record, version);
            let read_as = if odd.is_some() { Version::OLDEST } else { version };
            if let Some(odd) = odd.filter(|_| !std::mem::replace(&mut self.said_odd_size, true)) {
                tracing::warn!("CUPTI {version}: {odd}; such records are read as far as every version agrees");
            }
            match parse(record, read_as) {
                Parsed::Record(record) => self.records.push(record),
                Parsed::Unknown { kind } => *unknown.entry(kind).or_default() += 1,
                Parsed::Malformed { .. } => truncated = true,
            }
        }
        self.count(unknown, truncated);
    }

    /// CUPTI's iterator refused: steps by the known sizes, up to the first kind that is not known.
    fn read_by_sizes(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.said_own_iterator, true) {
            tracing::warn!("cuptiActivityGetNextRecord refused a buffer: records are read by their known sizes");
        }
        let version = self.session.library.version();
        let mut walk = Walk::new(bytes, version);
        let mut unknown = BTreeMap::<u32, u64>::new();
        for (_, record) in walk.by_ref() {
            match parse(record, version) {
                Parsed::Record(record) => self.records.push(record),
                Parsed::Unknown { kind } | Parsed::Malformed { kind } => *unknown.entry(kind).or_default() += 1,
            }
        }
        if let End::UnknownSize { rest_bytes } = walk.end() {
            let why = format!("{rest_bytes} bytes behind a record of unknown size");
            self.rows.lose("cupti:unknown_kinds", 1, &why);
        }
        self.count(unknown, walk.end() == End::Truncated);
    }

    fn count(&mut self, unknown: BTreeMap<u32, u64>, truncated: bool) {
        for (kind, records) in unknown {
            self.rows.omit("cupti:unknown_kinds", records, &format!("activity kind {kind} is not known"));
        }
        if truncated {
            self.session.summary().truncated_buffers += 1;
            self.rows.lose("cupti:truncated", 1, "a buffer ended within a record");
        }
    }

    /// Compares CUPTI's clock with the recorder's, for the table and for the mapping.
    fn compare_clocks(&mut self) {
        let clock = self.session.recorder.clock();
        let (utc_at_ns, utc_ns, _) = clock.utc_sample();
        self.rows.times.add(Sample { utc_ns, local_ns: utc_at_ns });
        let bracket = |_| {
            let before_ns = clock.now_ns();
            let cupti_ns = i64::try_from(self.session.library.timestamp()?).ok()?;
            Some((before_ns, cupti_ns, clock.now_ns() - before_ns))
        };
        let tightest = (0..SAMPLE_TRIES).filter_map(bracket).min_by_key(|(_, _, rtt_ns)| *rtt_ns);
        let Some((before_ns, remote_ns, rtt_ns)) = tightest else { return };
        let local_ns = before_ns + rtt_ns / 2;
        let offset_ns = remote_ns - local_ns;
        let rank = self.session.recorder.rank();
        let kind = "gpu".into();
        self.write(vec![ClockSampleRow { rank, peer_rank: None, kind, local_ns, remote_ns, offset_ns, rtt_ns }]);
    }

    fn write<R: trace::Row>(&self, rows: Vec<R>) {
        // The rows are well-formed and their tables are no queued ones, so that only a bug could refuse them.
        if let Err(error) = self.session.recorder.rows(rows) {
            tracing::error!("rows of {} were not recorded: {error}", R::table().name);
        }
    }

    /// Counts what was lost, and hands the rows to the recorder.
    fn hand_over(&mut self) {
        let lost = &self.session.lost;
        let taken = |count: &std::sync::atomic::AtomicU64| count.swap(0, Ordering::Relaxed);
        let losses = [
            ("cupti:buffers", self.session.library.dropped(), "CUPTI had no buffer"),
            ("cupti:overflow", taken(&lost.records), "all buffers were in use, or the worker's inbox was full"),
            ("cupti:foreign", taken(&lost.foreign_buffers), "buffers of another profiler were handed to this one"),
            ("cupti:panics", taken(&lost.panics), "a callback failed"),
        ];
        for (source, records, why) in losses.into_iter().filter(|(_, records, _)| *records > 0) {
            self.rows.lose(source, records, why);
        }
        if !self.rows.devices.is_empty() {
            let devices = std::mem::take(&mut self.rows.devices);
            self.write(devices);
        }
        let batch = self.rows.batch();
        let mut summary = self.session.summary();
        let Summary { rows, dropped, omitted, untimed_collectives, own_clock, .. } = &mut *summary;
        *rows += batch.rows() as u64;
        *dropped += batch.missing.iter().map(|missing| missing.dropped).sum::<u64>();
        *omitted += batch.missing.iter().map(|missing| missing.omitted).sum::<u64>();
        *untimed_collectives = self.rows.collectives.untimed;
        *own_clock = self.rows.times.utc_times == 0 && self.rows.times.own_times > 0;
        drop(summary);
        self.session.recorder.device(batch);
    }
}

fn kind_of(record: &[u8]) -> u32 {
    record.first_chunk().map_or(0, |kind| u32::from_ne_bytes(*kind))
}

/// How a record differs in length from what its version says; `None` if it does not.
fn odd_size(record: &[u8], version: Version) -> Option<String> {
    let kind = kind_of(record);
    let size = layout_of(kind)?.size(version)?;
    let odd = version <= Version::NEWEST && record.len() != size.bytes;
    odd.then(|| format!("a record of kind {kind} ({}) has {} bytes, not {}", size.name, record.len(), size.bytes))
}
