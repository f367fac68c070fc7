//! Invariants of fits: a shift changes only offsets, the order of ranks changes nothing, and planted clocks lie inside
//! the bounds.

use proptest::prelude::*;
use trace::{ClockFitRow, ClockMethod, CollectiveRow};

use crate::clock::tests::pings::ping;
use crate::clock::tests::support::{Bend, Dice, GLOO4, TestRank, collective, fitted, fitted_by, gloo, matched};
use crate::clock::{Clocks, fit};
use model::RankOutline;
use model::clock_choice::Choice;

const S: i64 = 1_000_000_000;

/// Ranks with pings to rank 0, and ranks without pings that share collectives with them.
fn mixed(seed: u64, ranks: usize, bends: &[Bend]) -> Vec<TestRank> {
    let mut dice = Dice::new(seed);
    let mut made: Vec<TestRank> = (0..ranks).map(|r| TestRank { rank: r as i32, ..TestRank::default() }).collect();
    for (r, rank) in made.iter_mut().enumerate().filter(|(r, _)| r % 2 == 1) {
        for burst in 0..3 {
            let at = (0..20).map(|k| burst * S + k * 50_000);
            rank.samples.extend(at.map(|t| ping(&mut dice, t, (r as i32, bends[r]), (0, bends[0]))));
        }
    }
    for k in 0..30 {
        let t = k * 70_000_000;
        let arrivals: Vec<i64> = (0..ranks).map(|_| t + dice.exponential(2e6) as i64).collect();
        let last = arrivals.iter().max().unwrap() + 15_000;
        for (r, arrival) in arrivals.iter().enumerate() {
            let end = last + dice.exponential(2e3) as i64;
            let mut row = collective(r as i32, "allreduce", bends[r].show(*arrival), bends[r].show(end));
            row.seq = Some(k);
            made[r].rows.push(row);
        }
    }
    made
}

fn clocks_of(ranks: &[TestRank]) -> Clocks {
    let (instances, _) = matched(ranks);
    fitted(ranks, &instances)
}

/// All arrivals in global time, relative to the first.
fn arrivals(ranks: &[TestRank], clocks: &Clocks) -> Vec<i64> {
    let arrivals_of =
        |r: &TestRank| r.rows.iter().map(|row| clocks.global(r.rank, false, row.start_ns.unwrap())).collect::<Vec<_>>();
    let mut ranks: Vec<&TestRank> = ranks.iter().collect();
    ranks.sort_by_key(|r| r.rank);
    let all: Vec<i64> = ranks.into_iter().flat_map(arrivals_of).collect();
    all.iter().map(|t| t - all[0]).collect()
}

/// Shifts a rank's clock: its times, its samples, and the samples that others took of it.
fn shifted(ranks: &[TestRank], rank: i32, by: i64) -> Vec<TestRank> {
    let mut ranks = ranks.to_vec();
    for r in &mut ranks {
        let own = r.rank == rank;
        for s in &mut r.samples {
            s.local_ns += if own { by } else { 0 };
            s.remote_ns += if s.peer_rank == Some(rank) { by } else { 0 };
            s.offset_ns = s.remote_ns - s.local_ns;
        }
        if own {
            *r = r.bent(Bend { shift_ns: by, ..Bend::default() });
        }
    }
    ranks
}

/// All columns except offsets and origins, which count from the shifted clock.
fn errors(clocks: &Clocks) -> Vec<ClockFitRow> {
    clocks.rows().iter().map(|r| ClockFitRow { offset_ns: 0, origin_ns: 0, ..r.clone() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_shift_changes_an_offset_and_nothing_else(
        seed in 1_u64..1_000_000, ranks in 2_usize..7, who in 0_usize..7, by in -10 * S..10 * S,
    ) {
        let bends: Vec<Bend> = (0..ranks as i64).map(|r| Bend { shift_ns: r * 77_777, drift: r as f64 * 7e-6, ..Bend::default() }).collect();
        let straight = mixed(seed, ranks, &bends);
        let moved = shifted(&straight, (who % ranks) as i32, by);
        let (before, after) = (clocks_of(&straight), clocks_of(&moved));
        prop_assert_eq!(arrivals(&straight, &before), arrivals(&moved, &after));
        prop_assert_eq!(errors(&before), errors(&after));
    }

    #[test]
    fn the_order_of_ranks_changes_nothing(seed in 1_u64..1_000_000, ranks in 2_usize..7) {
        let bends = vec![Bend::default(); ranks];
        let mut ranks = mixed(seed, ranks, &bends);
        let before = clocks_of(&ranks);
        let mut dice = Dice::new(seed);
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, dice.between(0, i as i64) as usize);
        }
        let after = clocks_of(&ranks);
        prop_assert_eq!(before.rows(), after.rows());
    }

    #[test]
    fn planted_clocks_are_inside_the_bounds(seed in 1_u64..1_000_000, ranks in 2_usize..7) {
        let mut dice = Dice::new(seed);
        let bend = |dice: &mut Dice| Bend {
            shift_ns: dice.between(-10 * S, 10 * S),
            // Two clocks are at most 100 ppm apart, as the bound from collectives assumes.
            drift: dice.between(-45_000, 45_000) as f64 * 1e-9,
            turn_ns: dice.between(0, 2 * S),
            turn: dice.between(-5_000, 5_000) as f64 * 1e-9,
            ..Bend::default()
        };
        let bends: Vec<Bend> = (0..ranks).map(|_| bend(&mut dice)).collect();
        let planted = mixed(seed, ranks, &bends);
        let clocks = clocks_of(&planted);
        prop_assert!(clocks.contradictions.is_empty(), "{:?}", clocks.contradictions);
        let off = |r: usize, t: i64| clocks.global(r as i32, false, bends[r].show(t)) - bends[0].show(t);
        for r in 1..ranks {
            let row = clocks.row(r as i32, false).unwrap();
            prop_assert_eq!(&*row.method, if r % 2 == 1 { "ping" } else { "collective" });
            prop_assert_eq!(row.violations, 0);
            let bound = row.bound_ns.unwrap();
            for t in [0, S, 2 * S] {
                prop_assert!(off(r, t).abs() <= bound, "{} {:?}", off(r, t), row);
                let between = (off(r, t) - off(1, t)).abs();
                prop_assert!(between <= clocks.bound_between(1, r as i32, false).unwrap());
            }
        }
    }
}

#[test]
fn ranks_of_one_host_share_a_clock_unless_their_collectives_contradict_it() {
    let mut ranks = gloo(GLOO4);
    for rank in &mut ranks {
        rank.domain = "vm/utc".into();
    }
    let clocks = clocks_of(&ranks);
    assert!(
        clocks.rows().iter().all(|r| r.method == ClockMethod::SameHost && r.bound_ns == Some(0) && r.violations == 0)
    );

    ranks[2] = ranks[2].bent(Bend { shift_ns: 3 * S, ..Bend::default() });
    let clocks = clocks_of(&ranks);
    let methods: Vec<_> = clocks.rows().iter().map(|r| &*r.method).collect();
    assert_eq!(methods, ["same_host", "same_host", "collective", "same_host"]);
    assert_eq!(clocks.contradictions.iter().map(|c| c.rank).collect::<Vec<_>>(), [Some(2)]);
    let row = clocks.row(2, false).unwrap();
    assert!((row.offset_ns + 3 * S).abs() <= row.error_ns.unwrap(), "{row:?}");
}

// Rank 1's third collective differs from rank 0's: no offset lets both be one collective.
#[test]
fn a_false_match_is_a_contradiction_that_names_its_instances() {
    let mut ranks: Vec<TestRank> = (0..2).map(|rank| TestRank { rank, ..TestRank::default() }).collect();
    for k in 0..8 {
        let false_ns = if k == 2 { 400_000 } else { 0 };
        for (rank, late) in [(0, 0), (1, false_ns)] {
            let t = k * 1_000_000 + late;
            let mut row = collective(rank, "allreduce", t, t + 20_000);
            row.seq = Some(k);
            ranks[rank as usize].rows.push(row);
        }
    }
    let clocks = clocks_of(&ranks);
    let row = clocks.row(1, false).unwrap();
    assert_eq!((&*row.method, row.bound_ns, row.offset_ns), ("collective", None, 0));
    assert!(!clocks.contradictions.is_empty());
    assert!(
        clocks.contradictions[0].why.contains("allreduce number 2, entered by rank 0 at 2000000 ns"),
        "{:?}",
        clocks.contradictions
    );
    assert_eq!(clocks.rows().iter().map(|r| r.violations).sum::<i64>(), 1);
}

/// Tensor-parallel pairs (0,1) (2,3) and data-parallel pairs (0,2) (1,3): rank 3 shares no collective with rank 0, and
/// no rank shares one with all others.
#[test]
fn ranks_without_a_common_collective_are_fitted_through_others() {
    for seed in 1..40 {
        let mut dice = Dice::new(seed);
        let mut bend = || Bend { shift_ns: dice.between(-10 * S, 10 * S), ..Bend::default() };
        let bends = [bend(), bend(), bend(), bend()];
        let mut ranks: Vec<TestRank> = (0..4).map(|rank| TestRank { rank, ..TestRank::default() }).collect();
        for k in 0..24_i64 {
            let pairs = if k % 3 == 2 { [(0, 2), (1, 3)] } else { [(0, 1), (2, 3)] };
            for (comm, (a, b)) in pairs.into_iter().enumerate() {
                let t = k * 10_000_000;
                let arrivals = [t + dice.exponential(5e5) as i64, t + dice.exponential(5e5) as i64];
                let end = arrivals[0].max(arrivals[1]) + 15_000;
                for (rank, arrival) in [a, b].into_iter().zip(arrivals) {
                    let left = end + dice.exponential(2e3) as i64;
                    let bend = bends[rank as usize];
                    let mut row = collective(rank, "allreduce", bend.show(arrival), bend.show(left));
                    row.comm_id = 10 * (k % 3 / 2) + comm as i64;
                    ranks[rank as usize].rows.push(row);
                }
            }
        }
        let (instances, omissions) = matched(&ranks);
        assert_eq!((instances.len(), omissions.len()), (48, 0));
        let clocks = fitted(&ranks, &instances);
        for rank in 1..4 {
            let row = clocks.row(rank, false).unwrap();
            let off = (clocks.global(rank, false, bends[rank as usize].show(S)) - bends[0].show(S)).abs();
            assert_eq!((&*row.method, row.violations), ("collective", 0));
            assert!(off <= row.error_ns.max(row.bias_ns).unwrap() && row.bound_ns.unwrap() < 200_000, "{off} {row:?}");
        }
    }
}

/// Device clocks are fitted by device-timed collectives. A device without any uses its host's fit, with an unknown
/// error.
#[test]
fn device_clocks_are_fitted_separately() {
    let mut ranks = gloo(GLOO4);
    for rank in &mut ranks {
        rank.domain = "vm/utc".into();
        if rank.rank == 3 {
            rank.rows.clear();
        }
        let late = Bend { shift_ns: 30_000 * i64::from(rank.rank), ..Bend::default() };
        *rank = rank.bent(late);
        rank.rows.iter_mut().for_each(|r| r.timing_source = "cupti".into());
    }
    let (instances, _) = matched(&ranks);
    let outline = |r: &TestRank| RankOutline {
        clock_samples: Vec::new(),
        recorded_ns: Some((0, S)),
        has_device_rows: true,
        ..r.outline(None)
    };
    let outlines: Vec<RankOutline> = ranks.iter().map(outline).collect();
    let clocks = fit(&outlines.iter().collect::<Vec<_>>(), &instances, Choice::Auto);
    let seen: Vec<_> = clocks.rows().iter().map(|r| (r.rank, &*r.clock, &*r.method, r.bound_ns.is_some())).collect();
    let host = |rank| (rank, "host", "same_host", true);
    let device = |rank| (rank, "device", "collective", true);
    let hosts_word = (3, "device", "same_host", false);
    assert_eq!(seen, [host(0), device(0), host(1), device(1), host(2), device(2), host(3), hosts_word]);
    assert_eq!(clocks.row(0, true).unwrap().bound_ns, Some(0));
    assert_eq!((clocks.error_between(1, 2, false), clocks.error_between(1, 3, true)), (Some(0), None));
    let errors = [0, 1, 2].map(|r| clocks.row(r, true).unwrap().error_ns.unwrap());
    let between = clocks.error_between(1, 2, true).unwrap();
    assert!((errors[1].max(errors[2])..=errors[1] + errors[2]).contains(&between));
}

/// The devices of two stages of a pipeline share no collective that is a barrier. Their hosts and the driver join them.
#[test]
fn devices_without_common_collectives_are_joined_by_their_hosts() {
    let mut dice = Dice::new(5);
    let of_rank = |rank| TestRank { rank, domain: "vm/utc".into(), ..TestRank::default() };
    let mut ranks: Vec<TestRank> = (0..4).map(of_rank).collect();
    for stage in ranks.chunks_mut(2) {
        for t in (0..50).map(|k| k * 4_000_000) {
            for rank in stage.iter_mut() {
                let (start, end) = (t + dice.between(0, 1_000_000), t + 1_000_000 + dice.exponential(2e3) as i64);
                let row = collective(rank.rank, "allreduce", start, end);
                let comm_id = i64::from(rank.rank / 2);
                rank.rows.push(CollectiveRow { comm_id, timing_source: "cupti".into(), ..row });
            }
        }
    }
    let clocks = clocks_of(&ranks);
    let between = |a, b| (clocks.error_between(a, b, true).unwrap(), clocks.bound_between(a, b, true).unwrap());
    let ((near, near_bound), (far, far_bound)) = (between(2, 3), between(1, 3));
    assert!(near < far && (100_000..300_000).contains(&far), "{near} {far}");
    assert!(far_bound >= near_bound && far_bound >= far, "{near_bound} {far_bound}");
    let row = clocks.row(3, true).unwrap();
    assert!(row.error_ns >= Some(100_000) && row.bound_ns >= row.error_ns && row.bias_ns.is_some(), "{row:?}");
}

/// As many ranks and instances as a large run has, without pings. Time is linear in rows, and the invariants hold.
#[test]
fn many_ranks_without_pings() {
    let (ranks, rows) = (32, 300);
    let bends: Vec<Bend> = (0..ranks).map(|r| Bend { shift_ns: r * 1_000_003, ..Bend::default() }).collect();
    let mut dice = Dice::new(32);
    let mut made: Vec<TestRank> = (0..ranks as i32).map(|rank| TestRank { rank, ..TestRank::default() }).collect();
    for k in 0..rows {
        let t = k * 4_000_000;
        let last = t + 1_000_000;
        for (rank, bend) in made.iter_mut().zip(&bends) {
            let (start, end) = (t + dice.between(0, 1_000_000), last + dice.exponential(2e3) as i64);
            rank.rows.push(collective(rank.rank, "allreduce", bend.show(start), bend.show(end)));
        }
    }
    let (instances, omissions) = matched(&made);
    // An ambiguous alignment is refused and counted, never guessed. With many ranks this may happen to one.
    let left_out: Vec<i32> = omissions.iter().filter_map(|omission| omission.rank).collect();
    assert!(
        instances.len() == rows as usize && left_out.len() == omissions.len() && left_out.len() <= 1,
        "{omissions:?}"
    );
    let clocks = fitted(&made, &instances);
    for (row, bend) in clocks.rows().iter().zip(&bends).filter(|(row, _)| !left_out.contains(&row.rank)) {
        let off = (row.offset_ns + bend.shift_ns - bends[0].shift_ns).abs();
        assert!(off <= row.error_ns.unwrap() && row.violations == 0, "{off} {row:?}");
    }
}

/// Ranks of several hosts with collectives only on their devices. These collectives align the hosts too: without a
/// guarantee, but better than wall clocks. An equal clock domain must not hide that a whole trace is shifted.
#[test]
fn hosts_follow_their_devices_without_other_evidence() {
    for domains in [["a/utc", "b/utc", "c/utc", "d/utc"], ["vm/utc"; 4], ["utc"; 4]] {
        let mut ranks = gloo(GLOO4);
        for (rank, domain) in ranks.iter_mut().zip(domains) {
            rank.domain = domain.into();
            rank.rows.iter_mut().for_each(|r| r.timing_source = "cupti".into());
        }
        ranks[3] = ranks[3].bent(Bend { shift_ns: -7 * S, ..Bend::default() });
        let clocks = clocks_of(&ranks);
        let row = clocks.row(3, false).unwrap();
        assert_eq!((&*row.method, row.bound_ns), ("collective", None));
        assert!((row.offset_ns - 7 * S).abs() <= row.error_ns.unwrap() && row.error_ns.unwrap() < S / 10, "{row:?}");
        let device = clocks.row(3, true).unwrap();
        assert_eq!(device.offset_ns, row.offset_ns);
        assert!((device.offset_ns - 7 * S).abs() <= device.bound_ns.unwrap());
        let shared = domains == ["vm/utc"; 4];
        assert_eq!(&*clocks.row(2, false).unwrap().method, if shared { "same_host" } else { "collective" });
        assert_eq!(clocks.contradictions.len(), usize::from(shared), "{:?}", clocks.contradictions);
    }
}

/// Ranks on hosts of their own that meet every 20 ms; the times of a rank are those of `show`.
fn meeting(dice: &mut Dice, rounds: i64, ranks: usize, show: impl Fn(usize, i64) -> i64) -> Vec<TestRank> {
    let mut made: Vec<TestRank> = (0..ranks as i32).map(|rank| TestRank { rank, ..TestRank::default() }).collect();
    for round in 0..rounds {
        let t = round * 20_000_000;
        let arrivals: Vec<i64> = (0..ranks).map(|_| t + dice.exponential(1e5) as i64).collect();
        let left_ns = arrivals.iter().max().unwrap() + 15_000;
        for (rank, arrival) in arrivals.into_iter().enumerate() {
            let left_ns = left_ns + dice.exponential(2e3) as i64;
            let row = collective(rank as i32, "allreduce", show(rank, arrival), show(rank, left_ns));
            made[rank].rows.push(CollectiveRow { seq: Some(round), ..row });
        }
    }
    made
}

/// Invariant (clocks): The stated error of a host clock that only devices measure includes the driver's conversion of their times.
#[test]
fn errors_of_hosts_that_only_devices_measure_hold_the_conversion() {
    let (mut fits, mut covered) = (0, 0);
    for seed in 1..=90 {
        let mut dice = Dice::new(seed);
        let shifts: Vec<i64> = (0..6).map(|_| dice.between(-S, S)).collect();
        let converted: Vec<i64> = (0..6).map(|_| dice.between(-50_000, 50_000)).collect();
        let mut ranks = meeting(&mut dice, 100, 6, |rank, t| t + shifts[rank] + converted[rank]);
        ranks.iter_mut().flat_map(|rank| &mut rank.rows).for_each(|row| row.timing_source = "cupti".into());
        let clocks = clocks_of(&ranks);
        for (rank, shift) in shifts.iter().enumerate().skip(1) {
            let off = (clocks.global(rank as i32, false, S + shift) - S - shifts[0]).abs();
            fits += 1;
            covered += i32::from(off <= clocks.row(rank as i32, false).unwrap().error_ns.unwrap());
        }
    }
    assert!(fits >= 400 && covered * 100 >= fits * 93, "{covered} of {fits}");
}

/// Invariant (clocks): A clock that NTP slews by up to 500 ppm is within its bound, or has none.
#[test]
fn a_clock_that_is_slewed_keeps_its_bound_or_loses_it() {
    for seed in 1..=60 {
        let mut dice = Dice::new(seed);
        let (from, length) = (dice.between(0, 8 * S), dice.between(S / 50, 8 * S));
        let slew = [-500e-6, -100e-6, 100e-6, 500e-6][dice.between(0, 4) as usize % 4];
        let show = |rank: usize, t: i64| match rank {
            1 => t + (slew * (t - from).clamp(0, length) as f64).round() as i64,
            _ => t,
        };
        let clocks = clocks_of(&meeting(&mut dice, 500, 4, show));
        let Some(bound) = clocks.row(1, false).unwrap().bound_ns else { continue };
        for at in 0..=100 {
            let t = at * S / 10;
            let off = (clocks.global(1, false, show(1, t)) - t).abs();
            assert!(off <= bound, "seed {seed}: {off} of {bound} at {t}: {slew} from {from} for {length}");
        }
    }
}

/// Invariant (clocks): A chosen clock method is used or refused, and never replaced.
///
/// The chosen evidence is used, or none is.
#[test]
fn a_clock_choice_is_never_replaced_silently() {
    let mut ranks = gloo(GLOO4);
    ranks.iter_mut().for_each(|r| r.domain = "vm/utc".into());
    ranks[2] = ranks[2].bent(Bend { shift_ns: 3 * S, ..Bend::default() });
    let (instances, _) = matched(&ranks);
    let by = |choice| fitted_by(&ranks, &instances, choice);
    let methods = |clocks: &Clocks| clocks.rows().iter().map(|r| r.method.to_string()).collect::<Vec<_>>();

    let collective = by(Choice::Collective);
    assert_eq!(methods(&collective), ["collective"; 4], "a shared host is not used as evidence");
    let off = |row: &ClockFitRow, by: i64| (row.offset_ns + by).abs() <= row.error_ns.unwrap();
    assert!(collective.rows().iter().all(|r| off(r, if r.rank == 2 { 3 * S } else { 0 })), "{:?}", collective.rows());
    assert_eq!((collective.contradictions.len(), collective.impossible(Choice::Collective)), (0, None));

    let host = by(Choice::SameHost);
    assert_eq!(methods(&host), ["same_host", "same_host", "none", "same_host"]);
    assert_eq!((host.row(2, false).unwrap().error_ns, host.impossible(Choice::SameHost)), (None, None));
    // Two omissions: the collectives contradict the shared host, and the choice allows no other evidence for the rank.
    assert_eq!(
        host.contradictions.iter().map(|c| (c.rank, &*c.what)).collect::<Vec<_>>(),
        [(Some(2), "clock contradiction"), (Some(2), "clock fit"),]
    );
    assert!(host.contradictions[1].why.contains("--clock same_host"), "{:?}", host.contradictions);

    let utc = by(Choice::Utc);
    assert_eq!(methods(&utc), ["utc"; 4]);
    assert!(utc.rows().iter().skip(1).all(|r| r.error_ns.is_none() && r.offset_ns == 0));
    let pings = by(Choice::Ping);
    assert!(pings.impossible(Choice::Ping).is_some_and(|why| why.contains("round trips")));
    assert_eq!(fitted(&[], &[]).impossible(Choice::Ping), None);
}

#[test]
fn no_ranks_have_no_fits() {
    let clocks = fitted(&[], &[]);
    assert_eq!((clocks.rows().len(), clocks.reference_rank(), clocks.global(3, true, 17)), (0, None, 17));
    let clocks = fitted(&[TestRank { rank: 4, ..TestRank::default() }], &[]);
    let row = clocks.row(4, false).unwrap();
    assert_eq!((row.reference_rank, row.offset_ns, row.error_ns, &*row.method), (4, 0, Some(0), "same_host"));
}
