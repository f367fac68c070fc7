//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use std::collections::BTreeMap;

use trace::{OmissionRow, StandsOn, StragglerRow, StragglerStepRow, Text, Verdict, WaitRow, Word};

use crate::base::stats::{lower_median, median, median_interval_ns, median_ns};
use crate::base::units::ns;
use crate::judge::stragglers::charge::{Charges, PAIRED_MAX};
use crate::judge::stragglers::classify::{Case, Judged, Occasion, bases, judge};
use crate::judge::stragglers::deviation::deviations;
use crate::judge::stragglers::evidence::{Compared, Evidence, RangeKey, Ranges, above_others};
use crate::judge::stragglers::excess::Excess;
use crate::judge::stragglers::join::Join;
use crate::judge::stragglers::last::Last;
use crate::judge::stragglers::occasional::{self, Delayed};
use crate::judge::stragglers::per_step::PerStep;
use crate::judge::stragglers::replay::Replay;
use crate::judge::stragglers::standing::{Standing, over_collectives, over_steps};
use crate::judge::stragglers::{Stragglers, ToGlobal};
use crate::measure::own_time::OwnTime;
use crate::model::Instance;
use crate::model::thresholds::Thresholds;

/// Judges all ranks.
///
/// `parts` holds the own time of each rank, in any order. `instances` holds the matched collectives; their members are
/// positions in the ranks' collectives. `to_global` aligns the clocks.
pub fn reduce(
    parts: &[OwnTime],
    instances: &[Instance],
    to_global: ToGlobal<'_>,
    thresholds: &Thresholds,
) -> Stragglers {
    let mut parts: Vec<&OwnTime> = parts.iter().collect();
    parts.sort_by_key(|p| p.rank);
    parts.dedup_by_key(|p| p.rank);
    let join = Join::of(&parts, instances, to_global);
    let per_step = PerStep::of(&parts);
    let charges = Charges::of(&join, parts.len());
    let excess = Excess::of(&join, parts.len(), per_step);
    let ranges = Ranges::of(&parts, &excess.steps, per_step, thresholds);
    let replay = Replay::of(&join, &parts, thresholds.max_queue_gap_ns);
    let alone_ns = replay.alone_ns();
    let steps: Vec<usize> = (0..parts.len()).map(|rank| excess.steps_of(rank).count()).collect();
    let measured = Measured {
        parts: &parts,
        join: &join,
        excess: &excess,
        ranges: &ranges,
        per_step,
        steps: &steps,
        waited_steps: waited_steps(&join),
        alone_ns: &alone_ns,
    };
    let suffered_ns = |rank: usize| measured.per_waited_step_ns(charges.suffered_ns[rank]);
    let mut cases = measured.cases(&suffered_ns, thresholds);
    let mut bases = bases(&cases, thresholds);
    let (delayed, moving) = measured.occasional(&cases, &bases);
    for delayed in delayed {
        let rank = delayed.rank;
        bases[rank] = Some(StandsOn::Steps);
        cases[rank] = measured.case_in_steps(delayed, &suffered_ns, thresholds);
    }
    let beside_ns = replay.beside_ns(&bases.iter().map(Option::is_some).collect::<Vec<bool>>());
    let not_beside = if beside_ns.is_none() { bases.iter().flatten().count() } else { 0 };
    let beside_ns = beside_ns.unwrap_or_else(|| vec![0; parts.len()]);
    let hidden_ns: Vec<i64> =
        beside_ns.into_iter().enumerate().map(|(rank, ns)| measured.per_step_ns(rank, ns)).collect();
    let verdicts = judge(&cases, &bases, &hidden_ns, thresholds);
    let shown = Shown::of(&cases, &verdicts, &ranges);
    let last = Last::of(&join);
    let length_ns = replay.length_ns();
    let judged = JudgedRanks {
        measured: &measured,
        cases: &cases,
        verdicts: &verdicts,
        shown: &shown,
        charges: &charges,
        last: &last,
        length_ns,
    };
    let stragglers = (0..parts.len()).map(|rank| judged.row(rank, thresholds)).collect();
    let not_replayed = alone_ns.iter().filter(|ns| ns.is_none()).count();
    let left_out =
        [ranges.left_out as i64, not_replayed as i64, not_beside as i64, charges.unpaired, replay.discrepancy_ns()];
    Stragglers {
        stragglers,
        steps: step_rows(&parts, &excess, &shown),
        waits: wait_rows(&join, &parts),
        waited_ns: charges.suffered_ns.iter().sum(),
        charged_ns: charges.caused_ns.clone(),
        before_recording_ns: charges.before_recording_ns,
        moving,
        omissions: omissions(join, &excess, &parts, left_out),
    }
}

/// All that the rows of the ranks show.
struct JudgedRanks<'a> {
    measured: &'a Measured<'a>,
    cases: &'a [Case],
    verdicts: &'a [Judged],
    shown: &'a Shown<'a>,
    charges: &'a Charges,
    last: &'a Last,
    /// The length of the run.
    length_ns: Option<i64>,
}

impl JudgedRanks<'_> {
    fn row(&self, rank: usize, thresholds: &Thresholds) -> StragglerRow {
        let Self { measured, shown, charges, .. } = self;
        let excess = measured.excess;
        let own_ns = excess.of_rank(rank);
        let (case, judged) = (&self.cases[rank], self.verdicts[rank]);
        let occasion = case.occasion.as_ref();
        let interval = match occasion {
            Some(occasion) => median_interval_ns(&excess.only(&occasion.at).of_rank(rank)),
            None => median_interval_ns(&own_ns),
        };
        let share_of_steps = occasion.map(|o| o.at.len() as f64 / o.steps as f64);
        let period = occasion.and_then(|o| o.period);
        let basis = judged.1.filter(|_| case.own.is_some());
        let range = shown.evidence(rank);
        StragglerRow {
            rank: measured.parts[rank].rank,
            steps: own_ns.len() as i32,
            steps_last: excess.steps_of(rank).filter(|&step| self.last.was_last(rank, step)).count() as i32,
            own_excess_ns: case.own_excess_ns,
            own_excess_low_ns: interval.map(|i| i.0),
            own_excess_high_ns: interval.map(|i| i.1),
            step_delay_ns: case.delay_ns(judged.1),
            caused_wait_ns: measured.per_waited_step_ns(charges.caused_ns[rank]),
            inherited_ns: measured.per_waited_step_ns(charges.inherited_ns[rank]),
            suffered_wait_ns: measured.per_waited_step_ns(charges.suffered_ns[rank]),
            z: case.own.and_then(|d| d.z()),
            persistence: share_of_steps.or(case.own.map(|d| d.persistence)),
            delayed_steps: occasion.map(|o| o.at.len() as i32),
            period_steps: period.map(|p| p.steps),
            period_first_step: period.map(|p| p.first),
            slowdown: self.slowdown(rank),
            verdict: judged.0.into(),
            doubt: (judged.0 == Verdict::Undecided).then(|| case.doubt(thresholds).into()),
            reason: basis.and_then(|_| case.reason(basis)).map(Word::from),
            evidence_range: shown.name(rank),
            evidence_excess_ns: range.map(|r| r.excess_ns.round() as i64),
            evidence_z: range.and_then(|r| r.deviation.z()),
            evidence_persistence: range.map(|r| r.deviation.persistence),
            stands_on: basis.map(Word::from),
            evidence: Some(case.sentence(judged, thresholds).into()),
        }
    }

    fn slowdown(&self, rank: usize) -> Option<f64> {
        let (length_ns, saved_ns) = (self.length_ns?, self.measured.alone_ns[rank]?);
        (length_ns > saved_ns).then(|| length_ns as f64 / (length_ns - saved_ns) as f64)
    }
}

/// The number of active steps with a collective.
fn waited_steps(join: &Join) -> usize {
    let mut steps: Vec<i32> = join.instances.iter().filter_map(|i| i.step).collect();
    steps.sort_unstable();
    steps.dedup();
    steps.len()
}

/// A range is evidence only if it holds at least this share of the excess.
const RANGE_SHARE: f64 = 0.25;

/// The measurements of all ranks, from which their cases are made.
struct Measured<'a> {
    parts: &'a [&'a OwnTime],
    join: &'a Join,
    excess: &'a Excess,
    ranges: &'a Ranges<'a>,
    per_step: PerStep,
    /// The number of steps in which each rank was compared.
    steps: &'a [usize],
    /// The number of active steps with a collective.
    waited_steps: usize,
    /// By how much the run would be shorter without the excess of each rank.
    alone_ns: &'a [Option<i64>],
}

impl Measured<'_> {
    /// How far the own excess of each rank stands out, and whether that is known by collectives, because there are few steps.
    fn standings(&self, series: &[Vec<f64>], step_ns: i64, t: &Thresholds) -> (Vec<Standing>, bool) {
        if self.excess.steps.len() < t.min_steps {
            let pieces = Excess::by_collective(self.join, self.parts.len(), self.per_step);
            let by_collective = over_collectives(&series_of(&pieces), self.excess.steps.len(), step_ns);
            if let Some(standings) = by_collective {
                return (standings, true);
            }
        }
        (over_steps(series, step_ns), false)
    }

    /// Ranks that are late in some of the steps, and a delay that moves from rank to rank.
    fn occasional(&self, cases: &[Case], bases: &[Option<StandsOn>]) -> (Vec<Delayed>, Option<occasional::Moving>) {
        let step_ns = cases.first().map_or(0, |case| case.step_ns);
        let min_effect_ns = cases.iter().map(|case| case.min_effect_ns).fold(0.0, f64::max);
        let is_open = |rank: usize| bases[rank].is_none();
        occasional::of(self.excess, &series_of(&self.excess.ns), &is_open, (step_ns, min_effect_ns))
    }

    /// The case of a rank in the steps in which it is late.
    fn case_in_steps(&self, delayed: Delayed, suffered_ns: &dyn Fn(usize) -> i64, t: &Thresholds) -> Case {
        let excess = self.excess.only(&delayed.at);
        let ranges = Ranges::of(self.parts, &excess.steps, self.per_step, t);
        let case =
            Measured { excess: &excess, ranges: &ranges, ..*self }.cases(suffered_ns, t).swap_remove(delayed.rank);
        let occasion =
            Occasion { at: delayed.at, steps: self.excess.of_rank(delayed.rank).len(), period: delayed.period };
        Case { occasion: Some(occasion), ..case }
    }

    /// A time per step from a time of all steps in which the rank was compared.
    fn per_step_ns(&self, rank: usize, run_ns: i64) -> i64 {
        self.per_step.ns(run_ns / self.steps[rank].max(1) as i64)
    }

    /// A time per step from a sum over the steps with a collective.
    fn per_waited_step_ns(&self, ns: i64) -> i64 {
        let steps = self.waited_steps;
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
    fn cases(&self, suffered_ns: &dyn Fn(usize) -> i64, t: &Thresholds) -> Vec<Case> {
        let Self { parts, excess, ranges, per_step, .. } = *self;
        let step_ns = lower_median(parts.iter().flat_map(|p| p.steps.iter().map(|s| s.dur_ns))).unwrap_or(0);
        let series = series_of(&excess.ns);
        let (standings, by_collectives) = self.standings(&series, step_ns, t);
        let busy = busy_excess(parts, &excess.steps, per_step);
        let owns = deviations(&series);
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
            own_excess_ns: median_ns(&excess.of_rank(rank)).unwrap_or(0),
            alone_ns: self.delay_ns(rank),
            range,
            alone: parts.len() == 1,
            step_ns,
            min_effect_ns: least_effect_ns(parts[rank]),
            suffered_ns: suffered_ns(rank) as f64,
            busy_excess_ns: busy.as_ref().map(|busy| median(busy[rank].iter().flatten().copied()).unwrap_or(0.0)),
        };
        ranges.best(&least_range_ns).into_iter().enumerate().map(case).collect()
    }
}

/// A range, and the excess of one rank in it by step.
type OwnRange<'a> = (&'a Evidence, Vec<Option<f64>>);

/// The ranges that the tables show. A rank that stands out is measured in its own range. If the rank with the largest delay
/// stands on a range, all other ranks are measured in that range, so that they can be compared with it.
struct Shown<'a> {
    /// For each rank, its own range and its excess there by step, if it stands out.
    own: Vec<Option<OwnRange<'a>>>,
    /// The range of the rank with the largest delay, if its verdict stands on one, with that rank's evidence.
    lead: Option<(&'a Evidence, Compared)>,
}

impl<'a> Shown<'a> {
    fn of(cases: &'a [Case], verdicts: &[Judged], ranges: &Ranges<'_>) -> Self {
        let stands_out = |rank: usize| verdicts[rank].1.is_some() && cases[rank].own.is_some();
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
    fn evidence(&self, rank: usize) -> Option<&Evidence> {
        match &self.own[rank] {
            Some((range, _)) => Some(range),
            None => self.lead.as_ref()?.1.evidence[rank].as_ref(),
        }
    }

    /// The name of that range, as the rank with the largest delay knows it.
    fn name(&self, rank: usize) -> Option<Text> {
        let own = self.own[rank].as_ref().map(|(range, _)| *range);
        let lead = || self.lead.as_ref().filter(|(_, ranks)| ranks.evidence[rank].is_some()).map(|(range, _)| *range);
        own.or_else(lead)?.known_as().cloned()
    }

    /// The excess in that range, in the step at this position.
    fn excess_ns(&self, rank: usize, step: usize) -> Option<f64> {
        match &self.own[rank] {
            Some((_, excess_ns)) => excess_ns[step],
            None => self.lead.as_ref()?.1.excess_ns[rank][step],
        }
    }
}

fn step_rows(parts: &[&OwnTime], excess: &Excess, shown: &Shown<'_>) -> Vec<StragglerStepRow> {
    let row = |rank: usize, at: usize| StragglerStepRow {
        rank: parts[rank].rank,
        step: excess.steps[at],
        own_excess_ns: excess.ns[rank][at],
        evidence_range: shown.name(rank),
        evidence_excess_ns: shown.excess_ns(rank, at).map(|ns| ns.round() as i64),
    };
    (0..parts.len())
        .flat_map(|rank| (0..excess.steps.len()).map(move |at| (rank, at)))
        .map(|(r, at)| row(r, at))
        .collect()
}

/// The excess of each rank in some places, without those in which it is unknown. If only two ranks can be compared, it is the
/// signed difference to the other rank, because the excess above the lower median is never negative for two ranks.
fn series_of(excess_ns: &[Vec<Option<i64>>]) -> Vec<Vec<f64>> {
    let ranks: Vec<usize> = (0..excess_ns.len()).filter(|&rank| excess_ns[rank].iter().any(Option::is_some)).collect();
    let mut series: Vec<Vec<f64>> = excess_ns.iter().map(|v| v.iter().flatten().map(|&e| e as f64).collect()).collect();
    if let [a, b] = ranks[..] {
        let difference = |(x, y): (&Option<i64>, &Option<i64>)| Some(((*x)? - (*y)?) as f64);
        series[a] = excess_ns[a].iter().zip(&excess_ns[b]).filter_map(difference).collect();
        series[b] = series[a].iter().map(|d| -d).collect();
    }
    series
}

/// The device work within own stretches above that of the other ranks, by rank and step; in a job without devices, the time
/// of operators. `None` if no rank recorded any.
fn busy_excess(parts: &[&OwnTime], steps: &[i32], per_step: PerStep) -> Option<Vec<Vec<Option<f64>>>> {
    let has_device = parts.iter().any(|p| p.has_device);
    let busy = |p: &OwnTime, step: &i32| {
        let row = p.steps.binary_search_by_key(step, |s| s.step).ok()?;
        (p.has_device == has_device).then(|| per_step.ns(p.steps[row].busy_ns))
    };
    let values: Vec<Vec<Option<i64>>> = parts.iter().map(|p| steps.iter().map(|s| busy(p, s)).collect()).collect();
    parts.iter().any(|p| p.has_work).then(|| above_others(&values).0)
}

fn wait_rows(join: &Join, parts: &[&OwnTime]) -> Vec<WaitRow> {
    let mut rows = Vec::with_capacity(join.instances.iter().map(|i| i.arrivals.len()).sum());
    for instance in &join.instances {
        let shortest_ns = instance.arrivals.iter().filter_map(|a| a.dur_ns).min();
        // The clock-free wait needs all ranks, because a missing rank may have arrived last.
        let comparable = instance.whole && instance.arrivals.iter().all(|a| a.dur_ns.is_some());
        rows.extend(instance.arrivals.iter().map(|a| WaitRow {
            instance: instance.id,
            rank: parts[a.rank].rank,
            arrival_ns: a.arrival_ns,
            wait_ns: a.wait_end_ns(instance.last_ns) - a.arrival_ns,
            exposed_wait_ns: None,
            wait_clockfree_ns: a.dur_ns.zip(shortest_ns).filter(|_| comparable).map(|(dur, shortest)| dur - shortest),
            own_excess_ns: instance.own_excess_ns(a),
            inherited_ns: instance.inherited_ns(a),
        }));
    }
    rows
}

/// `ranges` were not compared, `not_replayed` ranks have no slowdown, `not_beside` slow ranks were not replayed without the other
/// slow ones, and waits at `unpaired` collectives were charged by
/// the typical rank. The unchanged replay differs from the recording by `discrepancy_ns`.
fn omissions(
    join: Join,
    excess: &Excess,
    parts: &[&OwnTime],
    [ranges, not_replayed, not_beside, unpaired, discrepancy_ns]: [i64; 5],
) -> Vec<OmissionRow> {
    let mut rows = join.omissions;
    if ranges > 0 {
        let why = "the ranks have too many different ranges; those with the most time are compared";
        rows.push(OmissionRow::left_out("host ranges in straggler evidence", why).amount(ranges));
    }
    if not_replayed > 0 {
        let why = "a replay without each rank would take too long; the ranks with the most own work above the median have one";
        rows.push(OmissionRow::left_out("slowdowns of ranks", why).amount(not_replayed));
    }
    if not_beside > 0 {
        let why = "a replay without each of so many slow ranks would take too long; a rank whose delay others hide may be missing as a cause";
        rows.push(OmissionRow::left_out("delays of slow ranks without the other slow ranks", why).amount(not_beside));
    }
    if discrepancy_ns > 0 {
        let why = format!(
            "clocks contradict the order of arrivals, so that the replay of the run without a change differs from the recording by {}",
            ns(discrepancy_ns)
        );
        rows.push(OmissionRow::note("delays of a step", why));
    }
    if unpaired > 0 {
        let why = format!(
            "with more than {PAIRED_MAX} ranks, what a late rank inherited is measured against a typical rank, not against each rank \
             that waited"
        );
        rows.push(OmissionRow::note("collectives in charges for waits", why).amount(unpaired));
    }
    if excess.skipped > 0 {
        rows.push(
            OmissionRow::left_out(
                "collectives ignored for the verdict",
                "a rank that took part in the step recorded no time there",
            )
            .amount(excess.skipped),
        );
    }
    rows.extend(parts.iter().filter(|p| p.ranges_dropped > 0).map(|p| {
        OmissionRow::left_out("host ranges in straggler evidence", "only the largest ranges are kept")
            .rank(p.rank)
            .amount(p.ranges_dropped as i64)
    }));
    rows
}
