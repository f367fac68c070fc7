//! What of a rank must be known before all ranks are on one clock: everything but its rows. Renderers of single rows
//! align all ranks by their outlines, and then look at one rank after the other.

use std::collections::BTreeMap;

use trace::{ClockSampleRow, CollectiveRow, CommRow, OmissionRow, StepRow};

use crate::Error;
use crate::clock::Clocks;
use crate::intervals::{Interval, IntervalSet};
use crate::model::{Instance, RankData, RankInfo};
use crate::options::Options;
use crate::reduce::{Alignable, align_as_chosen, chosen_ranks, each_rank, local_bounds};
use crate::select::{Scope, matching_ranges, narrow_to_steps, narrow_to_time};
use crate::source::Source;
use crate::steps::{mark_steps, of_small_tables, whole_as_step};

/// A rank without its rows. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outline {
    /// Who it is.
    pub info: RankInfo,
    /// Its collectives, sorted by start.
    pub collectives: Vec<CollectiveRow>,
    /// Kineto's `Comms Id` of each, or empty.
    pub comms_ids: Vec<Option<u64>>,
    /// Its steps.
    pub steps: Vec<StepRow>,
    /// Its communicators.
    pub comms: Vec<CommRow>,
    /// Its clock comparisons.
    pub clock_samples: Vec<ClockSampleRow>,
    /// From the first start to the last end of its rows of `events`.
    pub rows: Option<Interval>,
    /// Whether some rows are a device's.
    pub has_device_rows: bool,
}

impl Outline {
    /// What is left of a loaded rank without its rows.
    pub fn of(data: RankData) -> Self {
        let events = &data.events;
        let rows = (0..events.len()).map(|row| Interval::new(events.ts_ns[row], events.end_ns(row)));
        Self {
            rows: rows.reduce(Interval::hull),
            has_device_rows: events.kind.iter().any(|kind| kind.is_device_work()),
            info: data.info,
            collectives: data.collectives,
            comms_ids: data.comms_ids,
            steps: data.steps,
            comms: data.comms,
            clock_samples: data.clock_samples,
        }
    }

    /// From the first start to the last end of anything that has a time.
    fn recorded(&self) -> Option<Interval> {
        [self.rows, of_small_tables(&self.steps, &self.collectives)].into_iter().flatten().reduce(Interval::hull)
    }

    /// Leaves only what lies in `scope`, as the map over ranks does.
    fn narrow(&mut self, scope: &Scope) {
        let Self { steps, collectives, comms_ids, .. } = self;
        narrow_to_time(steps, collectives, comms_ids, scope);
        narrow_to_steps(steps, collectives, comms_ids, scope);
    }

    fn alignable(&self) -> Alignable<'_> {
        Alignable {
            info: &self.info,
            collectives: &self.collectives,
            comms_ids: &self.comms_ids,
            clock_samples: &self.clock_samples,
            recorded: self.recorded(),
            has_device_rows: self.has_device_rows,
        }
    }
}

/// What renderers of single rows need to know of all ranks before they look at one.
#[derive(Debug)]
pub(crate) struct Aligned {
    /// Ranks that could be loaded.
    pub(crate) ranks: Vec<i32>,
    /// Matched collectives. Members name rows by their position among those of the chosen part of the rank.
    pub(crate) instances: Vec<Instance>,
    /// The clocks.
    pub(crate) clocks: Clocks,
    /// What `--from` and `--to` mean on each rank's clock; empty without them.
    pub(crate) time: BTreeMap<i32, Interval>,
    /// When each rank's recording begins, in its clock.
    pub(crate) starts: Vec<(i32, i64)>,
    /// Names of communicators.
    pub(crate) comm_names: BTreeMap<i64, String>,
    /// What was left out, but for rows of single ranks: whoever looks at those lists them.
    pub(crate) omissions: Vec<OmissionRow>,
}

/// Aligns the chosen part of a source. `progress` is called after each rank, as in [`analyze`](crate::analyze).
///
/// # Errors
/// As [`analyze`](crate::analyze).
pub(crate) fn align_source(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Aligned, Error> {
    let info = source.info();
    let ranks = chosen_ranks(source, options)?;
    let mut omissions = source.problems();
    let mut outlines = each_rank(&ranks, options, progress, &mut omissions, |rank| outlined(source, rank, options));
    if outlines.is_empty() {
        return Err(Error::NoRank { path: info.path, why: "none of them could be loaded".into() });
    }
    let mut time = BTreeMap::new();
    if options.selects_by_time() {
        let whole: Vec<Alignable<'_>> = outlines.iter().map(|(outline, _)| outline.alignable()).collect();
        time = local_bounds(&whole, options);
    }
    for (outline, ranges) in &mut outlines {
        outline.narrow(&Scope::new(options, ranges.take(), time.get(&outline.info.rank).copied()));
    }
    let parts: Vec<Alignable<'_>> = outlines.iter().map(|(outline, _)| outline.alignable()).collect();
    let (instances, clocks, unmatched) = align_as_chosen(&parts, &info, options)?;
    omissions.extend(unmatched);
    let named = parts.iter().flat_map(|p| p.collectives);
    Ok(Aligned {
        ranks: parts.iter().map(|p| p.info.rank).collect(),
        starts: parts.iter().filter_map(|p| Some((p.info.rank, p.recorded?.start_ns))).collect(),
        comm_names: named.filter_map(|c| Some((c.comm_id, c.comm_name.as_ref()?.to_string()))).collect(),
        instances,
        clocks,
        time,
        omissions,
    })
}

/// The outline of a rank, and the insides of the ranges that were asked for. Rows are looked at only where steps or
/// ranges are known by their names.
fn outlined(source: &dyn Source, rank: i32, options: &Options) -> Result<(Outline, Option<IntervalSet>), Error> {
    if options.step_marker.is_none() && options.range.is_none() {
        let mut outline = source.outline(rank)?;
        if outline.steps.is_empty()
            && let Some(all) = outline.recorded()
        {
            outline.steps = vec![whole_as_step(rank, all, &mut outline.collectives)];
        }
        return Ok((outline, None));
    }
    let mut data = source.load(rank)?;
    if let Some(marker) = &options.step_marker {
        mark_steps(&mut data, marker);
    }
    crate::steps::one_step_if_none(&mut data);
    let ranges = options.range.as_ref().map(|regex| matching_ranges(&data, regex));
    Ok((Outline::of(data), ranges))
}
