//! The writer thread: empties the queues and writes parts. No error of it reaches the program.

mod counts;
mod in_flight;
mod rows;
mod shards;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rustix::time::{ClockId, clock_gettime};
use trace::{CollectiveRow, CounterRow, EventRow, MemoryRow, RankRow, RecordBatch, Row, ShardMeta, Table, lock};

use self::counts::Counts;
use self::in_flight::{InFlight, MAX_IN_FLIGHT};
use self::rows::{Constants, Parts, Sourced};
use self::shards::{Shards, is_taken};
use crate::error::Error;
use crate::kinds::{CollectiveState, Kind};
use crate::names::Strings;
use crate::open_scopes::OpenScope;
use crate::queue_entry::{Collective, EventRecord, MemoryRecord, RareRecord};
use crate::shared::{HandedOver, Shared};
use crate::source_batch::{Missing, SourceBatch, SourceEvent};
use crate::summary::Summary;
use crate::thread::ThreadShared;

/// Pause between two passes over the queues. With it, a queue of 32 768 entries takes 0.6 M records per second. Passes
/// are rare, because each takes a core from the program when all cores are busy.
const POLL: Duration = Duration::from_millis(50);

/// A message from the program to the writer.
#[derive(Debug)]
pub(crate) enum Command {
    Thread(ThreadQueues),
    Rows(HandedRows),
    Source(SourceBatch),
    /// Write all rows that arrived before.
    Flush {
        reply: SyncSender<()>,
    },
    Finish {
        clean: bool,
        reply: SyncSender<()>,
    },
}

/// Rows of a small table that the program handed over.
#[derive(Debug)]
pub(crate) struct HandedRows {
    pub(crate) table: Table,
    pub(crate) batch: RecordBatch,
}

/// The consuming ends of a thread's queues.
#[derive(Debug)]
pub(crate) struct ThreadQueues {
    pub(crate) own: Arc<ThreadShared>,
    pub(crate) events: Consumer<EventRecord>,
    pub(crate) rare: Consumer<RareRecord>,
}

/// Parameters of the writer.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) run: PathBuf,
    pub(crate) meta: ShardMeta,
    pub(crate) part_period: Duration,
    pub(crate) part_rows: usize,
    pub(crate) queue_records: usize,
    pub(crate) rank_row: RankRow,
    /// Whether this process joins another one that has claimed the rank.
    pub(crate) joins: bool,
    pub(crate) max_bytes: u64,
    pub(crate) keep: Option<Duration>,
}

/// Origin of rows: a thread, or a source without queues. It outlives its thread, because rows refer to its index.
#[derive(Debug)]
struct Origin {
    own: Arc<ThreadShared>,
    queues: Option<(Consumer<EventRecord>, Consumer<RareRecord>)>,
    /// Dropped events, collectives and memory records that `counters` already holds.
    counted: [u64; 3],
}

/// CPU time of the calling thread in ns.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

pub(crate) struct Writer {
    setup: Setup,
    constants: Constants,
    shared: Arc<Shared>,
    summary: Arc<Mutex<Summary>>,
    shards: Shards,
    strings: Strings,
    origins: Vec<Origin>,
    events: Vec<Sourced<EventRecord>>,
    collectives: Vec<Sourced<Collective>>,
    memory: Vec<Sourced<MemoryRecord>>,
    source_events: Vec<Sourced<SourceEvent>>,
    /// Indices of the sources in `origins`, by name.
    sources: BTreeMap<&'static str, u32>,
    handed: BTreeMap<&'static str, Vec<HandedRows>>,
    in_flight: InFlight,
    /// Ids of the open scopes in the last part of `events`.
    open_written: Vec<i64>,
    counts: Counts,
    /// Arrival of the first row that is not on disk yet.
    part_began: Option<Instant>,
    last_close: Instant,
    /// Time at which counters were written last, and the pause until the next time once the byte limit is reached.
    counts_written: Instant,
    counts_pause: Duration,
}

impl Writer {
    /// Claims the rank, or joins the session that records it, by writing its row.
    pub(crate) fn start(setup: Setup, shared: Arc<Shared>, summary: Arc<Mutex<Summary>>) -> Result<Self, Error> {
        let constants = Constants { rank: setup.meta.rank, pid: setup.meta.pid };
        let mut writer = Self {
            shards: Shards::new(setup.run.clone(), setup.meta.clone(), summary.clone(), (shared.clock, setup.keep)),
            setup,
            constants,
            shared,
            summary,
            strings: Strings::default(),
            origins: Vec::new(),
            events: Vec::new(),
            collectives: Vec::new(),
            memory: Vec::new(),
            source_events: Vec::new(),
            sources: BTreeMap::new(),
            handed: BTreeMap::new(),
            in_flight: InFlight::default(),
            open_written: Vec::new(),
            counts: Counts::default(),
            part_began: None,
            last_close: Instant::now(),
            counts_written: Instant::now(),
            counts_pause: Duration::ZERO,
        };
        let row = trace::batch_from_rows(std::slice::from_ref(&writer.setup.rank_row))?;
        if writer.setup.joins {
            // The part number of this row is unique among the processes of the rank.
            let process = writer.shards.write(&RankRow::table(), &[row])?;
            writer.shared.begin_ids_at(process);
            return Ok(writer);
        }
        let path = writer.shards.path(RankRow::table().name, 0);
        writer.shards.write_part(&RankRow::table(), &[row], 0).map_err(|error| match is_taken(&error, &path) {
            true => Error::RankTaken { path, rank: writer.constants.rank },
            false => Error::Trace(error),
        })?;
        Ok(writer)
    }

    /// Runs until it receives `Finish`.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        let mut busy = false;
        loop {
            match commands.recv_timeout(if busy { Duration::ZERO } else { POLL }) {
                Ok(Command::Thread(ThreadQueues { own, events, rare })) => {
                    self.origins.push(Origin { own, queues: Some((events, rare)), counted: [0; 3] });
                }
                Ok(Command::Rows(rows)) => self.take_handed(rows),
                Ok(Command::Source(batch)) => self.take_batch(batch),
                Ok(Command::Flush { reply }) => {
                    self.drain();
                    self.close_part(false);
                    // The caller may have stopped waiting.
                    let _ = reply.send(());
                }
                Ok(Command::Finish { clean, reply }) => {
                    self.finish(clean);
                    self.summary().writer_cpu_ns = thread_cpu_ns();
                    // The caller may have stopped waiting.
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
            // A reader of the run would not see the losses, so the rank must not count as closed cleanly.
            return self.summary().fail("the counters could not be written".into());
        }
        let written = self.shards.write_list().and_then(|closed| {
            let row = RankRow { closed_cleanly: true, parts: Some(closed), ..self.setup.rank_row.clone() };
            self.shards.write(&RankRow::table(), &[trace::batch_from_rows(&[row])?])
        });
        let mut summary = self.summary();
        match written {
            Ok(_) => summary.closed_cleanly = true,
            Err(error) => summary.fail(error.to_string()),
        }
    }

    /// Empties the queues. Returns whether one of them was more than a quarter full.
    fn drain(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.origins.len() {
            // Take only what is there now, so that a busy thread cannot keep the writer from the other threads.
            let mut waiting = self.waiting(index);
            busy |= waiting > self.setup.queue_records / 4;
            while waiting > 0 {
                let room = self.setup.part_rows.saturating_sub(self.events.len() + self.source_events.len());
                let taken = self.drain_events(index, waiting.min(room));
                if taken == 0 {
                    break;
                }
                waiting -= taken;
                self.close_if_full();
            }
            self.drain_rare(index);
            self.close_if_full();
            self.free_if_ended(index);
        }
        if self.rows() > 0 && self.part_began.is_none() {
            self.part_began = Some(Instant::now());
        }
        busy
    }

    fn waiting(&self, index: usize) -> usize {
        self.origins.get(index).and_then(|source| source.queues.as_ref()).map_or(0, |(events, _)| events.slots())
    }

    /// Number of rows of the fullest table.
    fn rows(&self) -> usize {
        (self.events.len() + self.source_events.len()).max(self.collectives.len()).max(self.memory.len())
    }

    fn close_if_full(&mut self) {
        if self.rows() >= self.setup.part_rows {
            self.close_part(false);
        }
    }

    fn drain_events(&mut self, index: usize, limit: usize) -> usize {
        let Some(Origin { queues: Some((events, _)), .. }) = self.origins.get_mut(index) else { return 0 };
        let Ok(chunk) = events.read_chunk(events.slots().min(limit)) else { return 0 };
        let taken = chunk.len();
        self.events.extend(chunk.into_iter().map(|record| (index as u32, record)));
        taken
    }

    /// Frees the queues of a thread that has ended, once they are empty.
    fn free_if_ended(&mut self, index: usize) {
        let Some(origin) = self.origins.get_mut(index) else { return };
        let over = |(events, rare): &(Consumer<EventRecord>, Consumer<RareRecord>)| {
            // Check for abandonment first: records that were pushed before it are then visible in the queues.
            events.is_abandoned() && rare.is_abandoned() && events.is_empty() && rare.is_empty()
        };
        if origin.queues.as_ref().is_some_and(over) {
            origin.queues = None;
        }
    }

    fn drain_rare(&mut self, index: usize) {
        let Some(Origin { queues: Some((_, rare)), .. }) = self.origins.get_mut(index) else { return };
        let Ok(chunk) = rare.read_chunk(rare.slots()) else { return };
        for record in chunk {
            match record {
                RareRecord::Memory(record) => self.memory.push((index as u32, record)),
                RareRecord::Collective(collective) if collective.state >= CollectiveState::Done => {
                    self.in_flight.end(&collective);
                    self.collectives.push((index as u32, collective));
                }
                RareRecord::Collective(collective) => {
                    if !self.in_flight.report(collective) {
                        let why = format!("more than {MAX_IN_FLIGHT} collectives were in flight");
                        self.counts.omit("writer:in_flight", 1, &why);
                    }
                }
            }
        }
    }

    fn take_handed(&mut self, rows: HandedRows) {
        self.shared.handed_over.leave(rows.batch.num_rows() as u64);
        let name = rows.table.name;
        let held: usize = self.handed.get(name).map_or(0, |parts| parts.iter().map(|p| p.batch.num_rows()).sum());
        if held >= self.setup.part_rows {
            self.close_part(false);
        }
        self.handed.entry(name).or_default().push(rows);
        self.part_began.get_or_insert_with(Instant::now);
    }

    /// Takes the rows of a source.
    fn take_batch(&mut self, batch: SourceBatch) {
        self.shared.handed_over.leave(batch.rows() as u64);
        let SourceBatch { source, events, memory, collectives, missing } = batch;
        let origin = self.origin_of(source);
        // A thread reported the collective as enqueued before it launched the kernel: take that report first.
        for index in 0..self.origins.len() {
            self.drain_rare(index);
        }
        for event in events {
            self.source_events.push((origin, event));
            self.close_if_full();
        }
        self.memory.extend(memory.into_iter().map(|record| (origin, record)));
        for collective in collectives {
            self.in_flight.end(&collective);
            self.collectives.push((origin, collective));
        }
        self.close_if_full();
        for Missing { source, dropped, omitted, why } in missing {
            if dropped > 0 {
                self.lose(&source, dropped, &why);
            }
            if omitted > 0 {
                self.counts.omit(&source, omitted, &why);
            }
        }
        // A part is due even if only counts arrived.
        self.part_began.get_or_insert_with(Instant::now);
    }

    /// Index of a source among the origins.
    fn origin_of(&mut self, source: &'static str) -> u32 {
        let next = self.origins.len() as u32;
        *self.sources.entry(source).or_insert_with(|| {
            self.origins.push(Origin { own: Arc::new(ThreadShared::new(source)), queues: None, counted: [0; 3] });
            next
        })
    }

    fn is_due(&self) -> bool {
        let period = self.setup.part_period;
        if self.part_began.is_some_and(|began| began.elapsed() >= period) {
            return true;
        }
        // No row has arrived for a while. If a scope or collective is open that no part contains yet, the rank may hang:
        // write it now.
        self.last_close.elapsed() >= period
            && (self.in_flight.has_news(period)
                || self.open_scopes().iter().any(|(_, scope)| !self.open_written.contains(&scope.id)))
    }

    fn open_scopes(&self) -> Vec<Sourced<OpenScope>> {
        let of_origin = |(index, origin): (usize, &Origin)| {
            origin.own.open.read().map(|scope| (index as u32, scope)).collect::<Vec<_>>()
        };
        self.origins.iter().enumerate().flat_map(of_origin).collect()
    }

    /// Writes all rows that the writer holds. In the last part, rows that cannot be written are lost.
    fn close_part(&mut self, last: bool) {
        self.shared.names.refresh(&mut self.strings);
        let within = self.summary().bytes < self.setup.max_bytes;
        if within {
            self.write_events(last);
            self.write_collectives(last);
            self.write_memory(last);
            self.write_handed(last);
        } else {
            self.leave_out();
        }
        self.count_full_queues();
        self.shards.leave(&mut self.counts);
        // Beyond the limit only counters are written, each time after twice the pause: they also take bytes.
        if within || last || self.counts_written.elapsed() >= self.counts_pause {
            self.write_counters();
            self.counts_written = Instant::now();
            let period = self.setup.part_period;
            self.counts_pause = if within { period } else { self.counts_pause.max(period).saturating_mul(2) };
        }
        self.last_close = Instant::now();
        let held = self.rows() > 0 || !self.handed.is_empty();
        self.part_began = held.then(Instant::now);
    }

    /// Discards all rows that the writer holds, because this process has reached its byte limit.
    fn leave_out(&mut self) {
        let why = format!("this process has reached its limit of {} bytes (--max-bytes)", self.setup.max_bytes);
        let events = self.events.len() + self.source_events.len();
        let held = [("events", events), ("collectives", self.collectives.len()), ("memory", self.memory.len())];
        let handed = std::mem::take(&mut self.handed);
        let handed =
            handed.iter().map(|(name, parts)| (*name, parts.iter().map(|part| part.batch.num_rows()).sum::<usize>()));
        for (table, rows) in held.into_iter().chain(handed).filter(|(_, rows)| *rows > 0) {
            self.counts.omit(&format!("writer:{table}"), rows as u64, &why);
            self.summary().omitted += rows as u64;
        }
        self.events.clear();
        self.source_events.clear();
        self.collectives.clear();
        self.memory.clear();
    }

    fn write_events(&mut self, last: bool) {
        let open = self.open_scopes();
        let open_ids: Vec<i64> = open.iter().map(|(_, scope)| scope.id).collect();
        let is_written = open_ids.iter().all(|id| self.open_written.contains(id));
        if self.events.is_empty() && self.source_events.is_empty() && is_written {
            return;
        }
        let threads: Vec<i64> = self.origins.iter().map(|o| o.own.thread_id.load(Ordering::Relaxed)).collect();
        let (records, source_events) = (&mut self.events, &mut self.source_events);
        let now_ns = self.shared.clock.now_ns();
        let parts = Parts { threads: &threads, records, source_events, open: &open, now_ns };
        let batch = rows::event_batch(&self.constants, &self.strings, parts);
        match batch.and_then(|batch| self.shards.write(&EventRow::table(), &[batch])) {
            Ok(_) => {
                let origins = take_origins(&mut self.events);
                self.record("host", &origins);
                self.record_source_events();
                self.open_written = open_ids;
            }
            Err(error) => {
                // All rows of the table are given up together: they form one part.
                let full = last || self.events.len() + self.source_events.len() >= self.setup.part_rows;
                let lost =
                    [give_up(&mut self.events, full, usize::MAX), give_up(&mut self.source_events, full, usize::MAX)];
                let rows = lost.into_iter().flatten().sum();
                if rows > 0 {
                    self.lose("writer:events", rows, &not_written(&error));
                }
            }
        }
    }

    fn write_collectives(&mut self, last: bool) {
        let written_after = if last { Duration::ZERO } else { self.setup.part_period };
        let hung = self.in_flight.news(written_after);
        if self.collectives.is_empty() && hung.is_empty() {
            return;
        }
        let done = self.collectives.iter().map(|(_, collective)| collective);
        let collectives = done.chain(self.in_flight.get(&hung));
        let batch = rows::collective_batch(&self.constants, &self.strings, collectives);
        match batch.and_then(|batch| self.shards.write(&CollectiveRow::table(), &[batch])) {
            Ok(_) => {
                let origins = take_origins(&mut self.collectives);
                self.record("collectives", &origins);
                self.in_flight.set_written(&hung);
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
        let batch = rows::memory_batch(&self.constants, &self.strings, &mut self.memory);
        match batch.and_then(|batch| self.shards.write(&MemoryRow::table(), &[batch])) {
            Ok(_) => {
                let origins = take_origins(&mut self.memory);
                self.record("memory", &origins);
            }
            Err(error) => {
                if let Some(rows) = give_up(&mut self.memory, last, self.setup.part_rows) {
                    self.lose("writer:memory", rows, &not_written(&error));
                }
            }
        }
    }

    fn write_handed(&mut self, last: bool) {
        for (name, parts) in std::mem::take(&mut self.handed) {
            let rows: usize = parts.iter().map(|part| part.batch.num_rows()).sum();
            let batches: Vec<RecordBatch> = parts.iter().map(|part| part.batch.clone()).collect();
            let Some(table) = parts.first().map(|part| part.table.clone()) else { continue };
            match self.shards.write(&table, &batches) {
                Ok(_) => {
                    self.counts.record(name, rows as u64);
                    self.summary().recorded += rows as u64;
                }
                Err(error) if last || rows >= self.setup.part_rows => {
                    self.lose(&format!("writer:{name}"), rows as u64, &not_written(&error));
                }
                // The next part tries again.
                Err(_) => {
                    self.handed.insert(name, parts);
                }
            }
        }
    }

    /// Counts the records that found their queue full since the last part.
    fn count_full_queues(&mut self) {
        let why = format!("its queue of {} records was full", self.setup.queue_records);
        let mut lost = Vec::new();
        for origin in &mut self.origins {
            let dropped = &origin.own.dropped;
            let tables =
                [("host", &dropped.events), ("collectives", &dropped.collectives), ("memory", &dropped.memory)];
            for ((table, dropped), counted) in tables.into_iter().zip(&mut origin.counted) {
                let rows = dropped.load(Ordering::Relaxed) - *counted;
                if rows > 0 {
                    *counted += rows;
                    lost.push((format!("{table}:{}", origin.own.name), rows));
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
        let written = trace::batch_from_rows(&rows).and_then(|batch| self.shards.write(&CounterRow::table(), &[batch]));
        // After an error the counts stay for the next part; the failure itself is counted.
        if written.is_ok() {
            self.counts.clear();
            self.shards.remove();
        }
    }

    fn record(&mut self, table: &str, origins: &[u32]) {
        let mut rows = vec![0; self.origins.len()];
        for origin in origins {
            rows[*origin as usize] += 1;
        }
        for (origin, rows) in self.origins.iter().zip(rows) {
            self.counts.record(&format!("{table}:{}", origin.own.name), rows);
        }
        self.summary().recorded += origins.len() as u64;
    }

    /// Counts the sources' events of a part that was written, by kind, and discards them.
    fn record_source_events(&mut self) {
        for (source, origin) in &self.sources {
            for kind in Kind::ALL {
                let of_kind = |(from, event): &&Sourced<SourceEvent>| from == origin && event.kind == *kind;
                let rows = self.source_events.iter().filter(of_kind).count() as u64;
                self.counts.record(&format!("{source}:{}", kind.as_str()), rows);
            }
        }
        self.summary().recorded += self.source_events.len() as u64;
        self.source_events.clear();
    }

    fn lose(&mut self, source: &str, rows: u64, why: &str) {
        self.counts.lose(source, rows, why);
        self.summary().lose(source, rows, why);
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        lock(&self.summary)
    }
}

fn not_written(error: &trace::Error) -> String {
    format!("the part could not be written: {error}")
}

/// Empties `held` after it was written and returns the origins of its rows.
fn take_origins<T>(held: &mut Vec<Sourced<T>>) -> Vec<u32> {
    held.drain(..).map(|(origin, _)| origin).collect()
}

/// Handles a failed write: keeps the rows for the next attempt, unless this was the last one or they reach `limit`.
/// Returns the number of rows lost.
fn give_up<T>(held: &mut Vec<T>, last: bool, limit: usize) -> Option<u64> {
    let lost = held.len() as u64;
    (lost > 0 && (last || held.len() >= limit)).then(|| held.clear()).map(|()| lost)
}
