//! The time breakdown of a rank: five parts of every window that sum to its wall time exactly.
//!
//! ```text
//!  K compute         ####....####....
//!  C communication   ..######........
//!  M copies          ..........####..
//!                                          each point in time belongs to exactly one part:
//!  compute           ##......####....      |K \ C|
//!  overlap           ..##............      |K ∩ C|
//!  exposed           ....####........      |C \ K|
//!  memory            ............##..      |M \ (K ∪ C)|
//!  idle              ..............##      the rest
//! ```
//!
//! The profiler's own work has no part. Its time outside of K, C and M counts as idle, and `overhead_ns` states it.

mod callers;
mod exposed;

use rustc_hash::FxHashMap;
use trace::{ExposedCommRow, HtaTemporalRow, StepBreakdownRow};

use crate::own_time::operating;
use model::intervals::{Coverage, Interval, IntervalSet};
use model::scope::Scope;
use model::steps::{DeviceEnds, StepWindow, device_windows, host_windows};
use model::windows::Windows;
use model::{Events, Kind, NONE, RankData};
use trace::name_rules::is_communication_by_hta;

use self::exposed::exposed_communication;

/// The activity of one device, or of the CPU of a rank without a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// The device; `None` means the CPU.
    pub(crate) device: Option<i64>,
    /// The set K: compute.
    pub(crate) compute: IntervalSet,
    /// The set C: communication.
    pub(crate) comm: IntervalSet,
    /// The set M: copies and fills.
    pub(crate) memory: IntervalSet,
    /// Work of the profiler and of the driver, on the host.
    overhead: IntervalSet,
    /// The set K by HTA's definition of communication; `None` if it is the same.
    hta_compute: Option<IntervalSet>,
}

impl Activity {
    /// The activity of each device of a rank, or of its CPU if no row is device work.
    pub(crate) fn of(data: &RankData) -> Vec<Self> {
        let mut all = devices(data);
        if all.is_empty() {
            all.push(Self::of_cpu(data));
        }
        let overhead = overhead(&data.events);
        all.iter_mut().for_each(|activity| activity.overhead.clone_from(&overhead));
        all
    }

    /// The activity of a CPU: K = operators that neither communicate nor wait for communication, without the waits inside of
    /// them, C = collectives, M = ∅.
    fn of_cpu(data: &RankData) -> Self {
        let comm =
            data.outline.collectives.iter().filter_map(|c| Some(Interval::new(c.start_ns()?, c.end_ns()?))).collect();
        Self { compute: operating(data), comm, ..Self::default() }
    }

    /// Limits all sets to `time`.
    fn clipped(&self, time: &IntervalSet) -> Self {
        let clip = |set: &IntervalSet| set.intersection(time);
        let Self { device, compute, comm, memory, overhead, hta_compute } = self;
        Self {
            device: *device,
            compute: clip(compute),
            comm: clip(comm),
            memory: clip(memory),
            overhead: clip(overhead),
            hta_compute: hta_compute.as_ref().map(clip),
        }
    }
}

/// The time of all rows of kind `overhead`.
pub(crate) fn overhead(events: &Events) -> IntervalSet {
    let mut set = IntervalSet::new();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Overhead) {
        set.push(Interval::new(events.ts_ns[row], events.end_ns(row)));
    }
    set
}

fn devices(data: &RankData) -> Vec<Activity> {
    let events = &data.events;
    let by_hta: Vec<bool> = data.names.iter().map(|name| is_communication_by_hta(name)).collect();
    let computes_by_hta = |row: usize| events.kind[row] == Kind::Kernel && !by_hta[events.name[row] as usize];
    let computes = |row: usize| events.kind[row] == Kind::Kernel && !events.is_comm[row];
    let differs = (0..events.len()).any(|row| computes(row) != computes_by_hta(row));
    let mut devices: Vec<Activity> = Vec::new();
    let mut positions: FxHashMap<i64, usize> = FxHashMap::default();
    let mut current = 0;
    for row in 0..events.len() {
        if !events.kind[row].is_device_work() {
            continue;
        }
        let device = Some(events.device[row]).filter(|d| *d != NONE).unwrap_or(0);
        if devices.get(current).is_none_or(|d| d.device != Some(device)) {
            current = *positions.entry(device).or_insert_with(|| {
                devices.push(Activity { device: Some(device), ..Activity::default() });
                devices.len() - 1
            });
        }
        let activity = &mut devices[current];
        let set = match events.kind[row] {
            _ if events.is_comm[row] => &mut activity.comm,
            Kind::Kernel => &mut activity.compute,
            _ => &mut activity.memory,
        };
        let interval = Interval::new(events.ts_ns[row], events.end_ns(row));
        set.push(interval);
        if differs {
            let hta_compute = activity.hta_compute.get_or_insert_default();
            if computes_by_hta(row) {
                hta_compute.push(interval);
            }
        }
    }
    devices.sort_by_key(|d| d.device);
    devices
}

/// Running sums over the sets of an [`Activity`], which make the five parts of any window cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) compute: Coverage,
    comm: Coverage,
    overlap: Coverage,
    compute_or_comm: Coverage,
    pub(crate) busy: Coverage,
    /// Overhead outside of `busy`.
    overhead: Coverage,
}

impl Parts {
    /// Computes the running sums of an activity.
    pub(crate) fn new(activity: &Activity) -> Self {
        let Activity { compute, comm, memory, overhead, .. } = activity;
        let compute_or_comm = compute.union(comm);
        let busy = compute_or_comm.union(memory);
        Self {
            overlap: Coverage::new(compute.intersection(comm)),
            overhead: Coverage::new(overhead.difference(&busy)),
            busy: Coverage::new(busy),
            compute_or_comm: Coverage::new(compute_or_comm),
            compute: Coverage::new(compute.clone()),
            comm: Coverage::new(comm.clone()),
        }
    }

    /// The five parts of `window`.
    pub(crate) fn split(&self, window: Interval) -> Split {
        let within = |coverage: &Coverage| coverage.within_ns(window);
        let (compute, comm, overlap) = (within(&self.compute), within(&self.comm), within(&self.overlap));
        let (compute_or_comm, busy) = (within(&self.compute_or_comm), within(&self.busy));
        Split {
            wall_ns: window.len_ns(),
            compute_ns: compute - overlap,
            overlap_ns: overlap,
            exposed_comm_ns: comm - overlap,
            memory_ns: busy - compute_or_comm,
            idle_ns: window.len_ns() - busy,
            overhead_ns: within(&self.overhead),
        }
    }
}

/// The five parts of a window, their sum `wall_ns`, and the part of the idle time that overhead covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) wall_ns: i64,
    pub(crate) compute_ns: i64,
    pub(crate) overlap_ns: i64,
    pub(crate) exposed_comm_ns: i64,
    pub(crate) memory_ns: i64,
    pub(crate) idle_ns: i64,
    pub(crate) overhead_ns: i64,
}

impl Split {
    fn combine(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            wall_ns: f(self.wall_ns, other.wall_ns),
            compute_ns: f(self.compute_ns, other.compute_ns),
            overlap_ns: f(self.overlap_ns, other.overlap_ns),
            exposed_comm_ns: f(self.exposed_comm_ns, other.exposed_comm_ns),
            memory_ns: f(self.memory_ns, other.memory_ns),
            idle_ns: f(self.idle_ns, other.idle_ns),
            overhead_ns: f(self.overhead_ns, other.overhead_ns),
        }
    }

    fn row(self, rank: i32, device_id: Option<i64>, step: Option<i32>) -> StepBreakdownRow {
        let comm_total_ns = self.overlap_ns + self.exposed_comm_ns;
        StepBreakdownRow {
            rank,
            device_id,
            step,
            wall_ns: self.wall_ns,
            compute_ns: self.compute_ns,
            overlap_ns: self.overlap_ns,
            exposed_comm_ns: self.exposed_comm_ns,
            // Only all ranks together tell waits.
            exposed_wait_ns: None,
            memory_ns: self.memory_ns,
            idle_ns: self.idle_ns,
            overhead_ns: self.overhead_ns,
            comm_total_ns,
            overlap_pct: (comm_total_ns > 0).then(|| 100.0 * self.overlap_ns as f64 / comm_total_ns as f64),
        }
    }
}

/// The breakdown of a rank, and the sets that other tables need for their own windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breakdown {
    pub(crate) rows: Vec<StepBreakdownRow>,
    /// Where the exposed communication of each step comes from.
    pub(crate) exposed: Vec<ExposedCommRow>,
    /// The activity of each device or of the CPU in the chosen time. All steps are included, because work of one step
    /// may run during another.
    pub(crate) parts: Vec<(Activity, Parts)>,
    /// The activity in the chosen steps only; `None` if all steps are chosen.
    in_steps: Option<Vec<(Activity, Parts)>>,
}

impl Breakdown {
    /// The activity in the chosen time and in the chosen steps.
    pub(crate) fn chosen(&self) -> &[(Activity, Parts)] {
        self.in_steps.as_ref().unwrap_or(&self.parts)
    }
}

/// The breakdown of a rank. Each device (or the CPU) has one row for the whole recording without the pauses between
/// windows, one row for each active step,
/// and one row for the time between steps. Only time in `scope` counts.
pub(crate) fn breakdown(data: &RankData, scope: &Scope) -> Breakdown {
    let rank = data.outline.info.rank;
    let host = host_windows(&data.outline.steps);
    let ends = DeviceEnds::of(&data.events);
    let recorder = Windows::of(&data.outline.steps);
    let mut found = Breakdown { in_steps: scope.steps.as_ref().map(|_| Vec::new()), ..Breakdown::default() };
    for mut activity in Activity::of(data) {
        if let Some(time) = &scope.time {
            activity = activity.clipped(time);
        }
        // The windows of all steps are needed first, because a step on a device begins when the previous step ends
        // there.
        let windows = scope.chosen(match activity.device {
            Some(device) => device_windows(&host, &ends, device),
            None => host.clone(),
        });
        let within = scope.within(&windows);
        let parts = Parts::new(&activity);
        let rows = device_rows((rank, activity.device), &windows, &recorder, &parts, within.as_ref());
        found.exposed.extend(exposed_communication(data, &parts, (&rows, &windows), within.as_ref()));
        found.rows.extend(rows);
        if let (Some(in_steps), Some(within)) = (&mut found.in_steps, &within) {
            let chosen = activity.clipped(within);
            let parts = Parts::new(&chosen);
            in_steps.push((chosen, parts));
        }
        found.parts.push((activity, parts));
    }
    found
}

fn device_rows(
    (rank, device): (i32, Option<i64>),
    windows: &[StepWindow],
    recorder: &Windows,
    parts: &Parts,
    scope: Option<&IntervalSet>,
) -> Vec<StepBreakdownRow> {
    let split = |window: Interval| match scope {
        None => parts.split(window),
        Some(scope) => {
            let pieces = scope.clip(window);
            let add = |sum: Split, piece: &Interval| sum.combine(parts.split(*piece), |a, b| a + b);
            pieces.intervals().iter().fold(Split::default(), add)
        }
    };
    let busy = parts.busy.set().intervals().iter().copied();
    let everything = recorder.hulls(windows.iter().map(|w| w.window).chain(busy));
    if everything.is_empty() {
        return Vec::new();
    }
    let total = everything.iter().fold(Split::default(), |sum, window| sum.combine(split(*window), |a, b| a + b));
    let mut between = total;
    let mut rows = vec![total.row(rank, device, None)];
    for step in windows {
        let part = split(step.window);
        if scope.is_some() && part.wall_ns == 0 {
            continue;
        }
        between = between.combine(part, |a, b| a - b);
        rows.push(part.row(rank, device, Some(step.step)));
    }
    if between.wall_ns > 0 {
        rows.insert(1, between.row(rank, device, Some(-1)));
    }
    rows
}

/// HTA's temporal breakdown over the device rows of a rank, always with HTA's own communication; `None` if the rank has
/// no device rows.
pub(crate) fn hta_temporal(rank: i32, activities: &[(Activity, Parts)], windows: &Windows) -> Option<HtaTemporalRow> {
    let devices = || activities.iter().map(|(a, _)| a).filter(|a| a.device.is_some());
    let compute = IntervalSet::union_of(devices().map(|a| a.hta_compute.as_ref().unwrap_or(&a.compute)));
    let busy = IntervalSet::union_of(devices().flat_map(|a| [&a.compute, &a.comm, &a.memory]));
    if busy.is_empty() {
        return None;
    }
    let kernel_time_ns = windows.hulls(busy.intervals().iter().copied()).iter().map(|window| window.len_ns()).sum();
    let (idle_time_ns, compute_time_ns) = (kernel_time_ns - busy.len_ns(), compute.len_ns());
    let non_compute_time_ns = kernel_time_ns - compute_time_ns - idle_time_ns;
    Some(HtaTemporalRow { rank, kernel_time_ns, idle_time_ns, compute_time_ns, non_compute_time_ns })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use drawn::Drawn;

    /// Formats each row as `step: wall = compute + overlap + exposed + memory + idle`.
    fn table(rows: &[StepBreakdownRow]) -> Vec<String> {
        let step = |s: Option<i32>| s.map_or("all".into(), |s| s.to_string());
        rows.iter()
            .map(|r| {
                format!(
                    "{}: {} = {} + {} + {} + {} + {}",
                    step(r.step),
                    r.wall_ns,
                    r.compute_ns,
                    r.overlap_ns,
                    r.exposed_comm_ns,
                    r.memory_ns,
                    r.idle_ns
                )
            })
            .collect()
    }

    /// Invariant (clocks): No row counts a pause between two windows of a profiler.
    #[test]
    fn a_pause_between_windows_is_no_time() {
        let mut data = Drawn::rank(0)
            .steps(".####....................####.")
            .host(Kind::CpuOp, "gemm", 1, "..##......................##..")
            .data();
        for (step, window) in data.outline.steps.iter_mut().zip([1, 2]) {
            step.window = Some(window);
        }
        let rows = breakdown(&data, &Scope::default()).rows;
        assert_eq!(
            table(&rows),
            ["all: 8 = 4 + 0 + 0 + 0 + 4", "1: 4 = 2 + 0 + 0 + 0 + 2", "2: 4 = 2 + 0 + 0 + 0 + 2"]
        );
    }

    #[test]
    fn overhead_is_a_stated_part_of_idle() {
        let data = Drawn::rank(0)
            .steps("########..########..")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "..##......##........")
            .host(Kind::Overhead, "Buffer Flush", 9, ".####....#####......")
            .host(Kind::Overhead, "Instrumentation", 8, "....##..............")
            .data();
        let split: Vec<_> = breakdown(&data, &Scope::default())
            .rows
            .iter()
            .map(|r| (r.step, r.wall_ns, r.compute_ns, r.idle_ns, r.overhead_ns))
            .collect();
        assert_eq!(split, [(None, 18, 4, 14, 6), (Some(-1), 2, 0, 2, 1), (Some(1), 8, 2, 6, 3), (Some(2), 8, 2, 6, 2)]);
    }

    #[test]
    fn a_cpu_step_splits_into_operators_and_collectives() {
        let data = Drawn::rank(0)
            .steps("..######......########..") //
            .host(Kind::CpuOp, "gemm", 1, "..###.........####......")
            .host(Kind::CpuOp, "wait_all_reduce", 1, ".....##...........###...")
            .collectives(".....##.........#####...")
            .data();
        let rows = breakdown(&data, &Scope::default()).rows;
        // The collective of step 1 ends in step 1, and the time between the steps is idle.
        assert_eq!(
            table(&rows),
            [
                "all: 20 = 5 + 2 + 5 + 0 + 8",
                "-1: 6 = 0 + 0 + 0 + 0 + 6",
                "1: 6 = 3 + 0 + 2 + 0 + 1",
                "2: 8 = 2 + 2 + 3 + 0 + 1",
            ]
        );
    }

    #[test]
    fn a_device_step_ends_with_the_work_launched_in_it() {
        let data = Drawn::rank(0)
            .steps("########........########....")
            .launches(1, ".#.#............#...........")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "...###.#####............####")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 8), 50, ".........####...............")
            .device(Kind::GpuMemcpy, "Memcpy HtoD", (0, 9), 60, ".###........................")
            .data();
        let Breakdown { rows, parts, .. } = breakdown(&data, &Scope::default());
        assert_eq!(
            table(&rows),
            [
                "all: 28 = 9 + 3 + 1 + 2 + 13",
                "-1: 4 = 0 + 0 + 1 + 0 + 3",
                "1: 12 = 5 + 3 + 0 + 2 + 2",
                "2: 12 = 4 + 0 + 0 + 0 + 8",
            ]
        );
        let hta = hta_temporal(0, &parts, &Windows::default()).unwrap();
        assert_eq!(
            (hta.kernel_time_ns, hta.idle_time_ns, hta.compute_time_ns, hta.non_compute_time_ns),
            (27, 12, 12, 3)
        );
    }

    /// Invariant (numbers): The table of HTA's breakdown keeps HTA's definition of communication.
    ///
    /// Whatever counts as communication, HTA's table has HTA's.
    #[test]
    fn htas_table_keeps_htas_communication() {
        let mut data = Drawn::rank(0)
            .device(Kind::Kernel, "gemm", (0, 7), 1, "####......")
            .device(Kind::Kernel, "void deep_ep::intranode::combine<2>()", (0, 8), 50, "..####....")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 9), 60, "........##")
            .data();
        let breakdown_of = |data: &RankData| {
            let Breakdown { rows, parts, .. } = breakdown(data, &Scope::default());
            let hta = hta_temporal(0, &parts, &Windows::default()).unwrap();
            (
                table(&rows).remove(0),
                (hta.kernel_time_ns, hta.idle_time_ns, hta.compute_time_ns, hta.non_compute_time_ns),
            )
        };
        assert_eq!(breakdown_of(&data), ("all: 10 = 2 + 2 + 4 + 0 + 2".to_string(), (10, 2, 6, 2)));
        // As with --not-comm for all of them, and as with --comm hta.
        data.events.is_comm.fill(false);
        assert_eq!(breakdown_of(&data), ("all: 10 = 8 + 0 + 0 + 0 + 2".to_string(), (10, 2, 6, 2)));
        let nccl = data.names.iter().position(|name| name.starts_with("nccl")).unwrap();
        data.events.is_comm = data.events.name.iter().map(|name| *name as usize == nccl).collect();
        assert_eq!(breakdown_of(&data), ("all: 10 = 6 + 0 + 2 + 0 + 2".to_string(), (10, 2, 6, 2)));
    }

    #[test]
    fn late_device_work_delays_the_next_step() {
        let data = Drawn::rank(0)
            .steps("####...####...")
            .launches(1, ".#......#.....")
            .device(Kind::Kernel, "gemm", (0, 7), 1, "...######.###.")
            .data();
        let rows = breakdown(&data, &Scope::default()).rows;
        assert_eq!(
            table(&rows),
            ["all: 13 = 9 + 0 + 0 + 0 + 4", "1: 9 = 6 + 0 + 0 + 0 + 3", "2: 4 = 3 + 0 + 0 + 0 + 1"]
        );
    }

    #[test]
    fn a_scope_limits_the_total_and_every_step() {
        let data = Drawn::rank(0)
            .steps("##########")
            .host(Kind::CpuOp, "gemm", 1, "#######...")
            .collectives(".....####.")
            .data();
        let scope = [Interval::new(2, 4), Interval::new(6, 9)].into_iter().collect();
        let rows = breakdown(&data, &Scope { time: Some(scope), ..Scope::default() }).rows;
        assert_eq!(table(&rows), ["all: 5 = 2 + 1 + 2 + 0 + 0", "1: 5 = 2 + 1 + 2 + 0 + 0"]);
    }

    fn line() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::bool::weighted(0.4), 40)
            .prop_map(|busy| busy.into_iter().map(|b| if b { '#' } else { '.' }).collect())
    }

    proptest! {
        /// Invariant (numbers): The five parts of a step sum to its wall time.
        #[test]
        fn the_parts_sum_to_wall(steps in line(), k in line(), c in line(), m in line(), launches in line(), scope in line()) {
            let device = Drawn::rank(0)
                .steps(&steps)
                .host(Kind::Overhead, "Resource", 9, &scope)
                .launches(0, &launches)
                .device(Kind::Kernel, "gemm", (0, 1), 0, &k)
                .device(Kind::Kernel, "nccl", (0, 2), 3, &c)
                .device(Kind::GpuMemset, "Memset", (1, 1), 5, &m)
                .data();
            let cpu = Drawn::rank(0).steps(&steps).host(Kind::CpuOp, "gemm", 1, &k).collectives(&c).data();
            let time = drawn::bars(&scope).into_iter().map(|(s, e)| Interval::new(s, e)).collect();
            let (time, all) = (Scope { time: Some(time), steps: None }, Scope::default());
            let in_steps = |scope: &Scope| Scope { steps: Some(2..4), ..scope.clone() };
            let scopes = [in_steps(&time), in_steps(&all), time, all];
            for data in [&device, &cpu] {
                for scope in &scopes {
                    let rows = breakdown(data, scope).rows;
                    for r in &rows {
                        let parts = [r.compute_ns, r.overlap_ns, r.exposed_comm_ns, r.memory_ns, r.idle_ns];
                        prop_assert_eq!(parts.iter().sum::<i64>(), r.wall_ns);
                        prop_assert!(parts.iter().all(|p| *p >= 0), "{:?}", r);
                        prop_assert!((0..=r.idle_ns).contains(&r.overhead_ns), "{:?}", r);
                    }
                    for all in rows.iter().filter(|r| r.step.is_none()) {
                        let steps = rows.iter().filter(|r| r.device_id == all.device_id && r.step.is_some());
                        prop_assert_eq!(steps.map(|r| r.wall_ns).sum::<i64>(), all.wall_ns);
                    }
                }
            }
        }
    }
}
