//! The reduction: aligns and matches the parts of all ranks and merges them into one [`Analysis`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use trace::{
    CLOCK_SOURCE, CUT_SOURCE, CounterRow, JobPathRow, OmissionRow, Phase, SelectionRow, StepBreakdownRow, Text,
};

use crate::identity::{identify, identity};
use crate::parts::Shares;
use crate::step_numbers::lacking;
use account::buckets::bucket_timing;
use account::exposed_waits::{InCollectives, fill_exposed_waits};
use account::{AnalyzedReplay, Gradients, Replayed};
pub use align::aligned::{Analyzed, align_as_chosen, join_outlines, list, load_chosen, time_bounds};
use align::clock::Clocks;
use align::collective_cost::{fused, instance_row, unknown_shares};
use findings::communication::by_name_alone;
use findings::headline;
use findings::slow_kernels::name_slow_devices;
use findings::{OfRanks, add_findings, stages, unmarked_steps};
use hang::unfinished::unfinished;
use measure::by_name::{compare_kernels, compare_ops};
use measure::map::{map_of, map_only_rank};
use measure::own_time::{self, OwnTime};
use measure::part::{InMemory, RankPart, Waiting};
use measure::reduced::{Reduced, is_judged};
use model::Error;
use model::analysis::{Analysis, Facts, Tables};
use model::intervals::Interval;
use model::options::Options;
use model::places::Places;
use model::selection::require_any;
use model::source::{MissingRanks, Source, SourceInfo};
use model::thresholds::Thresholds;
use model::units::{omission, ranks_named};
use model::{Instance, RankOutline};
use topology::communicators::communicators;
use topology::rank_groups::rank_groups;

/// Analyzes a source: loads, maps and drops every rank in parallel, then reduces. Calls `progress` after each rank with
/// the number of finished ranks and the total.
///
/// # Errors
/// [`Error::NoRank`] and [`Error::NothingSelected`] if nothing is left to analyze, [`Error::Clock`] if [`Options::clock`] joins
/// no two ranks.
pub fn analyze(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Analysis, Error> {
    let (parts, _, omissions) = map_chosen(source, options, progress)?;
    reduce(parts, &source.info(), options, omissions)
}

/// Reduces the shares that `map` wrote: the same as [`analyze`] does with their ranks in memory.
///
/// # Errors
/// The errors of [`analyze`].
pub fn reduce_shares<'a>(shares: Shares<'a>, path: &Path) -> Result<Reduced<'a>, Error> {
    let Shares { contract, options, mut parts, tables, mut others, omissions, left_out_files } = shares;
    let info = SourceInfo { left_out_files, ..contract.input.info(path) };
    if parts.is_empty() {
        let first = omissions.first().map(|first| format!("; {}", omission(first))).unwrap_or_default();
        return Err(Error::NoRank { path: path.into(), why: format!("no share has a part of a rank{first}") });
    }
    let mut outlines: Vec<&mut RankOutline> = parts.iter_mut().map(|part| &mut part.outline).collect();
    let omissions = join_outlines(&mut outlines, omissions, &options);
    require_any(parts.iter().map(RankPart::held), &options, path)?;
    // The replay is not kept beside the tables that follow.
    let (judged, ()) = judge_ranks(parts, (tables, &mut others), &info, &options, omissions, drop)?;
    let (analysis, _) = conclude(judged, &mut others, &is_judged, &options);
    Ok(Reduced::new(analysis, Box::new(others)))
}

/// Analyzes a source like [`analyze`], and keeps the replay.
///
/// # Errors
/// The errors of [`analyze`].
pub fn analyze_replayed(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<AnalyzedReplay, Error> {
    let (parts, _, omissions) = map_chosen(source, options, progress)?;
    let collectives = parts.iter().flat_map(|part| &part.outline.collectives);
    let comm_names = collectives.filter_map(|c| Some((c.comm_id, c.comm_name.as_ref()?.to_string()))).collect();
    let buckets = parts.iter().flat_map(|part| &part.buckets);
    let gradients: Gradients = buckets.filter_map(|row| Some((row.bucket, row.parameter_bytes.clone()?))).collect();
    let (analysis, _, mut replayed) = reduce_in_memory(parts, &source.info(), options, omissions)?;
    replayed.gradients = gradients;
    Ok(AnalyzedReplay { analysis, comm_names, replayed })
}

/// Analyzes a source like [`analyze`], and keeps the data that renderers of single rows need.
///
/// # Errors
/// The errors of [`analyze`].
pub fn analyze_aligned(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Analyzed, Error> {
    let (parts, time, omissions) = map_chosen(source, options, progress)?;
    let devices = parts.iter().flat_map(|p| p.devices.iter().cloned()).collect();
    let of_part = |part: &RankPart| Some((part.outline.info.rank, part.outline.recorded_ns?));
    let recorded: Vec<(i32, (i64, i64))> = parts.iter().filter_map(of_part).collect();
    let (analysis, clocks, _) = reduce_in_memory(parts, &source.info(), options, omissions)?;
    let global = |(rank, (first, last))| (clocks.global(rank, false, first), clocks.global(rank, false, last));
    let recorded_ns = recorded.into_iter().map(global).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    Ok(Analyzed { analysis, clocks, time, devices, recorded_ns })
}

/// Parts of ranks, the span of `--from` and `--to` on each rank's clock, and the omissions.
type Mapped = (Vec<RankPart>, BTreeMap<i32, Interval>, Vec<OmissionRow>);

/// Loads the chosen part of the chosen ranks, and maps it.
fn map_chosen(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Mapped, Error> {
    let map = map_of(source.ranks().len());
    let time = if options.selects_by_time() {
        // The bounds of --from and --to on a rank's clock are known only after all ranks were aligned by a first pass.
        let whole = Options { steps: None, range: None, from: None, to: None, ..options.clone() };
        let load = |rank| source.load(rank).map(|data| map_only_rank(data, &whole, None));
        let (parts, _) = load_chosen(source, &whole, &|_, _| (), load, |part| &mut part.outline)?;
        time_bounds(parts.iter().map(|part| &part.outline), options)
    } else {
        BTreeMap::new()
    };
    let load = |rank| source.load(rank).map(|data| map(data, options, time.get(&rank).copied()));
    let (parts, omissions) = load_chosen(source, options, progress, load, |part| &mut part.outline)?;
    require_any(parts.iter().map(RankPart::held), options, &source.info().path)?;
    Ok((parts, time, omissions))
}

/// Reduces the parts of all ranks. `omissions` are those found while loading.
///
/// # Errors
/// [`Error::Clock`] if [`Options::clock`] joins no two ranks.
pub fn reduce(
    parts: Vec<RankPart>,
    info: &SourceInfo,
    options: &Options,
    omissions: Vec<OmissionRow>,
) -> Result<Analysis, Error> {
    reduce_in_memory(parts, info, options, omissions).map(|(analysis, ..)| analysis)
}

/// Reduces parts that still have their tables.
fn reduce_in_memory(
    mut parts: Vec<RankPart>,
    info: &SourceInfo,
    options: &Options,
    omissions: Vec<OmissionRow>,
) -> Result<(Analysis, Clocks, Replayed), Error> {
    let tables = Tables::join(parts.iter_mut().filter_map(|part| part.tables.take()).map(|tables| *tables).collect());
    let own_time = parts.iter_mut().filter_map(|part| part.straggler.take());
    let mut own_time = InMemory(own_time.map(|own_time| *own_time).collect());
    let keep = |replayed| replayed;
    let (judged, replayed) = judge_ranks(parts, (tables, &mut own_time), info, options, omissions, keep)?;
    let (analysis, clocks) = conclude(judged, &mut own_time, &|_| true, options);
    Ok((analysis, clocks, replayed))
}

/// The ranks after they were judged, before the tables that one rank alone decides are read.
struct Judged {
    tables: Tables,
    of_ranks: Tables,
    omissions: Vec<OmissionRow>,
    clocks: Clocks,
    facts: Facts,
    found: headline::Found,
    /// The data of the parts that findings need.
    of_parts: OfRanks,
    /// The communicators that have another id in the job than in the tables of a rank.
    comm_ids: BTreeMap<i64, (i64, Text)>,
}

/// Aligns parts and judges their ranks. `of_ranks` are the tables that one rank alone decides, in the order of ranks; those of them
/// that are not in memory yet, and the own time of the ranks, are `waiting`. Returns what `keep` made of the replay, too.
fn judge_ranks<K>(
    parts: Vec<RankPart>,
    (mut of_ranks, waiting): (Tables, &mut dyn Waiting),
    info: &SourceInfo,
    options: &Options,
    mut omissions: Vec<OmissionRow>,
    keep: impl FnOnce(Replayed) -> K,
) -> Result<(Judged, K), Error> {
    let (instances, clocks, unmatched) =
        align_as_chosen(&parts.iter().map(|part| &part.outline).collect::<Vec<_>>(), info, options)?;
    omissions.append(&mut of_ranks.omissions);
    omissions.extend(unmatched);
    omissions.extend(lacking(&parts, options));
    omissions.extend(fused(&instances));
    omissions.extend(unknown_shares(&instances));
    let with_row = |instance: Instance| instance_row(&instance, &clocks).map(|row| (instance, row));
    let (instances, mut rows): (Vec<Instance>, Vec<_>) = instances.into_iter().filter_map(with_row).unzip();
    rows.shrink_to_fit();

    let facts = facts(&parts, &of_ranks.step_breakdown, info, options);
    omissions.extend(MissingRanks::of(facts.world_size.unwrap_or(0), &facts.ranks).unlisted());
    omissions.extend(unplaced_ranks(&facts, options.places.as_deref()));
    let of_parts = OfRanks::of(&parts, &of_ranks.step_breakdown);
    let comm_ids = parts.iter().flat_map(|part| part.outline.comm_ids.clone()).collect();
    let mut tables = Tables {
        bucket_timing: bucket_timing(&instances, &rows, &parts, &clocks),
        communicators: communicators(&parts, &rows),
        collective_instances: rows,
        unfinished_collectives: unfinished(&parts, options.takes_whole_ranks()),
        selection: options.selection().map(|options| SelectionRow { options: options.into() }).into_iter().collect(),
        ..Tables::default()
    };
    // The rows of the collectives are dropped here: the own time takes as much memory.
    let collectives = InCollectives::of(parts);
    let own_time = own_time::of_run(waiting.own_time(&mut omissions));

    let to_global = |rank: i32, device: bool, t_ns: i64| clocks.global(rank, device, t_ns);
    let error_ns = |rank: i32, device: bool| clocks.error_ns(rank, device);
    let clocks_of = (&to_global as topology::ToGlobal<'_>, &error_ns as topology::ClockError<'_>);
    let (mut stragglers, kept) =
        account::reduce_replayed(own_time, instances, clocks_of, waiting.on_paths(), &options.thresholds, keep);
    let breakdown = &mut of_ranks.step_breakdown;
    fill_exposed_waits(&mut stragglers.waits, &stragglers.waited, &collectives, breakdown);
    identify(&mut stragglers.stragglers, &facts.identities);
    omissions.extend(stragglers.omissions);
    let found = headline::Found { usual: stragglers.usual, together: stragglers.together };
    tables.stragglers = stragglers.stragglers;
    tables.straggler_steps = stragglers.steps;
    tables.collective_waits = stragglers.waits;
    tables.job_critical_path = stragglers.job_path;
    tables.lost_time = stragglers.lost_time;
    tables.lost_time_lines = stragglers.lost_time_lines;
    tables.pipeline = stragglers.pipeline;
    let facts = Facts { early_gathers_ns: stragglers.early_gathers_ns, ..facts };
    let judged = Judged { tables, of_ranks, omissions, clocks, facts, found, of_parts, comm_ids };
    Ok((judged, kept))
}

/// Adds the wanted tables that one rank alone decides, and states the verdict and the findings.
fn conclude(
    judged: Judged,
    waiting: &mut dyn Waiting,
    is_wanted: &dyn Fn(&str) -> bool,
    options: &Options,
) -> (Analysis, Clocks) {
    let Judged { mut tables, mut of_ranks, mut omissions, clocks, facts, found, of_parts, comm_ids } = judged;
    of_ranks.append(waiting.tables(is_wanted, &mut omissions));
    for row in &mut of_ranks.exposed_communication {
        if let Some((comm_id, name)) = row.comm_id.and_then(|comm_id| comm_ids.get(&comm_id)) {
            (row.comm_id, row.comm_name) = (Some(*comm_id), Some(name.clone()));
        }
    }
    // One rank does not know the hosts of the others.
    let nodes: BTreeMap<i64, Option<i32>> = tables.communicators.iter().map(|row| (row.comm_id, row.nodes)).collect();
    for row in of_ranks.exposed_communication.iter_mut().filter(|row| row.nodes.is_none()) {
        row.nodes = row.comm_id.and_then(|comm_id| *nodes.get(&comm_id)?);
    }
    to_global_time(&mut of_ranks, &clocks);
    tables.append(of_ranks);
    tables.clock_fit = clocks.rows().to_vec();
    compare_ops(&mut tables.op_stats);
    compare_kernels(&mut tables.kernel_stats);
    name_slow_devices(&mut tables.stragglers, &tables.kernel_stats, &facts);
    tables.omissions = omissions;
    tables.rank_groups = rank_groups(&tables, &facts);
    headline::take_losses(&mut tables, &facts);
    headline::take_missing_peers(&mut tables, &facts, &options.thresholds);
    let verdict = headline::verdict(&tables, &found, &facts, &options.thresholds);
    let mut analysis = Analysis { facts, verdict, tables, ..Analysis::default() };
    add_findings(&mut analysis, options, &of_parts);
    headline::take_top_finding(&mut analysis);
    headline::take_idle_cause(&mut analysis);
    stages::take_headline(&mut analysis);
    unmarked_steps::take_action(&mut analysis, &of_parts, &options.thresholds);
    findings::hang::take_headline(&mut analysis, options.thresholds.min_steps);
    (analysis, clocks)
}

/// Turns the times in tables of ranks from the ranks' clocks to global time.
fn to_global_time(tables: &mut Tables, clocks: &Clocks) {
    tables.memory_peaks.iter_mut().for_each(|row| row.ts_ns = clocks.global(row.rank, false, row.ts_ns));
    for row in &mut tables.memory_at_peak {
        row.ts_ns = row.ts_ns.map(|ts_ns| clocks.global(row.rank, false, ts_ns));
    }
    tables.memory_curve.iter_mut().for_each(|row| row.ts_ns = clocks.global(row.rank, false, row.ts_ns));
}

/// The critical path of the job, of the own time of all its ranks: that of [`analyze`].
pub fn job_critical_path(
    parts: Vec<OwnTime>,
    instances: Vec<Instance>,
    clocks: &Clocks,
    thresholds: &Thresholds,
) -> Vec<JobPathRow> {
    let to_global = |rank: i32, device: bool, t_ns: i64| clocks.global(rank, device, t_ns);
    let error_ns = |rank: i32, device: bool| clocks.error_ns(rank, device);
    let clocks = (&to_global as topology::ToGlobal<'_>, &error_ns as topology::ClockError<'_>);
    account::reduce_replayed(own_time::of_run(parts), instances, clocks, None, thresholds, drop).0.job_path
}

fn facts(parts: &[RankPart], breakdown: &[StepBreakdownRow], info: &SourceInfo, options: &Options) -> Facts {
    let ranks: Vec<i32> = parts.iter().map(|p| p.outline.info.rank).collect();
    let hosts: BTreeSet<&str> = parts.iter().map(|p| p.outline.info.host.as_str()).filter(|h| !h.is_empty()).collect();
    let active = parts.iter().flat_map(|p| &p.outline.steps).filter(|s| s.phase != Phase::Warmup);
    let steps: BTreeSet<i32> = active.map(|s| s.step).collect();
    let world_size = info.world_size.or_else(|| parts.iter().find_map(|p| p.outline.info.world_size));
    let counters = || parts.iter().flat_map(|p| &p.counters);
    Facts {
        run_id: info.run_id.clone(),
        tool: info.tool.clone(),
        world_size,
        missing_ranks: MissingRanks::of(world_size.unwrap_or(0), &ranks).listed,
        ranks,
        identities: parts.iter().map(|part| identity(part, breakdown, options.places.as_deref())).collect(),
        hosts: hosts.into_iter().map(String::from).collect(),
        steps: steps.into_iter().collect(),
        events: parts.iter().map(|p| p.rows).sum(),
        collectives: parts.iter().map(|p| p.outline.collectives.len() as u64).sum(),
        recorded: counters().map(|c| c.recorded).fold(0, i64::saturating_add),
        dropped: counters().filter(|c| c.kept_omission().is_none()).map(|c| c.dropped).fold(0, i64::saturating_add),
        nothing_because: nothing_because(parts),
        recording_was_off: counter_reasons(parts, |counter| &*counter.source == "schedule"),
        recording_was_cut: parts
            .iter()
            .filter(|p| p.outline.info.closed_cleanly == Some(false) || was_interrupted(p))
            .map(|p| p.outline.info.rank)
            .collect(),
        has_device_rows: parts.iter().any(|p| p.outline.has_device_rows),
        selection: options.selection(),
        chosen_ranks: options.ranks.as_ref().map(|ranks| ranks.iter().copied().collect()),
        communication: (!options.communication.is_default()).then(|| options.communication.to_string()),
        communication_by_name: by_name_alone(parts.iter().map(|p| &p.communication)),
        left_out_files: info.left_out_files.clone(),
        // The account knows it.
        early_gathers_ns: None,
    }
}

/// The ranks that the file of `--places` does not name.
fn unplaced_ranks(facts: &Facts, places: Option<&Places>) -> Option<OmissionRow> {
    let file = &places?.file;
    let unplaced = facts.identities.iter().filter(|identity| identity.places.is_empty());
    let unplaced: Vec<i32> = unplaced.map(|identity| identity.rank).collect();
    let why = format!("{file} names neither them nor their hosts: {}", ranks_named(&unplaced));
    (!unplaced.is_empty()).then(|| OmissionRow::left_out("places of ranks", why).amount(unplaced.len() as i64))
}

/// The reasons in the counters of empty sources, if no rank recorded anything.
fn nothing_because(parts: &[RankPart]) -> Vec<String> {
    if parts.iter().any(|p| p.rows > 0 || !p.outline.collectives.is_empty()) {
        return Vec::new();
    }
    counter_reasons(parts, |counter| {
        // The counters of a trace state how its rank was found, and its omissions are listed.
        let of_trace = &*counter.source == "kineto" || counter.kept_omission().is_some();
        let explains_other = of_trace || &*counter.source == CLOCK_SOURCE;
        counter.recorded == 0 && !explains_other
    })
}

/// Whether the program of a rank was stopped before its end.
fn was_interrupted(part: &RankPart) -> bool {
    part.counters.iter().any(|counter| &*counter.source == CUT_SOURCE)
}

/// The distinct reasons of the selected counters, each with its ranks unless all ranks have it.
fn counter_reasons(parts: &[RankPart], which: impl Fn(&CounterRow) -> bool) -> Vec<String> {
    let mut ranks_of: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for counter in parts.iter().flat_map(|p| &p.counters).filter(|c| which(c)) {
        if let Some(why) = &counter.why {
            ranks_of.entry(why).or_default().push(counter.rank);
        }
    }
    let with_ranks = |(why, ranks): (&str, Vec<i32>)| match ranks.len() == parts.len() {
        true => why.to_owned(),
        false => format!("{why} (rank {})", list(&ranks)),
    };
    ranks_of.into_iter().map(with_ranks).collect()
}
