//! The measurements of all ranks: their cases, the delays that they cause, and the ranges that show them.

use std::collections::BTreeMap;

use trace::{StandsOn, Text, Verdict};

use crate::classify::{Case, Judged, Occasion};
use crate::deviation::deviations;
use crate::evidence::{Compared, Evidence, RangeKey, Ranges, above_others};
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
    /// The number of active steps with a collective.
    pub(super) waited_steps: usize,
}

impl Measured<'_> {
    /// The case of a rank in the steps in which it is late.
    pub(super) fn case_in_steps(&self, rank: usize, occasion: Occasion, t: &Thresholds) -> Case {
        let excess = self.excess.only(&occasion.at);
        let ranges = Ranges::of((self.parts, &self.join.same_work.baseline), &excess.steps, self.per_step, t);
        let case = Measured { excess: &excess, ranges: &ranges, ..*self }.cases(t).swap_remove(rank);
        Case { occasion: Some(occasion), ..case }
    }

    /// A time per step from a sum over the steps with a collective.
    pub(super) fn per_waited_step_ns(&self, ns: i64) -> i64 {
        let steps = self.waited_steps;
        self.per_step.ns(if steps == 0 { 0 } else { (ns as f64 / steps as f64).round() as i64 })
    }

    /// The case of each rank, without its cost and its waits.
    pub(super) fn cases(&self, t: &Thresholds) -> Vec<Case> {
        let Self { parts, excess, ranges, per_step, .. } = *self;
        let step_ns = step_ns(parts);
        let series = series_of(&excess.ns);
        let busy = busy_excess((parts, &self.join.same_work.baseline.is_member), &excess.steps, per_step);
        let owns = deviations(&series, &self.join.same_work.baseline);
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
            occasion: None,
            transfers: None,
            own_excess_ns: median_ns(&excess.of_rank(rank)).unwrap_or(0),
            range,
            alone: parts.len() == 1,
            step_ns,
            min_effect_ns: least_effect_ns(parts[rank]),
            suffered_ns: 0.0,
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
        let order = |rank: &usize| (verdicts[*rank].0 == Verdict::Cause, cases[*rank].delay_ns());
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

    /// The user's Python function with more than half of the time of the rank's own range.
    pub(super) fn code(&self, rank: usize) -> Option<Text> {
        self.own[rank].as_ref()?.0.code.clone()
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
