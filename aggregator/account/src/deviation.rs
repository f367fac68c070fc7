//! The deviation of one rank from the others, in a quantity that each rank has once per step.
//!
//! Ranks differ for two reasons even if none of them is slow. First, steps vary. This variation averages out over
//! steps, and the *standard error* of a median is the remainder. Second, ranks vary: on an oversubscribed machine the
//! scheduler favours some ranks for seconds, which does not average out. The medians of the other ranks show this
//! variation, and a rank is an *outlier* if its own median stands out from them.

use crate::outliers::{is_positive, upper_outliers};
use model::stats::{MEDIAN_SE_PER_MEAN_SE, at_least, median, robust_sigma, robust_sigma_by_place};
use topology::same_work::Baseline;

/// The distance of one rank from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Deviation {
    /// The rank's median over steps, minus the median of all steps of the other ranks.
    pub(super) effect_ns: f64,
    /// Standard deviation of a single step of the other ranks.
    pub(super) sigma_ns: f64,
    /// Standard deviation of the rank's own steps.
    pub(super) own_sigma_ns: f64,
    /// Standard error of a median over the same number of steps, if steps are independent.
    pub(super) error_ns: f64,
    /// The largest distance of another rank's median from the median of all other ranks; 0 with one other rank.
    pub(super) spread_ns: f64,
    /// Whether the rank's median stands out from the medians of the other ranks.
    pub(super) outlier: bool,
    /// The share of steps that show more than half of the effect; 0 without an effect.
    pub(super) persistence: f64,
    /// The probability that a rank like the others shows half of the effect in as many steps. Unlike the medians and
    /// deviations above, this includes single slow steps of other ranks, as preemption makes them. If the rank is slow, other slow
    /// ranks do not count.
    pub(super) chance: f64,
    /// The number of the rank's steps.
    pub(super) steps: usize,
}

impl Deviation {
    /// The effect in standard errors; `None` if the standard error is 0.
    pub(super) fn z(&self) -> Option<f64> {
        (self.error_ns > 0.0).then(|| self.effect_ns / self.error_ns)
    }

    /// Whether the effect is at least `min_z` standard errors. If the standard error is 0, any positive effect is.
    pub(super) fn exceeds_error(&self, min_z: f64) -> bool {
        self.effect_ns > 0.0 && self.effect_ns >= min_z * self.error_ns
    }

    /// Returns this deviation with a standard deviation of at least `sigma_ns`, and the standard error that follows
    /// from it.
    pub(super) fn with_least_sigma(mut self, sigma_ns: f64) -> Self {
        self.sigma_ns = self.sigma_ns.max(sigma_ns);
        self.error_ns = standard_error(self.sigma_ns, self.steps);
        self
    }
}

/// The deviation of each rank in `series`, which holds the values of each rank's steps. The result is `None` for a rank
/// without values, and for all ranks if only one rank has values.
///
/// If exactly two ranks have values, `series` must hold the signed differences between them. Then the variation comes
/// from the rank's own steps, because the other rank's series holds the same numbers with the other sign.
///
/// Each rank is compared with the other usual ranks.
pub(super) fn deviations(series: &[Vec<f64>], usual: &Baseline) -> Vec<Option<Deviation>> {
    let medians: Vec<Option<f64>> = series.iter().map(|v| median(v.iter().copied())).collect();
    let compared = medians.iter().flatten().count();
    let outliers = upper_outliers(&medians, usual.slow);
    let Baseline { is_member: is_usual, .. } = usual;
    // Outliers are no example of usual ranks.
    let is_slow = &outliers;
    let pooled: Vec<&[f64]> =
        series.iter().zip(is_usual).map(|(v, is_usual)| if *is_usual { &v[..] } else { &[] }).collect();
    let pool = if compared > 2 { Pool::of(&pooled) } else { Pool::default() };
    let extremes =
        Extremes::of(medians.iter().zip(is_usual).filter(|(_, is_usual)| **is_usual).filter_map(|(m, _)| *m));
    // Slow ranks are no example of how often a usual rank is slow: of a job's two hosts, one may be slow.
    let of_slow = pooled.iter().zip(is_slow).filter(|(_, is_slow)| **is_slow).flat_map(|(values, _)| *values);
    let mut of_slow: Vec<f64> = of_slow.copied().collect();
    of_slow.sort_unstable_by(f64::total_cmp);
    let deviation_of = |rank: usize| {
        let own = &series[rank];
        let own_median = medians[rank]?;
        match compared {
            0 | 1 => None,
            2 => {
                let half = own_median / 2.0;
                let deviation =
                    against(own, own_median, (0.0, 0.0), (own.iter().filter(|d| -**d > half).count(), own.len()));
                Some(Deviation { outlier: is_positive(own), ..deviation.with_least_sigma(deviation.own_sigma_ns) })
            }
            _ => {
                let others = pool.without(rank);
                let center = others.median()?;
                let sigma = others.robust_sigma(center);
                let spread_ns = extremes.without(own_median).map(|m| (m - center).abs()).fold(0.0, f64::max);
                let limit = center + (own_median - center) / 2.0;
                let mut usual = (others.len() - others.count(|v| v <= limit), others.len());
                if is_slow[rank] {
                    // The others are without the rank's own values already.
                    let own_over = pooled[rank].iter().filter(|v| **v > limit).count();
                    let over = of_slow.len() - of_slow.partition_point(|v| *v <= limit);
                    usual = (usual.0 + own_over - over, usual.1 + pooled[rank].len() - of_slow.len());
                }
                let deviation = against(own, own_median, (center, sigma), usual);
                // The excess is the distance from the lower median of the ranks. Of three ranks, that is one of the two
                // others, whose excess is then 0 in every step. So the variation is taken from the late rank's own
                // steps.
                let least_ns = if compared == 3 { deviation.own_sigma_ns } else { 0.0 };
                Some(Deviation { spread_ns, outlier: outliers[rank], ..deviation.with_least_sigma(least_ns) })
            }
        }
    };
    (0..series.len()).map(deviation_of).collect()
}

/// The deviation of `own` from other steps, which have the median `center` and the standard deviation `sigma`. Of
/// `others` steps of usual ranks, `others_over` show more than half of the effect.
fn against(
    own: &[f64],
    own_median: f64,
    (center, sigma): (f64, f64),
    (others_over, others): (usize, usize),
) -> Deviation {
    let effect_ns = own_median - center;
    let over = own.iter().filter(|&&v| v > center + effect_ns / 2.0).count();
    // Jeffreys' estimate of a share: it is above 0 even if no step of another rank shows the effect.
    let usual = (others_over as f64 + 0.5) / (others as f64 + 1.0);
    Deviation {
        effect_ns,
        sigma_ns: sigma,
        error_ns: standard_error(sigma, own.len()),
        persistence: if effect_ns > 0.0 { over as f64 / own.len() as f64 } else { 0.0 },
        chance: if effect_ns > 0.0 { at_least(over, own.len(), usual) } else { 1.0 },
        own_sigma_ns: robust_sigma(own.iter().copied(), own_median).unwrap_or(0.0),
        steps: own.len(),
        ..Deviation::default()
    }
}

/// The values of all ranks. Each rank is compared with all others, so the values are sorted once, and the others are this
/// list without a few places.
#[derive(Default)]
struct Pool {
    /// Ascending.
    all: Vec<f64>,
    /// For each rank, its own values, ascending.
    own: Vec<Vec<Own>>,
}

/// A value of the rank that is left out.
struct Own {
    /// Its place among all values.
    place: usize,
    /// The number of values of other ranks before it.
    others_before: usize,
}

/// All values but those of one rank.
struct Others<'a> {
    all: &'a [f64],
    own: &'a [Own],
}

impl Pool {
    fn of(series: &[&[f64]]) -> Self {
        let ranked =
            |(rank, values): (usize, &&[f64])| values.iter().map(move |value| (*value, rank)).collect::<Vec<_>>();
        let mut all: Vec<(f64, usize)> = series.iter().enumerate().flat_map(ranked).collect();
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut own: Vec<Vec<Own>> = series.iter().map(|values| Vec::with_capacity(values.len())).collect();
        for (place, (_, rank)) in all.iter().enumerate() {
            let others_before = place - own[*rank].len();
            own[*rank].push(Own { place, others_before });
        }
        Self { all: all.into_iter().map(|(value, _)| value).collect(), own }
    }

    fn without(&self, rank: usize) -> Others<'_> {
        Others { all: &self.all, own: &self.own[rank] }
    }
}

impl Others<'_> {
    fn len(&self) -> usize {
        self.all.len() - self.own.len()
    }

    /// The value at a place in ascending order.
    fn value(&self, place: usize) -> f64 {
        self.all[place + self.own.partition_point(|own| own.others_before <= place)]
    }

    /// The number of values for which `holds`, which holds for the least values or for none.
    fn count(&self, holds: impl Fn(f64) -> bool) -> usize {
        let end = self.all.partition_point(|value| holds(*value));
        end - self.own.partition_point(|own| own.place < end)
    }

    fn median(&self) -> Option<f64> {
        let (n, middle) = (self.len(), self.len() / 2);
        match n % 2 {
            _ if n == 0 => None,
            1 => Some(self.value(middle)),
            _ => Some((self.value(middle - 1) + self.value(middle)) / 2.0),
        }
    }

    /// There must be at least one value.
    fn robust_sigma(&self, center: f64) -> f64 {
        robust_sigma_by_place(self.len(), self.count(|value| value < center), |place| self.value(place), center)
    }
}

/// The two least and the two greatest of some values: without any one of them, the extremes of the others are known.
struct Extremes {
    least: [f64; 2],
    greatest: [f64; 2],
}

impl Extremes {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut extremes = Self { least: [f64::INFINITY; 2], greatest: [f64::NEG_INFINITY; 2] };
        for value in values {
            let ([first, second], [last, last_but_one]) = (&mut extremes.least, &mut extremes.greatest);
            *second = second.min(value.max(*first));
            *first = first.min(value);
            *last_but_one = last_but_one.max(value.min(*last));
            *last = last.max(value);
        }
        extremes
    }

    /// The least and the greatest value, if one that equals `value` is left out. There must be another value.
    fn without(&self, value: f64) -> impl Iterator<Item = f64> {
        let least = self.least[usize::from(self.least[0] == value)];
        let greatest = self.greatest[usize::from(self.greatest[0] == value)];
        [least, greatest].into_iter()
    }
}

fn standard_error(sigma: f64, steps: usize) -> f64 {
    MEDIAN_SE_PER_MEAN_SE * sigma / (steps as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series() -> impl Strategy<Value = Vec<Vec<f64>>> {
        // Few values, so that many are equal; some ranks have none.
        let values = prop::collection::vec((-6..6_i32).prop_map(f64::from), 0..7);
        prop::collection::vec(values, 3..9)
    }

    proptest! {
        #[test]
        fn the_others_are_all_values_without_those_of_the_rank(series in series(), limit in -7..7_i32) {
            let pooled: Vec<&[f64]> = series.iter().map(Vec::as_slice).collect();
            let (pool, limit) = (Pool::of(&pooled), f64::from(limit));
            for rank in 0..series.len() {
                let others = series.iter().enumerate().filter(|(r, _)| *r != rank).flat_map(|(_, v)| v);
                let others: Vec<f64> = others.copied().collect();
                let pooled = pool.without(rank);
                let center = median(others.iter().copied());
                prop_assert_eq!(pooled.median(), center);
                prop_assert_eq!(pooled.len(), others.len());
                prop_assert_eq!(pooled.count(|v| v <= limit), others.iter().filter(|v| **v <= limit).count());
                if let Some(center) = center {
                    prop_assert_eq!(Some(pooled.robust_sigma(center)), robust_sigma(others, center));
                }
            }
        }

        #[test]
        fn the_extremes_of_the_others_are_known(values in prop::collection::vec(-5..5_i32, 2..9)) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let extremes = Extremes::of(values.iter().copied());
            for at in 0..values.len() {
                let others = || values.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, v)| *v);
                let expected = [others().fold(f64::INFINITY, f64::min), others().fold(f64::NEG_INFINITY, f64::max)];
                prop_assert_eq!(extremes.without(values[at]).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn each_rank_is_compared_with_the_usual_ones() {
        let rank = |excess: f64| (0..6).map(|step| excess + f64::from(step % 3)).collect::<Vec<f64>>();
        let series: Vec<Vec<f64>> = [0.0, 100.0, 100.0, 1.0, 100.0].map(rank).into();
        let usual = Baseline { is_member: vec![true, false, false, true, false], slow: 3 };
        let of = |rank: usize, usual: &Baseline| deviations(&series, usual)[rank].unwrap();
        let (found, fast) = (of(1, &usual), of(0, &usual));
        assert_eq!((found.effect_ns, found.spread_ns), (99.5, 0.5));
        assert!(found.chance < 1e-6, "{}", found.chance);
        assert_eq!(fast.effect_ns, -1.0, "rank 3 is the other one");
        assert_eq!(of(1, &Baseline::all(5)).effect_ns, 49.5, "half of the others are slow");
    }

    /// To copy and sort the others for each rank would take 10¹⁰ values.
    #[test]
    fn many_ranks_take_little_time() {
        let mut series: Vec<Vec<f64>> =
            (0..100_000).map(|rank| vec![f64::from(rank % 7), f64::from(rank % 5)]).collect();
        series[7] = vec![1e6, 1e6];
        let found = deviations(&series, &Baseline::all(series.len()));
        let outliers: Vec<usize> = (0..found.len()).filter(|rank| found[*rank].is_some_and(|d| d.outlier)).collect();
        assert_eq!(outliers, [7]);
        assert_eq!(found[7].map(|d| d.effect_ns), Some(1e6 - 2.0));
    }
}
