//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trace::JobPathRow;

use crate::charge::Charges;
use crate::classify::{Case, have_distinct_ranges};
use crate::evidence::Ranges;
use crate::job_path::job_path;
use crate::last::Last;
use crate::lost_time::{Accounted, LostTime};
use crate::measured::{Measured, Shown, step_ns};
use crate::replay::Replay;
use crate::replayed::Replayed;
use crate::rows::{JudgedRanks, LeftOut, lost_time_rows, omissions, step_rows, wait_rows};
use crate::scaled::Unaccounted;
use crate::stragglers::Stragglers;
use measure::graph::Condensed;
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
    let Followed { join, per_step, excess, waited_steps, mut cases, is_shown, replay, job_path, accounted } =
        Followed::of(&mut own_time, instances, clocks, on_paths, thresholds);
    forget_stretches(&mut own_time);
    let parts = by_rank(&own_time);
    let charges = Charges::of(&join, parts.len());
    let ranges = Ranges::of((&parts, &join.same_work.baseline), &excess.steps, per_step, thresholds);
    let measured = Measured { parts: &parts, join: &join, excess: &excess, ranges: &ranges, per_step, waited_steps };
    for (case, ns) in cases.iter_mut().zip(&charges.suffered_ns) {
        case.suffered_ns = measured.per_waited_step_ns(*ns) as f64;
    }
    let lost_time = accounted.as_ref().map(|accounted| accounted.lost_time.clone()).map_err(|why| *why);
    let judgement = measured.judged(cases, lost_time.as_ref().map_err(|why| *why), &is_shown, thresholds);
    let shown = Shown::of(&judgement.cases, &judgement.verdicts, &ranges);
    let judged = JudgedRanks {
        measured: &measured,
        judgement: &judgement,
        shown: &shown,
        charges: &charges,
        last: &Last::of(&join),
        lost_time: lost_time.as_ref().ok(),
    };
    let left_out = left_out((&measured, &charges), lost_time.as_ref().map_err(|why| *why), &replay);
    let replayed = Replayed::of((replay, accounted.ok()), &parts, &join.same_work.stages, per_step);
    let mut stragglers = Stragglers {
        stragglers: (0..parts.len()).map(|rank| judged.row(rank)).collect(),
        steps: step_rows(&parts, &excess, &shown),
        job_path,
        pipeline: replayed.pipeline(),
        waited_ns: charges.suffered_ns.iter().sum(),
        charged_ns: charges.caused_ns.clone(),
        before_recording_ns: charges.before_recording_ns,
        together: judgement.together,
        usual: join.same_work.faster_group().map(|rank| parts[rank].rank).collect(),
        omissions: omissions(&join, &excess, &parts, &left_out),
        ..Stragglers::default()
    };
    if let Ok(lost_time) = &lost_time {
        (stragglers.lost_time, stragglers.lost_time_lines) = lost_time_rows(lost_time, &parts);
        stragglers.early_gathers_ns = lost_time.early_gathers.map(|cost| cost.ns);
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

/// Makes graphs of the collectives of ranks that have no graph of their rows.
fn follow_collectives(own_time: &mut [OwnTime], max_queue_gap_ns: i64) {
    let alone = own_time.len() == 1;
    for own_time in own_time.iter_mut().filter(|own_time| !alone && own_time.graph.is_none()) {
        own_time.graph = Some(Arc::new(Condensed::of_collectives(own_time, max_queue_gap_ns)));
    }
}

/// All that is made of the ranks' stretches and graphs.
struct Followed {
    join: Join,
    per_step: PerStep,
    excess: Excess,
    /// The number of active steps with a collective.
    waited_steps: usize,
    cases: Vec<Case>,
    /// Whether one range of each rank's host shows in every step that it is late.
    is_shown: Vec<bool>,
    replay: Replay,
    job_path: Vec<JobPathRow>,
    accounted: Result<Accounted, Unaccounted>,
}

impl Followed {
    fn of(
        own_time: &mut [OwnTime],
        instances: Vec<Instance>,
        (to_global, clock_error_ns): (ToGlobal<'_>, ClockError<'_>),
        on_paths: Option<&dyn OnPaths>,
        thresholds: &Thresholds,
    ) -> Self {
        follow_collectives(own_time, thresholds.max_queue_gap_ns);
        let parts = by_rank(own_time);
        let mut join = Join::of(&parts, instances, to_global);
        let per_step = PerStep::of(&parts);
        let excess = Excess::above_baseline(&mut join, parts.len(), per_step, step_ns(&parts));
        let counted = CountedSteps::of(&join, thresholds.min_steps);
        let cases = {
            let ranges = Ranges::of((&parts, &join.same_work.baseline), &excess.steps, per_step, thresholds);
            let (join, excess, waited_steps) = (&join, &excess, counted.waited);
            Measured { parts: &parts, join, excess, ranges: &ranges, per_step, waited_steps }.cases(thresholds)
        };
        let is_shown = have_distinct_ranges(&cases, thresholds);
        let account = |own_time: &mut [OwnTime]| {
            let graphs: BTreeMap<i32, Option<Arc<Condensed>>> =
                own_time.iter_mut().map(|own_time| (own_time.rank, own_time.graph.take())).collect();
            let (parts, clocks) = (by_rank(own_time), (to_global, clock_error_ns));
            Accounted::of(graphs.into_values().collect(), &parts, &join, clocks, (&is_shown, thresholds.min_steps))
        };
        let mut accounted = account(own_time);
        if accounted.as_ref().is_ok_and(Accounted::may_miss_a_rank) {
            follow_collectives(own_time, thresholds.max_queue_gap_ns);
            let stands_out = |rank: usize| cases[rank].stands_out(thresholds) || is_shown[rank];
            let of_collectives = account(own_time).ok().filter(|account| account.names_only(stands_out));
            accounted = of_collectives.map_or(accounted, Ok);
        }
        if on_paths.is_some() {
            forget_stretches(own_time);
        }
        let parts = by_rank(own_time);
        let replay = Replay::of(&join, &counted.steps, thresholds.max_queue_gap_ns);
        let clock_error_ns: Vec<Option<i64>> = parts.iter().map(|p| clock_error_ns(p.rank, p.has_device)).collect();
        let job_path = job_path(&parts, &join, &replay, (to_global, &clock_error_ns), on_paths);
        Self { join, per_step, excess, waited_steps: counted.waited, cases, is_shown, replay, job_path, accounted }
    }
}

/// If this share of a step, in percent, begins late for no known reason, a note says so.
const UNEXPLAINED_PCT: f64 = 5.0;

fn left_out(
    (measured, charges): (&Measured<'_>, &Charges),
    lost_time: Result<&LostTime, Unaccounted>,
    replay: &Replay,
) -> LeftOut {
    LeftOut {
        ranges: measured.ranges.left_out as i64,
        unpaired: charges.unpaired,
        // The account does not replay arrivals.
        discrepancy_ns: if lost_time.is_ok() { 0 } else { replay.discrepancy_ns() },
        unaccounted: lost_time.err().filter(|why| *why != Unaccounted::NotJoined),
        unforeseen: lost_time.ok().and_then(|lost_time| lost_time.foreseen).filter(|foreseen| !foreseen.is_right()),
        unexplained_ns: lost_time.ok().and_then(|lost_time| {
            let (late_ns, step_ns) = (lost_time.unexplained_ns, lost_time.step_ns());
            (UNEXPLAINED_PCT * step_ns as f64 <= 100.0 * late_ns as f64).then_some((late_ns, step_ns))
        }),
    }
}

/// The active steps in which other work is replayed by the collectives: those with collectives. If a rank is missing in some of these, as
/// where recordings begin at different steps, the others count alone, because the wait for a missing rank is unknown.
struct CountedSteps {
    steps: BTreeSet<i32>,
    /// The number of active steps with a collective.
    waited: usize,
}

impl CountedSteps {
    fn of(join: &Join, min_steps: usize) -> Self {
        let steps = |is_wanted: fn(&Joined) -> bool| -> BTreeSet<i32> {
            join.instances.iter().filter(|instance| is_wanted(instance)).filter_map(|instance| instance.step).collect()
        };
        let all = steps(|_| true);
        let waited = all.len();
        let whole: BTreeSet<i32> = all.difference(&steps(|instance| !instance.whole)).copied().collect();
        let steps = if whole.len() >= min_steps && 2 * whole.len() >= waited { whole } else { all };
        Self { steps, waited }
    }
}
