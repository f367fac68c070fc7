//! The reduction: parts of all ranks, aligned and matched, become one [`Analysis`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use trace::{ClockSampleRow, CollectiveRow, CounterRow, DeviceRow, OmissionRow};

use crate::analysis::{Analysis, Facts, Tables};
use crate::buckets::bucket_timing;
use crate::clock::{Choice, Clocks, RankClock, fit, number_by_time};
use crate::device::DeviceTables;
use crate::findings::findings;
use crate::instances::instance_row;
use crate::intervals::Interval;
use crate::map::{RankPart, map_rank};
use crate::matching::{RankCollectives, match_collectives};
use crate::model::{Instance, RankInfo};
use crate::options::{Options, TimeBound};
use crate::peers::{HasPeers, peers_as_ranks};
use crate::source::{Source, SourceInfo};
use crate::stats::{compare_kernels, compare_ops};
use crate::step_numbers::{lacking, require_chosen};
use crate::unfinished::unfinished;
use crate::{Error, straggler, verdict};

/// Analyses a source: loads, maps and drops every rank in parallel, then reduces. `progress` is called after each rank,
/// with the number done and the number to do.
///
/// # Errors
/// [`Error::NoRank`] and [`Error::NoStep`] if nothing is left to analyse, [`Error::Clock`] if [`Options::clock`] joins
/// no two ranks.
pub fn analyze(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Analysis, Error> {
    let (parts, _, omissions) = map_chosen(source, options, progress)?;
    reduce(parts, &source.info(), options, omissions)
}

/// An analysis, and what a renderer needs that looks at single rows beside it.
pub(crate) struct Analyzed {
    /// The analysis.
    pub(crate) analysis: Analysis,
    /// The clocks.
    pub(crate) clocks: Clocks,
    /// What `--from` and `--to` mean on each rank's clock; empty without them.
    pub(crate) time: BTreeMap<i32, Interval>,
    /// The devices of all ranks.
    pub(crate) devices: Vec<DeviceRow>,
}

/// As [`analyze`], for a renderer that looks at single rows, too.
///
/// # Errors
/// As [`analyze`].
pub(crate) fn analyze_aligned(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Analyzed, Error> {
    let (parts, time, omissions) = map_chosen(source, options, progress)?;
    let devices = parts.iter().flat_map(|p| p.devices.iter().cloned()).collect();
    let (analysis, clocks) = reduce_aligned(parts, &source.info(), options, omissions)?;
    Ok(Analyzed { analysis, clocks, time, devices })
}

/// Parts of ranks, what `--from` and `--to` mean on each one's clock, and what was left out.
type Mapped = (Vec<RankPart>, BTreeMap<i32, Interval>, Vec<OmissionRow>);

/// Loads and maps the chosen part of the chosen ranks.
fn map_chosen(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Mapped, Error> {
    let ranks = chosen_ranks(source, options)?;
    let mut omissions = source.problems();
    let time = if options.selects_by_time() {
        // What --from and --to mean on a rank's clock is known only after all ranks were seen: a first pass finds out.
        let whole = Options { steps: None, range: None, from: None, to: None, ..options.clone() };
        let parts = map_all(source, &ranks, &whole, &BTreeMap::new(), &|_, _| (), &mut Vec::new());
        local_bounds(&alignable(&parts), options)
    } else {
        BTreeMap::new()
    };
    let parts = map_all(source, &ranks, options, &time, progress, &mut omissions);
    if parts.is_empty() {
        return Err(Error::NoRank { path: source.info().path, why: "none of them could be loaded".into() });
    }
    require_chosen(&parts, options, &source.info().path)?;
    Ok((parts, time, omissions))
}

/// The ranks that were asked for, ascending.
///
/// # Errors
/// [`Error::NoRank`] if there is none.
pub(crate) fn chosen_ranks(source: &dyn Source, options: &Options) -> Result<Vec<i32>, Error> {
    let available = source.ranks();
    let wanted = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
    let ranks: Vec<i32> = available.iter().copied().filter(wanted).collect();
    if !ranks.is_empty() {
        return Ok(ranks);
    }
    let why = if available.is_empty() {
        "no shard of any rank could be read".to_string()
    } else {
        format!("--ranks chose none of ranks {}", list(&available))
    };
    Err(Error::NoRank { path: source.info().path, why })
}

/// What of a rank puts it on the clock of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alignable<'a> {
    pub(crate) info: &'a RankInfo,
    pub(crate) collectives: &'a [CollectiveRow],
    pub(crate) comms_ids: &'a [Option<u64>],
    pub(crate) clock_samples: &'a [ClockSampleRow],
    /// From the first start to the last end of everything that was read.
    pub(crate) recorded: Option<Interval>,
    pub(crate) has_device_rows: bool,
}

fn alignable(parts: &[RankPart]) -> Vec<Alignable<'_>> {
    parts
        .iter()
        .map(|p| Alignable {
            info: &p.info,
            collectives: &p.collectives,
            comms_ids: &p.comms_ids,
            clock_samples: &p.clock_samples,
            recorded: p.recorded,
            has_device_rows: p.has_device_rows,
        })
        .collect()
}

/// [`align`], with an error where what was chosen for the clocks cannot be.
///
/// # Errors
/// [`Error::Clock`] if [`Options::clock`] joins no two ranks.
pub(crate) fn align_as_chosen(
    parts: &[Alignable<'_>],
    info: &SourceInfo,
    options: &Options,
) -> Result<(Vec<Instance>, Clocks, Vec<OmissionRow>), Error> {
    let aligned = align(parts, options.clock);
    match aligned.1.impossible(options.clock) {
        Some(why) => Err(Error::Clock { path: info.path.clone(), choice: options.clock.as_str(), why }),
        None => Ok(aligned),
    }
}

fn map_all(
    source: &dyn Source,
    ranks: &[i32],
    options: &Options,
    time: &BTreeMap<i32, Interval>,
    progress: &(dyn Fn(usize, usize) + Sync),
    omissions: &mut Vec<OmissionRow>,
) -> Vec<RankPart> {
    let map_one = |rank| source.load(rank).map(|data| map_rank(data, options, time.get(&rank).copied()));
    each_rank(ranks, options, progress, omissions, map_one)
}

/// What `one` makes of every rank, with peers as ranks; a rank that cannot be loaded is an omission. One rank at a time
/// and thread, so that memory is that of as many ranks as there are threads.
pub(crate) fn each_rank<T: HasPeers + Send>(
    ranks: &[i32],
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
    omissions: &mut Vec<OmissionRow>,
    one: impl Fn(i32) -> Result<T, Error> + Sync,
) -> Vec<T> {
    let done = AtomicUsize::new(0);
    let counted = |rank: &i32| {
        let made = one(*rank);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        made.map_err(|error| OmissionRow {
            file: None,
            rank: Some(*rank),
            what: "rank".into(),
            amount: Some(1),
            why: error.to_string().into(),
        })
    };
    let results: Vec<Result<T, OmissionRow>> = ranks.par_iter().with_max_len(1).map(counted).collect();
    let mut parts = Vec::new();
    for result in results {
        match result {
            Ok(part) => parts.push(part),
            Err(omission) => omissions.push(omission),
        }
    }
    let strangers = peers_as_ranks(&mut parts);
    // Whom --ranks left out is nobody's loss.
    if options.ranks.is_none() {
        omissions.extend(strangers);
    }
    parts
}

/// Collectives matched and clocks fitted.
fn align(parts: &[Alignable<'_>], choice: Choice) -> (Vec<Instance>, Clocks, Vec<OmissionRow>) {
    let collectives: Vec<RankCollectives<'_>> = parts
        .iter()
        .map(|p| RankCollectives {
            rank: p.info.rank,
            world_size: p.info.world_size,
            rows: p.collectives,
            comms_ids: p.comms_ids,
        })
        .collect();
    let (mut instances, mut omissions) = match_collectives(&collectives);
    let clocks: Vec<RankClock<'_>> = parts
        .iter()
        .map(|p| RankClock {
            info: p.info,
            samples: p.clock_samples,
            window_ns: p.recorded.map(|r| (r.start_ns, r.end_ns)),
            has_device_rows: p.has_device_rows,
        })
        .collect();
    let clocks = fit(&clocks, &instances, choice);
    number_by_time(&mut instances, &clocks);
    omissions.extend(clocks.contradictions.iter().cloned());
    (instances, clocks, omissions)
}

/// What `--from` and `--to` mean on each rank's clock.
pub(crate) fn local_bounds(parts: &[Alignable<'_>], options: &Options) -> BTreeMap<i32, Interval> {
    let (_, clocks, _) = align(parts, options.clock);
    let start = |p: &Alignable<'_>| p.recorded.map(|r| clocks.global(p.info.rank, false, r.start_ns));
    let start_ns = parts.iter().filter_map(start).min().unwrap_or(0);
    let global = |bound: Option<TimeBound>, open: i64| match bound {
        None => open,
        Some(TimeBound::GlobalNs(t)) => t,
        Some(TimeBound::SinceStartNs(since)) => start_ns.saturating_add(since),
    };
    // Half the range of i64, so that no later difference of times overflows.
    let (from, to) = (global(options.from, i64::MIN / 2), global(options.to, i64::MAX / 2));
    parts.iter().map(|p| (p.info.rank, Interval::new(local(&clocks, p, from), local(&clocks, p, to)))).collect()
}

/// The rank's host time at a global time. The map is monotonous and nearly the identity plus an offset: two steps of
/// iteration leave less than a ns at any drift that a clock can have.
fn local(clocks: &Clocks, part: &Alignable<'_>, global: i64) -> i64 {
    let mut t = global;
    for _ in 0..4 {
        t = t.saturating_add(global.saturating_sub(clocks.global(part.info.rank, false, t)));
    }
    t
}

/// Reduces the parts of all ranks. `omissions` are those found before any rank was looked at.
///
/// # Errors
/// [`Error::Clock`] if [`Options::clock`] joins no two ranks.
pub fn reduce(
    parts: Vec<RankPart>,
    info: &SourceInfo,
    options: &Options,
    omissions: Vec<OmissionRow>,
) -> Result<Analysis, Error> {
    reduce_aligned(parts, info, options, omissions).map(|(analysis, _)| analysis)
}

fn reduce_aligned(
    parts: Vec<RankPart>,
    info: &SourceInfo,
    options: &Options,
    mut omissions: Vec<OmissionRow>,
) -> Result<(Analysis, Clocks), Error> {
    let (instances, clocks, unmatched) = align_as_chosen(&alignable(&parts), info, options)?;
    for part in &parts {
        omissions.extend(part.omissions.iter().cloned());
    }
    omissions.extend(unmatched);
    omissions.extend(lacking(&parts, options));
    let rows: Vec<_> = instances.iter().map(|i| (i, instance_row(i, &clocks))).collect();
    let (instances, rows): (Vec<Instance>, Vec<_>) =
        rows.into_iter().filter_map(|(i, row)| Some((i.clone(), row?))).unzip();

    let straggler_parts: Vec<straggler::RankPart> = parts.iter().map(|p| p.straggler.clone()).collect();
    let to_global = |rank: i32, device: bool, t_ns: i64| clocks.global(rank, device, t_ns);
    let stragglers = straggler::reduce(&straggler_parts, &instances, &to_global, &options.thresholds);
    omissions.extend(stragglers.omissions);

    let mut tables = Tables {
        stragglers: stragglers.stragglers,
        collective_waits: stragglers.waits,
        clock_fit: clocks.rows().to_vec(),
        bucket_timing: bucket_timing(&instances, &rows, &parts, &clocks),
        collective_instances: rows,
        unfinished_collectives: unfinished(&parts, options.takes_whole_ranks()),
        ..Tables::default()
    };
    let facts = facts(&parts, info, options);
    omissions.extend(unlisted_ranks(&facts));
    let memory: BTreeMap<(i32, i64), i64> =
        parts.iter().flat_map(|p| &p.devices).filter_map(|d| Some(((d.rank, d.device_id), d.memory_bytes?))).collect();
    for mut part in parts {
        let rank = part.info.rank;
        part.memory_peaks.iter_mut().for_each(|m| m.ts_ns = clocks.global(rank, false, m.ts_ns));
        tables.step_breakdown.append(&mut part.step_breakdown);
        tables.idle_breakdown.append(&mut part.idle_breakdown);
        tables.op_stats.append(&mut part.op_stats);
        tables.annotation_stats.append(&mut part.annotation_stats);
        tables.kernel_stats.append(&mut part.kernel_stats);
        tables.critical_path.append(&mut part.critical_path);
        tables.memory_peaks.append(&mut part.memory_peaks);
        part.memory_curve.iter_mut().for_each(|m| m.ts_ns = clocks.global(rank, false, m.ts_ns));
        tables.memory_curve.append(&mut part.memory_curve);
        tables.hta_temporal_breakdown.extend(part.hta_temporal);
        append_device_tables(&mut tables, part.device);
    }
    compare_ops(&mut tables.op_stats);
    compare_kernels(&mut tables.kernel_stats);
    tables.omissions = omissions;
    let verdict = verdict::verdict(&tables, &facts);
    let mut analysis = Analysis { facts, verdict, tables };
    analysis.tables.findings = findings(&analysis, &options.limits, &memory);
    Ok((analysis, clocks))
}

fn append_device_tables(tables: &mut Tables, device: DeviceTables) {
    let DeviceTables {
        kernel_breakdown,
        launch_stats,
        queue_length,
        memcpy_bandwidth,
        gpu_utilization,
        kernel_sequences,
        sync_stalls,
        data_loading,
    } = device;
    tables.kernel_breakdown.extend(kernel_breakdown);
    tables.launch_stats.extend(launch_stats);
    tables.queue_length.extend(queue_length);
    tables.memcpy_bandwidth.extend(memcpy_bandwidth);
    tables.gpu_utilization.extend(gpu_utilization);
    tables.kernel_sequences.extend(kernel_sequences);
    tables.sync_stalls.extend(sync_stalls);
    tables.data_loading.extend(data_loading);
}

fn facts(parts: &[RankPart], info: &SourceInfo, options: &Options) -> Facts {
    let ranks: Vec<i32> = parts.iter().map(|p| p.info.rank).collect();
    let hosts: BTreeSet<&str> = parts.iter().map(|p| p.info.host.as_str()).filter(|h| !h.is_empty()).collect();
    let active = parts.iter().flat_map(|p| &p.steps).filter(|s| &*s.phase != "warmup");
    let steps: BTreeSet<i32> = active.map(|s| s.step).collect();
    let world_size = info.world_size.or_else(|| parts.iter().find_map(|p| p.info.world_size));
    let counters = || parts.iter().flat_map(|p| &p.counters);
    Facts {
        run_id: info.run_id.clone(),
        tool: info.tool.clone(),
        world_size,
        missing_ranks: missing_ranks(world_size.unwrap_or(0), &ranks),
        ranks,
        hosts: hosts.into_iter().map(String::from).collect(),
        steps: steps.into_iter().collect(),
        events: parts.iter().map(|p| p.rows).sum(),
        collectives: parts.iter().map(|p| p.collectives.len() as u64).sum(),
        recorded: counters().map(|c| c.recorded).fold(0, i64::saturating_add),
        dropped: counters().map(|c| c.dropped).fold(0, i64::saturating_add),
        nothing_because: nothing_because(parts),
        recording_was_off: told(parts, |counter| &*counter.source == "schedule"),
        has_device_rows: parts.iter().any(|p| p.has_device_rows),
        selection: options.selection(),
    }
}

/// Missing ranks that are listed, at most: a manifest or trace may claim any number of ranks.
const MAX_MISSING: usize = 1 << 14;

/// The first ranks below `world_size` that are not among `ranks`, which are ascending.
fn missing_ranks(world_size: i32, ranks: &[i32]) -> Vec<i32> {
    (0..world_size).filter(|rank| ranks.binary_search(rank).is_err()).take(MAX_MISSING).collect()
}

/// Says how many ranks are missing where the list of them ends early.
fn unlisted_ranks(facts: &Facts) -> Option<OmissionRow> {
    let present = facts.ranks.iter().filter(|rank| facts.world_size.is_some_and(|world| **rank < world)).count();
    let missing = i64::from(facts.world_size?) - present as i64;
    (missing > facts.missing_ranks.len() as i64).then(|| OmissionRow {
        file: None,
        rank: None,
        what: "missing ranks".into(),
        amount: Some(missing),
        why: format!("only the first {MAX_MISSING} of them are listed").into(),
    })
}

/// What the counters of empty sources say, each once with the ranks that say it; nothing where something was recorded.
fn nothing_because(parts: &[RankPart]) -> Vec<String> {
    if parts.iter().any(|p| p.rows > 0 || !p.collectives.is_empty()) {
        return Vec::new();
    }
    told(parts, |counter| counter.recorded == 0)
}

/// What some counters say, each once with the ranks that say it.
fn told(parts: &[RankPart], which: impl Fn(&CounterRow) -> bool) -> Vec<String> {
    let mut ranks_of: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for counter in parts.iter().flat_map(|p| &p.counters).filter(|c| which(c)) {
        if let Some(why) = &counter.why {
            ranks_of.entry(why).or_default().push(counter.rank);
        }
    }
    let said = |(why, ranks): (&str, Vec<i32>)| match ranks.len() == parts.len() {
        true => why.to_owned(),
        false => format!("{why} (rank {})", list(&ranks)),
    };
    ranks_of.into_iter().map(said).collect()
}

fn list(ranks: &[i32]) -> String {
    ranks.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}
