//! The slowdowns that operations cause: how much longer a step is than one in which all operations of a type take as long as
//! usual.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use rayon::prelude::*;
use serde::{Serialize, Serializer};

use crate::wia::dependencies::Dependencies;
use crate::wia::operations::{JobMeta, OpType, Operations};
use crate::wia::replay::{Ends, Replay, Times};

/// Slowdowns below this are not divided by cause.
const LEAST_RATIO: f64 = 1.03;
/// The share of ranks, in percent, that [`Share`] looks at as the slowest ones.
const SLOWEST_PCT: usize = 3;

/// Names with numbers, in the order in which they are printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ordered<T>(pub Vec<(String, T)>);

impl<T: Serialize> Serialize for Ordered<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Ordered<f64> {
    fn largest_first(values: impl Iterator<Item = (String, f64)>) -> Self {
        let mut values: Vec<(String, f64)> = values.collect();
        values.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Self(values)
    }
}

/// The part of a slowdown that goes away without some operations, and that they alone make. Times are seconds a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// With all durations as measured but those of these operations, which are ideal.
    pub(crate) trem: f64,
    /// With all durations ideal but those of these operations.
    pub(crate) tadd: f64,
    /// With all durations as measured.
    pub tori: f64,
    /// With all durations ideal.
    pub tideal: f64,
    /// (tori − trem) / (tori − tideal); may be outside of 0 to 1.
    pub rem: f64,
    /// (tadd − tideal) / (tori − tideal).
    pub(crate) add: f64,
}

/// One division of a slowdown, over all steps and for each step.
type Parts = (Option<Ordered<f64>>, Option<Ordered<Ordered<f64>>>);

/// The results, by the names of the authors' program. Ratios are of mean step times.
#[derive(Clone, Debug, Serialize)]
pub struct Slowdown {
    pub job_meta: JobMeta,
    /// Seconds, measured.
    pub step_t_base: Ordered<f64>,
    /// Seconds, replayed without the delays before operations.
    pub(crate) step_t_nodelay: Ordered<f64>,
    /// Seconds, replayed with ideal durations.
    pub(crate) step_t_noblk: Ordered<f64>,
    /// Measured over replayed without delays: what the replay does not explain.
    pub launch_slowdown: f64,
    /// S: replayed with measured over ideal durations.
    pub blocking_slowdown: f64,
    pub(crate) blocking_step_slowdown: Ordered<f64>,
    pub(crate) launch_step_slowdown: Ordered<f64>,
    /// S_dp: only these operations have their measured durations.
    pub blocking_decompose_by_dp_rank: Option<Ordered<f64>>,
    pub(crate) launch_decompose_by_dp_rank: Option<Ordered<f64>>,
    /// S_stage.
    pub blocking_decompose_by_stage: Option<Ordered<f64>>,
    pub(crate) launch_decompose_by_stage: Option<Ordered<f64>>,
    /// S_t.
    pub blocking_decompose_by_optype: Option<Ordered<f64>>,
    pub(crate) launch_decompose_by_optype: Option<Ordered<f64>>,
    pub(crate) blocking_decompose_by_dp_rank_per_step: Option<Ordered<Ordered<f64>>>,
    pub(crate) launch_decompose_by_dp_rank_per_step: Option<Ordered<Ordered<f64>>>,
    pub(crate) blocking_decompose_by_stage_per_step: Option<Ordered<Ordered<f64>>>,
    pub(crate) launch_decompose_by_stage_per_step: Option<Ordered<Ordered<f64>>>,
    pub(crate) blocking_decompose_by_optype_per_step: Option<Ordered<Ordered<f64>>>,
    pub(crate) launch_decompose_by_optype_per_step: Option<Ordered<Ordered<f64>>>,
    /// S_w: the smaller one of the slowdowns by the rank's data-parallel rank and by its stage.
    pub blocking_decompose_by_rank: Option<Ordered<f64>>,
    /// M_W: the share of the slowest 3 % of the ranks.
    pub mw: Option<Share>,
    /// M_S: the share of the last stage.
    pub ms: Share,
    /// Replayed with all times as measured over measured, less 1: the error of every number here.
    pub replay_error: f64,
}

/// Replays the job with and without each cause.
pub(super) fn measure(
    meta: JobMeta,
    operations: &Operations,
    dependencies: &Dependencies,
    replay: &Replay<'_>,
) -> Slowdown {
    let job = Job::of(operations, dependencies, replay);
    let base_s = job.measured_steps_s();
    let [without_delay, ideal, unchanged] = [&job.without_delay, &job.ideal, &replay.measured].map(|t| job.ends(t));
    let launch_slowdown = mean(&base_s) / mean(&without_delay.optimizer_s);
    let blocking_slowdown = mean(&without_delay.last_s) / mean(&ideal.optimizer_s);
    let launches = Decomposition { target: Target::Delay, times: &job.without_delay, to: &without_delay };
    let blocking = Decomposition { target: Target::Length, times: &job.ideal, to: &ideal };
    let [launch, blocked] = [(launches, launch_slowdown), (blocking, blocking_slowdown)].map(|(what, ratio)| {
        Division::ALL.map(|by| if ratio < LEAST_RATIO { (None, None) } else { job.divide(&what, by) })
    });
    let [by_optype, by_dp_rank, by_stage]: [Parts; 3] = blocked;
    let by_rank = by_dp_rank.0.as_ref().zip(by_stage.0.as_ref()).map(|(dp, stage)| job.by_rank(dp, stage));
    let [launch_by_optype, launch_by_dp_rank, launch_by_stage]: [Parts; 3] = launch;
    let last_stage = operations.pp_size - 1;
    let ms = job.share(&without_delay, &ideal, &|at, _| operations.keys[at].stage == last_stage);
    let mw = by_rank.as_ref().map(|by_rank| {
        let slowest = slowest(by_rank);
        let is_slow = |at: usize, dp: usize| {
            operations.ranks.get(&(operations.keys[at].stage, dp)).is_some_and(|rank| slowest.contains(rank))
        };
        job.share(&without_delay, &ideal, &is_slow)
    });
    let by_step = |values: &[f64]| job.by_step(values);
    let ratios = |above: &[f64], below: &[f64]| {
        Ordered::largest_first(by_step(&above.iter().zip(below).map(|(a, b)| a / b).collect::<Vec<_>>()).0.into_iter())
    };
    Slowdown {
        job_meta: meta,
        step_t_base: by_step(&base_s),
        step_t_nodelay: by_step(&without_delay.last_s),
        step_t_noblk: by_step(&ideal.last_s),
        launch_slowdown,
        blocking_slowdown,
        blocking_step_slowdown: ratios(&without_delay.last_s, &ideal.optimizer_s),
        launch_step_slowdown: ratios(&base_s, &without_delay.optimizer_s),
        blocking_decompose_by_dp_rank: by_dp_rank.0,
        launch_decompose_by_dp_rank: launch_by_dp_rank.0,
        blocking_decompose_by_stage: by_stage.0,
        launch_decompose_by_stage: launch_by_stage.0,
        blocking_decompose_by_optype: by_optype.0,
        launch_decompose_by_optype: launch_by_optype.0,
        blocking_decompose_by_dp_rank_per_step: by_dp_rank.1,
        launch_decompose_by_dp_rank_per_step: launch_by_dp_rank.1,
        blocking_decompose_by_stage_per_step: by_stage.1,
        launch_decompose_by_stage_per_step: launch_by_stage.1,
        blocking_decompose_by_optype_per_step: by_optype.1,
        launch_decompose_by_optype_per_step: launch_by_optype.1,
        blocking_decompose_by_rank: by_rank,
        mw,
        ms,
        replay_error: mean(&unchanged.last_s) / mean(&base_s) - 1.0,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The ranks with the largest slowdowns; of equal ones, the lower rank.
fn slowest(by_rank: &Ordered<f64>) -> BTreeSet<i64> {
    let mut ranks: Vec<(f64, i64)> =
        by_rank.0.iter().filter_map(|(rank, slowdown)| Some((*slowdown, rank.parse().ok()?))).collect();
    ranks.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.cmp(y)));
    ranks.into_iter().take((by_rank.0.len() * SLOWEST_PCT).div_ceil(100)).map(|(_, rank)| rank).collect()
}

/// What a slowdown is divided by.
#[derive(Clone, Copy, Debug)]
enum Division {
    OpType,
    DpRank,
    Stage,
}

impl Division {
    const ALL: [Self; 3] = [Self::OpType, Self::DpRank, Self::Stage];
}

/// The times that are set back to the measured ones.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Delay,
    Length,
}

/// A slowdown: `times` with some operations' target as measured, over `to`.
struct Decomposition<'a> {
    target: Target,
    times: &'a Times,
    to: &'a Ends,
}

struct Job<'a> {
    operations: &'a Operations,
    replay: &'a Replay<'a>,
    is_optimizer: Vec<bool>,
    /// Durations as measured.
    without_delay: Times,
    /// Durations as usual: the mean of computation, the median of communication, over all ranks and steps.
    ideal: Times,
}

impl<'a> Job<'a> {
    fn of(operations: &'a Operations, dependencies: &Dependencies, replay: &'a Replay<'a>) -> Self {
        let lanes = operations.lanes();
        let without_delay = Times { delay_s: Vec::new(), length_s: replay.measured.length_s.clone() };
        let mut of_type: BTreeMap<OpType, Vec<f64>> = BTreeMap::new();
        for (at, key) in operations.keys.iter().enumerate() {
            of_type.entry(key.optype).or_default().extend(&without_delay.length_s[at * lanes..(at + 1) * lanes]);
        }
        let usual = |(optype, lengths_s): (OpType, Vec<f64>)| match optype.communicates() {
            true => (optype, operations.round(median(lengths_s))),
            false => (optype, mean(&lengths_s)),
        };
        let usual_s: BTreeMap<OpType, f64> = of_type.into_iter().map(usual).collect();
        let length_s =
            operations.keys.iter().flat_map(|key| std::iter::repeat_n(usual_s[&key.optype], lanes)).collect();
        let ideal = Times { length_s, ..without_delay.clone() };
        let is_optimizer = operations.keys.iter().map(|key| key.optype == OpType::Optimizer).collect();
        debug_assert_eq!(dependencies.before.len(), operations.keys.len());
        Self { operations, replay, is_optimizer, without_delay, ideal }
    }

    fn ends(&self, times: &Times) -> Ends {
        self.replay.ends(times, &self.is_optimizer)
    }

    /// The measured length of each step.
    fn measured_steps_s(&self) -> Vec<f64> {
        let (lanes, dp_size) = (self.operations.lanes(), self.operations.dp_size);
        let mut spans = vec![(f64::INFINITY, f64::NEG_INFINITY); lanes / dp_size];
        for (slot, (start_s, end_s)) in self.operations.start_s.iter().zip(&self.operations.end_s).enumerate() {
            let span = &mut spans[slot % lanes / dp_size];
            *span = (span.0.min(*start_s), span.1.max(*end_s));
        }
        spans.into_iter().map(|(start_s, end_s)| self.operations.round(end_s - start_s)).collect()
    }

    fn by_step<T: Clone>(&self, values: &[T]) -> Ordered<T> {
        Ordered(self.operations.steps.iter().map(ToString::to_string).zip(values.iter().cloned()).collect())
    }

    /// `times` with those of some operations, by position and data-parallel rank, from `source`.
    fn replaced(&self, times: &Times, source: &Times, target: Target, is_one: &dyn Fn(usize, usize) -> bool) -> Times {
        let (lanes, dp_size) = (self.operations.lanes(), self.operations.dp_size);
        let mut times = times.clone();
        if target == Target::Delay {
            times.delay_s.resize(source.delay_s.len(), 0.0);
        }
        let (to, from) = match target {
            Target::Delay => (&mut times.delay_s, &source.delay_s),
            Target::Length => (&mut times.length_s, &source.length_s),
        };
        for (at, (to, from)) in to.chunks_mut(lanes).zip(from.chunks(lanes)).enumerate() {
            for dp in (0..dp_size).filter(|dp| is_one(at, *dp)) {
                (dp..lanes).step_by(dp_size).for_each(|lane| to[lane] = from[lane]);
            }
        }
        times
    }

    fn divide(&self, what: &Decomposition<'_>, by: Division) -> Parts {
        let (keys, dp_size) = (&self.operations.keys, self.operations.dp_size);
        let name = |at: usize, dp: usize| match by {
            Division::OpType => self.type_name(at, what.target).to_string(),
            Division::DpRank => dp.to_string(),
            Division::Stage => keys[at].stage.to_string(),
        };
        // The part of each operation on each data-parallel rank.
        let mut positions: BTreeMap<String, usize> = BTreeMap::new();
        let part = |(at, dp): (usize, usize)| {
            let next = positions.len();
            *positions.entry(name(at, dp)).or_insert(next)
        };
        let part_of: Vec<usize> =
            (0..keys.len()).flat_map(|at| (0..dp_size).map(move |dp| (at, dp))).map(part).collect();
        let replayed = |(name, part): (String, usize)| {
            let is_one = |at: usize, dp: usize| part_of[at * dp_size + dp] == part;
            let times = self.replaced(what.times, &self.replay.measured, what.target, &is_one);
            (name, self.ends(&times).optimizer_s)
        };
        let replayed: Vec<(String, Vec<f64>)> = positions.into_par_iter().map(replayed).collect();
        let ideal_s = &what.to.optimizer_s;
        let overall = replayed.iter().map(|(name, steps_s)| (name.clone(), mean(steps_s) / mean(ideal_s)));
        let of_step = |step: usize| {
            let ratio = |(name, steps_s): &(String, Vec<f64>)| (name.clone(), steps_s[step] / ideal_s[step]);
            Ordered::largest_first(replayed.iter().map(ratio))
        };
        let per_step: Vec<Ordered<f64>> = (0..ideal_s.len()).map(of_step).collect();
        (Some(Ordered::largest_first(overall)), Some(self.by_step(&per_step)))
    }

    /// The name of a type: both sides of a transfer have one, and the first operation of a stage another if delays are divided.
    fn type_name(&self, at: usize, target: Target) -> impl Display {
        let key = self.operations.keys[at];
        let begins = match key.stage {
            0 => key.optype == OpType::ForwardCompute,
            _ => key.optype == OpType::ForwardRecv,
        };
        match key.optype {
            _ if target == Target::Delay && begins && key.seq == 0 => "first-op",
            OpType::ForwardSend | OpType::ForwardRecv => "forward-pp-comm",
            OpType::BackwardSend | OpType::BackwardRecv => "backward-pp-comm",
            optype => optype.name(),
        }
    }

    fn by_rank(&self, by_dp_rank: &Ordered<f64>, by_stage: &Ordered<f64>) -> Ordered<f64> {
        let find = |values: &Ordered<f64>, name: String| {
            values.0.iter().find(|(known, _)| *known == name).map_or(f64::INFINITY, |(_, ratio)| *ratio)
        };
        let bound = |((stage, dp), rank): (&(i64, usize), &i64)| {
            (rank.to_string(), find(by_dp_rank, dp.to_string()).min(find(by_stage, stage.to_string())))
        };
        Ordered::largest_first(self.operations.ranks.iter().map(bound))
    }

    /// The share of some operations, by position and data-parallel rank, in the slowdown.
    fn share(&self, without_delay: &Ends, ideal: &Ends, is_one: &dyn Fn(usize, usize) -> bool) -> Share {
        let removed = self.replaced(&self.without_delay, &self.ideal, Target::Length, is_one);
        let added = self.replaced(&self.ideal, &self.without_delay, Target::Length, is_one);
        let [trem, tadd] = [removed, added].map(|times| mean(&self.ends(&times).last_s));
        let [tori, tideal] = [without_delay, ideal].map(|ends| mean(&ends.last_s));
        let slowdown_s = tori - tideal;
        Share { trem, tadd, tori, tideal, rem: (tori - trem) / slowdown_s, add: (tadd - tideal) / slowdown_s }
    }
}

/// The median; of an even number of values, the mean of the middle two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}
