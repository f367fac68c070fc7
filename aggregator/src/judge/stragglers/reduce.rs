//! The reduction: combines the parts of all ranks into verdicts, waits and charges.

use trace::{OmissionRow, StragglerRow, Verdict, WaitRow, Word};

use crate::base::stats::{lower_median, median, median_interval_ns, median_ns};
use crate::judge::stragglers::chain::{Chain, slowdowns};
use crate::judge::stragglers::charge::Charges;
use crate::judge::stragglers::classify::{Case, judge};
use crate::judge::stragglers::deviation::deviations;
use crate::judge::stragglers::evidence::{above_others, best_ranges};
use crate::judge::stragglers::excess::Excess;
use crate::judge::stragglers::join::Join;
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
    let charges = Charges::of(&join, parts.len());
    let excess = Excess::of(&join, parts.len());
    let steps = waited_steps(&join);
    let cases = cases(&parts, &excess, &charges, steps, thresholds);
    let verdicts = judge(&cases, thresholds);
    let chain = Chain::of(&join);
    let slowdowns = slowdowns(&join, parts.len());
    let per_step = |ns: i64| if steps == 0 { 0 } else { (ns as f64 / steps as f64).round() as i64 };
    let row = |rank: usize| {
        let own_ns = excess.of_rank(rank);
        let compared = || excess.steps.iter().zip(&excess.ns[rank]).filter(|(_, ns)| ns.is_some()).map(|(s, _)| *s);
        let delays_ns: Vec<i64> = compared().map(|step| chain.delay_ns(rank, step)).collect();
        let interval = median_interval_ns(&own_ns);
        let (case, (verdict, basis)) = (&cases[rank], verdicts[rank]);
        let delay_ns = median_ns(&delays_ns).unwrap_or(0);
        let suspect = matches!(verdict, Verdict::Cause | Verdict::Undecided) && case.own.is_some();
        let range = case.range.as_ref().filter(|_| suspect);
        StragglerRow {
            rank: parts[rank].rank,
            steps: own_ns.len() as i32,
            steps_last: compared().filter(|&step| chain.was_last(rank, step)).count() as i32,
            own_excess_ns: median_ns(&own_ns).unwrap_or(0),
            own_excess_low_ns: interval.map(|i| i.0),
            own_excess_high_ns: interval.map(|i| i.1),
            step_delay_ns: case.most_delay_ns(basis).map_or(delay_ns, |most_ns| most_ns.min(delay_ns)),
            caused_wait_ns: per_step(charges.caused_ns[rank]),
            inherited_ns: per_step(charges.inherited_ns[rank]),
            suffered_wait_ns: per_step(charges.suffered_ns[rank]),
            z: case.own.and_then(|d| d.z()),
            persistence: case.own.map(|d| d.persistence),
            slowdown: slowdowns[rank],
            verdict: verdict.into(),
            reason: suspect.then(|| case.reason().into()),
            evidence_range: range.map(|r| r.known_as().clone()),
            evidence_excess_ns: range.map(|r| r.excess_ns.round() as i64),
            evidence_z: range.and_then(|r| r.deviation.z()),
            evidence_persistence: range.map(|r| r.deviation.persistence),
            stands_on: basis.filter(|_| suspect).map(Word::from),
            evidence: Some(case.sentence(verdict, thresholds).into()),
        }
    };
    Stragglers {
        stragglers: (0..parts.len()).map(row).collect(),
        waits: wait_rows(&join, &parts),
        waited_ns: charges.suffered_ns.iter().sum(),
        charged_ns: charges.caused_ns.clone(),
        before_recording_ns: charges.before_recording_ns,
        omissions: omissions(join, &excess, &parts),
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

fn cases(parts: &[&OwnTime], excess: &Excess, charges: &Charges, steps: usize, t: &Thresholds) -> Vec<Case> {
    let step_ns = lower_median(parts.iter().flat_map(|p| p.steps.iter().map(|s| s.dur_ns))).unwrap_or(0);
    let series = excess_series(excess);
    let busy = device_excess(parts, &excess.steps);
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
    let ranges = best_ranges(parts, &excess.steps, &least_range_ns, t);
    let case = |(rank, range): (usize, _)| Case {
        own: owns[rank],
        range,
        alone: parts.len() == 1,
        step_ns,
        min_effect_ns: least_effect_ns(parts[rank]),
        suffered_ns: charges.suffered_ns[rank] as f64 / steps.max(1) as f64,
        device_excess_ns: parts[rank].has_device.then(|| median(busy[rank].iter().copied()).unwrap_or(0.0)),
    };
    ranges.into_iter().enumerate().map(case).collect()
}

/// The excess of each rank by step. If only two ranks can be compared, it is the signed difference to the other rank,
/// because the excess above the lower median is never negative for two ranks.
fn excess_series(excess: &Excess) -> Vec<Vec<f64>> {
    let ranks: Vec<usize> = (0..excess.ns.len()).filter(|&rank| excess.ns[rank].iter().any(Option::is_some)).collect();
    let mut series: Vec<Vec<f64>> = excess.ns.iter().map(|v| v.iter().flatten().map(|&e| e as f64).collect()).collect();
    if let [a, b] = ranks[..] {
        let difference = |(x, y): (&Option<i64>, &Option<i64>)| Some(((*x)? - (*y)?) as f64);
        series[a] = excess.ns[a].iter().zip(&excess.ns[b]).filter_map(difference).collect();
        series[b] = series[a].iter().map(|d| -d).collect();
    }
    series
}

/// The device work within own stretches above that of the other ranks, by rank and step.
fn device_excess(parts: &[&OwnTime], steps: &[i32]) -> Vec<Vec<f64>> {
    let busy = |p: &OwnTime, step: &i32| {
        let row = p.steps.binary_search_by_key(step, |s| s.step).ok()?;
        p.has_device.then(|| p.steps[row].device_busy_ns)
    };
    let values: Vec<Vec<Option<i64>>> = parts.iter().map(|p| steps.iter().map(|s| busy(p, s)).collect()).collect();
    above_others(&values).0
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
            wait_clockfree_ns: a.dur_ns.zip(shortest_ns).filter(|_| comparable).map(|(dur, shortest)| dur - shortest),
            own_excess_ns: instance.own_excess_ns(a),
            inherited_ns: instance.inherited_ns(a),
        }));
    }
    rows
}

fn omissions(join: Join, excess: &Excess, parts: &[&OwnTime]) -> Vec<OmissionRow> {
    let mut rows = join.omissions;
    if excess.skipped > 0 {
        rows.push(
            OmissionRow::new(
                "collectives ignored for the verdict",
                "a rank that took part in the step recorded no time there",
            )
            .amount(excess.skipped),
        );
    }
    rows.extend(parts.iter().filter(|p| p.ranges_dropped > 0).map(|p| {
        OmissionRow::new("host ranges in straggler evidence", "only the largest ranges are kept")
            .rank(p.rank)
            .amount(p.ranges_dropped as i64)
    }));
    rows
}
