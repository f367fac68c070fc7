//! The verdicts on all ranks, by the account of lost time.

use std::collections::BTreeMap;

use trace::{StandsOn, Verdict};

use crate::classify::{Case, Judged, Occasion, SlowPart};
use crate::lost_time::{Group, Line, LostTime};
use crate::measured::Measured;
use crate::prices::Cost;
use crate::scaled::Unaccounted;
use crate::stragglers::Together;
use model::thresholds::Thresholds;
use model::units::{ns, plural};

/// The verdicts on all ranks.
pub(super) struct Judgement {
    pub(super) cases: Vec<Case>,
    pub(super) verdicts: Vec<Judged>,
    /// By how much a step would be shorter without all causes, if they are several.
    pub(super) together: Option<Together>,
}

impl Measured<'_> {
    /// Judges ranks by the lines of the account. Without an account, ranks that could be compared are undecided.
    pub(super) fn judged(
        &self,
        mut cases: Vec<Case>,
        lost_time: Result<&LostTime, Unaccounted>,
        is_shown: &[bool],
        t: &Thresholds,
    ) -> Judgement {
        let lost_time = match lost_time {
            Ok(lost_time) => lost_time,
            Err(unaccounted) => {
                let verdict = |case: &Case| if case.alone { Verdict::Ok } else { Verdict::Undecided };
                let verdicts = cases.iter().map(|case| (verdict(case), None)).collect();
                cases.iter_mut().for_each(|case| case.doubted = case.own.map(|_| unaccounted.why().into()));
                return Judgement { cases, verdicts, together: None };
            }
        };
        for (case, cost) in cases.iter_mut().zip(&lost_time.alone) {
            case.cost = Some(cost.unwrap_or_default());
        }
        let steps = lost_time.steps.len();
        let mut verdicts: Vec<Judged> = vec![(Verdict::Ok, None); cases.len()];
        for (rank, group, cost) in of_ranks(lost_time) {
            let basis = self.basis((rank, group), is_shown[rank], &mut cases, t);
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
        let causes = verdicts.iter().filter(|verdict| verdict.0 == Verdict::Cause).count();
        for (case, verdict) in cases.iter().zip(&mut verdicts).filter(|(_, verdict)| verdict.1.is_none()) {
            let waits_enough = case.step_ns > 0 && case.suffered_ns >= t.min_effect_pct / 100.0 * case.step_ns as f64;
            verdict.0 = match () {
                () if case.own.is_none() && !case.alone => Verdict::Undecided,
                () if causes > 0 && waits_enough => Verdict::Victim,
                () => Verdict::Ok,
            };
        }
        let together = |cost: Cost| Together { ns: cost.ns, interval_ns: (cost.low_ns.max(0), cost.high_ns) };
        Judgement { together: lost_time.named.filter(|_| causes > 1).map(together), cases, verdicts }
    }

    /// The quantity in which a rank of a line stands out. A rank that is late in some of the steps is measured in these.
    fn basis(&self, (rank, group): (usize, &Group), is_shown: bool, cases: &mut [Case], t: &Thresholds) -> StandsOn {
        let of_all = if is_shown { StandsOn::Range } else { StandsOn::Stretch };
        if group.by_transfers {
            return StandsOn::Transfers;
        }
        let Some(steps) = &group.steps else { return of_all };
        let at: Vec<usize> = steps.iter().filter_map(|step| self.excess.steps.binary_search(step).ok()).collect();
        if at.is_empty() {
            return of_all;
        }
        let occasion = Occasion { at, steps: self.excess.of_rank(rank).len(), period: group.period };
        let suffered_ns = cases[rank].suffered_ns;
        cases[rank] = Case { suffered_ns, ..self.case_in_steps(rank, occasion, t) };
        StandsOn::Steps
    }
}

/// Whether a line is named, and lasts, and what mending it saves.
type Order = (bool, bool, i64);

/// For each rank of a line that is named or suspected, the group of its most important line, and what mending its lines saves. Named ones
/// come first, then those that last.
fn of_ranks(lost_time: &LostTime) -> Vec<(usize, &Group, Option<Cost>)> {
    let mut of_ranks: BTreeMap<usize, (Order, &Group, Option<Cost>)> = BTreeMap::new();
    for group in lost_time.groups.iter().filter(|group| lost_time.is_named(group) || lost_time.is_suspected(group)) {
        let lines =
            group.lines.iter().filter(|line| lost_time.is_named(group) || may_cost_much(line, group, lost_time));
        for (line, rank) in lines.flat_map(|line| line.ranks.iter().map(move |rank| (line, rank))) {
            let order = (lost_time.is_named(group), group.steps.is_none(), line.alone.map_or(0, |cost| cost.ns));
            if of_ranks.get(rank).is_none_or(|(known, ..)| order > *known) {
                of_ranks.insert(*rank, (order, group, line.alone));
            }
        }
    }
    let of_rank = |rank: usize, group: &Group, cost| {
        let of_lines = lost_time.of_lines.get(&rank).copied().filter(|_| !group.by_transfers);
        of_lines.or(cost)
    };
    of_ranks.into_iter().map(|(rank, (_, group, cost))| (rank, group, of_rank(rank, group, cost))).collect()
}

/// Whether a line of a group that is suspected may cost much itself, or behind the others.
fn may_cost_much(line: &Line, group: &Group, lost_time: &LostTime) -> bool {
    let alone_ns: i64 = group.lines.iter().filter_map(|line| line.alone).map(|cost| cost.ns).sum();
    let hide_each_other = 2 * alone_ns < group.together.ns;
    hide_each_other || line.alone.is_none_or(|cost| lost_time.is_much(cost.high_ns))
}

fn slow_part(group: &Group, cost: Cost, steps: usize) -> SlowPart {
    let comms = group.lines.iter().filter_map(|line| line.comm_id);
    SlowPart {
        excess_ns: cost.ns.max(group.together.ns),
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
