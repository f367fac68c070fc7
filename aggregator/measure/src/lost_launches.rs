//! Launches whose device work was not recorded: the profiler was not permitted to record the device, or lost rows. What the device did
//! then is unknown, not idle.
//!
//! ```text
//!  host     [launch a]  [launch b]        [launch c]
//!  stream      [ a ]                             [ c ]
//!  unknown              ?????????????????????????        from the launch of b to the next work of its stream
//! ```

use rustc_hash::{FxHashMap, FxHashSet};
use trace::OmissionRow;
use trace::name_rules::{launches_graph, synchronizes};
use trace::rank::{Launches, RowsByCorrelation, enclosing};

use model::intervals::{Interval, IntervalSet};
use model::{Events, Kind, RankData};

/// The omission that counts them.
pub const WITHOUT_WORK: &str = "launches without device work";
/// The omission that counts those of a rank that did not end in order: up to a buffer of the profiler. It makes no number invalid.
const AT_THE_END: &str = "device work at the end of the recording";

/// The share of the launches that may lack their work, and of the recorded time that a blocking copy without its row may take. Clean
/// traces of torch.profiler lack none.
const TOLERATED_SHARE: f64 = 0.01;

/// Calls that always leave device work, beside those that launch a graph. Fills are not among them, as one of 0 bytes leaves none.
const LAUNCHING: [&str; 13] = [
    "cudaLaunchKernel",
    "cudaLaunchCooperativeKernel",
    "cudaMemcpy",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuMemcpy",
    "hipLaunchKernel",
    "hipExtLaunchKernel",
    "hipModuleLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpy",
    "urEnqueueKernelLaunch",
    "urEnqueueUSMMemcpy",
];

/// The launches of a rank that lack their work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostLaunches {
    /// The number of launches, and of those without device work.
    launches: i64,
    lost: i64,
    /// Whether the recorder did not end in order.
    is_killed: bool,
    /// The time in which lost work may have run; empty if not enough is lost.
    pub(crate) unknown: IntervalSet,
}

impl LostLaunches {
    /// Finds the launches without work.
    pub(crate) fn of(data: &RankData, launches: &Launches) -> Self {
        let events = &data.events;
        let work = RowsByCorrelation::collect(events, |row| events.kind[row].is_device_work());
        let is_killed = data.outline.info.closed_cleanly == Some(false);
        let (mut found, mut lost) = (Self { is_killed, ..Self::default() }, Vec::new());
        for row in launching(data, launches) {
            found.launches += 1;
            if work.get(events.correlation[row]).is_none() {
                found.lost += 1;
                lost.push(row);
            }
        }
        if lost.is_empty() {
            return found;
        }
        found.lost = (found.lost - work_of_others(data, launches)).max(0);
        let recorded = (0..events.len()).map(|row| Interval::new(events.ts_ns[row], events.end_ns(row)));
        let recorded = recorded.reduce(Interval::hull).map(|all| (all.start_ns, all.end_ns));
        let Some((start_ns, end_ns)) = data.outline.recorded_with(recorded) else { return found };
        let recorded = Interval::new(start_ns, end_ns);
        if found.are_all() {
            found.unknown.push(recorded);
            return found;
        }
        let blocks = |row: usize| synchronizes(&data.names[events.name[row] as usize]);
        let longest_ns = lost.iter().filter(|row| blocks(**row)).map(|row| events.dur_ns[*row]).max();
        let is_long = longest_ns.is_some_and(|ns| ns as f64 >= TOLERATED_SHARE * recorded.len_ns() as f64);
        if is_long || found.lost as f64 > TOLERATED_SHARE * found.launches as f64 {
            found.unknown = unknown(events, launches, &lost, &blocks, recorded);
        }
        found
    }

    /// Whether a rank without device rows launched work.
    pub(crate) fn are_all(&self) -> bool {
        self.launches > 0 && self.lost == self.launches
    }

    /// Says how many launches lack their work, if enough do, or the rank did not end in order.
    pub(crate) fn omission(&self, rank: i32) -> Option<OmissionRow> {
        let (what, reason) = match self.unknown.is_empty() {
            true if !self.is_killed || self.lost == 0 => return None,
            true => {
                (AT_THE_END, "the rank did not shut down cleanly, so the profiler had not handed over its last buffer")
            }
            false => (
                WITHOUT_WORK,
                "the profiler was not permitted to record the device, another profiler held it, or its buffers were full, so what the \
                 device did is unknown",
            ),
        };
        Some(OmissionRow::lost(what, format!("of {} launches; {reason}", self.launches)).rank(rank).amount(self.lost))
    }
}

/// The number of device rows that may be the work of a launch without work: rows without a launch, as correlations of 0 make them, and
/// rows beyond the first of one launch. A graph has many rows by itself.
fn work_of_others(data: &RankData, launches: &Launches) -> i64 {
    let events = &data.events;
    let mut seen: FxHashSet<i64> = FxHashSet::default();
    let mut is_other = |row: &usize| {
        let correlation = events.correlation[*row];
        match launches.of(correlation) {
            None => true,
            Some(call) if launches_graph(&data.names[events.name[call as usize] as usize]) => false,
            Some(_) => !seen.insert(correlation),
        }
    };
    (0..events.len()).filter(|row| events.kind[*row].is_device_work()).filter(|row| is_other(row)).count() as i64
}

/// The calls that launch work now, not when a captured graph is launched. A call inside of another one with its own id is part of it.
fn launching<'a>(data: &'a RankData, launches: &'a Launches) -> impl Iterator<Item = usize> + 'a {
    #[derive(Clone, Copy, PartialEq)]
    enum Role {
        Launches,
        BeginsCapture,
        EndsCapture,
        Other,
    }
    let role = |name: &str| match () {
        () if launches_graph(name) || LAUNCHING.iter().any(|call| name.starts_with(call)) => Role::Launches,
        () if name.ends_with("StreamBeginCapture") || name.contains("StreamBeginCapture_") => Role::BeginsCapture,
        () if name.ends_with("StreamEndCapture") || name.contains("StreamEndCapture_") => Role::EndsCapture,
        () => Role::Other,
    };
    let events = &data.events;
    let roles: Vec<Role> = data.names.iter().map(|name| role(name)).collect();
    let role = move |row: usize| match events.kind[row] {
        Kind::Runtime | Kind::Driver => roles[events.name[row] as usize],
        _ => Role::Other,
    };
    let mut captures: FxHashMap<i64, bool> = FxHashMap::default();
    (0..events.len()).filter(move |row| match role(*row) {
        Role::Other => false,
        Role::BeginsCapture | Role::EndsCapture => {
            captures.insert(events.thread[*row], role(*row) == Role::BeginsCapture);
            false
        }
        Role::Launches => {
            launches.of(events.correlation[*row]) == Some(*row as u32)
                && enclosing(events, *row).is_none_or(|outer| role(outer) != Role::Launches)
                && !captures.get(&events.thread[*row]).is_some_and(|captures| *captures)
        }
    })
}

/// The time of the lost work: to the end of a blocking call, else to the next work of each stream that was launched later, else to the
/// end of the recording.
fn unknown(
    events: &Events,
    launches: &Launches,
    lost: &[usize],
    blocks: &dyn Fn(usize) -> bool,
    recorded: Interval,
) -> IntervalSet {
    let mut later = launches.joined(events, &|_| true);
    // Backwards in the order of launches.
    later.sort_unstable_by_key(|launch| (events.ts_ns[launch.host as usize], events.ts_ns[launch.device as usize]));
    let mut next_on: FxHashMap<(i64, i64), i64> = FxHashMap::default();
    let mut found = Vec::new();
    for row in lost.iter().rev().copied() {
        let start_ns = events.ts_ns[row];
        while let Some(launch) = later.last().filter(|launch| events.ts_ns[launch.host as usize] > start_ns).copied() {
            let device = launch.device as usize;
            next_on.insert((events.device[device], events.stream[device]), events.ts_ns[device]);
            later.pop();
        }
        let end_ns = match blocks(row) {
            true => events.end_ns(row),
            false => next_on.values().copied().max().unwrap_or(recorded.end_ns),
        };
        found.push(Interval::new(start_ns, end_ns.max(start_ns)));
    }
    found.sort_unstable();
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::breakdown::breakdown;
    use drawn::Drawn;
    use model::scope::Scope;

    fn lost(data: &RankData) -> LostLaunches {
        LostLaunches::of(data, &Launches::collect(&data.events))
    }

    /// Compute, idle and unknown time of the only step.
    fn step(data: &RankData) -> (Option<i64>, i64, i64, i64) {
        let rows = breakdown(data, &lost(data), &Scope::default()).rows;
        let row = rows.iter().find(|row| row.step == Some(1)).unwrap();
        (row.device_id, row.compute_ns, row.idle_ns, row.unknown_ns)
    }

    /// Removes the device rows for which `is_lost` returns true, in their order.
    fn without(data: &RankData, is_lost: &dyn Fn(usize) -> bool) -> RankData {
        let mut data = data.clone();
        let work = (0..data.events.len()).filter(|row| data.events.kind[*row].is_device_work());
        for row in work.enumerate().filter(|(at, _)| is_lost(*at)).map(|(_, row)| row).collect::<Vec<_>>() {
            // A row that no table reads.
            (data.events.kind[row], data.events.correlation[row]) = (Kind::Other, model::NONE);
        }
        data
    }

    #[test]
    fn lost_work_leaves_unknown_time() {
        let data = Drawn::rank(0)
            .steps("################")
            .host(Kind::CpuOp, "linear", 1, "##########......")
            .launches(1, "#...#...#.......")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "..##..##..####..")
            .data();
        assert_eq!((lost(&data).omission(0), step(&data)), (None, (Some(0), 8, 8, 0)));
        // The second kernel ran after its launch, and before the third.
        let data_without_one = without(&data, &|at| at == 1);
        assert_eq!(lost(&data_without_one).omission(0).and_then(|row| row.amount), Some(1));
        assert_eq!(step(&data_without_one), (Some(0), 6, 10, 6));
        // The operators of the host are not what computes.
        let data_without_all = without(&data, &|_| true);
        assert_eq!(lost(&data_without_all).omission(0).and_then(|row| row.amount), Some(3));
        assert_eq!(step(&data_without_all), (None, 0, 16, 16));
    }

    #[test]
    fn work_at_the_end_of_a_killed_rank_is_counted() {
        let few = |is_killed| LostLaunches { launches: 1_000, lost: 2, is_killed, ..LostLaunches::default() };
        assert_eq!(few(false).omission(0), None);
        let omission = few(true).omission(0).unwrap();
        assert_eq!((&*omission.what, omission.amount), (AT_THE_END, Some(2)));
        let none = LostLaunches { launches: 9, is_killed: true, ..LostLaunches::default() };
        assert_eq!(none.omission(0), None, "nothing is lost");
    }

    #[test]
    fn captured_launches_and_fills_need_no_work() {
        let data = Drawn::rank(0)
            .host(Kind::Runtime, "cudaStreamBeginCapture", 1, "#.......")
            .host(Kind::Runtime, "cudaLaunchKernel", 1, "..##....")
            .host(Kind::Runtime, "cudaStreamEndCapture", 1, ".....#..")
            .host(Kind::Runtime, "cudaMemsetAsync", 1, ".......#")
            .data();
        assert_eq!(lost(&data), LostLaunches::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Invariant (numbers): Whatever device rows are lost, the true compute time lies between the known one and that with the
        /// unknown time.
        #[test]
        fn known_and_unknown_hold_the_truth(
            kernels in prop::collection::vec((1..4_usize, 1..4_usize, any::<bool>()), 1..12),
        ) {
            let line: String = kernels.iter().map(|(idle, busy, _)| ".".repeat(*idle) + &"#".repeat(*busy)).collect();
            let launches: String = kernels.iter().map(|(idle, busy, _)| "#".to_string() + &".".repeat(idle + busy - 1)).collect();
            let data = Drawn::rank(0)
                .steps(&"#".repeat(line.len()))
                .launches(1, &launches)
                .device(Kind::Kernel, "gemm", (0, 7), 1, &line)
                .data();
            let (_, truth_ns, ..) = step(&data);
            let thinned = without(&data, &|at| kernels[at].2);
            let (_, known_ns, idle_ns, unknown_ns) = step(&thinned);
            prop_assert!(known_ns <= truth_ns && truth_ns <= known_ns + unknown_ns, "{known_ns} {truth_ns} {unknown_ns}");
            prop_assert!(unknown_ns <= idle_ns);
            let lost_rows = kernels.iter().filter(|kernel| kernel.2).count() as i64;
            prop_assert_eq!(lost(&thinned).lost, lost_rows);
        }
    }
}
