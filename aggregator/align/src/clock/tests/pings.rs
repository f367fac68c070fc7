//! Fits by round trips: clocks with known errors, over a network with random delays.

use trace::{ClockFitRow, ClockSampleRow};

use crate::clock::Clocks;
use crate::clock::tests::support::{Bend, Dice, TestRank, collective, fitted, matched};

const S: i64 = 1_000_000_000;

/// One ping at true time `t`: request, read of the peer's clock, reply.
pub(super) fn ping(dice: &mut Dice, t: i64, me: (i32, Bend), peer: (i32, Bend)) -> ClockSampleRow {
    let way = |dice: &mut Dice| 4_000 + dice.exponential(3_000.0) as i64;
    let (there, back) = (way(dice), way(dice));
    let (send, receive) = (me.1.show(t), me.1.show(t + there + back));
    let remote_ns = peer.1.show(t + there);
    let local_ns = send + (receive - send) / 2;
    ClockSampleRow {
        rank: me.0,
        peer_rank: Some(peer.0),
        kind: "ping".into(),
        local_ns,
        remote_ns,
        offset_ns: remote_ns - local_ns,
        rtt_ns: receive - send,
    }
}

fn bursts(dice: &mut Dice, at: &[i64], pings: usize, me: (i32, Bend), peer: (i32, Bend)) -> Vec<ClockSampleRow> {
    let times = at.iter().flat_map(|start| (0..pings).map(move |k| start + k as i64 * 40_000));
    times.collect::<Vec<_>>().into_iter().map(|t| ping(dice, t, me, peer)).collect()
}

/// Ranks that exchanged pings with their parent in a binomial tree at these true times; recorded from 0 to `end`.
fn tree(dice: &mut Dice, bends: &[Bend], at: &[i64], end: i64) -> Vec<TestRank> {
    let mut ranks = Vec::new();
    for (r, bend) in bends.iter().enumerate() {
        let parent = r & (r.wrapping_sub(1));
        let samples =
            if r == 0 { Vec::new() } else { bursts(dice, at, 60, (r as i32, *bend), (parent as i32, bends[parent])) };
        let rows = vec![collective(r as i32, "broadcast", bend.show(0), bend.show(end))];
        ranks.push(TestRank { rank: r as i32, rows, samples, ..TestRank::default() });
    }
    ranks
}

fn bends(dice: &mut Dice, ranks: usize, drift_ppm: i64) -> Vec<Bend> {
    let drift = |dice: &mut Dice| dice.between(-drift_ppm * 1_000, drift_ppm * 1_000) as f64 * 1e-9;
    let shift = |dice: &mut Dice| dice.between(-10 * S, 10 * S);
    (0..ranks).map(|_| Bend { shift_ns: shift(dice), drift: drift(dice), ..Bend::default() }).collect()
}

/// The largest error of a rank's global time between two true times.
fn off(clocks: &Clocks, bends: &[Bend], rank: usize, window: (i64, i64)) -> i64 {
    let at = |t: i64| (clocks.global(rank as i32, false, bends[rank].show(t)) - bends[0].show(t)).abs();
    at(window.0).max(at(window.1))
}

/// Planted offsets and drifts must lie inside the bound, and inside the error in 95 % of the fits.
#[track_caller]
fn check(name: &str, at: &[i64], end: i64, drift_told: bool) {
    let mut dice = Dice::new(at.len() as u64 + end as u64);
    let (mut fits, mut outside) = (0, 0);
    for _ in 0..60 {
        let bends = bends(&mut dice, 8, 50);
        let ranks = tree(&mut dice, &bends, at, end);
        let clocks = fitted(&ranks, &[]);
        assert_eq!(clocks.contradictions, [], "{name}");
        for rank in 1..8 {
            let row = clocks.row(rank as i32, false).unwrap();
            let (bound, error) = (row.bound_ns.unwrap(), row.error_ns.unwrap());
            let worst = off(&clocks, &bends, rank, (0, end));
            assert!(worst <= bound && error <= bound, "{name}: {worst} {row:?}");
            assert_eq!((&*row.method, row.drift_ppb.is_some()), ("ping", drift_told), "{name}: {row:?}");
            fits += 1;
            outside += usize::from(worst > error);
        }
        let (a, b) = (3, 5);
        let between = off(&clocks, &bends, a, (0, end)) + off(&clocks, &bends, b, (0, end));
        assert!(between <= 2 * clocks.bound_between(a as i32, b as i32, false).unwrap());
    }
    println!("{name}: {outside} of {fits} outside error_ns");
    assert!(outside * 20 <= fits, "{name}: {outside} of {fits} fits are outside error_ns");
}

// s       0                 150                300
//         ▮                                    ▮      between them the clock turns by 0.1, 1 or 10 ppm at any time
//         ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮      the same turn, with a burst every 15 s
#[test]
fn the_guarantee_holds_for_clocks_that_bend() {
    let mut dice = Dice::new(3);
    let end = 300 * S;
    let often: Vec<i64> = (0..=20).map(|k| k * 15 * S).collect();
    for case in 0..60 {
        let turn = [0.1e-6, 1e-6, 10e-6][case % 3] * [1.0, -1.0][case / 3 % 2];
        let bent = Bend { turn_ns: dice.between(0, end), turn, ..bends(&mut dice, 1, 50)[0] };
        let bends = [Bend::default(), bent];
        for at in [&[0, end][..], &often] {
            let clocks = fitted(&tree(&mut dice, &bends, at, end), &[]);
            assert_eq!(clocks.contradictions, [], "a turn of {turn} is no contradiction");
            let row = clocks.row(1, false).unwrap();
            let worst = (0..=60).map(|k| off(&clocks, &bends, 1, (k * 5 * S, k * 5 * S))).max().unwrap();
            assert!(row.bound_ns.is_some_and(|bound| worst <= bound), "{worst} beyond the guarantee of {row:?}");
        }
    }
}

// s       0                 150                300
//         ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮ ▮    a turn by 2 ppm of every second rank
#[test]
fn a_clock_that_bends_is_followed_from_burst_to_burst() {
    let mut dice = Dice::new(5);
    let end = 300 * S;
    let often: Vec<i64> = (0..=20).map(|k| k * 15 * S).collect();
    let (mut ranks_off, mut outside) = (0, 0);
    for _ in 0..20 {
        let mut bends = bends(&mut dice, 8, 50);
        // No rank turns like its parent in the tree.
        for (rank, bend) in bends.iter_mut().enumerate() {
            bend.turn_ns = dice.between(end / 4, 3 * end / 4);
            bend.turn = if rank.count_ones() % 2 == 1 { 2e-6 } else { 0.0 };
        }
        let clocks = fitted(&tree(&mut dice, &bends, &often, end), &[]);
        for rank in 1..8 {
            let rows: Vec<&ClockFitRow> = clocks.rows().iter().filter(|row| row.rank == rank as i32).collect();
            let worst = (0..=60).map(|k| off(&clocks, &bends, rank, (k * 5 * S, k * 5 * S))).max().unwrap();
            let error = rows[0].error_ns.unwrap();
            assert!(rows.len() > 10 && error < 30_000 && worst <= rows[0].bound_ns.unwrap(), "{worst} {:?}", rows[0]);
            (ranks_off, outside) = (ranks_off + 1, outside + usize::from(worst > error));
            // The rows say what `global` does.
            for t in (0..=60).map(|k| bends[rank].show(k * 5 * S)) {
                let row = rows.iter().skip(1).rev().find(|row| row.origin_ns <= t).unwrap_or(&rows[0]);
                let drift = row.drift_ppb.unwrap() * 1e-9 * (t - row.origin_ns) as f64;
                assert!((t + row.offset_ns + drift.round() as i64 - clocks.global(rank as i32, false, t)).abs() <= 1);
            }
        }
    }
    println!("{outside} of {ranks_off} outside error_ns");
    assert!(outside * 20 <= ranks_off, "{outside} of {ranks_off}");
}

// ms or s   0 ▮▮▮                                   one burst: the drift is unknown, the bound grows with it
#[test]
fn one_burst() {
    check("one burst, 20 ms", &[0], 20_000_000, false);
    check("one burst, 2 s", &[0], 2 * S, false);
}

// s         0 ▮▮▮                         ▮▮▮ 10
#[test]
fn two_bursts() {
    check("two bursts, 10 s", &[0, 10 * S], 10 * S + 5_000_000, true);
    check("two bursts, 10 s, of 20 s", &[0, 10 * S], 20 * S, true);
    check("two bursts, 30 ms", &[0, 30_000_000], 35_000_000, false);
}

// s         0 ▮▮▮      ▮▮▮      ▮▮▮       ▮▮▮ 30
#[test]
fn four_bursts() {
    check("four bursts, 30 s", &[0, 10 * S, 20 * S, 30 * S], 30 * S + 5_000_000, true);
}

#[test]
fn one_ping_has_no_spread_so_its_error_is_its_bound() {
    let mut dice = Dice::new(3);
    let bends = bends(&mut dice, 2, 0);
    let samples = bursts(&mut dice, &[0], 1, (1, bends[1]), (0, bends[0]));
    let rtt_ns = samples[0].rtt_ns;
    let child = TestRank { rank: 1, samples, ..TestRank::default() };
    let clocks = fitted(&[TestRank::default(), child], &[]);
    let row = clocks.row(1, false).unwrap();
    assert_eq!(row.error_ns, row.bound_ns);
    // Half the round trip, plus drift across the margin of the window (1 ms at 500 ppm on either side).
    assert!((rtt_ns / 2..rtt_ns / 2 + 1_000).contains(&row.bound_ns.unwrap()), "{row:?}");
}

// s         0 ▮▮▮    10 ▮▮▮    20 ▮▮▮ +1 ms        the clock jumped between the second and the third burst
/// Invariant (clocks): A contradiction between clocks is reported, not averaged.
#[test]
fn a_clock_that_jumped_is_a_contradiction_and_has_no_bound() {
    let mut dice = Dice::new(9);
    let bends = bends(&mut dice, 2, 20);
    let mut samples = bursts(&mut dice, &[0, 10 * S], 60, (1, bends[1]), (0, bends[0]));
    let jumped = Bend { shift_ns: bends[1].shift_ns + 1_000_000, ..bends[1] };
    samples.extend(bursts(&mut dice, &[20 * S], 60, (1, jumped), (0, bends[0])));
    let child = TestRank { rank: 1, samples, ..TestRank::default() };
    let clocks = fitted(&[TestRank::default(), child], &[]);
    let row = clocks.row(1, false).unwrap();
    assert_eq!(row.bound_ns, None);
    assert!(row.error_ns.unwrap() > 100_000, "{row:?}");
    let what: Vec<_> = clocks.contradictions.iter().map(|c| (&*c.what, c.rank)).collect();
    assert_eq!(what, [("clock contradiction", Some(1))]);
}

#[test]
fn a_path_may_lead_through_a_rank_without_a_trace() {
    let mut dice = Dice::new(21);
    let bends = bends(&mut dice, 4, 30);
    let mut ranks = tree(&mut dice, &bends, &[0, 5 * S], 5 * S);
    ranks.remove(0);
    let clocks = fitted(&ranks, &[]);
    assert_eq!(clocks.reference_rank(), Some(1));
    let row = clocks.row(3, false).unwrap();
    assert_eq!(&*row.method, "ping");
    let worst = (clocks.global(3, false, bends[3].show(S)) - bends[1].show(S)).abs();
    assert!(worst <= row.bound_ns.unwrap() && row.bound_ns.unwrap() < 100_000, "{worst} {row:?}");
}

#[test]
fn an_equal_domain_connects_but_never_overrules_a_ping() {
    let mut dice = Dice::new(33);
    let mut bends = bends(&mut dice, 4, 0);
    bends[3] = bends[2];
    let mut ranks = tree(&mut dice, &bends, &[0, 5 * S], 5 * S);
    for (rank, domain) in ranks.iter_mut().zip(["boot-a", "boot-a", "boot-b", "boot-b"]) {
        rank.domain = domain.into();
    }
    // Rank 1 records rank 0's clock domain, but pings measured an offset of seconds: the pings win.
    ranks[3].samples.clear();
    let clocks = fitted(&ranks, &[]);
    let methods: Vec<_> = clocks.rows().iter().map(|r| &*r.method).collect();
    assert_eq!(methods, ["ping", "ping", "ping", "same_host"]);
    assert_eq!(clocks.row(1, false).unwrap().offset_ns.signum(), (bends[0].shift_ns - bends[1].shift_ns).signum());
    assert_eq!(clocks.error_between(2, 3, false), Some(0));
    assert_eq!(clocks.global(3, false, bends[3].show(S)), clocks.global(2, false, bends[2].show(S)));
}

#[test]
fn a_loop_that_does_not_close_is_reported() {
    let mut dice = Dice::new(41);
    let bends = bends(&mut dice, 3, 0);
    let mut ranks = tree(&mut dice, &bends, &[0, 5 * S], 5 * S);
    let torn = Bend { shift_ns: bends[1].shift_ns + 2_000_000, ..bends[1] };
    ranks[2].samples.extend(bursts(&mut dice, &[0, 5 * S], 1, (2, bends[2]), (1, torn)));
    let clocks = fitted(&ranks, &[]);
    assert_eq!(clocks.contradictions.len(), 1);
    assert!(clocks.contradictions[0].why.contains("disagree"), "{:?}", clocks.contradictions);
}

#[test]
fn wall_clocks_are_a_last_resort_without_an_error() {
    let utc = |rank: i32, local_ns: i64, remote_ns: i64| TestRank {
        rank,
        samples: vec![ClockSampleRow {
            rank,
            kind: "utc".into(),
            local_ns,
            remote_ns,
            offset_ns: remote_ns - local_ns,
            rtt_ns: 300,
            ..ClockSampleRow::default()
        }],
        ..TestRank::default()
    };
    let clocks =
        fitted(&[utc(0, 5, 1_000_005), utc(1, 70, 1_000_005), TestRank { rank: 2, ..TestRank::default() }], &[]);
    let seen: Vec<_> = clocks.rows().iter().map(|r| (&*r.method, r.offset_ns, r.error_ns, r.bound_ns)).collect();
    let exact = Some(0);
    assert_eq!(seen, [("utc", 0, exact, exact), ("utc", -65, None, None), ("none", 0, None, None)]);
    assert_eq!(clocks.error_between(0, 1, false), None);
}

#[test]
fn impossible_samples_are_counted() {
    let bad =
        ClockSampleRow { kind: "ping".into(), rank: 1, peer_rank: Some(0), rtt_ns: -5, ..ClockSampleRow::default() };
    let far = ClockSampleRow { local_ns: i64::MIN, remote_ns: i64::MAX, rtt_ns: 5, ..bad.clone() };
    let child = TestRank { rank: 1, samples: vec![bad, far], ..TestRank::default() };
    let clocks = fitted(&[TestRank::default(), child], &[]);
    assert_eq!(
        clocks.contradictions.iter().map(|o| (&*o.what, o.amount)).collect::<Vec<_>>(),
        [("clock samples", Some(2))]
    );
    assert_eq!(&*clocks.row(1, false).unwrap().method, "none");
}

// rank 0  |═══════════10|                  According to the pings, rank 1 entered 90 ns after rank 0 had left:
// rank 1                    |100══|        the two rows are not one collective.
#[test]
fn violations_of_the_barrier_rule_are_counted() {
    let mut dice = Dice::new(2);
    let mut ranks = tree(&mut dice, &[Bend::default(); 2], &[0, 5 * S], 5 * S);
    let mut rows = |rank: usize, start: i64, end: i64| {
        let mut row = collective(rank as i32, "allreduce", start, end);
        row.seq = Some(start / S);
        ranks[rank].rows.push(row);
    };
    rows(0, S, S + 10);
    rows(1, S + 500_000, S + 500_010);
    rows(0, 2 * S, 2 * S + 10);
    rows(1, 2 * S, 2 * S + 10);
    let (instances, _) = matched(&ranks);
    let clocks = fitted(&ranks, &instances);
    let violations: Vec<_> = clocks.rows().iter().map(|r| r.violations).collect();
    assert_eq!(violations, [1, 0]);
}

/// Invariant (clocks): The error of a clock covers unequal routes, although no ping shows them.
///
/// ```text
/// rank 0   ──────────────────────R─
///                       ↗ 5 ms     ↘ 1 ms        the middle is 2 ms from where rank 0 read its clock
/// rank 1   ────────────S──────────────V─
/// ```
#[test]
fn unequal_routes_are_inside_the_error_though_no_ping_shows_them() {
    for (there, back) in [(5_000_000, 1_000_000), (1_000_000, 5_000_000), (3_000_000, 3_000_000)] {
        let mut dice = Dice::new(there as u64);
        let mut ping = |t: i64| {
            let slower = dice.exponential(20_000.0) as i64;
            let rtt_ns = there + back + slower;
            let (local_ns, remote_ns) = (t + rtt_ns / 2, t + there + slower);
            let offset_ns = remote_ns - local_ns;
            ClockSampleRow { rank: 1, peer_rank: Some(0), kind: "ping".into(), local_ns, remote_ns, offset_ns, rtt_ns }
        };
        let samples: Vec<ClockSampleRow> =
            [0, S, 2 * S].iter().flat_map(|start| (0..60).map(move |k| start + k * 8_000_000)).map(&mut ping).collect();
        let ranks = [TestRank { rank: 0, ..TestRank::default() }, TestRank { rank: 1, samples, ..TestRank::default() }];
        let clocks = fitted(&ranks, &[]);
        let row = clocks.rows()[1].clone();
        let off = (clocks.global(1, false, S) - S).abs();
        assert!(off >= (there - back).abs() / 2 - 20_000, "{off}");
        assert!(off <= row.error_ns.unwrap() && row.error_ns <= row.bound_ns, "off by {off}: {row:?}");
    }
}

// host 0..2      clocks that differ by seconds and drift, joined by pings
// device 1   ────|════|                       20 µs wrong, by its driver
// device 2   ────|════|─ 2.3 ms ─|            leaves late in turns: it shares its GPU
// device 0   ────|════|
#[test]
fn devices_differ_from_hosts_that_pings_join_by_the_drivers_error() {
    let mut dice = Dice::new(11);
    let bends = bends(&mut dice, 3, 40);
    let mut ranks = tree(&mut dice, &bends, &[0, 5 * S], 5 * S + 5_000_000);
    for k in 0..100_i64 {
        let last = 200_000_000 + k * 40_000_000;
        for (rank, bend) in bends.iter().enumerate() {
            let shown = |t: i64| Some(bend.show(t) + if rank == 1 { 20_000 } else { 0 });
            let late = if rank == 2 { 2_300_000 * (k % 3 + 1) / 2 } else { 0 };
            let (start, end) = (last - dice.between(0, 6_000_000), last + 2_000_000 + late + dice.between(0, 2_000));
            let mut row = collective(rank as i32, "allreduce", 0, 0);
            (row.start_ns, row.end_ns, row.seq) = (shown(start), shown(end), Some(k));
            row.timing_source = "cupti".into();
            ranks[rank].rows.push(row);
        }
    }
    let clocks = fitted(&ranks, &matched(&ranks).0);
    assert_eq!(clocks.contradictions, []);
    for (rank, at_most) in [(1, 5_000), (2, 30_000)] {
        let row = clocks.row(rank, true).unwrap();
        let bend = bends[rank as usize];
        let driver_ns = if rank == 1 { 20_000 } else { 0 };
        let off = |t: i64| (clocks.global(rank, true, bend.show(t) + driver_ns) - bends[0].show(t)).abs();
        let worst = off(0).max(off(2 * S)).max(off(5 * S));
        assert!(worst < at_most, "rank {rank}: {worst} ns");
        assert!(row.error_ns.unwrap().max(row.bias_ns.unwrap()) < 130_000, "{row:?}");
    }
}
