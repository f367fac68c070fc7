//! Matching of planted and real collectives.

use std::collections::BTreeSet;

use fixtures::data::real_traces;
use proptest::prelude::*;
use trace::{CollectiveRow, MatchLevel, Op, StepRow};

use crate::clock::tests::support::{
    Bend, Dice, GLOO4, GLOO8, TestRank, collective, gloo, matched, nccl_kernels, reference_instances,
};
use crate::matching::match_collectives;
use model::{Barrier, Collective, Instance, RankInfo, RankOutline};

/// Members of each instance as (rank, index).
fn shape(instances: &[Instance]) -> BTreeSet<Vec<(i32, u32)>> {
    instances.iter().map(|i| i.members.iter().map(|m| (m.rank, m.index)).collect()).collect()
}

fn rank(rank: i32, rows: Vec<CollectiveRow>) -> TestRank {
    TestRank { rank, rows, ..TestRank::default() }
}

fn rows(of: i32, op: &str, times: &[(i64, i64)]) -> Vec<CollectiveRow> {
    times.iter().map(|(start, end)| collective(of, op, *start, *end)).collect()
}

const MS: i64 = 1_000_000;

// ms      0    5    10   15   20   25   30   35
// rank 0  |A─────|  |B|     |C────|   |D─|
// rank 1       |A|  |B|         |C|   |D─|            starts later: only the last three, and its clock is 3 s ahead
#[test]
fn windows_that_begin_at_different_collectives_are_matched_by_the_barrier_rule() {
    let a = rows(0, "allreduce", &[(0, 7 * MS), (10 * MS, 12 * MS), (18 * MS, 24 * MS), (29 * MS, 32 * MS)]);
    let b = rows(1, "allreduce", &[(10 * MS, 12 * MS), (22 * MS, 24 * MS), (29 * MS, 32 * MS)]);
    let b = rank(1, b).bent(Bend { shift_ns: 3_000 * MS, ..Bend::default() });
    let (instances, omissions) = matched(&[rank(0, a), b]);
    let expected = [vec![(0, 1), (1, 0)], vec![(0, 2), (1, 1)], vec![(0, 3), (1, 2)]];
    assert_eq!(shape(&instances), expected.into_iter().collect());
    assert!(instances.iter().all(|i| i.level == MatchLevel::Ordinal && i.ranks_expected == Some(2) && i.complete()));
    assert_eq!(omissions.iter().map(|o| (o.rank, o.amount)).collect::<Vec<_>>(), [(Some(0), Some(1))]);
}

// ms      0       100     200     300
// rank 0  |A|     |B|     |C|     |D|
// rank 1          |B|     |C|                      its file has a gap, or was cut: A, B and B, C fit as well
#[test]
fn ranks_of_one_clock_are_matched_by_their_times() {
    let all = [0, 100, 200, 300].map(|ms| (ms * MS, (ms + 10) * MS));
    let on = |domain: &str, ahead_ns: i64| {
        let one = |of: i32, times: &[(i64, i64)]| TestRank {
            domain: domain.into(),
            ..rank(of, rows(of, "allreduce", times))
        };
        let cut = one(1, &all[1..3]).bent(Bend { shift_ns: ahead_ns, ..Bend::default() });
        shape(&matched(&[one(0, &all), cut]).0)
    };
    let expected = BTreeSet::from([vec![(0, 1), (1, 0)], vec![(0, 2), (1, 1)]]);
    assert_eq!(on("node-a/utc", 0), expected);
    // Devices of one host differ by some µs.
    assert_eq!(on("node-a/utc", 40_000), expected);
    for domain in ["", "utc"] {
        assert_eq!(on(domain, 0), BTreeSet::new(), "clocks of any offset");
    }
    // Two machines of one name: their times pair nothing.
    assert_eq!(on("node-a/utc", 3_020 * MS), BTreeSet::new());
}

// ms      0    5    10   15   20   25   30
// rank 0  |A─────|  |B|     |C────|              each rank sends another amount, and another one each time
// rank 1       |A|  |B|         |C|
#[test]
fn an_uneven_all_to_all_is_one_whatever_each_rank_sends() {
    let times = [
        [(0, 7 * MS), (10 * MS, 12 * MS), (18 * MS, 24 * MS)],
        [(5 * MS, 7 * MS), (10 * MS, 12 * MS), (22 * MS, 24 * MS)],
    ];
    let exchange = |of: i32| {
        let mut rows = rows(of, "alltoall", &times[of as usize]);
        for (k, row) in (0..).zip(&mut rows) {
            row.bytes = Some(1000 * i64::from(of) + k);
        }
        rank(of, rows)
    };
    let (instances, omissions) = matched(&[exchange(0), exchange(1)]);
    assert_eq!(shape(&instances), (0..3).map(|k| vec![(0, k), (1, k)]).collect());
    assert_eq!(omissions, []);
}

// A kernel that waits is one state, a launch without any timed kernel another: a CUDA graph without CUPTI.
#[test]
fn collectives_not_started_differ_from_collectives_without_times() {
    let times = [(0, 7 * MS), (10 * MS, 12 * MS)];
    let mut a = rows(0, "allreduce", &times);
    let mut b = rows(1, "allreduce", &times);
    for (row, source) in [(&mut a[1], "gpu_timer"), (&mut b[1], "enqueue")] {
        (row.start_ns, row.end_ns, row.timing_source) = (None, None, source.into());
        row.state = "enqueued".into();
    }
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b)]);
    assert_eq!(shape(&instances), BTreeSet::from([vec![(0, 0), (1, 0)]]));
    let omitted: Vec<_> = omissions.iter().map(|o| (o.rank, &*o.what, o.amount)).collect();
    let expected = [(Some(0), "collectives not started", Some(1)), (Some(1), "collectives without times", Some(1))];
    assert_eq!(omitted, expected);
}

// A second process counts from 0 again, and rank 1 lacks the first window.
/// Invariant (clocks): Collectives match only within a window of the profiler.
#[test]
fn equal_numbers_in_different_windows_do_not_match() {
    let outline = |of: i32, windows: &[i32]| {
        let mut outline = RankOutline { info: RankInfo { rank: of, ..RankInfo::default() }, ..RankOutline::default() };
        for window in windows {
            let start_ns = i64::from(*window) * 1000 * MS;
            let row = CollectiveRow { seq: Some(0), ..collective(of, "allreduce", start_ns, start_ns + 5 * MS) };
            outline.collectives.push(Collective::from(row));
            let (step, window, end_ns) = (*window, Some(*window), start_ns + 9 * MS);
            outline.steps.push(StepRow { rank: of, step, start_ns, end_ns, window, ..StepRow::default() });
        }
        outline
    };
    let (instances, _) = match_collectives(&[&outline(0, &[1, 2]), &outline(1, &[2])]);
    assert_eq!(shape(&instances), BTreeSet::from([vec![(0, 0)], vec![(0, 1), (1, 0)]]));
}

// Rank 1 lost the middle row. Matching by position would be wrong for all rows after it.
#[test]
fn a_gap_in_the_middle_does_not_shift_the_rest() {
    let times = [(0, 7 * MS), (10 * MS, 12 * MS), (18 * MS, 24 * MS), (29 * MS, 32 * MS), (41 * MS, 45 * MS)];
    let a = rows(0, "allreduce", &times);
    let b: Vec<_> =
        rows(1, "allreduce", &times).into_iter().enumerate().filter(|(i, _)| *i != 2).map(|(_, r)| r).collect();
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b)]);
    let expected = [vec![(0, 0), (1, 0)], vec![(0, 1), (1, 1)], vec![(0, 3), (1, 2)], vec![(0, 4), (1, 3)]];
    assert_eq!(shape(&instances), expected.into_iter().collect());
    assert_eq!(omissions.len(), 1);
}

// Steps repeat to the ns, and one rank lacks one row: no evidence tells which one.
#[test]
fn ambiguous_rows_stay_unmatched_and_are_counted() {
    let times: Vec<(i64, i64)> = (0..6).map(|k| (k * 10 * MS, k * 10 * MS + MS)).collect();
    let ranks = [rank(0, rows(0, "allreduce", &times)), rank(1, rows(1, "allreduce", &times[..5]))];
    let (instances, omissions) = matched(&ranks);
    assert_eq!(instances, []);
    assert_eq!(
        omissions.iter().map(|o| (o.rank, o.amount)).collect::<Vec<_>>(),
        [(Some(0), Some(6)), (Some(1), Some(5))]
    );
}

#[test]
fn sequence_numbers_take_precedence_over_order() {
    let mut a = rows(0, "allreduce", &[(0, 5), (10, 15), (20, 25)]);
    let mut b = rows(1, "allreduce", &[(10, 15), (20, 25)]);
    for (row, seq) in a.iter_mut().zip([4, 5, 6]).chain(b.iter_mut().zip([5, 6])) {
        row.seq = Some(seq);
        row.comm_size = Some(2);
    }
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b)]);
    let seen: Vec<_> = instances.iter().map(|i| (i.seq, i.members.len(), i.level, i.complete())).collect();
    let seq = MatchLevel::Seq;
    assert_eq!(seen, [(Some(4), 1, seq, false), (Some(5), 2, seq, true), (Some(6), 2, seq, true)]);
    assert_eq!(omissions, []);
}

#[test]
fn comms_ids_take_precedence_over_sequence_numbers() {
    let a = rows(0, "allreduce", &[(0, 5), (10, 15)]);
    let b = rows(1, "allreduce", &[(10, 15)]);
    let ids = [Some(u64::MAX), Some(3)];
    let outline = |rank, rows: &[CollectiveRow], ids: &[Option<u64>]| RankOutline {
        info: RankInfo { rank, ..RankInfo::default() },
        collectives: rows
            .iter()
            .zip(ids)
            .map(|(row, id)| {
                let mut collective = Collective::from(row.clone());
                collective.set_comms_id(*id);
                collective
            })
            .collect(),
        ..RankOutline::default()
    };
    let (instances, _) = match_collectives(&[&outline(0, &a, &ids), &outline(1, &b, &ids[1..])]);
    let seen: Vec<_> = instances.iter().map(|i| (i.members.len(), i.level, i.ranks_expected)).collect();
    assert_eq!(seen, [(1, MatchLevel::CommsId, None), (2, MatchLevel::CommsId, None)]);
}

#[test]
fn one_number_for_two_operations_is_disputed() {
    let mut a = rows(0, "allreduce", &[(0, 5)]);
    let mut b = rows(1, "allgather", &[(0, 5)]);
    a[0].seq = Some(1);
    b[0].seq = Some(1);
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b)]);
    assert_eq!(instances, []);
    let what: Vec<_> = omissions.iter().map(|o| (&*o.what, o.rank)).collect();
    let (numbers, unmatched) = ("sequence numbers of collectives", "collectives unmatched");
    assert_eq!(what, [(numbers, Some(0)), (numbers, Some(1)), (unmatched, Some(0)), (unmatched, Some(1))]);
}

#[test]
fn sends_meet_their_receives() {
    let mut a = rows(0, "send", &[(0, 5), (10, 15)]);
    let mut b = rows(1, "recv", &[(1, 5)]);
    let mut c = rows(2, "recv", &[(11, 15)]);
    for (row, peer) in a.iter_mut().zip([1, 2]).chain([(&mut b[0], 0), (&mut c[0], 0)]) {
        row.peer = Some(peer);
        row.seq = Some(0);
    }
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b), rank(2, c)]);
    assert_eq!(shape(&instances), [vec![(0, 0), (1, 0)], vec![(0, 1), (2, 0)]].into_iter().collect());
    assert!(instances.iter().all(|i| i.op == Op::Send && i.barrier == Barrier::OneSided && i.complete()));
    assert_eq!(omissions, []);
}

/// ```text
/// rank 0   [send A]  [recv B]  [send C]  [recv D]       rank 1   [send B]  [recv A]  [send D]  [recv C]
/// ```
#[test]
fn sends_and_receives_without_numbers_meet_in_the_order_of_their_direction() {
    let pairs = |of: i32, times: [(i64, i64); 4]| {
        let mut all = rows(of, "send", &times);
        for (at, row) in all.iter_mut().enumerate() {
            row.op = if at % 2 == 0 { "send" } else { "recv" }.into();
            (row.peer, row.step) = (Some(1 - of), Some(3));
        }
        all
    };
    let a = pairs(0, [(0, 40), (1, 50), (60, 100), (61, 110)]);
    let b = pairs(1, [(30, 31), (32, 45), (90, 91), (92, 105)]);
    let (instances, omissions) = matched(&[rank(0, a.clone()), rank(1, b.clone())]);
    let crossed = [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]];
    assert_eq!(shape(&instances), crossed.map(Vec::from).into_iter().collect());
    assert_eq!(omissions, []);
    // A step that one rank recorded in part is aligned.
    let (instances, _) = matched(&[rank(0, a), rank(1, b[..3].to_vec())]);
    assert!(instances.iter().any(|instance| shape(std::slice::from_ref(instance)) == [vec![(0, 1), (1, 0)]].into()));
}

#[test]
fn a_hang_is_an_incomplete_instance_and_missing_starts_are_counted() {
    let mut a = rows(0, "allreduce", &[(0, 5)]);
    let mut b = rows(1, "allreduce", &[(0, 5)]);
    let mut c = rows(2, "allreduce", &[(0, 5)]);
    for row in [&mut a[0], &mut b[0], &mut c[0]] {
        (row.seq, row.comm_size) = (Some(9), Some(3));
    }
    b[0].end_ns = None;
    (c[0].start_ns, c[0].end_ns) = (None, None);
    let (instances, omissions) = matched(&[rank(0, a), rank(1, b), rank(2, c)]);
    assert_eq!(shape(&instances), [vec![(0, 0), (1, 0)]].into_iter().collect());
    assert!(!instances[0].complete());
    assert_eq!((omissions[0].rank, omissions[0].amount), (Some(2), Some(1)));
}

#[test]
fn a_single_rank_keeps_its_collectives() {
    let (instances, omissions) = matched(&[rank(3, rows(3, "allreduce", &[(0, 5), (10, 15)]))]);
    assert_eq!(instances.len(), 2);
    assert_eq!(omissions, []);
}

/// An independent reference counts from the end. We must find each of its instances, with bent clocks too.
#[test]
#[ignore = "reads real traces"]
fn real_kernels_match_as_counted_from_the_end() {
    let data = real_traces();
    for (folder, instances_of_all) in [("dlrm8", 8), ("megatron_tp2", 13), ("torchrec4_long_a2a", 12)] {
        let ranks = nccl_kernels(&data.join("kineto").join(folder));
        let (instances, omissions) = matched(&ranks);
        let place = |rank: i32, start_us: i64| {
            let rows = &ranks.iter().find(|r| r.rank == rank).unwrap().rows;
            // The reference subtracts the base time that one of the folders has.
            let base_us = if folder == "megatron_tp2" { 1_719_853_884_000_000 } else { 0 };
            rows.iter().position(|r| r.start_ns.unwrap().div_euclid(1_000) == base_us + start_us)
        };
        let ours = shape(&instances);
        let reference = reference_instances(&data, folder);
        for (key, members) in &reference {
            let mut members: Vec<(i32, u32)> =
                members.iter().map(|(rank, us)| (*rank, place(*rank, *us).unwrap() as u32)).collect();
            members.sort_unstable();
            assert!(ours.contains(&members), "{folder} {key:?}: {members:?} is not among {ours:?}");
        }
        let of_all = instances.iter().filter(|i| i.members.len() == ranks.len()).count();
        assert_eq!((of_all, reference.len()), (instances_of_all, instances_of_all), "{folder}");
        assert_eq!(omissions, [], "{folder}");
        unmoved_by_shifts(&ranks);
    }
}

#[test]
fn real_gloo_collectives_all_match() {
    for (csv, ranks_in_all) in [(GLOO8, 8), (GLOO4, 4)] {
        let ranks = gloo(csv);
        let (instances, omissions) = matched(&ranks);
        assert_eq!(instances.len(), ranks[0].rows.len());
        // All ranks recorded the same span here, so positions are the truth.
        let by_position =
            |i: &Instance| i.members.len() == ranks_in_all && i.members.iter().all(|m| m.index == i.members[0].index);
        assert!(instances.iter().all(by_position));
        assert_eq!(omissions, []);
        unmoved_by_shifts(&ranks);
    }
}

/// Truncated recordings: each rank lacks up to three rows at either end.
#[test]
fn real_gloo_collectives_match_in_cut_windows() {
    let mut dice = Dice::new(5);
    for csv in [GLOO8, GLOO4] {
        for _ in 0..60 {
            let mut ranks = gloo(csv);
            let mut cut = Vec::new();
            for rank in &mut ranks {
                let (front, back) = (dice.between(0, 3) as usize, dice.between(0, 3) as usize);
                rank.rows.truncate(rank.rows.len() - back);
                rank.rows.drain(..front);
                cut.push(front as u32);
            }
            let (instances, _) = matched(&ranks);
            for instance in &instances {
                let positions: BTreeSet<u32> =
                    instance.members.iter().map(|m| m.index + cut[m.rank as usize]).collect();
                assert_eq!(positions.len(), 1, "cut by {cut:?}: {:?}", instance.members);
            }
            assert!(instances.len() >= ranks[0].rows.len() - 3);
        }
    }
}

fn unmoved_by_shifts(ranks: &[TestRank]) {
    let expected = shape(&matched(ranks).0);
    let mut dice = Dice::new(11);
    for _ in 0..10 {
        let shift = |dice: &mut Dice| Bend { shift_ns: dice.between(-10_000 * MS, 10_000 * MS), ..Bend::default() };
        let mut bent: Vec<TestRank> = ranks.iter().map(|r| r.bent(shift(&mut dice))).collect();
        bent.reverse();
        assert_eq!(shape(&matched(&bent).0), expected);
    }
}

proptest! {
    /// Random steps of random operations. Each rank records a random part of them, with its own clock.
    #[test]
    fn planted_collectives_are_found(seed in 1_u64..1_000_000, ranks in 2_usize..6, rows in 8_usize..40) {
        let mut dice = Dice::new(seed);
        let mut planted: Vec<TestRank> = (0..ranks).map(|r| rank(r as i32, Vec::new())).collect();
        let mut truth: Vec<Vec<usize>> = vec![Vec::new(); ranks];
        let mut t = 0;
        for k in 0..rows {
            let bytes = if dice.between(0, 2) == 0 { 64 } else { 1024 };
            let arrivals: Vec<i64> = (0..ranks).map(|_| t + dice.exponential(2e6) as i64).collect();
            let last = arrivals.iter().max().unwrap() + 20_000;
            for (r, arrival) in arrivals.iter().enumerate() {
                let seen = k >= (seed as usize + r) % 3 && k + (seed as usize / 7 + r) % 4 < rows;
                if seen {
                    let mut row = collective(r as i32, "allreduce", *arrival, last + dice.exponential(3e3) as i64);
                    row.bytes = Some(bytes);
                    planted[r].rows.push(row);
                    truth[r].push(k);
                }
            }
            t = last + 3_000_000 + dice.exponential(5e6) as i64;
        }
        let shifts: Vec<i64> = (0..ranks).map(|_| dice.between(-10_000 * MS, 10_000 * MS)).collect();
        let bent: Vec<TestRank> =
            planted.iter().zip(&shifts).map(|(r, s)| r.bent(Bend { shift_ns: *s, ..Bend::default() })).collect();
        let (instances, omissions) = matched(&bent);
        for instance in &instances {
            let which: BTreeSet<usize> = instance.members.iter().map(|m| truth[m.rank as usize][m.index as usize]).collect();
            prop_assert_eq!(which.len(), 1);
        }
        // Every collective that at least two ranks recorded is found exactly once.
        let seen_by = |k: usize| truth.iter().filter(|seen| seen.contains(&k)).count();
        prop_assert_eq!(instances.len(), (0..rows).filter(|k| seen_by(*k) > 1).count());
        let alone: usize = (0..rows).filter(|k| seen_by(*k) == 1).count();
        prop_assert_eq!(omissions.iter().filter_map(|o| o.amount).sum::<i64>(), alone as i64);
    }

    /// Invariant (numbers): All-to-alls whose ranks exchange parts of any sizes match by their order and members, without numbers.
    #[test]
    fn all_to_alls_match_whatever_each_rank_sends(seed in 1_u64..1_000_000, ranks in 2_usize..6, rows in 8_usize..24) {
        let mut dice = Dice::new(seed);
        let mut planted: Vec<TestRank> = (0..ranks).map(|r| rank(r as i32, Vec::new())).collect();
        let mut t = 0;
        for _ in 0..rows {
            let arrivals: Vec<i64> = (0..ranks).map(|_| t + dice.exponential(2e6) as i64).collect();
            let last = arrivals.iter().max().unwrap() + 20_000;
            for (r, arrival) in arrivals.iter().enumerate() {
                // All ranks have the same few sizes, each at other times.
                let sent: Vec<i64> = (0..ranks as i64).map(|to| 100 * (1 + (to + dice.between(0, 1)) % 2)).collect();
                let row = collective(r as i32, "alltoall", *arrival, last + dice.exponential(3e3) as i64);
                planted[r].rows.push(CollectiveRow { bytes: Some(sent.iter().sum()), sent_bytes: Some(sent), ..row });
            }
            t = last + 3_000_000 + dice.exponential(5e6) as i64;
        }
        let bent: Vec<TestRank> = planted
            .iter()
            .map(|r| r.bent(Bend { shift_ns: dice.between(-10_000 * MS, 10_000 * MS), ..Bend::default() }))
            .collect();
        let (instances, omissions) = matched(&bent);
        let whole = |k: u32| (0..ranks as i32).map(|r| (r, k)).collect::<Vec<_>>();
        prop_assert_eq!(shape(&instances), (0..rows as u32).map(whole).collect());
        prop_assert_eq!(omissions, []);
    }
}
