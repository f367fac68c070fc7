//! The series of a run, restricted to the ranks that are compared and to the steps that all of these ranks have.

use std::collections::BTreeSet;

use crate::inference::Estimate;
use crate::profile::{Group, Key, Measure, RunProfile};
use crate::rank_kernels::RankKernels;
use model::stats::{median, median_of_others};
use trace::Text;

/// A run, restricted to common ranks and steps.
pub(super) struct Sample<'a> {
    run: &'a RunProfile,
    /// For each compared rank, its index in the run.
    ranks: Vec<usize>,
    /// For each common rank, the indices of the common steps in its series.
    steps: Vec<Vec<usize>>,
    /// The middle half of the common steps by length, as positions among them.
    middle: Vec<usize>,
}

/// The estimates of one key in one run.
pub(super) struct Estimates {
    /// Estimate of the mean over ranks.
    pub(super) all: Estimate,
    /// Estimate of each common rank against the others. Empty with one rank, or for quantities that ranks share.
    pub(super) ranks: Vec<Estimate>,
}

impl<'a> Sample<'a> {
    pub(super) fn new(run: &'a RunProfile, common: &BTreeSet<i32>) -> Self {
        let chosen = run.ranks.iter().enumerate().filter(|(_, p)| common.contains(&p.rank));
        let ranks: Vec<usize> = chosen.map(|(at, _)| at).collect();
        let steps_of = |at: &usize| run.ranks[*at].steps.iter().copied().collect::<BTreeSet<i32>>();
        let shared =
            ranks.iter().map(steps_of).reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default();
        let positions = |at: &usize| {
            let steps = &run.ranks[*at].steps;
            shared.iter().filter_map(|step| steps.binary_search(step).ok()).collect()
        };
        let mut sample = Self { run, steps: ranks.iter().map(positions).collect(), ranks, middle: Vec::new() };
        sample.middle = sample.middle_steps();
        sample
    }

    /// The steps that are neither in the shortest nor in the longest quarter. The means of all parts over the same steps sum
    /// to the mean of the step, which medians do not, and a few unusual steps do not change them.
    fn middle_steps(&self) -> Vec<usize> {
        let length_ns = self.means(&Key::step());
        let mut order: Vec<usize> = (0..self.steps()).collect();
        let length = |step: &usize| length_ns.as_ref().map_or(0.0, |ns| ns[*step]);
        order.sort_by(|x, y| length(x).total_cmp(&length(y)).then(x.cmp(y)));
        let quarter = order.len() / 4;
        order[quarter..order.len() - quarter].to_vec()
    }

    /// The mean over ranks of a key in each step; `None` if no rank has it.
    fn means(&self, key: &Key) -> Option<Vec<f64>> {
        self.matrix(key).map(|matrix| mean_over_ranks(&matrix, self.steps()))
    }

    /// Number of common steps.
    pub(super) fn steps(&self) -> usize {
        self.steps.first().map_or(0, Vec::len)
    }

    /// The kernels of each common rank, and the indices of the common steps in their counts.
    pub(super) fn kernels(&self) -> impl Iterator<Item = (&'a RankKernels, &[usize])> {
        self.ranks.iter().zip(&self.steps).map(|(at, steps)| (&self.run.ranks[*at].kernels, &**steps))
    }

    /// All keys that any common rank has.
    pub(super) fn keys(&self) -> BTreeSet<&'a Key> {
        self.ranks.iter().flat_map(|at| self.run.ranks[*at].series.keys()).collect()
    }

    /// Values of a key by rank and step; `None` if no rank has it.
    fn matrix(&self, key: &Key) -> Option<Vec<Vec<f64>>> {
        let row = |(at, steps): (&usize, &Vec<usize>)| match self.run.ranks[*at].series.get(key) {
            Some(series) => (true, series.at(steps)),
            None => (false, vec![0.0; steps.len()]),
        };
        let rows: Vec<(bool, Vec<f64>)> = self.ranks.iter().zip(&self.steps).map(row).collect();
        // A run whose steps are divided has all parts of them; those without time are 0.
        let is_part = || key.group == Group::Step && *key != Key::step() && self.has(&Key::step());
        let has = rows.iter().any(|(has, _)| *has) || is_part();
        has.then(|| rows.into_iter().map(|(_, values)| values).collect())
    }

    /// Whether any rank has a key.
    fn has(&self, key: &Key) -> bool {
        self.ranks.iter().any(|at| self.run.ranks[*at].series.contains_key(key))
    }

    /// The time of all `keys` together: mean over ranks, median over steps.
    pub(super) fn level_ns(&self, keys: &[&Key]) -> f64 {
        let mut sums = vec![0.0; self.steps()];
        for means in keys.iter().filter_map(|key| self.means(key)) {
            sums.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean);
        }
        median(sums.into_iter().filter(|sum| !sum.is_nan())).unwrap_or(0.0)
    }

    /// Rows per step of a range, operator or kernel with any shape, mean over ranks; `None` where rows are not counted.
    pub(super) fn calls(&self, group: Group, name: &Text) -> Option<f64> {
        let counts = self.ranks.iter().map(|at| self.run.ranks[*at].calls.get(&(group, name.clone())).copied());
        let counted: Vec<f64> = counts.flatten().collect();
        (!counted.is_empty()).then(|| counted.iter().sum::<f64>() / self.ranks.len() as f64)
    }

    /// The shapes of the operators that launched a kernel, of all ranks together.
    pub(super) fn inputs(&self, key: &Key) -> BTreeSet<u64> {
        self.ranks.iter().filter_map(|at| self.run.ranks[*at].inputs.get(key)).flatten().copied().collect()
    }

    /// Whether a key has a value in fewer than half of the common steps, on all ranks together. All its medians are 0 then.
    pub(super) fn is_rare(&self, key: &Key) -> bool {
        let mut with = BTreeSet::new();
        for (at, steps) in self.ranks.iter().zip(&self.steps) {
            for (step, value) in self.run.ranks[*at].series.get(key).into_iter().flat_map(|series| series.within(steps))
            {
                if value.is_nan() {
                    return false;
                }
                with.insert(step);
            }
        }
        2 * with.len() < self.steps()
    }

    /// The estimates of a key whose medians are 0, without its errors; `None` if the run lacks the key.
    pub(super) fn zero_estimates(&self, key: &Key) -> Option<Estimates> {
        let ranks = if self.has_contrasts(key) { self.ranks.len() } else { 0 };
        self.has(key).then(|| Estimates { all: Estimate::default(), ranks: vec![Estimate::default(); ranks] })
    }

    /// Whether the ranks are compared with each other in a key. Properties of the job are equal on all ranks; so are
    /// transfers of buckets. Sums of many names are compared as a whole.
    fn has_contrasts(&self, key: &Key) -> bool {
        let of_the_job = key.group == Group::Collective && matches!(key.measure, Measure::Skew | Measure::Transfer);
        let is_part = key.group == Group::Account && !key.is_rank_cost();
        self.ranks.len() > 1 && !of_the_job && !is_part && !key.group.is_cut()
    }

    /// The estimates of a part of the account, or of what the ranks cost. The recording cuts what the first and the last step wait for.
    fn of_account(&self, key: &Key, matrix: &[Vec<f64>]) -> Option<Estimates> {
        let inner = |values: &[f64]| match values.len() {
            4.. => Estimate::of_mean(&values[1..values.len() - 1]),
            _ => Estimate::of_mean(values),
        };
        let all = inner(&mean_over_ranks(matrix, self.steps()))?;
        let cost = |at: &usize| Estimate::of_cost(self.run.ranks[*at].cost_ns);
        let ranks = if self.has_contrasts(key) { self.ranks.iter().map(cost).collect() } else { Vec::new() };
        Some(Estimates { all, ranks })
    }

    /// Where the time of a rank goes that the account of this run names; `None` if it does not name it.
    pub(super) fn cause(&self, rank: i32) -> Option<&'a str> {
        self.run.ranks.iter().find(|profile| profile.rank == rank)?.cause.as_deref()
    }

    /// The estimates of a key; `None` if the run lacks the key or all its values are unknown.
    pub(super) fn estimates(&self, key: &Key) -> Option<Estimates> {
        let matrix = self.matrix(key)?;
        let ranks = matrix.len();
        if key.group == Group::Account {
            return self.of_account(key, &matrix);
        }
        let column = |step: usize| matrix.iter().map(move |values| values[step]);
        let mean = mean_over_ranks(&matrix, self.steps());
        let mut all = Estimate::of(&mean, &mean)?;
        if key.group == Group::Step {
            all.level_ns = self.middle.iter().map(|step| mean[*step]).sum::<f64>() / self.middle.len() as f64;
            all.location_ns = all.level_ns;
        }
        if !self.has_contrasts(key) {
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
        // A small variation of one rank may be chance, so assume at least the typical variation of the ranks.
        let usual_ns = median(estimates.iter().map(|e| e.sigma_ns)).unwrap_or(0.0);
        estimates.iter_mut().for_each(|e| e.sigma_ns = e.sigma_ns.max(usual_ns));
        Some(Estimates { all, ranks: estimates })
    }
}

/// The mean over ranks in each of `steps` steps.
fn mean_over_ranks(matrix: &[Vec<f64>], steps: usize) -> Vec<f64> {
    (0..steps).map(|step| matrix.iter().map(|values| values[step]).sum::<f64>() / matrix.len() as f64).collect()
}
