//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trace::JobPathRow;

use crate::bubbles::bubbles;
use crate::charge::Charges;
use crate::classify::{Case, have_distinct_ranges};
use crate::evidence::Ranges;
use crate::job_path::job_path;
use crate::last::Last;
use crate::lost_time::{Accounted, LostTime};
use crate::measured::{Measured, Shown, step_ns};
use crate::replayed::Replayed;
use crate::rows::{JudgedRanks, LeftOut, lost_time_rows, omissions, step_rows, wait_rows};
use crate::scaled::Unaccounted;
use crate::stragglers::Stragglers;
use measure::graph::Condensed;
use measure::own_time::OwnTime;
use measure::part::OnPaths;
use model::Instance;
use model::thresholds::Thresholds;
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
    let Followed { join, per_step, excess, waited_steps, mut cases, is_shown, job_path, accounted } =
        Followed::of(&mut own_time, instances, clocks, on_paths, thresholds);
    // The stretches take as much memory as the rows of the waits.
    own_time.iter_mut().for_each(|own_time| own_time.stretches = Vec::new());
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
    let left_out = left_out((&measured, &charges), lost_time.as_ref().map_err(|why| *why));
    let pipeline = accounted.as_ref().map_or_else(|_| Vec::new(), |account| bubbles(account, &parts, &join));
    let replayed = Replayed::of(accounted, &parts, &join);
    let mut stragglers = Stragglers {
        stragglers: (0..parts.len()).map(|rank| judged.row(rank)).collect(),
        steps: step_rows(&parts, &excess, &shown),
        job_path,
        pipeline,
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
    // The rows of the waits take as much memory as the graph.
    let (ranks, kept) = (replayed.ranks().to_vec(), keep(replayed));
    (stragglers.waits, stragglers.waited) = wait_rows(&join, &ranks);
    (stragglers, kept)
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
        let waited_steps = waited_steps(&join);
        let cases = {
            let ranges = Ranges::of((&parts, &join.same_work.baseline), &excess.steps, per_step, thresholds);
            let (join, excess) = (&join, &excess);
            Measured { parts: &parts, join, excess, ranges: &ranges, per_step, waited_steps }.cases(thresholds)
        };
        let is_shown = have_distinct_ranges(&cases, thresholds);
        let clocks = (to_global, clock_error_ns);
        let account = |own_time: &mut [OwnTime]| {
            let graphs: BTreeMap<i32, Option<Arc<Condensed>>> =
                own_time.iter_mut().map(|own_time| (own_time.rank, own_time.graph.take())).collect();
            let (parts, is_shown) = (by_rank(own_time), (&is_shown[..], thresholds.min_steps));
            Accounted::of(graphs.into_values().collect(), &parts, &join, clocks, is_shown)
        };
        let mut accounted = account(own_time);
        let stands_out = |rank: usize| cases[rank].stands_out(thresholds) || is_shown[rank];
        // The account by collectives counts only if it names ranks that stand out: without such, it is not made.
        let one_stands_out = (0..cases.len()).any(stands_out);
        if accounted.as_ref().is_ok_and(|account| one_stands_out && account.may_miss_a_rank()) {
            follow_collectives(own_time, thresholds.max_queue_gap_ns);
            let of_collectives = account(own_time).ok().filter(|account| account.names_only(stands_out));
            accounted = of_collectives.map_or(accounted, Ok);
        }
        let path = |account: &Accounted| job_path(&account.run, &by_rank(own_time), &join, clocks, on_paths);
        let job_path = accounted.as_ref().map_or_else(|_| Vec::new(), path);
        Self { join, per_step, excess, waited_steps, cases, is_shown, job_path, accounted }
    }
}

/// The number of active steps with a collective.
fn waited_steps(join: &Join) -> usize {
    let steps: BTreeSet<i32> = join.instances.iter().filter_map(|instance| instance.step).collect();
    steps.len()
}

/// If this share of a step, in percent, begins late for no known reason, a note says so.
const UNEXPLAINED_PCT: f64 = 5.0;

fn left_out((measured, charges): (&Measured<'_>, &Charges), lost_time: Result<&LostTime, Unaccounted>) -> LeftOut {
    LeftOut {
        ranges: measured.ranges.left_out as i64,
        unpaired: charges.unpaired,
        unaccounted: lost_time.err().filter(|why| *why != Unaccounted::NotJoined),
        unforeseen: lost_time.ok().and_then(|lost_time| lost_time.foreseen).filter(|foreseen| !foreseen.is_right()),
        unexplained_ns: lost_time.ok().and_then(|lost_time| {
            let (late_ns, step_ns) = (lost_time.unexplained_ns, lost_time.step_ns());
            (UNEXPLAINED_PCT * step_ns as f64 <= 100.0 * late_ns as f64).then_some((late_ns, step_ns))
        }),
    }
}
