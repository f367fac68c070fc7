//! Loads the shards of a rank into one [`RankData`].
//!
//! A problem with one rank's rows does not stop the other ranks: rows that are unreadable or impossible are left out,
//! counted, and listed with the reason.

mod collective_kernels;
mod columns;
mod merge_parts;
mod op_details;
mod repair;

use std::collections::{BTreeMap, BTreeSet};

use trace::{
    BEFORE_KEPT, CLOCK_SOURCE, CUT_SOURCE, CollectiveRow, CounterRow, GpuMetricSampleRow, KEEP_SOURCE, OmissionKind,
    OmissionRow, REST_OF_PROGRAM, RankRow, Row, Run, Text, Vocabulary,
};

use model::{Collective, RankData, RankInfo, RankOutline};
use trace::rank::{Details, Kind, Metric, MetricSample, mark_below_operators};

pub use merge_parts::{RawColumns, merge_parts};

/// Loads all data of one rank that an analysis needs. Unusable rows are listed in [`RankData::omissions`].
pub fn load_rank(run: &Run, rank: i32) -> RankData {
    let mut data = RankData::default();
    let mut omissions = Vec::new();
    data.outline.info = rank_info(run, rank, &mut omissions);
    data.outline.collectives = collectives(run, rank, &mut omissions);
    data.outline.steps = rows(run, rank, &mut omissions);
    data.outline.clock_samples = rows(run, rank, &mut omissions);
    data.memory = rows(run, rank, &mut omissions);
    metrics(&mut data, rows(run, rank, &mut omissions));
    data.buckets = rows(run, rank, &mut omissions);
    data.outline.comms = rows(run, rank, &mut omissions);
    data.devices = rows(run, rank, &mut omissions);
    data.flows = rows(run, rank, &mut omissions);
    data.counters = rows(run, rank, &mut omissions);
    omissions.extend(losses_of(run, &data.outline.info, &data.counters));
    data.omissions = omissions;
    leave_out_before_kept(&mut data);
    columns::load_events(run, rank, &mut data);
    repair::repair(&mut data);
    collective_kernels::join(&mut data);
    mark_below_operators(&mut data.events, &data.names, None);
    data
}

/// Loads the outline of one rank, and the problems of its shards.
pub fn outline_rank(run: &Run, rank: i32) -> (RankOutline, Vec<OmissionRow>) {
    let mut data = RankData::default();
    let mut omissions = Vec::new();
    data.outline.info = rank_info(run, rank, &mut omissions);
    data.outline.collectives = collectives(run, rank, &mut omissions);
    data.outline.steps = rows(run, rank, &mut omissions);
    data.outline.comms = rows(run, rank, &mut omissions);
    data.outline.clock_samples = rows(run, rank, &mut omissions);
    data.counters = rows(run, rank, &mut Vec::new());
    leave_out_before_kept(&mut data);
    // The load of all rows lists what is repaired.
    repair::repair(&mut data);
    let span = columns::span(run, rank, columns::kept_from_ns(&data.counters), &mut omissions);
    // Then collectives have the times of kernels, and those are among the rows.
    if span.has_device_rows && data.outline.collectives.iter().any(collective_kernels::may_time) {
        let mut data = load_rank(run, rank);
        data.measure_outline();
        return (data.outline, data.omissions);
    }
    let recorded_ns = data.outline.recorded_with(span.rows.map(|rows| (rows.start_ns, rows.end_ns)));
    (RankOutline { recorded_ns, has_device_rows: span.has_device_rows, ..data.outline }, omissions)
}

/// Leaves out what began before rows were removed: such steps would seem to have less work than they had.
fn leave_out_before_kept(data: &mut RankData) {
    let Some(from_ns) = columns::kept_from_ns(&data.counters) else { return };
    let outline = &mut data.outline;
    outline.collectives.retain(|c| c.enqueue_ns().or(c.start_ns()).is_none_or(|ns| from_ns <= ns));
    outline.steps.retain(|step| from_ns <= step.start_ns);
    data.memory.retain(|memory| from_ns <= memory.ts_ns);
}

/// Takes the samples of hardware metrics, in order of time.
fn metrics(data: &mut RankData, samples: Vec<GpuMetricSampleRow>) {
    let mut numbers: BTreeMap<(i64, Text), u32> = BTreeMap::new();
    for GpuMetricSampleRow { ts_ns, device_id, metric, value, .. } in samples {
        let next = data.metrics.len() as u32;
        let number = *numbers.entry((device_id, metric.clone())).or_insert(next);
        if number == next {
            data.metrics.push(Metric { device_id, name: metric });
        }
        data.metric_samples.push(MetricSample { ts_ns, metric: number, value });
    }
    data.metric_samples.sort_by_key(|sample| (sample.ts_ns, sample.metric));
}

fn collectives(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<Collective> {
    Collective::list(rows::<CollectiveRow>(run, rank, omissions))
}

/// Loads a rank as [`load_rank`] does, and also its shapes, stacks and modules.
pub fn load_rank_detailed(run: &Run, rank: i32) -> (RankData, Details) {
    let mut data = load_rank(run, rank);
    let details = op_details::load_details(run, rank, &mut data);
    (data, details)
}

/// The rows that were lost before the rank's shards were written, for a command that reads the shards by itself.
pub(super) fn losses(run: &Run, rank: i32) -> Vec<OmissionRow> {
    let mut omissions = Vec::new();
    let counters = rows(run, rank, &mut omissions);
    let info = rank_info(run, rank, &mut omissions);
    omissions.extend(losses_of(run, &info, &counters));
    omissions
}

fn losses_of(run: &Run, info: &RankInfo, counters: &[CounterRow]) -> Vec<OmissionRow> {
    if run.is_excerpt {
        return Vec::new();
    }
    let mut omissions = counted(info.rank, counters);
    omissions.extend(rows_without_shard(run, info.rank, counters));
    if info.closed_cleanly == Some(false) {
        let why = "the rank did not shut down cleanly; its last part may be missing";
        omissions.push(OmissionRow::lost("rows after the last part", why).rank(info.rank));
    }
    omissions
}

/// The omissions that the counters state: rows lost while recording, parts that an ingested trace lacked, clocks that were
/// not compared, and programs that were stopped.
fn counted(rank: i32, counters: &[CounterRow]) -> Vec<OmissionRow> {
    const REASONS: usize = 3;
    let mut items: BTreeMap<(OmissionKind, &str), (i64, BTreeSet<&str>)> = BTreeMap::new();
    let mut reasons_only = Vec::new();
    for counter in counters {
        if let (CLOCK_SOURCE, Some(why)) = (&*counter.source, &counter.why) {
            reasons_only.push(OmissionRow::left_out("comparison of clocks", why.clone()).rank(rank));
        }
        if let (CUT_SOURCE, Some(why)) = (&*counter.source, &counter.why) {
            reasons_only.push(OmissionRow::left_out(REST_OF_PROGRAM, why.clone()).rank(rank));
        }
        let kept = counter.kept_omission();
        let is_removed = counter.source.starts_with(KEEP_SOURCE) && counter.omitted > 0;
        // Other rows that a recorder omits on purpose are no omission of the analysis.
        let item = match kept {
            Some(kept) => Some(kept),
            None if is_removed => Some((OmissionKind::LeftOut, BEFORE_KEPT)),
            None => (counter.dropped > 0).then_some((OmissionKind::Lost, "rows lost while recording")),
        };
        if let Some((kind, what)) = item {
            let (sum, reasons) = items.entry((kind, what)).or_default();
            *sum =
                sum.saturating_add(if kind == OmissionKind::Lost { counter.dropped } else { counter.omitted }.max(0));
            reasons.extend(counter.why.as_deref());
        }
    }
    let row = |((kind, what), (amount, reasons)): ((OmissionKind, &str), (i64, BTreeSet<&str>))| {
        let named: Vec<&str> = reasons.iter().copied().take(REASONS).collect();
        let why = match reasons.len().saturating_sub(REASONS) {
            0 if named.is_empty() => "the reason was not recorded".to_string(),
            0 => named.join("; "),
            more => format!("{}; and {more} more reasons", named.join("; ")),
        };
        OmissionRow::of(kind, what, why).rank(rank).amount(Some(amount).filter(|amount| *amount > 0))
    };
    items.into_iter().map(row).chain(reasons_only).collect()
}

/// The tables of a rank whose shards hold fewer rows than the rank counted when it wrote them, or lack a part between
/// others. A shard that is damaged or was refused is listed by [`Run::open`].
fn rows_without_shard(run: &Run, rank: i32, counters: &[CounterRow]) -> Vec<OmissionRow> {
    let tables: Vec<&str> = trace::rank_tables().into_iter().map(|table| table.name).collect();
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for counter in counters {
        let removed = counter.source.strip_prefix(KEEP_SOURCE);
        let of_table = removed.and_then(|name| tables.iter().copied().find(|table| *table == name));
        let counted = table_of(&counter.source, &tables).filter(|_| counter.recorded > 0);
        if let Some(table) = of_table.or(counted) {
            let count = counts.entry(table).or_default();
            *count = count.saturating_add(if removed.is_some() { -counter.omitted.max(0) } else { counter.recorded });
        }
    }
    let is_listed = |what: &str| run.problems.iter().any(|problem| problem.rank == Some(rank) && problem.what == what);
    let lacking = |table: &&str| {
        let (what, shards) = (format!("rows of {table}"), run.shards(rank, table));
        let parts = shards.last().map_or(0, |shard| u64::from(shard.part) + 1);
        let lost = parts.saturating_sub(shards.len() as u64);
        (lost > 0 && !is_listed(&what)).then(|| {
            let why = format!("{lost} of {parts} shards are missing; the rank did not count the rows of this table");
            OmissionRow::lost(what, why).rank(rank)
        })
    };
    let uncounted = tables.iter().filter(|table| !counts.contains_key(**table));
    let mut omissions: Vec<OmissionRow> = uncounted.filter_map(lacking).collect();
    let missing = |(table, counted): (&str, i64)| {
        let what = format!("rows of {table}");
        let rows = run.shards(rank, table).iter().fold(0, |sum: u64, shard| sum.saturating_add(shard.rows));
        let held = i64::try_from(rows).unwrap_or(i64::MAX);
        (held < counted && !is_listed(&what)).then(|| {
            let why = format!("a shard is missing: the rank wrote {counted} rows, and its shards hold {held}");
            OmissionRow::lost(what, why).rank(rank).amount(counted - held)
        })
    };
    omissions.extend(counts.iter().filter_map(|(table, counted)| missing((table, *counted))));
    omissions
}

/// The table in which the rows of a counter's source are.
fn table_of<'a>(source: &'a str, tables: &[&'a str]) -> Option<&'a str> {
    match source.split_once(':') {
        Some(("host", _)) => Some("events"),
        Some(("cupti", kind)) => Kind::from_word(kind).map(|_| "events"),
        Some((table @ ("collectives" | "memory"), _)) => Some(table),
        Some(_) => None,
        None if source == "kineto" => Some("events"),
        None => tables.iter().copied().find(|name| *name == source),
    }
}

fn rows<R: Row>(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> Vec<R> {
    let (rows, problems) = run.rows::<R>(rank);
    omissions.extend(problems.into_iter().map(|p| p.into_omission(&run.path)));
    rows
}

/// The information about a rank from its first process's row in `ranks`; without such a row, from its shards. The rank
/// closed cleanly if the last row of each of its processes records that.
fn rank_info(run: &Run, rank: i32, omissions: &mut Vec<OmissionRow>) -> RankInfo {
    let rows = rows::<RankRow>(run, rank, omissions);
    let recorded = || Text::from(format!("events/rank-{rank:05}-*.parquet"));
    let file = run.manifest.trace_file(rank).map_or_else(recorded, Text::from);
    if let Some(row) = rows.first().cloned() {
        let last: BTreeMap<i64, bool> = rows.iter().map(|row| (row.pid, row.closed_cleanly)).collect();
        return RankInfo {
            rank,
            world_size: Some(row.world_size),
            host: row.host.to_string(),
            pid: row.pid,
            clock_domain: row.clock_domain.to_string(),
            closed_cleanly: Some(last.values().all(|closed| *closed)),
            roles: row.roles,
            file,
        };
    }
    let mut info = RankInfo { rank, world_size: Some(run.manifest.world_size), file, ..RankInfo::default() };
    let tables = trace::rank_tables();
    if let Some(shard) = tables.iter().flat_map(|t| run.shards(rank, t.name)).next() {
        info.host = shard.meta.host.clone();
        info.pid = shard.meta.pid;
        info.clock_domain = shard.meta.clock_domain.clone();
    }
    info
}
