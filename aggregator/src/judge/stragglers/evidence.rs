//! The evidence of a verdict: the host range that holds a rank's excess.

use std::collections::BTreeMap;

use trace::Text;

use crate::base::stats::median;
use crate::judge::stragglers::deviation::{Deviation, deviations};
use crate::measure::own_time::OwnTime;
use crate::model::thresholds::Thresholds;

/// A host range that takes longer on one rank than on the others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evidence {
    pub(super) name: Text,
    /// The user's range that this range fills almost completely, if this range is a frame of a Python stack.
    pub(super) fills: Option<Text>,
    /// Whether the range loads input data.
    pub(super) input: bool,
    /// The median over steps of its self time above the lower median of the other ranks.
    pub(super) excess_ns: f64,
    /// The deviation of this range from the same range on the other ranks.
    pub(super) deviation: Deviation,
    /// The summed excess of all ranges of the rank that stand out, including this one.
    pub(super) distinct_ns: f64,
}

impl Evidence {
    /// The name that the user chose, if there is one.
    pub(super) fn known_as(&self) -> &Text {
        self.fills.as_ref().unwrap_or(&self.name)
    }

    /// The certain part of the excess. Ranges are selected by this part, because the plain excess would favour the
    /// busiest range, which has the largest fluctuations.
    fn certain_ns(&self, thresholds: &Thresholds) -> f64 {
        let d = &self.deviation;
        if d.outlier && d.chance <= thresholds.max_chance {
            d.effect_ns - thresholds.min_range_z * d.error_ns
        } else {
            f64::NEG_INFINITY
        }
    }
}

/// For each rank, the range with the largest certain excess over `steps`, or the range with the largest excess if none
/// is certain. `None` if no range exceeds the other ranks by at least the rank's `least_ns`, because such a range is
/// too small to explain the excess.
pub(super) fn best_ranges(
    parts: &[&OwnTime],
    steps: &[i32],
    least_ns: &[f64],
    thresholds: &Thresholds,
) -> Vec<Option<Evidence>> {
    let rows: Vec<Vec<Option<usize>>> = parts.iter().map(|p| step_rows(p, steps)).collect();
    let mut ranges: BTreeMap<(&str, bool), Vec<Option<usize>>> = BTreeMap::new();
    for (rank, part) in parts.iter().enumerate() {
        for (at, range) in part.ranges.iter().enumerate() {
            ranges.entry((&range.name, range.input)).or_insert_with(|| vec![None; parts.len()])[rank] = Some(at);
        }
    }
    let mut best: Vec<Option<Evidence>> = vec![None; parts.len()];
    let mut distinct_ns = vec![0.0; parts.len()];
    for ((_, input), at) in ranges {
        let selves: Vec<Vec<Option<i64>>> =
            (0..parts.len()).map(|rank| self_times(parts[rank], at[rank], &rows[rank])).collect();
        let (series, normal_ns) = above_others(&selves);
        let deviations = deviations(&series);
        for rank in 0..parts.len() {
            let Some(part_range) = at[rank].map(|i| &parts[rank].ranges[i]) else { continue };
            let Some(excess_ns) = median(series[rank].iter().copied()) else { continue };
            let Some(deviation) = deviations[rank] else { continue };
            let sigma_ns = (thresholds.host_error_ns as f64).max(normal_ns[rank] * thresholds.range_noise_pct / 100.0);
            let candidate = Evidence {
                name: part_range.name.clone(),
                fills: part_range.fills.clone(),
                input,
                excess_ns,
                deviation: deviation.with_least_sigma(sigma_ns),
                distinct_ns: 0.0,
            };
            if candidate.certain_ns(thresholds) > 0.0 {
                distinct_ns[rank] += excess_ns;
            }
            if excess_ns < least_ns[rank] {
                continue;
            }
            if best[rank].as_ref().is_none_or(|best| is_better(&candidate, best, thresholds)) {
                best[rank] = Some(candidate);
            }
        }
    }
    for (evidence, sum_ns) in best.iter_mut().zip(distinct_ns) {
        if let Some(evidence) = evidence {
            evidence.distinct_ns = sum_ns.max(evidence.excess_ns);
        }
    }
    best
}

fn is_better(a: &Evidence, b: &Evidence, thresholds: &Thresholds) -> bool {
    let (certain_a, certain_b) = (a.certain_ns(thresholds), b.certain_ns(thresholds));
    if certain_a.max(certain_b) > 0.0 { certain_a > certain_b } else { a.excess_ns > b.excess_ns }
}

/// The position in the part of each of `steps`.
fn step_rows(part: &OwnTime, steps: &[i32]) -> Vec<Option<usize>> {
    steps.iter().map(|step| part.steps.binary_search_by_key(step, |s| s.step).ok()).collect()
}

/// The self time of a range by step. An absent range counts as 0. If the part had to drop ranges, an absent range
/// counts as the largest dropped one, so that it cannot make another rank stand out.
fn self_times(part: &OwnTime, range: Option<usize>, rows: &[Option<usize>]) -> Vec<Option<i64>> {
    let absent_ns = part.dropped_max_ns;
    let self_ns = |row: usize| range.map_or(absent_ns, |range| part.ranges[range].self_ns[row]);
    rows.iter().map(|row| row.map(self_ns)).collect()
}

/// For each rank, its values above the lower median of the other ranks in the same step, and the median of these lower
/// medians over steps.
pub(super) fn above_others(values: &[Vec<Option<i64>>]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let steps = values.first().map_or(0, Vec::len);
    let mut above = vec![Vec::with_capacity(steps); values.len()];
    let mut normal = vec![Vec::with_capacity(steps); values.len()];
    let mut sorted: Vec<(i64, usize)> = Vec::with_capacity(values.len());
    for step in 0..steps {
        sorted.clear();
        sorted.extend(values.iter().enumerate().filter_map(|(rank, v)| Some((v[step]?, rank))));
        sorted.sort_unstable();
        let Some(others) = sorted.len().checked_sub(1).filter(|&n| n > 0) else { continue };
        // The lower median without one element: the element at `middle`, or the next one if the removed element is at
        // or before `middle`.
        let middle = (others - 1) / 2;
        for (place, &(value, rank)) in sorted.iter().enumerate() {
            let (other, _) = sorted[if place <= middle { middle + 1 } else { middle }];
            above[rank].push((value - other) as f64);
            normal[rank].push(other as f64);
        }
    }
    let normal = normal.into_iter().map(|v| median(v).unwrap_or(0.0)).collect();
    (above, normal)
}
