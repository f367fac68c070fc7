//! Instances joined with the own stretches of their ranks, on one clock.

use rustc_hash::FxHashMap;
use trace::OmissionRow;

use super::stats::lower_median;
use super::{RankPart, ToGlobal};
use crate::model::{Barrier, Instance};

/// One rank at one instance. Times are global.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Position of the rank among the parts.
    pub(super) rank: usize,
    /// When its own stretch began; `arrival_ns` where that is not known.
    pub(super) from_ns: i64,
    pub(super) arrival_ns: i64,
    pub(super) end_ns: Option<i64>,
    /// Own time before it, in the rank's clock.
    pub(super) own_ns: Option<i64>,
    /// The part of it while earlier collectives were on their way.
    pub(super) hidden_ns: i64,
    /// Own time since the rank's previous collective that holds ranks together: its time before sends and receives in
    /// between belongs to this one.
    pub(super) rolled_ns: Option<i64>,
    /// Length of the collective in the rank's clock.
    pub(super) dur_ns: Option<i64>,
    /// Its previous collective, as position among its stretches.
    pub(super) previous: Option<u32>,
}

impl Arrival {
    /// Until when it waits, if the last rank arrives at `last_ns`.
    pub(super) fn wait_end_ns(&self, last_ns: i64) -> i64 {
        self.end_ns.map_or(last_ns, |end| end.min(last_ns)).max(self.arrival_ns)
    }
}

/// An instance with at least one rank whose part is known.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) id: i64,
    pub(super) comm_id: i64,
    /// Active step.
    pub(super) step: Option<i32>,
    /// All ranks do the same, and hold each other together: not a send, a receive or a broadcast.
    pub(super) symmetric: bool,
    /// All ranks of the communicator are here, as far as is known.
    pub(super) whole: bool,
    /// In the order of ranks.
    pub(super) arrivals: Vec<Arrival>,
    /// Last arrival.
    pub(super) last_ns: i64,
    /// Lower median of the own stretches that are known.
    pub(super) own_median_ns: Option<i64>,
    /// Lower median of the times from which they count.
    pub(super) from_median_ns: i64,
}

impl Joined {
    /// The rank that the others waited for. Of several the one with the longest own stretch, then the lowest.
    pub(super) fn blocker(&self) -> &Arrival {
        let mut last = &self.arrivals[0];
        for a in &self.arrivals[1..] {
            if (a.arrival_ns, a.own_ns) > (last.arrival_ns, last.own_ns) {
                last = a;
            }
        }
        last
    }

    /// Own stretch of `a` above the lower median of the ranks; 0 where it is not known.
    pub(super) fn own_excess_ns(&self, a: &Arrival) -> i64 {
        a.own_ns.zip(self.own_median_ns).map_or(0, |(own, median)| own - median)
    }

    /// A rank whose own stretch began at the lower median of the times.
    pub(super) fn typical(&self) -> Option<&Arrival> {
        self.arrivals.iter().find(|a| a.own_ns.is_some() && a.from_ns == self.from_median_ns)
    }

    /// How much later than the lower median of the ranks the own stretch of `a` began.
    pub(super) fn inherited_ns(&self, a: &Arrival) -> i64 {
        a.own_ns.map_or(0, |_| a.from_ns - self.from_median_ns)
    }
}

/// All instances, and where each rank's collectives went.
pub(super) struct Join {
    pub(super) instances: Vec<Joined>,
    /// For each rank and each of its stretches the position in `instances`.
    positions: Vec<Vec<Option<u32>>>,
    pub(super) omissions: Vec<OmissionRow>,
}

impl Join {
    /// Joins `instances` with `parts`, which must be sorted by rank.
    pub(super) fn of(parts: &[&RankPart], instances: &[Instance], to_global: ToGlobal<'_>) -> Self {
        let by_rank: FxHashMap<i32, usize> = parts.iter().enumerate().map(|(i, p)| (p.rank, i)).collect();
        let mut positions: Vec<Vec<Option<u32>>> = parts.iter().map(|p| vec![None; p.stretches.len()]).collect();
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
                let global = |t_ns| to_global(member.rank, member.device_clock, t_ns);
                let arrival_ns = global(member.start_ns);
                positions[rank][member.index as usize] = Some(joined.len() as u32);
                steps.extend(stretch.step);
                arrivals.push(Arrival {
                    rank,
                    from_ns: global(stretch.from_ns).min(arrival_ns),
                    arrival_ns,
                    end_ns: member.end_ns.map(global),
                    own_ns: stretch.own_ns,
                    hidden_ns: stretch.own_ns.map_or(0, |own| (own - (stretch.start_ns - stretch.from_ns)).max(0)),
                    rolled_ns: None,
                    dur_ns: member.end_ns.map(|end| end - member.start_ns),
                    previous: stretch.previous,
                });
            }
            let Some(last_ns) = arrivals.iter().map(|a| a.arrival_ns).max() else { continue };
            joined.push(Joined {
                id: instance.id,
                comm_id: instance.comm_id,
                step: most_common(steps),
                symmetric: instance.barrier != Barrier::OneSided,
                whole: instance.ranks_expected.is_none_or(|n| n as usize == arrivals.len()),
                last_ns,
                own_median_ns: lower_median(arrivals.iter().filter_map(|a| a.own_ns)),
                from_median_ns: lower_median(arrivals.iter().filter(|a| a.own_ns.is_some()).map(|a| a.from_ns))
                    .unwrap_or(last_ns),
                arrivals,
            });
        }
        let mut join = Self { instances: joined, positions, omissions: lost_members(lost) };
        for (rank, part) in parts.iter().enumerate() {
            join.roll(rank, part);
        }
        join
    }

    /// Adds up own time over collectives that hold nobody together, and over those that no other rank has.
    fn roll(&mut self, rank: usize, part: &RankPart) {
        let mut carried_ns = 0;
        for (stretch, position) in part.stretches.iter().zip(&self.positions[rank]) {
            if stretch.previous.is_none() {
                carried_ns = 0;
            }
            let own_ns = stretch.own_ns.map(|own| own + carried_ns);
            carried_ns = own_ns.unwrap_or(0);
            let Some(instance) = position.map(|i| &mut self.instances[i as usize]) else { continue };
            if instance.symmetric {
                carried_ns = 0;
                if let Some(a) = instance.arrivals.iter_mut().find(|a| a.rank == rank) {
                    a.rolled_ns = own_ns;
                }
            }
        }
    }

    /// The instance at which `a`'s own stretch began, as position in `instances`.
    pub(super) fn previous(&self, a: &Arrival) -> Option<usize> {
        self.positions[a.rank][a.previous? as usize].map(|i| i as usize)
    }

    /// Whether the own stretches of two ranks began at the end of the same collective.
    pub(super) fn leave_together(&self, a: &Arrival, b: &Arrival) -> bool {
        let previous = self.previous(a);
        previous.is_some() && previous == self.previous(b)
    }

    /// Positions of all instances, latest last arrival first: later ones never depend on earlier ones in this order.
    pub(super) fn latest_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.instances.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse((self.instances[i].last_ns, self.instances[i].id)));
        order
    }
}

/// The step that most ranks give; of several the lowest.
fn most_common(mut steps: Vec<i32>) -> Option<i32> {
    steps.sort_unstable();
    let runs = steps.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| (run.len(), std::cmp::Reverse(run[0]))).map(|run| run[0])
}

fn lost_members(lost: i64) -> Vec<OmissionRow> {
    if lost == 0 {
        return Vec::new();
    }
    vec![OmissionRow {
        what: "members of collectives in straggler analysis".into(),
        amount: Some(lost),
        why: "their ranks' own stretches are not known".into(),
        ..Default::default()
    }]
}
