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
//! The profiler's own work has no part. Its time outside of K, C and M counts as idle, and `overhead_ns` states it. `unknown_ns` states
//! the idle time in which work whose rows were lost may have run.

mod activity;
mod callers;
mod exposed;

use trace::{ExposedCommRow, HtaTemporalRow, StepBreakdownRow};

use model::RankData;
use model::intervals::{Interval, IntervalSet};
use model::scope::Scope;
use model::steps::{DeviceEnds, StepWindow, device_windows, host_windows};
use model::windows::Windows;

use crate::lost_launches::LostLaunches;

use self::activity::Split;
pub(crate) use self::activity::{Activity, Parts, overhead};
use self::exposed::{Calls, exposed_communication};

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
pub(crate) fn breakdown(data: &RankData, lost: &LostLaunches, scope: &Scope) -> Breakdown {
    let rank = data.outline.info.rank;
    let host = host_windows(&data.outline.steps);
    let ends = DeviceEnds::of(&data.events);
    let recorder = Windows::of(&data.outline.steps);
    let calls = Calls::of(data);
    let mut found = Breakdown { in_steps: scope.steps.as_ref().map(|_| Vec::new()), ..Breakdown::default() };
    for mut activity in Activity::of(data, lost) {
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
        found.exposed.extend(exposed_communication(&calls, &parts, (&rows, &windows), within.as_ref()));
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
    use model::Kind;

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
        let rows = breakdown(&data, &LostLaunches::default(), &Scope::default()).rows;
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
        let split: Vec<_> = breakdown(&data, &LostLaunches::default(), &Scope::default())
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
        let rows = breakdown(&data, &LostLaunches::default(), &Scope::default()).rows;
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
        let Breakdown { rows, parts, .. } = breakdown(&data, &LostLaunches::default(), &Scope::default());
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
            let Breakdown { rows, parts, .. } = breakdown(data, &LostLaunches::default(), &Scope::default());
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
        let rows = breakdown(&data, &LostLaunches::default(), &Scope::default()).rows;
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
        let rows = breakdown(&data, &LostLaunches::default(), &Scope { time: Some(scope), ..Scope::default() }).rows;
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
                    let rows = breakdown(data, &LostLaunches::default(), scope).rows;
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
