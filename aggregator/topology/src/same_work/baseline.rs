//! The ranks that show how long the work takes, where most ranks are slow.
//!
//! ```text
//!   ranks 0 to 6    ######~~[AA]        7 of 16 ranks; the lower median is a slow rank
//!   ranks 7 to 15   ########[AA]
//! ```
//!
//! A typical rank is the lower median of the ranks that do the same work, so that a few fast ranks do not make the others slow. It is
//! itself slow if most ranks are. So if the medians of the ranks over steps are in two groups with a wide gap between them, and the
//! faster group is large enough, the faster ranks alone show the typical work.

use std::collections::BTreeMap;

use model::stats::{MEDIAN_SE_PER_MEAN_SE, median, robust_sigma};

/// The faster group has at least this share of the ranks that do the same work: one in so many.
const LEAST_SHARE: usize = 4;
/// One rank may be faster than all others for reasons of its own.
const LEAST_RANKS: usize = 2;
/// The gap between the groups is at least this share of a step, in percent.
const LEAST_GAP_PCT: f64 = 5.0;
/// The gap is at least this many standard deviations of the ranks in a group, and of their medians over steps.
const LEAST_GAP_SIGMAS: f64 = 6.0;
/// A median of two steps is not robust.
const LEAST_STEPS: usize = 3;

/// The ranks whose work counts for that of a typical rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// Whether each rank is one of them.
    pub is_member: Vec<bool>,
    /// The most ranks that may be slow: half of those of each stage, or all but its faster group.
    pub slow: usize,
}

impl Baseline {
    /// Every rank is a baseline rank.
    pub fn all(ranks: usize) -> Self {
        Self { is_member: vec![true; ranks], slow: ranks / 2 }
    }

    /// The values of the baseline ranks among `values`, which hold a rank each; all values if it has none.
    pub fn of<T>(&self, values: impl Iterator<Item = (usize, T)> + Clone) -> Vec<T> {
        let members: Vec<T> =
            values.clone().filter(|(rank, _)| self.is_member[*rank]).map(|(_, value)| value).collect();
        if members.is_empty() { values.map(|(_, value)| value).collect() } else { members }
    }

    /// Chooses the baseline. `excess_ns` returns the excess of a rank in each step, above the lower median of all ranks; `stages` holds
    /// the stage of each rank.
    pub(crate) fn choose(excess_ns: &dyn Fn(usize) -> Vec<i64>, stages: &[usize], step_ns: i64) -> Self {
        let mut of_stages: BTreeMap<usize, Vec<(f64, usize)>> = BTreeMap::new();
        let mut errors_ns: Vec<f64> = Vec::new();
        for (rank, stage) in stages.iter().enumerate() {
            let steps_ns: Vec<f64> = excess_ns(rank).into_iter().map(|ns| ns as f64).collect();
            let center_ns = median(steps_ns.iter().copied()).filter(|_| steps_ns.len() >= LEAST_STEPS);
            let Some(center_ns) = center_ns else { continue };
            let sigma_ns = robust_sigma(steps_ns.iter().copied(), center_ns).unwrap_or(0.0);
            errors_ns.push(MEDIAN_SE_PER_MEAN_SE * sigma_ns / (steps_ns.len() as f64).sqrt());
            of_stages.entry(*stage).or_default().push((center_ns, rank));
        }
        let least_ns = LEAST_GAP_PCT / 100.0 * step_ns as f64;
        let least_ns = least_ns.max(LEAST_GAP_SIGMAS * median(errors_ns).unwrap_or(0.0));
        let mut baseline = Self { slow: 0, ..Self::all(stages.len()) };
        for mut ranks in of_stages.into_values() {
            ranks.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let fast = faster_group(&ranks, least_ns);
            baseline.slow += ranks.len() - fast.unwrap_or(ranks.len().div_ceil(2));
            ranks[fast.unwrap_or(ranks.len())..].iter().for_each(|(_, rank)| baseline.is_member[*rank] = false);
        }
        baseline
    }
}

/// The number of ranks in the faster group; `None` if there are no two groups, or if the lower median is in the faster one. `ranks`
/// ascend by their medians over steps.
fn faster_group(ranks: &[(f64, usize)], least_ns: f64) -> Option<usize> {
    let least = ranks.len().div_ceil(LEAST_SHARE).max(LEAST_RANKS);
    let most = ranks.len().saturating_sub(1) / 2;
    let gap_ns = |at: &usize| ranks[*at].0 - ranks[*at - 1].0;
    let at = (least..=most).max_by(|a, b| gap_ns(a).total_cmp(&gap_ns(b)))?;
    let (fast, slow) = ranks.split_at(at);
    let sigma_ns = |group: &[(f64, usize)]| {
        let values = || group.iter().map(|(ns, _)| *ns);
        median(values()).and_then(|center_ns| robust_sigma(values(), center_ns)).unwrap_or(0.0)
    };
    let varies_ns = LEAST_GAP_SIGMAS * sigma_ns(fast).max(sigma_ns(slow));
    (gap_ns(&at) >= least_ns.max(varies_ns)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of baseline ranks in a job of four steps of 10 µs. The excess of each rank varies by some ns between steps.
    fn fast(excess_ns: &[i64]) -> usize {
        let of_rank = |(rank, ns): (usize, &i64)| (0..4).map(|step| ns + ((7 * rank + 3 * step) % 5) as i64).collect();
        let ns: Vec<Vec<i64>> = excess_ns.iter().enumerate().map(of_rank).collect();
        let baseline = Baseline::choose(&|rank| ns[rank].clone(), &vec![0; excess_ns.len()], 10_000);
        baseline.is_member.into_iter().filter(|is_member| *is_member).count()
    }

    #[test]
    fn the_faster_ranks_are_the_baseline_if_most_are_slow() {
        assert_eq!(fast(&[-1_500, 0, -1_500, 0, 0]), 2, "three of five are slow");
        assert_eq!(fast(&[-1_500, 0, -1_490, 1_500, 0, -10, 20, 0]), 2, "a quarter, and one slow rank is slower");
        assert_eq!(fast(&[0, 1_500, 0, 1_500]), 4, "the lower median is a fast rank");
    }

    #[test]
    fn few_fast_ranks_and_ranks_that_vary_are_no_group() {
        assert_eq!(fast(&[-1_500, 0, 0, 0, 0]), 5, "one rank");
        assert_eq!(fast(&[-1_500, -1_500, 0, 0, 0, 0, 0, 0, 0]), 9, "fewer than a quarter");
        assert_eq!(fast(&[-400, 0, -400, 0, 0]), 5, "4 % of a step");
        assert_eq!(fast(&[-1_500, -900, -300, 200, 800, 1_400, 2_000]), 7, "every rank differs");
        assert_eq!(fast(&[]), 0);
    }
}
