//! Drawn timelines, and the rows of each device table for them. One column is 1 ns unless a test states another scale.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::breakdown::breakdown;
use crate::lost_launches::LostLaunches;
use drawn::Drawn;
use model::RankData;
use model::scope::Scope;
use model::{CopyRate, KernelUse, Kind};
use regex::Regex;
use trace::rank::Launches;

static EVERYTHING: Scope = Scope { time: None, steps: None };
static NOTHING: LazyLock<IntervalSet> = LazyLock::new(IntervalSet::new);

/// All device tables of a rank, without a selection.
pub(super) fn tables(data: &RankData) -> Tables {
    let parts = breakdown(data, &LostLaunches::default(), &EVERYTHING).parts;
    let launches = Launches::collect(&data.events);
    device_tables(&view(data, &launches, &parts))
}

fn view<'a>(data: &'a RankData, launches: &'a Launches, parts: &'a [(Activity, Parts)]) -> View<'a> {
    View {
        data,
        keep: &|_| true,
        scope: &EVERYTHING,
        launches,
        sequences_of: None,
        unknown: &NOTHING,
        parts,
        chosen: parts,
    }
}

/// Multiplies all times by `scale`, so that one column is `scale` ns.
fn stretched(mut data: RankData, scale: i64) -> RankData {
    for t in data.events.ts_ns.iter_mut().chain(&mut data.events.dur_ns) {
        *t *= scale;
    }
    data
}

#[test]
fn launches_are_joined_with_their_kernels() {
    let data = Drawn::rank(3)
        .launches(1, "##..####...##....")
        .device(Kind::Kernel, "gemm", (0, 7), 1, "......###....##..")
        .device(Kind::Kernel, "relu", (0, 7), 3, "................#")
        .device(Kind::Kernel, "orphan", (0, 7), 90, "#................")
        .data();
    let rows = tables(&stretched(data, 30_000)).launch_stats;
    let found: Vec<_> = rows.iter().map(|r| (r.name.as_deref(), r.launches, r.delay_total_ns / 30_000)).collect();
    assert_eq!(found, [(None, 3, 4 + 5 + 3), (Some("gemm"), 2, 9), (Some("relu"), 1, 3)]);
    let all = &rows[0];
    assert_eq!((all.rank, all.device_id), (3, Some(0)));
    assert_eq!((all.cpu_total_ns, all.cpu_max_ns, all.gpu_max_ns), (240_000, 120_000, 90_000));
    assert_eq!((all.delay_p50_ns, all.delay_p95_ns, all.delay_max_ns), (Some(120_000), Some(150_000), Some(150_000)));
    // 60, 120 and 60 µs in calls; 90 against 60, 60 against 120 and 30 against 60 µs of work; delays of 120, 150 and 90
    // µs.
    assert_eq!((all.runtime_outliers, all.short_kernels, all.delay_outliers), (3, 2, 2));
}

/// One call launches a graph of three kernels, each far shorter than the call.
#[test]
fn a_call_that_launches_a_graph_is_one_call() {
    let data = Drawn::rank(0)
        .launches(1, "########........")
        .device(Kind::Kernel, "a", (0, 7), 1, "........#.......")
        .device(Kind::Kernel, "b", (0, 7), 1, "..........##....")
        .device(Kind::Kernel, "a", (0, 7), 1, ".............#..")
        .data();
    let tables = tables(&stretched(data, 10_000));
    let rows = &tables.launch_stats;
    let found: Vec<_> = rows
        .iter()
        .map(|r| (r.name.as_deref(), r.launches, r.cpu_total_ns, r.runtime_outliers, r.short_kernels))
        .collect();
    assert_eq!(found, [(None, 3, 80_000, 1, 0), (Some("a"), 2, 80_000, 1, 0), (Some("b"), 1, 0, 0, 0)]);
    assert!(rows[0].cpu_mean_ns == 80_000.0 && rows[2].cpu_mean_ns == 0.0 && rows[0].gpu_total_ns == 40_000);
    // The first kernel starts when the call ends, and the others wait for it.
    let delays = |row: &trace::LaunchStatsRow| (row.calls, row.delay_total_ns, row.delay_outliers, row.delay_max_ns);
    assert_eq!(rows.iter().map(delays).collect::<Vec<_>>(), [(1, 0, 0, Some(0)), (1, 0, 0, Some(0)), (0, 0, 0, None)]);
}

#[test]
fn a_driver_call_inside_a_runtime_call_is_not_a_second_launch() {
    let data = Drawn::rank(0)
        .launches(1, "####....")
        .host(Kind::Driver, "cuLaunchKernel", 1, ".##.....")
        .device(Kind::Kernel, "gemm", (0, 7), 1, ".....###")
        .data();
    let mut data = data;
    data.events.correlation[1] = 1;
    let rows = tables(&data).launch_stats;
    assert_eq!((rows[0].launches, rows[0].cpu_total_ns, rows[0].delay_total_ns), (1, 4, 1));
}

#[test]
fn the_queue_length_counts_waiting_launches() {
    // Lengths: 1 2 1 2 1 0. The last kernel seems to begin before its launch, so it does not wait.
    let data =
        Drawn::rank(0).launches(1, "#.#...#......#").device(Kind::Kernel, "gemm", (0, 7), 1, "....##.##.##.#").data();
    let mut data = data;
    let last = data.events.len() - 1;
    data.events.ts_ns[last] = 12;
    let rows = tables(&data).queue_length;
    let r = &rows[0];
    assert_eq!((r.device_id, r.stream_id, r.launches, r.before_launch, r.points), (Some(0), Some(7), 4, 1, 8));
    assert_eq!((r.min_length, r.max_length, r.p50_length), (0, 2, 1.0));
    assert_eq!(r.mean_length, 8.0 / 8.0);
    // From 0 to 13, one launch waits for 2 + 2 + 3, and two launches wait for 2 + 1.
    assert!((r.mean_over_time_length.unwrap() - 13.0 / 13.0).abs() < 1e-12, "{r:?}");
    assert_eq!((r.full_ns, r.full_pct), (0, 0.0));
}

#[test]
fn the_time_with_a_full_queue_is_counted() {
    // Launches are at 0, 10, 20, …; the kernels begin at 50_000, 50_010, ….
    let mut data = Drawn::rank(0).launches(1, "#").device(Kind::Kernel, "gemm", (0, 7), 1, "#").data();
    let (host, device) = (data.events.clone(), data.clone());
    drop((host, device));
    let n = 1024_i64;
    let events = &mut data.events;
    for i in 1..n {
        for template in [0, 1] {
            events.kind.push(events.kind[template]);
            events.name.push(events.name[template]);
            events.ts_ns.push(if template == 0 { 10 * i } else { 50_000 + 10 * i });
            events.dur_ns.push(1);
            events.id.push(2 * i + template as i64);
            events.step.push(0);
            events.thread.push(events.thread[template]);
            events.device.push(events.device[template]);
            events.stream.push(events.stream[template]);
            events.correlation.push(1 + i);
            events.external.push(model::NONE);
            events.parent.push(model::NO_PARENT);
            events.is_comm.push(false);
            events.bytes.push(model::NONE);
            events.flops.push(model::NONE);
        }
    }
    events.ts_ns[1] = 50_000;
    model::sort_rows::sort_rows(events);
    let rows = tables(&data).queue_length;
    assert_eq!((rows[0].max_length, rows[0].full_ns), (1024, 50_000 - 10 * 1023));
    assert!((rows[0].full_pct - 100.0 * 39_770.0 / 60_231.0).abs() < 1e-9, "{:?}", rows[0]);
}

#[test]
fn bandwidths_add_up_while_copies_overlap() {
    let mut data = Drawn::rank(0)
        .device(Kind::GpuMemcpy, "Memcpy HtoD (Pageable -> Device)", (0, 7), 1, "####..####")
        .device(Kind::GpuMemcpy, "Memcpy HtoD (Pinned -> Device)", (0, 8), 9, "..######..")
        .device(Kind::GpuMemset, "Memset (Device)", (0, 8), 20, ".........#")
        .data();
    // The first copy has only bytes, the third only a rate. The memset has neither.
    let row = |ts: i64, events: &model::Events| events.ts_ns.iter().position(|t| *t == ts).unwrap();
    let (first, second, third) = (row(0, &data.events), row(2, &data.events), row(6, &data.events));
    data.events.bytes[first] = 16;
    data.events.bytes[second] = 12;
    data.copy_rates = vec![CopyRate { id: data.events.id[third], bandwidth_gbs: 3.0 }];
    let rows = tables(&data).memcpy_bandwidth;
    assert_eq!(rows.iter().map(|r| (&*r.name, r.copies)).collect::<Vec<_>>(), [("Memcpy HtoD", 3), ("Memset", 1)]);
    let copies = &rows[0];
    assert_eq!((copies.total_ns, copies.bytes, copies.mean_gbs), (14, Some(28), None));
    // 4, 4 + 2, 2, 2 + 3, 3
    assert_eq!((copies.points, copies.point_mean_gbs, copies.point_max_gbs), (5, Some(4.0), Some(6.0)));
    assert_eq!((rows[1].points, rows[1].bytes, rows[1].point_mean_gbs, rows[1].mean_gbs), (0, None, None, None));
}

#[test]
fn each_combination_of_types_has_its_own_row() {
    let data = Drawn::rank(0)
        .device(Kind::Kernel, "gemm", (0, 1), 1, "######......")
        .device(Kind::Kernel, "ncclDevKernel", (0, 2), 9, "...######...")
        .device(Kind::GpuMemcpy, "Memcpy DtoD", (0, 3), 20, ".....#..###.")
        .data();
    let rows = tables(&data).kernel_breakdown;
    let found: Vec<_> = rows.iter().map(|r| (&*r.running, r.total_ns)).collect();
    assert_eq!(
        found,
        [
            ("compute", 3),
            ("communication", 2),
            ("memory", 2),
            ("compute+communication", 2),
            ("communication+memory", 1),
            ("compute+communication+memory", 1),
        ]
    );
    assert!((rows.iter().map(|r| r.busy_pct).sum::<f64>() - 100.0).abs() < 1e-9);
}

#[test]
fn sm_efficiency_follows_the_blocks_of_the_kernels() {
    let mut data = Drawn::rank(0)
        .steps("########........")
        .launches(1, "#.....#.........")
        .device(Kind::Kernel, "half", (0, 1), 1, "########........")
        .device(Kind::Kernel, "full", (0, 2), 2, "......######....")
        .data();
    data.devices = vec![trace::DeviceRow { device_id: 0, sm_count: Some(10), ..Default::default() }];
    let id = |name: &str| {
        let named = |row: &usize| &*data.names[data.events.name[*row] as usize] == name;
        data.events.id[(0..data.events.len()).find(named).unwrap()]
    };
    let mut kernels = vec![
        KernelUse { grid: [5, 1, 1], occupancy_pct: Some(20.0), ..KernelUse::unknown(id("half")) },
        KernelUse { grid: [400, 1, 1], occupancy_pct: Some(80.0), ..KernelUse::unknown(id("full")) },
    ];
    kernels.sort_by_key(|kernel| kernel.id);
    data.kernel_use = kernels;
    let rows = tables(&data).gpu_utilization;
    // The window of the step on the device ends with the work that was launched in the step.
    assert_eq!(
        rows.iter().map(|r| (r.step, r.window_ns, r.kernel_ns)).collect::<Vec<_>>(),
        [(None, 12, 12), (Some(1), 12, 12)]
    );
    let close = |found: Option<f64>, expected: f64| assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}");
    close(rows[0].sm_efficiency_pct, 100.0 * (6.0 * 0.5 + 6.0) / 12.0);
    close(rows[0].occupancy_pct, (8.0 * 20.0 + 6.0 * 80.0) / 14.0);
    close(rows[0].occupancy_known_pct, 100.0);

    data.kernel_use.retain(|kernel| kernel.grid[0] == 5);
    data.kernel_use[0].grid = [0; 3];
    let rows = tables(&data).gpu_utilization;
    assert_eq!((rows[0].sm_efficiency_pct, rows[0].sm_known_pct), (None, Some(0.0)));
    close(rows[0].occupancy_known_pct, 100.0 * 8.0 / 14.0);
    assert_eq!(rows[0].occupancy_pct, None, "too few kernels have one");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Invariant (numbers): Kernels of unknown grid do not lower the SM efficiency, which is null where too many are unknown.
    #[test]
    fn unknown_grids_are_not_idle_sms(
        kernels in prop::collection::vec((1..30_usize, 1..12_u32, prop::bool::weighted(0.05)), 1..40),
    ) {
        let line: String = kernels.iter().map(|(length, _, _)| "#".repeat(*length) + ".").collect();
        let mut data = Drawn::rank(0)
            .steps(&"#".repeat(line.len()))
            .launches(1, "#")
            .device(Kind::Kernel, "kernel", (0, 1), 1, &line)
            .data();
        data.devices = vec![trace::DeviceRow { device_id: 0, sm_count: Some(10), ..Default::default() }];
        let events = &data.events;
        let ids = (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel).map(|row| events.id[row]);
        let uses: Vec<_> = ids.zip(&kernels).map(|(id, k)| (KernelUse { grid: [k.1, 1, 1], ..KernelUse::unknown(id) }, k.2)).collect();
        let with = |uses: Vec<KernelUse>| {
            let mut data = data.clone();
            data.kernel_use = uses;
            data.kernel_use.sort_by_key(|used| used.id);
            tables(&data).gpu_utilization.remove(0)
        };
        let truth = with(uses.iter().map(|(used, _)| *used).collect());
        let found = with(uses.iter().filter(|(_, unknown)| !unknown).map(|(used, _)| *used).collect());
        let known_pct = found.sm_known_pct.unwrap();
        prop_assert_eq!(found.sm_efficiency_pct.is_some(), known_pct >= 90.0);
        if let (Some(found), Some(truth)) = (found.sm_efficiency_pct, truth.sm_efficiency_pct) {
            prop_assert!((found - truth).abs() <= 100.0 - known_pct + 1e-9);
        }
    }
}

#[test]
fn sequences_that_repeat_are_counted() {
    let data = Drawn::rank(0)
        .host(Kind::CpuOp, "linear", 1, "#####..#####..#####")
        .host(Kind::CpuOp, "addmm", 1, ".####...####.......")
        .launches(1, "..#.#.#..#.#.#.#.#.")
        .device(Kind::Kernel, "a", (0, 1), 1, "...#...............")
        .data();
    assert_eq!(tables(&data).kernel_sequences, []);

    // linear launches a, b, c twice, and a, b once. The launch of d is in no operator.
    let data = Drawn::rank(0)
        .host(Kind::CpuOp, "linear", 1, "#######..#######..#####")
        .host(Kind::CpuOp, "addmm", 1, ".######...######.......")
        .launches(1, "..#.#.#.#..#.#.#..#.#..")
        .device(Kind::Kernel, "a", (0, 1), 1, "...#...................")
        .device(Kind::Kernel, "b", (0, 1), 2, ".....#.................")
        .device(Kind::Kernel, "c", (0, 1), 3, ".......#...............")
        .device(Kind::Kernel, "d", (0, 1), 4, ".........#.............")
        .device(Kind::Kernel, "a", (0, 1), 5, "............#..........")
        .device(Kind::Kernel, "b", (0, 1), 6, "..............#........")
        .device(Kind::Kernel, "c", (0, 1), 7, "................##.....")
        .device(Kind::Kernel, "a", (0, 1), 8, "...................#...")
        .device(Kind::Kernel, "b", (0, 1), 9, ".....................#.")
        .data();
    let rows = tables(&data).kernel_sequences;
    assert_eq!(rows.len(), 1);
    let r = &rows[0];
    assert_eq!((&*r.operator, &*r.pattern, r.kernels), ("linear", "linear|a|b|c", 3));
    assert_eq!((r.calls, r.gpu_total_ns, r.cpu_total_ns), (2, 7, 14));

    // With the name of the inner operator, its 6 and 6 ns count instead of the outer operator's 7 and 7.
    let launches = Launches::collect(&data.events);
    let parts = breakdown(&data, &LostLaunches::default(), &EVERYTHING).parts;
    let name = Regex::new("^addmm$").unwrap();
    let rows = device_tables(&View { sequences_of: Some(&name), ..view(&data, &launches, &parts) }).kernel_sequences;
    let found: Vec<_> = rows.iter().map(|r| (&*r.pattern, r.calls, r.cpu_total_ns)).collect();
    assert_eq!(found, [("addmm|a|b|c", 2, 12)]);
}

#[test]
fn each_stall_has_its_operator_and_annotation() {
    let data = Drawn::rank(0)
        .steps("#################...")
        .host(Kind::UserAnnotation, "ProfilerStep#1", 1, "####################")
        .host(Kind::UserAnnotation, "loss", 1, ".################...")
        .host(Kind::CpuOp, "item", 1, "..##########........")
        .host(Kind::CpuOp, "local_scalar", 1, "...#########........")
        .host(Kind::Runtime, "cudaStreamSynchronize", 1, "....######..........")
        .host(Kind::Driver, "cuStreamSynchronize", 1, "....#####...........")
        .host(Kind::Runtime, "cudaDeviceSynchronize", 1, ".................##.")
        .host(Kind::Runtime, "cudaMemcpyAsync", 1, "............##......")
        .device(Kind::Kernel, "gemm", (0, 1), 1, "######..............")
        .data();
    let rows = tables(&data).sync_stalls;
    assert_eq!(rows.len(), 2, "{rows:?}");
    let stream = &rows[0];
    assert_eq!((&*stream.api_call, stream.operator.as_deref()), ("cudaStreamSynchronize", Some("local_scalar")));
    assert_eq!((stream.outer_operator.as_deref(), stream.annotation.as_deref()), (Some("item"), Some("loss")));
    assert_eq!((stream.calls, stream.total_ns, stream.max_ns, stream.device_busy_ns), (1, 6, 6, 2));
    assert_eq!((stream.in_steps_ns, rows[1].in_steps_ns), (6, 0));
    assert_eq!((rows[1].operator.as_deref(), rows[1].annotation.as_deref()), (None, None));
}

#[test]
fn the_time_in_data_loaders_is_input() {
    let data = Drawn::rank(0)
        .steps("##########..########")
        .host(Kind::UserAnnotation, "enumerate(DataLoader)#It.__next__", 1, "####.........##.....")
        .host(Kind::CpuOp, "input", 2, "...##...............")
        .device(Kind::Kernel, "gemm", (0, 1), 1, ".##.................")
        .data();
    let rows = tables(&data).data_loading;
    let found: Vec<_> = rows.iter().map(|r| (r.step, r.calls, r.total_ns, r.wall_ns, r.device_idle_ns)).collect();
    assert_eq!(found, [(None, 3, 7, 20, Some(5)), (Some(1), 2, 5, 10, Some(3)), (Some(2), 1, 2, 8, Some(2))]);
    assert_eq!(rows[1].wall_pct, 50.0);
    assert_eq!(tables(&Drawn::rank(0).host(Kind::CpuOp, "gemm", 1, "##").data()), Tables::default());
}

fn line() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::bool::weighted(0.4), 60)
        .prop_map(|busy| busy.into_iter().map(|b| if b { '#' } else { '.' }).collect())
}

proptest! {
    /// For any timestamps, no queue length is negative, all launched work starts, the types sum to the busy time, and
    /// shares are between 0 and 1.
    #[test]
    fn the_tables_are_consistent(launches in line(), a in line(), b in line(), c in line(), steps in line()) {
        let data = Drawn::rank(0)
            .steps(&steps)
            .launches(1, &launches)
            .device(Kind::Kernel, "gemm", (0, 7), 1, &a)
            .device(Kind::Kernel, "nccl", (0, 8), 5, &b)
            .device(Kind::GpuMemcpy, "Memcpy DtoD", (0, 7), 12, &c)
            .data();
        let parts = breakdown(&data, &LostLaunches::default(), &EVERYTHING).parts;
        let tables = tables(&data);
        for q in &tables.queue_length {
            prop_assert!(q.min_length == 0 && q.points == 2 * q.launches && q.max_length <= q.launches);
            prop_assert!(q.before_launch <= q.launches);
        }
        let busy: i64 = parts.iter().map(|(_, p)| p.busy.set().len_ns()).sum();
        prop_assert_eq!(tables.kernel_breakdown.iter().map(|r| r.total_ns).sum::<i64>(), busy);
        for u in &tables.gpu_utilization {
            prop_assert!((0.0..=100.0).contains(&u.utilization_pct) && u.sm_efficiency_pct.is_none());
        }
        let sum = |of_all: bool, number: fn(&trace::LaunchStatsRow) -> i64| {
            tables.launch_stats.iter().filter(|r| r.name.is_none() == of_all).map(number).sum::<i64>()
        };
        prop_assert_eq!(sum(true, |r| r.launches), sum(false, |r| r.launches));
        prop_assert_eq!(sum(true, |r| r.calls), sum(false, |r| r.calls));
        prop_assert_eq!(sum(true, |r| r.launches), tables.queue_length.iter().map(|q| q.launches).sum::<i64>());
    }
}
