//! The profile of one run: for every rank and compared quantity, a series of values over steps.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{OmissionRow, Op, Text, Word, name_rules};

use crate::rank_kernels::RankKernels;
use crate::series::Series;
use measure::part::RankPart;
use model::analysis::{Analysis, Facts};
use model::options::Options;
use model::steps::host_windows;
use model::units;
use model::{Kind, NO_PARENT, NONE, RankData};
use trace::rank::Details;

/// The kinds of series, in the order in which a reader looks for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// A part of the step: its wall time, compute, communication or idle time.
    Step,
    /// A phase: a host range that the program named.
    Range,
    /// An operator on the host.
    Operator,
    /// A kernel, copy or fill on a device.
    Kernel,
    /// Collectives of one operation and size.
    Collective,
    /// A gradient bucket.
    Bucket,
}

/// The measured quantity, summed over a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Total time.
    Total,
    /// Time without the rows inside it on the same thread.
    SelfTime,
    /// From enqueueing to the start.
    Queue,
    /// Time waiting for the last rank.
    Wait,
    /// From the last arrival to the end.
    Transfer,
    /// From the first arrival to the last.
    Skew,
    /// Time that no compute overlaps.
    Exposed,
}

impl Measure {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::SelfTime => "self",
            Self::Queue => "queue",
            Self::Wait => "wait",
            Self::Transfer => "transfer",
            Self::Skew => "skew",
            Self::Exposed => "exposed",
        }
    }
}

/// The identity of a series. Equal keys of two runs are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// Kind of the series.
    pub group: Group,
    /// `wall`, `compute`, …; the name of a range, operator or kernel; an operation; or a bucket's number.
    pub name: Text,
    /// Shapes of an operator's inputs, blocks of a kernel, bytes of a collective; `None` if unknown.
    pub shape: Option<Text>,
    /// The measured quantity.
    pub measure: Measure,
    /// Whether the operator or kernel communicates, or waits for communication.
    #[serde(skip)]
    pub communicates: bool,
}

impl Key {
    /// A key without a shape.
    pub fn new(group: Group, name: &str, measure: Measure) -> Self {
        Self { group, name: name.into(), shape: None, measure, communicates: false }
    }

    /// Whether this is time that a rank spends on its own work, not waiting for others. Such a series can be the reason
    /// of a slowdown and not only its effect.
    pub fn is_own_work(&self) -> bool {
        match self.group {
            Group::Range => true,
            Group::Operator | Group::Kernel => !self.communicates,
            Group::Step | Group::Collective | Group::Bucket => false,
        }
    }

    /// Whether this is the step or something that lengthens it. Waits and parts of the step are not: they shift among
    /// each other and among ranks while the step stays the same.
    pub fn is_cost(&self) -> bool {
        self.is_own_work() || self.measure == Measure::Transfer || (self.group == Group::Step && &*self.name == "wall")
    }
}

/// The series of one rank: a value for each key and step. NaN: unknown.
#[derive(Clone, Debug, Default)]
pub struct RankProfile {
    pub(crate) rank: i32,
    /// Active steps, ascending.
    pub(crate) steps: Vec<i32>,
    pub series: BTreeMap<Key, Series>,
    /// Kernels in each of `steps`.
    pub(crate) kernels: RankKernels,
}

impl RankProfile {
    fn add(&mut self, key: Key, step: i32, value_ns: Option<i64>) {
        let Ok(at) = self.steps.binary_search(&step) else { return };
        self.series.entry(key).or_default().add(at, value_ns.map_or(f64::NAN, |ns| ns as f64));
    }
}

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
        self.ranks.iter_mut().flat_map(|profile| profile.series.values_mut()).for_each(Series::settle);
        self.verdict = analysis.verdict.sentence;
        self.omissions = analysis.tables.omissions;
        self.facts = analysis.facts;
        self
    }
}

/// Properties that rows of one key share: group, name, shape, blocks of the grid, whether they communicate.
type Kindred<'a> = (Group, u32, Option<&'a str>, i64, bool);

/// The ranges, operators and kernels of a rank whose steps are marked.
pub fn profile_rank(data: &RankData, details: &Details, options: &Options) -> RankProfile {
    let chosen = |step: &i32| options.steps.as_ref().is_none_or(|steps| steps.contains(step));
    let mut steps: Vec<i32> = host_windows(&data.outline.steps).iter().map(|s| s.step).filter(chosen).collect();
    steps.sort_unstable();
    steps.dedup();
    let kernels = RankKernels::of(data, &steps);
    let mut profile = RankProfile { rank: data.outline.info.rank, steps, series: BTreeMap::new(), kernels };
    let events = &data.events;
    let mut inside_ns = vec![0_i64; events.len()];
    for (row, parent) in events.parent.iter().enumerate().filter(|(_, parent)| **parent != NO_PARENT) {
        let parent = *parent as usize;
        let (start, end) = (events.ts_ns[row].max(events.ts_ns[parent]), events.end_ns(row).min(events.end_ns(parent)));
        inside_ns[parent] = inside_ns[parent].saturating_add((end - start).max(0));
    }
    let blocks: FxHashMap<i64, i64> =
        data.kernel_use.iter().filter(|u| u.blocks != NONE).map(|u| (u.id, u.blocks)).collect();
    // Rows of one name and shape share a key, which is built once.
    let mut sums: FxHashMap<Kindred<'_>, Vec<(usize, i64, i64)>> = FxHashMap::default();
    for (row, inside_ns) in inside_ns.into_iter().enumerate() {
        let Ok(at) = profile.steps.binary_search(&events.step[row]) else { continue };
        let name = events.name[row];
        let communicates = events.is_comm[row];
        let (key, dur_ns) = match events.kind[row] {
            Kind::UserAnnotation if name_rules::is_step(&data.names[name as usize]) => continue,
            Kind::UserAnnotation => ((Group::Range, name, None, NONE, false), events.dur_ns[row]),
            Kind::CpuOp => {
                let shape = details.shape(row).map(|s| &**s);
                ((Group::Operator, name, shape, NONE, communicates), events.dur_ns[row])
            }
            kind if kind.is_device_work() => {
                let blocks = blocks.get(&events.id[row]).copied().unwrap_or(NONE);
                ((Group::Kernel, name, None, blocks, communicates), events.dur_ns[row])
            }
            _ => continue,
        };
        let steps = sums.entry(key).or_default();
        let own_ns = (dur_ns - inside_ns).max(0);
        match steps.last_mut() {
            Some(last) if last.0 == at => *last = (at, last.1.saturating_add(dur_ns), last.2.saturating_add(own_ns)),
            _ => steps.push((at, dur_ns, own_ns)),
        }
    }
    let sums: Vec<_> = sums.into_iter().collect();
    for ((group, name, shape, blocks, communicates), values) in sums {
        let shape = match (shape, blocks) {
            (Some(shape), _) => Some(shape.into()),
            (None, NONE) => None,
            (None, blocks) => Some(format!("{blocks} blocks").into()),
        };
        let name = data.names[name as usize].clone();
        let mut put = |measure, ns: fn(&(usize, i64, i64)) -> i64| {
            let mut series = Series::default();
            values.iter().for_each(|value| series.add(value.0, ns(value) as f64));
            profile
                .series
                .insert(Key { group, name: name.clone(), shape: shape.clone(), measure, communicates }, series);
        };
        if group != Group::Operator {
            put(Measure::Total, |(_, total_ns, _)| *total_ns);
        }
        // A kernel has no rows inside it.
        if group != Group::Kernel {
            put(Measure::SelfTime, |(_, _, own_ns)| *own_ns);
        }
    }
    profile
}

/// Fills the five parts of every step. With several devices of a rank: the sums of the parts, and the longest step.
fn breakdowns(profiles: &mut [RankProfile], analysis: &Analysis) {
    let place = places(profiles);
    let mut walls: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for row in &analysis.tables.step_breakdown {
        let Some(step) = row.step.filter(|step| *step >= 0) else { continue };
        let Some(place) = place.get(&row.rank).copied() else { continue };
        let profile = &mut profiles[place];
        let parts = [
            ("compute", row.compute_ns),
            ("overlap", row.overlap_ns),
            ("exposed communication", row.exposed_comm_ns),
            ("memory", row.memory_ns),
            ("idle", row.idle_ns),
        ];
        for (name, ns) in parts {
            profile.add(Key::new(Group::Step, name, Measure::Total), step, Some(ns));
        }
        let Ok(at) = profile.steps.binary_search(&step) else { continue };
        let wall = walls.entry((place, at)).or_default();
        *wall = wall.max(row.wall_ns as f64);
    }
    for ((place, at), wall) in walls {
        let series = &mut profiles[place].series;
        series.entry(Key::new(Group::Step, "wall", Measure::Total)).or_default().add(at, wall);
    }
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
        let key = |measure| Key::new(Group::Bucket, &row.bucket.to_string(), measure);
        profile.add(key(Measure::Queue), row.step, row.queue_ns);
        profile.add(key(Measure::Wait), row.step, row.wait_ns);
        profile.add(key(Measure::Exposed), row.step, Some(row.exposed_ns));
    }
}
