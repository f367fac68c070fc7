//! What lines cost: by replays of the run in which they are mended.

use std::collections::BTreeMap;

use crate::graph::SpanKind;
use crate::lengths::Lengths;
use crate::lines::FoundLine;
use crate::scaled::{Scaled, inner};
use model::stats::student_quantile;

/// Up to so many groups, shares are over all orders.
const ALL_ORDERS: usize = 6;
/// Orders of more groups.
const SOME_ORDERS: usize = 20;
/// Means that are drawn for an interval.
const DRAWS: usize = 2000;
/// By how much a replay misses what a job without its fault takes: this share of a step, and of what it saves. Simulated jobs show it.
pub(crate) const ERROR_OF_STEP: f64 = 0.003;
const ERROR_OF_COST: f64 = 0.08;

/// Replays of the run with sets of lines mended.
pub(crate) struct Prices<'a> {
    run: &'a Scaled,
    lengths: &'a Lengths,
    lines: &'a [FoundLine],
    recorded_ns: Vec<i64>,
    known: BTreeMap<Vec<usize>, Vec<i64>>,
}

impl<'a> Prices<'a> {
    pub(crate) fn new(run: &'a Scaled, lengths: &'a Lengths, lines: &'a [FoundLine]) -> Self {
        let recorded_ns = run.lengths_ns(&lengths.recorded_ns);
        Self { run, lengths, lines, recorded_ns, known: BTreeMap::new() }
    }

    /// What mending these lines saves in each step. `set` ascends.
    pub(crate) fn saved_ns(&mut self, set: &[usize]) -> Vec<i64> {
        if let Some(saved_ns) = self.known.get(set) {
            return saved_ns.clone();
        }
        let mut spans_ns = self.lengths.recorded_ns.clone();
        for span in set.iter().flat_map(|at| &self.lines[*at].spans) {
            spans_ns[*span as usize] = self.lengths.typical_ns[*span as usize];
        }
        let mended_ns = self.run.lengths_ns(&spans_ns);
        let saved_ns: Vec<i64> = self.recorded_ns.iter().zip(mended_ns).map(|(before, after)| before - after).collect();
        self.known.insert(set.to_vec(), saved_ns.clone());
        saved_ns
    }

    /// The excess of slow transfers, over all steps; 0 of other lines.
    pub(crate) fn excess_of_transfers_ns(&self, line: usize) -> i64 {
        let FoundLine { kind, spans, .. } = &self.lines[line];
        let Lengths { recorded_ns, typical_ns, .. } = self.lengths;
        let excess_ns = |span: &u32| recorded_ns[*span as usize] - typical_ns[*span as usize];
        if *kind == SpanKind::Transfer { spans.iter().map(excess_ns).sum() } else { 0 }
    }

    /// The Shapley share of each group of lines of what mending all saves, step by step; they sum to that.
    pub(crate) fn shares_ns(&mut self, groups: &[Vec<usize>]) -> Vec<Vec<i64>> {
        let steps = self.recorded_ns.len();
        let mut sums = vec![vec![0_i128; steps]; groups.len()];
        let orders = orders(groups.len());
        let lines_of = |groups_of: &[usize]| {
            let mut lines: Vec<usize> = groups_of.iter().flat_map(|group| groups[*group].iter().copied()).collect();
            lines.sort_unstable();
            lines
        };
        for order in &orders {
            let mut before = vec![0; steps];
            for at in 1..=groups.len() {
                let saved = self.saved_ns(&lines_of(&order[..at]));
                let sums = sums[order[at - 1]].iter_mut().zip(saved.iter().zip(&before));
                sums.for_each(|(sum, (saved, before))| *sum += i128::from(saved - before));
                before = saved;
            }
        }
        let count = orders.len().max(1) as i128;
        let mut shares: Vec<Vec<i64>> =
            sums.iter().map(|sums| sums.iter().map(|sum| (sum / count) as i64).collect()).collect();
        // What rounding left goes to the first group.
        let all = self.saved_ns(&lines_of(&(0..groups.len()).collect::<Vec<_>>()));
        for step in 0..steps {
            let sum: i64 = shares.iter().map(|share| share[step]).sum();
            if let Some(first) = shares.first_mut() {
                first[step] += all[step] - sum;
            }
        }
        shares
    }
}

/// A cost per step, and its interval at 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The mean.
    pub ns: i64,
    /// Lower end.
    pub low_ns: i64,
    /// Upper end.
    pub high_ns: i64,
}

impl Cost {
    /// The cost of what lasts over the steps, from what each step saves; of single stalls, whose number is known, if `is_counted`.
    /// `unexplained` is the share of a step that nothing explains.
    pub(crate) fn of(saved_ns: &[i64], is_counted: bool, step_ns: i64, unexplained: f64) -> Self {
        let series: Vec<f64> = saved_ns.iter().map(|ns| *ns as f64).collect();
        let mean = series.iter().sum::<f64>() / series.len().max(1) as f64;
        let (low, high) = if is_counted { (mean, mean) } else { interval(&series, mean) };
        let error = error_ns(mean, step_ns, unexplained);
        let rounded = |ns: f64| ns.round() as i64;
        Self { ns: rounded(mean), low_ns: rounded(low - error), high_ns: rounded(high + error) }
    }

    /// The same of what lasts over all steps, without the first and the last one. If the others save for certain, these count for the
    /// upper end: what a host loses that runs ahead of its device delays the last step.
    pub(crate) fn of_inner(saved_ns: &[i64], step_ns: i64, unexplained: f64) -> Self {
        let cost = Self::of(inner(saved_ns), false, step_ns, unexplained);
        let mean = saved_ns.iter().sum::<i64>() as f64 / saved_ns.len().max(1) as f64;
        let high_ns = (mean + error_ns(mean, step_ns, unexplained)).round() as i64;
        Self { high_ns: if cost.low_ns > 0 { cost.high_ns.max(high_ns) } else { cost.high_ns }, ..cost }
    }

    /// The mean of a series of steps, and its interval.
    pub fn of_series(by_step: &[i64]) -> Self {
        Self::of(by_step, false, 0, 0.0)
    }
}

/// By how much a replay may miss a mean cost.
fn error_ns(mean_ns: f64, step_ns: i64, unexplained: f64) -> f64 {
    ERROR_OF_STEP * step_ns as f64 + (ERROR_OF_COST + unexplained) * mean_ns.abs()
}

/// The 95 % interval of the mean of steps: block bootstrap, widened as Student's t is; of less than four steps, their range.
fn interval(series: &[f64], mean: f64) -> (f64, f64) {
    let n = series.len();
    if n < 4 {
        let least = series.iter().copied().fold(f64::INFINITY, f64::min);
        return (least, series.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    }
    let block = if n > 8 { 2 } else { 1 };
    let mut random = trace::random::SplitMix64(0);
    let mut draw = || (random.next_u64() % n as u64) as usize;
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let blocks = n.div_ceil(block);
            let of_block = |from: usize| (0..block).map(move |k| series[(from + k) % n]).sum::<f64>();
            (0..blocks).map(|_| of_block(draw())).sum::<f64>() / (blocks * block) as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let freedom = n as f64 - 1.0;
    let wider = student_quantile(0.025, freedom) / 1.96 * (n as f64 / freedom).sqrt();
    let end = |share: f64| mean + wider * (means[(share * DRAWS as f64) as usize] - mean);
    (end(0.025), end(0.975))
}

/// All orders of few lines; of many, some turns of that of finding and of its reverse.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n > ALL_ORDERS {
        let turned = |by: usize| (0..n).map(move |at| (at + by) % n);
        return (0..n.min(SOME_ORDERS)).flat_map(|by| [turned(by).collect(), turned(by).rev().collect()]).collect();
    }
    let mut orders = vec![Vec::new()];
    for at in 0..n {
        let with = |order: Vec<usize>| {
            (0..=order.len()).map(move |place| {
                let mut longer = order.clone();
                longer.insert(place, at);
                longer
            })
        };
        orders = orders.into_iter().flat_map(with).collect();
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_mean() {
        let cost = |saved_ns: &[i64]| Cost::of(saved_ns, false, 0, 0.0);
        assert_eq!(cost(&[100; 8]), Cost { ns: 100, low_ns: 92, high_ns: 108 });
        assert_eq!(cost(&[80, 100, 120]), Cost { ns: 100, low_ns: 72, high_ns: 128 });
        let wide = cost(&[0, 200, 0, 200, 0, 200, 0, 200]);
        assert!(wide.low_ns < 30 && wide.high_ns > 170, "{wide:?}");
        assert_eq!(Cost::of(&[0, 0, 300], true, 0, 0.0), Cost { ns: 100, low_ns: 92, high_ns: 108 });
    }

    #[test]
    fn few_groups_have_all_orders() {
        assert_eq!(orders(0), [[0; 0]]);
        assert_eq!(orders(3).len(), 6);
        assert_eq!(orders(7).len(), 14);
        assert!(orders(7).iter().all(|order| order.iter().sum::<usize>() == 21));
    }
}
