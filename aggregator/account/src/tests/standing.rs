//! Simulated excesses: the moderated t blames no clean rank, and finds slow ones in noise by their number of steps.
//!
//! A step takes 100 units, so that deviations and effects are in percent of a step.

use crate::standing::{Medians, Standing, over_steps};
use crate::tests::noise::Random;

const STEP: i64 = 100;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Normal,
    /// A sum of slices with a heavy tail.
    Preempted,
    LogNormal,
    /// One value in twenty is twenty times the deviation.
    Spikes,
}

impl Shape {
    fn draw(self, random: &mut Random) -> f64 {
        match self {
            Self::Normal => random.normal(),
            Self::Preempted => ((0..16).map(|_| random.heavy_tail()).sum::<f64>() - 40.0) / 8.0,
            Self::LogNormal => random.normal().exp(),
            Self::Spikes if random.unit() < 0.05 => 20.0,
            Self::Spikes => 0.2 * random.normal(),
        }
    }
}

/// Values of ranks by steps above the lower median of the ranks, as signed differences for two ranks. `slow` ranks have an
/// effect in each step.
fn series(
    random: &mut Random,
    (ranks, steps): (usize, usize),
    (shape, sigma): (Shape, f64),
    slow: &[(usize, f64)],
) -> Vec<Vec<f64>> {
    let mut values: Vec<Vec<f64>> =
        (0..ranks).map(|_| (0..steps).map(|_| sigma * shape.draw(random)).collect()).collect();
    for &(rank, effect) in slow {
        values[rank].iter_mut().for_each(|value| *value += effect);
    }
    for step in 0..steps {
        let mut of_step: Vec<f64> = values.iter().map(|of_rank| of_rank[step]).collect();
        of_step.sort_unstable_by(f64::total_cmp);
        let usual = of_step[(ranks - 1) / 2];
        values.iter_mut().for_each(|of_rank| of_rank[step] -= usual);
    }
    if ranks == 2 {
        values[1] = values[0].iter().zip(&values[1]).map(|(a, b)| b - a).collect();
        values[0] = values[1].iter().map(|d| -d).collect();
    }
    values
}

fn certain(series: &[Vec<f64>]) -> Vec<usize> {
    let standings = over_steps(series, STEP);
    (0..standings.len()).filter(|rank| standings[*rank] == Standing::Certain).collect()
}

/// The share of jobs with eight ranks in which exactly rank 3 is found, which takes `effect` longer.
fn found(steps: usize, sigma: f64, effect: f64) -> f64 {
    const JOBS: usize = 100;
    let mut random = Random::new(7);
    let slow = [(3, effect)];
    let hits =
        (0..JOBS).filter(|_| certain(&series(&mut random, (8, steps), (Shape::Normal, sigma), &slow)) == [3]).count();
    hits as f64 / JOBS as f64
}

#[test]
fn exchangeable_noise_blames_no_rank() {
    let mut random = Random::new(1);
    let (mut jobs, mut blamed) = (0, Vec::new());
    for shape in [Shape::Normal, Shape::Preempted, Shape::LogNormal, Shape::Spikes] {
        for size in [(2, 3), (2, 10), (3, 5), (4, 3), (4, 12), (8, 3), (8, 10), (8, 20), (16, 9)] {
            for sigma in [0.5, 1.0, 2.0, 5.0] {
                for _ in 0..40 {
                    jobs += 1;
                    let found = certain(&series(&mut random, size, (shape, sigma), &[]));
                    blamed.extend((!found.is_empty()).then_some((shape, size, sigma)));
                }
            }
        }
    }
    assert!(blamed.len() * 1000 <= jobs, "{} of {jobs}: {blamed:?}", blamed.len());
}

/// The least effect that is found nearly always falls as the root of the number of steps.
#[test]
fn more_steps_show_smaller_effects() {
    for (steps, sigma, effect) in [(16, 2.0, 8.0), (50, 2.0, 4.0), (200, 2.0, 3.0), (50, 5.0, 10.0), (200, 5.0, 5.0)] {
        let rate = found(steps, sigma, effect);
        assert!(rate >= 0.95, "{steps} steps, sigma {sigma}, effect {effect}: {rate}");
    }
    assert!(found(16, 5.0, 4.0) < 0.2, "few steps cannot show this effect");
}

#[test]
fn slow_ranks_do_not_hide_each_other() {
    let mut random = Random::new(5);
    for (size, slow) in [
        ((4, 12), vec![(1, 24.0), (2, 12.0)]),
        ((4, 12), vec![(1, 12.0), (2, 12.0)]),
        ((8, 12), vec![(0, 9.0), (5, 6.0), (6, 9.0)]),
    ] {
        let expected: Vec<usize> = slow.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(certain(&series(&mut random, size, (Shape::Normal, 1.0), &slow)), expected);
    }
    assert_eq!(certain(&series(&mut random, (2, 12), (Shape::Normal, 1.0), &[(1, 12.0)])), [1]);
    assert_eq!(certain(&series(&mut random, (3, 12), (Shape::Normal, 1.0), &[(1, 12.0)])), [1]);
}

/// One step with 84 collectives. A slow rank is later at many of them, a paused one at one of them only.
#[test]
fn many_collectives_take_the_place_of_steps() {
    let standing = |late: &[(usize, f64)]| {
        let mut random = Random::new(3);
        let mut pieces = series(&mut random, (8, 84), (Shape::Normal, 0.03), &[]);
        late.iter().for_each(|(at, ns)| pieces[3][*at] += ns);
        Medians::over_collectives(&pieces, 1, STEP).map(|medians| medians.standings())
    };
    let slow: Vec<(usize, f64)> = (70..84).map(|at| (at, 0.8)).chain([(0, 6.0)]).collect();
    let only = |standing| (0..8).map(|rank| if rank == 3 { standing } else { Standing::Usual }).collect::<Vec<_>>();
    assert_eq!(standing(&slow), Some(only(Standing::Certain)));
    assert_eq!(standing(&[(0, 60.0)]), Some(only(Standing::Usual)));
    let few = vec![vec![1.0; 29]; 8];
    assert_eq!(Medians::over_collectives(&few, 1, STEP).map(|medians| medians.standings()), None);
}

#[test]
fn few_values_are_no_panic() {
    assert!(over_steps(&[], STEP).is_empty());
    assert_eq!(over_steps(&[vec![1.0], Vec::new()], STEP), [Standing::Usual; 2]);
    assert_eq!(over_steps(&[vec![9.0], vec![-9.0]], 0), [Standing::Certain, Standing::Usual], "nothing varies");
    assert_eq!(over_steps(&[vec![0.0], vec![0.0], vec![90.0]], STEP)[2], Standing::Certain);
}

/// The error grows with the variation of steps, falls with their number, and needs a rank that is not slow.
#[test]
fn the_error_of_an_excess_follows_the_variation() {
    let series = |steps: usize, sigma_ns: f64| -> Vec<Vec<f64>> {
        let value = |rank: usize, step: usize| sigma_ns * if (step + rank).is_multiple_of(2) { 1.0 } else { -1.0 };
        let of_rank = |rank| (0..steps).map(|step| value(rank, step) + if rank == 3 { 900.0 } else { 0.0 }).collect();
        (0..4).map(of_rank).collect()
    };
    let error_ns = |steps, sigma_ns, is_slow: &dyn Fn(usize) -> bool| {
        Medians::over_steps(&series(steps, sigma_ns), STEP).error_ns(3, is_slow)
    };
    let of_rank_3 = |rank| rank == 3;
    let [still, few, many] =
        [(16, 0.0), (16, 200.0), (400, 200.0)].map(|(s, sigma)| error_ns(s, sigma, &of_rank_3).unwrap());
    // Without variation, ranks differ by 0.5 % of a step: t(0.975, 6) = 2.447.
    let expected = 2.447 * (4.0 / 3.0 * 4.0 / 6.0_f64).sqrt() * 0.005 * STEP as f64;
    assert!((still / expected - 1.0).abs() < 0.01, "{still} {expected}");
    assert!(few > 2.0 * many && many > still, "{few} {many} {still}");
    assert_eq!(error_ns(16, 0.0, &|_| true), None);
}
