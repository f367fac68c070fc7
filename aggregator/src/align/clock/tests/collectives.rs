//! Fits without pings, on real traces whose ranks share one host. The true offset between the host clocks is zero, so a
//! planted shift or drift must be recovered.

use fixtures::data::real_traces;

use crate::align::clock::tests::support::{Bend, Dice, GLOO4, GLOO8, TestRank, fitted, gloo, matched, nccl_kernels};

/// The result for one folder.
#[derive(Debug, Default)]
struct Score {
    trials: usize,
    outside_bound: usize,
    outside_error: usize,
    worst_ns: i64,
    bound_ns: (i64, i64),
    error_ns: (i64, i64),
}

/// Bends every rank's clock except the first, fits, and compares the fit with the planted clocks over the whole
/// recording.
fn score(ranks: &[TestRank], device: bool, drift_ppm: i64, seed: u64) -> Score {
    let mut dice = Dice::new(seed);
    let mut score = Score { bound_ns: (i64::MAX, 0), error_ns: (i64::MAX, 0), ..Score::default() };
    for _ in 0..50 {
        let bends: Vec<Bend> = ranks
            .iter()
            .map(|r| Bend {
                shift_ns: dice.between(-10_000_000_000, 10_000_000_000),
                drift: if r.rank == 0 {
                    0.0
                } else {
                    dice.between(-drift_ppm * 1_000, drift_ppm * 1_000) as f64 * 1e-9
                },
                origin_ns: r.window().unwrap().0,
                ..Bend::default()
            })
            .collect();
        let bent: Vec<TestRank> = ranks.iter().zip(&bends).map(|(r, b)| r.bent(*b)).collect();
        let (instances, _) = matched(&bent);
        let clocks = fitted(&bent, &instances);
        assert!(clocks.contradictions.is_empty(), "{:?}", clocks.contradictions);
        for (rank, bend) in ranks.iter().zip(&bends).skip(1) {
            let row = clocks.row(rank.rank, device).unwrap();
            let (bound, error) = (row.bound_ns.unwrap(), row.error_ns.unwrap());
            assert_eq!(row.violations, 0);
            assert!(error <= bound);
            let (from, to) = rank.window().unwrap();
            let truth = |t: i64| t + bends[0].shift_ns;
            let off = |t: i64| (clocks.global(rank.rank, device, bend.show(t)) - truth(t)).abs();
            let worst = off(from).max(off(to));
            score.trials += 1;
            score.outside_bound += usize::from(worst > bound);
            score.outside_error += usize::from(worst > error);
            score.worst_ns = score.worst_ns.max(worst);
            score.bound_ns = (score.bound_ns.0.min(bound), score.bound_ns.1.max(bound));
            score.error_ns = (score.error_ns.0.min(error), score.error_ns.1.max(error));
        }
    }
    score
}

#[track_caller]
fn check(name: &str, ranks: &[TestRank], device: bool, drift_ppm: i64) {
    let score = score(ranks, device, drift_ppm, 1 + drift_ppm as u64);
    println!("{name:<20} drift ±{drift_ppm} ppm {score:?}");
    assert_eq!(score.outside_bound, 0, "{name}: a guarantee does not hold");
    assert!(score.outside_error * 20 <= score.trials, "{name}: 95 % of errors do not lie within error_ns");
}

#[test]
fn shifts_are_recovered_on_gloo() {
    check("gloo8_slow5", &gloo(GLOO8), false, 0);
    check("gloo4_slow2_stack", &gloo(GLOO4), false, 0);
}

#[test]
fn drifts_are_recovered_on_gloo() {
    check("gloo8_slow5", &gloo(GLOO8), false, 50);
    check("gloo4_slow2_stack", &gloo(GLOO4), false, 50);
}

#[test]
fn shifts_and_drifts_are_recovered_on_nccl() {
    let Some(data) = real_traces() else { return };
    for folder in ["dlrm8", "megatron_tp2", "torchrec4_long_a2a"] {
        let ranks = nccl_kernels(&data.join("kineto").join(folder));
        check(folder, &ranks, true, 0);
        check(folder, &ranks, true, 50);
    }
}
