//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use std::collections::BTreeSet;

use trace::JobPathRow;

use crate::charge::Charges;
use crate::classify::{bases, judge};
use crate::evidence::Ranges;
use crate::job_path::job_path;
use crate::last::Last;
use crate::measured::{Measured, Shown, step_ns};
use crate::replay::Replay;
use crate::replayed::Replayed;
use crate::rows::{JudgedRanks, LeftOut, omissions, step_rows, wait_rows};
use crate::scaled::Scaled;
use crate::stragglers::Stragglers;
use crate::transfers;
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
    let Followed { join, per_step, excess, counted, replay, clock_error_ns, job_path, scaled } = followed;
    forget_stretches(&mut own_time);
    let parts = by_rank(&own_time);
    let charges = Charges::of(&join, parts.len());
    let ranges = Ranges::of((&parts, &join.same_work.baseline), &excess.steps, per_step, thresholds);
    let replayed = Replayed::of((replay, scaled), &parts, &join.same_work.stages, per_step);
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
    let mut cases = measured.cases(&suffered_ns, thresholds);
    let mut bases = bases(&cases, thresholds);
    let moving = measured.judge_occasional((&mut cases, &mut bases), &suffered_ns, thresholds);
    let (hidden_ns, not_beside) = measured.hidden_ns(replay, &bases);
    let transfers = measured.judge_transfers(&clock_error_ns, replay, (&mut cases, &mut bases), thresholds);
    let (works, alone_ns) = measured.without_faults(replay, (&mut cases, &bases));
    let measured = Measured { alone_ns: &alone_ns, ..measured };
    let verdicts = judge(&cases, &bases, &hidden_ns, thresholds);
    let shown = Shown::of(&cases, &verdicts, &ranges);
    let judged = JudgedRanks {
        measured: &measured,
        cases: &cases,
        verdicts: &verdicts,
        shown: &shown,
        charges: &charges,
        last: &Last::of(&join),
        errors_ns: measured.errors_ns(&cases, &verdicts, thresholds),
        has_sends: replay.has_sends,
        length_ns: replay.length_ns(),
    };
    let left_out = left_out((&measured, &charges), &transfers, not_beside, replay);
    let mut stragglers = Stragglers {
        stragglers: (0..parts.len()).map(|rank| judged.row(rank, thresholds)).collect(),
        steps: step_rows(&parts, &excess, &shown),
        job_path,
        pipeline: replayed.pipeline(),
        waited_ns: charges.suffered_ns.iter().sum(),
        charged_ns: charges.caused_ns.clone(),
        before_recording_ns: charges.before_recording_ns,
        together: measured.together_ns(replay, &verdicts, (&works, &transfers.slow)).map(|ns| judged.together(ns)),
        moving,
        usual: join.same_work.faster_group().map(|rank| parts[rank].rank).collect(),
        omissions: omissions(&join, &excess, &parts, &left_out),
        ..Stragglers::default()
    };
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
    scaled: Option<Scaled>,
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
        let scaled = Scaled::of(&parts, &join, to_global);
        if on_paths.is_some() {
            forget_stretches(own_time);
        }
        let parts = by_rank(own_time);
        let excess = Excess::above_baseline(&mut join, parts.len(), per_step, step_ns(&parts));
        let counted = CountedSteps::of(&join, &excess, thresholds.min_steps);
        let replay = Replay::of(&join, &counted.steps, thresholds.max_queue_gap_ns);
        let clock_error_ns: Vec<Option<i64>> = parts.iter().map(|p| clock_error_ns(p.rank, p.has_device)).collect();
        let job_path = job_path(&parts, &join, &replay, (to_global, &clock_error_ns), on_paths);
        Self { join, per_step, excess, counted, replay, clock_error_ns, job_path, scaled }
    }
}

fn left_out(
    (measured, charges): (&Measured<'_>, &Charges),
    transfers: &transfers::Found,
    not_beside: usize,
    replay: &Replay,
) -> LeftOut {
    LeftOut {
        ranges: measured.ranges.left_out as i64,
        not_replayed: measured.alone_ns.iter().filter(|ns| ns.is_none()).count() as i64,
        not_beside: not_beside as i64,
        groups: transfers.left_out as i64,
        without_clock: transfers.without_clock as i64,
        unpaired: charges.unpaired,
        discrepancy_ns: replay.discrepancy_ns(),
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
