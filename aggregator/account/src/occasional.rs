//! Delays in some of the steps: of one rank, as by a job that it runs every so often, or of other ranks each time.
//!
//! ```text
//!   step       1     2     3     4     5     6     7     8
//!   rank 0   ##    ##    ##    ##    ##    ##    ##    ##
//!   rank 1   ##    ##    ##    ##    #####~##    ##    ##
//!   rank 2   ##    #####~##    ##    #####~##    ##    #####     late in 3 of 8 steps, every third
//! ```
//!
//! Medians over steps do not show them. In M of the steps, the own work of some rank exceeds that of the others by more than
//! six standard deviations. If it were any rank's in each of them, one of R ranks would be the latest in m or more of the M
//! steps with probability R · P(Bin(M, 1/R) ≥ m).

use model::stats::{at_least, median, robust_sigma};
use topology::excess::Excess;

/// An excess above this many standard deviations is a delay.
const DELAY_SIGMAS: f64 = 6.0;
/// The largest probability that the delays are one rank's by chance.
const MOST_CHANCE: f64 = 1e-3;
/// The least steps with delays of one rank, however many ranks there are.
const LEAST_STEPS: usize = 3;
/// The most ranks with delays of their own; delays of further ranks count as delays that move.
const MOST_RANKS: usize = 16;
/// The smallest mean delay that matters, in percent of a step.
const LEAST_COST_PCT: f64 = 2.0;
/// The same for a delay that moves, which the tail of ordinary variation resembles more.
const LEAST_MOVING_COST_PCT: f64 = 5.0;
/// A period is named if at least this share of the delays have it, and of the steps with it this share is delayed.
const PERIODIC_SHARE: f64 = 0.9;

/// Delays that recur every so many steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The number of steps from one delay to the next.
    pub steps: i32,
    /// The number of the first delayed step.
    pub first: i32,
}

/// The steps in which one rank is delayed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Delayed {
    /// The rank, as a position among the parts.
    pub(super) rank: usize,
    /// Their positions among the compared steps, ascending.
    pub(super) at: Vec<usize>,
    /// Their period, if they have one.
    pub(super) period: Option<Period>,
}

/// A delay that is another rank's in each step.
#[derive(Clone, Debug, PartialEq)]
pub struct Moving {
    /// The number of delayed steps.
    pub delayed_steps: usize,
    /// The number of compared steps.
    pub steps: usize,
    /// The number of ranks that are late in one of them.
    pub ranks: usize,
    /// The time by which the latest rank is later than the next one, per step.
    pub step_delay_ns: i64,
    /// The period of the delayed steps, if they have one.
    pub period: Option<Period>,
}

/// The latest rank of a delayed step.
struct Latest {
    at: usize,
    rank: usize,
    /// The excess above the next rank's.
    ahead_ns: f64,
}

/// The ranks with delays in some of the steps, and a delay that moves. Only ranks are looked at that `is_open` accepts, because
/// others are causes already; `series` holds the values of each rank from which the variation is taken.
pub(super) fn of(
    excess: &Excess,
    series: &[Vec<f64>],
    is_open: &dyn Fn(usize) -> bool,
    (step_ns, min_effect_ns): (i64, f64),
) -> (Vec<Delayed>, Option<Moving>) {
    let ranks = excess.ns.iter().filter(|of_rank| of_rank.iter().any(Option::is_some)).count();
    // Ranks that are slow in all steps are causes already.
    let usual_ns: Vec<f64> =
        excess.ns.iter().map(|of| median(of.iter().flatten().map(|ns| *ns as f64)).unwrap_or(0.0).max(0.0)).collect();
    let (steps, percent_ns) = (excess.steps.len(), step_ns as f64 / 100.0);
    let all = || series.iter().flatten().copied();
    let Some(center_ns) = median(all()).filter(|_| ranks > 1 && steps > LEAST_STEPS) else { return (Vec::new(), None) };
    let sigma_ns = robust_sigma(all(), center_ns).unwrap_or(0.0);
    let limit_ns = center_ns + (DELAY_SIGMAS * sigma_ns).max(min_effect_ns);
    let late: Vec<Latest> = (0..steps)
        .filter_map(|at| latest(excess, at))
        .filter(|(latest, ns)| is_open(latest.rank) && *ns - usual_ns[latest.rank] > limit_ns)
        .map(|(latest, _)| latest)
        .collect();
    let mut of_rank: Vec<Vec<&Latest>> = vec![Vec::new(); excess.ns.len()];
    late.iter().for_each(|latest| of_rank[latest.rank].push(latest));
    let per_step_ns = |late: &[&Latest]| late.iter().map(|latest| latest.ahead_ns).sum::<f64>() / steps as f64;
    let is_one_ranks = |mine: &[&Latest]| {
        let chance = || ranks as f64 * at_least(mine.len(), late.len(), 1.0 / ranks as f64);
        mine.len() >= LEAST_STEPS
            && 2 * mine.len() <= steps
            && per_step_ns(mine) >= LEAST_COST_PCT * percent_ns
            && chance() < MOST_CHANCE
    };
    let delayed = |&rank: &usize| {
        let at: Vec<usize> = of_rank[rank].iter().map(|latest| latest.at).collect();
        is_one_ranks(&of_rank[rank]).then(|| Delayed { rank, period: period(&excess.steps, &at), at })
    };
    let mut most: Vec<usize> = (0..of_rank.len()).collect();
    most.sort_by_key(|rank| std::cmp::Reverse(of_rank[*rank].len()));
    let delayed: Vec<Delayed> = most.iter().take(MOST_RANKS).filter_map(delayed).collect();
    let rest: Vec<&Latest> = late.iter().filter(|latest| delayed.iter().all(|d| d.rank != latest.rank)).collect();
    let late_ranks =
        of_rank.iter().enumerate().filter(|(rank, of)| !of.is_empty() && delayed.iter().all(|d| d.rank != *rank));
    let moving = Moving {
        delayed_steps: rest.len(),
        steps,
        ranks: late_ranks.count(),
        step_delay_ns: per_step_ns(&rest).round() as i64,
        period: period(&excess.steps, &rest.iter().map(|latest| latest.at).collect::<Vec<_>>()),
    };
    let is_dear = moving.step_delay_ns as f64 >= LEAST_MOVING_COST_PCT * percent_ns;
    let matters = moving.ranks > 1 && moving.delayed_steps >= LEAST_STEPS && is_dear;
    (delayed, matters.then_some(moving))
}

/// The latest rank of the step at a position, with its excess.
fn latest(excess: &Excess, at: usize) -> Option<(Latest, f64)> {
    let (mut first, mut second): (Option<(i64, usize)>, Option<i64>) = (None, None);
    for (rank, of_rank) in excess.ns.iter().enumerate() {
        let Some(ns) = of_rank[at] else { continue };
        if first.is_none_or(|(most, _)| ns > most) {
            second = first.map(|(ns, _)| ns);
            first = Some((ns, rank));
        } else if second.is_none_or(|next| ns > next) {
            second = Some(ns);
        }
    }
    let ((ns, rank), next_ns) = (first?, second?);
    Some((Latest { at, rank, ahead_ns: ns.saturating_sub(next_ns) as f64 }, ns as f64))
}

/// The period of the steps at the positions `at` among `steps`; both ascend.
fn period(steps: &[i32], at: &[usize]) -> Option<Period> {
    let delayed: Vec<i32> = at.iter().map(|&at| steps[at]).collect();
    let mut gaps: Vec<i32> = delayed.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    if gaps.len() + 1 < LEAST_STEPS {
        return None;
    }
    let middle = gaps.len() / 2;
    let n = *gaps.select_nth_unstable(middle).1;
    let in_phase = |first: i32| delayed.iter().filter(|step| step.saturating_sub(first) % n == 0).count();
    let first = *delayed.iter().take(LEAST_STEPS).rev().max_by_key(|first| in_phase(**first))?;
    let expected = steps.iter().filter(|step| step.saturating_sub(first) % n == 0).count();
    let (with, share) = (in_phase(first) as f64, PERIODIC_SHARE);
    let is_periodic = n > 1 && with >= share * delayed.len() as f64 && with >= share * expected as f64;
    is_periodic.then_some(Period { steps: n, first })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excesses of four ranks in so many steps: 10 ns more or less, and those of `late`.
    fn found(steps: usize, late: &[(usize, usize, i64)]) -> (Vec<Delayed>, Option<Moving>) {
        let mut ns: Vec<Vec<Option<i64>>> = (0..4)
            .map(|rank| (0..steps).map(|step| Some(((7 * rank + 3 * step) % 5) as i64 * 5 - 10)).collect())
            .collect();
        late.iter().for_each(|&(rank, step, late_ns)| ns[rank][step] = Some(late_ns));
        let series: Vec<Vec<f64>> = ns.iter().map(|of| of.iter().flatten().map(|ns| *ns as f64).collect()).collect();
        let excess = Excess { steps: (0..steps as i32).collect(), ns, skipped: 0 };
        of(&excess, &series, &|_| true, (10_000, 200.0))
    }

    #[test]
    fn delays_of_one_rank_have_steps_and_a_period() {
        let every_third: Vec<(usize, usize, i64)> = (0..8).map(|k| (2, 1 + 3 * k, 1_000)).collect();
        let (delayed, moving) = found(24, &every_third);
        let period = Some(Period { steps: 3, first: 1 });
        assert_eq!(delayed, [Delayed { rank: 2, at: (0..8).map(|k| 1 + 3 * k).collect(), period }]);
        assert_eq!(moving, None);
        let irregular: Vec<(usize, usize, i64)> = [0, 1, 5, 11, 12, 20].map(|step| (2, step, 2_000)).to_vec();
        assert_eq!(found(24, &irregular).0.iter().map(|d| (d.rank, d.period)).collect::<Vec<_>>(), [(2, None)]);
    }

    /// Four delays are any of four ranks' with a probability of 4 · (1/4)⁴ = 1/64.
    #[test]
    fn few_or_cheap_delays_may_be_chance() {
        let of_rank_2 = |n: usize, ns| (0..n).map(|k| (2, 1 + 3 * k, ns)).collect::<Vec<_>>();
        assert_eq!(found(24, &of_rank_2(4, 2_000)), (Vec::new(), None));
        assert_eq!(found(24, &of_rank_2(8, 500)), (Vec::new(), None), "1.7 % of a step");
        assert_eq!(found(24, &[]), (Vec::new(), None));
    }

    #[test]
    fn delays_that_move_are_no_ranks() {
        let late: Vec<(usize, usize, i64)> = (0..12).map(|k| (k % 4, 2 * k, 1_200)).collect();
        let (delayed, moving) = found(24, &late);
        let moving = moving.unwrap();
        assert_eq!((delayed.len(), moving.delayed_steps, moving.steps, moving.ranks), (0, 12, 24, 4));
        assert_eq!(moving.period, Some(Period { steps: 2, first: 0 }));
        assert!((590..=610).contains(&moving.step_delay_ns), "{moving:?}");
    }
}
