//! Own excess by rank and step.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::MaybeNs;

use crate::arrivals::{Arrival, Joined};
use crate::join::Join;
use crate::per_step::PerStep;
use crate::same_work::Baseline;
use model::stats::lower_median;

/// E(rank, step): a rank's own time before each collective of the step, minus the lower median of the ranks, summed
/// over these collectives.
///
/// Ranks are compared only at collectives in which all ranks have the same role, because before these they do the same
/// work. The peer of a send or a receive is another stage of a pipeline, so own time before it is added to the next
/// collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Steps in which at least two ranks can be compared, ascending.
    pub steps: Vec<i32>,
    /// The excess of each rank in each of `steps`, per step of the job; `None` if the rank did not take part, or its own
    /// stretches are unknown.
    pub ns: Vec<Vec<Option<i64>>>,
    /// The number of collectives in active steps that were not compared, because a rank that took part in the step is
    /// missing there or at another collective of the step.
    pub skipped: i64,
}

impl Excess {
    /// Computes the excess of `ranks` ranks.
    pub fn of(join: &Join, ranks: usize, per_step: PerStep) -> Self {
        let mut sums: BTreeMap<i32, Vec<Option<i64>>> = BTreeMap::new();
        let skipped = for_each_compared(join, &mut |step, instance, median_ns| {
            let row = sums.entry(step).or_insert_with(|| vec![None; ranks]);
            for (rank, own_ns) in instance.iter().filter_map(|a| Some((a.rank, a.rolled_ns()?))) {
                *row[rank].get_or_insert(0) += own_ns - median_ns;
            }
        });
        let steps: Vec<i32> = sums.keys().copied().collect();
        let of_rank = |rank: usize| sums.values().map(|row| row[rank].map(|ns| per_step.ns(ns))).collect();
        let ns = (0..ranks).map(of_rank).collect();
        Self { steps, ns, skipped }
    }

    /// The same above the baseline, which is chosen: where most ranks of a stage are slow, its faster ranks.
    pub fn above_baseline(join: &mut Join, ranks: usize, per_step: PerStep, step_ns: i64) -> Self {
        let excess = Self::of(join, ranks, per_step);
        let same_work = &mut join.same_work;
        same_work.baseline = Baseline::choose(&|rank| excess.of_rank(rank), &same_work.stages, step_ns);
        let excess =
            if same_work.baseline.is_member.contains(&false) { Self::of(join, ranks, per_step) } else { excess };
        fill_above_typical(join);
        excess
    }

    /// The same excess in some of the steps, by their positions, ascending.
    pub fn only(&self, at: &[usize]) -> Self {
        let ns = self.ns.iter().map(|of_rank| at.iter().map(|&at| of_rank[at]).collect()).collect();
        Self { steps: at.iter().map(|&at| self.steps[at]).collect(), ns, skipped: 0 }
    }

    /// The steps in which one rank was compared, ascending.
    pub fn steps_of(&self, rank: usize) -> impl Iterator<Item = i32> {
        self.steps.iter().zip(&self.ns[rank]).filter(|(_, ns)| ns.is_some()).map(|(step, _)| *step)
    }

    /// The known excesses of one rank, in the order of steps.
    pub fn of_rank(&self, rank: usize) -> Vec<i64> {
        self.ns[rank].iter().flatten().copied().collect()
    }
}

/// The collectives of a communicator in a step.
struct Group<'a> {
    /// With their positions.
    instances: Vec<(usize, &'a Joined)>,
    participants: Vec<usize>,
}

impl Group<'_> {
    fn is_compared(&self, instance: &Joined) -> bool {
        let is_timed = |rank: &usize| instance.arrival_of(*rank).is_some_and(|a| a.rolled_ns().is_some());
        self.participants.iter().all(is_timed)
    }

    fn is_whole(&self) -> bool {
        self.instances.iter().all(|(_, instance)| self.is_compared(instance))
    }
}

/// Calls `each` with the step, the ranks of one stage and the lower median of their own times, for every collective in which all
/// ranks can be compared that took part in the communicator's step, together with its [replicas](crate::same_work::Replicas).
/// Returns the number of collectives in active steps that are not compared.
///
/// The ranks that wait for a late rank do work for several collectives ahead, so the excess of a part of a step is no excess
/// of the step. If at least four in five of a communicator's steps are whole, the others are not compared at all. Where more
/// steps have gaps, they are too many to do without.
fn for_each_compared(join: &Join, each: &mut dyn FnMut(i32, &[&Arrival], i64)) -> i64 {
    for_each_group(join, &mut |instances, arrivals| {
        let Some(step) = instances.first().and_then(|at| join.instances[*at].step) else { return };
        if let Some(median_ns) = typical(join, arrivals, Arrival::rolled_ns) {
            each(step, arrivals, median_ns);
        }
    })
}

/// Calls `each` with the positions of compared instances that are replicas of each other, and their ranks of one stage. Returns the number
/// of collectives in active steps that are not compared.
fn for_each_group(join: &Join, each: &mut dyn FnMut(&[usize], &[&Arrival])) -> i64 {
    let (is_compared, skipped) = compared(join);
    for together in &join.same_work.replicas.together {
        let instances: Vec<usize> = together.iter().map(|at| *at as usize).filter(|at| is_compared[*at]).collect();
        // The ranks of other stages do other work. One rank alone has no other to be compared with.
        let stages = join.same_work.by_stage(instances.iter().flat_map(|at| &join.instances[*at].arrivals));
        stages.iter().filter(|arrivals| arrivals.len() > 1).for_each(|arrivals| each(&instances, arrivals));
    }
    skipped
}

/// The lower median of a known value of the ranks that show what is usual.
fn typical(join: &Join, arrivals: &[&Arrival], value: impl Fn(&Arrival) -> Option<i64>) -> Option<i64> {
    lower_median(join.same_work.baseline.of(arrivals.iter().filter_map(|a| Some((a.rank, value(a)?)))))
}

/// Fills [`Arrival::above_typical`].
fn fill_above_typical(join: &mut Join) {
    let mut found: Vec<(usize, usize, [i64; 2])> = Vec::new();
    for_each_group(join, &mut |instances, arrivals| {
        let own_ns = typical(join, arrivals, Arrival::rolled_ns);
        let Some((own_ns, arrival_ns)) = own_ns.zip(typical(join, arrivals, |a| Some(a.arrival_ns))) else { return };
        let of_instance = |at: &usize| join.instances[*at].arrivals.iter().map(|a| (a.rank, *at)).collect::<Vec<_>>();
        let place: FxHashMap<usize, usize> = instances.iter().flat_map(of_instance).collect();
        for a in arrivals {
            if let Some((at, rolled_ns)) = place.get(&a.rank).zip(a.rolled_ns()) {
                found.push((*at, a.rank, [rolled_ns - own_ns, a.arrival_ns - arrival_ns]));
            }
        }
    });
    for (at, rank, [above_ns, later_ns]) in found {
        let arrivals = &mut join.instances[at].arrivals;
        if let Ok(place) = arrivals.binary_search_by_key(&rank, |a| a.rank) {
            (arrivals[place].above_ns, arrivals[place].later_ns) =
                (MaybeNs::of(Some(above_ns)), MaybeNs::of(Some(later_ns)));
        }
    }
}

/// Whether each instance is compared, and the number of collectives in active steps that are not.
fn compared(join: &Join) -> (Vec<bool>, i64) {
    let mut groups: BTreeMap<(i64, i32), Vec<(usize, &Joined)>> = BTreeMap::new();
    for (at, instance) in join.instances.iter().enumerate().filter(|(_, i)| i.symmetric) {
        if let Some(step) = instance.step {
            groups.entry((instance.comm_id, step)).or_default().push((at, instance));
        }
    }
    let of_comms: Vec<_> = groups.into_iter().collect();
    let (mut is_compared, mut skipped) = (vec![false; join.instances.len()], 0);
    for of_comm in of_comms.chunk_by(|a, b| a.0.0 == b.0.0) {
        let groups: Vec<Group<'_>> = of_comm
            .iter()
            .map(|(_, instances)| Group { instances: instances.clone(), participants: participants(instances) })
            .filter(|group| group.participants.len() > 1)
            .collect();
        let whole = groups.iter().filter(|group| group.is_whole()).count();
        let only_whole = 5 * whole >= 4 * groups.len();
        for group in &groups {
            let is_left_out = only_whole && !group.is_whole();
            for (at, instance) in &group.instances {
                is_compared[*at] = !is_left_out && group.is_compared(instance);
                skipped += i64::from(!is_compared[*at]);
            }
        }
    }
    (is_compared, skipped)
}

/// The ranks that took part in a communicator's step: those with at least half of its instances. This rule ignores an
/// instance that only some ranks recorded, and a rank that recorded only the beginning of the step.
fn participants(instances: &[(usize, &Joined)]) -> Vec<usize> {
    let mut ranks: Vec<usize> = instances.iter().flat_map(|(_, i)| &i.arrivals).map(|a| a.rank).collect();
    ranks.sort_unstable();
    let often = ranks.chunk_by(|a, b| a == b).filter(|same| 2 * same.len() >= instances.len());
    often.map(|same| same[0]).collect()
}

/// The excess of each rank in some places, without those in which it is unknown. If only two ranks can be compared, it is the
/// signed difference to the other rank, because the excess above the lower median is never negative for two ranks.
pub fn series_of(excess_ns: &[Vec<Option<i64>>]) -> Vec<Vec<f64>> {
    let ranks: Vec<usize> = (0..excess_ns.len()).filter(|&rank| excess_ns[rank].iter().any(Option::is_some)).collect();
    let mut series: Vec<Vec<f64>> = excess_ns.iter().map(|v| v.iter().flatten().map(|&e| e as f64).collect()).collect();
    if let [a, b] = ranks[..] {
        let difference = |(x, y): (&Option<i64>, &Option<i64>)| Some(((*x)? - (*y)?) as f64);
        series[a] = excess_ns[a].iter().zip(&excess_ns[b]).filter_map(difference).collect();
        series[b] = series[a].iter().map(|d| -d).collect();
    }
    series
}
