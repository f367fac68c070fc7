//! The measurements of all ranks: their cases, the delays that they cause, and the ranges that show them.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::{StandsOn, Text, Verdict};

use crate::classify::{Case, Judged, Occasion, SlowPart};
use crate::deviation::deviations_beside;
use crate::evidence::{Compared, Evidence, RangeKey, Ranges, above_others};
use crate::faultless::{self, Fault};
use crate::nodes::Work;
use crate::occasional::{self, Delayed};
use crate::replay::Replay;
use crate::standing::{Medians, Standing};
use crate::transfers::{self, Least, SlowTransfers};
use measure::own_time::OwnTime;
use model::stats::{lower_median, median, median_ns};
use model::thresholds::Thresholds;
use topology::excess::{Excess, series_of};
use topology::join::Join;
use topology::per_step::PerStep;

/// A range is evidence only if it holds at least this share of the excess.
const RANGE_SHARE: f64 = 0.25;

/// The measurements of all ranks, from which their cases are made.
pub(super) struct Measured<'a> {
    pub(super) parts: &'a [&'a OwnTime],
    pub(super) join: &'a Join,
    pub(super) excess: &'a Excess,
    pub(super) ranges: &'a Ranges<'a>,
    pub(super) per_step: PerStep,
    /// The number of counted steps in which each rank was compared.
    pub(super) steps: &'a [usize],
    /// The number of active steps with a collective.
    pub(super) waited_steps: usize,
    /// The number of those over which delays are averaged.
    pub(super) counted_steps: usize,
    /// By how much the run would be shorter without the excess of each rank.
    pub(super) alone_ns: &'a [Option<i64>],
}

impl Measured<'_> {
    /// How far the own excess of each rank stands out, and whether that is known by collectives, because there are few steps.
    fn medians(&self, series: &[Vec<f64>], step_ns: i64, t: &Thresholds) -> (Medians, bool) {
        let slow = self.join.same_work.baseline.slow;
        if self.excess.steps.len() < t.min_steps {
            let pieces = Excess::by_collective(self.join, self.parts.len(), self.per_step);
            let by_collective = Medians::over_collectives(&series_of(&pieces), self.excess.steps.len(), step_ns);
            if let Some(medians) = by_collective {
                return (medians.with_slow(slow), true);
            }
        }
        (Medians::over_steps(series, step_ns).with_slow(slow), false)
    }

    /// By how much the delay of each rank that stands out may be off, at 95 %: by as much as its excess in what the verdict
    /// stands on. `None` for the other ranks, and where no rank is left to be compared with.
    pub(super) fn errors_ns<'b>(&self, cases: &'b [Case], verdicts: &[Judged], t: &Thresholds) -> Vec<Option<i64>> {
        let is_slow = |rank: usize| verdicts[rank].1.is_some();
        let step_ns = cases.first().map_or(0, |case| case.step_ns);
        let (stretches, _) = self.medians(&series_of(&self.excess.ns), step_ns, t);
        let mut of_ranges: BTreeMap<RangeKey<'b>, Medians> = BTreeMap::new();
        let mut in_range = |rank: usize, range: &'b Evidence| {
            let medians = || {
                let excess_ns = self.ranges.compare(range.key()).excess_ns;
                let series: Vec<Vec<f64>> = excess_ns.iter().map(|of| of.iter().flatten().copied().collect()).collect();
                Medians::over_steps(&series, step_ns)
            };
            of_ranges.entry(range.key()).or_insert_with(medians).error_ns(rank, &is_slow)
        };
        let in_steps = |rank: usize, occasion: &Occasion| {
            let series = series_of(&self.excess.only(&occasion.at).ns);
            let share = occasion.at.len() as f64 / occasion.steps.max(1) as f64;
            Some(share * Medians::over_steps(&series, step_ns).error_ns(rank, &is_slow)?)
        };
        let mut error_ns = |rank: usize| {
            let case = &cases[rank];
            match verdicts[rank].1? {
                StandsOn::Range => in_range(rank, case.range.as_ref()?),
                StandsOn::Steps => in_steps(rank, case.occasion.as_ref()?),
                StandsOn::Transfers => Some(case.transfers.as_ref()?.error_ns as f64),
                _ => stretches.error_ns(rank, &is_slow),
            }
        };
        (0..cases.len()).map(|rank| Some(error_ns(rank)?.round() as i64)).collect()
    }

    /// Judges ranks that are late in some of the steps by these, if they do not stand out in all. Returns a delay that moves from
    /// rank to rank.
    pub(super) fn judge_occasional(
        &self,
        (cases, bases): (&mut [Case], &mut [Option<StandsOn>]),
        suffered_ns: &dyn Fn(usize) -> i64,
        t: &Thresholds,
    ) -> Option<occasional::Moving> {
        let step_ns = cases.first().map_or(0, |case| case.step_ns);
        let min_effect_ns = cases.iter().map(|case| case.min_effect_ns).fold(0.0, f64::max);
        let is_open = |rank: usize| bases[rank].is_none();
        let series = series_of(&self.excess.ns);
        let (delayed, moving) = occasional::of(self.excess, &series, &is_open, (step_ns, min_effect_ns));
        for delayed in delayed {
            let rank = delayed.rank;
            bases[rank] = Some(StandsOn::Steps);
            cases[rank] = self.case_in_steps(delayed, suffered_ns, t);
        }
        moving
    }

    /// The case of a rank in the steps in which it is late.
    pub(super) fn case_in_steps(&self, delayed: Delayed, suffered_ns: &dyn Fn(usize) -> i64, t: &Thresholds) -> Case {
        let excess = self.excess.only(&delayed.at);
        let ranges = Ranges::of((self.parts, &self.join.same_work.baseline), &excess.steps, self.per_step, t);
        let case =
            Measured { excess: &excess, ranges: &ranges, ..*self }.cases(suffered_ns, t).swap_remove(delayed.rank);
        let occasion =
            Occasion { at: delayed.at, steps: self.excess.of_rank(delayed.rank).len(), period: delayed.period };
        Case { occasion: Some(occasion), ..case }
    }

    /// What makes a rank slow that stands out by its work.
    fn fault(&self, rank: usize, case: &Case, basis: StandsOn) -> Fault {
        let steps = &self.excess.steps;
        if basis == StandsOn::Steps {
            let late = case.occasion.iter().flat_map(|occasion| occasion.at.iter().map(|at| steps[*at]));
            return Fault::Steady(Some(late.collect()));
        }
        // Steps without a collective are in the excess of the next one.
        let range = case.range.as_ref().filter(|_| basis == StandsOn::Range && self.per_step.is_every());
        let Some(range) = range.filter(|range| range.excess_ns > 0.0) else { return Fault::Steady(None) };
        // All ranges that stand out delay the step, not only the one that is named.
        let all = (range.distinct_ns / range.excess_ns).max(1.0);
        let excess_ns = self.ranges.compare(range.key()).excess_ns.swap_remove(rank);
        let of_step = |(step, ns): (&i32, Option<f64>)| Some((*step, (all * ns?).round() as i64));
        Fault::Ranges(steps.iter().zip(excess_ns).filter_map(of_step).collect())
    }

    /// Replays the run without what makes each rank slow that stands out by its work, and puts its delay into its case. Returns that
    /// work, and by how much the run would be shorter without the excess of each rank.
    ///
    /// That may be too long: what a rank does faster than others beside its fault, as where it finds a core free, stays. The replay
    /// with the work of a typical rank may be too long, too: a typical rank does not vary. So the shorter one counts.
    pub(super) fn without_faults(
        &self,
        replay: &Replay,
        (cases, bases): (&mut [Case], &[Option<StandsOn>]),
    ) -> (FxHashMap<u32, Work>, Vec<Option<i64>>) {
        let by_work = |rank: &usize| bases[*rank].is_some_and(|basis| basis != StandsOn::Transfers);
        let mut slow: Vec<usize> = (0..bases.len()).filter(by_work).collect();
        slow.sort_by_key(|rank| std::cmp::Reverse(cases[*rank].alone_ns));
        slow.truncate(replay.most());
        let fault = |rank: &usize| Some((*rank, self.fault(*rank, &cases[*rank], bases[*rank]?)));
        let works = faultless::works(replay, &slow.iter().filter_map(fault).collect());
        let saved_ns = |rank: &usize| replay.saved_instead_ns(&|r| r == *rank, &FxHashMap::default(), Some(&works));
        let saved_ns: Vec<i64> = slow.par_iter().map(saved_ns).collect();
        let mut alone_ns = self.alone_ns.to_vec();
        for (rank, ns) in slow.iter().zip(saved_ns) {
            let typical_ns = alone_ns[*rank].unwrap_or(ns);
            alone_ns[*rank] = Some(ns.min(typical_ns));
        }
        let measured = Measured { alone_ns: &alone_ns, ..*self };
        slow.iter().for_each(|rank| cases[*rank].alone_ns = measured.delay_ns(*rank));
        (works, alone_ns)
    }

    /// The delay of each rank that other ranks hide, per step; and the number of slow ranks that were not replayed without the
    /// other slow ones.
    pub(super) fn hidden_ns(&self, replay: &Replay, bases: &[Option<StandsOn>]) -> (Vec<i64>, usize) {
        let stands_out: Vec<bool> = bases.iter().map(Option::is_some).collect();
        match replay.beside_ns(&stands_out) {
            Some(beside_ns) => {
                let ranked = beside_ns.into_iter().enumerate();
                (ranked.map(|(rank, ns)| self.per_step_ns(rank, ns)).collect(), 0)
            }
            None => (vec![0; bases.len()], bases.iter().flatten().count()),
        }
    }

    /// Finds ranks and groups whose transfers are slow, and judges their ranks by these, if they do not stand out by their own work.
    pub(super) fn judge_transfers(
        &self,
        clock_error_ns: &[Option<i64>],
        replay: &Replay,
        (cases, bases): (&mut [Case], &mut [Option<StandsOn>]),
        t: &Thresholds,
    ) -> transfers::Found {
        let step_ns = cases.first().map_or(0, |case| case.step_ns);
        let excess_ns = cases.iter().map(|case| case.min_effect_ns).fold(0.0, f64::max);
        let mut found = transfers::slow(self.join, clock_error_ns, Least { step_ns, excess_ns, steps: t.min_steps });
        // Each is replayed.
        found.slow.sort_by_key(|slow| std::cmp::Reverse((slow.comm_id.is_some(), slow.excess_ns)));
        found.left_out += found.slow.len().saturating_sub(replay.most());
        found.slow.truncate(replay.most());
        for slow in &found.slow {
            let saved_ns = replay.saved_ns(&|_| false, &by_node([slow]));
            let delay_ns = self.averaged_ns(saved_ns, self.counted_steps).max(0);
            for rank in slow.ranks.iter().copied() {
                if bases[rank].is_some() {
                    continue;
                }
                bases[rank] = Some(StandsOn::Transfers);
                cases[rank].transfers = Some(SlowPart {
                    excess_ns: self.per_step.ns(slow.excess_ns),
                    error_ns: self.per_step.ns(slow.error_ns),
                    delay_ns,
                    steps: slow.steps,
                    shown: slow.shown,
                    comm_id: slow.comm_id,
                });
            }
        }
        found
    }

    /// By how much a step would be shorter without all causes, with `works` instead of the work of slow ranks; `None` if they are not
    /// several.
    pub(super) fn together_ns(
        &self,
        replay: &Replay,
        verdicts: &[Judged],
        (works, slow): (&FxHashMap<u32, Work>, &[SlowTransfers]),
    ) -> Option<i64> {
        let is_cause = |rank: usize, by_transfers: bool| {
            let (verdict, basis) = verdicts[rank];
            verdict == Verdict::Cause && (basis == Some(StandsOn::Transfers)) == by_transfers
        };
        let works_long = |rank: usize| is_cause(rank, false);
        let slow: Vec<_> = slow.iter().filter(|slow| slow.ranks.iter().any(|rank| is_cause(*rank, true))).collect();
        let causes = (0..verdicts.len()).filter(|rank| works_long(*rank)).count() + slow.len();
        let saved_ns = || replay.saved_instead_ns(&works_long, &by_node(slow), Some(works));
        (causes > 1).then(|| self.averaged_ns(saved_ns(), self.counted_steps).max(0))
    }

    /// A time per step from a time of all steps in which the rank was compared.
    fn per_step_ns(&self, rank: usize, run_ns: i64) -> i64 {
        self.per_step.ns(run_ns / self.steps[rank].max(1) as i64)
    }

    /// A time per step from a sum over the steps with a collective.
    pub(super) fn per_waited_step_ns(&self, ns: i64) -> i64 {
        self.averaged_ns(ns, self.waited_steps)
    }

    fn averaged_ns(&self, ns: i64, steps: usize) -> i64 {
        self.per_step.ns(if steps == 0 { 0 } else { (ns as f64 / steps as f64).round() as i64 })
    }

    /// The delay of a step by one rank alone. A rank cannot cost more than its own excess.
    fn delay_ns(&self, rank: usize) -> i64 {
        let own_ns = self.excess.of_rank(rank);
        let excess_ns: i64 = own_ns.iter().map(|ns| (*ns).max(0)).sum();
        let most_ns = excess_ns / own_ns.len().max(1) as i64;
        self.per_step_ns(rank, self.alone_ns[rank].unwrap_or(0)).clamp(0, most_ns)
    }

    /// The case of each rank; `suffered_ns` is a rank's wait for other ranks, per step.
    pub(super) fn cases(&self, suffered_ns: &dyn Fn(usize) -> i64, t: &Thresholds) -> Vec<Case> {
        let Self { parts, excess, ranges, per_step, .. } = *self;
        let step_ns = step_ns(parts);
        let series = series_of(&excess.ns);
        let (medians, by_collectives) = self.medians(&series, step_ns, t);
        let standings = medians.standings();
        let busy = busy_excess((parts, &self.join.same_work.baseline.is_member), &excess.steps, per_step);
        let is_slow: Vec<bool> = standings.iter().map(|standing| *standing == Standing::Certain).collect();
        let owns = deviations_beside(&series, Some(&is_slow), &self.join.same_work.baseline);
        let least_effect_ns = |part: &OwnTime| {
            let error_ns = if part.has_device { t.device_error_ns } else { t.host_error_ns };
            (t.min_effect_pct / 100.0 * step_ns as f64).max(t.min_effect_errors * error_ns as f64)
        };
        let least_range_ns: Vec<f64> = owns
            .iter()
            .zip(parts)
            .map(|(own, part)| own.map_or(0.0, |d| d.effect_ns).max(least_effect_ns(part)) * RANGE_SHARE)
            .collect();
        let case = |(rank, range): (usize, Option<Evidence>)| Case {
            own: owns[rank],
            standing: standings[rank],
            by_collectives,
            occasion: None,
            transfers: None,
            own_excess_ns: median_ns(&excess.of_rank(rank)).unwrap_or(0),
            alone_ns: self.delay_ns(rank),
            range,
            alone: parts.len() == 1,
            step_ns,
            min_effect_ns: least_effect_ns(parts[rank]),
            suffered_ns: suffered_ns(rank) as f64,
            cost: None,
            doubted: None,
            busy_excess_ns: busy.as_ref().map(|busy| median(busy[rank].iter().flatten().copied()).unwrap_or(0.0)),
        };
        ranges.best(&least_range_ns).into_iter().enumerate().map(case).collect()
    }
}

/// The median length of a step.
pub(super) fn step_ns(parts: &[&OwnTime]) -> i64 {
    lower_median(parts.iter().flat_map(|p| p.steps.iter().map(|s| s.dur_ns))).unwrap_or(0)
}

/// A range, and the excess of one rank in it by step.
type OwnRange<'a> = (&'a Evidence, Vec<Option<f64>>);

/// The ranges that the tables show. A rank that stands out is measured in its own range. If the rank with the largest delay
/// stands on a range, all other ranks are measured in that range, so that they can be compared with it.
pub(super) struct Shown<'a> {
    /// For each rank, its own range and its excess there by step, if it stands out.
    own: Vec<Option<OwnRange<'a>>>,
    /// The range of the rank with the largest delay, if its verdict stands on one, with that rank's evidence.
    lead: Option<(&'a Evidence, Compared)>,
}

impl<'a> Shown<'a> {
    pub(super) fn of(cases: &'a [Case], verdicts: &[Judged], ranges: &Ranges<'_>) -> Self {
        let by_work = |basis: StandsOn| basis != StandsOn::Transfers;
        let stands_out = |rank: usize| verdicts[rank].1.is_some_and(by_work) && cases[rank].own.is_some();
        let mut alike: BTreeMap<RangeKey<'_>, Vec<(usize, &Evidence)>> = BTreeMap::new();
        for (rank, case) in cases.iter().enumerate().filter(|(rank, _)| stands_out(*rank)) {
            if let Some(range) = &case.range {
                alike.entry(range.key()).or_default().push((rank, range));
            }
        }
        let mut own: Vec<Option<OwnRange<'_>>> = cases.iter().map(|_| None).collect();
        for (key, members) in alike {
            let mut excess_ns = ranges.compare(key).excess_ns;
            for (rank, range) in members {
                own[rank] = Some((range, std::mem::take(&mut excess_ns[rank])));
            }
        }
        let ranks_in = |range: &Evidence| ranges.compare(range.key());
        let order = |rank: &usize| (verdicts[*rank].0 == Verdict::Cause, cases[*rank].delay_ns(verdicts[*rank].1));
        let lead = (0..cases.len()).rev().filter(|rank| stands_out(*rank)).max_by_key(order);
        let lead = lead.filter(|rank| verdicts[*rank].1 == Some(StandsOn::Range));
        let lead = lead.and_then(|rank| cases[rank].range.as_ref()).map(|range| (range, ranks_in(range)));
        Self { own, lead }
    }

    /// The range in which a rank is shown.
    pub(super) fn evidence(&self, rank: usize) -> Option<&Evidence> {
        match &self.own[rank] {
            Some((range, _)) => Some(range),
            None => self.lead.as_ref()?.1.evidence[rank].as_ref(),
        }
    }

    /// The name of that range, as the rank with the largest delay knows it.
    pub(super) fn name(&self, rank: usize) -> Option<Text> {
        let own = self.own[rank].as_ref().map(|(range, _)| *range);
        let lead = || self.lead.as_ref().filter(|(_, ranks)| ranks.evidence[rank].is_some()).map(|(range, _)| *range);
        own.or_else(lead)?.known_as().cloned()
    }

    /// The excess in that range, in the step at this position.
    pub(super) fn excess_ns(&self, rank: usize, step: usize) -> Option<f64> {
        match &self.own[rank] {
            Some((_, excess_ns)) => excess_ns[step],
            None => self.lead.as_ref()?.1.excess_ns[rank][step],
        }
    }
}

/// The device work within own stretches above that of the other ranks, by rank and step; in a job without devices, the time
/// of operators. `None` if no rank recorded any.
fn busy_excess(
    (parts, is_usual): (&[&OwnTime], &[bool]),
    steps: &[i32],
    per_step: PerStep,
) -> Option<Vec<Vec<Option<f64>>>> {
    let has_device = parts.iter().any(|p| p.has_device);
    let busy = |p: &OwnTime, step: &i32| {
        let row = p.steps.binary_search_by_key(step, |s| s.step).ok()?;
        (p.has_device == has_device).then(|| per_step.ns(p.steps[row].busy_ns))
    };
    let values: Vec<Vec<Option<i64>>> = parts.iter().map(|p| steps.iter().map(|s| busy(p, s)).collect()).collect();
    parts.iter().any(|p| p.has_work).then(|| above_others(&values, is_usual).0)
}

/// By how much transfers exceed typical ones: (position of the instance, position of the rank) to ns.
fn by_node<'a>(slow: impl IntoIterator<Item = &'a SlowTransfers>) -> FxHashMap<(u32, u32), i64> {
    let mut beyond_ns = FxHashMap::default();
    for (instance, rank, ns) in slow.into_iter().flat_map(|slow| &slow.beyond_ns) {
        // A rank may leave late in a group that is slow, too.
        let most_ns = beyond_ns.entry((*instance, *rank)).or_insert(0);
        *most_ns = (*ns).max(*most_ns);
    }
    beyond_ns
}
