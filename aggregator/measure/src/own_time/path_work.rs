//! The work of a rank between the times at which the critical path of the job can come to it or leave it.

use rustc_hash::FxHashMap;
use trace::name_rules::is_data_loader;

use crate::own_time::ranges::is_host;
use model::intervals::{Coverage, Interval, IntervalSet};
use model::steps::{StepWindow, rank_windows};
use model::{Collective, Kind, RankData};

/// The time of a rank by kind, in ns. The kinds are disjoint; time without any record is in none. What the rank does beside its
/// communication counts, and not the communication: the critical path has that as transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Operators and calls of the host while no device works. Without a device: operators.
    pub cpu_ns: i64,
    /// Code of the host outside of them.
    pub host_gap_ns: i64,
    /// Ranges of data loaders while no device works.
    pub data_loading_ns: i64,
    /// Kernels that compute.
    pub gpu_compute_ns: i64,
    /// Copies and fills beside computing kernels.
    pub gpu_memory_ns: i64,
}

impl Done {
    /// The sum of the kinds.
    pub fn sum_ns(self) -> i64 {
        self.kinds().into_iter().sum()
    }

    fn kinds(self) -> [i64; 5] {
        let Self { cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns } = self;
        [cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns]
    }

    fn of([cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns]: [i64; 5]) -> Self {
        Self { cpu_ns, host_gap_ns, data_loading_ns, gpu_compute_ns, gpu_memory_ns }
    }
}

/// The work of a rank on a critical path of the job. Times are in the rank's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathWork {
    /// The starts and ends of collectives and steps, ascending, and what the rank did before each of them.
    cuts: Vec<(i64, [i64; 5])>,
}

/// Finds the collectives that a rank waited for.
pub(super) struct Waits<'a> {
    exposed: &'a [Interval],
    /// The collectives so far, by end.
    ends: FxHashMap<i64, u32>,
}

/// The ends of exposed communication that are looked at for one collective. Ends that are none of a collective are rare.
const MAX_LOOKED_AT: usize = 8;

impl<'a> Waits<'a> {
    pub(super) fn new(exposed: &'a Coverage) -> Self {
        Self { exposed: exposed.set().intervals(), ends: FxHashMap::default() }
    }

    pub(super) fn ended(&mut self, end_ns: Option<i64>, index: u32) {
        self.ends.extend(end_ns.map(|end_ns| (end_ns, index)));
    }

    /// The last collective whose end ended exposed communication up to a time.
    pub(super) fn last(&self, until_ns: i64) -> Option<u32> {
        let before = self.exposed.partition_point(|exposed| exposed.end_ns <= until_ns);
        let ends_ns = self.exposed[..before].iter().rev().map(|exposed| exposed.end_ns);
        ends_ns.take(MAX_LOOKED_AT).find_map(|end_ns| self.ends.get(&end_ns).copied())
    }
}

/// The active steps of a rank on critical paths; see [`OwnTime::path_steps`](crate::own_time::OwnTime::path_steps). None
/// without collectives.
pub(super) fn path_steps(rank: &RankData) -> Vec<StepWindow> {
    if rank.outline.collectives.is_empty() { Vec::new() } else { rank_windows(rank) }
}

impl PathWork {
    /// `operating` is the time of operators of a rank without a device, `steps` those of [`path_steps`].
    pub(super) fn of(rank: &RankData, operating: Option<&IntervalSet>, steps: &[StepWindow]) -> Self {
        let collectives = &rank.outline.collectives;
        if collectives.is_empty() {
            return Self::default();
        }
        let of_steps = steps.iter().flat_map(|step| [step.window.start_ns, step.window.end_ns]);
        let of_collective = |row: &Collective| [row.start_ns().or(row.enqueue_ns()), row.end_ns()];
        let mut cuts: Vec<i64> = collectives.iter().flat_map(of_collective).flatten().chain(of_steps).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let kinds = kinds(rank, operating, steps).map(Coverage::new);
        let done = |at_ns: i64| (at_ns, [0, 1, 2, 3, 4].map(|kind: usize| kinds[kind].before(at_ns)));
        Self { cuts: cuts.into_iter().map(done).collect() }
    }

    /// The cuts with the work before each of them.
    pub fn cuts(&self) -> impl Iterator<Item = (i64, Done)> {
        self.cuts.iter().map(|(at_ns, kinds)| (*at_ns, Done::of(*kinds)))
    }

    /// The work with these [`cuts`](Self::cuts).
    pub fn of_rows(cuts: impl Iterator<Item = (i64, Done)>) -> Self {
        Self { cuts: cuts.map(|(at_ns, done)| (at_ns, done.kinds())).collect() }
    }

    /// The work of the rank between two times. Between two cuts, it is spread evenly.
    pub fn between(&self, from_ns: i64, to_ns: i64) -> Done {
        let before = |at_ns: i64| {
            let after = self.cuts.partition_point(|(cut, _)| *cut <= at_ns);
            let [before, after] = [after.checked_sub(1), Some(after)].map(|at| self.cuts.get(at?));
            let (Some((from_ns, from)), Some((to_ns, to))) = (before, after) else {
                return before.or(after).map_or([0; 5], |(_, done)| *done);
            };
            let share = (at_ns - from_ns) as f64 / (to_ns - from_ns) as f64;
            [0, 1, 2, 3, 4].map(|kind: usize| from[kind] + ((to[kind] - from[kind]) as f64 * share).round() as i64)
        };
        let (from, to) = (before(from_ns), before(to_ns));
        Done::of([0, 1, 2, 3, 4].map(|kind: usize| (to[kind] - from[kind]).max(0)))
    }
}

/// The times of each kind, in the order of [`Done`]. They are disjoint: the device before the host, compute before all others.
fn kinds(rank: &RankData, operating: Option<&IntervalSet>, steps: &[StepWindow]) -> [IntervalSet; 5] {
    let events = &rank.events;
    let loads: Vec<bool> = rank.names.iter().map(|name| is_data_loader(name)).collect();
    let [mut compute, mut memory, mut loading, mut calls] = [(); 4].map(|()| IntervalSet::new());
    let mut has_host = false;
    for row in 0..events.len() {
        let kind = events.kind[row];
        let set = match kind {
            _ if kind.is_device_work() && events.is_comm[row] => continue,
            Kind::Kernel => &mut compute,
            _ if kind.is_device_work() => &mut memory,
            _ if loads[events.name[row] as usize] => &mut loading,
            Kind::CpuOp | Kind::Runtime | Kind::Driver => &mut calls,
            _ => {
                has_host |= is_host(kind);
                continue;
            }
        };
        has_host |= is_host(kind);
        set.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
    }
    let memory = memory.difference(&compute);
    let busy = compute.union(&memory);
    let loading = loading.difference(&busy);
    let calls = operating.unwrap_or(&calls).difference(&busy.union(&loading));
    let known = busy.union(&loading).union(&calls);
    let all: IntervalSet = steps.iter().filter(|_| has_host).map(|step| step.window).collect();
    let gaps = all.difference(&known);
    [calls, gaps, loading, compute, memory]
}

#[cfg(test)]
mod tests {
    use super::*;
    use drawn::Drawn;

    fn work(rank: &RankData) -> PathWork {
        let own_time = crate::own_time::map_rank(rank, &Default::default());
        assert_eq!(own_time.path_steps.len(), 1);
        own_time.path.as_ref().clone()
    }

    #[test]
    fn the_host_counts_where_the_device_is_idle() {
        let rank = Drawn::rank(0)
            .steps("####################")
            .host(Kind::CpuOp, "op", 1, ".########...........")
            .device(Kind::Kernel, "k", (0, 7), 1, "....####............")
            .device(Kind::GpuMemcpy, "copy", (0, 8), 2, "......####..........")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 9), 3, ".........####.......")
            .collectives(".........####.......")
            .data();
        let work = work(&rank);
        let done = work.between(0, 9);
        assert_eq!((done.cpu_ns, done.host_gap_ns, done.gpu_compute_ns, done.gpu_memory_ns), (3, 1, 4, 1));
        let beside = work.between(9, 13);
        assert_eq!((beside.gpu_memory_ns, beside.host_gap_ns), (1, 3), "the rank copies beside its collective");
        let after = work.between(13, 20);
        assert_eq!((after.host_gap_ns, after.sum_ns()), (7, 7));
    }

    #[test]
    fn a_rank_without_a_device_computes_in_operators() {
        let rank = Drawn::rank(0)
            .steps("################")
            .host(Kind::CpuOp, "gemm", 1, ".####....##.....")
            .collectives("....######......")
            .data();
        let done = work(&rank).between(0, 16);
        assert_eq!((done.cpu_ns, done.host_gap_ns), (6, 10));
        assert_eq!(done.sum_ns(), 16);
    }

    #[test]
    fn a_rank_without_host_rows_has_time_without_a_record() {
        let rank = Drawn::rank(0)
            .steps("##########")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 9), 3, "......##..")
            .collectives("......##..")
            .data();
        assert_eq!(work(&rank).between(0, 10).sum_ns(), 0);
    }
}
