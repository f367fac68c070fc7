//! Properties that hold for every job.

use proptest::prelude::*;

use crate::charge::Charges;
use crate::reduce;
use crate::stragglers::Stragglers;
use crate::tests::build::{Job, Work, instance};
use measure::own_time::{OwnTime, RangePart, StepPart, Stretch, map_rank};
use model::intervals::Interval;
use model::steps::StepWindow;
use model::thresholds::Thresholds;
use model::{Barrier, Instance, Member, RankData};
use topology::join::Join;

const NAMES: [&str; 4] = ["forward", "backward", "input", "optimizer"];

/// Any small job in which all ranks of a step have the same number of collectives.
pub(super) fn jobs() -> impl Strategy<Value = Job> {
    (1usize..6, 0usize..5, 0usize..4).prop_flat_map(|(ranks, steps, collectives)| {
        let work = prop::collection::vec((0usize..4, 0i64..2_000_000), 0..3)
            .prop_map(|w| w.into_iter().map(|(name, ns)| (NAMES[name], ns)).collect::<Work>());
        let rank = prop::collection::vec(work, collectives + 1);
        let steps = prop::collection::vec(prop::collection::vec(rank, ranks), steps);
        let clocks = prop::collection::vec(-1_000_000_000i64..1_000_000_000, ranks);
        let begin = prop::collection::vec(0i64..1_000_000, ranks);
        (steps, clocks, begin).prop_map(|(steps, clock_ahead_ns, begin_ns)| Job { steps, clock_ahead_ns, begin_ns })
    })
}

fn parts_of(ranks: &[RankData]) -> Vec<OwnTime> {
    ranks.iter().map(|r| map_rank(r, &Thresholds::default())).collect()
}

/// Makes the instances irregular: some lose half of their ranks, some have no end, and some end before the last
/// arrival.
pub(super) fn mangle(instances: &mut [Instance], seed: u64) {
    for (i, instance) in instances.iter_mut().enumerate() {
        let bits = seed.rotate_left(7 * i as u32);
        if bits & 3 == 0 {
            instance.comm_id = 2;
            instance.members.retain(|m| m.rank as u64 % 2 == bits >> 2 & 1);
        }
        for member in &mut instance.members {
            let member_bits = bits.rotate_right(5 * member.rank as u32) >> 8;
            if member_bits & 7 == 0 {
                member.end_ns = None;
            } else if member_bits & 7 == 1 {
                member.end_ns = Some(member.start_ns + (member_bits >> 3 & 0xfff) as i64);
            }
        }
    }
}

fn assert_sums(result: &Stragglers) {
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, result.waited_ns);
    assert!(result.charged_ns.iter().all(|&ns| ns >= 0) && result.before_recording_ns >= 0);
    assert!(result.waits.iter().all(|w| w.wait_ns >= 0));
}

proptest! {
    /// Invariant (numbers): The waits that are charged to ranks sum to the waits.
    #[test]
    fn charges_sum_to_waits(job in jobs(), seed in any::<u64>(), skew in prop::collection::vec(-500_000i64..500_000, 6)) {
        let (ranks, mut instances) = job.run();
        mangle(&mut instances, seed);
        // The property must also hold for badly aligned clocks.
        let to_global = |rank: i32, _: bool, t_ns: i64| t_ns + skew[rank as usize];
        let parts = parts_of(&ranks);
        assert_sums(&reduce(&parts, &instances, (&to_global, &|_, _| Some(0)), &Thresholds::default()));
        let parts: Vec<&OwnTime> = parts.iter().collect();
        let charges = Charges::with(&Join::of(&parts, instances.to_vec(), &to_global), parts.len(), 0);
        let charged_ns = charges.caused_ns.iter().sum::<i64>() + charges.before_recording_ns;
        prop_assert_eq!(charged_ns, charges.suffered_ns.iter().sum::<i64>());
        prop_assert!(charges.caused_ns.iter().all(|ns| *ns >= 0) && charges.before_recording_ns >= 0);
    }

    /// If all ranks come from the same collective, no rank inherits anything, and the sums of the shares are those of the
    /// pairs to the nanosecond. Some ranks leave before the last one arrives.
    #[test]
    fn charges_together_are_those_of_the_pairs(mut job in jobs(), seed in any::<u64>()) {
        job.begin_ns.clear();
        let (ranks, mut instances) = job.run();
        for (at, member) in (0..).zip(instances.iter_mut().flat_map(|instance| &mut instance.members)) {
            let bits = seed.rotate_left(11 * at);
            if bits & 3 == 0 {
                member.end_ns = Some(member.start_ns + (bits >> 42) as i64);
            }
        }
        let parts = parts_of(&ranks);
        let parts: Vec<&OwnTime> = parts.iter().collect();
        let ahead = |rank: i32, _: bool, t_ns: i64| t_ns - job.clock_ahead_ns[rank as usize];
        let join = Join::of(&parts, instances.to_vec(), &ahead);
        let (pairs, mut together) = (Charges::of(&join, parts.len()), Charges::with(&join, parts.len(), 0));
        together.unpaired = 0;
        prop_assert_eq!(pairs, together);
    }

    #[test]
    fn the_order_of_ranks_does_not_change_the_result(job in jobs(), seed in any::<u64>()) {
        let (ranks, mut instances) = job.run();
        mangle(&mut instances, seed);
        let mut parts = parts_of(&ranks);
        let ahead = |rank: i32, _: bool, t_ns: i64| t_ns - job.clock_ahead_ns[rank as usize];
        let forward = reduce(&parts, &instances, (&ahead, &|_, _| Some(0)), &Thresholds::default());
        parts.reverse();
        prop_assert_eq!(forward, reduce(&parts, &instances, (&ahead, &|_, _| Some(0)), &Thresholds::default()));
    }

    /// Shifted clocks that are then aligned give identical results. Clocks that are not aligned give the same excess, and the
    /// same evidence of ranks that stand out.
    #[test]
    fn clock_offsets_do_not_change_the_verdicts(mut job in jobs()) {
        let shifted = job.analyze(&Thresholds::default());
        let (ranks, instances) = job.run();
        let unaligned = reduce(&parts_of(&ranks), &instances, (&|_, _, t| t, &|_, _| Some(0)), &Thresholds::default());
        job.clock_ahead_ns.clear();
        let straight = job.analyze(&Thresholds::default());
        prop_assert_eq!(&shifted, &straight);
        for (a, b) in unaligned.stragglers.iter().zip(&straight.stragglers) {
            // Ranks of which the account says the same are measured in the same steps.
            if a.stands_on == b.stands_on && a.delayed_steps == b.delayed_steps {
                prop_assert_eq!((a.own_excess_ns, a.z), (b.own_excess_ns, b.z));
            }
        }
    }

    /// In a single communicator whose ranks begin together, no rank inherits a delay, and every wait is charged to a
    /// rank.
    #[test]
    fn ranks_of_one_communicator_inherit_no_delay(mut job in jobs()) {
        job.begin_ns.clear();
        let result = job.analyze(&Thresholds::default());
        assert_sums(&result);
        prop_assert_eq!(result.before_recording_ns, 0);
        prop_assert!(result.stragglers.iter().all(|r| r.inherited_ns == 0));
    }

    /// The replay without the excess of a slow rank is shorter than the recording.
    #[test]
    fn the_slowest_rank_has_a_slowdown_above_one(job in jobs(), rank in 0usize..6) {
        let mut job = job;
        job.begin_ns.clear();
        let ranks = job.steps.first().map_or(0, Vec::len);
        prop_assume!(ranks > 2 && job.steps[0][0].len() > 1);
        let slow = rank % ranks;
        for step in &mut job.steps {
            step[slow][0].push(("forward", 40_000_000));
        }
        let result = job.analyze(&Thresholds::default());
        prop_assert!(result.stragglers[slow].slowdown.is_some_and(|s| s > 1.0), "{slow} {:?} {:?} {:?}", result.stragglers[slow], result.omissions, result.lost_time.iter().map(|r| (r.part.to_string(), r.step, r.ns)).collect::<Vec<_>>());
    }
}

/// A hundred thousand ranks communicate in pairs, and one rank is slow. Work for each pair of ranks would be done 10¹⁰
/// times.
#[test]
fn many_ranks_take_little_time() {
    const RANKS: i32 = 100_000;
    let end_ns = |rank: i32| if rank / 2 == 3 { 1_000 } else { 500 };
    let part = |rank: i32| {
        let own_ns = if rank == 7 { 600 } else { 100 };
        let stretch = Stretch {
            start_ns: own_ns,
            end_ns: Some(end_ns(rank)),
            own_ns: Some(own_ns),
            step: Some(1),
            ..Stretch::default()
        };
        OwnTime {
            rank,
            stretches: vec![stretch],
            steps: vec![StepPart { step: 1, dur_ns: 1_000, busy_ns: 0 }],
            ranges: vec![RangePart { name: Some("load".into()), self_ns: vec![own_ns], ..RangePart::default() }],
            path_steps: vec![StepWindow { step: 1, window: Interval::new(0, end_ns(rank)) }],
            ..OwnTime::default()
        }
    };
    let parts: Vec<OwnTime> = (0..RANKS).map(part).collect();
    let member = |rank: i32| {
        let start_ns = parts[rank as usize].stretches[0].start_ns;
        Member { rank, index: 0, start_ns, end_ns: Some(end_ns(rank)), device_clock: false }
    };
    let instance = |pair: i32| Instance {
        id: i64::from(pair),
        comm_id: i64::from(pair),
        seq: Some(0),
        op: "allreduce".into(),
        bytes: None,
        shares: model::Shares::Equal,
        step: Some(1),
        sender: None,
        bucket: None,
        ranks_expected: Some(2),
        fused: false,
        level: trace::MatchLevel::Seq,
        barrier: Barrier::Strict,
        members: vec![member(2 * pair), member(2 * pair + 1)],
    };
    let instances: Vec<Instance> = (0..RANKS / 2).map(instance).collect();
    let found = reduce(&parts, &instances, (&|_, _, t_ns| t_ns, &|_, _| Some(0)), &Thresholds::default());
    let (slow, victim) = (&found.stragglers[7], &found.stragglers[6]);
    assert_eq!((slow.own_excess_ns, slow.caused_wait_ns, victim.suffered_wait_ns), (500, 500, 500));
    assert_eq!((found.stragglers.len(), found.steps.len(), found.waited_ns), (RANKS as usize, RANKS as usize, 500));
    assert_eq!((slow.slowdown, victim.slowdown), (Some(1_000.0 / 500.0), Some(1.0)));
    // Nothing is compared without collectives.
    let alone = reduce(&parts, &[], (&|_, _, t_ns| t_ns, &|_, _| Some(0)), &Thresholds::default());
    assert!(alone.steps.is_empty() && alone.stragglers.iter().all(|row| row.slowdown.is_none()));
}

/// A hundred thousand ranks arrive at one collective, one after the other. Their pairs would be charged 5 · 10⁹ times.
#[test]
fn many_ranks_at_one_collective_take_little_time() {
    const RANKS: i32 = 100_000;
    const APART_NS: i64 = 1_000_000;
    let last_ns = i64::from(RANKS) * APART_NS;
    let part = |rank: i32| {
        let start_ns = i64::from(rank) * APART_NS;
        let stretch =
            Stretch { start_ns, end_ns: Some(last_ns), own_ns: Some(start_ns), step: Some(1), ..Stretch::default() };
        OwnTime { rank, stretches: vec![stretch], ..OwnTime::default() }
    };
    let parts: Vec<OwnTime> = (0..RANKS).map(part).collect();
    let parts: Vec<&OwnTime> = parts.iter().collect();
    let member = |rank: i32| {
        let start_ns = i64::from(rank) * APART_NS;
        Member { rank, index: 0, start_ns, end_ns: Some(last_ns), device_clock: false }
    };
    let instances = [instance(0, 1, RANKS as usize, (0..RANKS).map(member).collect())];
    let charges = Charges::of(&Join::of(&parts, instances.to_vec(), &|_, _, t_ns| t_ns), parts.len());
    let waited_ns: i64 = (0..i64::from(RANKS)).map(|later| later * APART_NS).sum();
    assert_eq!(charges.suffered_ns.iter().sum::<i64>(), waited_ns);
    assert_eq!(charges.caused_ns.iter().sum::<i64>(), waited_ns);
    assert!(charges.caused_ns.is_sorted() && charges.caused_ns[0] == 0);
    // Between the first two arrivals one rank waits for all others, so each of them is charged its part of the first gap.
    assert_eq!(charges.caused_ns[1], APART_NS / i64::from(RANKS - 1));
}
