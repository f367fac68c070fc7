//! Clocks that jump, from their collectives alone.

use proptest::prelude::*;
use trace::ClockFitRow;

use crate::clock::Clocks;
use crate::clock::tests::support::{Bend, Dice, TestRank, collective, fitted, matched};

const MS: i64 = 1_000_000;
const S: i64 = 1_000 * MS;

/// A clock that leaps ahead by `by_ns` at a true time.
#[derive(Clone, Copy, Debug)]
struct Leap {
    rank: i32,
    at_ns: i64,
    by_ns: i64,
}

fn show(bends: &[Bend], leap: Leap, rank: i32, t: i64) -> i64 {
    let leapt = if rank == leap.rank && t >= leap.at_ns { leap.by_ns } else { 0 };
    bends[rank as usize].show(t) + leapt
}

/// Ranks on hosts of their own that reduce every 20 ms for 2 s; the operation takes 0.2 ms. From `late.1` on, the rank
/// `late.0` leaves 0.3 ms later.
fn job(dice: &mut Dice, bends: &[Bend], leap: Leap, late: (i32, i64)) -> Vec<TestRank> {
    let mut ranks: Vec<TestRank> =
        (0..bends.len() as i32).map(|rank| TestRank { rank, ..TestRank::default() }).collect();
    for k in 0..100 {
        let last = k * 20 * MS + 5 * MS;
        let first = dice.between(0, bends.len() as i64 - 1);
        for rank in 0..bends.len() as i32 {
            let start = if i64::from(rank) == first { last } else { last - dice.between(0, 4 * MS) };
            let later = if rank == late.0 && last >= late.1 { 300_000 } else { 0 };
            let end = last + 200_000 + later + dice.between(0, 3_000);
            let mut row = collective(rank, "allreduce", show(bends, leap, rank, start), show(bends, leap, rank, end));
            row.seq = Some(k);
            ranks[rank as usize].rows.push(row);
        }
    }
    ranks
}

fn clocks_of(ranks: &[TestRank]) -> Clocks {
    let (instances, omissions) = matched(ranks);
    assert_eq!(omissions, []);
    fitted(ranks, &instances)
}

fn drifting(dice: &mut Dice, ranks: usize) -> Vec<Bend> {
    let bend = |dice: &mut Dice| Bend {
        shift_ns: dice.between(-10 * S, 10 * S),
        drift: dice.between(-40_000, 40_000) as f64 * 1e-9,
        ..Bend::default()
    };
    (0..ranks).map(|_| bend(dice)).collect()
}

/// The row that holds at a time of the clock.
fn row_at(clocks: &Clocks, rank: i32, t_ns: i64) -> &ClockFitRow {
    let rows: Vec<&ClockFitRow> = clocks.rows().iter().filter(|row| row.rank == rank).collect();
    rows.iter().skip(1).rev().find(|row| row.origin_ns <= t_ns).copied().unwrap_or(rows[0])
}

/// Every time of every clock is within the bound of its row, and the row gives the time that the map gives.
fn check(clocks: &Clocks, bends: &[Bend], leap: Leap) {
    let reference = clocks.reference_rank().unwrap();
    // Global time is the clock of the reference as if it had not jumped.
    let truth = |t: i64| bends[reference as usize].show(t);
    for rank in 0..bends.len() as i32 {
        for t in (0..396).map(|k| k * 5 * MS + 17) {
            let shown = show(bends, leap, rank, t);
            let row = row_at(clocks, rank, shown);
            let since = row.drift_ppb.unwrap_or(0.0) * 1e-9 * (shown - row.origin_ns) as f64;
            let global = clocks.global(rank, false, shown);
            assert!((shown + row.offset_ns + since.round() as i64 - global).abs() <= 2, "the row differs from the map");
            let off = (global - truth(t)).abs();
            assert!(off <= row.bound_ns.unwrap(), "rank {rank} is off by {off} at {t}: {row:?}");
        }
    }
}

// ms      0    20   …   700   720 …  2000
// rank 2  |    |         |       |     |         its clock leaps ahead by 5 ms at 710: the departures are 25 ms apart
#[test]
fn a_clock_that_jumped_is_one_line_and_has_bounds_on_both_sides() {
    for (by_ns, parts) in [(5 * MS, 4), (50 * MS, 2), (500 * MS, 2), (-5 * MS, 4)] {
        let mut dice = Dice::new(7);
        let bends = drifting(&mut dice, 4);
        let leap = Leap { rank: 2, at_ns: 710 * MS, by_ns };
        let clocks = clocks_of(&job(&mut dice, &bends, leap, (9, 0)));
        let said: Vec<_> = clocks.contradictions.iter().map(|c| (&*c.what, c.rank, c.amount)).collect();
        assert_eq!(said, [("clock jump", Some(2), Some(1))], "{:?}", clocks.contradictions);
        let why = &clocks.contradictions[0].why;
        let size = format!("jumped by {:+}.0", by_ns / MS);
        let near = format!("jumped by {:+}.9", by_ns / MS - 1);
        assert!(why.contains(&size) || why.contains(&near) || by_ns < 0 && why.contains("by -4.9"), "{why}");
        assert_eq!(clocks.rows().iter().filter(|row| row.rank == 2).count(), parts);
        let narrow = clocks.rows().iter().filter(|row| row.bound_ns.is_some_and(|bound| bound < 2 * MS)).count();
        assert_eq!(narrow, 5, "only the time between two departures is unsure");
        check(&clocks, &bends, leap);
    }
}

#[test]
fn two_clocks_that_jumped_are_two_lines() {
    let mut dice = Dice::new(11);
    let bends = drifting(&mut dice, 5);
    let leap = Leap { rank: 3, at_ns: 410 * MS, by_ns: 30 * MS };
    let mut ranks = job(&mut dice, &bends, leap, (9, 0));
    for row in &mut ranks[1].rows {
        for t in [&mut row.start_ns, &mut row.end_ns] {
            *t = t.map(|t| if t >= bends[1].show(1_210 * MS) { t + 80 * MS } else { t });
        }
    }
    let clocks = clocks_of(&ranks);
    assert_eq!(
        clocks.contradictions.iter().map(|c| (&*c.what, c.rank)).collect::<Vec<_>>(),
        [("clock jump", Some(1)), ("clock jump", Some(3)),]
    );
    assert!(clocks.rows().iter().all(|row| row.bound_ns.is_some()), "{:?}", clocks.rows());
}

// rank 1   |══|    |══|    |═══|    |═══|     leaves 0.3 ms later from 1 s on: no barrier contradicts that its clock jumped, or not
#[test]
fn a_rank_that_begins_to_leave_late_may_have_jumped() {
    let mut dice = Dice::new(13);
    let bends = drifting(&mut dice, 4);
    let leap = Leap { rank: 9, at_ns: 0, by_ns: 0 };
    let clocks = clocks_of(&job(&mut dice, &bends, leap, (1, S)));
    let said: Vec<_> = clocks.contradictions.iter().map(|c| (&*c.what, c.rank)).collect();
    assert_eq!((said, clocks.rows().len()), (vec![("possible clock jump", Some(1))], 4));
    let wide: Vec<bool> = clocks.rows().iter().map(|row| row.bound_ns.is_some_and(|bound| bound > 300_000)).collect();
    assert_eq!(wide, [false, true, false, false]);
    check(&clocks, &bends, leap);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn jumps_are_found_and_bounds_hold(
        seed in 1_u64..1_000_000, ranks in 3_usize..7, at_ms in 150..1_850_i64, by_ms in 2..500_i64, who in 0_usize..7,
    ) {
        let mut dice = Dice::new(seed);
        let bends = drifting(&mut dice, ranks);
        let leap = Leap { rank: (who % ranks) as i32, at_ns: at_ms * MS, by_ns: by_ms * MS };
        let clocks = clocks_of(&job(&mut dice, &bends, leap, (9, 0)));
        let said: Vec<_> = clocks.contradictions.iter().map(|c| (&*c.what, c.rank)).collect();
        prop_assert_eq!(said, [("clock jump", Some(leap.rank))]);
        check(&clocks, &bends, leap);
    }
}

// rank 0, 1   [A] … [Y][Z]
// rank 2      [A] … [Y]   ?        its last rows have another size, so they match none
#[test]
fn a_rank_with_unmatched_collectives_in_place_of_others_has_no_bound() {
    let bound = |change: &dyn Fn(&mut Vec<TestRank>)| {
        let mut dice = Dice::new(3);
        let bends = drifting(&mut dice, 3);
        let mut ranks = job(&mut dice, &bends, Leap { rank: 9, at_ns: 0, by_ns: 0 }, (9, 0));
        change(&mut ranks);
        let (instances, _) = matched(&ranks);
        let clocks = fitted(&ranks, &instances);
        let said = clocks.contradictions.iter().filter(|c| &*c.what == "collectives that do not bound the clock");
        let said: Vec<_> = said.map(|c| (c.rank, c.amount)).collect();
        ((1..3).map(|rank| clocks.row(rank, false).unwrap().bound_ns.is_some()).collect::<Vec<_>>(), said)
    };
    let foreign = |ranks: &mut Vec<TestRank>| {
        ranks[2].rows[90..].iter_mut().for_each(|row| (row.bytes, row.seq) = (Some(8), None));
    };
    assert_eq!(bound(&foreign), (vec![true, false], vec![(Some(2), Some(10))]));
    // The recordings overlap in part: ranks 0 and 1 begin later than rank 2, and go on after its end.
    let overlap = |ranks: &mut Vec<TestRank>| {
        ranks[..2].iter_mut().for_each(|rank| drop(rank.rows.drain(..10)));
        ranks[2].rows.truncate(90);
    };
    assert_eq!(bound(&overlap), (vec![true, true], vec![]));
}
