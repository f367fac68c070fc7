//! Loads the selected ranks of a source and puts them on one clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use trace::{DeviceRow, OmissionRow};

use crate::clock::{Clocks, fit, number_by_time};
use crate::communicators::infer_communicators;
use crate::matching::match_collectives;
use crate::p2p_peers::peers_as_ranks;
use crate::same_members::join_same_members;
use model::Error;
use model::analysis::Analysis;
use model::clock_choice::Choice;
use model::intervals::{Interval, IntervalSet};
use model::options::{Options, TimeBound};
use model::scope::{Scope, matching_ranges, narrow_to_steps, narrow_to_time};
use model::selection::{Held, require_any};
use model::source::{Source, SourceInfo, no_rank};
use model::steps::{active_numbers, mark_steps, one_step_if_none, whole_as_step};
use model::units::{omission, ranks_named};
use model::{Instance, RankOutline};

/// Data about all ranks that renderers of single rows need before they load a rank.
#[derive(Debug)]
pub struct Aligned {
    /// Ranks that could be loaded.
    pub ranks: Vec<i32>,
    /// Matched collectives. Members refer to rows by their position in the selected part of the rank.
    pub instances: Vec<Instance>,
    /// The clocks.
    pub clocks: Clocks,
    /// The span of `--from` and `--to` on each rank's clock; empty without these options.
    pub time: BTreeMap<i32, Interval>,
    /// Begin of each rank's recording, in its clock.
    pub starts: Vec<(i32, i64)>,
    /// Names of communicators.
    pub comm_names: BTreeMap<i64, String>,
    /// Omissions, except those of rows of single ranks: the renderer adds these when it loads the rank.
    pub omissions: Vec<OmissionRow>,
}

/// An analysis with the data that renderers of single rows need.
pub struct Analyzed {
    /// The analysis.
    pub analysis: Analysis,
    /// The clocks.
    pub clocks: Clocks,
    /// The span of `--from` and `--to` on each rank's clock; empty without these options.
    pub time: BTreeMap<i32, Interval>,
    /// The devices of all ranks.
    pub devices: Vec<DeviceRow>,
    /// First start and last end of everything that was read, in global ns; `None` without rows.
    pub recorded_ns: Option<(i64, i64)>,
}

/// Aligns the selected part of a source. Calls `progress` after each rank, as `analyze` does.
///
/// # Errors
/// The errors of `analyze`.
pub fn align_source(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Aligned, Error> {
    let load = |rank| outlined(source, rank, options);
    let (mut loaded, mut omissions) = load_chosen(source, options, progress, load, |(outline, _)| outline)?;
    let time = time_bounds(loaded.iter().map(|(outline, _)| outline), options);
    let scope_of = |outline: &RankOutline, ranges: Option<IntervalSet>| {
        Scope::new(options, ranges, time.get(&outline.info.rank).copied())
    };
    let scopes: Vec<Scope> = loaded.iter_mut().map(|(outline, ranges)| scope_of(outline, ranges.take())).collect();
    let recorded: Vec<Vec<i32>> = loaded.iter().map(|(outline, _)| active_numbers(&outline.steps)).collect();
    let held = loaded.iter().zip(&scopes).zip(&recorded);
    let held = held.map(|(((outline, _), scope), steps)| Held {
        recorded_steps: steps,
        has_time: scope.meets(outline.recorded_ns),
    });
    require_any(held, options, &source.info().path)?;
    for ((outline, _), scope) in loaded.iter_mut().zip(&scopes) {
        narrow_to_time(outline, scope);
        narrow_to_steps(outline, scope);
    }
    let outlines: Vec<&RankOutline> = loaded.iter().map(|(outline, _)| outline).collect();
    let (instances, clocks, unmatched) = align_as_chosen(&outlines, &source.info(), options)?;
    omissions.extend(unmatched);
    let named = outlines.iter().flat_map(|r| &r.collectives);
    Ok(Aligned {
        ranks: outlines.iter().map(|r| r.info.rank).collect(),
        starts: outlines.iter().filter_map(|r| Some((r.info.rank, r.recorded_ns?.0))).collect(),
        comm_names: named.filter_map(|c| Some((c.comm_id, c.comm_name.as_ref()?.to_string()))).collect(),
        instances,
        clocks,
        time,
        omissions,
    })
}

/// Loads the outline of a rank and the insides of the ranges of `--range`. Rows are loaded only if steps or ranges are
/// selected by name.
fn outlined(source: &dyn Source, rank: i32, options: &Options) -> Result<(RankOutline, Option<IntervalSet>), Error> {
    if options.step_marker.is_none() && options.range.is_none() {
        let mut outline = source.outline(rank)?;
        if outline.steps.is_empty()
            && let Some(all) = outline.recorded_ns
        {
            outline.steps = vec![whole_as_step(rank, all, &mut outline.collectives)];
        }
        return Ok((outline, None));
    }
    let mut data = source.load(rank)?;
    if let Some(marker) = &options.step_marker {
        mark_steps(&mut data, marker);
    }
    one_step_if_none(&mut data);
    data.measure_outline();
    let ranges = options.range.as_ref().map(|regex| matching_ranges(&data, regex));
    Ok((data.outline, ranges))
}

/// Loads the selected ranks with `load`, several at a time, and turns their peers into ranks of the job. Returns the
/// loaded ranks, ascending, and all omissions. `outline` returns the outline of a loaded rank.
///
/// # Errors
/// [`Error::NoRank`] if no rank is selected, or none could be loaded.
pub fn load_chosen<T: Send>(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
    load: impl Fn(i32) -> Result<T, Error> + Sync,
    outline: impl Fn(&mut T) -> &mut RankOutline,
) -> Result<(Vec<T>, Vec<OmissionRow>), Error> {
    let ranks = chosen_ranks(source, options)?;
    let mut omissions = source.problems();
    let mut loaded = each_rank(&ranks, progress, &mut omissions, load);
    if loaded.is_empty() {
        let first = omissions.last().map(|last| format!("; {}", omission(last))).unwrap_or_default();
        let why = format!("{} failed to load{first}", ranks_named(&ranks));
        return Err(Error::NoRank { path: source.info().path, why });
    }
    let mut outlines: Vec<&mut RankOutline> = loaded.iter_mut().map(outline).collect();
    let omissions = join_outlines(&mut outlines, omissions, options);
    Ok((loaded, omissions))
}

/// Turns the peers of loaded ranks into ranks of the job, joins groups that have several names, and finds communicators that no row
/// names. Returns all omissions:
/// `of_input`, those of the input and of ranks that failed to load, come first.
pub fn join_outlines(
    outlines: &mut [&mut RankOutline],
    of_input: Vec<OmissionRow>,
    options: &Options,
) -> Vec<OmissionRow> {
    let mut omissions = in_order(of_input);
    let unknown = peers_as_ranks(outlines);
    join_same_members(outlines);
    omissions.extend(infer_communicators(outlines));
    // Peers excluded by --ranks are expected to be unknown; do not report them.
    if options.ranks.is_none() {
        omissions.extend(unknown);
    }
    omissions
}

/// Each omission once, in an order that does not depend on who found it: every share of an input lists the problems of the
/// whole input.
fn in_order(mut omissions: Vec<OmissionRow>) -> Vec<OmissionRow> {
    let key = |row: &OmissionRow| {
        let kind = row.kind.as_str().to_string();
        (row.what.clone(), row.rank, row.file.clone(), kind, row.why.clone(), row.amount)
    };
    omissions.sort_by_cached_key(key);
    omissions.dedup();
    omissions
}

/// The span of `--from` and `--to` on each rank's clock; empty without these options.
pub fn time_bounds<'a>(ranks: impl Iterator<Item = &'a RankOutline>, options: &Options) -> BTreeMap<i32, Interval> {
    if options.selects_by_time() { local_bounds(&ranks.collect::<Vec<_>>(), options) } else { BTreeMap::new() }
}

/// The selected ranks, ascending.
///
/// # Errors
/// [`Error::NoRank`] if there is none.
pub(crate) fn chosen_ranks(source: &dyn Source, options: &Options) -> Result<Vec<i32>, Error> {
    let available = source.ranks();
    let wanted = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
    let ranks: Vec<i32> = available.iter().copied().filter(wanted).collect();
    if ranks.is_empty() { Err(no_rank(source, options.ranks.as_ref())) } else { Ok(ranks) }
}

/// Runs [`align`] and returns an error if the chosen method joins no ranks.
///
/// # Errors
/// [`Error::Clock`] if [`Options::clock`] joins no two ranks.
pub fn align_as_chosen(
    ranks: &[&RankOutline],
    info: &SourceInfo,
    options: &Options,
) -> Result<(Vec<Instance>, Clocks, Vec<OmissionRow>), Error> {
    let aligned = align(ranks, options.clock);
    match aligned.1.impossible(options.clock) {
        Some(why) => Err(Error::Clock { path: info.path.clone(), choice: options.clock.as_str(), why }),
        None => Ok(aligned),
    }
}

/// Loads every rank. A rank that cannot be loaded becomes an omission. Each thread holds one rank at a time, so memory
/// is bounded by the number of threads.
pub fn each_rank<T: Send>(
    ranks: &[i32],
    progress: &(dyn Fn(usize, usize) + Sync),
    omissions: &mut Vec<OmissionRow>,
    load: impl Fn(i32) -> Result<T, Error> + Sync,
) -> Vec<T> {
    let done = AtomicUsize::new(0);
    let load_one = |rank: &i32| {
        let result = load(*rank);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, ranks.len());
        result.map_err(|error| OmissionRow::lost("rank", error.to_string()).rank(*rank).amount(1))
    };
    let results: Vec<Result<T, OmissionRow>> = ranks.par_iter().with_max_len(1).map(load_one).collect();
    let mut loaded = Vec::new();
    for result in results {
        match result {
            Ok(rank) => loaded.push(rank),
            Err(omission) => omissions.push(omission),
        }
    }
    loaded
}

/// Matches the collectives and fits the clocks.
fn align(ranks: &[&RankOutline], choice: Choice) -> (Vec<Instance>, Clocks, Vec<OmissionRow>) {
    let (mut instances, mut omissions) = match_collectives(ranks);
    let clocks = fit(ranks, &instances, choice);
    number_by_time(&mut instances, &clocks);
    omissions.extend(clocks.contradictions.iter().cloned());
    (instances, clocks, omissions)
}

/// The span of `--from` and `--to` on each rank's clock.
fn local_bounds(ranks: &[&RankOutline], options: &Options) -> BTreeMap<i32, Interval> {
    let (_, clocks, _) = align(ranks, options.clock);
    let start = |r: &&RankOutline| r.recorded_ns.map(|(start_ns, _)| clocks.global(r.info.rank, false, start_ns));
    let start_ns = ranks.iter().filter_map(start).min().unwrap_or(0);
    let global = |bound: Option<TimeBound>, open: i64| match bound {
        None => open,
        Some(TimeBound::GlobalNs(t)) => t,
        Some(TimeBound::SinceStartNs(since)) => start_ns.saturating_add(since),
    };
    // The open bounds are half the range of i64, so that differences of times do not overflow.
    let (from, to) = (global(options.from, i64::MIN / 2), global(options.to, i64::MAX / 2));
    ranks
        .iter()
        .map(|r| r.info.rank)
        .map(|rank| (rank, Interval::new(local(&clocks, rank, from), local(&clocks, rank, to))))
        .collect()
}

/// Converts a global time to the rank's host time. The map from host to global time is monotonic and close to an
/// offset, so two steps of the iteration leave an error below 1 ns at any realistic drift.
fn local(clocks: &Clocks, rank: i32, global: i64) -> i64 {
    let mut t = global;
    for _ in 0..4 {
        t = t.saturating_add(global.saturating_sub(clocks.global(rank, false, t)));
    }
    t
}

pub fn list(ranks: &[i32]) -> String {
    ranks.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}
