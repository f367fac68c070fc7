//! Joins each instance with the own stretches of its ranks, in global time.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use trace::{Maybe, MaybeAt, MaybeNs, OmissionRow, Op, Word};

use crate::base::stats::lower_median;
use crate::judge::stragglers::ToGlobal;
use crate::judge::stragglers::kin::Kin;
use crate::judge::stragglers::stages::stages;
use crate::judge::stragglers::usual::Usual;
use crate::measure::own_time::{OwnTime, Stretch};
use crate::model::{Barrier, Instance, Member};

/// One rank at one instance. Times are global unless noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The position of the rank among the parts.
    pub(super) rank: usize,
    /// The position of the collective among the rank's stretches.
    pub(super) stretch: u32,
    /// The begin of the rank's own stretch; `arrival_ns` if it is unknown.
    pub(super) from_ns: i64,
    pub(super) arrival_ns: i64,
    end_ns: MaybeNs,
    own_ns: MaybeNs,
    rolled_ns: MaybeNs,
    dur_ns: MaybeNs,
    previous: MaybeAt,
    entered: MaybeAt,
    waited: MaybeAt,
}

impl Arrival {
    /// The arrival of a rank, by its position among the parts. `rolled_ns` and `entered` are filled later.
    fn of(member: &Member, (rank, stretch): (usize, &Stretch), to_global: ToGlobal<'_>) -> Self {
        let global = |t_ns| to_global(member.rank, member.device_clock, t_ns);
        let arrival_ns = global(member.start_ns);
        Self {
            rank,
            stretch: member.index,
            from_ns: global(stretch.from_ns).min(arrival_ns),
            arrival_ns,
            end_ns: MaybeNs::of(member.end_ns.map(global)),
            own_ns: MaybeNs::of(stretch.own_ns),
            rolled_ns: MaybeNs::UNKNOWN,
            dur_ns: MaybeNs::of(member.end_ns.map(|end| end - member.start_ns)),
            previous: MaybeAt::of(stretch.previous),
            entered: MaybeAt::UNKNOWN,
            waited: MaybeAt::of(stretch.waited),
        }
    }

    /// The collective that the rank left before its own stretch began, as a position among its stretches.
    pub(super) fn previous(&self) -> Option<u32> {
        self.previous.get()
    }

    /// The last collective that the rank entered before this one, among those that were matched, as a position among its
    /// stretches.
    pub(super) fn entered(&self) -> Option<u32> {
        self.entered.get()
    }

    /// The last collective that the rank waited for before this one, as a position among its stretches.
    pub(super) fn waited(&self) -> Option<u32> {
        self.waited.get()
    }

    /// The time at which the rank leaves the instance.
    pub(super) fn end_ns(&self) -> Option<i64> {
        self.end_ns.get()
    }

    /// The own time before the instance, in the rank's clock.
    pub(super) fn own_ns(&self) -> Option<i64> {
        self.own_ns.get()
    }

    /// The own time since the rank's previous symmetric collective. It includes the time before sends and receives in
    /// between.
    pub(super) fn rolled_ns(&self) -> Option<i64> {
        self.rolled_ns.get()
    }

    /// The duration of the collective in the rank's clock.
    pub(super) fn dur_ns(&self) -> Option<i64> {
        self.dur_ns.get()
    }

    /// The end of the rank's wait if the last rank arrives at `last_ns`.
    pub(super) fn wait_end_ns(&self, last_ns: i64) -> i64 {
        self.end_ns().map_or(last_ns, |end| end.min(last_ns)).max(self.arrival_ns)
    }
}

/// An instance with at least one rank whose part is available.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) id: i64,
    pub(super) comm_id: i64,
    pub(super) op: Word<Op>,
    bytes: Maybe<i64>,
    sender: MaybeAt,
    /// The number of its gradient bucket.
    pub(super) bucket: Option<i32>,
    /// The active step of the instance; `None` outside of active steps.
    pub(super) step: Option<i32>,
    /// Whether all ranks have the same role and wait for each other. False for a send, a receive or a broadcast.
    pub(super) symmetric: bool,
    /// Whether all expected ranks are here; true if the expected number is unknown.
    pub(super) whole: bool,
    /// Whether every expected rank is here and has ended.
    pub(super) complete: bool,
    /// The expected number of ranks, or that of those that are here.
    pub(super) size: u32,
    /// One arrival for each rank, in the order of ranks.
    pub(super) arrivals: Vec<Arrival>,
    /// The time of the last arrival.
    pub(super) last_ns: i64,
    own_median_ns: MaybeNs,
    /// The lower median of the times at which the known own stretches began.
    pub(super) from_median_ns: i64,
    /// The position in `arrivals` of the rank that arrived last. Of ranks that arrived together, it is the one with the
    /// longest own time, then the lowest rank.
    blocker: u32,
}

impl Joined {
    /// The rank that arrived last. Of ranks that arrived together, it is the one with the longest own time, then the
    /// lowest rank.
    pub(super) fn blocker(&self) -> &Arrival {
        &self.arrivals[self.blocker as usize]
    }

    /// The size of the whole array.
    pub(super) fn bytes(&self) -> Option<i64> {
        self.bytes.get()
    }

    /// Of a send, the position of the rank that sends.
    pub(super) fn sender(&self) -> Option<usize> {
        self.sender.get().map(|rank| rank as usize)
    }

    /// The lower median of the known own times.
    pub(super) fn own_median_ns(&self) -> Option<i64> {
        self.own_median_ns.get()
    }

    /// The arrival of a rank, by its position among the parts.
    pub(super) fn arrival_of(&self, rank: usize) -> Option<&Arrival> {
        self.arrivals.binary_search_by_key(&rank, |a| a.rank).ok().map(|at| &self.arrivals[at])
    }

    /// The own time of `a` above the lower median of the ranks; 0 if it is unknown.
    pub(super) fn own_excess_ns(&self, a: &Arrival) -> i64 {
        a.own_ns().zip(self.own_median_ns()).map_or(0, |(own, median)| own - median)
    }

    /// A rank whose own stretch began at `from_median_ns`.
    pub(super) fn typical(&self) -> Option<&Arrival> {
        self.arrivals.iter().find(|a| a.own_ns().is_some() && a.from_ns == self.from_median_ns)
    }

    /// The delay of the begin of the own stretch of `a` against the lower median of the ranks; 0 if it is unknown.
    pub(super) fn inherited_ns(&self, a: &Arrival) -> i64 {
        a.own_ns().map_or(0, |_| a.from_ns - self.from_median_ns)
    }
}

/// All joined instances, and the instance of each rank's collectives.
pub(super) struct Join {
    pub(super) instances: Vec<Joined>,
    /// For each rank, its stage of the pipeline. Ranks of one stage do the same work.
    pub(super) stages: Vec<usize>,
    /// The ranks whose work counts for that of a typical rank.
    pub(super) usual: Usual,
    /// The instances before which ranks do the same work.
    pub(super) kin: Kin,
    /// For each rank and each of its stretches, the position in `instances`.
    positions: Vec<Vec<MaybeAt>>,
    /// For ranks and their stretches before which collectives were not matched: the own work before these.
    unmatched_ns: FxHashMap<(usize, u32), i64>,
    pub(super) omissions: Vec<OmissionRow>,
}

impl Join {
    /// Joins `instances` with `parts`, which must be sorted by rank. The members of an instance are dropped when they are arrivals.
    pub(super) fn of(parts: &[&OwnTime], instances: Vec<Instance>, to_global: ToGlobal<'_>) -> Self {
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
        let stages = stages(&joined, &has_unmatched.collect::<Vec<bool>>());
        let kin = Kin::of(&joined, &stages);
        let usual = Usual::all(parts.len());
        let (unmatched_ns, omissions) = (FxHashMap::default(), lost_members(lost));
        let mut join = Self { instances: joined, stages, usual, kin, positions, unmatched_ns, omissions };
        for (rank, part) in parts.iter().enumerate() {
            join.roll(rank, part);
            join.enter(rank, part);
        }
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

    /// Fills `entered`, and the own work before collectives that were not matched.
    fn enter(&mut self, rank: usize, part: &OwnTime) {
        let positions = &self.positions[rank];
        for (at, position) in (0..).zip(positions) {
            let Some(instance) = position.get() else { continue };
            let (mut entered, mut unmatched_ns) = (part.stretches[at as usize].entered, 0_i64);
            while let Some(before) = entered.filter(|at| positions.get(*at as usize) == Some(&MaybeAt::UNKNOWN)) {
                let unmatched = &part.stretches[before as usize];
                unmatched_ns = unmatched_ns.saturating_add(unmatched.own_ns.unwrap_or(0).max(0));
                // A stretch was entered after an earlier one; a list that contradicts this would not end.
                entered = unmatched.entered.filter(|earlier| *earlier < before);
            }
            let arrivals = &mut self.instances[instance as usize].arrivals;
            let first = arrivals.partition_point(|a| a.rank < rank);
            let mut of_rank = arrivals[first..].iter_mut().take_while(|a| a.rank == rank);
            if let Some(arrival) = of_rank.find(|a| a.stretch == at) {
                arrival.entered = MaybeAt::of(entered);
            }
            if unmatched_ns > 0 {
                self.unmatched_ns.insert((rank, at), unmatched_ns);
            }
        }
    }

    /// The own work before an arrival since the collective that the rank [entered](Arrival::entered) before.
    pub(super) fn own_since_entered_ns(&self, a: &Arrival) -> i64 {
        let unmatched_ns = self.unmatched_ns.get(&(a.rank, a.stretch)).copied().unwrap_or(0);
        a.own_ns().unwrap_or(0).max(0).saturating_add(unmatched_ns)
    }

    /// For each rank, the number of its stretches.
    pub(super) fn stretches(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().map(Vec::len)
    }

    /// The ranks that show the typical work of a stage most of whose ranks are slow.
    pub(super) fn faster_group(&self) -> impl Iterator<Item = usize> {
        let slow = (0..self.stages.len()).filter(|rank| !self.usual.is_usual[*rank]);
        let stages: BTreeSet<usize> = slow.map(|rank| self.stages[rank]).collect();
        (0..self.stages.len()).filter(move |rank| self.usual.is_usual[*rank] && stages.contains(&self.stages[*rank]))
    }

    /// Arrivals, apart for each stage.
    pub(super) fn by_stage<'a>(&self, arrivals: impl Iterator<Item = &'a Arrival>) -> Vec<Vec<&'a Arrival>> {
        let mut stages: BTreeMap<usize, Vec<&Arrival>> = BTreeMap::new();
        for a in arrivals {
            stages.entry(self.stages[a.rank]).or_default().push(a);
        }
        stages.into_values().collect()
    }

    /// The instance at which the own stretch of `a` began, as a position in `instances`.
    pub(super) fn previous(&self, a: &Arrival) -> Option<usize> {
        self.positions[a.rank][a.previous()? as usize].get().map(|i| i as usize)
    }

    /// Whether the own stretches of two ranks began at the end of the same collective.
    pub(super) fn leave_together(&self, a: &Arrival, b: &Arrival) -> bool {
        let previous = self.previous(a);
        previous.is_some() && previous == self.previous(b)
    }

    /// The positions of all instances, ordered by last arrival, the latest first. Delays pass from later to earlier
    /// instances, so each instance comes after those that pass delays to it.
    pub(super) fn latest_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.instances.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse((self.instances[i].last_ns, self.instances[i].id)));
        order
    }
}

/// The parts in the order of ranks; of a rank that is given twice, the first.
pub(super) fn by_rank(parts: &[OwnTime]) -> Vec<&OwnTime> {
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
