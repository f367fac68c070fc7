//! Writes the windows of a rank one by one, as the profiler ends them, into a run that is being recorded.
//!
//! The process that claimed the rank writes clock samples into the same run; this one joins its session. So both write parts of
//! `ranks`, `parts` and `counters`, and the times of the windows are converted to the clock of the samples.

use std::path::PathBuf;

use trace::{
    CLOCK_SOURCE, CounterRow, PROFILER_ERROR_NS, PartRow, RankRow, ShardMeta, Text, rank::Events, rank::RankData,
};

use crate::Error;
use crate::bytes::memory::MemoryShare;
use crate::columns::wanted_args::Wanted;
use crate::read::join_windows::{Known, Numbers};
use crate::read::load::{Loaded, load_wanted};
use crate::read::{RankSource, TraceFile, Window, file_name};
use crate::write::shards::{
    PART_ROWS, Part, all_flows, rank_row, used_device, write_all_events, write_table, write_tables,
};
use crate::write::wall_clock::{Comparison, WallClock};

/// The run and the rank whose windows are written.
#[derive(Clone, Debug)]
pub struct RankPlace {
    /// Directory of the run.
    pub run: PathBuf,
    /// What every shard carries; `session` is that of the process that claimed the rank, and `pid` of this process.
    pub meta: ShardMeta,
    /// Number of ranks in the job.
    pub world_size: i32,
    /// Memory that the rows of a window may take; rows beyond it are lost and listed.
    pub max_memory_bytes: u64,
}

/// A trace that the profiler wrote when a window ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowFile {
    /// The trace.
    pub path: PathBuf,
    /// A dump of torch's Flight Recorder.
    pub flight_recorder: Option<PathBuf>,
    /// Its number, from 1.
    pub number: i32,
    /// This is added to the numbers of its steps.
    pub step_shift: i32,
}

/// The result of writing a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenWindow {
    /// Rows of `events`.
    pub rows: u64,
    /// Bytes of Parquet.
    pub bytes: u64,
    /// Largest error of the times in the rank's clock.
    pub error_ns: i64,
    /// Parts of the trace that were lost; the run lists them.
    pub lost: usize,
}

/// Writes the windows of one rank.
#[derive(Debug)]
pub struct WindowWriter {
    place: RankPlace,
    numbers: Numbers,
    known: Known,
    /// Next part of `events`, which no other process writes.
    parts: u32,
    /// The first step after those that were written.
    next_step: i32,
    last: Option<RankRow>,
    closed: Vec<PartRow>,
}

impl WindowWriter {
    /// A writer without windows. It writes nothing before the first one.
    pub fn new(place: RankPlace) -> Self {
        Self {
            place,
            numbers: Numbers::default(),
            known: Known::default(),
            parts: 0,
            next_step: 0,
            last: None,
            closed: Vec::new(),
        }
    }

    /// Reads a window and writes its tables as parts of the run.
    ///
    /// # Errors
    /// As [`load`](crate::load); [`Error::NotATrace`] if the trace is another rank's or `comparisons`, which are in the order of time,
    /// are too few; [`Error::Trace`] if a shard cannot be written.
    pub fn write(&mut self, window: &WindowFile, comparisons: &[Comparison]) -> Result<WrittenWindow, Error> {
        let file = self.trace_file(window)?;
        let mut loaded = load_wanted(&file, Wanted { args: true, ..Wanted::default() }, 0)?;
        let refused = |why: String| Error::not_a_trace(&window.path, &why);
        let (rank, found) = (self.place.meta.rank, loaded.data.outline.info.rank);
        if found != rank {
            return Err(refused(format!("the trace is of rank {found}, and this process is rank {rank}")));
        }
        let clock = match span(&loaded.data) {
            Some((start_ns, end_ns)) => WallClock::of(comparisons, start_ns, end_ns).ok_or_else(|| {
                refused(
                    "its times cannot be converted: the wall clock was compared less than twice, or set back".into(),
                )
            })?,
            None => return Err(refused("it holds no rows: nothing ran in the window".into())),
        };
        clock.convert(&mut loaded.data);
        let lost = loaded.data.omissions.iter().filter(|o| o.kind.known() == Some(trace::OmissionKind::Lost)).count();
        self.state_error(&mut loaded.data, &file.name, clock.error_ns);
        let before = self.closed.len();
        let rows = loaded.data.events.len() as u64;
        self.write_loaded(loaded)?;
        let bytes = self.closed[before..].iter().map(|shard| shard.bytes.unsigned_abs()).sum();
        Ok(WrittenWindow { rows, bytes, error_ns: clock.error_ns, lost })
    }

    fn trace_file(&self, window: &WindowFile) -> Result<TraceFile, Error> {
        let WindowFile { path, flight_recorder, number, step_shift } = window;
        let size = std::fs::metadata(path).map_err(|source| Error::Io { path: path.clone(), source })?.len();
        Ok(TraceFile {
            path: path.clone(),
            name: file_name(path),
            rank: self.place.meta.rank,
            roles: None,
            rank_source: RankSource::FileName,
            world_size: Some(self.place.world_size),
            size_bytes: size,
            window: Some(Window { number: *number, step_shift: *step_shift, as_step: Some(self.next_step) }),
            replica: None,
            memory: MemoryShare { all_bytes: self.place.max_memory_bytes, ranks_at_once: 1 },
            flight_recorder: flight_recorder.clone(),
            processes: None,
        })
    }

    /// States the error of the converted times, and that the guaranteed clock error does not hold if it is larger than that
    /// allows for.
    fn state_error(&self, data: &mut RankData, name: &Text, error_ns: i64) {
        for counter in &mut data.counters {
            let why = counter.why.as_deref().unwrap_or_default();
            let stated = format!("{why}; {name}: times converted to the rank's clock, up to {error_ns} ns off");
            counter.why = Some(stated.trim_start_matches("; ").into());
        }
        if error_ns > PROFILER_ERROR_NS {
            let why = format!(
                "{name}: the profiler's times follow the wall clock, which was set or slewed; they are up to {error_ns} ns off, more than \
                 the {PROFILER_ERROR_NS} ns that the guaranteed clock error contains"
            );
            let rank = self.place.meta.rank;
            let source = CLOCK_SOURCE.into();
            data.counters.push(CounterRow { rank, source, why: Some(why.into()), ..CounterRow::default() });
        }
    }

    fn write_loaded(&mut self, mut loaded: Loaded) -> Result<(), Error> {
        let RankPlace { run, meta, .. } = &self.place;
        let first_id = self.numbers.id;
        self.numbers.shift(&mut loaded.data);
        self.numbers = self.numbers.after(&loaded.data);
        self.next_step = self.next_step.max(loaded.data.outline.steps.iter().map(|s| s.step + 1).max().unwrap_or(0));
        loaded.used_device = used_device(&loaded.data);
        self.known.keep_new(&mut loaded.data);
        let row = RankRow { closed_cleanly: false, ..self.row(&loaded) };
        if self.last.is_none() {
            self.closed.extend(write_table(std::slice::from_ref(&row), run, meta, Part::Next)?);
        }
        self.last = Some(row);
        self.closed.extend(write_all_events(&mut loaded, (first_id, self.parts), run, meta)?);
        self.parts += loaded.data.events.len().div_ceil(PART_ROWS) as u32;
        loaded.data.flows = all_flows(&loaded.data);
        loaded.data.events = Events::default();
        self.closed.extend(write_tables(&loaded, run, meta, Part::Next)?);
        Ok(())
    }

    /// The row of this process in `ranks`.
    fn row(&self, loaded: &Loaded) -> RankRow {
        let RankPlace { meta, world_size, .. } = &self.place;
        RankRow {
            world_size: *world_size,
            host: meta.host.as_str().into(),
            pid: meta.pid,
            boot_id: Some(meta.boot_id.as_str().into()).filter(|_| !meta.boot_id.is_empty()),
            clock_domain: meta.clock_domain.as_str().into(),
            ..rank_row(loaded)
        }
    }

    /// Writes the list of the shards and states that this process ended in order.
    ///
    /// # Errors
    /// [`Error::Trace`].
    pub fn finish(self) -> Result<(), Error> {
        let Some(row) = self.last else { return Ok(()) };
        let RankPlace { run, meta, .. } = &self.place;
        write_table(&self.closed, run, meta, Part::Next)?;
        let last = RankRow { parts: Some(self.closed.len() as i64), closed_cleanly: true, ..row };
        write_table(&[last], run, meta, Part::Next)?;
        Ok(())
    }
}

/// The first start and the last end of the rows.
fn span(data: &RankData) -> Option<(i64, i64)> {
    let events = &data.events;
    let first = events.ts_ns.first().copied()?;
    Some((first, (0..events.len()).map(|row| events.end_ns(row)).max().unwrap_or(first)))
}
