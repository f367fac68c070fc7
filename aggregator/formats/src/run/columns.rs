//! Reads the `events` of a rank column by column. Only the needed columns are decoded, and no row becomes a separate
//! value.

use arrow_array::{Array, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch};
use rustc_hash::FxHashMap;
use trace::name_rules::{MTIA_CATEGORY, kind_of};
use trace::rank::flops::element_type;
use trace::rank::{FlopsType, communicates, mark_rows};
use trace::{CounterRow, Dtype, Error, EventRow, OmissionRow, Row, Run, Shard, Table, Text, TextColumn, column};

use crate::names::Names;
use crate::paths::relative;
use crate::run::merge_parts::{RawColumns, merge_parts};
use model::intervals::Interval;
use model::{CopyRate, Events, KernelUse, Kind, NO_STEP, NONE, RankData};
use trace::time_limits::{MAX_LENGTH_NS, Window};

const TABLE: &str = "events";

/// The columns that are read. `rank` is included to check it against the shard's rank.
const COLUMNS: [&str; 26] = [
    "rank",
    "kind",
    "name",
    "ts_ns",
    "dur_ns",
    "id",
    "step",
    "thread_id",
    "device_id",
    "stream_id",
    "correlation_id",
    "external_id",
    "parent_id",
    "pid",
    "open",
    "is_comm",
    "bytes",
    "flops",
    "min_bytes",
    "input_types",
    "grid",
    "block",
    "registers",
    "shared_mem_bytes",
    "occupancy_pct",
    "bandwidth_gbs",
];

/// The columns that [`span`] reads.
const SPAN_COLUMNS: [&str; 4] = ["rank", "kind", "ts_ns", "dur_ns"];

/// Reads `events` into `data.events` and `data.names`. If a shard fails half-way, the rows read so far are kept.
pub(super) fn load_events(run: &Run, rank: i32, data: &mut RankData) {
    let table = EventRow::table();
    let shards = run.shards(rank, TABLE);
    let total: u64 = shards.iter().map(|s| s.rows).sum();
    let mut names = Names::default();
    // A footer can claim any number of rows, so memory grows only with the rows that exist.
    let mut raw = RawColumns::with_capacity(usize::try_from(total).unwrap_or(0).min(1 << 22));
    raw.kept_from_ns = kept_from_ns(&data.counters);
    raw.is_of_trace = run.manifest.trace_file(rank).is_some();
    for shard in shards {
        if let Err((rows_read, error)) = load_shard(shard, &table, &mut names, &mut raw) {
            data.omissions.push(unread(run, shard, rows_read, &error));
        }
    }
    mark_collectives(data, &mut raw.events);
    data.names = names.list;
    data.kernel_use = std::mem::take(&mut raw.kernel_use);
    data.kernel_use.sort_by_key(|kernel| kernel.id);
    data.flops_types = std::mem::take(&mut raw.flops_types);
    data.flops_types.sort_by_key(|known| known.id);
    data.flops_types.dedup_by_key(|known| known.id);
    data.copy_rates = std::mem::take(&mut raw.copy_rates);
    data.copy_rates.sort_by_key(|copy| copy.id);
    data.events = merge_parts(raw, rank, &mut data.omissions);
}

/// The time from which on none of a rank's rows was removed to keep only the newest ones; `None` if none was removed.
pub(super) fn kept_from_ns(counters: &[CounterRow]) -> Option<i64> {
    counters.iter().filter_map(|counter| counter.before_ns).max()
}

/// The rows of a shard that could not be read.
fn unread(run: &Run, shard: &Shard, rows_read: usize, error: &Error) -> OmissionRow {
    // Texts may be shortened without a row being lost.
    let lost = Some((shard.rows as i64).saturating_sub(rows_read as i64)).filter(|lost| *lost != 0);
    OmissionRow::lost("rows of events", error.to_string())
        .rank(shard.meta.rank)
        .file(relative(&shard.path, &run.path))
        .amount(lost)
}

/// The time span of a rank's rows, and whether they include device rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// From the first start to the last end.
    pub(super) rows: Option<Interval>,
    /// Whether some rows are device rows.
    pub(super) has_device_rows: bool,
}

/// Reads only the times of a rank's rows of `events` that begin at `kept_from_ns` or later. If a shard fails half-way, the rows read so
/// far count, and the failure is an omission as in [`load_events`].
pub(super) fn span(run: &Run, rank: i32, kept_from_ns: Option<i64>, omissions: &mut Vec<OmissionRow>) -> Span {
    let table = EventRow::table();
    let mut span = Span::default();
    for shard in run.shards(rank, TABLE) {
        let mut rows_read = 0;
        let visit = |batch: &RecordBatch| -> Result<(), Error> {
            let kind = column::<Text>(batch, TABLE, "kind")?;
            let ts_ns = column::<i64>(batch, TABLE, "ts_ns")?;
            let dur_ns = column::<i64>(batch, TABLE, "dur_ns")?;
            let kinds: Vec<bool> = kind.values().iter().map(|k| Kind::from_category(k).is_device_work()).collect();
            let of_device = |row| kind.key(row).is_some_and(|key| kinds[key]);
            // A dictionary may contain values that no row uses.
            span.has_device_rows |= kinds.contains(&true) && (0..batch.num_rows()).any(of_device);
            let times = ts_ns.values().iter().zip(dur_ns.values());
            // Rows that are too far from the others are reported by the load of all rows.
            let is_kept = |ts: i64| kept_from_ns.is_none_or(|from_ns| from_ns <= ts);
            let possible = times.filter(|(ts, dur)| Window::ANY.holds(**ts) && is_kept(**ts) && **dur <= MAX_LENGTH_NS);
            let rows = possible.map(|(ts, dur)| Interval::new(*ts, ts.saturating_add(*dur)));
            span.rows = rows.chain(span.rows).reduce(Interval::hull);
            rows_read += batch.num_rows();
            Ok(())
        };
        if let Err(error) = shard.read(&table, Some(&SPAN_COLUMNS), visit) {
            omissions.push(unread(run, shard, rows_read, &error));
        }
    }
    span
}

fn load_shard(shard: &Shard, table: &Table, names: &mut Names, raw: &mut RawColumns) -> Result<(), (usize, Error)> {
    let mut rows_read = 0;
    let read = shard.read(table, Some(&COLUMNS), |batch| -> Result<(), Error> {
        append(batch, names, raw)?;
        rows_read += batch.num_rows();
        Ok(())
    });
    read.map_err(|error| (rows_read, error))
}

/// Adds a batch. Opens all columns before extending any, so that a bad column leaves all of them equally long.
fn append(batch: &RecordBatch, names: &mut Names, raw: &mut RawColumns) -> Result<(), Error> {
    let kind = column::<Text>(batch, TABLE, "kind")?;
    let name = column::<Text>(batch, TABLE, "name")?;
    let ts_ns = column::<i64>(batch, TABLE, "ts_ns")?;
    let dur_ns = column::<i64>(batch, TABLE, "dur_ns")?;
    let id = column::<i64>(batch, TABLE, "id")?;
    let step = optional::<Option<i32>>(batch, "step")?;
    let open = optional::<Option<bool>>(batch, "open")?;
    let is_comm = optional::<Option<bool>>(batch, "is_comm")?;
    let long = |name| optional::<Option<i64>>(batch, name);
    let pid = long("pid")?;
    let longs = [
        long("thread_id")?,
        long("device_id")?,
        long("stream_id")?,
        long("correlation_id")?,
        long("external_id")?,
        long("parent_id")?,
        long("bytes")?,
        long("flops")?,
    ];

    let launch = LaunchColumns::open(batch)?;
    let bandwidth = optional::<Option<f64>>(batch, "bandwidth_gbs")?;
    let types = optional::<Option<Text>>(batch, "input_types")?;
    let min_bytes = long("min_bytes")?;

    let rows = batch.num_rows();
    launch.append(&id, &mut raw.kernel_use);
    append_copy_rates(bandwidth.as_ref(), &id, &mut raw.copy_rates);
    append_flops_types(types.as_ref(), [longs[7].as_ref(), min_bytes.as_ref()], &id, &mut raw.flops_types);
    let events = &mut raw.events;
    let first = events.len();
    append_names(&kind, &name, rows, names, events);
    append_comm(is_comm.as_ref(), first, names, events);
    events.ts_ns.extend_from_slice(ts_ns.values());
    events.dur_ns.extend_from_slice(dur_ns.values());
    events.id.extend_from_slice(id.values());
    append_steps(step.as_ref(), rows, &mut events.step);
    let targets = [
        &mut events.thread,
        &mut events.device,
        &mut events.stream,
        &mut events.correlation,
        &mut events.external,
        &mut raw.parent_id,
        &mut events.bytes,
        &mut events.flops,
    ];
    for (source, target) in longs.iter().zip(targets) {
        append_longs(source.as_ref(), rows, target);
    }
    // A rank of traces has numbers of its own, also where later windows are of other processes.
    tell_processes_apart(
        pid.as_ref().filter(|_| !raw.is_of_trace),
        &mut raw.pids,
        &mut raw.events.correlation[first..],
    );
    if let Some(open) = open.filter(|open| open.true_count() > 0) {
        raw.open
            .extend((0..rows).filter(|row| open.is_valid(*row) && open.value(*row)).map(|row| (first + row) as u32));
    }
    Ok(())
}

/// Each process of a rank counts its calls from 1. Shifts the numbers of the second and later processes so that they
/// are unique within the rank. `pids` numbers the processes that made calls so far.
fn tell_processes_apart(pid: Option<&Int64Array>, pids: &mut FxHashMap<i64, i64>, correlation: &mut [i64]) {
    // CUPTI's numbers have 32 bits. Kineto's numbers come from one process.
    const SHIFT: u32 = 40;
    let Some(pid) = pid else { return };
    for (row, correlation) in correlation.iter_mut().enumerate() {
        if *correlation == NONE || pid.is_null(row) {
            continue;
        }
        let next = pids.len() as i64;
        let process = *pids.entry(pid.value(row)).or_insert(next);
        *correlation = correlation.wrapping_add(process << SHIFT);
    }
}

/// A column that older writers did not write.
fn optional<C: trace::Cell>(batch: &RecordBatch, name: &str) -> Result<Option<C::Column>, Error> {
    if batch.column_by_name(name).is_none() { Ok(None) } else { column::<C>(batch, TABLE, name).map(Some) }
}

fn append_names(kind: &TextColumn, name: &TextColumn, rows: usize, names: &mut Names, events: &mut Events) {
    // Look up each entry of the batch's dictionaries once; each row then costs only an index.
    let kinds: Vec<Kind> = kind.values().iter().map(|k| Kind::from_category(k)).collect();
    let ids: Vec<u32> = name.values().iter().map(|n| names.id(n)).collect();
    // The name decides the kind of some rows of devices.
    let is_mtia: Vec<bool> = kind.values().iter().map(|k| **k == *MTIA_CATEGORY).collect();
    let of_name = |category: &str| name.values().iter().map(|n| kind_of(category, n.as_bytes())).collect::<Vec<_>>();
    let [on_mtia, as_kernel] = [MTIA_CATEGORY, "kernel"].map(of_name);
    events.kind.extend((0..rows).map(|row| match (kind.key(row), name.key(row)) {
        (Some(key), Some(name)) if is_mtia[key] => on_mtia[name],
        (Some(key), Some(name)) if kinds[key] == Kind::Kernel => as_kernel[name],
        (Some(key), _) => kinds[key],
        (None, _) => Kind::Other,
    }));
    events.name.extend((0..rows).map(|row| name.key(row).map_or(0, |key| ids[key])));
}

fn append_comm(is_comm: Option<&BooleanArray>, first: usize, names: &Names, events: &mut Events) {
    let Events { kind, name, is_comm: target, .. } = events;
    let stated = is_comm.filter(|column| column.true_count() > 0);
    target.extend(kind[first..].iter().zip(&name[first..]).enumerate().map(|(row, (kind, name))| {
        let stated = stated.filter(|column| column.is_valid(row)).map(|column| column.value(row));
        communicates(names.classes[*name as usize], *kind, stated)
    }));
}

fn append_steps(column: Option<&Int32Array>, rows: usize, target: &mut Vec<i32>) {
    match column {
        None => target.resize(target.len() + rows, NO_STEP),
        Some(column) if column.null_count() == 0 => target.extend_from_slice(column.values()),
        Some(column) => target.extend(column.iter().map(|v| v.unwrap_or(NO_STEP))),
    }
}

/// The columns of launch parameters that have any value.
struct LaunchColumns {
    grid: Option<ListArray>,
    block: Option<ListArray>,
    registers: Option<Int32Array>,
    shared_mem_bytes: Option<Int64Array>,
    occupancy: Option<Float64Array>,
}

impl LaunchColumns {
    fn open(batch: &RecordBatch) -> Result<Self, Error> {
        fn any<A: Array>(column: Option<A>) -> Option<A> {
            column.filter(|column| column.null_count() < column.len())
        }
        Ok(Self {
            grid: any(optional::<Option<Vec<i32>>>(batch, "grid")?),
            block: any(optional::<Option<Vec<i32>>>(batch, "block")?),
            registers: any(optional::<Option<i32>>(batch, "registers")?),
            shared_mem_bytes: any(optional::<Option<i64>>(batch, "shared_mem_bytes")?),
            occupancy: any(optional::<Option<f64>>(batch, "occupancy_pct")?),
        })
    }

    /// Adds the rows that have a value.
    fn append(&self, id: &Int64Array, target: &mut Vec<KernelUse>) {
        let Self { grid, block, registers, shared_mem_bytes, occupancy } = self;
        if grid.is_none() && block.is_none() && registers.is_none() && shared_mem_bytes.is_none() && occupancy.is_none()
        {
            return;
        }
        fn cell<C: trace::Cell + Default>(column: &Option<C::Column>, row: usize) -> C {
            column.as_ref().map_or_else(C::default, |column| C::get(column, row))
        }
        fn sides<N: TryFrom<i32> + Copy>(sides: Option<Vec<i32>>) -> Option<[N; 3]> {
            let [x, y, z] = sides?[..] else { return None };
            Some([x.try_into().ok()?, y.try_into().ok()?, z.try_into().ok()?])
        }
        for row in 0..id.len() {
            let used = KernelUse {
                id: id.value(row),
                grid: sides(cell(grid, row)).unwrap_or_default(),
                block: sides(cell(block, row)).unwrap_or_default(),
                registers: cell::<Option<i32>>(registers, row).and_then(|n| n.try_into().ok()),
                shared_mem_bytes: cell::<Option<i64>>(shared_mem_bytes, row).and_then(|n| n.try_into().ok()),
                occupancy_pct: cell::<Option<f64>>(occupancy, row).map(|pct| pct as f32),
            };
            if used != KernelUse::unknown(used.id) {
                target.push(used);
            }
        }
    }
}

/// Collects the element types of the rows with FLOPs, and their least bytes.
fn append_flops_types(
    types: Option<&TextColumn>,
    [flops, min_bytes]: [Option<&Int64Array>; 2],
    id: &Int64Array,
    target: &mut Vec<FlopsType>,
) {
    let (Some(types), Some(flops)) = (types, flops.filter(|column| column.null_count() < column.len())) else { return };
    let known: Vec<Option<Dtype>> = types.values().iter().map(|text| element_type(text.as_bytes())).collect();
    for row in (0..id.len()).filter(|row| flops.is_valid(*row)) {
        if let Some(dtype) = types.key(row).and_then(|key| known[key]) {
            let min_bytes = min_bytes.filter(|column| column.is_valid(row)).map(|column| column.value(row));
            target.push(FlopsType { id: id.value(row), dtype, min_bytes });
        }
    }
}

/// Collects bandwidths of the rows that have one.
fn append_copy_rates(bandwidth: Option<&Float64Array>, id: &Int64Array, target: &mut Vec<CopyRate>) {
    let Some(bandwidth) = bandwidth.filter(|column| column.null_count() < column.len()) else { return };
    let rows = (0..id.len()).filter(|row| bandwidth.is_valid(*row));
    target.extend(rows.map(|row| CopyRate { id: id.value(row), bandwidth_gbs: bandwidth.value(row) }));
}

fn append_longs(column: Option<&Int64Array>, rows: usize, target: &mut Vec<i64>) {
    match column {
        Some(column) if column.null_count() == 0 => target.extend_from_slice(column.values()),
        Some(column) if column.null_count() < rows => target.extend(column.iter().map(|v| v.unwrap_or(NONE))),
        _ => target.resize(target.len() + rows, NONE),
    }
}

/// Marks rows that a collective refers to as communication, whatever their names.
fn mark_collectives(data: &RankData, events: &mut Events) {
    let ids: rustc_hash::FxHashSet<i64> = data.outline.collectives.iter().filter_map(|c| c.event_id()).collect();
    if ids.is_empty() {
        return;
    }
    let rows: Vec<usize> = (0..events.len()).filter(|row| ids.contains(&events.id[*row])).collect();
    mark_rows(events, rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_correlations_of_two_processes_are_two_calls() {
        let mut pids = FxHashMap::default();
        let mut first = [1, 2, NONE, 1];
        tell_processes_apart(Some(&Int64Array::from(vec![70, 70, 71, 71])), &mut pids, &mut first);
        assert_eq!(first[..3], [1, 2, NONE]);
        assert!(first[3] != 1 && pids == FxHashMap::from_iter([(70, 0), (71, 1)]));
        // Another part of the same rank: the same processes, and rows without a process.
        let mut second = [1, 1, 1];
        let pid = Int64Array::from(vec![Some(71), Some(70), None]);
        tell_processes_apart(Some(&pid), &mut pids, &mut second);
        assert_eq!(second, [first[3], 1, 1]);
        tell_processes_apart(None, &mut pids, &mut second);
        assert_eq!(second, [first[3], 1, 1]);
    }
}
