//! Replays of drawn runs. One column is 10 ns.

use std::collections::{BTreeMap, BTreeSet};

use crate::rebucket::{Bound, Gradients};
use crate::replay::{Change, Replay};
use crate::tests::build::instance;
use measure::own_time::{OwnTime, Stretch};
use model::{Instance, Member};
use topology::join::Join;

/// One rank at one collective.
#[derive(Clone, Copy)]
struct At {
    comm: i64,
    own_ns: i64,
    start_ns: i64,
    end_ns: i64,
    /// The earlier collective that work waited for, as a position in the rank's list.
    waited: Option<u32>,
}

fn at(comm: i64, own_ns: i64, start_ns: i64, end_ns: i64, waited: Option<u32>) -> At {
    At { comm, own_ns, start_ns, end_ns, waited }
}

/// The replay of one step. The n-th collectives of the ranks of a communicator are one instance.
fn replay(ranks: &[Vec<At>]) -> Replay {
    let part = |(rank, rows): (usize, &Vec<At>)| {
        let stretch = |(index, row): (usize, &At)| Stretch {
            start_ns: row.start_ns,
            end_ns: Some(row.end_ns),
            own_ns: Some(row.own_ns),
            entered: (index as u32).checked_sub(1),
            waited: row.waited,
            step: Some(0),
            ..Stretch::default()
        };
        OwnTime { rank: rank as i32, stretches: rows.iter().enumerate().map(stretch).collect(), ..OwnTime::default() }
    };
    let parts: Vec<OwnTime> = ranks.iter().enumerate().map(part).collect();
    let parts: Vec<&OwnTime> = parts.iter().collect();
    let mut members: BTreeMap<(i64, usize), Vec<Member>> = BTreeMap::new();
    for (rank, rows) in ranks.iter().enumerate() {
        let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let count = counts.entry(row.comm).or_default();
            let (start_ns, end_ns) = (row.start_ns, Some(row.end_ns));
            let member = Member { rank: rank as i32, index: index as u32, start_ns, end_ns, device_clock: false };
            members.entry((row.comm, *count)).or_default().push(member);
            *count += 1;
        }
    }
    let instances: Vec<Instance> = members
        .into_iter()
        .enumerate()
        .map(|(id, ((comm_id, _), all))| Instance { comm_id, ..instance(id, 0, all.len(), all) })
        .collect();
    let replay = Replay::of(&Join::of(&parts, instances.to_vec(), &|_, _, t_ns| t_ns), &BTreeSet::from([0]), 0);
    assert_eq!(replay.discrepancy_ns(), 0);
    replay
}

/// For some sets of ranks, by how much the run is shorter if they work as a typical rank does.
fn saved_ns(ranks: &[Vec<At>], sets: &[&[usize]]) -> Vec<i64> {
    let replay = replay(ranks);
    sets.iter().map(|set| replay.saved_ns(&|rank| set.contains(&rank))).collect()
}

/// ```text
///   rank 0   ####[~~~~~~~~~~AA]##[BB]
///   rank 1   ####[~~~~~~~~~~AA]##[BB]
///   rank 2   ##############[AA]##[BB]        100 ns longer before A
/// ```
#[test]
fn work_that_all_others_wait_for_is_saved() {
    let late = |own_ns| vec![at(0, own_ns, own_ns, 160, None), at(0, 20, 180, 200, Some(0))];
    assert_eq!(saved_ns(&[late(40), late(40), late(140)], &[&[2], &[0], &[]]), [100, 0, 0]);
}

/// ```text
///   rank 0   ####[~~~~~~~~~~AA]
///   rank 1   ########[~~~~~~AA]              40 ns longer
///   rank 2   ##############[AA]              100 ns longer: alone it costs 60 ns
/// ```
#[test]
fn a_slow_rank_costs_no_more_than_its_distance_to_the_next() {
    let late = |own_ns| vec![at(0, own_ns, own_ns, 160, None)];
    let ranks = [late(40), late(40), late(40), late(80), late(140)];
    assert_eq!(saved_ns(&ranks, &[&[4], &[3], &[3, 4]]), [60, 0, 100]);
}

/// The work for `B` and `C` runs below `A` on the rank that waits.
///
/// ```text
///   rank 0   ##[~~~~~~~~~~AA][BB][CC]        b and c below A: 40 ns, so that B and C begin at once
///   rank 1   ##[~~~~~~~~~~AA][BB][CC]
///   rank 2   ############[AA]bb[BB]cc[CC]    would be ##[AA]bb[BB]cc[CC]
/// ```
#[test]
fn work_ahead_belongs_to_later_collectives() {
    let early = vec![at(0, 20, 20, 160, None), at(0, 40, 160, 200, Some(0)), at(0, 0, 200, 240, Some(1))];
    let late = vec![at(0, 120, 120, 140, None), at(0, 20, 160, 180, Some(0)), at(0, 20, 200, 220, Some(1))];
    // Rank 2 leaves earlier than the others, because it begins the work for the next collective then.
    let saved = saved_ns(&[early.clone(), early, late], &[&[2]]);
    assert_eq!(saved, [100]);
}

/// All ranks wait for rank 2, so it alone shows the work before `B` and `C`, and it is slow there too. The others work half as long.
///
/// ```text
///   rank 0   ##[~~~~AA][BBBBBB][CC]           b and c below A: 40 ns
///   rank 1   ##[~~~~AA][BBBBBB][CC]
///   rank 2   ######[AA]bbbb[BBBB]cccc[CC]     would be ##[AA]bb[BBBB]cc[CC]
/// ```
#[test]
fn the_work_of_a_slow_rank_is_not_that_of_those_that_wait_for_it() {
    let early = vec![at(0, 20, 20, 80, None), at(0, 40, 80, 160, Some(0)), at(0, 0, 160, 220, Some(1))];
    let late = vec![at(0, 60, 60, 80, None), at(0, 40, 120, 160, Some(0)), at(0, 40, 200, 220, Some(1))];
    assert_eq!(saved_ns(&[early.clone(), early, late], &[&[2]]), [80], "60 if 40 ns belonged to B on ranks 0 and 1");
}

/// Rank 0 works 60 ns for `B`, the last collective, and waits for `A` meanwhile. Work before the last collective is not lost, although
/// there is none to which it could move on.
///
/// ```text
///   rank 0   ##[~~~~~~~~~~AA][BB]            would be ##[AA]bbbb[BB]: B begins at 80
///   rank 1   ##[~~~~~~~~~~AA][BB]
///   rank 2   ############[AA]bb[BB]
/// ```
#[test]
fn work_ahead_of_the_last_collective_stays_there() {
    let early = |own_ns| vec![at(0, 20, 20, 160, None), at(0, own_ns, 160, 200, None)];
    let late = vec![at(0, 120, 120, 140, None), at(0, 20, 160, 180, Some(0))];
    assert_eq!(saved_ns(&[early(60), early(20), late], &[&[2]]), [80], "100 if the work for B were lost");
}

/// The work between two collectives of one communicator waits for a collective of another that is still in flight elsewhere.
///
/// ```text
///   rank 0   ##[A]####[~~~~~~~~BB]       communicator 0: A, B; communicator 1: L on ranks 1 and 2
///   rank 1   ##[A]##########[L]#[BB]
///   rank 2   ##[A]##########[L]#[BB]
/// ```
#[test]
fn collectives_of_other_communicators_do_not_queue() {
    let first = vec![at(0, 20, 20, 30, None), at(0, 40, 70, 180, Some(0))];
    let pair = vec![at(0, 20, 20, 30, None), at(1, 100, 130, 140, Some(0)), at(0, 20, 160, 180, Some(1))];
    assert_eq!(saved_ns(&[first, pair.clone(), pair], &[&[0], &[1], &[1, 2]]), [0, 0, 0]);
}

/// Transfers of communicator 0 take half of their time; those of communicator 1 stay.
///
/// ```text
///   recorded   ##[AAAA]##[BB]##[AAAA]      40 + 20 + 40 ns of transfers
///   replayed   ##[AA]##[BB]##[AA]
/// ```
#[test]
fn faster_transfers_make_the_step_shorter_where_nothing_hides_them() {
    let rank = || vec![at(0, 20, 20, 60, None), at(1, 20, 80, 100, Some(0)), at(0, 20, 120, 160, Some(1))];
    let replay = replay(&[rank(), rank()]);
    let halved = |comm: Option<i64>| Change {
        earlier_ns: replay.scaled_ns(&|of| if comm.is_none_or(|comm| comm == of) { 0.5 } else { 1.0 }),
        ..Change::nothing()
    };
    let lengths = [None, Some(0), Some(1)].map(|comm| replay.step_lengths_ns(&halved(comm)));
    assert_eq!(replay.step_lengths_ns(&Change::nothing()), [160]);
    assert_eq!(lengths, [[110], [120], [150]]);
}

/// Two steps of one communicator with four buckets of one gradient each, drawn with one gradient each 20 ns, and transfers
/// of 10 ns + 1 ns a byte.
fn bucketed(limit: Option<i64>) -> Option<Vec<i64>> {
    let (gradients, mut rows, mut comm_free) = (4, Vec::new(), 0);
    let mut ready = 100;
    for bucket in 0..gradients {
        ready += 20;
        let start = comm_free.max(ready);
        let end = start + if bucket % 2 == 0 { 40 } else { 30 };
        rows.push((
            at(0, if bucket == 0 { 120 } else { 20 }, start, end, None),
            bucket,
            if bucket % 2 == 0 { 30 } else { 20 },
        ));
        comm_free = end;
    }
    let mut replay = replay(&[rows.iter().map(|row| row.0).collect(), rows.iter().map(|row| row.0).collect()]);
    replay.bucket_of = rows.iter().map(|(_, bucket, bytes)| Some((*bucket, *bytes))).collect();
    match limit {
        None => Some(replay.step_lengths_ns(&Change::nothing())),
        Some(limit) => {
            Some(replay.rebucketed(limit, &Gradients::default(), Bound::Expected)?.step_lengths_ns(&Change::nothing()))
        }
    }
}

/// ```text
///   recorded        work   ##########0#1#2#3           ready at 120, 140, 160, 180; transfers of 40, 30, 40, 30
///                   comm             [0 ][1][2 ][3]    120 … 260
///   two a bucket    comm               [ 01 ][ 23 ]    140 … 200, 200 … 260: 10 + 50 each
///   all in one      comm                   [  0123  ]  180 … 290: 10 + 100
/// ```
#[test]
fn larger_buckets_start_later_and_pay_the_latency_less_often() {
    assert_eq!(bucketed(None), Some(vec![260]));
    assert_eq!(bucketed(Some(20)), Some(vec![260]), "the same buckets");
    assert_eq!(bucketed(Some(50)), Some(vec![260]));
    assert_eq!(bucketed(Some(100)), Some(vec![290]));
}
