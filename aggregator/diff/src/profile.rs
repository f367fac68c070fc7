//! The profile of one run: for every rank and compared quantity, a series of values over steps.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::{LostPart, LostTimeRow, OmissionRow, Op, StragglerRow, Text, Verdict, Word, name_rules};

use crate::cuts;
pub(crate) use crate::key::WALL;
pub use crate::key::{Group, Key, Measure, RankProfile};
use crate::rank_kernels::RankKernels;
use crate::series::Series;
use measure::part::RankPart;
use model::analysis::{Analysis, Facts};
use model::options::Options;
use model::steps::host_windows;
use model::units;
use model::{Kind, NO_PARENT, NONE, RankData};
use trace::rank::Details;

/// The series of one run.
#[derive(Clone, Debug, Default)]
pub struct RunProfile {
    pub(crate) facts: Facts,
    pub(crate) verdict: String,
    pub ranks: Vec<RankProfile>,
    /// Bytes of the collectives of all ranks in active steps.
    pub(crate) collective_bytes: i64,
    pub omissions: Vec<OmissionRow>,
}

impl RunProfile {
    /// The profile of a run by its mapped ranks, before they are reduced.
    pub fn of_parts(mut ranks: Vec<RankProfile>, parts: &[RankPart]) -> Self {
        let collective_bytes = collectives(&mut ranks, parts);
        Self { ranks, collective_bytes, ..Self::default() }
    }

    /// Adds what the analysis of the same run says.
    #[must_use]
    pub fn with_analysis(mut self, analysis: Analysis) -> Self {
        breakdowns(&mut self.ranks, &analysis);
        instances(&mut self.ranks, &analysis);
        account(&mut self.ranks, &analysis);
        self.ranks.iter_mut().flat_map(|profile| profile.series.values_mut()).for_each(Series::settle);
        self.verdict = analysis.verdict.sentence;
        self.omissions = analysis.tables.omissions;
        self.facts = analysis.facts;
        self
    }
}

/// Properties that rows of one key share: group, name, shape, blocks of the grid, whether they communicate.
type Kindred<'a> = (Group, u32, Option<&'a str>, i64, bool);

/// Rows of one key in one step: the position of the step, their time, their time by themselves, and their number.
type InStep = (usize, i64, i64, u32);

/// The ranges, operators and kernels of a rank whose steps are marked.
pub fn profile_rank(data: &RankData, details: &Details, options: &Options) -> RankProfile {
    let chosen = |step: &i32| options.steps.as_ref().is_none_or(|steps| steps.contains(step));
    let mut steps: Vec<i32> = host_windows(&data.outline.steps).iter().map(|s| s.step).filter(chosen).collect();
    steps.sort_unstable();
    steps.dedup();
    let kernels = RankKernels::of(data, &steps);
    let mut profile = RankProfile { rank: data.outline.info.rank, steps, kernels, ..RankProfile::default() };
    let own_ns = own_times(data);
    by_name(&mut profile, data, details, &own_ns);
    cuts::add(&mut profile, data, details, &own_ns);
    profile
}

/// The time of each row without that of the rows directly inside it.
fn own_times(data: &RankData) -> Vec<i64> {
    let events = &data.events;
    let mut own_ns = events.dur_ns.clone();
    for (row, parent) in events.parent.iter().enumerate().filter(|(_, parent)| **parent != NO_PARENT) {
        let parent = *parent as usize;
        let (start, end) = (events.ts_ns[row].max(events.ts_ns[parent]), events.end_ns(row).min(events.end_ns(parent)));
        own_ns[parent] = own_ns[parent].saturating_sub((end - start).max(0));
    }
    own_ns.iter_mut().for_each(|ns| *ns = (*ns).max(0));
    own_ns
}

fn by_name(profile: &mut RankProfile, data: &RankData, details: &Details, own_ns: &[i64]) {
    let events = &data.events;
    let blocks: FxHashMap<i64, i64> =
        data.kernel_use.iter().filter_map(|used| Some((used.id, used.blocks()?))).collect();
    // Rows of one name and shape share a key, which is built once.
    let mut sums: FxHashMap<Kindred<'_>, Vec<InStep>> = FxHashMap::default();
    for (row, own_ns) in own_ns.iter().enumerate() {
        let Ok(at) = profile.steps.binary_search(&events.step[row]) else { continue };
        let name = events.name[row];
        let communicates = events.is_comm[row];
        let key = match events.kind[row] {
            Kind::UserAnnotation if name_rules::is_step(&data.names[name as usize]) => continue,
            Kind::UserAnnotation => (Group::Range, name, None, NONE, false),
            Kind::CpuOp => (Group::Operator, name, details.shape(row).map(|s| &**s), NONE, communicates),
            kind if kind.is_device_work() => {
                (Group::Kernel, name, None, blocks.get(&events.id[row]).copied().unwrap_or(NONE), communicates)
            }
            _ => continue,
        };
        let steps = sums.entry(key).or_default();
        let dur_ns = events.dur_ns[row];
        match steps.last_mut() {
            Some(last) if last.0 == at => {
                *last = (at, last.1.saturating_add(dur_ns), last.2.saturating_add(*own_ns), last.3.saturating_add(1));
            }
            _ => steps.push((at, dur_ns, *own_ns, 1)),
        }
    }
    let inputs = cuts::inputs(data, details, &blocks);
    // The order decides how the counts of several shapes are rounded.
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by(|x, y| x.0.cmp(&y.0));
    for (kindred, values) in sums {
        let (group, name, shape, blocks, communicates) = kindred;
        let shape = match (shape, blocks) {
            (Some(shape), _) => Some(shape.into()),
            (None, NONE) => None,
            (None, blocks) => Some(format!("{blocks} blocks").into()),
        };
        let key = Key { group, name: data.names[name as usize].clone(), shape, measure: Measure::Total, communicates };
        let calls = values.iter().map(|value| f64::from(value.3)).sum::<f64>() / profile.steps.len() as f64;
        *profile.calls.entry((group, key.name.clone())).or_default() += calls;
        if let Some(inputs) = inputs.get(&(name, blocks)).filter(|_| group == Group::Kernel) {
            profile.inputs.insert(key.clone(), inputs.clone());
        }
        let mut put = |measure, ns: fn(&InStep) -> i64| {
            let mut series = Series::default();
            values.iter().for_each(|value| series.add(value.0, ns(value) as f64));
            profile.series.insert(Key { measure, ..key.clone() }, series);
        };
        if group != Group::Operator {
            put(Measure::Total, |sums| sums.1);
        }
        // A kernel has no rows inside it.
        if group != Group::Kernel {
            put(Measure::SelfTime, |sums| sums.2);
        }
    }
}

/// Fills the parts of every step, whose sum is the step. With several devices of a rank: the means over them.
fn breakdowns(profiles: &mut [RankProfile], analysis: &Analysis) {
    let place = places(profiles);
    let steps = || analysis.tables.step_breakdown.iter().filter_map(|row| Some((row, row.step.filter(|s| *s >= 0)?)));
    let mut devices: BTreeMap<(i32, i32), f64> = BTreeMap::new();
    steps().for_each(|(row, step)| *devices.entry((row.rank, step)).or_default() += 1.0);
    for (row, step) in steps() {
        let Some(profile) = place.get(&row.rank).map(|place| &mut profiles[*place]) else { continue };
        let Ok(at) = profile.steps.binary_search(&step) else { continue };
        let devices = devices.get(&(row.rank, step)).copied().unwrap_or(1.0);
        let parts = [
            (WALL, row.wall_ns),
            ("compute", row.compute_ns),
            ("overlap", row.overlap_ns),
            ("exposed communication", row.exposed_comm_ns),
            ("memory", row.memory_ns),
            ("idle", row.idle_ns - row.unknown_ns),
            ("unknown", row.unknown_ns),
        ];
        for (name, ns) in parts.into_iter().filter(|(name, ns)| *name != "unknown" || *ns > 0) {
            let series = profile.series.entry(Key::new(Group::Step, name, Measure::Total)).or_default();
            series.add(at, ns as f64 / devices);
        }
    }
}

/// Fills the parts of the account of lost time, the same for each rank, and what each rank costs.
fn account(profiles: &mut [RankProfile], analysis: &Analysis) {
    let rows = &analysis.tables.lost_time;
    let steps: BTreeSet<i32> = rows.iter().map(|row| row.step).collect();
    let mut of_ranks: BTreeMap<i32, Vec<&LostTimeRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.part == LostPart::Line) {
        row.rank.into_iter().for_each(|rank| of_ranks.entry(rank).or_default().push(row));
    }
    let judged: BTreeMap<i32, &StragglerRow> = analysis.tables.stragglers.iter().map(|row| (row.rank, row)).collect();
    for profile in profiles.iter_mut() {
        steps.iter().for_each(|step| profile.add(Key::cost(), *step, Some(0)));
        for row in rows.iter().filter(|row| row.part != LostPart::Line) {
            profile.add(Key::new(Group::Account, &row.part.text(), Measure::Total), row.step, Some(row.ns));
        }
        let lines = of_ranks.remove(&profile.rank).unwrap_or_default();
        lines.iter().for_each(|row| profile.add(Key::cost(), row.step, Some(row.ns)));
        let row = judged.get(&profile.rank).copied();
        profile.cost_ns = cost(row, &lines, (steps.len(), analysis.verdict.step_ns.unwrap_or(0)));
        let is_first = analysis.verdict.rank == Some(profile.rank);
        let location = || analysis.verdict.location.clone().filter(|_| is_first);
        let range = |row: &StragglerRow| row.evidence_range.as_ref().map(|range| format!("its time goes to `{range}`"));
        let cause = row.filter(|row| row.verdict == Verdict::Cause);
        profile.cause = cause.map(|row| location().or_else(|| range(row)).unwrap_or_default());
    }
}

/// The cost of a rank and its standard error. The error follows from the 95 % interval of the account. That interval also holds which steps
/// were late, so a rank that is late in some steps has the error of these steps, if that is smaller. A rank that the verdict does not suspect
/// costs between 0 and 2 % of a step.
fn cost(row: Option<&StragglerRow>, lines: &[&LostTimeRow], (steps, step_ns): (usize, i64)) -> (f64, f64) {
    const Z: f64 = 1.96;
    /// The standard deviation of a uniform cost below 2 % of a step, as a share of a step.
    const UNNAMED: f64 = 0.02 / 3.464;
    /// By how much a replay misses a cost.
    const OF_REPLAY: f64 = 0.08;
    let known = row.and_then(|row| Some((row, row.step_delay_high_ns? - row.step_delay_low_ns?)));
    let Some((row, width_ns)) = known else { return (0.0, UNNAMED * step_ns as f64) };
    let (cost_ns, error_ns) = (row.step_delay_ns as f64, width_ns as f64 / 2.0 / Z);
    let late: Vec<f64> = lines.iter().filter(|row| row.ns > 0).map(|row| row.ns as f64).collect();
    let n = late.len() as f64;
    if row.delayed_steps.is_none() || late.len() < 2 {
        return (cost_ns, error_ns);
    }
    let mean_ns = late.iter().sum::<f64>() / n;
    let variance = late.iter().map(|ns| (ns - mean_ns).powi(2)).sum::<f64>() / (n - 1.0);
    (cost_ns, error_ns.min((variance / n).sqrt() * n / steps.max(1) as f64 + OF_REPLAY * cost_ns / Z))
}

/// The position of each rank.
fn places(profiles: &[RankProfile]) -> FxHashMap<i32, usize> {
    profiles.iter().enumerate().map(|(at, p)| (p.rank, at)).collect()
}

/// Fills the time in collectives by operation and size, on each rank's own clock. Returns the bytes of those in active
/// steps.
fn collectives(profiles: &mut [RankProfile], parts: &[RankPart]) -> i64 {
    let mut bytes = 0_i64;
    for (profile, part) in profiles.iter_mut().zip(parts) {
        for row in &part.outline.collectives {
            let (Some(step), Some(start_ns), Some(end_ns)) = (row.step(), row.start_ns(), row.end_ns()) else {
                continue;
            };
            let key = collective(&row.op, row.bytes, Measure::Total);
            profile.add(key, step, Some(end_ns.saturating_sub(start_ns)));
            if profile.steps.binary_search(&step).is_ok() {
                bytes = bytes.saturating_add(row.bytes.unwrap_or(0));
            }
        }
    }
    bytes
}

fn collective(op: &Word<Op>, bytes: Option<i64>, measure: Measure) -> Key {
    let shape = bytes.map(|b| units::bytes(b).into());
    Key { shape, ..Key::new(Group::Collective, &op.text(), measure) }
}

/// Fills the quantities that need all ranks. Each rank gets the same value, so the mean over ranks is the job's value.
fn instances(profiles: &mut [RankProfile], analysis: &Analysis) {
    let at = places(profiles);
    let mut of_all: BTreeMap<(Key, i32), Series> = BTreeMap::new();
    for row in analysis.tables.collective_instances.iter().filter(|row| row.complete && row.ranks_seen > 1) {
        let Some(step) = row.step else { continue };
        for (measure, value) in [(Measure::Skew, Some(row.skew_ns)), (Measure::Transfer, row.transfer_ns)] {
            let sum = of_all.entry((collective(&row.op, row.bytes, measure), step)).or_default();
            sum.add(0, value.map_or(f64::NAN, |ns| ns as f64));
        }
    }
    for profile in profiles.iter_mut() {
        for ((key, step), sum) in &of_all {
            let Ok(at) = profile.steps.binary_search(step) else { continue };
            let series = profile.series.entry(key.clone()).or_default();
            sum.values().for_each(|sum| series.add(at, sum));
        }
    }
    for row in &analysis.tables.bucket_timing {
        let Some(profile) = at.get(&row.rank).and_then(|at| profiles.get_mut(*at)) else { continue };
        let shape = row.bytes.map(|bytes| Text::from(units::bytes(bytes)));
        let number = row.bucket.to_string();
        let key = |measure| Key { shape: shape.clone(), ..Key::new(Group::Bucket, &number, measure) };
        profile.add(key(Measure::Queue), row.step, row.queue_ns);
        profile.add(key(Measure::Wait), row.step, row.wait_ns);
        profile.add(key(Measure::Exposed), row.step, Some(row.exposed_ns));
    }
}
