//! Critical paths of drawn ranks. One column is 1 ns unless a test states another scale.

use proptest::prelude::*;
use trace::CriticalPathRow;

use super::*;
use drawn::Drawn;
use model::Kind;

fn paths(data: &RankData) -> Vec<CriticalPathRow> {
    critical_path(data, &Launches::collect(&data.events), &Scope::default())
}

fn one(data: &RankData) -> CriticalPathRow {
    let rows = paths(data);
    assert_eq!(rows.len(), 1);
    rows.into_iter().next().unwrap()
}

/// The parts of a path that are not zero.
fn parts(row: &CriticalPathRow) -> Vec<(&'static str, i64)> {
    let all = [
        ("cpu", row.cpu_ns),
        ("gap", row.host_gap_ns),
        ("loading", row.data_loading_ns),
        ("compute", row.gpu_compute_ns),
        ("memory", row.gpu_memory_ns),
        ("communication", row.communication_ns),
        ("launch", row.launch_ns),
        ("kernel gap", row.kernel_gap_ns),
        ("other", row.other_ns),
    ];
    all.into_iter().filter(|(_, ns)| *ns != 0).collect()
}

/// ```text
/// host     op ####launch#...........................
/// stream                ....#### a ##..#### b ######
/// ```
#[test]
fn a_kernel_waits_for_its_launch_and_then_for_its_stream() {
    let data = Drawn::rank(0)
        .steps("##########......................")
        .host(Kind::CpuOp, "op", 1, "#########.......................")
        .launches(1, "....##.##.......................")
        .device(Kind::Kernel, "a", (0, 7), 1, "........########................")
        .device(Kind::Kernel, "b", (0, 7), 2, "..................##########....")
        .data();
    let row = one(&data);
    assert_eq!((row.step, row.wall_ns), (1, 28));
    // Backwards: b 10, gap 2, a 8, its launch from the start of the call at 4: 4, the operator 4.
    assert_eq!(parts(&row), [("cpu", 4), ("compute", 18), ("launch", 4), ("kernel gap", 2)]);
    assert_eq!((&*row.bound_by, row.device_rows, row.inferred_waits), ("gpu", 2, 0));
    assert_eq!(&*row.longest, "b=10; a=8; op=4");
}

/// The second launch comes after the stream became idle. So the host was late, and the path continues on the host.
#[test]
fn a_late_launch_leads_back_to_the_host() {
    let data = Drawn::rank(0)
        .steps("########################")
        .host(Kind::CpuOp, "op", 1, "################........")
        .launches(1, ".#............#.........")
        .device(Kind::Kernel, "k", (0, 7), 1, "...####.........########")
        .data();
    assert_eq!(parts(&one(&data)), [("cpu", 14), ("compute", 8), ("launch", 2)]);
}

/// A blocking call leads to the device row that ended during the call, with or without a `cuda_sync` row. The time
/// after the call is host time.
#[test]
fn a_blocking_call_leads_to_the_device() {
    let drawn = || {
        Drawn::rank(0)
            .steps("##############################")
            .host(Kind::CpuOp, "op", 1, "#####.........................")
            .launches(1, ".#.#..........................")
            .host(Kind::Runtime, "cudaDeviceSynchronize", 1, "......############............")
            .host(Kind::CpuOp, "item", 1, "....................#####.....")
            .device(Kind::Kernel, "a", (0, 7), 1, "...#####......................")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 9), 2, ".....###########..............")
    };
    let row = one(&drawn().data());
    // From 30 back to 16 the path is on the host. The collective ended at 16. Of this time, 12 lie after the call (5 of
    // them in `item`) and 2 in the call. Then follow the collective back to 5, its launch back to 3, and the host.
    assert_eq!(parts(&row), [("cpu", 17), ("gap", 7), ("communication", 11), ("launch", 2)]);
    assert_eq!(row.inferred_waits, 1);

    let mut with_sync_row =
        drawn().device(Kind::Sync, "Stream Sync", (0, 7), 77, "......##......................").data();
    let call = (0..with_sync_row.events.len())
        .find(|row| with_sync_row.events.kind[*row] == Kind::Runtime && with_sync_row.events.dur_ns[*row] == 12);
    with_sync_row.events.correlation[call.unwrap()] = 77;
    let row = one(&with_sync_row);
    // The call waited only for stream 7, whose kernel ended at 8.
    assert_eq!(parts(&row), [("cpu", 23), ("gap", 7), ("compute", 5), ("launch", 2)]);
    assert_eq!(row.inferred_waits, 0);
}

/// No device row ended during the call, so the call did not wait for a device.
#[test]
fn a_synchronisation_without_device_work_is_host_time() {
    let data = Drawn::rank(0)
        .steps("####################")
        .launches(1, ".#..................")
        .device(Kind::Kernel, "a", (0, 7), 1, "..####..............")
        .host(Kind::Runtime, "cudaStreamSynchronize", 1, "..........####......")
        .data();
    assert_eq!(parts(&one(&data)), [("cpu", 20), ("gap", 15)]);
}

/// A kernel that starts long after it was ready waited for the last work on another stream. One column is 1 µs.
#[test]
fn a_kernel_that_started_late_waited_for_another_stream() {
    let mut data = Drawn::rank(0)
        .steps("##################################################")
        .launches(1, "#.#...............................................")
        .device(Kind::Kernel, "nccl", (0, 9), 1, "..##################################..............")
        .device(Kind::Kernel, "adam", (0, 7), 2, ".....................................#############")
        .data();
    stretch(&mut data, 1_000);
    let row = one(&data);
    assert_eq!(parts(&row), [("compute", 13_000), ("communication", 34_000), ("launch", 2_000), ("kernel gap", 1_000)]);
    assert_eq!(&*row.bound_by, "communication");
}

/// The main thread is idle while autograd's thread runs the backward pass.
#[test]
fn an_idle_thread_waited_for_the_busy_thread() {
    let mut data = Drawn::rank(0)
        .steps("####################")
        .host(Kind::UserAnnotation, "ProfilerStep#1", 1, "####################")
        .host(Kind::CpuOp, "forward", 1, "######..............")
        .host(Kind::CpuOp, "backward", 2, ".......#########....")
        .host(Kind::CpuOp, "optimizer", 1, ".................##.")
        .data();
    stretch(&mut data, 100_000);
    let row = one(&data);
    assert_eq!(parts(&row), [("cpu", 2_000_000), ("gap", 300_000)]);
    // The 300 µs in no operator are the gap, and not the range of the step.
    assert_eq!(&*row.longest, "backward=900000; forward=600000; optimizer=200000");
}

/// On a CPU, a wait for a collective is communication.
#[test]
fn a_host_that_waits_for_a_collective_is_bound_by_communication() {
    let mut data = Drawn::rank(0)
        .steps("####################")
        .host(Kind::CpuOp, "forward", 1, "#####...............")
        .host(Kind::CpuOp, "optimizer", 1, "................####")
        .collectives("....###########.....")
        .data();
    stretch(&mut data, 100_000);
    let row = one(&data);
    assert_eq!(parts(&row), [("cpu", 900_000), ("gap", 100_000), ("communication", 1_100_000)]);
    assert_eq!(&*row.bound_by, "communication");
}

#[test]
fn data_loading_is_a_part_of_its_own() {
    let data = Drawn::rank(0)
        .steps("####################")
        .host(Kind::UserAnnotation, "enumerate(DataLoader)#_SingleProcess.__next__", 1, "############........")
        .host(Kind::CpuOp, "aten::stack", 1, "..####..............")
        .host(Kind::CpuOp, "forward", 1, "............########")
        .data();
    let row = one(&data);
    assert_eq!(parts(&row), [("cpu", 8), ("loading", 12)]);
    assert_eq!(&*row.bound_by, "data_loading");
}

#[test]
fn a_rank_without_rows_or_steps_has_no_path() {
    assert_eq!(paths(&RankData::default()), []);
    assert_eq!(paths(&Drawn::rank(0).host(Kind::CpuOp, "op", 1, "###").data()), []);
}

/// Multiplies all times by `factor`.
fn stretch(data: &mut RankData, factor: i64) {
    let events = &mut data.events;
    events.ts_ns.iter_mut().chain(&mut events.dur_ns).for_each(|t| *t *= factor);
    for step in &mut data.outline.steps {
        (step.start_ns, step.end_ns) = (step.start_ns * factor, step.end_ns * factor);
    }
    for c in &mut data.outline.collectives {
        c.map_times(|t| t * factor);
    }
}

fn line() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::bool::weighted(0.6), 0..60)
        .prop_map(|bits| bits.into_iter().map(|bit| if bit { '#' } else { '.' }).collect())
}

proptest! {
    /// Invariant (numbers): The parts of a rank's critical path sum to the wall time.
    ///
    /// For any recording, every nanosecond of every step is on the path exactly once.
    #[test]
    fn the_parts_of_a_path_sum_to_wall(
        steps in line(), op in line(), other in line(), sync in line(), launches in line(), k in line(), nccl in line(),
        collectives in line(), factor in prop_oneof![Just(1), Just(40_000)], on_device: bool,
    ) {
        let mut drawn = Drawn::rank(0)
            .steps(&steps)
            .host(Kind::CpuOp, "op", 1, &op)
            .host(Kind::CpuOp, "other", 2, &other)
            .collectives(&collectives);
        if on_device {
            drawn = drawn
                .host(Kind::Runtime, "cudaStreamSynchronize", 1, &sync)
                .launches(1, &launches)
                .device(Kind::Kernel, "k", (0, 7), 1, &k)
                .device(Kind::Kernel, "nccl", (0, 9), 3, &nccl);
        }
        let mut data = drawn.data();
        stretch(&mut data, factor);
        for row in paths(&data) {
            let parts = [
                row.cpu_ns, row.data_loading_ns, row.gpu_compute_ns, row.gpu_memory_ns, row.communication_ns, row.launch_ns,
                row.kernel_gap_ns, row.other_ns,
            ];
            prop_assert!(parts.iter().all(|part| *part >= 0), "{:?}", row);
            prop_assert_eq!(parts.iter().sum::<i64>(), row.wall_ns, "{:?}", row);
            prop_assert!((0..=row.cpu_ns).contains(&row.host_gap_ns));
        }
    }
}
