//! Small jobs that hang, drawn by how far each rank is in each communicator.

use std::collections::BTreeMap;

use crate::job::Job;
use crate::mismatch::{Kind, Mismatch};
use crate::report::{Fault, Hang};
use crate::state::{CommState, Facts, Pending, Position, RankState, What};

/// A rank in a communicator: its name, its ranks, and the last collective that the rank called and the last that ended.
type Drawn<'a> = (&'a str, &'a [i32], i64, i64);

fn facts(op: &str, elements: i64) -> Facts {
    Facts {
        op: op.into(),
        input_elements: Some(elements),
        output_elements: Some(elements),
        dtype: Some("Float".into()),
        bytes: Some(4 * elements),
        ..Facts::default()
    }
}

/// A rank that called its open collectives in the order of `comms`.
fn rank(rank: i32, comms: &[Drawn<'_>]) -> RankState {
    let mut order = 0;
    let mut comm = |(name, members, enqueued, done): &Drawn<'_>| {
        let open = |seq| {
            order += 1;
            Pending { order, what: What::Collective(seq), facts: facts("allreduce", 8), batch: None }
        };
        CommState {
            name: (*name).into(),
            members: (!members.is_empty()).then(|| (*members).into()),
            seen: Some(Position { enqueued: *enqueued, done: *done }),
            pending: (done + 1..=*enqueued).map(open).collect(),
            ..CommState::default()
        }
    };
    RankState { rank, comms: comms.iter().map(&mut comm).collect(), in_flight: false }
}

fn hang(ranks: Vec<RankState>) -> Hang {
    Hang::of(Job::of(ranks, Vec::new(), None))
}

fn waits_for(hang: &Hang) -> Vec<(i32, Vec<i32>)> {
    hang.waits_for.iter().map(|(rank, late)| (*rank, late.clone())).collect()
}

/// ```text
///           a: 0 1 2      b: 0 2
///  rank 0   called 7      called 3
///  rank 1   called 7
///  rank 2   called 6      called 2
/// ```
#[test]
fn the_rank_that_did_not_call_is_the_culprit() {
    let ranks = vec![
        rank(0, &[("a", &[0, 1, 2], 7, 6), ("b", &[0, 2], 3, 2)]),
        rank(1, &[("a", &[0, 1, 2], 7, 6)]),
        rank(2, &[("a", &[0, 1, 2], 6, 6), ("b", &[0, 2], 2, 2)]),
    ];
    let found = hang(ranks);
    assert_eq!((found.culprits.clone(), found.device_stuck.clone()), (vec![2], vec![]));
    assert_eq!(waits_for(&found), [(0, vec![2]), (1, vec![2])]);
    let [evidence] = found.evidence.as_slice() else { panic!("{found:?}") };
    let operation = evidence.operation.as_ref().unwrap();
    assert_eq!(
        (evidence.fault, &*operation.communicator, operation.seq, operation.bytes),
        (Fault::Host, "a", Some(7), Some(32))
    );
    assert_eq!((evidence.waiting.clone(), evidence.waiting_in_all), (vec![0, 1], Some(2)));
}

/// Rank 0 waits for 1, which waits for 2 in another communicator: only 2 is to blame.
#[test]
fn a_chain_of_waits_leads_to_its_end() {
    let ranks = || {
        vec![
            rank(0, &[("a", &[0, 1], 5, 4)]),
            rank(1, &[("a", &[0, 1], 4, 4), ("b", &[1, 2], 9, 8)]),
            rank(2, &[("b", &[1, 2], 8, 8)]),
        ]
    };
    let found = hang(ranks());
    assert_eq!((found.culprits.clone(), found.evidence[0].waiting_in_all), (vec![2], Some(2)));
    assert_eq!(waits_for(&found), [(0, vec![1]), (1, vec![2])]);
    let behind: Vec<_> = found.waits.iter().map(|wait| (&*wait.operation.communicator, wait.behind)).collect();
    assert_eq!(behind, [("b", None), ("a", Some(0))]);
    // Without the dump of one of them.
    let without = |gone: usize| {
        let mut ranks = ranks();
        ranks.remove(gone);
        hang(ranks).culprits
    };
    assert_eq!([without(0), without(1), without(2)], [[2], [1], [2]], "without 1, nothing is known of its wait for 2");
}

/// Levels of one numbering: 0 waits for 1 and 2, and 1 for 2.
#[test]
fn ranks_at_several_levels_wait_for_all_below() {
    let of = |number, enqueued| rank(number, &[("a", &[0, 1, 2, 3], enqueued, 3)]);
    let found = hang(vec![of(0, 9), of(1, 6), of(2, 3), of(3, 6)]);
    assert_eq!(found.culprits, [2]);
    assert_eq!(waits_for(&found), [(0, vec![1, 2, 3]), (1, vec![2]), (3, vec![2])]);
    assert_eq!(found.evidence[0].operation.as_ref().unwrap().seq, Some(4), "the first one that it did not call");
}

#[test]
fn a_rank_without_a_dump_that_others_wait_for_is_the_answer() {
    let of = |number| rank(number, &[("a", &[0, 1, 2], 7, 6)]);
    let found = hang(vec![of(0), of(2)]);
    assert_eq!((found.culprits.clone(), found.ranks_not_read.clone()), (vec![1], vec![1]));
    assert_eq!((found.evidence[0].fault, waits_for(&found)), (Fault::NotRead, vec![(0, vec![1]), (2, vec![1])]));
    // No rank lists the members of the communicator.
    let unlisted = |number| rank(number, &[("a", &[], 7, 6)]);
    assert_eq!(hang(vec![unlisted(0), unlisted(2)]).culprits, [1]);
    // It must have called what another rank ended, so nobody waits for it there.
    let ended = rank(2, &[("a", &[0, 1, 2], 7, 7)]);
    assert_eq!(hang(vec![of(0), ended]).culprits, [0], "its device did not end what 2 ended");
}

/// Rank 3 has no dump. It is in communicator a, where the others wait for 2, so it waits as they do.
#[test]
fn a_rank_without_a_dump_that_waits_as_others_do_is_not_blamed() {
    let ranks = vec![
        rank(0, &[("a", &[0, 2, 3], 7, 6)]),
        rank(1, &[("b", &[1, 3], 4, 3)]),
        rank(2, &[("a", &[0, 2, 3], 6, 6)]),
    ];
    let found = hang(ranks);
    assert_eq!((found.culprits, found.ranks_not_read), (vec![2], vec![3]));
}

/// Rank 3 was killed. Rank 0 had called more than rank 1 when both stopped, but both wait for 3 in number 7.
#[test]
fn a_rank_that_is_behind_in_later_operations_only_is_not_blamed_for_a_killed_one() {
    let all: &[i32] = &[0, 1, 3];
    let found = hang(vec![rank(0, &[("a", all, 9, 6)]), rank(1, &[("a", all, 7, 6)])]);
    assert_eq!((found.culprits, found.ranks_not_read), (vec![3], vec![3]));
}

/// ```text
///           a       b
///  rank 0   7/7     4/4      called/ended
///  rank 1   7/6     4/3      called the same and ended less: its device is stuck
///  rank 2   7/7     4/4
/// ```
#[test]
fn a_device_is_stuck_if_it_is_behind_in_two_communicators() {
    let all: &[i32] = &[0, 1, 2];
    let of = |number, a, b| rank(number, &[("a", all, 7, a), ("b", all, 4, b)]);
    let found = hang(vec![of(0, 7, 4), of(1, 6, 3), of(2, 7, 4)]);
    assert_eq!((found.culprits, found.device_stuck), (vec![1], vec![1]));
    assert_eq!(found.evidence[0].fault, Fault::Device);
    assert!(hang(vec![of(0, 7, 4), of(1, 6, 4), of(2, 7, 4)]).device_stuck.is_empty(), "only in one of two");
    // A program that did not call is a fault of the host, also where a device is stuck.
    let found = hang(vec![of(0, 7, 4), of(1, 6, 3), rank(2, &[("a", all, 5, 5), ("b", all, 4, 4)])]);
    assert_eq!((found.culprits, found.device_stuck), (vec![2], vec![1]));
}

/// The root of a broadcast ends it before the others call it.
#[test]
fn the_end_of_a_broadcast_says_nothing_of_other_devices() {
    let all: &[i32] = &[0, 1];
    let mut behind = rank(1, &[("a", all, 7, 6)]);
    behind.comms[0].pending[0].facts.op = "broadcast".into();
    assert!(hang(vec![rank(0, &[("a", all, 7, 7)]), behind]).device_stuck.is_empty());
}

/// Invariant (hang): Ranks that wait for each other in a circle are reported as a deadlock.
///
/// ```text
///           a: 0 1    b: 0 1
///  rank 0   called 1            waits in a for 1
///  rank 1             called 1  waits in b for 0
/// ```
#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    let both: &[i32] = &[0, 1];
    let found = hang(vec![
        rank(0, &[("a", both, 1, 0), ("b", both, 0, 0)]),
        rank(1, &[("a", both, 0, 0), ("b", both, 1, 0)]),
        rank(2, &[]),
    ]);
    assert_eq!((found.culprits, found.deadlocks), (vec![], vec![vec![0, 1]]));
    // Both called both, in another order: each device is in an operation that the other one reaches later.
    let found =
        hang(vec![rank(0, &[("a", both, 1, 0), ("b", both, 1, 0)]), rank(1, &[("b", both, 1, 0), ("a", both, 1, 0)])]);
    assert_eq!((found.culprits, found.deadlocks), (vec![], vec![vec![0, 1]]));
    // A circle of which one rank also waits for another is none: it may go on.
    let found = hang(vec![
        rank(0, &[("a", both, 1, 0), ("b", both, 0, 0), ("c", &[0, 2], 1, 0)]),
        rank(1, &[("a", both, 0, 0), ("b", both, 1, 0)]),
        rank(2, &[("c", &[0, 2], 0, 0)]),
    ]);
    assert_eq!((found.culprits, found.deadlocks), (vec![2], Vec::<Vec<i32>>::new()));
}

/// A rank with open sends to (`true`) or receives from other ranks.
fn stage(number: i32, transfers: &[(i32, bool)]) -> RankState {
    let open = |(order, (peer, is_send)): (i64, &(i32, bool))| Pending {
        order,
        what: What::Transfer { peer: *peer, is_send: *is_send },
        facts: facts(if *is_send { "send" } else { "recv" }, 8),
        batch: None,
    };
    let pending = (0..).zip(transfers).map(open).collect();
    let comm = CommState {
        name: "pp".into(),
        members: Some([0, 1, 2].into()),
        has_transfers: true,
        pending,
        ..CommState::default()
    };
    RankState { rank: number, comms: vec![comm], in_flight: false }
}

/// Stage 1 receives from 0 and stage 2 from 1; rank 0 never sends. Rank 2 has a receive that 1 has sent to already.
#[test]
fn stages_wait_for_the_one_that_does_not_send() {
    let found = hang(vec![stage(0, &[]), stage(1, &[(0, false), (2, true)]), stage(2, &[(1, false), (1, false)])]);
    assert_eq!(found.culprits, [0]);
    assert_eq!(waits_for(&found), [(1, vec![0]), (2, vec![1])]);
    let found = hang(vec![stage(1, &[(0, false)]), stage(2, &[(1, false)])]);
    assert_eq!(found.culprits, [0], "without the dump of 0");
}

/// The first disagreement after one rank changed its open collectives.
fn mismatch(change: impl Fn(&mut Vec<Pending>)) -> Option<Mismatch> {
    let mut ranks: Vec<RankState> = (0..3).map(|number| rank(number, &[("a", &[0, 1, 2], 8, 6)])).collect();
    ranks.iter_mut().for_each(|rank| rank.comms[0].pending[1].facts.op = "allgather".into());
    change(&mut ranks[2].comms[0].pending);
    let found = hang(ranks);
    assert!(found.culprits.is_empty(), "every rank called everything");
    found.mismatches.into_iter().next()
}

#[test]
fn sizes_types_operations_and_orders_that_differ_are_found() {
    assert_eq!(mismatch(|_| ()), None);
    let size = mismatch(|pending| pending[1].facts.input_elements = Some(9)).unwrap();
    assert_eq!((size.kind, size.seq, size.op.as_deref()), (Kind::Size, Some(8), Some("allgather")));
    let sides: BTreeMap<_, _> = size.sides.iter().map(|side| (&*side.called, side.ranks.clone())).collect();
    assert_eq!(sides, BTreeMap::from([("8", vec![0, 1]), ("9", vec![2])]));
    let kind = |change: fn(&mut Vec<Pending>)| mismatch(change).map(|found| (found.kind, found.seq));
    assert_eq!(kind(|pending| pending[0].facts.dtype = Some("Half".into())), Some((Kind::Type, Some(7))));
    assert_eq!(kind(|pending| pending[0].facts.op = "barrier".into()), Some((Kind::Operation, Some(7))));
    let swap = |pending: &mut Vec<Pending>| {
        (pending[0].facts.op, pending[1].facts.op) = ("allgather".into(), "allreduce".into());
    };
    assert_eq!(kind(swap), Some((Kind::Order, Some(7))));
    assert_eq!(kind(|pending| pending[0].facts.output_elements = Some(1)), None, "all-reduces are compared by inputs");
}

/// Invariant (hang): The work of `hang` grows with the number of ranks, not with the number of pairs of ranks.
///
/// 10 000 ranks in one communicator, half of which have not called.
#[test]
fn many_ranks_take_no_square_of_work() {
    let members: std::sync::Arc<[i32]> = (0..10_000).collect();
    let of = |number: i32| {
        let mut rank = rank(number, &[("a", &[0], 7 - i64::from(number % 2), 6)]);
        rank.comms[0].members = Some(members.clone());
        rank
    };
    let ranks: Vec<RankState> = (0..10_000).map(of).collect();
    let found = hang(ranks);
    assert_eq!((found.culprits.len(), found.waits.len(), found.waits_for[&0].len()), (5000, 1, 64));
}

/// A manifest or the name of a dump may claim any number of ranks.
#[test]
fn a_job_of_very_many_ranks_is_listed_in_part() {
    let found = Hang::of(Job::of(Vec::new(), Vec::new(), Some(i32::MAX)));
    let omission = found.omissions.iter().find(|omission| &*omission.what == "missing ranks").unwrap();
    assert_eq!((found.ranks_not_read.len(), omission.amount), (1 << 14, Some(i64::from(i32::MAX))));
}
