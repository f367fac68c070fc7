//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use std::collections::BTreeSet;

use trace::JobPathRow;

use crate::charge::Charges;
use crate::evidence::Ranges;
use crate::job_path::job_path;
use crate::judgement::Judgement;
use crate::last::Last;
use crate::lost_time::{Accounted, LostTime};
use crate::measured::{Measured, Shown, step_ns};
use crate::replay::Replay;
use crate::replayed::Replayed;
use crate::rows::{JudgedRanks, LeftOut, lost_time_rows, omissions, step_rows, wait_rows};
use crate::stragglers::Stragglers;
use measure::own_time::OwnTime;
use measure::part::OnPaths;
use model::Instance;
use model::thresholds::Thresholds;
use topology::arrivals::Joined;
use topology::excess::Excess;
use topology::join::{Join, by_rank};
use topology::per_step::PerStep;
use topology::{ClockError, ToGlobal};

/// Judges all ranks.
///
/// `parts` holds the own time of each rank, in any order. `instances` holds the matched collectives; their members are
/// positions in the ranks' collectives. `to_global` aligns the clocks, and `clock_error_ns` is the error of that.
pub fn reduce(
    parts: &[OwnTime],
    instances: &[Instance],
    clocks: (ToGlobal<'_>, ClockError<'_>),
    thresholds: &Thresholds,
) -> Stragglers {
    reduce_replayed(parts.to_vec(), instances.to_vec(), clocks, None, thresholds, drop).0
}

/// Judges all ranks like [`reduce`], and returns what `keep` made of the replay. Without `on_paths`, the own time of the ranks has
/// their work on critical paths.
pub fn reduce_replayed<K>(
    mut own_time: Vec<OwnTime>,
    instances: Vec<Instance>,
    clocks: (ToGlobal<'_>, ClockError<'_>),
    on_paths: Option<&dyn OnPaths>,
    thresholds: &Thresholds,
    keep: impl FnOnce(Replayed) -> K,
) -> (Stragglers, K) {
    let followed = Followed::of(&mut own_time, instances, clocks, on_paths, thresholds);
    let Followed { join, per_step, excess, counted, replay, clock_error_ns, job_path, accounted } = followed;
    forget_stretches(&mut own_time);
    let parts = by_rank(&own_time);
    let charges = Charges::of(&join, parts.len());
    let ranges = Ranges::of((&parts, &join.same_work.baseline), &excess.steps, per_step, thresholds);
    let mut lost_time = accounted.as_ref().map(|accounted| accounted.lost_time.clone());
    let mut replayed = Replayed::of((replay, accounted), &parts, &join.same_work.stages, per_step);
    let replay = &replayed.replay;
    let alone_ns = replay.alone_ns();
    let measured = Measured {
        parts: &parts,
        join: &join,
        excess: &excess,
        ranges: &ranges,
        per_step,
        steps: &counted.of_rank,
        waited_steps: counted.waited,
        counted_steps: counted.steps.len(),
        alone_ns: &alone_ns,
    };
    let suffered_ns = |rank: usize| measured.per_waited_step_ns(charges.suffered_ns[rank]);
    let judgement = measured.judged((replay, &clock_error_ns), &mut lost_time, &suffered_ns, thresholds);
    let measured = Measured { alone_ns: &judgement.alone_ns, ..measured };
    let shown = Shown::of(&judgement.cases, &judgement.verdicts, &ranges);
    let judged = JudgedRanks {
        measured: &measured,
        judgement: &judgement,
        shown: &shown,
        charges: &charges,
        last: &Last::of(&join),
        has_sends: replay.has_sends,
        length_ns: replay.length_ns(),
    };
    let left_out = left_out((&measured, &charges), (&judgement, lost_time.as_ref()), replay);
    let mut stragglers = Stragglers {
        stragglers: (0..parts.len()).map(|rank| judged.row(rank, thresholds)).collect(),
        steps: step_rows(&parts, &excess, &shown),
        job_path,
        pipeline: replayed.pipeline(),
        waited_ns: charges.suffered_ns.iter().sum(),
        charged_ns: charges.caused_ns.clone(),
        before_recording_ns: charges.before_recording_ns,
        together: judged.all_together(),
        usual: join.same_work.faster_group().map(|rank| parts[rank].rank).collect(),
        omissions: omissions(&join, &excess, &parts, &left_out),
        moving: judgement.moving,
        ..Stragglers::default()
    };
    match &lost_time {
        Some(lost_time) => {
            (stragglers.lost_time, stragglers.lost_time_lines) = lost_time_rows(lost_time, &parts);
        }
        None => replayed.forget_account(),
    }
    // The rows of the waits take as much memory as the replay.
    let (ranks, kept) = (replayed.ranks().to_vec(), keep(replayed));
    (stragglers.waits, stragglers.waited) = wait_rows(&join, &ranks);
    (stragglers, kept)
}

/// Drops the stretches, which take as much memory as the nodes of the replay.
fn forget_stretches(own_time: &mut [OwnTime]) {
    own_time.iter_mut().for_each(|own_time| own_time.stretches = Vec::new());
}

/// All that is made of the ranks' stretches.
struct Followed {
    join: Join,
    per_step: PerStep,
    excess: Excess,
    counted: CountedSteps,
    replay: Replay,
    clock_error_ns: Vec<Option<i64>>,
    job_path: Vec<JobPathRow>,
    accounted: Option<Accounted>,
}

impl Followed {
    fn of(
        own_time: &mut [OwnTime],
        instances: Vec<Instance>,
        (to_global, clock_error_ns): (ToGlobal<'_>, ClockError<'_>),
        on_paths: Option<&dyn OnPaths>,
        thresholds: &Thresholds,
    ) -> Self {
        let parts = by_rank(own_time);
        let mut join = Join::of(&parts, instances, to_global);
        let per_step = PerStep::of(&parts);
        if on_paths.is_some() {
            forget_stretches(own_time);
        }
        let parts = by_rank(own_time);
        let excess = Excess::above_baseline(&mut join, parts.len(), per_step, step_ns(&parts));
        let accounted = Accounted::of(&parts, &join, (to_global, clock_error_ns), thresholds.min_steps);
        own_time.iter_mut().for_each(|own_time| own_time.graph = None);
        let parts = by_rank(own_time);
        let counted = CountedSteps::of(&join, &excess, thresholds.min_steps);
        let replay = Replay::of(&join, &counted.steps, thresholds.max_queue_gap_ns);
        let clock_error_ns: Vec<Option<i64>> = parts.iter().map(|p| clock_error_ns(p.rank, p.has_device)).collect();
        let job_path = job_path(&parts, &join, &replay, (to_global, &clock_error_ns), on_paths);
        Self { join, per_step, excess, counted, replay, clock_error_ns, job_path, accounted }
    }
}

/// If this share of a step, in percent, begins late for no known reason, a note says so.
const UNEXPLAINED_PCT: f64 = 5.0;

fn left_out(
    (measured, charges): (&Measured<'_>, &Charges),
    (judgement, lost_time): (&Judgement, Option<&LostTime>),
    replay: &Replay,
) -> LeftOut {
    LeftOut {
        ranges: measured.ranges.left_out as i64,
        not_replayed: judgement.not_replayed as i64,
        not_beside: judgement.not_beside as i64,
        groups: judgement.groups_left_out as i64,
        without_clock: judgement.without_clock as i64,
        unpaired: charges.unpaired,
        // The account does not replay arrivals.
        discrepancy_ns: if lost_time.is_some() { 0 } else { replay.discrepancy_ns() },
        unexplained_ns: lost_time.and_then(|lost_time| {
            let (late_ns, step_ns) = (lost_time.unexplained_ns, lost_time.step_ns());
            (UNEXPLAINED_PCT * step_ns as f64 <= 100.0 * late_ns as f64).then_some((late_ns, step_ns))
        }),
    }
}

/// The active steps over which a delay is averaged: those with collectives. If a rank is missing in some of these, as where
/// recordings begin at different steps, the others count alone, because the wait for a missing rank is unknown.
struct CountedSteps {
    steps: BTreeSet<i32>,
    /// The number of them in which each rank was compared.
    of_rank: Vec<usize>,
    /// The number of active steps with a collective.
    waited: usize,
}

impl CountedSteps {
    fn of(join: &Join, excess: &Excess, min_steps: usize) -> Self {
        let steps = |is_wanted: fn(&Joined) -> bool| -> BTreeSet<i32> {
            join.instances.iter().filter(|instance| is_wanted(instance)).filter_map(|instance| instance.step).collect()
        };
        let all = steps(|_| true);
        let waited = all.len();
        let whole: BTreeSet<i32> = all.difference(&steps(|instance| !instance.whole)).copied().collect();
        let steps = if whole.len() >= min_steps && 2 * whole.len() >= waited { whole } else { all };
        let of_rank = |rank: usize| excess.steps_of(rank).filter(|step| steps.contains(step)).count();
        Self { of_rank: (0..excess.ns.len()).map(of_rank).collect(), steps, waited }
    }
}
