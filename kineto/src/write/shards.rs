//! Writes a loaded rank as the shards of a run.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use trace::rank::{Collective, Events, Launches, Metric, MetricSample, NONE, RankData};
use trace::{
    CollectiveRow, CounterRow, EventRow, FlowRow, GpuMetricSampleRow, OmissionRow, PartRow, ROW_GROUP_ROWS, RankRow,
    RecordBatch, Row, ShardMeta, batch_from_rows, shard_path, write_shard_with,
};

use crate::Error;
use crate::columns::rows::Extras;
use crate::columns::wanted_args::Wanted;
use crate::read::TraceFile;
use crate::read::join_windows::{Known, Numbers};
use crate::read::load::{Loaded, load_wanted};
use crate::write::event_batch::Window;

/// Rows of a part. A recorder closes its parts at the same number.
pub(super) const PART_ROWS: usize = 256 << 10;

/// The result of writing one trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenShards {
    /// Rows of `events`.
    pub rows: u64,
    /// Bytes of Parquet.
    pub bytes: u64,
    /// Start of the first row.
    pub first_ns: Option<i64>,
    /// Parts of the trace that could not be read.
    pub omissions: Vec<OmissionRow>,
}

/// Reads the windows of a rank, which are `files` in order of time, and writes their tables as shards of the run
/// `run_id` into the directory `run`. `complete` changes what the other ranks of the job decide. It does not change rows of `events`, which
/// are written before.
///
/// # Errors
/// As [`load`](crate::load); [`Error::Trace`] if a shard cannot be written.
pub fn write_shards(
    files: &[TraceFile],
    run: &Path,
    run_id: &str,
    complete: &dyn Fn(&mut RankData),
) -> Result<WrittenShards, Error> {
    let mut out = WrittenShards::default();
    let mut all: Option<Loaded> = None;
    let (mut numbers, mut known, mut parts) = (Numbers::default(), Known::default(), 0);
    let mut claim: Option<ShardMeta> = None;
    let mut closed: Vec<PartRow> = Vec::new();
    for file in files {
        let mut loaded = load_wanted(file, Wanted { args: true, ..Wanted::default() }, 0)?;
        let first_id = numbers.id;
        if all.is_some() {
            numbers.shift(&mut loaded.data);
        }
        numbers = numbers.after(&loaded.data);
        // All windows of a rank are one claim, also those of other processes: a later recording of the same script.
        let meta = claim.get_or_insert_with(|| meta_of(&loaded.data, run_id));
        out.rows += loaded.data.events.len() as u64;
        out.first_ns = out.first_ns.or(loaded.data.events.ts_ns.first().copied());
        closed.extend(write_all_events(&mut loaded, (first_id, parts), run, meta)?);
        parts += loaded.data.events.len().div_ceil(PART_ROWS) as u32;
        loaded.data.flows = all_flows(&loaded.data);
        // The rows are written. What is left of a window is small.
        loaded.extras = Extras::default();
        match &mut all {
            None => {
                loaded.used_device = used_device(&loaded.data);
                loaded.data.events = Events::default();
                known = Known::of(&loaded.data);
                all = Some(loaded);
            }
            Some(all) => {
                loaded.data.events = Events::default();
                known.append_tables(&mut all.data, loaded.data);
            }
        }
    }
    let Some(mut all) = all else { return Ok(out) };
    complete(&mut all.data);
    out.close(all, closed, run, run_id)
}

/// Writes a rank of another format as shards of the run `run_id` into the directory `run`.
///
/// # Errors
/// [`Error::Trace`] if a shard cannot be written.
pub fn write_rank(data: RankData, run: &Path, run_id: &str) -> Result<WrittenShards, Error> {
    let mut loaded = Loaded { data, ..Loaded::default() };
    let meta = meta_of(&loaded.data, run_id);
    let closed = write_all_events(&mut loaded, (0, 0), run, &meta)?;
    let events = &loaded.data.events;
    let (rows, first_ns) = (events.len() as u64, events.ts_ns.first().copied());
    loaded.data.flows = all_flows(&loaded.data);
    loaded.used_device = used_device(&loaded.data);
    WrittenShards { rows, first_ns, ..WrittenShards::default() }.close(loaded, closed, run, run_id)
}

impl WrittenShards {
    /// Writes the tables of a rank whose rows of `events` are the shards `closed`.
    fn close(self, all: Loaded, mut closed: Vec<PartRow>, run: &Path, run_id: &str) -> Result<Self, Error> {
        let meta = meta_of(&all.data, run_id);
        closed.extend(write_tables(&all, run, &meta, Part::First)?);
        // The last row of `ranks` counts the list, so it is written after it.
        let last = RankRow { parts: Some(closed.len() as i64), ..rank_row(&all) };
        for shard in [write_table(&closed, run, &meta, Part::First)?, write_table(&[last], run, &meta, Part::First)?] {
            closed.extend(shard);
        }
        let bytes = closed.iter().map(|shard| shard.bytes.unsigned_abs()).sum();
        Ok(Self { bytes, omissions: all.data.omissions, ..self })
    }
}

fn meta_of(data: &RankData, run_id: &str) -> ShardMeta {
    let info = &data.outline.info;
    ShardMeta {
        run_id: run_id.to_string(),
        rank: info.rank,
        host: info.host.clone(),
        pid: info.pid,
        boot_id: String::new(),
        clock_domain: info.clock_domain.clone(),
        session: String::new(),
    }
}

/// Writes the rows of a window, whose ids begin at `first_id`, as parts from `first_part` on; returns the closed shards.
pub(super) fn write_all_events(
    loaded: &mut Loaded,
    (first_id, first_part): (i64, u32),
    run: &Path,
    meta: &ShardMeta,
) -> Result<Vec<PartRow>, Error> {
    let Loaded { data, extras, .. } = loaded;
    let rows = data.events.len();
    let window = Window::of(data, extras, first_id);
    let parts: Vec<usize> = (0..rows).step_by(PART_ROWS).collect();
    // One part at a time and thread, so that the number of threads bounds the memory.
    parts
        .par_iter()
        .with_max_len(1)
        .enumerate()
        .map(|(part, first)| {
            let rows = *first..rows.min(first + PART_ROWS);
            write_events(&window, rows, first_part + part as u32, run, meta)
        })
        .collect()
}

/// Writes all tables of a rank but its rows, the list of shards and `ranks`; returns the closed shards.
pub(super) fn write_tables(loaded: &Loaded, run: &Path, meta: &ShardMeta, part: Part) -> Result<Vec<PartRow>, Error> {
    let RankData { outline, devices, memory, buckets, flows, .. } = &loaded.data;
    let samples = metric_samples(&loaded.data);
    let collectives: Vec<CollectiveRow> = outline.collectives.iter().map(Collective::row).collect();
    let counters = counters(&loaded.data);
    let writers: [&(dyn Fn() -> Result<Option<PartRow>, Error> + Sync); 10] = [
        &|| write_table(&collectives, run, meta, part),
        &|| write_table(&outline.comms, run, meta, part),
        &|| write_table(devices, run, meta, part),
        &|| write_table(memory, run, meta, part),
        &|| write_table(buckets, run, meta, part),
        &|| write_table(&samples, run, meta, part),
        &|| write_table(&outline.clock_samples, run, meta, part),
        &|| write_table(&outline.steps, run, meta, part),
        &|| write_table(flows, run, meta, part),
        &|| write_table(&counters, run, meta, part),
    ];
    let closed: Vec<Option<PartRow>> = writers.par_iter().map(|write| write()).collect::<Result<_, Error>>()?;
    Ok(closed.into_iter().flatten().collect())
}

/// The number of a table's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The only part.
    First,
    /// The first number that is free: other processes of the rank write this table too.
    Next,
}

/// The most attempts to find a free part number. An attempt fails if another process takes the number first.
const MAX_PART_TRIES: u32 = 100;

/// Writes a part of a table; `None` if it has no rows.
pub(super) fn write_table<R: Row>(
    rows: &[R],
    run: &Path,
    meta: &ShardMeta,
    part: Part,
) -> Result<Option<PartRow>, Error> {
    if rows.is_empty() {
        return Ok(None);
    }
    let table = R::table();
    let batches = [batch_from_rows(rows)?];
    let mut number = 0;
    for tries in 0.. {
        let path = |number: u32| shard_path(run, table.name, meta.rank, number);
        while part == Part::Next && path(number).exists() {
            number += 1;
        }
        match write_shard_with(run, &table, meta, number, &batches, &in_parallel) {
            Ok(closed) => return Ok(Some(closed.row(meta, &table, number))),
            Err(_) if part == Part::Next && tries < MAX_PART_TRIES && path(number).exists() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn write_events(
    window: &Window<'_>,
    rows: Range<usize>,
    part: u32,
    run: &Path,
    meta: &ShardMeta,
) -> Result<PartRow, Error> {
    let groups: Vec<usize> = rows.clone().step_by(ROW_GROUP_ROWS).collect();
    let batch = |first: &usize| window.batch(*first..rows.end.min(first + ROW_GROUP_ROWS));
    let batches: Vec<RecordBatch> = groups.par_iter().map(batch).collect::<Result<_, Error>>()?;
    let table = EventRow::table();
    Ok(write_shard_with(run, &table, meta, part, &batches, &in_parallel)?.row(meta, &table, part))
}

/// Encodes columns on all threads.
fn in_parallel(columns: usize, encode: &(dyn Fn(usize) + Sync)) {
    (0..columns).into_par_iter().with_max_len(1).for_each(encode);
}

fn metric_samples(data: &RankData) -> Vec<GpuMetricSampleRow> {
    let row = |sample: &MetricSample| {
        let Metric { device_id, name } = data.metrics.get(sample.metric as usize)?;
        let (rank, metric) = (data.outline.info.rank, name.clone());
        Some(GpuMetricSampleRow { rank, ts_ns: sample.ts_ns, device_id: *device_id, metric, value: sample.value })
    };
    data.metric_samples.iter().filter_map(row).collect()
}

/// The arrows of the trace, and one from each launch to its device row. Kineto's `ac2g` arrows are not read, because
/// they only repeat the correlation id.
pub(super) fn all_flows(data: &RankData) -> Vec<FlowRow> {
    let events = &data.events;
    let launches = Launches::collect(events);
    let mut flows = data.flows.clone();
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
        if let Some(launch) = launches.of(events.correlation[row]) {
            flows.push(FlowRow {
                rank: data.outline.info.rank,
                id: events.correlation[row],
                kind: "launch".into(),
                src_id: events.id[launch as usize],
                dst_id: events.id[row],
            });
        }
    }
    flows
}

/// The counters of the trace, and one for each omission, so that the run keeps the list.
fn counters(data: &RankData) -> Vec<CounterRow> {
    let of_omission = |omission: &OmissionRow| CounterRow::of_omission(data.outline.info.rank, omission);
    data.counters.iter().cloned().chain(data.omissions.iter().map(of_omission)).collect()
}

/// The device of the first device row.
pub(super) fn used_device(data: &RankData) -> Option<i64> {
    data.events.device.iter().copied().find(|device| *device != NONE)
}

pub(super) fn rank_row(loaded: &Loaded) -> RankRow {
    let Loaded { data, scalars, .. } = loaded;
    let device = loaded.used_device.and_then(|id| data.devices.iter().find(|row| row.device_id == id));
    let versions: serde_json::Map<String, serde_json::Value> = scalars
        .iter()
        .filter(|(key, _)| key.contains("version") || key.contains("Version"))
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    RankRow {
        rank: data.outline.info.rank,
        world_size: data.outline.info.world_size.unwrap_or(1),
        local_rank: None,
        host: data.outline.info.host.as_str().into(),
        pid: data.outline.info.pid,
        boot_id: None,
        clock_domain: data.outline.info.clock_domain.as_str().into(),
        device_name: device.and_then(|d| d.name.clone()),
        device_uuid: device.and_then(|d| d.uuid.clone()),
        roles: data.outline.info.roles.clone(),
        launcher: None,
        versions: (!versions.is_empty()).then(|| serde_json::Value::from(versions).to_string().into()),
        // A file does not say how its recorder ended. The counters list what the file lacks.
        closed_cleanly: true,
        parts: None,
    }
}
