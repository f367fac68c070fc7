//! Writes a loaded trace as the shards of a run.

use std::path::Path;

use rayon::prelude::*;
use serde::de::IgnoredAny;
use trace::rank::{Events, Kind, Launches, NO_PARENT, NO_STEP, NONE, RankData};
use trace::{
    CollectiveRow, CounterRow, EventRow, FlowRow, OMISSION_SOURCE, OmissionKind, OmissionRow, PartRow, RankRow, Row,
    RowBuilder, ShardMeta, Text, batch_from_rows, write_shard,
};

use crate::Error;
use crate::bytes::number;
use crate::bytes::value::Value;
use crate::columns::args::Argument;
use crate::columns::event::Wanted;
use crate::columns::rows::Extras;
use crate::meaning::op_details::outermost_first;
use crate::read::TraceFile;
use crate::read::join_windows::{Known, Numbers};
use crate::read::load::{Loaded, load_wanted};
/// Rows of a part. A recorder closes its parts at the same number.
const PART_ROWS: usize = 256 << 10;

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
/// `run_id` into the directory `run`.
///
/// # Errors
/// As [`load`](crate::load); [`Error::Trace`] if a shard cannot be written.
pub fn write_shards(files: &[TraceFile], run: &Path, run_id: &str) -> Result<WrittenShards, Error> {
    let mut out = WrittenShards::default();
    let mut all: Option<Loaded> = None;
    let (mut numbers, mut known, mut parts) = (Numbers::default(), Known::default(), 0);
    let mut closed: Vec<PartRow> = Vec::new();
    for file in files {
        let mut loaded = load_wanted(file, Wanted { args: true, ..Wanted::default() }, 0)?;
        let first_id = numbers.id;
        if all.is_some() {
            numbers.shift(&mut loaded.data);
        }
        numbers = numbers.after(&loaded.data);
        let meta = meta_of(&loaded.data, run_id);
        out.rows += loaded.data.events.len() as u64;
        out.first_ns = out.first_ns.or(loaded.data.events.ts_ns.first().copied());
        closed.extend(write_all_events(&loaded, (first_id, parts), run, &meta)?);
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
                all.complete &= loaded.complete;
                loaded.data.events = Events::default();
                known.append_tables(&mut all.data, loaded.data);
            }
        }
    }
    let Some(mut all) = all else { return Ok(out) };
    let meta = meta_of(&all.data, run_id);
    closed.extend(write_tables(&all, run, &meta)?);
    // The last row of `ranks` counts the list, so it is written after it.
    let last = RankRow { parts: Some(closed.len() as i64), ..rank_row(&all) };
    for shard in [write_table(&closed, run, &meta)?, write_table(&[last], run, &meta)?] {
        closed.extend(shard);
    }
    out.bytes = closed.iter().map(|shard| shard.bytes.unsigned_abs()).sum();
    out.omissions = std::mem::take(&mut all.data.omissions);
    Ok(out)
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
fn write_all_events(
    loaded: &Loaded,
    (first_id, first_part): (i64, u32),
    run: &Path,
    meta: &ShardMeta,
) -> Result<Vec<PartRow>, Error> {
    let Loaded { data, extras, .. } = loaded;
    let extras = Placed { extras, first_id };
    let parts: Vec<usize> = (0..data.events.len()).step_by(PART_ROWS).collect();
    // One part at a time and thread, so that the number of threads bounds the memory.
    parts
        .par_iter()
        .with_max_len(1)
        .enumerate()
        .map(|(part, first)| write_events(data, extras, *first, first_part + part as u32, run, meta))
        .collect()
}

/// Writes all tables of a rank but its rows, the list of shards and `ranks`; returns the closed shards.
fn write_tables(loaded: &Loaded, run: &Path, meta: &ShardMeta) -> Result<Vec<PartRow>, Error> {
    let Loaded { data, .. } = loaded;
    let collectives: Vec<CollectiveRow> = data.outline.collectives.iter().map(|c| c.row.clone()).collect();
    let closed = [
        write_table(&collectives, run, meta)?,
        write_table(&data.outline.comms, run, meta)?,
        write_table(&data.devices, run, meta)?,
        write_table(&data.memory, run, meta)?,
        write_table(&data.outline.steps, run, meta)?,
        write_table(&data.flows, run, meta)?,
        write_table(&counters(data), run, meta)?,
    ];
    Ok(closed.into_iter().flatten().collect())
}

/// Writes a table of one part; `None` if it has no rows.
fn write_table<R: Row>(rows: &[R], run: &Path, meta: &ShardMeta) -> Result<Option<PartRow>, Error> {
    if rows.is_empty() {
        return Ok(None);
    }
    let table = R::table();
    let closed = write_shard(run, &table, meta, 0, &[batch_from_rows(rows)?])?;
    Ok(Some(closed.row(meta, &table, 0)))
}

fn write_events(
    data: &RankData,
    extras: Placed<'_>,
    first: usize,
    part: u32,
    run: &Path,
    meta: &ShardMeta,
) -> Result<PartRow, Error> {
    let mut builder = <EventRow as Row>::Builder::default();
    for row in first..data.events.len().min(first + PART_ROWS) {
        builder.push(&event_row(data, extras, row));
    }
    let table = EventRow::table();
    Ok(write_shard(run, &table, meta, part, &[builder.finish()?])?.row(meta, &table, part))
}

/// The arguments of a window's rows, by their place in its file.
#[derive(Clone, Copy)]
struct Placed<'a> {
    extras: &'a Extras,
    first_id: i64,
}

/// One row with all of its arguments.
fn event_row(data: &RankData, Placed { extras, first_id }: Placed<'_>, row: usize) -> EventRow {
    let Events { kind, name, ts_ns, dur_ns, id, step, thread, device, stream, .. } = &data.events;
    let Events { correlation, external, parent, is_comm, bytes, flops, .. } = &data.events;
    let place = (id[row] - first_id) as usize;
    let known = |value: i64| Some(value).filter(|v| *v != NONE);
    let on_host = thread[row] != NONE;
    let mut event = EventRow {
        rank: data.outline.info.rank,
        kind: category(extras, place, kind[row]).into(),
        name: data.names[name[row] as usize].clone(),
        ts_ns: ts_ns[row],
        dur_ns: dur_ns[row],
        id: id[row],
        step: Some(step[row]).filter(|s| *s != NO_STEP),
        // Kineto's process of a device row is the device.
        pid: extras.pid.get(place).copied().and_then(known).filter(|_| on_host),
        thread_id: known(thread[row]),
        device_id: known(device[row]),
        stream_id: known(stream[row]),
        correlation_id: known(correlation[row]),
        external_id: known(external[row]),
        parent_id: Some(parent[row]).filter(|p| *p != NO_PARENT).map(|p| id[p as usize]),
        is_comm: Some(is_comm[row]),
        bytes: known(bytes[row]),
        flops: known(flops[row]),
        ..EventRow::default()
    };
    if event.flops.is_some()
        && let Ok(at) = data.flops_types.binary_search_by_key(&id[row], |known| known.id)
    {
        event.min_bytes = data.flops_types[at].min_bytes;
    }
    if matches!(kind[row], Kind::GpuMemcpy) {
        event.copy_kind = event.name.split(' ').nth(1).map(Into::into);
    }
    fill_arguments(&mut event, extras, place);
    event
}

/// Kineto's present word for a category of any year.
fn category(extras: &Extras, place: usize, kind: Kind) -> Text {
    let written = extras.category.get(place).and_then(|id| extras.categories.get(*id as usize));
    match (kind, written) {
        (Kind::CpuOp, _) => "cpu_op".into(),
        (Kind::Kernel, _) => "kernel".into(),
        (Kind::GpuMemcpy, _) => "gpu_memcpy".into(),
        (Kind::GpuMemset, _) => "gpu_memset".into(),
        (Kind::Runtime, Some(word)) if &**word == "Runtime" => "cuda_runtime".into(),
        (_, Some(word)) => word.clone(),
        (_, None) => "".into(),
    }
}

/// Puts every argument into its column, and those without one into `args`.
fn fill_arguments(event: &mut EventRow, extras: &Extras, place: usize) {
    let template = extras.template.get(place).and_then(|id| id.checked_sub(1));
    let Some(template) = template.and_then(|id| extras.templates.get(id as usize)) else { return };
    let numbers = usize::try_from(extras.first_number[place]).ok().and_then(|first| extras.numbers.get(first..));
    let mut rest = String::new();
    for (key, value) in template.arguments(numbers.unwrap_or_default()) {
        let placed = match value {
            Argument::Integer(integer) => place_integer(event, key, integer),
            Argument::Json(raw) => place_json(event, key, raw),
        };
        if !placed {
            append(&mut rest, key, value);
        }
    }
    if !rest.is_empty() {
        rest.push('}');
        event.args = Some(rest.into());
    }
}

fn place_integer(event: &mut EventRow, key: &str, integer: i64) -> bool {
    // These were read with the row, unless they mean something else there: a host row may name a device or a stream
    // too.
    let read = match key {
        "External id" | "external id" => event.external_id,
        "correlation" => event.correlation_id,
        "device" => event.device_id,
        "stream" => event.stream_id,
        "bytes" => event.bytes,
        _ => None,
    };
    if read == Some(integer) {
        return true;
    }
    if event.thread_id.is_some() {
        return false;
    }
    let slot = match key {
        "context" => &mut event.context_id,
        "graph id" => &mut event.graph_id,
        "graph node id" => &mut event.graph_node_id,
        "shared memory" => &mut event.shared_mem_bytes,
        "fromDevice" => &mut event.src_device,
        "toDevice" => &mut event.dst_device,
        "est. achieved occupancy %" => {
            event.occupancy_pct = Some(integer as f64);
            return true;
        }
        "memory bandwidth (GB/s)" => {
            event.bandwidth_gbs = Some(integer as f64);
            return true;
        }
        "registers per thread" => {
            event.registers = i32::try_from(integer).ok();
            return event.registers.is_some();
        }
        _ => return false,
    };
    *slot = Some(integer);
    true
}

fn place_json(event: &mut EventRow, key: &str, raw: &[u8]) -> bool {
    let parse = || Value::parse(&[raw, b","].concat());
    let text = || parse().as_ref().and_then(Value::text).map(str::to_string);
    match key {
        "grid" | "block" if event.thread_id.is_some() => return false,
        "grid" => event.grid = parse().and_then(|v| triple(&v)),
        "block" => event.block = parse().and_then(|v| triple(&v)),
        "Input Dims" => event.input_dims = Some(on_one_line(raw).into()),
        "Input type" => event.input_types = Some(on_one_line(raw).into()),
        "cuda_sync_kind" => event.sync_kind = text().map(Into::into),
        "Module Hierarchy" => event.module = text().filter(|t| !t.is_empty()).map(Into::into),
        "Call stack" => {
            event.stack = text().map(|t| outermost_first(&t)).filter(|t| !t.is_empty()).map(Into::into);
        }
        "est. achieved occupancy %" => event.occupancy_pct = text().and_then(|t| number::decimal(t.as_bytes())),
        "memory bandwidth (GB/s)" if event.thread_id.is_none() => {
            event.bandwidth_gbs = text().and_then(|t| number::decimal(t.as_bytes()));
        }
        _ => return false,
    }
    let empty = matches!(raw, b"\"\"");
    match key {
        "grid" => event.grid.is_some(),
        "block" => event.block.is_some(),
        "cuda_sync_kind" => event.sync_kind.is_some(),
        "Module Hierarchy" => event.module.is_some() || empty,
        "Call stack" => event.stack.is_some() || empty,
        "est. achieved occupancy %" => event.occupancy_pct.is_some(),
        "memory bandwidth (GB/s)" => event.bandwidth_gbs.is_some(),
        _ => true,
    }
}

fn triple(value: &Value) -> Option<Vec<i32>> {
    let numbers: Option<Vec<i32>> = value.integers()?.into_iter().map(|n| i32::try_from(n).ok()).collect();
    numbers.filter(|n| n.len() == 3)
}

/// Appends a member to a JSON object. A value that is not JSON (`NaN`, raw control characters) is kept as a string.
fn append(rest: &mut String, key: &str, value: Argument<'_>) {
    rest.push(if rest.is_empty() { '{' } else { ',' });
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    rest.push_str(&quoted(key));
    rest.push(':');
    match value {
        Argument::Integer(integer) => rest.push_str(&integer.to_string()),
        Argument::Json(raw) => {
            let text = String::from_utf8_lossy(raw);
            match serde_json::from_str::<IgnoredAny>(&text) {
                Ok(_) => rest.push_str(&text),
                Err(_) => rest.push_str(&quoted(&text)),
            }
        }
    }
}

/// The arrows of the trace, and one from each launch to its device row. Kineto's `ac2g` arrows are not read, because
/// they only repeat the correlation id.
fn all_flows(data: &RankData) -> Vec<FlowRow> {
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
    let of_omission = |o: &OmissionRow| {
        let (amount, is_lost) = (o.amount.unwrap_or_default(), o.kind == OmissionKind::Lost);
        CounterRow {
            rank: data.outline.info.rank,
            source: format!("{OMISSION_SOURCE}{}", o.what).into(),
            recorded: 0,
            dropped: if is_lost { amount } else { 0 },
            omitted: if is_lost { 0 } else { amount },
            why: Some(o.why.clone()),
        }
    };
    data.counters.iter().cloned().chain(data.omissions.iter().map(of_omission)).collect()
}

/// The device of the first device row.
fn used_device(data: &RankData) -> Option<i64> {
    data.events.device.iter().copied().find(|device| *device != NONE)
}

fn rank_row(loaded: &Loaded) -> RankRow {
    let Loaded { data, scalars, complete, .. } = loaded;
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
        launcher: None,
        versions: (!versions.is_empty()).then(|| serde_json::Value::from(versions).to_string().into()),
        closed_cleanly: *complete,
        parts: None,
    }
}

/// A list of shapes or types as torch.profiler prints it, however the file was indented.
fn on_one_line(raw: &[u8]) -> String {
    let mut line = String::with_capacity(raw.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in String::from_utf8_lossy(raw).chars() {
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
            line.push(c);
        } else if !c.is_ascii_whitespace() {
            quoted = c == '"';
            line.push(c);
            if c == ',' {
                line.push(' ');
            }
        }
    }
    line
}
