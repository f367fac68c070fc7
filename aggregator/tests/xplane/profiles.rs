//! Profiles of GPUs and TPUs: what becomes of their lines and stats.

use model::source::Source;
use model::{Kind, NONE};
use trace::OmissionRow;

use crate::writer::{Event, Plane, Value, loaded, omitted, opened, recorded, rows, write};

const START_NS: i64 = 1_700_000_000_000_000_000;

/// A GPU with a kernel of each kind of communication, copies, and lines that repeat them.
pub(crate) fn gpu(number: i64) -> Plane {
    let details = Value::Ref(" regs:32 static_shared:16 dynamic_shared:1024 grid:4,2,1 block:256,1,1 occ_pct:62.5");
    let kernel = |correlation: u64| [("correlation_id", Value::Unsigned(correlation)), ("kernel_details", details)];
    let copy = [("memcpy_details", Value::Text("kind_src:pageable kind_dst:device size:4096 dest:0 async:1"))];
    let fill = [("Memset_details", Value::Text("kind:device size:64 async:1"))];
    let of_hlo = [("hlo_op", Value::Ref("all-to-all.1")), ("hlo_module", Value::Ref("jit_step"))];
    let first = 10 * number as u64;
    Plane::new(&format!("/device:GPU:{number}"))
        .stats(&[("device_vendor", Value::Text("Nvidia")), ("memory_size", Value::Signed(80 << 30))])
        .stats(&[("core_count", Value::Unsigned(132)), ("memory_bandwidth", Value::Unsigned(3_350_000_000_000))])
        .line(
            16 + number,
            &format!("Stream #{}(Kernel)", 16 + number),
            1_000,
            &[
                Event("gemm", 0, 2_000_500, &kernel(first + 1)),
                Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 2_000_500, 999_500, &kernel(first + 2)),
                Event("custom_exchange", 4_000_000, 500_000, &of_hlo),
            ],
        )
        .line(
            3,
            "Stream #3(MemcpyH2D,Memset)",
            1_000,
            &[
                Event("MemcpyH2D", 100_000, 50_000, &copy),
                Event("fill", 200_000, 10_000, &fill),
                Event("Memset", 300_000, 10_000, &[]),
            ],
        )
        .line(100, "XLA Modules", 1_000, &[Event("jit_step(7)", 0, 4_500_000, &[])])
        .line(101, "TensorFlow Ops", 1_000, &[Event("MatMul", 0, 2_000_000, &[]), Event("x", 1, 2, &[])])
}

/// Threads that launch the work of GPUs 0 and 1: one for each, one for both, and one of Python.
pub(crate) fn host() -> Plane {
    let launch = |correlation: u64| [("correlation_id", Value::Unsigned(correlation))];
    let step = |number: i64| [("step_num", Value::Signed(number)), ("_r", Value::Signed(1))];
    Plane::new("/host:CPU")
        .line(
            71,
            "worker/71",
            900,
            &[Event("PjRt::Execute", 0, 300_000, &[]), Event("cuLaunchKernel", 100_000, 20_000, &launch(1))],
        )
        .line(72, "worker/72", 900, &[Event("cuLaunchKernel", 100_000, 20_000, &launch(11))])
        .line(
            73,
            "both/73",
            900,
            &[
                Event("cudaLaunchKernel", 200_000, 20_000, &launch(2)),
                Event("cudaLaunchKernel", 300_000, 20_000, &launch(12)),
                Event("idle", 400_000, 10_000, &[]),
            ],
        )
        .line(
            74,
            "python",
            0,
            &[
                Event("train", 0, 1_500_000, &step(3)),
                Event("$loop.py:7 step", 100_000, 1_000_000, &[]),
                Event("train", 1_500_000, 4_000_000, &step(4)),
            ],
        )
}

#[test]
fn streams_of_a_gpu_are_kernels_copies_and_fills() {
    let data = loaded(&[gpu(0), host(), recorded(START_NS, START_NS + 1_000_000)]);
    let at = |ns: i64| START_NS + ns;
    let device: Vec<_> = rows(&data).into_iter().filter(|(kind, ..)| kind.is_device_work()).collect();
    let expected = [
        (Kind::Kernel, "gemm", at(1_000), 2_000),
        (Kind::GpuMemcpy, "Memcpy HtoD", at(1_100), 50),
        (Kind::GpuMemset, "fill", at(1_200), 10),
        (Kind::GpuMemset, "Memset (Device)", at(1_300), 10),
        (Kind::Kernel, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at(3_000), 1_000),
        (Kind::Kernel, "custom_exchange", at(5_000), 500),
    ];
    assert_eq!(device, expected);
    let events = &data.events;
    let of = |wanted: &str| (0..events.len()).find(|row| &*data.names[events.name[*row] as usize] == wanted).unwrap();
    assert_eq!(
        (events.bytes[of("Memcpy HtoD")], events.bytes[of("fill")], events.bytes[of("Memset (Device)")]),
        (4096, 64, NONE)
    );
    assert_eq!((events.stream[of("gemm")], events.stream[of("Memset (Device)")]), (16, 3));
    let used = data.kernel_use.iter().find(|used| used.id == events.id[of("gemm")]).unwrap();
    assert_eq!((used.blocks(), used.block_threads(), used.registers), (Some(8), Some(256), Some(32)));
    assert_eq!((used.shared_mem_bytes, used.occupancy_pct), (Some(1_040), Some(62.5)));
    let collectives: Vec<(&str, Option<i64>)> =
        data.outline.collectives.iter().map(|c| (c.op.as_str(), c.start_ns())).collect();
    assert_eq!(collectives, [("allreduce", Some(at(3_000))), ("alltoall", Some(at(5_000)))]);
    assert!(events.is_comm[of("custom_exchange")], "its HLO operation is a collective");
    let device = &data.devices[0];
    assert_eq!(
        (device.sm_count, device.memory_bytes, device.peak_bytes_per_s),
        (Some(132), Some(80 << 30), Some(3.35e12))
    );
    let derived = data.omissions.iter().find(|omission| &*omission.what == "events of other lines").unwrap();
    assert_eq!((derived.amount, &*derived.kind), (Some(2), "left_out"));
    assert!(derived.why.contains("TensorFlow Ops 2"), "{}", derived.why);
    assert_eq!(data.outline.info.clock_domain, format!("h/xplane/{START_NS}/utc"));
}

#[test]
fn the_host_of_one_device_is_its_own_and_marks_its_steps() {
    let data = loaded(&[gpu(0), host(), recorded(START_NS, START_NS + 1_000_000)]);
    let kinds = |wanted: Kind| rows(&data).iter().filter(|(kind, ..)| *kind == wanted).count();
    assert_eq!([Kind::Driver, Kind::Runtime, Kind::PythonFunction, Kind::CpuOp].map(kinds), [2, 2, 1, 1]);
    assert_eq!(kinds(Kind::UserAnnotation), 3, "two steps and a range");
    let steps: Vec<(i32, i64)> =
        data.outline.steps.iter().map(|step| (step.step, step.end_ns - step.start_ns)).collect();
    assert_eq!(steps, [(3, 1_500), (4, 4_000)]);
    let gemm = rows(&data).iter().position(|(_, name, ..)| *name == "gemm").unwrap();
    assert_eq!(data.events.step[gemm], 3, "as its launch");
    let parents = (0..data.events.len()).filter(|row| data.events.parent[*row] != model::NO_PARENT);
    assert_eq!(parents.count(), 2, "the launch in the operator, the frame in the step");
}

/// A TPU whose loop holds a collective in two parts, with the line that has it as a whole or without.
fn tpu(number: i64, has_async: bool) -> Plane {
    let groups = "replica_groups={{0,1},{2,3}}";
    let start = format!("%all-reduce-start.3 = f32[8]{{0}} all-reduce-start(f32[8] %x), channel_id=1, {groups}");
    let done = "%all-reduce-done.4 = f32[8]{0} all-reduce-done(f32[8] %all-reduce-start.3)".to_string();
    let gather = "%all-gather.5 = bf16[64]{0} all-gather(bf16[16] %y), replica_groups=[1,4]<=[4]".to_string();
    let plane = Plane::new(&format!("/device:TPU:{number}"))
        .stats(&[("peak_hbm_bw_gigabytes_per_second", Value::Double(1_640.0)), ("core_count", Value::Unsigned(1))])
        .stats(&[("device_type_string", Value::Text("TPU v6 Lite"))])
        .kind("%while.1 = (s32[], f32[8]) while((s32[], f32[8]) %t), condition=%c, body=%b", "while.1", &[])
        .kind("%fusion.2 = f32[8]{0} fusion(f32[8] %x), kind=kLoop", "fusion.2", &[("tf_op", Value::Text("mul"))])
        .line(1, "Steps", 0, &[Event("5", 0, 20_000_000, &[]), Event("6", 20_000_000, 10_000_000, &[])])
        .line(2, "XLA Modules", 0, &[Event("jit_step(9)", 0, 30_000_000, &[])])
        .line(
            3,
            "XLA Ops",
            0,
            &[
                Event(
                    "%while.1 = (s32[], f32[8]) while((s32[], f32[8]) %t), condition=%c, body=%b",
                    0,
                    10_000_000,
                    &[],
                ),
                Event(&start, 1_000_000, 500_000, &[]),
                Event("%fusion.2 = f32[8]{0} fusion(f32[8] %x), kind=kLoop", 1_500_000, 4_500_000, &[]),
                Event(&done, 6_000_000, 2_000_000 + 1_000 * number, &[]),
                Event("%copy-done.7 = f32[8] copy-done((f32[8], u32[]) %copy-start.6)", 8_500_000, 500_000, &[]),
                Event(&gather, 21_000_000, 2_000_000, &[]),
            ],
        )
        .line(4, "Framework Ops", 0, &[Event("mul", 1_500_000, 1, &[])]);
    if !has_async {
        return plane;
    }
    plane.line(
        5,
        "Async XLA Ops",
        0,
        &[
            Event(&start, 1_000_000, 7_000_000, &[]),
            Event("%copy-start.6 = (f32[8], f32[8], u32[]) copy-start(f32[8] %z)", 2_000_000, 7_000_000, &[]),
        ],
    )
}

pub(crate) fn tpus(has_async: bool) -> Vec<Plane> {
    let mut planes: Vec<Plane> = (0..4).map(|number| tpu(number, has_async)).collect();
    planes.push(recorded(START_NS, START_NS + 1_000_000));
    planes
}

#[test]
fn operations_of_a_tpu_are_work_and_a_loop_around_them_is_none() {
    let data = loaded(&tpus(true));
    let found: Vec<(Kind, &str, i64)> =
        rows(&data).into_iter().map(|(kind, name, _, dur_ns)| (kind, name, dur_ns)).collect();
    let expected = [
        (Kind::GpuUserAnnotation, "jit_step(9)", 30_000),
        (Kind::GpuUserAnnotation, "Step 5", 20_000),
        (Kind::GpuUserAnnotation, "while.1", 10_000),
        (Kind::Kernel, "all-reduce-start.3", 7_000),
        (Kind::Kernel, "all-reduce-start.3", 500),
        (Kind::Kernel, "fusion.2", 4_500),
        (Kind::GpuMemcpy, "copy-start.6", 7_000),
        (Kind::Kernel, "all-reduce-done.4", 2_000),
        (Kind::GpuMemcpy, "copy-done.7", 500),
        (Kind::GpuUserAnnotation, "Step 6", 10_000),
        (Kind::Kernel, "all-gather.5", 2_000),
    ];
    assert_eq!(found, expected);
    let steps: Vec<i32> = data.outline.steps.iter().map(|step| step.step).collect();
    assert_eq!(steps, [5, 6]);
    let collectives = &data.outline.collectives;
    let found: Vec<_> = collectives.iter().map(|c| (c.op.as_str(), c.bytes, c.comm_size, c.step())).collect();
    assert_eq!(found, [("allreduce", Some(32), Some(2), Some(5)), ("allgather", Some(128), Some(4), Some(6))]);
    let lengths: Vec<i64> = collectives.iter().map(|c| c.end_ns().unwrap() - c.start_ns().unwrap()).collect();
    assert_eq!(lengths, [7_000, 2_000]);
    assert_eq!((collectives[1].comm_id, collectives[0].comm_name.as_deref()), (0, Some("ranks 0–1")));
    assert_eq!(data.outline.comms[0].ranks, Some(vec![0, 1]));
    let device = &data.devices[0];
    assert_eq!(
        (device.name.as_deref(), device.sm_count, device.peak_bytes_per_s),
        (Some("TPU v6 Lite"), None, Some(1.64e12))
    );
}

/// Invariant (formats): XPlane: an asynchronous collective counts once.
#[test]
fn a_start_and_its_done_are_one_collective() {
    let whole = loaded(&tpus(true)).outline.collectives;
    let joined = loaded(&tpus(false)).outline.collectives;
    let times = |all: &[model::Collective]| {
        all.iter().map(|c| (c.op.clone(), c.start_ns(), c.end_ns(), c.comm_id, c.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(times(&joined), times(&whole));
}

#[test]
fn whole_picoseconds_are_kept_until_the_end() {
    // Three events that touch at fractions of a ns: rounded alone, they would overlap or leave gaps.
    let events = [Event("a", 1_400, 1_300, &[]), Event("b", 2_700, 1_300, &[]), Event("c", 4_000, 999, &[])];
    let plane = Plane::new("/device:GPU:0").line(1, "Stream #1(Kernel)", 0, &events);
    let data = loaded(&[plane, recorded(START_NS, START_NS)]);
    let found: Vec<(i64, i64)> = rows(&data).iter().map(|(_, _, ts_ns, dur_ns)| (ts_ns - START_NS, *dur_ns)).collect();
    assert_eq!(found, [(1, 1), (2, 2), (4, 0)]);
}

#[test]
fn times_may_count_from_1970_or_from_an_unknown_start() {
    let plane = |timestamp_ns: i64| {
        Plane::new("/device:GPU:0").line(1, "Stream #1(Kernel)", timestamp_ns, &[Event("a", 5_000, 1_000, &[])])
    };
    let mixed = loaded(&[plane(START_NS + 7), recorded(START_NS, START_NS)]);
    assert_eq!(mixed.events.ts_ns, [START_NS + 12]);
    assert_eq!(omitted(&mixed), [("note", "lines", Some(1))]);
    let absolute = loaded(&[plane(START_NS + 7)]);
    assert_eq!(absolute.events.ts_ns, [START_NS + 12]);
    assert!(absolute.outline.info.clock_domain.ends_with("/utc") && absolute.omissions.is_empty());
    let unknown = loaded(&[plane(7)]);
    assert_eq!((unknown.events.ts_ns[0], omitted(&unknown)), (12, vec![("note", "clock", Some(1))]));
    assert!(!unknown.outline.info.clock_domain.ends_with("/utc"));
}

/// Invariant (formats): XPlane: what is not read is counted.
#[test]
fn what_is_not_read_is_counted() {
    let events = [Event("gemm", 0, 1_000, &[])];
    let plane = Plane::new("/device:GPU:0").line(1, "Stream #1(Kernel)", 0, &events).aggregated("gemm", 12);
    let others = [
        Plane::new("/host:metadata").line(1, "x", 0, &[Event("hlo", 0, 1, &[])]),
        Plane::new("/device:CUSTOM:0").line(1, "x", 0, &[Event("a", 0, 1, &[]), Event("b", 0, 1, &[])]),
    ];
    let [metadata, custom] = others;
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[write(&directory.path().join("h.xplane.pb"), "h", &[plane, metadata, custom])]);
    let problems = source.problems();
    let other: &OmissionRow = problems.iter().find(|problem| &*problem.what == "events of other planes").unwrap();
    assert_eq!(other.amount, Some(3));
    assert!(other.why.contains("/device:CUSTOM:0 2"), "{}", other.why);
    let data = source.load(0).unwrap();
    assert!(omitted(&data).contains(&("left_out", "events", Some(1))), "{:?}", omitted(&data));
}

#[test]
fn steps_are_those_of_groups_where_nothing_else_marks_them() {
    let group = |number: i64| [("group_id", Value::Signed(number))];
    let events = [
        Event("a", 0, 5_000_000, &group(1)),
        Event("b", 4_000_000, 2_000_000, &group(2)),
        Event("c", 6_000_000, 1_000_000, &group(2)),
    ];
    let data =
        loaded(&[Plane::new("/device:GPU:0").line(1, "Stream #1(Kernel)", 0, &events), recorded(START_NS, START_NS)]);
    let steps: Vec<(i32, i64, i64)> =
        data.outline.steps.iter().map(|step| (step.step, step.start_ns - START_NS, step.end_ns - START_NS)).collect();
    assert_eq!(steps, [(1, 0, 5_000), (2, 5_000, 7_000)]);
}
