//! The part of waits that costs time: in the rest, the rank computes while its collective waits for other ranks.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{InstanceRow, WaitRow};

use crate::base::intervals::{Interval, IntervalSet};
use crate::measure::part::RankPart;
use crate::model::{Barrier, Instance};

/// Fills [`WaitRow::exposed_wait_ns`]: the wait less all compute under the collective. Where in the collective the rank
/// computes is not known here, so this is the least that the wait can cost.
///
/// ```text
///   rank 0   ####[~~~~~~~~AAA]      waits for 8 ns, computes for 5 ns under A: at least 3 ns are exposed
///                 #####
///   rank 1   ############[AAA]
/// ```
pub(super) fn fill_exposed_waits(waits: &mut [WaitRow], instances: &[Instance], parts: &[RankPart]) {
    let parts: FxHashMap<i32, &RankPart> = parts.iter().map(|p| (p.outline.info.rank, p)).collect();
    let instances: FxHashMap<i64, &Instance> =
        instances.iter().filter(|i| i.barrier != Barrier::OneSided).map(|i| (i.id, i)).collect();
    for wait in waits {
        let member = instances.get(&wait.instance).and_then(|i| {
            // The members are in the order of ranks.
            let at = i.members.binary_search_by_key(&wait.rank, |m| m.rank).ok()?;
            i.members.get(at)
        });
        let collective = member.and_then(|m| parts.get(&m.rank)?.outline.collectives.get(m.index as usize));
        wait.exposed_wait_ns = collective.and_then(|c| {
            let dur_ns = c.end_ns?.saturating_sub(c.start_ns?);
            Some(wait.wait_ns.saturating_sub(dur_ns.saturating_sub(c.exposed_ns?)).max(0))
        });
    }
}

/// The time that each rank waits for others without computing, beyond the error of the clocks, by active step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exposed {
    /// The ranks, ascending.
    pub(super) ranks: Vec<i32>,
    /// For each of them its waits in every step. Waits in two collectives at once count once.
    pub(super) ns: Vec<Vec<i64>>,
}

impl Exposed {
    /// The waits of all ranks. There are none if the error of a clock is unknown: then they may be clock offsets.
    pub(super) fn of(waits: &[WaitRow], instances: &[InstanceRow]) -> Self {
        if instances.iter().any(|instance| instance.error_ns.is_none()) {
            return Self::default();
        }
        let step_of = |i: &InstanceRow| i.step.filter(|step| *step >= 0);
        let mut steps: Vec<i32> = instances.iter().filter_map(step_of).collect();
        steps.sort_unstable();
        steps.dedup();
        let place = |step: i32| steps.binary_search(&step).ok();
        let in_steps = instances.iter().filter_map(|i| Some((i.instance, (i.error_ns?, place(step_of(i)?)?))));
        let in_steps: FxHashMap<i64, (i64, usize)> = in_steps.collect();
        let mut by_rank: BTreeMap<i32, Vec<Vec<Interval>>> = BTreeMap::new();
        for wait in waits {
            let (Some(exposed_ns), Some((error_ns, at))) = (wait.exposed_wait_ns, in_steps.get(&wait.instance)) else {
                continue;
            };
            let of_rank = by_rank.entry(wait.rank).or_insert_with(|| vec![Vec::new(); steps.len()]);
            let end_ns = wait.arrival_ns.saturating_add(wait.wait_ns);
            let certain_ns = exposed_ns.saturating_sub(*error_ns);
            if certain_ns > 0 {
                of_rank[*at].push(Interval::new(end_ns.saturating_sub(certain_ns), end_ns));
            }
        }
        let sums = |steps: Vec<Vec<Interval>>| -> Vec<i64> {
            steps.into_iter().map(|waits| IntervalSet::from_unsorted(waits).len_ns()).collect()
        };
        let (ranks, ns) = by_rank.into_iter().map(|(rank, steps)| (rank, sums(steps))).unzip();
        Self { ranks, ns }
    }

    /// The rank that waits longest, with its waits in all steps; `None` if no rank waits.
    pub(super) fn longest(&self) -> Option<(i32, i64)> {
        let sums = self.ranks.iter().zip(&self.ns).map(|(rank, ns)| (*rank, ns.iter().sum::<i64>()));
        sums.max_by_key(|(rank, ns): &(i32, i64)| (*ns, std::cmp::Reverse(*rank))).filter(|(_, ns)| *ns > 0)
    }

    /// The waits in all steps of the rank that waits least.
    pub(super) fn least_ns(&self) -> i64 {
        self.ns.iter().map(|ns| ns.iter().sum::<i64>()).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Member;

    fn wait(instance: i64, rank: i32, (arrival_ns, end_ns): (i64, i64), exposed_wait_ns: i64) -> WaitRow {
        let wait_ns = end_ns - arrival_ns;
        WaitRow { instance, rank, arrival_ns, wait_ns, exposed_wait_ns: Some(exposed_wait_ns), ..WaitRow::default() }
    }

    fn instance(instance: i64, error_ns: Option<i64>) -> InstanceRow {
        InstanceRow { instance, step: Some(1), error_ns, ..InstanceRow::default() }
    }

    /// Rank 0 waits for 8 of 11 ns and computes for 5 ns under the collective.
    #[test]
    fn compute_under_a_collective_is_no_exposed_wait() {
        let rank = |rank, line: &str, exposed_ns| {
            let mut outline = crate::model::drawn::Drawn::rank(rank).collectives(line).data().outline;
            outline.collectives[0].exposed_ns = Some(exposed_ns);
            RankPart { outline, ..RankPart::default() }
        };
        let parts = [rank(0, "....###########", 6), rank(1, "............###", 3)];
        let member = |rank, start_ns| Member { rank, index: 0, start_ns, end_ns: Some(15), device_clock: false };
        let instance = |barrier| Instance {
            id: 0,
            comm_id: 1,
            seq: None,
            op: "allreduce".into(),
            bytes: None,
            step: Some(1),
            sender: None,
            bucket: None,
            ranks_expected: Some(2),
            fused: false,
            level: trace::MatchLevel::Seq,
            barrier,
            members: vec![member(0, 4), member(1, 12)],
        };
        let filled = |barrier| {
            let mut waits = [wait(0, 0, (4, 12), 0), wait(0, 1, (12, 12), 0), wait(7, 1, (12, 12), 0)];
            waits.iter_mut().for_each(|w| w.exposed_wait_ns = None);
            fill_exposed_waits(&mut waits, &[instance(barrier)], &parts);
            waits.map(|w| w.exposed_wait_ns)
        };
        assert_eq!(filled(Barrier::Strict), [Some(3), Some(0), None]);
        assert_eq!(filled(Barrier::OneSided), [None; 3], "a receiver waits for the work of another stage");
    }

    /// ```text
    /// rank 0   A   [~~~~~~~~]         10 to 20, all exposed, error 2: 12 to 20
    ///          B        [~~~~~~]      14 to 22, computes for 3, error 2: 19 to 22
    /// rank 1   B         [~~~~~]      15 to 22, computes throughout
    /// ```
    #[test]
    fn hidden_waits_and_the_clock_error_do_not_count() {
        let waits = [wait(0, 0, (10, 20), 10), wait(1, 0, (14, 22), 5), wait(1, 1, (15, 22), 0)];
        let instances = |error_ns| [instance(0, Some(2)), instance(1, error_ns)];
        let all = Exposed::of(&waits, &instances(Some(2)));
        assert_eq!((all.longest(), all.least_ns(), &all.ns[..]), (Some((0, 10)), 0, &[vec![10], vec![0]][..]));
        assert_eq!(Exposed::of(&waits[2..], &instances(Some(2))).longest(), None);
        assert_eq!(Exposed::of(&waits, &instances(None)).longest(), None, "without a clock error, waits are not used");
        let outside = [InstanceRow { step: Some(-1), ..instance(0, Some(2)) }, instance(1, Some(2))];
        assert_eq!(Exposed::of(&waits, &outside).longest(), Some((0, 3)), "collectives between steps do not count");
    }
}
