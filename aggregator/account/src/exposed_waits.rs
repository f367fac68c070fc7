//! The part of waits that costs time: in the rest, the rank computes while its collective waits for other ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::{FxBuildHasher, FxHashMap};
use trace::{InstanceRow, MaybeNs, StepBreakdownRow, WaitRow};

use crate::stragglers::Waited;
use measure::part::RankPart;
use model::NO_STEP;
use model::intervals::{Interval, IntervalSet};

/// Waits of a rank and device in a step.
#[derive(Default)]
struct WaitsOfStep {
    exposed: Vec<Interval>,
    /// Exposed time in collectives that lack ranks: a missing one may have been the last.
    unknown_ns: i64,
}

/// A collective on one of its ranks.
struct InCollective {
    /// Unknown if it did not end.
    dur_ns: MaybeNs,
    exposed_ns: i64,
}

/// The values of all ranks' collectives that the exposed part of a wait depends on. Whole rows take much more memory. The values
/// lie together: small lists would lie between the rows, whose memory could not go back to the system then.
pub struct InCollectives {
    /// Rank after rank, in the order of the part.
    collectives: Vec<InCollective>,
    /// The step and the device of the collectives from a position on. Those of a step follow each other.
    places: Vec<(usize, (i32, Option<i64>))>,
    of_rank: FxHashMap<i32, Range<usize>>,
}

impl InCollectives {
    /// The collectives of parts, which are dropped.
    pub fn of(parts: Vec<RankPart>) -> Self {
        let count = parts.iter().map(|part| part.outline.collectives.len()).sum();
        let mut all = Self {
            collectives: Vec::with_capacity(count),
            places: Vec::new(),
            of_rank: FxHashMap::with_capacity_and_hasher(parts.len(), FxBuildHasher),
        };
        for part in parts {
            let first = all.collectives.len();
            for c in &part.outline.collectives {
                let place = (c.step().unwrap_or(NO_STEP), c.device_id);
                if all.places.last().is_none_or(|(_, last)| *last != place) {
                    all.places.push((all.collectives.len(), place));
                }
                let ended = || Some((c.end_ns()?.saturating_sub(c.start_ns()?), c.exposed_ns()?));
                let (dur_ns, exposed_ns) = ended().unzip();
                all.collectives.push(InCollective { dur_ns: MaybeNs::of(dur_ns), exposed_ns: exposed_ns.unwrap_or(0) });
            }
            all.of_rank.insert(part.outline.info.rank, first..all.collectives.len());
        }
        all
    }

    /// A collective of a rank by its position, with its step and its device.
    fn get(&self, rank: i32, at: u32) -> Option<(&InCollective, i32, Option<i64>)> {
        let of_rank = self.of_rank.get(&rank)?;
        let at = of_rank.start.checked_add(at as usize).filter(|at| of_rank.contains(at))?;
        let place = self.places.partition_point(|(from, _)| *from <= at).checked_sub(1)?;
        let (_, (step, device_id)) = self.places[place];
        Some((&self.collectives[at], step, device_id))
    }
}

/// The split of a step's exposed communication stands if at most this share of it is unknown, in percent.
const MAX_UNKNOWN_PCT: i64 = 1;

/// Fills [`WaitRow::exposed_wait_ns`] and [`trace::StepBreakdownRow::exposed_wait_ns`]: the wait less all compute under the
/// collective. Where in the collective the rank computes is not known here, so this is the least that the wait can cost. `waited`
/// has the collective of each of `waits`.
///
/// ```text
///   rank 0   ####[~~~~~~~~AAA]      waits for 8 ns, computes for 5 ns under A: at least 3 ns are exposed
///                 #####
///   rank 1   ############[AAA]
/// ```
///
/// A receiver waits for the work of its sender. That is a wait in its step, but none that tells which rank is late.
pub fn fill_exposed_waits(
    waits: &mut [WaitRow],
    waited: &[Waited],
    collectives: &InCollectives,
    breakdown: &mut [StepBreakdownRow],
) {
    let mut of_steps: FxHashMap<(i32, Option<i64>, i32), WaitsOfStep> = FxHashMap::default();
    for (wait, waited) in waits.iter_mut().zip(waited) {
        let Some((collective, step, device_id)) = collectives.get(wait.rank, waited.collective) else { continue };
        let InCollective { dur_ns, exposed_ns } = *collective;
        let Some(dur_ns) = dur_ns.get() else { continue };
        let exposed_wait_ns = wait.wait_ns.saturating_sub(dur_ns.saturating_sub(exposed_ns)).max(0);
        if waited.symmetric {
            wait.exposed_wait_ns = Some(exposed_wait_ns);
        }
        if step >= 0 {
            let end_ns = wait.arrival_ns.saturating_add(wait.wait_ns);
            let exposed = Interval::new(end_ns.saturating_sub(exposed_wait_ns), end_ns);
            let of_step = of_steps.entry((wait.rank, device_id, step)).or_default();
            if waited.complete {
                of_step.exposed.push(exposed);
            } else {
                of_step.unknown_ns = of_step.unknown_ns.saturating_add(exposed_ns);
            }
        }
    }
    for row in breakdown {
        let waits = row.step.and_then(|step| of_steps.remove(&(row.rank, row.device_id, step)));
        let waits = waits.filter(|w| w.unknown_ns.saturating_mul(100) <= MAX_UNKNOWN_PCT * row.exposed_comm_ns);
        // Waits at the same time count once, and a collective of a step may run beyond the step's end.
        row.exposed_wait_ns =
            waits.map(|waits| IntervalSet::from_unsorted(waits.exposed).len_ns().min(row.exposed_comm_ns));
    }
}

/// The time that each rank waits for others without computing, beyond the error of the clocks, by active step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposed {
    /// The ranks, ascending.
    pub(super) ranks: Vec<i32>,
    /// For each of them its waits in every step. Waits in two collectives at once count once.
    pub ns: Vec<Vec<i64>>,
}

impl Exposed {
    /// The waits of all ranks. There are none if the error of a clock is unknown: then they may be clock offsets.
    pub fn of(waits: &[WaitRow], instances: &[InstanceRow]) -> Self {
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
    pub fn longest(&self) -> Option<(i32, i64)> {
        let sums = self.ranks.iter().zip(&self.ns).map(|(rank, ns)| (*rank, ns.iter().sum::<i64>()));
        sums.max_by_key(|(rank, ns): &(i32, i64)| (*ns, std::cmp::Reverse(*rank))).filter(|(_, ns)| *ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::StepBreakdownRow;

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
            let mut outline = drawn::Drawn::rank(rank).collectives(line).data().outline;
            outline.collectives[0].set_exposed_ns(Some(exposed_ns));
            outline.collectives[0].set_step(Some(1));
            let steps =
                [None, Some(1)].map(|step| StepBreakdownRow { rank, step, exposed_comm_ns: 9, ..Default::default() });
            (RankPart { outline, ..RankPart::default() }, steps)
        };
        let (parts, steps): (Vec<_>, Vec<_>) =
            [rank(0, "....###########", 6), rank(1, "............###", 3)].into_iter().unzip();
        let mut breakdown = steps.concat();
        let mut filled = |symmetric| {
            let mut waits = [wait(0, 0, (4, 12), 0), wait(0, 1, (12, 12), 0), wait(0, 7, (12, 12), 0)];
            waits.iter_mut().for_each(|w| w.exposed_wait_ns = None);
            let waited = [Waited { collective: 0, symmetric, complete: true }; 3];
            fill_exposed_waits(&mut waits, &waited, &InCollectives::of(parts.clone()), &mut breakdown);
            let steps: Vec<_> = breakdown.iter().map(|row| row.exposed_wait_ns).collect();
            assert_eq!(steps, [None, Some(3), None, Some(0)], "a receiver waits, too");
            waits.map(|w| w.exposed_wait_ns)
        };
        assert_eq!(filled(true), [Some(3), Some(0), None]);
        assert_eq!(filled(false), [None; 3], "a receiver's wait tells no late rank");
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
        assert_eq!((all.longest(), &all.ns[..]), (Some((0, 10)), &[vec![10], vec![0]][..]));
        assert_eq!(Exposed::of(&waits[2..], &instances(Some(2))).longest(), None);
        assert_eq!(Exposed::of(&waits, &instances(None)).longest(), None, "without a clock error, waits are not used");
        let outside = [InstanceRow { step: Some(-1), ..instance(0, Some(2)) }, instance(1, Some(2))];
        assert_eq!(Exposed::of(&waits, &outside).longest(), Some((0, 3)), "collectives between steps do not count");
    }
}
