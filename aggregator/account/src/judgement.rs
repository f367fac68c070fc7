//! The verdicts on all ranks: by the account of lost time, or by rules where no rows say what the host waited for.

use std::collections::BTreeMap;

use trace::{StandsOn, Verdict};

use crate::classify::{Case, Judged, SlowPart, bases, judge};
use crate::lost_time::{Group, LostTime};
use crate::measured::Measured;
use crate::occasional::{Delayed, Moving};
use crate::prices::Cost;
use crate::replay::Replay;
use crate::stragglers::Together;
use crate::transfers;
use model::thresholds::Thresholds;
use model::units::{ns, plural};

/// The verdicts on all ranks, and what they were made of.
#[derive(Default)]
pub(super) struct Judgement {
    pub(super) cases: Vec<Case>,
    pub(super) verdicts: Vec<Judged>,
    /// By how much the delay of each rank that stands out may be off, at 95 %; `None` where its case has a cost.
    pub(super) errors_ns: Vec<Option<i64>>,
    /// A delay that moves from rank to rank.
    pub(super) moving: Option<Moving>,
    /// By how much a step would be shorter without all causes: by the account, or by rules without an interval.
    pub(super) together: Option<Together>,
    /// By how much the run would be shorter without the excess of each rank.
    pub(super) alone_ns: Vec<Option<i64>>,
    /// Ranks without a replay of their own.
    pub(super) not_replayed: usize,
    /// Slow ranks that were not replayed without the other slow ones.
    pub(super) not_beside: usize,
    /// Communicators and late leavers that were not compared, or not replayed.
    pub(super) groups_left_out: usize,
    /// Ranks that were not compared by the times at which they leave collectives.
    pub(super) without_clock: usize,
}

impl Judgement {
    fn has_cause(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.0 == Verdict::Cause)
    }

    fn suspects_a_rank(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.0 == Verdict::Undecided && verdict.1.is_some())
    }
}

impl Measured<'_> {
    /// Judges ranks by the account, if there is one, else by rules. An account that misses what rules see is dropped: its graph lacks
    /// what the hosts waited for, which makes them busy and hides who was late.
    pub(super) fn judged(
        &self,
        (replay, clock_error_ns): (&Replay, &[Option<i64>]),
        lost_time: &mut Option<LostTime>,
        suffered_ns: &dyn Fn(usize) -> i64,
        t: &Thresholds,
    ) -> Judgement {
        let by_rules = || self.judged_by_rules(replay, clock_error_ns, suffered_ns, t);
        let Some(account) = lost_time else { return by_rules() };
        let by_account = self.judged_by_account(account, (replay, clock_error_ns), suffered_ns, t);
        if by_account.has_cause() {
            return by_account;
        }
        let by_rules = by_rules();
        // Where ranks vary much, one that is late in most steps may still cost nothing, unless one range of the host shows it.
        let is_cause = |(verdict, basis): &Judged| {
            *verdict == Verdict::Cause && (*basis == Some(StandsOn::Range) || !account.varies())
        };
        let are_few = account.steps.len() < t.min_steps && !by_account.suspects_a_rank();
        if by_rules.verdicts.iter().any(is_cause) || are_few && by_rules.suspects_a_rank() {
            *lost_time = None;
            return by_rules;
        }
        by_account
    }

    /// Judges ranks by rules.
    fn judged_by_rules(
        &self,
        replay: &Replay,
        clock_error_ns: &[Option<i64>],
        suffered_ns: &dyn Fn(usize) -> i64,
        t: &Thresholds,
    ) -> Judgement {
        let mut cases = self.cases(suffered_ns, t);
        let mut bases = bases(&cases, t);
        let moving = self.judge_occasional((&mut cases, &mut bases), suffered_ns, t);
        let (hidden_ns, not_beside) = self.hidden_ns(replay, &bases);
        let transfers = self.judge_transfers(clock_error_ns, replay, (&mut cases, &mut bases), t);
        let (works, alone_ns) = self.without_faults(replay, (&mut cases, &bases));
        let measured = Measured { alone_ns: &alone_ns, ..*self };
        let verdicts = judge(&cases, &bases, &hidden_ns, t);
        let together_ns = measured.together_ns(replay, &verdicts, (&works, &transfers.slow));
        Judgement {
            errors_ns: measured.errors_ns(&cases, &verdicts, t),
            together: together_ns.map(|ns| Together { ns, interval_ns: None }),
            cases,
            verdicts,
            moving,
            not_replayed: alone_ns.iter().filter(|ns| ns.is_none()).count(),
            alone_ns,
            not_beside,
            groups_left_out: transfers.left_out,
            without_clock: transfers.without_clock,
        }
    }

    /// Judges ranks by the lines of the account.
    fn judged_by_account(
        &self,
        lost_time: &mut LostTime,
        (replay, clock_error_ns): (&Replay, &[Option<i64>]),
        suffered_ns: &dyn Fn(usize) -> i64,
        t: &Thresholds,
    ) -> Judgement {
        let mut cases = self.cases(suffered_ns, t);
        let own_bases = bases(&cases, t);
        let steps = lost_time.steps.len();
        // Where the steps are few, one range of the host that takes longer each time is evidence, and so are many collectives.
        let is_sure = |rank: &usize| match own_bases[*rank] {
            Some(StandsOn::Range) => true,
            basis => basis.is_some() && steps < t.min_steps,
        };
        for group in &mut lost_time.groups {
            group.is_certain |= group.lines.iter().all(|line| line.ranks.iter().all(is_sure));
        }
        let lost_time = &*lost_time;
        for (case, cost) in cases.iter_mut().zip(&lost_time.alone) {
            case.cost = Some(cost.unwrap_or_default());
        }
        let mut verdicts: Vec<Judged> = vec![(Verdict::Ok, None); cases.len()];
        for (rank, group, cost) in of_ranks(lost_time) {
            let basis = self.basis((rank, group), own_bases[rank], (&mut cases, suffered_ns), t);
            let case = &mut cases[rank];
            let cost = cost.unwrap_or_default();
            case.cost = Some(cost);
            if basis == StandsOn::Transfers {
                case.transfers = Some(slow_part(group, cost, steps));
            }
            let is_named = lost_time.is_named(group);
            case.doubted = (!is_named).then(|| doubt(lost_time, group, steps, t));
            verdicts[rank] = (if is_named { Verdict::Cause } else { Verdict::Undecided }, Some(basis));
        }
        let (transfers, errors_ns) =
            self.with_transfers(lost_time, (replay, clock_error_ns), (&mut cases, &mut verdicts), t);
        let causes = verdicts.iter().filter(|verdict| verdict.0 == Verdict::Cause).count();
        for (case, verdict) in cases.iter().zip(&mut verdicts).filter(|(_, verdict)| verdict.1.is_none()) {
            let waits_enough = case.step_ns > 0 && case.suffered_ns >= t.min_effect_pct / 100.0 * case.step_ns as f64;
            verdict.0 = match () {
                () if case.own.is_none() && !case.alone => Verdict::Undecided,
                () if causes > 0 && waits_enough => Verdict::Victim,
                () => Verdict::Ok,
            };
        }
        let together = |cost: Cost| Together { ns: cost.ns, interval_ns: Some((cost.low_ns.max(0), cost.high_ns)) };
        let alone_ns = |cost: &Option<Cost>| cost.map(|cost| cost.ns * steps as i64);
        Judgement {
            errors_ns,
            groups_left_out: transfers.left_out,
            without_clock: transfers.without_clock,
            together: lost_time.named.filter(|_| causes > 1).map(together),
            alone_ns: lost_time.alone.iter().map(alone_ns).collect(),
            cases,
            verdicts,
            ..Judgement::default()
        }
    }

    /// Adds the ranks that leave collectives late, as far as clocks tell, and those whose messages take long: of a collective that is slow
    /// for all of its ranks, there may be no other one to compare it with. Returns the errors of their delays, too.
    fn with_transfers(
        &self,
        lost_time: &LostTime,
        (replay, clock_error_ns): (&Replay, &[Option<i64>]),
        (cases, verdicts): (&mut [Case], &mut [Judged]),
        t: &Thresholds,
    ) -> (transfers::Found, Vec<Option<i64>>) {
        let of_work = |verdict: &Judged| verdict.1.filter(|basis| *basis != StandsOn::Transfers);
        let mut bases: Vec<Option<StandsOn>> = verdicts.iter().map(of_work).collect();
        let found = self.judge_transfers(clock_error_ns, replay, (cases, &mut bases), t);
        let is_found = |rank: &usize| found.slow.iter().any(|slow| slow.ranks.contains(rank));
        let costs_much = |rank: usize| {
            is_found(&rank) && cases[rank].transfers.as_ref().is_some_and(|slow| lost_time.is_much(slow.delay_ns))
        };
        let is_another = (0..cases.len()).any(costs_much);
        let mut errors_ns = vec![None; cases.len()];
        for rank in 0..cases.len() {
            let (case, verdict) = (&mut cases[rank], &mut verdicts[rank]);
            let slow = case.transfers.as_ref().filter(|slow| is_found(&rank) && lost_time.is_much(slow.delay_ns));
            match (slow, case.cost, verdict.1) {
                (Some(slow), _, None) => {
                    errors_ns[rank] = Some(slow.error_ns);
                    (case.cost, *verdict) = (None, (Verdict::Cause, Some(StandsOn::Transfers)));
                }
                // Both replays miss something: what they say is in the interval, and all of the excess may delay the steps.
                (Some(slow), Some(cost), Some(StandsOn::Transfers)) => {
                    let high_ns = cost.high_ns.max(slow.delay_ns.max(slow.excess_ns) + slow.error_ns);
                    case.cost = Some(Cost { ns: cost.ns.max(slow.delay_ns), high_ns, ..cost });
                }
                // The slow link is another rank's of the communicator.
                (None, _, Some(StandsOn::Transfers)) if is_another => *verdict = (Verdict::Ok, None),
                _ => {}
            }
        }
        (found, errors_ns)
    }

    /// What a rank of a line stands out in. A rank that is late in some of the steps is measured in these.
    fn basis(
        &self,
        (rank, group): (usize, &Group),
        own_basis: Option<StandsOn>,
        (cases, suffered_ns): (&mut [Case], &dyn Fn(usize) -> i64),
        t: &Thresholds,
    ) -> StandsOn {
        if group.by_transfers {
            return StandsOn::Transfers;
        }
        let Some(steps) = &group.steps else { return own_basis.unwrap_or(StandsOn::Stretch) };
        let at: Vec<usize> = steps.iter().filter_map(|step| self.excess.steps.binary_search(step).ok()).collect();
        if at.is_empty() {
            return own_basis.unwrap_or(StandsOn::Stretch);
        }
        cases[rank] = self.case_in_steps(Delayed { rank, at, period: group.period }, suffered_ns, t);
        StandsOn::Steps
    }
}

/// Whether a line is named, and lasts, and what mending it saves.
type Order = (bool, bool, i64);

/// For each rank of a line that is named or suspected, the group of its most important line, and what mending its lines alone saves. Named
/// ones come first, then those that last.
fn of_ranks(lost_time: &LostTime) -> Vec<(usize, &Group, Option<Cost>)> {
    let mut of_ranks: BTreeMap<usize, (Order, &Group, Option<Cost>)> = BTreeMap::new();
    for group in lost_time.groups.iter().filter(|group| lost_time.is_named(group) || lost_time.is_suspected(group)) {
        let is_named = lost_time.is_named(group);
        for (line, rank) in group.lines.iter().flat_map(|line| line.ranks.iter().map(move |rank| (line, rank))) {
            let order = (is_named, group.steps.is_none(), line.alone.map_or(0, |cost| cost.ns));
            let Some((known_order, known_group, known)) = of_ranks.get(rank).copied() else {
                of_ranks.insert(*rank, (order, group, line.alone));
                continue;
            };
            // Lines of one rank are in different steps.
            let is_added = known_order.0 == is_named && line.comm_id.is_none() && !known_group.by_transfers;
            let sum = known.zip(line.alone).filter(|_| is_added).map(|(a, b)| a.plus(b));
            of_ranks.insert(
                *rank,
                if order > known_order {
                    (order, group, sum.or(line.alone))
                } else {
                    (known_order, known_group, sum.or(known))
                },
            );
        }
    }
    of_ranks.into_iter().map(|(rank, (_, group, cost))| (rank, group, cost)).collect()
}

fn slow_part(group: &Group, cost: Cost, steps: usize) -> SlowPart {
    let comms = group.lines.iter().filter_map(|line| line.comm_id);
    SlowPart {
        excess_ns: cost.ns.max(group.together.ns),
        error_ns: cost.high_ns - cost.ns,
        delay_ns: cost.ns,
        steps,
        shown: group.steps.as_ref().map_or(steps, Vec::len),
        comm_id: comms.min().filter(|_| group.lines.len() == 1),
    }
}

/// Why a group is not named.
fn doubt(lost_time: &LostTime, group: &Group, steps: usize, t: &Thresholds) -> String {
    if steps < t.min_steps {
        return format!("only {} compared, and a cause needs {} steps", was(steps), t.min_steps);
    }
    if !group.is_certain {
        return format!("only {} compared, and equal ranks may differ as much in so few", was(steps));
    }
    let Cost { low_ns, high_ns, .. } = group.together;
    let least_ns = (crate::lost_time::NAMED_PCT / 100.0 * lost_time.step_ns() as f64).round() as i64;
    format!(
        "mending it saves {} to {} of a step (95 %), and a cause needs {} for certain",
        ns(low_ns),
        ns(high_ns),
        ns(least_ns)
    )
}

fn was(steps: usize) -> String {
    format!("{} {}", plural(steps, "step"), if steps == 1 { "was" } else { "were" })
}
