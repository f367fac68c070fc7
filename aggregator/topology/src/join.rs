//! Joins each instance with the own stretches of its ranks, in global time.

use rustc_hash::FxHashMap;
use trace::{Maybe, MaybeAt, MaybeNs, OmissionRow};

use crate::ToGlobal;
use crate::arrivals::{Arrival, Joined};
use crate::same_work::SameWork;
use measure::own_time::OwnTime;
use model::stats::lower_median;
use model::{Barrier, Instance};

/// All joined instances, and the instance of each rank's collectives.
pub struct Join {
    pub instances: Vec<Joined>,
    /// Which of its ranks do the same work.
    pub same_work: SameWork,
    /// For each rank and each of its stretches, the position in `instances`.
    positions: Vec<Vec<MaybeAt>>,
    pub omissions: Vec<OmissionRow>,
}

impl Join {
    /// Joins `instances` with `parts`, which must be sorted by rank. The members of an instance are dropped when they are arrivals.
    pub fn of(parts: &[&OwnTime], instances: Vec<Instance>, to_global: ToGlobal<'_>) -> Self {
        let by_rank: FxHashMap<i32, usize> = parts.iter().enumerate().map(|(i, p)| (p.rank, i)).collect();
        let mut positions: Vec<Vec<MaybeAt>> =
            parts.iter().map(|p| vec![MaybeAt::UNKNOWN; p.stretches.len()]).collect();
        let mut joined = Vec::with_capacity(instances.len());
        let mut lost = 0;
        for instance in instances {
            let mut arrivals = Vec::with_capacity(instance.members.len());
            let mut steps = Vec::with_capacity(instance.members.len());
            for member in &instance.members {
                let stretch = by_rank.get(&member.rank).and_then(|&rank| {
                    let stretch = parts[rank].stretches.get(member.index as usize)?;
                    Some((rank, stretch))
                });
                let Some((rank, stretch)) = stretch else {
                    lost += 1;
                    continue;
                };
                positions[rank][member.index as usize] = MaybeAt::of(Some(joined.len() as u32));
                steps.extend(stretch.step);
                arrivals.push(Arrival::of(member, (rank, stretch), to_global));
            }
            let order = |at: &usize| (arrivals[*at].arrival_ns, arrivals[*at].own_ns(), std::cmp::Reverse(*at));
            let Some(blocker) = (0..arrivals.len()).max_by_key(order) else { continue };
            let last_ns = arrivals[blocker].arrival_ns;
            let complete = instance.complete();
            joined.push(Joined {
                id: instance.id,
                comm_id: instance.comm_id,
                op: instance.op,
                bytes: Maybe::of(instance.bytes),
                sender: MaybeAt::of(instance.sender.and_then(|rank| by_rank.get(&rank)).map(|rank| *rank as u32)),
                bucket: instance.bucket,
                step: most_common(steps),
                symmetric: instance.barrier != Barrier::OneSided,
                complete,
                whole: instance.ranks_expected.is_none_or(|n| n as usize == arrivals.len()),
                size: instance.ranks_expected.map_or(arrivals.len() as u32, |n| n.max(0).cast_unsigned()),
                last_ns,
                own_median_ns: MaybeNs::of(lower_median(arrivals.iter().filter_map(Arrival::own_ns))),
                from_median_ns: lower_median(arrivals.iter().filter(|a| a.own_ns().is_some()).map(|a| a.from_ns))
                    .unwrap_or(last_ns),
                blocker: blocker as u32,
                arrivals,
            });
        }
        let of_step = |part: &&OwnTime, at: usize| part.stretches.get(at).is_some_and(|stretch| stretch.step.is_some());
        let has_unmatched = parts.iter().zip(&positions).map(|(part, positions)| {
            positions.iter().enumerate().any(|(at, position)| position.get().is_none() && of_step(part, at))
        });
        let same_work = SameWork::of(&joined, &has_unmatched.collect::<Vec<bool>>());
        let mut join = Self { instances: joined, same_work, positions, omissions: lost_members(lost) };
        parts.iter().enumerate().for_each(|(rank, part)| join.roll(rank, part));
        join
    }

    /// Fills `rolled_ns`: carries own time over collectives that are not symmetric, and over those that no other rank
    /// has.
    fn roll(&mut self, rank: usize, part: &OwnTime) {
        let mut carried_ns = 0;
        for (stretch, position) in part.stretches.iter().zip(&self.positions[rank]) {
            if stretch.previous.is_none() {
                carried_ns = 0;
            }
            let own_ns = stretch.own_ns.map(|own| own + carried_ns);
            carried_ns = own_ns.unwrap_or(0);
            let Some(instance) = position.get().map(|i| &mut self.instances[i as usize]) else { continue };
            if instance.symmetric {
                carried_ns = 0;
                if let Ok(at) = instance.arrivals.binary_search_by_key(&rank, |a| a.rank) {
                    instance.arrivals[at].rolled_ns = MaybeNs::of(own_ns);
                }
            }
        }
    }

    /// The instance at which the own stretch of `a` began, as a position in `instances`.
    pub fn previous(&self, a: &Arrival) -> Option<usize> {
        self.positions[a.rank][a.previous()? as usize].get().map(|i| i as usize)
    }

    /// The instance that the rank of `a` entered before, as a position in `instances`.
    pub fn entered(&self, a: &Arrival) -> Option<usize> {
        self.positions[a.rank][a.entered.get()? as usize].get().map(|i| i as usize)
    }

    /// Whether the own stretches of two ranks began at the end of the same collective.
    pub fn leave_together(&self, a: &Arrival, b: &Arrival) -> bool {
        let previous = self.previous(a);
        previous.is_some() && previous == self.previous(b)
    }

    /// The positions of all instances, ordered by last arrival, the latest first. Delays pass from later to earlier
    /// instances, so each instance comes after those that pass delays to it.
    pub fn latest_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.instances.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse((self.instances[i].last_ns, self.instances[i].id)));
        order
    }
}

/// The parts in the order of ranks; of a rank that is given twice, the first.
pub fn by_rank(parts: &[OwnTime]) -> Vec<&OwnTime> {
    let mut parts: Vec<&OwnTime> = parts.iter().collect();
    parts.sort_by_key(|p| p.rank);
    parts.dedup_by_key(|p| p.rank);
    parts
}

/// The step that most ranks recorded; of several such steps, the lowest.
fn most_common(mut steps: Vec<i32>) -> Option<i32> {
    steps.sort_unstable();
    let runs = steps.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| (run.len(), std::cmp::Reverse(run[0]))).map(|run| run[0])
}

fn lost_members(lost: i64) -> Vec<OmissionRow> {
    if lost == 0 {
        return Vec::new();
    }
    vec![
        OmissionRow::left_out("members of collectives in straggler analysis", "the own time of their ranks is unknown")
            .amount(lost),
    ]
}
