//! The stages of drawn pipelines.

use crate::tests::build::instance;
use measure::own_time::{OwnTime, Stretch};
use model::{Barrier, Instance, Member};
use topology::join::Join;

/// One event of a step: a message, a message to a rank that was not recorded, or a collective of some ranks. A list of them is in
/// order.
enum Event<'a> {
    Message(i32, i32),
    Unmatched(i32),
    Meet(&'a [i32]),
}
use Event::{Meet, Message, Unmatched};

/// The stages of `ranks` ranks that do the same in each of three steps.
fn stages_of(ranks: i32, events: &[Event<'_>]) -> Vec<usize> {
    let mut parts: Vec<OwnTime> = (0..ranks).map(|rank| OwnTime { rank, ..OwnTime::default() }).collect();
    let mut instances = Vec::new();
    for step in 0..3 {
        for (at, event) in events.iter().enumerate() {
            let now_ns = 1_000 * step + 10 * at as i64;
            let (members, sender) = match event {
                Message(from, to) => (vec![*from.min(to), *from.max(to)], Some(*from)),
                Meet(ranks) => (ranks.to_vec(), None),
                Unmatched(from) => {
                    let stretch = Stretch { step: Some(step as i32), own_ns: Some(1), ..Stretch::default() };
                    parts[*from as usize].stretches.push(stretch);
                    continue;
                }
            };
            let members = members.into_iter().map(|rank| {
                let part = &mut parts[rank as usize];
                part.stretches.push(Stretch { step: Some(step as i32), own_ns: Some(1), ..Stretch::default() });
                let index = part.stretches.len() as u32 - 1;
                Member { rank, index, start_ns: now_ns, end_ns: Some(now_ns + 5), device_clock: false }
            });
            let members: Vec<Member> = members.collect();
            let found = instance(instances.len(), step as usize, members.len(), members);
            instances.push(match sender {
                None => Instance { comm_id: 5, ..found },
                sender => Instance { op: "send".into(), barrier: Barrier::OneSided, sender, ..found },
            });
        }
    }
    let parts: Vec<&OwnTime> = parts.iter().collect();
    Join::of(&parts, instances.to_vec(), &|_, _, t_ns| t_ns).same_work.stages
}

#[test]
fn a_pipelines_ranks_are_a_stage_each_although_all_meet() {
    let all = Meet(&[0, 1, 2, 3]);
    let events = [Message(0, 1), Message(1, 2), Message(2, 3), Message(3, 2), Message(2, 1), Message(1, 0), all];
    assert_eq!(stages_of(4, &events), [0, 1, 2, 3]);
    assert_eq!(stages_of(2, &[Message(0, 1), Message(1, 0), Meet(&[0, 1])]), [0, 1]);
}

#[test]
fn replicas_of_a_stage_are_one_stage() {
    let messages = [Message(0, 2), Message(1, 3), Message(2, 0), Message(3, 1)];
    let meetings = [Meet(&[0, 1]), Meet(&[2, 3]), Meet(&[0, 1, 2, 3])];
    let events: Vec<Event<'_>> = messages.into_iter().chain(meetings).collect();
    assert_eq!(stages_of(4, &events), [0, 0, 2, 2]);
}

#[test]
fn a_rank_that_sends_to_a_missing_one_stays_in_its_stage() {
    // Rank 5, to which rank 2 sends, was not recorded.
    let messages = [Message(0, 3), Message(1, 4), Unmatched(2), Message(3, 0), Message(4, 1)];
    let events: Vec<Event<'_>> = messages.into_iter().chain([Meet(&[0, 1, 2]), Meet(&[3, 4])]).collect();
    assert_eq!(stages_of(5, &events), [0, 0, 0, 3, 3]);
}

#[test]
fn a_ring_is_no_pipeline() {
    let ring = [Message(0, 1), Message(1, 2), Message(2, 0), Meet(&[0, 1, 2])];
    assert_eq!(stages_of(3, &ring), [0, 0, 0]);
    assert_eq!(stages_of(3, &[Meet(&[0, 1, 2])]), [0, 0, 0], "no rank sends");
}
