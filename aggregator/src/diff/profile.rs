//! What one run did, step by step: for every rank, one series over steps for everything that a difference is told of.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{OmissionRow, Text};

use crate::analysis::{Analysis, Facts};
use crate::details::Details;
use crate::map::{RankPart, map_rank};
use crate::model::{Kind, NO_PARENT, NONE, RankData};
use crate::options::Options;
use crate::peers::peers_as_ranks;
use crate::reduce::reduce;
use crate::source::Source;
use crate::step_numbers::require_chosen;
use crate::steps::{host_windows, mark_steps, one_step_if_none};
use crate::{Error, render::text};

/// What kind of thing a series is of. The order is that in which people look for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// A part of the step: its length, compute, communication, idleness.
    Step,
    /// A range of the host that the program named: a phase.
    Range,
    /// An operator of the host.
    Operator,
    /// A kernel, copy or fill of a device.
    Kernel,
    /// Collectives of one operation and size.
    Collective,
    /// A gradient bucket.
    Bucket,
}

/// What is measured of it, summed over a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// All of its time.
    Total,
    /// Its time less that of what runs inside it on the same thread.
    SelfTime,
    /// From the hand-over to the start.
    Queue,
    /// Waiting for the last rank.
    Wait,
    /// From the last arrival to the end.
    Transfer,
    /// From the first arrival to the last.
    Skew,
    /// What no compute hides.
    Exposed,
}

impl Measure {
    /// In a word.
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

/// What a series is of. Equal keys of two runs are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// What kind of thing.
    pub group: Group,
    /// `wall`, `compute`, …; the name of the range, operator or kernel; the operation; the bucket's number.
    pub name: Text,
    /// Shapes of an operator's inputs, blocks of a kernel, bytes of a collective; `None` where unknown.
    pub shape: Option<Text>,
    /// What is measured.
    pub measure: Measure,
}

impl Key {
    /// A key without a shape.
    pub fn new(group: Group, name: &str, measure: Measure) -> Self {
        Self { group, name: name.into(), shape: None, measure }
    }

    /// Time that a rank spends for itself, not waiting for others: where a reason may be, not only its effect.
    pub fn is_own_work(&self) -> bool {
        let class = crate::names::NameClass::of(&self.name);
        match self.group {
            Group::Range => true,
            Group::Operator | Group::Kernel => !class.host_comm && !class.device_comm,
            Group::Step | Group::Collective | Group::Bucket => false,
        }
    }

    /// The step itself, or what makes it longer. Waits and the parts of a step are not: they shift among each other and
    /// among ranks while the step stays the same.
    pub fn is_cost(&self) -> bool {
        self.is_own_work() || self.measure == Measure::Transfer || (self.group == Group::Step && &*self.name == "wall")
    }
}

/// One rank: a value for each key and step. What did not happen in a step is 0 there; what is unknown is NaN.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankProfile {
    pub(crate) rank: i32,
    /// Active steps, ascending.
    pub(crate) steps: Vec<i32>,
    pub(crate) series: BTreeMap<Key, Vec<f64>>,
}

impl RankProfile {
    fn add(&mut self, key: Key, step: i32, value_ns: Option<i64>) {
        let Ok(at) = self.steps.binary_search(&step) else { return };
        let series = self.series.entry(key).or_insert_with(|| vec![0.0; self.steps.len()]);
        series[at] += value_ns.map_or(f64::NAN, |ns| ns as f64);
    }
}

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunProfile {
    pub(crate) facts: Facts,
    pub(crate) verdict: String,
    pub(crate) ranks: Vec<RankProfile>,
    pub(crate) omissions: Vec<OmissionRow>,
}

/// Loads, maps and reduces a run. Memory is that of as many ranks as there are threads, and of the series.
///
/// # Errors
/// As [`analyze`](crate::analyze).
pub(crate) fn profile_run(
    source: &dyn Source,
    options: &Options,
    progress: &(dyn Fn() + Sync),
) -> Result<RunProfile, Error> {
    let available = source.ranks();
    let wanted = |rank: &i32| options.ranks.as_ref().is_none_or(|ranks| ranks.contains(rank));
    let ranks: Vec<i32> = available.iter().copied().filter(wanted).collect();
    if ranks.is_empty() {
        let why = format!("none of ranks {} was chosen or could be read", text::ranks(&available));
        return Err(Error::NoRank { path: source.info().path, why });
    }
    let mut omissions = source.problems();
    let one = |rank: &i32| -> Result<(RankProfile, RankPart), Error> {
        let (mut data, details) = source.load_detailed(*rank)?;
        if let Some(marker) = &options.step_marker {
            mark_steps(&mut data, marker);
        }
        one_step_if_none(&mut data);
        let profile = profile_rank(&data, &details, options);
        // The steps are marked already.
        let part = map_rank(data, &Options { step_marker: None, ..options.clone() }, None);
        progress();
        Ok((profile, part))
    };
    let loaded: Vec<Result<(RankProfile, RankPart), Error>> = ranks.par_iter().with_max_len(1).map(one).collect();
    let (mut profiles, mut parts) = (Vec::new(), Vec::new());
    for (rank, result) in ranks.iter().zip(loaded) {
        match result {
            Ok((profile, part)) => {
                profiles.push(profile);
                parts.push(part);
            }
            Err(error) => omissions.push(OmissionRow {
                rank: Some(*rank),
                what: "rank".into(),
                amount: Some(1),
                why: error.to_string().into(),
                ..OmissionRow::default()
            }),
        }
    }
    if parts.is_empty() {
        return Err(Error::NoRank { path: source.info().path, why: "none of them could be loaded".into() });
    }
    // As for an analysis: peers of NCCL's sends are numbered in their communicator. What is not a rank here is said there.
    peers_as_ranks(&mut parts);
    require_chosen(&parts, options, &source.info().path)?;
    collectives(&mut profiles, &parts);
    let analysis = reduce(parts, &source.info(), options, omissions)?;
    breakdowns(&mut profiles, &analysis);
    instances(&mut profiles, &analysis);
    Ok(RunProfile {
        verdict: analysis.verdict.sentence.clone(),
        omissions: analysis.tables.omissions,
        facts: analysis.facts,
        ranks: profiles,
    })
}

/// What rows of one kind have in common: name, shape, blocks of the grid.
type Kindred<'a> = (Group, u32, Option<&'a str>, i64);

/// Ranges, operators and kernels of a rank.
fn profile_rank(data: &RankData, details: &Details, options: &Options) -> RankProfile {
    let chosen = |step: &i32| options.steps.as_ref().is_none_or(|steps| steps.contains(step));
    let mut steps: Vec<i32> = host_windows(&data.steps).iter().map(|s| s.step).filter(chosen).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut profile = RankProfile { rank: data.info.rank, steps, series: BTreeMap::new() };
    let events = &data.events;
    let mut inside_ns = vec![0_i64; events.len()];
    for (row, parent) in events.parent.iter().enumerate().filter(|(_, parent)| **parent != NO_PARENT) {
        let parent = *parent as usize;
        let (start, end) = (events.ts_ns[row].max(events.ts_ns[parent]), events.end_ns(row).min(events.end_ns(parent)));
        inside_ns[parent] = inside_ns[parent].saturating_add((end - start).max(0));
    }
    let blocks: FxHashMap<i64, i64> =
        data.kernel_use.iter().filter(|u| u.blocks != NONE).map(|u| (u.id, u.blocks)).collect();
    // Rows of one name and shape share a key, which is made once.
    let mut sums: FxHashMap<Kindred<'_>, Vec<(i64, i64)>> = FxHashMap::default();
    for (row, inside_ns) in inside_ns.into_iter().enumerate() {
        let Ok(at) = profile.steps.binary_search(&events.step[row]) else { continue };
        let name = events.name[row];
        let (key, dur_ns) = match events.kind[row] {
            Kind::UserAnnotation if data.names[name as usize].starts_with(STEP_RANGE) => continue,
            Kind::UserAnnotation => ((Group::Range, name, None, NONE), events.dur_ns[row]),
            Kind::CpuOp => ((Group::Operator, name, details.shape(row).map(|s| &**s), NONE), events.dur_ns[row]),
            kind if kind.is_device_work() => {
                let blocks = blocks.get(&events.id[row]).copied().unwrap_or(NONE);
                ((Group::Kernel, name, None, blocks), events.dur_ns[row])
            }
            _ => continue,
        };
        let sum = &mut sums.entry(key).or_insert_with(|| vec![(0, 0); profile.steps.len()])[at];
        sum.0 = sum.0.saturating_add(dur_ns);
        sum.1 = sum.1.saturating_add((dur_ns - inside_ns).max(0));
    }
    let sums: Vec<_> = sums.into_iter().collect();
    for ((group, name, shape, blocks), values) in sums {
        let shape = match (shape, blocks) {
            (Some(shape), _) => Some(shape.into()),
            (None, NONE) => None,
            (None, blocks) => Some(format!("{blocks} blocks").into()),
        };
        let name = data.names[name as usize].clone();
        let mut put = |measure, values: Vec<f64>| {
            profile.series.insert(Key { group, name: name.clone(), shape: shape.clone(), measure }, values);
        };
        let (total, own) = values.iter().map(|(total, own)| (*total as f64, *own as f64)).unzip();
        if group != Group::Operator {
            put(Measure::Total, total);
        }
        // Nothing runs inside a kernel.
        if group != Group::Kernel {
            put(Measure::SelfTime, own);
        }
    }
    profile
}

const STEP_RANGE: &str = "ProfilerStep#";

/// The five parts of every step; of several devices of a rank, their sums, and the longest step.
fn breakdowns(profiles: &mut [RankProfile], analysis: &Analysis) {
    for row in &analysis.tables.step_breakdown {
        let Some(step) = row.step.filter(|step| *step >= 0) else { continue };
        let Some(profile) = profiles.iter_mut().find(|p| p.rank == row.rank) else { continue };
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
        let none = vec![0.0; profile.steps.len()];
        let wall = profile.series.entry(Key::new(Group::Step, "wall", Measure::Total)).or_insert(none);
        wall[at] = wall[at].max(row.wall_ns as f64);
    }
}

/// Time in collectives by operation and size, each on its own rank's clock.
fn collectives(profiles: &mut [RankProfile], parts: &[RankPart]) {
    for (profile, part) in profiles.iter_mut().zip(parts) {
        for row in &part.collectives {
            let (Some(step), Some(start_ns), Some(end_ns)) = (row.step, row.start_ns, row.end_ns) else { continue };
            let key = collective(&row.op, row.bytes, Measure::Total);
            profile.add(key, step, Some(end_ns.saturating_sub(start_ns)));
        }
    }
}

fn collective(op: &Text, bytes: Option<i64>, measure: Measure) -> Key {
    Key { group: Group::Collective, name: op.clone(), shape: bytes.map(|b| text::bytes(b).into()), measure }
}

/// What only all ranks together tell: it is the same on each rank, so that the job's value is any rank's.
fn instances(profiles: &mut [RankProfile], analysis: &Analysis) {
    let at: FxHashMap<i32, usize> = profiles.iter().enumerate().map(|(at, p)| (p.rank, at)).collect();
    for row in analysis.tables.collective_instances.iter().filter(|row| row.complete && row.ranks_seen > 1) {
        let Some(step) = row.step else { continue };
        for (measure, value) in [(Measure::Skew, Some(row.skew_ns)), (Measure::Transfer, row.transfer_ns)] {
            for profile in profiles.iter_mut() {
                profile.add(collective(&row.op, row.bytes, measure), step, value);
            }
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
