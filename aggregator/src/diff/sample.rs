//! The series of a run as the comparison needs them: ranks that both sides have, steps that all of these have.

use std::collections::BTreeSet;

use super::profile::{Group, Key, Measure, RunProfile};
use super::statistics::Estimate;
use crate::straggler::median;

/// A run, cut to common ranks and steps.
pub(super) struct Sample<'a> {
    run: &'a RunProfile,
    /// Position in the run's ranks of each common rank.
    ranks: Vec<usize>,
    /// For each common rank, positions of the common steps in its series.
    steps: Vec<Vec<usize>>,
}

/// What a key is in one run.
pub(super) struct Estimates {
    /// Of the mean over ranks.
    pub(super) all: Estimate,
    /// Of each common rank against the others; empty where there is one rank, or where ranks cannot differ.
    pub(super) ranks: Vec<Estimate>,
}

impl<'a> Sample<'a> {
    pub(super) fn new(run: &'a RunProfile, common: &BTreeSet<i32>) -> Self {
        let chosen = run.ranks.iter().enumerate().filter(|(_, p)| common.contains(&p.rank));
        let ranks: Vec<usize> = chosen.map(|(at, _)| at).collect();
        let of = |at: &usize| run.ranks[*at].steps.iter().copied().collect::<BTreeSet<i32>>();
        let shared = ranks.iter().map(of).reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default();
        let positions = |at: &usize| {
            let steps = &run.ranks[*at].steps;
            shared.iter().filter_map(|step| steps.binary_search(step).ok()).collect()
        };
        Self { run, steps: ranks.iter().map(positions).collect(), ranks }
    }

    /// Common steps.
    pub(super) fn steps(&self) -> usize {
        self.steps.first().map_or(0, Vec::len)
    }

    /// Every key that any common rank has.
    pub(super) fn keys(&self) -> BTreeSet<&'a Key> {
        self.ranks.iter().flat_map(|at| self.run.ranks[*at].series.keys()).collect()
    }

    /// Values of a key by rank and step; `None` if no rank has it.
    fn matrix(&self, key: &Key) -> Option<Vec<Vec<f64>>> {
        let row = |(at, steps): (&usize, &Vec<usize>)| match self.run.ranks[*at].series.get(key) {
            Some(series) => (true, steps.iter().map(|step| series[*step]).collect()),
            None => (false, vec![0.0; steps.len()]),
        };
        let rows: Vec<(bool, Vec<f64>)> = self.ranks.iter().zip(&self.steps).map(row).collect();
        rows.iter().any(|(has, _)| *has).then(|| rows.into_iter().map(|(_, values)| values).collect())
    }

    /// The estimates of a key; `None` if the run does not have it or knows no value.
    pub(super) fn estimates(&self, key: &Key) -> Option<Estimates> {
        let matrix = self.matrix(key)?;
        let ranks = matrix.len();
        let column = |step: usize| matrix.iter().map(move |values| values[step]);
        let mean: Vec<f64> = (0..self.steps()).map(|step| column(step).sum::<f64>() / ranks as f64).collect();
        let all = Estimate::of(&mean, &mean)?;
        // These are facts of the job and the same on all ranks; buckets' transfers, too.
        let of_the_job = key.group == Group::Collective && matches!(key.measure, Measure::Skew | Measure::Transfer);
        if ranks < 2 || of_the_job {
            return Some(Estimates { all, ranks: Vec::new() });
        }
        let mut contrasts = vec![Vec::with_capacity(self.steps()); ranks];
        for step in 0..self.steps() {
            let mut sorted: Vec<f64> = column(step).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            for (contrast, value) in contrasts.iter_mut().zip(column(step)) {
                contrast.push(value - median_of_others(&sorted, value));
            }
        }
        let mut estimates = Vec::with_capacity(ranks);
        for (contrast, own) in contrasts.iter().zip(&matrix) {
            estimates.push(Estimate::of(contrast, own)?);
        }
        // A rank may have been lucky to vary little; it is not believed to vary less than ranks do.
        let usual_ns = median(estimates.iter().map(|e| e.sigma_ns)).unwrap_or(0.0);
        estimates.iter_mut().for_each(|e| e.sigma_ns = e.sigma_ns.max(usual_ns));
        Some(Estimates { all, ranks: estimates })
    }
}

/// The median of all values but one that equals `value`; NaN if any is unknown.
fn median_of_others(sorted: &[f64], value: f64) -> f64 {
    if value.is_nan() || sorted.last().is_none_or(|last| last.is_nan()) {
        return f64::NAN;
    }
    let own = sorted.partition_point(|v| v.total_cmp(&value).is_lt());
    let other = |at: usize| sorted[if at < own { at } else { at + 1 }];
    let others = sorted.len() - 1;
    if others % 2 == 1 { other(others / 2) } else { (other(others / 2 - 1) + other(others / 2)) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_others_leaves_one_out() {
        let sorted = [1.0, 2.0, 2.0, 5.0];
        assert_eq!(median_of_others(&sorted, 1.0), 2.0);
        assert_eq!(median_of_others(&sorted, 2.0), 2.0);
        assert_eq!(median_of_others(&sorted, 5.0), 2.0);
        assert_eq!(median_of_others(&[3.0, 9.0], 3.0), 9.0);
        assert_eq!(median_of_others(&[1.0, 3.0, 9.0], 9.0), 2.0);
        assert!(median_of_others(&[1.0, f64::NAN], 1.0).is_nan());
    }
}
