//! The evidence of a verdict: the host range that holds a rank's excess.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use trace::Text;

use crate::deviation::{Deviation, deviations};
use measure::own_time::OwnTime;
use model::stats::median;
use model::thresholds::Thresholds;
use topology::per_step::PerStep;
use topology::same_work::Baseline;

/// A host range that takes longer on one rank than on the others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Evidence {
    /// `None`: the time outside of all ranges.
    pub(super) name: Option<Text>,
    /// The user's range that this range fills almost completely, if this range is a frame of a Python stack.
    pub(super) fills: Option<Text>,
    /// The user's Python function with more than half of its time.
    pub(super) code: Option<Text>,
    /// Whether the range loads input data.
    pub(super) input: bool,
    /// Whether the time of operators holds the time of this range, although no operator explains it.
    pub(super) in_operator: bool,
    /// The median over steps of its self time above the lower median of the other ranks.
    pub(super) excess_ns: f64,
    /// The deviation of this range from the same range on the other ranks.
    pub(super) deviation: Deviation,
    /// The summed excess of all ranges of the rank that stand out, including this one.
    pub(super) distinct_ns: f64,
}

impl Evidence {
    /// The name that the user chose, if there is one; else the name of the range.
    pub(super) fn known_as(&self) -> Option<&Text> {
        self.fills.as_ref().or(self.name.as_ref())
    }

    /// The range in words.
    pub(super) fn place(&self) -> String {
        self.known_as().map_or("the time outside of all recorded ranges".into(), |name| format!("range `{name}`"))
    }

    /// The key of the range among [`Ranges`].
    pub(super) fn key(&self) -> RangeKey<'_> {
        (self.name.as_deref(), self.input)
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

/// A range of all ranks: its name, and whether it loads input.
pub(super) type RangeKey<'a> = (Option<&'a str>, bool);

/// The ranges of all ranks.
pub(super) struct Ranges<'a> {
    parts: &'a [&'a OwnTime],
    per_step: PerStep,
    thresholds: &'a Thresholds,
    usual: &'a Baseline,
    /// For each rank and compared step, the position of the step in the part.
    rows: Vec<Vec<Option<usize>>>,
    /// For each range, the ranks that have it, ascending, each with the position of the range in its part.
    positions: BTreeMap<RangeKey<'a>, Vec<(usize, usize)>>,
    /// The number of ranges that are not compared, because there are too many.
    pub(super) left_out: usize,
}

/// Times of ranges that are compared at most: ranges × ranks × steps. Each costs about 20 ns.
const VALUES_MAX: usize = 1 << 29;

/// One range, compared between the ranks.
pub(super) struct Compared {
    /// For each rank, its distance from the others; `None` if it cannot be compared.
    pub(super) evidence: Vec<Option<Evidence>>,
    /// For each rank and compared step, the time in the range above the lower median of the other ranks.
    pub(super) excess_ns: Vec<Vec<Option<f64>>>,
}

impl<'a> Ranges<'a> {
    /// The ranges of `parts` in `steps`. Ranks are compared with the usual ones.
    pub(super) fn of(
        (parts, usual): (&'a [&'a OwnTime], &'a Baseline),
        steps: &[i32],
        per_step: PerStep,
        thresholds: &'a Thresholds,
    ) -> Self {
        let rows = parts.iter().map(|p| step_rows(p, steps)).collect();
        let mut positions: BTreeMap<RangeKey<'a>, Vec<(usize, usize)>> = BTreeMap::new();
        for (rank, part) in parts.iter().enumerate().filter(|_| !steps.is_empty()) {
            for (at, range) in part.ranges.iter().enumerate() {
                let key = (range.name.as_deref(), range.input);
                positions.entry(key).or_default().push((rank, at));
            }
        }
        let mut ranges = Self { parts, per_step, thresholds, usual, rows, positions, left_out: 0 };
        ranges.keep_longest(VALUES_MAX / (parts.len() * steps.len()).max(1));
        ranges
    }

    /// Keeps the ranges that take the most time in all ranks together.
    fn keep_longest(&mut self, most: usize) {
        self.left_out = self.positions.len().saturating_sub(most);
        if self.left_out == 0 {
            return;
        }
        let time_ns = |at: &[(usize, usize)]| -> i128 {
            let times = at.iter().flat_map(|(rank, at)| &self.parts[*rank].ranges[*at].self_ns);
            times.map(|ns| i128::from(*ns)).sum()
        };
        let mut order: Vec<(Reverse<i128>, RangeKey<'a>)> =
            self.positions.iter().map(|(key, at)| (Reverse(time_ns(at)), *key)).collect();
        order.sort_unstable();
        for (_, key) in &order[most..] {
            self.positions.remove(key);
        }
    }

    /// Compares the ranks in one range.
    pub(super) fn compare(&self, key: RangeKey<'_>) -> Compared {
        let mut at = vec![None; self.parts.len()];
        for (rank, position) in self.positions.get(&key).into_iter().flatten() {
            at[*rank] = Some(*position);
        }
        let selves: Vec<Vec<Option<i64>>> = (0..self.parts.len()).map(|rank| self.self_times(rank, at[rank])).collect();
        let (excess_ns, normal_ns) = above_others(&selves, &self.usual.is_member);
        let series: Vec<Vec<f64>> = excess_ns.iter().map(|steps| steps.iter().flatten().copied().collect()).collect();
        let deviations = deviations(&series, self.usual);
        let evidence = |rank: usize| {
            let range = at[rank].map(|i| &self.parts[rank].ranges[i]);
            let noise_ns = normal_ns[rank] * self.thresholds.range_noise_pct / 100.0;
            Some(Evidence {
                name: range.map_or_else(|| key.0.map(Text::from), |range| range.name.clone()),
                fills: range.and_then(|range| range.fills.clone()),
                code: range.and_then(|range| range.code.clone()),
                input: key.1,
                in_operator: range.is_some_and(|range| range.in_operator),
                excess_ns: median(series[rank].iter().copied())?,
                deviation: deviations[rank]?.with_least_sigma((self.thresholds.host_error_ns as f64).max(noise_ns)),
                distinct_ns: 0.0,
            })
        };
        Compared { evidence: (0..self.parts.len()).map(evidence).collect(), excess_ns }
    }

    /// For each rank, the range with the largest certain excess, or the range with the largest excess if none is certain.
    /// `None` if no range exceeds the other ranks by at least the rank's `least_ns`, because such a range is too small to
    /// explain the excess.
    pub(super) fn best(&self, least_ns: &[f64]) -> Vec<Option<Evidence>> {
        let mut best: Vec<Option<Evidence>> = vec![None; self.parts.len()];
        let mut distinct_ns = vec![0.0; self.parts.len()];
        for (&key, at) in &self.positions {
            let mut evidence = self.compare(key).evidence;
            for &(rank, _) in at {
                let Some(candidate) = evidence[rank].take() else { continue };
                if candidate.certain_ns(self.thresholds) > 0.0 {
                    distinct_ns[rank] += candidate.excess_ns;
                }
                let is_better = |best: &Evidence| is_better(&candidate, best, self.thresholds);
                if candidate.excess_ns >= least_ns[rank] && best[rank].as_ref().is_none_or(is_better) {
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

    /// The self time of a rank's range by step. An absent range counts as 0. If the part had to drop ranges, an absent
    /// range counts as the largest dropped one, so that it cannot make another rank stand out.
    fn self_times(&self, rank: usize, range: Option<usize>) -> Vec<Option<i64>> {
        let part = self.parts[rank];
        let self_ns = |row: usize| range.map_or(part.dropped_max_ns, |range| part.ranges[range].self_ns[row]);
        self.rows[rank].iter().map(|row| row.map(|row| self.per_step.ns(self_ns(row)))).collect()
    }
}

fn is_better(a: &Evidence, b: &Evidence, thresholds: &Thresholds) -> bool {
    let (certain_a, certain_b) = (a.certain_ns(thresholds), b.certain_ns(thresholds));
    if certain_a.max(certain_b) > 0.0 { certain_a > certain_b } else { a.excess_ns > b.excess_ns }
}

/// The position in the part of each of `steps`.
fn step_rows(part: &OwnTime, steps: &[i32]) -> Vec<Option<usize>> {
    steps.iter().map(|step| part.steps.binary_search_by_key(step, |s| s.step).ok()).collect()
}

/// For each rank and step, its value above the lower median of the other usual ranks in that step; and for each rank, the median of
/// these lower medians over steps.
pub(super) fn above_others(values: &[Vec<Option<i64>>], is_usual: &[bool]) -> (Vec<Vec<Option<f64>>>, Vec<f64>) {
    let steps = values.first().map_or(0, Vec::len);
    let mut above = vec![vec![None; steps]; values.len()];
    let mut normal = vec![Vec::with_capacity(steps); values.len()];
    let mut sorted: Vec<(i64, usize)> = Vec::with_capacity(values.len());
    for step in 0..steps {
        sorted.clear();
        let known = || values.iter().enumerate().filter_map(|(rank, v)| Some((v[step]?, rank)));
        sorted.extend(known().filter(|(_, rank)| is_usual[*rank]));
        sorted.sort_unstable();
        let Some(others) = sorted.len().checked_sub(1).filter(|&n| n > 0) else { continue };
        // The lower median without one element: the element at `middle`, or the next one if the removed element is at
        // or before `middle`.
        let middle = (others - 1) / 2;
        for (place, &(value, rank)) in sorted.iter().enumerate() {
            let (other, _) = sorted[if place <= middle { middle + 1 } else { middle }];
            above[rank][step] = Some((value - other) as f64);
            normal[rank].push(other as f64);
        }
        let (other, _) = sorted[others / 2];
        for (value, rank) in known().filter(|(_, rank)| !is_usual[*rank]) {
            above[rank][step] = Some((value - other) as f64);
            normal[rank].push(other as f64);
        }
    }
    let normal = normal.into_iter().map(|v| median(v).unwrap_or(0.0)).collect();
    (above, normal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::own_time::{RangePart, StepPart};

    /// Of more ranges than can be compared, those with the most time in all ranks together are.
    #[test]
    fn the_longest_ranges_are_kept() {
        let range = |name: &str, ns| RangePart { name: Some(name.into()), self_ns: vec![ns], ..RangePart::default() };
        let part = |rank, ranges: &[(&str, i64)]| OwnTime {
            rank,
            steps: vec![StepPart { step: 1, ..StepPart::default() }],
            ranges: ranges.iter().map(|(name, ns)| range(name, *ns)).collect(),
            ..OwnTime::default()
        };
        let parts = [part(0, &[("a", 5), ("b", 4), ("c", 1)]), part(1, &[("b", 2), ("d", 3)])];
        let (parts, thresholds): (Vec<&OwnTime>, _) = (parts.iter().collect(), Thresholds::default());
        let usual = Baseline::all(2);
        let mut ranges = Ranges::of((&parts, &usual), &[1], PerStep::of(&parts), &thresholds);
        assert_eq!((ranges.positions.len(), ranges.left_out), (4, 0));
        ranges.keep_longest(2);
        let names: Vec<_> = ranges.positions.keys().map(|(name, _)| name.unwrap()).collect();
        assert_eq!((names, ranges.left_out), (vec!["a", "b"], 2));
        assert!(
            Ranges::of((&parts, &usual), &[], PerStep::of(&parts), &thresholds).positions.is_empty(),
            "no step, nothing to compare"
        );
    }
}
