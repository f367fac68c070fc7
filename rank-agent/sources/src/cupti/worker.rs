//! The worker thread: reads CUPTI's buffers, makes rows of their records, and asks CUPTI for more at intervals.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use recorder::report;
use trace::ClockSampleRow;

use super::capture::{Capture, Message};
use super::collectives::Announced;
use super::ffi::Buffer;
use super::layout::Version;
use super::record::{End, Parsed, Record, Walk, layout_of, parse, split};
use super::rows::{Rows, Strings};
use super::settings::Summary;
use super::time::Sample;
use super::watch::Watch;

/// The most buffers that are read before their rows are handed over.
const AT_ONCE: usize = 16;
/// Number of clock comparisons, of which the fastest is kept.
const SAMPLE_TRIES: usize = 5;

impl Strings for &'static Capture {
    fn string_at(&self, address: u64) -> Option<String> {
        self.library.string_at(address)
    }

    fn call_name(&self, domain: u32, id: u32) -> Option<String> {
        self.library.call_name(domain, id)
    }
}

pub(super) struct Worker {
    capture: &'static Capture,
    inbox: Receiver<Message>,
    announced: Receiver<Announced>,
    rows: Rows<&'static Capture>,
    records: Vec<Record>,
    starts: Vec<usize>,
    last_flush: Instant,
    watch: Watch,
    /// Whether the clocks were compared once.
    compared: bool,
    reported_iterator: bool,
    reported_size: bool,
    /// Those who wait for the rows of the next flush.
    settling: Vec<SyncSender<bool>>,
}

impl Worker {
    pub(super) fn new(capture: &'static Capture, inbox: Receiver<Message>, announced: Receiver<Announced>) -> Self {
        let recorder = &capture.recorder;
        let comm_kernels = capture.settings.comm_kernels.clone();
        let mut rows = Rows::new(capture, recorder.shared().clone(), recorder.rank(), comm_kernels);
        capture.settings.devices.iter().for_each(|device| rows.know(device));
        let (records, starts) = (Vec::new(), Vec::new());
        let (last_flush, reported_iterator, reported_size) = (Instant::now(), false, false);
        let (watch, compared) = (Watch::default(), false);
        Self {
            capture,
            inbox,
            announced,
            rows,
            records,
            starts,
            last_flush,
            watch,
            compared,
            reported_iterator,
            reported_size,
            settling: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        self.map_utc();
        loop {
            let period = self.capture.settings.flush_period;
            let mut settling = std::mem::take(&mut self.settling);
            let wait =
                if settling.is_empty() { period.saturating_sub(self.last_flush.elapsed()) } else { Duration::ZERO };
            let message = self.inbox.recv_timeout(wait);
            let mut reply = None;
            let mut flush = self.last_flush.elapsed() >= period || !settling.is_empty();
            let (mut buffers, mut context_ends) = (Vec::new(), false);
            match message {
                Ok(message) => {
                    let more = std::iter::from_fn(|| self.inbox.try_recv().ok());
                    for message in std::iter::once(message).chain(more).take(AT_ONCE) {
                        match message {
                            Message::Buffer(buffer, valid) => buffers.push((buffer, valid)),
                            Message::Look => {}
                            Message::Flush => (flush, context_ends) = (true, true),
                            Message::Settle(to) => {
                                flush = true;
                                settling.push(to);
                            }
                            Message::Finish(to) => reply = Some(to),
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => flush = true,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.read(buffers);
            if self.is_ready() && !std::mem::replace(&mut self.compared, true) {
                self.compare_clocks();
            }
            if flush && reply.is_none() {
                // `Finish` may arrive while this waits for CUPTI.
                reply = self.flush(context_ends);
            }
            if let Some(reply) = reply {
                self.finish();
                // The caller may have stopped waiting.
                let _ = reply.send(());
                return;
            }
            self.hand_over();
            for to in settling {
                // As above.
                let _ = to.send(self.is_ready() && self.capture.library.version().switches_safely());
            }
        }
    }

    /// Asks CUPTI for complete records and reads them. Returns the reply channel of a `Finish` that arrived in between.
    fn flush(&mut self, context_ends: bool) -> Option<SyncSender<()>> {
        self.watch.look(self.capture, self.last_flush.elapsed());
        self.last_flush = Instant::now();
        let library = &self.capture.library;
        if self.is_ready() && (context_ends || library.version().switches_safely()) {
            // After a refusal the records stay in CUPTI, which returns them with a later flush or counts them as dropped.
            let _ = library.flush(false);
        }
        self.compare_clocks();
        // Read the records of this flush before the work that waits for them ages.
        let reply = self.read_inbox();
        self.rows.flushed();
        reply
    }

    /// Reads the buffers that have arrived. Returns the reply channel of a `Finish`, if there is one.
    fn read_inbox(&mut self) -> Option<SyncSender<()>> {
        let (mut buffers, mut reply) = (Vec::new(), None);
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Buffer(buffer, valid) => buffers.push((buffer, valid)),
                Message::Finish(to) => reply = Some(to),
                Message::Settle(to) => self.settling.push(to),
                Message::Look | Message::Flush => {}
            }
        }
        self.read(buffers);
        reply
    }

    fn finish(&mut self) {
        self.compare_clocks();
        self.read_inbox();
        self.rows.finish(self.capture.recorder.clock().now_ns());
        self.hand_over();
    }

    fn read(&mut self, buffers: Vec<(Buffer, usize)>) {
        // Collectives are announced before their launch, so that those of these buffers are announced by now.
        while let Ok(announced) = self.announced.try_recv() {
            self.rows.announce(announced);
        }
        if buffers.is_empty() {
            return;
        }
        self.rows.has_calls = self.capture.activities.has_calls();
        let Capture { library, activities, .. } = self.capture;
        self.rows.graphs_join = library.version().joins_graphs_again() || !activities.are_enabled_again();
        self.records.clear();
        for (buffer, valid) in &buffers {
            self.read_buffer(buffer.bytes(*valid));
        }
        self.capture.summary().records += self.records.len() as u64;
        // Records point to strings that CUPTI owns: read them before the buffers go back.
        let records = std::mem::take(&mut self.records);
        self.rows.take(&records);
        self.records = records;
        for (buffer, _) in buffers {
            self.capture.pool.give(buffer);
        }
    }

    fn read_buffer(&mut self, bytes: &[u8]) {
        let version = self.capture.library.version();
        let whole = self.capture.library.record_starts(bytes, &mut self.starts);
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
            if let Some(odd) = odd.filter(|_| !std::mem::replace(&mut self.reported_size, true)) {
                report(format_args!("CUPTI {version}: {odd}; of such records only the oldest fields are read"));
            }
            match parse(record, read_as) {
                Parsed::Record(record) => self.records.push(record),
                Parsed::Unknown { kind } => *unknown.entry(kind).or_default() += 1,
                Parsed::Malformed { .. } => truncated = true,
            }
        }
        self.count(unknown, truncated);
    }

    /// Steps through a buffer that CUPTI's iterator refused, by the known sizes, up to the first unknown kind.
    fn read_by_sizes(&mut self, bytes: &[u8]) {
        if !std::mem::replace(&mut self.reported_iterator, true) {
            report("cuptiActivityGetNextRecord refused a buffer: records are read by their known sizes");
        }
        let version = self.capture.library.version();
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
            self.capture.summary().truncated_buffers += 1;
            self.rows.lose("cupti:truncated", 1, "a buffer ended within a record");
        }
    }

    /// Whether CUPTI may be called.
    fn is_ready(&self) -> bool {
        self.capture.ready.load(Ordering::Acquire)
    }

    /// Compares CUPTI's clock with the recorder's, for `clock_samples` and for the mapping of times.
    fn compare_clocks(&mut self) {
        self.map_utc();
        if !self.is_ready() {
            return;
        }
        let clock = self.capture.recorder.clock();
        let bracket = |_| {
            let before_ns = clock.now_ns();
            let cupti_ns = i64::try_from(self.capture.library.timestamp()?).ok()?;
            Some((before_ns, cupti_ns, clock.now_ns() - before_ns))
        };
        let tightest = (0..SAMPLE_TRIES).filter_map(bracket).min_by_key(|(_, _, rtt_ns)| *rtt_ns);
        let Some((before_ns, remote_ns, rtt_ns)) = tightest else { return };
        let local_ns = before_ns + rtt_ns / 2;
        let offset_ns = remote_ns - local_ns;
        let rank = self.capture.recorder.rank();
        let kind = "gpu".into();
        self.write(vec![ClockSampleRow { rank, peer_rank: None, kind, local_ns, remote_ns, offset_ns, rtt_ns }]);
    }

    fn map_utc(&mut self) {
        let (local_ns, utc_ns, _) = self.capture.recorder.clock().utc_sample();
        self.rows.times.add(Sample { utc_ns, local_ns });
    }

    fn write<R: trace::Row>(&self, rows: Vec<R>) {
        // The rows are valid and their tables are not queued tables, so that an error here is a bug.
        if let Err(error) = self.capture.recorder.rows(rows) {
            report(format_args!("rows of {} were not recorded: {error}", R::table().name));
        }
    }

    /// Counts lost records and hands the rows to the recorder.
    fn hand_over(&mut self) {
        let lost = &self.capture.lost;
        let taken = |count: &std::sync::atomic::AtomicU64| count.swap(0, Ordering::Relaxed);
        let losses = [
            ("cupti:buffers", if self.is_ready() { self.capture.library.dropped() } else { 0 }, "CUPTI had no buffer"),
            ("cupti:overflow", taken(&lost.records), "all buffers were in use, or the worker's inbox was full"),
            ("cupti:foreign", taken(&lost.foreign_buffers), "buffers of another profiler were handed to this one"),
            ("cupti:silence", taken(&lost.silences), "CUPTI handed over no record while steps went on"),
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
        let mut summary = self.capture.summary();
        let Summary { rows, dropped, omitted, untimed_collectives, own_clock, .. } = &mut *summary;
        *rows += batch.rows() as u64;
        *dropped += batch.missing.iter().map(|missing| missing.dropped).sum::<u64>();
        *omitted += batch.missing.iter().map(|missing| missing.omitted).sum::<u64>();
        *untimed_collectives = self.rows.collectives.untimed;
        *own_clock = self.rows.times.utc_times == 0 && self.rows.times.own_times > 0;
        drop(summary);
        self.capture.recorder.source_batch(batch);
    }
}

fn kind_of(record: &[u8]) -> u32 {
    record.first_chunk().map_or(0, |kind| u32::from_ne_bytes(*kind))
}

/// Describes a record whose length differs from that of its version; `None` if the lengths agree.
fn odd_size(record: &[u8], version: Version) -> Option<String> {
    let kind = kind_of(record);
    let size = layout_of(kind)?.size(version)?;
    let odd = version <= Version::NEWEST && record.len() != size.bytes;
    odd.then(|| format!("a record of kind {kind} ({}) has {} bytes, not {}", size.name, record.len(), size.bytes))
}
