//! The writer thread: empties the queues, makes parts, and never lets an error reach the program.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rustix::time::{ClockId, clock_gettime};
use trace::{CollectiveRow, CounterRow, EventRow, MemoryRow, RankRow, RecordBatch, Row, ShardMeta, Table};

use crate::buffers::{self, ColdRows, CollectiveKey, Constants, Parts, Sourced, collective_key};
use crate::counts::Counts;
use crate::device::{DeviceBatch, DeviceEvent};
use crate::names::Strings;
use crate::open::OpenScope;
use crate::record::{Collective, EventRecord, MemoryRecord, RareRecord};
use crate::state::{HandedOver, Shared};
use crate::summary::Summary;
use crate::thread::ThreadShared;
use crate::{CollectiveState, Error};

mod device;

/// Pause between looks at the queues: a queue of 32 768 then holds 0.6 M records a second. Every look takes a core from
/// the program where there are none to spare, so they are few.
const POLL: Duration = Duration::from_millis(50);
/// Collectives in flight that are remembered; more are a leak of the caller's.
const MAX_IN_FLIGHT: usize = 4096;
/// Attempts to find a free part number among several processes of a rank; each one lost means that another process took
/// the number in between.
const MAX_PART_TRIES: usize = 100;

/// What the program sends to the writer.
#[derive(Debug)]
pub(crate) enum Command {
    Thread(ThreadQueues),
    Rows(ColdRows),
    Device(DeviceBatch),
    Finish { clean: bool, reply: SyncSender<()> },
}

/// The writer's ends of a thread's queues.
#[derive(Debug)]
pub(crate) struct ThreadQueues {
    pub(crate) own: Arc<ThreadShared>,
    pub(crate) events: Consumer<EventRecord>,
    pub(crate) rare: Consumer<RareRecord>,
}

/// What the writer is told at the start.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) run: PathBuf,
    pub(crate) meta: ShardMeta,
    pub(crate) part_period: Duration,
    pub(crate) part_rows: usize,
    pub(crate) queue_records: usize,
    pub(crate) rank_row: RankRow,
    /// Another process has claimed the rank, and this one joins it.
    pub(crate) joins: bool,
    pub(crate) max_bytes: u64,
}

/// A thread as the writer sees it. It stays after the thread has ended, because rows name it by its index.
#[derive(Debug)]
struct Source {
    own: Arc<ThreadShared>,
    queues: Option<(Consumer<EventRecord>, Consumer<RareRecord>)>,
    /// Drops of events, collectives and memory that were counted already.
    counted: [u64; 3],
}

/// A collective that was reported but is not done.
#[derive(Debug)]
struct InFlight {
    collective: Collective,
    since: Instant,
    written: bool,
}

impl InFlight {
    /// Whether no part tells of it yet and it has been in flight for so long that one should. Shorter ones end in the
    /// next part at the latest: rows for them would only repeat what their own rows say.
    fn is_news(&self, part_period: Duration) -> bool {
        !self.written && self.since.elapsed() >= part_period
    }
}

/// CPU time of this thread, in ns.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

pub(crate) struct Writer {
    setup: Setup,
    constants: Constants,
    shared: Arc<Shared>,
    summary: Arc<Mutex<Summary>>,
    strings: Strings,
    sources: Vec<Source>,
    events: Vec<Sourced<EventRecord>>,
    collectives: Vec<Sourced<Collective>>,
    memory: Vec<Sourced<MemoryRecord>>,
    device: Vec<DeviceEvent>,
    /// The source that stands for what is not a thread, once it has brought something.
    device_source: Option<u32>,
    cold: BTreeMap<&'static str, Vec<ColdRows>>,
    in_flight: BTreeMap<CollectiveKey, InFlight>,
    /// Ids of the open scopes that the last part of `events` holds.
    open_written: Vec<i64>,
    next_part: BTreeMap<&'static str, u32>,
    counts: Counts,
    /// When the first row came that is not on disk yet.
    part_began: Option<Instant>,
    last_close: Instant,
    /// When counts were written last, and how long they wait from then on once all bytes are written.
    counts_written: Instant,
    counts_pause: Duration,
}

impl Writer {
    /// Claims the rank, or joins those who record it, by writing its row.
    pub(crate) fn start(setup: Setup, shared: Arc<Shared>, summary: Arc<Mutex<Summary>>) -> Result<Self, Error> {
        let constants = Constants { rank: setup.meta.rank, pid: setup.meta.pid };
        let mut writer = Self {
            setup,
            constants,
            shared,
            summary,
            strings: Strings::default(),
            sources: Vec::new(),
            events: Vec::new(),
            collectives: Vec::new(),
            memory: Vec::new(),
            device: Vec::new(),
            device_source: None,
            cold: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            open_written: Vec::new(),
            next_part: BTreeMap::new(),
            counts: Counts::default(),
            part_began: None,
            last_close: Instant::now(),
            counts_written: Instant::now(),
            counts_pause: Duration::ZERO,
        };
        let row = trace::batch_from_rows(std::slice::from_ref(&writer.setup.rank_row))?;
        if writer.setup.joins {
            // Whoever gets a part of `ranks` has a number that no other process of the rank has.
            let process = writer.write(&RankRow::table(), &[row])?;
            writer.shared.begin_ids_at(process);
            return Ok(writer);
        }
        let path = trace::shard_path(&writer.setup.run, RankRow::table().name, writer.setup.meta.rank, 0);
        writer.write_part(&RankRow::table(), &[row], 0).map_err(|error| match is_taken(&error, &path) {
            true => Error::RankTaken { path, rank: writer.setup.meta.rank },
            false => Error::Trace(error),
        })?;
        Ok(writer)
    }

    /// Runs until told to finish.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        let mut busy = false;
        loop {
            match commands.recv_timeout(if busy { Duration::ZERO } else { POLL }) {
                Ok(Command::Thread(ThreadQueues { own, events, rare })) => {
                    self.sources.push(Source { own, queues: Some((events, rare)), counted: [0; 3] });
                }
                Ok(Command::Rows(rows)) => self.take_cold(rows),
                Ok(Command::Device(batch)) => self.take_device(batch),
                Ok(Command::Finish { clean, reply }) => {
                    self.finish(clean);
                    self.summary().writer_cpu_ns = thread_cpu_ns();
                    // Whoever asked may have stopped waiting.
                    let _ = reply.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(false),
            }
            busy = self.drain();
            if self.is_due() {
                self.close_part(false);
            }
        }
    }

    fn finish(&mut self, clean: bool) {
        self.drain();
        self.close_part(true);
        if !clean {
            return;
        }
        if !self.counts.is_empty() {
            // Whoever reads the run would not learn of the losses, so it must not look whole.
            return self.summary().fail("the counters could not be written".into());
        }
        let row = RankRow { closed_cleanly: true, ..self.setup.rank_row.clone() };
        let written =
            trace::batch_from_rows(&[row]).and_then(|batch| self.write(&RankRow::table(), &[batch]).map(drop));
        let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(()) => summary.closed_cleanly = true,
            Err(error) => summary.fail(error.to_string()),
        }
    }

    /// Empties the queues. Returns whether one of them was filling up.
    fn drain(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.sources.len() {
            // No more than is there now, so that a thread that never stops cannot keep the writer from the others.
            let mut waiting = self.waiting(index);
            busy |= waiting > self.setup.queue_records / 4;
            while waiting > 0 {
                let room = self.setup.part_rows.saturating_sub(self.events.len() + self.device.len());
                let taken = self.drain_events(index, waiting.min(room));
                if taken == 0 {
                    break;
                }
                waiting -= taken;
                self.close_if_full();
            }
            self.drain_rare(index);
            self.close_if_full();
            self.forget_if_over(index);
        }
        if self.rows() > 0 && self.part_began.is_none() {
            self.part_began = Some(Instant::now());
        }
        busy
    }

    fn waiting(&self, index: usize) -> usize {
        self.sources.get(index).and_then(|source| source.queues.as_ref()).map_or(0, |(events, _)| events.slots())
    }

    /// Rows of the fullest table.
    fn rows(&self) -> usize {
        (self.events.len() + self.device.len()).max(self.collectives.len()).max(self.memory.len())
    }

    fn close_if_full(&mut self) {
        if self.rows() >= self.setup.part_rows {
            self.close_part(false);
        }
    }

    fn drain_events(&mut self, index: usize, limit: usize) -> usize {
        let Some(Source { queues: Some((events, _)), .. }) = self.sources.get_mut(index) else { return 0 };
        let Ok(chunk) = events.read_chunk(events.slots().min(limit)) else { return 0 };
        let taken = chunk.len();
        self.events.extend(chunk.into_iter().map(|record| (index as u32, record)));
        taken
    }

    /// Frees the queues of a thread that has ended, once they are empty.
    fn forget_if_over(&mut self, index: usize) {
        let Some(source) = self.sources.get_mut(index) else { return };
        let over = |(events, rare): &(Consumer<EventRecord>, Consumer<RareRecord>)| {
            // Abandoned first: what was pushed before is then seen by the look at the queues.
            events.is_abandoned() && rare.is_abandoned() && events.is_empty() && rare.is_empty()
        };
        if source.queues.as_ref().is_some_and(over) {
            source.queues = None;
        }
    }

    fn drain_rare(&mut self, index: usize) {
        let Some(Source { queues: Some((_, rare)), .. }) = self.sources.get_mut(index) else { return };
        let Ok(chunk) = rare.read_chunk(rare.slots()) else { return };
        for record in chunk {
            match record {
                RareRecord::Memory(record) => self.memory.push((index as u32, record)),
                RareRecord::Collective(collective) if collective.state == CollectiveState::Done => {
                    self.in_flight.remove(&collective_key(&collective));
                    self.collectives.push((index as u32, collective));
                }
                RareRecord::Collective(collective) => {
                    let key = collective_key(&collective);
                    if let Some(known) = self.in_flight.get_mut(&key) {
                        *known = InFlight { collective, written: false, ..*known };
                    } else if self.in_flight.len() < MAX_IN_FLIGHT {
                        self.in_flight.insert(key, InFlight { collective, since: Instant::now(), written: false });
                    } else {
                        let why = format!("more than {MAX_IN_FLIGHT} collectives were in flight");
                        self.counts.omit("writer:in_flight", 1, &why);
                    }
                }
            }
        }
    }

    fn take_cold(&mut self, rows: ColdRows) {
        self.shared.handed_over.leave(rows.batch.num_rows() as u64);
        let name = rows.table.name;
        let held: usize = self.cold.get(name).map_or(0, |parts| parts.iter().map(|p| p.batch.num_rows()).sum());
        if held >= self.setup.part_rows {
            self.close_part(false);
        }
        self.cold.entry(name).or_default().push(rows);
        self.part_began.get_or_insert_with(Instant::now);
    }

    fn is_due(&self) -> bool {
        let period = self.setup.part_period;
        if self.part_began.is_some_and(|began| began.elapsed() >= period) {
            return true;
        }
        // No row came for a while. If something is open that no part tells of, the rank may be about to hang: tell it
        // now.
        self.last_close.elapsed() >= period
            && (self.in_flight.values().any(|c| c.is_news(period))
                || self.open_scopes().iter().any(|(_, scope)| !self.open_written.contains(&scope.id)))
    }

    fn open_scopes(&self) -> Vec<Sourced<OpenScope>> {
        let of = |(index, source): (usize, &Source)| {
            source.own.open.read().map(|scope| (index as u32, scope)).collect::<Vec<_>>()
        };
        self.sources.iter().enumerate().flat_map(of).collect()
    }

    /// Writes what is held. In the last part, what cannot be written is lost.
    fn close_part(&mut self, last: bool) {
        self.shared.names.refresh(&mut self.strings);
        let within = self.summary().bytes < self.setup.max_bytes;
        if within {
            self.write_events(last);
            self.write_collectives(last);
            self.write_memory(last);
            self.write_cold(last);
        } else {
            self.leave_out();
        }
        self.count_full_queues();
        // Beyond the limit only counts are written, each time after twice as long: they are bytes, too.
        if within || last || self.counts_written.elapsed() >= self.counts_pause {
            self.write_counters();
            self.counts_written = Instant::now();
            let period = self.setup.part_period;
            self.counts_pause = if within { period } else { self.counts_pause.max(period).saturating_mul(2) };
        }
        self.last_close = Instant::now();
        let held = self.rows() > 0 || !self.cold.is_empty();
        self.part_began = held.then(Instant::now);
    }

    /// Forgets what is held, because this process has written all that it may.
    fn leave_out(&mut self) {
        let why = format!("this process had written the {} bytes that it may", self.setup.max_bytes);
        let events = self.events.len() + self.device.len();
        let held = [("events", events), ("collectives", self.collectives.len()), ("memory", self.memory.len())];
        let cold = std::mem::take(&mut self.cold);
        let cold =
            cold.iter().map(|(name, parts)| (*name, parts.iter().map(|part| part.batch.num_rows()).sum::<usize>()));
        for (table, rows) in held.into_iter().chain(cold).filter(|(_, rows)| *rows > 0) {
            self.counts.omit(&format!("writer:{table}"), rows as u64, &why);
            self.summary().omitted += rows as u64;
        }
        self.events.clear();
        self.device.clear();
        self.collectives.clear();
        self.memory.clear();
    }

    fn write_events(&mut self, last: bool) {
        let open = self.open_scopes();
        let open_ids: Vec<i64> = open.iter().map(|(_, scope)| scope.id).collect();
        if self.events.is_empty() && self.device.is_empty() && open_ids.iter().all(|id| self.open_written.contains(id))
        {
            return;
        }
        let threads: Vec<i64> = self.sources.iter().map(|s| s.own.thread_id.load(Ordering::Relaxed)).collect();
        let (records, device) = (&mut self.events, &mut self.device);
        let parts = Parts { threads: &threads, records, device, open: &open, now_ns: self.shared.clock.now_ns() };
        let batch = buffers::event_batch(&self.constants, &self.strings, parts);
        match batch.and_then(|batch| self.write(&EventRow::table(), &[batch])) {
            Ok(_) => {
                let sources = take_sources(&mut self.events);
                self.record("host", &sources);
                self.record_device();
                self.open_written = open_ids;
            }
            Err(error) => {
                // A table's rows are given up together: they are one part.
                let full = last || self.events.len() + self.device.len() >= self.setup.part_rows;
                let lost = [give_up(&mut self.events, full, usize::MAX), give_up(&mut self.device, full, usize::MAX)];
                let rows = lost.into_iter().flatten().sum();
                if rows > 0 {
                    self.lose("writer:events", rows, &not_written(&error));
                }
            }
        }
    }

    fn write_collectives(&mut self, last: bool) {
        let told_after = if last { Duration::ZERO } else { self.setup.part_period };
        let hung: Vec<CollectiveKey> =
            self.in_flight.iter().filter(|(_, c)| c.is_news(told_after)).map(|(key, _)| *key).collect();
        if self.collectives.is_empty() && hung.is_empty() {
            return;
        }
        let done = self.collectives.iter().map(|(_, collective)| collective);
        let in_flight = hung.iter().filter_map(|key| self.in_flight.get(key)).map(|c| &c.collective);
        let rows = done.chain(in_flight);
        let batch = buffers::collective_batch(&self.constants, &self.strings, rows);
        match batch.and_then(|batch| self.write(&CollectiveRow::table(), &[batch])) {
            Ok(_) => {
                let sources = take_sources(&mut self.collectives);
                self.record("collectives", &sources);
                for key in hung {
                    if let Some(collective) = self.in_flight.get_mut(&key) {
                        collective.written = true;
                    }
                }
            }
            Err(error) => {
                if let Some(rows) = give_up(&mut self.collectives, last, self.setup.part_rows) {
                    self.lose("writer:collectives", rows, &not_written(&error));
                }
            }
        }
    }

    fn write_memory(&mut self, last: bool) {
        if self.memory.is_empty() {
            return;
        }
        let batch = buffers::memory_batch(&self.constants, &self.strings, &mut self.memory);
        match batch.and_then(|batch| self.write(&MemoryRow::table(), &[batch])) {
            Ok(_) => {
                let sources = take_sources(&mut self.memory);
                self.record("memory", &sources);
            }
            Err(error) => {
                if let Some(rows) = give_up(&mut self.memory, last, self.setup.part_rows) {
                    self.lose("writer:memory", rows, &not_written(&error));
                }
            }
        }
    }

    fn write_cold(&mut self, last: bool) {
        for (name, parts) in std::mem::take(&mut self.cold) {
            let rows: usize = parts.iter().map(|part| part.batch.num_rows()).sum();
            let batches: Vec<RecordBatch> = parts.iter().map(|part| part.batch.clone()).collect();
            let Some(table) = parts.first().map(|part| part.table.clone()) else { continue };
            match self.write(&table, &batches) {
                Ok(_) => {
                    self.counts.record(name, rows as u64);
                    self.summary().recorded += rows as u64;
                }
                Err(error) if last || rows >= self.setup.part_rows => {
                    self.lose(&format!("writer:{name}"), rows as u64, &not_written(&error));
                }
                // Tried again with the next part.
                Err(_) => {
                    self.cold.insert(name, parts);
                }
            }
        }
    }

    /// Counts what found its queue full since the last part.
    fn count_full_queues(&mut self) {
        let why = format!("its queue of {} records was full", self.setup.queue_records);
        let mut lost = Vec::new();
        for source in &mut self.sources {
            let dropped = &source.own.dropped;
            let tables =
                [("host", &dropped.events), ("collectives", &dropped.collectives), ("memory", &dropped.memory)];
            for ((table, dropped), counted) in tables.into_iter().zip(&mut source.counted) {
                let rows = dropped.load(Ordering::Relaxed) - *counted;
                if rows > 0 {
                    *counted += rows;
                    lost.push((format!("{table}:{}", source.own.name), rows));
                }
            }
        }
        for (source, rows) in lost {
            self.lose(&source, rows, &why);
        }
        let rows = self.shared.handed_over.dropped.swap(0, Ordering::Relaxed);
        if rows > 0 {
            self.lose("writer:handed_over", rows, &format!("more than {} rows waited", HandedOver::LIMIT));
        }
    }

    fn write_counters(&mut self) {
        if self.counts.is_empty() {
            return;
        }
        let rows = self.counts.rows(self.constants.rank);
        let written = trace::batch_from_rows(&rows).and_then(|batch| self.write(&CounterRow::table(), &[batch]));
        // On an error the counts stay for the next part; the failure itself has been counted.
        if written.is_ok() {
            self.counts.clear();
        }
    }

    fn record(&mut self, table: &str, sources: &[u32]) {
        let mut rows = vec![0; self.sources.len()];
        for source in sources {
            rows[*source as usize] += 1;
        }
        for (source, rows) in self.sources.iter().zip(rows) {
            self.counts.record(&format!("{table}:{}", source.own.name), rows);
        }
        self.summary().recorded += sources.len() as u64;
    }

    fn lose(&mut self, source: &str, rows: u64, why: &str) {
        self.counts.lose(source, rows, why);
        self.summary().lose(source, rows, why);
    }

    fn summary(&self) -> std::sync::MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the next part of a table, and returns its number.
    fn write(&mut self, table: &Table, batches: &[RecordBatch]) -> Result<u32, trace::Error> {
        let shared = !self.setup.meta.session.is_empty();
        for _ in 1..MAX_PART_TRIES {
            let part = self.next_part(table.name, shared);
            match self.write_part(table, batches, part) {
                // Another process of the rank has it: not an error yet.
                Err(error) if shared && is_taken(&error, &self.path(table.name, part)) => {}
                written => return written.map(|()| part),
            }
        }
        let part = self.next_part(table.name, shared);
        self.write_part(table, batches, part).map(|()| part)
    }

    fn path(&self, table: &str, part: u32) -> PathBuf {
        trace::shard_path(&self.setup.run, table, self.setup.meta.rank, part)
    }

    /// The next number of a part that this process has not tried; where others write too, one that is free now.
    fn next_part(&self, table: &'static str, shared: bool) -> u32 {
        let mut part = self.next_part.get(table).copied().unwrap_or(0);
        while shared && self.path(table, part).exists() {
            part += 1;
        }
        part
    }

    fn write_part(&mut self, table: &Table, batches: &[RecordBatch], part: u32) -> Result<(), trace::Error> {
        let written = trace::write_shard(&self.setup.run, table, &self.setup.meta, part, batches);
        // Somebody else's part is never overwritten; the next attempt goes past it.
        if written.as_ref().err().is_none_or(|error| is_taken(error, &self.path(table.name, part))) {
            self.next_part.insert(table.name, part + 1);
        }
        let mut summary = self.summary();
        match written {
            Ok(bytes) => {
                summary.bytes += bytes;
                summary.shards += 1;
                Ok(())
            }
            Err(error) => {
                summary.failed_parts += 1;
                Err(error)
            }
        }
    }
}

/// Whether the shard exists already. (A file in place of the directory says `AlreadyExists` too, of another path.)
fn is_taken(error: &trace::Error, shard: &Path) -> bool {
    matches!(error, trace::Error::Io { path, source } if path == shard && source.kind() == ErrorKind::AlreadyExists)
}

fn not_written(error: &trace::Error) -> String {
    format!("the part could not be written: {error}")
}

/// Empties `held` after it was written and returns where its rows came from.
fn take_sources<T>(held: &mut Vec<Sourced<T>>) -> Vec<u32> {
    held.drain(..).map(|(source, _)| source).collect()
}

/// After a failed write: keeps the rows for the next attempt, unless it was the last or memory has its limit. Returns
/// the rows lost.
fn give_up<T>(held: &mut Vec<T>, last: bool, limit: usize) -> Option<u64> {
    let lost = held.len() as u64;
    (lost > 0 && (last || held.len() >= limit)).then(|| held.clear()).map(|()| lost)
}
