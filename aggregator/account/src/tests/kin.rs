//! Communicators whose ranks do the same work.

use crate::tests::build::instance;
use measure::own_time::{OwnTime, Stretch};
use model::{Instance, Member};
use topology::excess::Excess;
use topology::join::Join;
use topology::per_step::PerStep;

/// Work and the ranks of a communicator, with its number and the bytes of its collective.
type Comm<'a> = (i64, &'a [i32], i64);

/// The excess of four ranks in each of three steps, in which they meet in these communicators one after another. Ranks 2 and 3 work
/// 100 ns longer before the first one.
fn excess(comms: &[Comm<'_>]) -> Vec<Vec<Option<i64>>> {
    let mut parts: Vec<OwnTime> = (0..4).map(|rank| OwnTime { rank, ..OwnTime::default() }).collect();
    let mut instances = Vec::new();
    for step in 0..3 {
        for (at, (comm_id, ranks, bytes)) in comms.iter().enumerate() {
            let start_ns = 10_000 * step + 1_000 * at as i64;
            let member = |rank: &i32| {
                let part = &mut parts[*rank as usize];
                let is_first = !part.stretches.iter().any(|stretch| stretch.step == Some(step as i32));
                let own_ns = Some(if is_first && *rank >= 2 { 140 } else { 40 });
                // Nothing is carried over from before the step.
                let previous = (part.stretches.len() as u32).checked_sub(1);
                part.stretches.push(Stretch { step: Some(step as i32), own_ns, previous, ..Stretch::default() });
                let index = part.stretches.len() as u32 - 1;
                Member { rank: *rank, index, start_ns, end_ns: Some(start_ns + 50), device_clock: false }
            };
            let members: Vec<Member> = ranks.iter().map(member).collect();
            let found = instance(instances.len(), step as usize, members.len(), members);
            instances.push(Instance { comm_id: *comm_id, bytes: Some(*bytes), ..found });
        }
    }
    let parts: Vec<&OwnTime> = parts.iter().collect();
    let join = Join::of(&parts, instances.to_vec(), &|_, _, t_ns| t_ns);
    Excess::of(&join, parts.len(), PerStep::of(&parts)).ns
}

const LAYERS: [Comm<'_>; 2] = [(10, &[0, 1], 8), (11, &[2, 3], 8)];
const REPLICAS: [Comm<'_>; 2] = [(20, &[0, 2], 64), (21, &[1, 3], 64)];

#[test]
fn a_group_that_is_slow_as_a_whole_shows_against_its_kin() {
    let found = excess(&[LAYERS, REPLICAS].concat());
    let [usual, slow] = [vec![Some(0); 3], vec![Some(100); 3]];
    assert_eq!(found, [usual.clone(), usual, slow.clone(), slow]);
}

#[test]
fn groups_that_nothing_joins_or_whose_collectives_differ_are_no_kin() {
    let usual = vec![vec![Some(0); 3]; 4];
    assert_eq!(excess(&LAYERS), usual, "each of them may have a role of its own");
    let differs = [(11, &[2, 3][..], 9)];
    assert_eq!(excess(&[&LAYERS[..1], &differs, &REPLICAS].concat()), usual);
}
