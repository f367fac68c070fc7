//! Drawn timelines of slow communication.

use crate::tests::build::instance;
use crate::transfers::{Found, Least, slow};
use measure::own_time::{OwnTime, Stretch};
use model::{Instance, Member};
use topology::join::Join;

const STEP_NS: i64 = 1_000;

/// A communicator, the size of its collective, and for each rank how long after the arrival it leaves.
type Collective<'a> = (i64, Option<i64>, &'a [(usize, i64)]);

/// All ranks enter each collective together, once per step.
fn found(steps: i32, collectives: &[Collective<'_>], clock_error_ns: Option<i64>) -> Found {
    found_of(steps, collectives, clock_error_ns, &|instance| instance)
}

/// The same, with instances that `change` makes of the collectives.
fn found_of(
    steps: i32,
    collectives: &[Collective<'_>],
    clock_error_ns: Option<i64>,
    change: &dyn Fn(Instance) -> Instance,
) -> Found {
    let ranks = collectives.iter().flat_map(|(_, _, all)| all.iter().map(|(rank, _)| rank + 1)).max().unwrap();
    let mut stretches: Vec<Vec<Stretch>> = vec![Vec::new(); ranks];
    let mut instances: Vec<Instance> = Vec::new();
    for step in 0..steps {
        for (comm_id, bytes, all) in collectives {
            let start_ns = i64::from(step) * STEP_NS;
            // Steps vary by a few percent of the transfer.
            let vary = |rank: usize| (i64::from(step) * 7 + rank as i64 * 3) % 5;
            let member = |(rank, after): &(usize, i64)| {
                let end_ns = Some(start_ns + after + vary(*rank));
                let index = stretches[*rank].len() as u32;
                stretches[*rank].push(Stretch { start_ns, end_ns, step: Some(step), ..Stretch::default() });
                Member { rank: *rank as i32, index, start_ns, end_ns, device_clock: false }
            };
            let members = all.iter().map(member).collect();
            let id = instances.len();
            let instance = instance(id, step as usize, all.len(), members);
            instances.push(change(Instance { comm_id: *comm_id, bytes: *bytes, ..instance }));
        }
    }
    let part = |(rank, stretches)| OwnTime { rank: rank as i32, stretches, ..OwnTime::default() };
    let parts: Vec<OwnTime> = stretches.into_iter().enumerate().map(part).collect();
    let parts: Vec<&OwnTime> = parts.iter().collect();
    let least = Least { step_ns: STEP_NS, excess_ns: 20.0, steps: 3 };
    slow(&Join::of(&parts, instances.to_vec(), &|_, _, t_ns| t_ns), &vec![clock_error_ns; ranks], least)
}

/// ```text
///   rank 0   [AAA]
///   rank 1   [AAA]
///   rank 2   [AAAAAAAA]        leaves 100 ns later in every step
///   rank 3   [AAA]
/// ```
#[test]
fn a_rank_that_leaves_late_is_found() {
    let with = |after, error_ns| found(8, &[(1, None, &[(0, 50), (1, 50), (2, after), (3, 50)])], error_ns);
    let slow = with(150, Some(0)).slow;
    let ranks: Vec<_> = slow.iter().map(|slow| (slow.ranks.clone(), slow.comm_id, slow.steps, slow.shown)).collect();
    assert_eq!(ranks, [(vec![2], None, 8, 8)]);
    assert!((95..=105).contains(&slow[0].excess_ns), "{slow:?}");
    assert_eq!(slow[0].beyond_ns.len(), 8);
    assert_eq!(with(50, Some(0)).slow, []);
}

/// A rank may leave late in one step or in two by chance.
#[test]
fn a_rank_that_leaves_late_in_two_steps_is_no_cause() {
    let with = |steps| found(steps, &[(1, None, &[(0, 50), (1, 50), (2, 150), (3, 50)])], Some(0)).slow.len();
    assert_eq!([1, 2, 3].map(with), [0, 0, 1]);
}

/// ```text
///   rank 0   [AAAAAAAA]        or does rank 1 leave early?
///   rank 1   [AAA]
/// ```
#[test]
fn of_two_ranks_neither_leaves_late() {
    let with =
        |others: &[(usize, i64)]| found(8, &[(1, None, &[&[(0, 150), (1, 50)], others].concat())], Some(0)).slow.len();
    assert_eq!((with(&[]), with(&[(2, 50)])), (0, 1));
}

/// Clocks whose error is as large as the excess, or unknown, show no late leaver.
#[test]
fn clock_errors_are_not_late_leavers() {
    let with = |error_ns| found(8, &[(1, None, &[(0, 50), (1, 50), (2, 150), (3, 50)])], error_ns);
    assert_eq!((with(Some(30)).slow.len(), with(Some(60)).slow.len()), (1, 0));
    assert_eq!((with(None).slow.len(), with(None).without_clock), (0, 4));
}

/// ```text
///   ranks 0, 1   [AAA]
///   ranks 2, 3   [BBBBBBBB]      100 ns longer than A
///   ranks 4, 5   [CCC]
/// ```
#[test]
fn a_slow_group_is_found_among_its_siblings() {
    let with = |b: i64, bytes: Option<i64>| {
        let groups: [Collective<'_>; 3] =
            [(1, Some(8), &[(0, 50), (1, 50)]), (2, bytes, &[(2, b), (3, b)]), (3, Some(8), &[(4, 50), (5, 50)])];
        found(8, &groups, None).slow
    };
    let slow = with(150, Some(8));
    let groups: Vec<_> = slow.iter().map(|slow| (slow.ranks.clone(), slow.comm_id)).collect();
    assert_eq!(groups, [(vec![2, 3], Some(2))]);
    assert_eq!(slow[0].beyond_ns.len(), 2 * 8);
    assert_eq!(with(50, Some(8)), []);
    // Collectives of other or unknown sizes take other times.
    assert_eq!((with(150, Some(24)), with(150, None)), (vec![], vec![]));
}

/// ```text
///   rank 0   [send      ]     rank 2   [send      ]     rank 4   [send      ]
///   rank 1   [recv]           rank 3   [recv      ]     rank 5   [recv]         the senders wait for receivers
/// ```
#[test]
fn slow_messages_are_found_among_their_siblings() {
    let message = |instance: Instance| {
        let sender = instance.members.first().map(|member| member.rank);
        Instance { op: "send".into(), barrier: model::Barrier::OneSided, sender, ..instance }
    };
    let with = |b: i64| {
        let messages: [Collective<'_>; 3] =
            [(1, Some(8), &[(0, 150), (1, 50)]), (2, Some(8), &[(2, 150), (3, b)]), (3, Some(8), &[(4, 150), (5, 50)])];
        found_of(8, &messages, None, &message).slow
    };
    let slow = with(150);
    assert_eq!(slow.iter().map(|slow| (slow.ranks.clone(), slow.comm_id)).collect::<Vec<_>>(), [(vec![2, 3], Some(2))]);
    assert!((95..=105).contains(&slow[0].excess_ns), "{slow:?}");
    assert_eq!(with(50), []);
}

/// ```text
///   ranks 0, 1, 2   [AAAAAAAA]       ranks 0, 3, 6   [DDDDDDDD]      both are slow, and only rank 0 is in both
///   ranks 3, 4, 5   [BBB]            ranks 1, 4, 7   [EEE]
///   ranks 6, 7, 8   [CCC]            ranks 2, 5, 8   [FFF]
/// ```
#[test]
fn the_rank_in_all_slow_groups_has_a_slow_link() {
    let group = |comm_id, ranks: [usize; 3], after: i64| (comm_id, Some(8), ranks.map(|rank| (rank, after)));
    let with = |d: i64| {
        let groups = [
            group(1, [0, 1, 2], 150),
            group(2, [3, 4, 5], 50),
            group(3, [6, 7, 8], 50),
            group(4, [0, 3, 6], d),
            group(5, [1, 4, 7], 50),
            group(6, [2, 5, 8], 50),
        ];
        let groups: Vec<Collective<'_>> = groups.iter().map(|(id, bytes, all)| (*id, *bytes, &all[..])).collect();
        found(8, &groups, None).slow
    };
    let slow = with(150);
    assert_eq!(slow.iter().map(|slow| (slow.ranks.clone(), slow.comm_id)).collect::<Vec<_>>(), [(vec![0], None)]);
    assert!((190..=210).contains(&slow[0].excess_ns), "{slow:?}");
    assert_eq!(slow[0].beyond_ns.len(), 2 * 3 * 8, "all ranks of both groups leave earlier without it");
    assert_eq!(with(50)[0].comm_id, Some(1), "one slow group has no rank apart");
}

/// Groups of other sizes, or with common ranks, are no siblings: tensor and data parallelism differ.
#[test]
fn groups_of_another_dimension_are_not_compared() {
    let groups: [Collective<'_>; 3] = [
        (1, Some(8), &[(0, 50), (1, 50)]),
        (2, Some(8), &[(1, 150), (2, 150)]),
        (3, Some(8), &[(3, 200), (4, 200), (5, 200)]),
    ];
    assert_eq!(found(8, &groups, Some(0)).slow, []);
}
