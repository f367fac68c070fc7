//! The CUPTI source with a stand-in for libcupti: a simulated program on a GPU is recorded into a run, which
//! `aggregator analyze` reads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use trace::{ClockSampleRow, CollectiveRow, CounterRow, DeviceRow, EventRow, MemoryRow, Row, Run};

use crate::support::{Finished, analyze, finish, scratch, skipped};

const DRIVER: &str = env!("CARGO_BIN_EXE_cupti-driver");

/// The stand-in's shared library, which cargo builds beside this program.
fn stand_in() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().join("libstand_in_cupti.so");
    assert!(beside.is_file(), "{} is missing", beside.display());
    beside
}

/// Runs `scenario` with this behaviour of the stand-in. Returns the run and the output of the driver.
fn play(name: &str, scenario: &str, behaviour: &str) -> (PathBuf, Finished) {
    let run = scratch(&format!("cupti_{name}"));
    let mut command = Command::new(DRIVER);
    command.arg(&run).arg(scenario).env("RANKSCOPE_CUPTI", stand_in()).env("STAND_IN_CUPTI", behaviour);
    (run, finish(&mut command))
}

/// The value after a word in the output of the driver.
#[track_caller]
fn word<'s>(done: &'s Finished, word: &str) -> &'s str {
    let line = done.stdout.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {word}: {}", done.said()))
}

fn rows<R: Row>(run: &Path) -> Vec<R> {
    let (rows, problems) = Run::open(run).unwrap().rows::<R>(0);
    assert_eq!(problems, []);
    rows
}

fn kind<'e>(events: &'e [EventRow], kind: &str) -> Vec<&'e EventRow> {
    events.iter().filter(|event| &*event.kind == kind && event.open != Some(true)).collect()
}

/// `(recorded, dropped, omitted)` of a source.
fn counted(run: &Path, source: &str) -> (i64, i64, i64) {
    let of = rows::<CounterRow>(run).into_iter().filter(|row| &*row.source == source);
    of.fold((0, 0, 0), |sum, row| (sum.0 + row.recorded, sum.1 + row.dropped, sum.2 + row.omitted))
}

/// Every version of CUPTI whose records differ, with the releases that have them.
const VERSIONS: [u32; 11] = [22, 23, 24, 26, 28, 130_001, 130_101, 130_202, 130_301, 130_401, 130_500];

/// Invariant (recorder): CUPTI 12.4 to 13.5 give the same rows.
#[test]
fn every_version_of_cupti_gives_the_same_rows() {
    for version in VERSIONS {
        let (run, done) = play(&format!("train_{version}"), "train", &format!("version={version}"));
        let done = done.expect_code(0);
        assert!(word(&done, "version").starts_with(&format!("{version} (CUDA 1")), "{}", done.said());
        assert_eq!(word(&done, "own_clock"), "true");
        assert_eq!((word(&done, "failure"), word(&done, "closed")), ("None", "true"));
        check_trained(&run, version);
        // The one kernel that had not ended is counted as lost.
        let said = analyze(&run, &[], 3).stdout;
        assert!(said.contains("1 row lost while recording"), "{said}");
    }
}

/// Checks the rows of the two recorded steps, 2 and 3.
fn check_trained(run: &Path, version: u32) {
    let events = rows::<EventRow>(run);
    let counts: Vec<(&str, usize)> =
        ["kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "cuda_runtime", "cuda_driver", "overhead"]
            .map(|word| (word, kind(&events, word).len()))
            .into();
    // A step: 2 gemms, an all-reduce, a graph of 3; 2 copies; 5 runtime calls, 1 launch by the driver.
    let expected = [("kernel", 12), ("gpu_memcpy", 4), ("gpu_memset", 2), ("cuda_sync", 2), ("cuda_runtime", 10)];
    assert_eq!(counts, [&expected[..], &[("cuda_driver", 2), ("overhead", 2)]].concat());
    check_kernels(&events, version);
    check_links(&events);
    check_collectives(run, &events);
    check_small_tables(run);
    // An annotation beside those of the steps, with its NVTX domain and category.
    let range = kind(&events, "user_annotation").into_iter().find(|event| &*event.name == "ncclAllReduce").unwrap();
    assert!(range.dur_ns >= 100_000 && range.thread_id == Some(55));
    assert_eq!(range.args.as_deref(), Some(r#"{"category":6,"domain":"NCCL"}"#));
    assert_eq!(counted(run, "cupti:kernel"), (12, 0, 0));
    assert_eq!(counted(run, "cupti:unknown_kinds"), (0, 0, 1));
    assert_eq!(counted(run, "cupti:incomplete"), (0, 1, 0));
    let (_, _, inactive) = counted(run, "cupti:inactive");
    assert!(inactive > 20, "the warm-up was launched while nothing was recorded: {inactive}");
}

fn check_kernels(events: &[EventRow], version: u32) {
    let kernels = kind(events, "kernel");
    let gemms: Vec<_> = kernels.iter().filter(|event| event.name.contains("gemm")).collect();
    assert_eq!(&*gemms[0].name, "void ours::gemm<float, 128>(float const*, float*)");
    let first = gemms.iter().find(|event| event.graph_id.is_none()).unwrap();
    assert_eq!((first.grid.clone(), first.block.clone()), (Some(vec![264, 2, 1]), Some(vec![256, 1, 1])));
    assert_eq!((first.registers, first.shared_mem_bytes), (Some(128), Some(5120)));
    // 128 registers allow 16 of 64 warps, and the grid has enough blocks.
    assert_eq!(first.occupancy_pct, Some(25.0));
    assert_eq!((first.device_id, first.context_id, first.stream_id), (Some(0), Some(1), Some(7)));
    assert_eq!((first.dur_ns, first.is_comm), (400_000, Some(false)));
    let priority = if version >= 130_101 { r#"{"cluster":[2,1,1],"priority":-5}"# } else { r#"{"cluster":[2,1,1]}"# };
    assert_eq!(first.args.as_deref(), Some(priority));
    let steps: Vec<Option<i32>> = gemms.iter().map(|event| event.step).collect();
    assert_eq!(steps, [2, 2, 2, 3, 3, 3].map(Some), "the step of the launch, whenever the kernel ran");
    let nodes = kernels.iter().filter(|event| event.graph_id == Some(3));
    let mut nodes: Vec<i64> = nodes.map(|event| event.graph_node_id.unwrap() & 0xff).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [10, 10, 11, 11, 12, 12]);
    let copy = kind(events, "gpu_memcpy").into_iter().find(|event| event.copy_kind.as_deref() == Some("HtoD")).unwrap();
    assert_eq!((&*copy.name, copy.bytes), ("Memcpy HtoD (Pinned -> Device)", Some(100_000)));
    assert_eq!(copy.bandwidth_gbs, Some(10.0));
    let peer = kind(events, "gpu_memcpy").into_iter().find(|event| event.copy_kind.as_deref() == Some("PtoP")).unwrap();
    assert_eq!((peer.src_device, peer.dst_device), (Some(0), Some(1)));
    assert_eq!(kind(events, "cuda_sync")[0].sync_kind.as_deref(), Some("Stream Sync"));
    assert_eq!(kind(events, "cuda_sync")[0].device_id, Some(0), "by its context");
    assert_eq!(&*kind(events, "overhead")[0].name, "Buffer Flush");
}

/// Operator, launch and kernel are linked, and calls are children of their operators.
fn check_links(events: &[EventRow]) {
    let host = kind(events, "cpu_op");
    let launches = [kind(events, "cuda_runtime"), kind(events, "cuda_driver")].concat();
    for kernel in kind(events, "kernel") {
        let launch = launches.iter().find(|launch| launch.correlation_id == kernel.correlation_id).unwrap();
        let operator = host.iter().find(|host| host.external_id == kernel.external_id).unwrap();
        assert_eq!((launch.external_id, launch.parent_id), (operator.external_id, Some(operator.id)));
        let name = match (kernel.is_comm, kernel.graph_id) {
            (_, Some(_)) => ("graph", "cudaGraphLaunch"),
            (Some(true), None) => ("nccl:all_reduce", "cuLaunchKernel"),
            _ => ("forward", "cudaLaunchKernel"),
        };
        assert_eq!((&*operator.name, &*launch.name), name);
        assert!(operator.ts_ns <= launch.ts_ns && launch.ts_ns + launch.dur_ns <= operator.ts_ns + operator.dur_ns);
        assert_eq!(operator.thread_id, launch.thread_id, "the system's thread ids");
    }
    let wait = launches.iter().find(|launch| &*launch.name == "cudaStreamSynchronize").unwrap();
    assert_eq!((wait.external_id, wait.parent_id), (None, None), "outside of every scope");
}

/// Collectives have the times of their kernels, in the order of the graph's stream.
fn check_collectives(run: &Path, events: &[EventRow]) {
    let mut collectives = rows::<CollectiveRow>(run);
    collectives.retain(|collective| &*collective.state == "done");
    collectives.sort_by_key(|collective| collective.seq);
    let seen: Vec<_> = collectives.iter().map(|c| (c.seq, c.bucket, c.step, &*c.timing_source)).collect();
    let expected = [(6, 0, 2), (7, 1, 2), (8, 2, 2), (9, 0, 3), (10, 1, 3), (11, 2, 3)];
    assert_eq!(seen, expected.map(|(seq, bucket, step)| (Some(seq), Some(bucket), Some(step), "cupti")));
    for (collective, dur_ns) in collectives.iter().zip([300_000, 200_000, 100_000].repeat(2)) {
        let kernel = events.iter().find(|event| Some(event.id) == collective.event_id).unwrap();
        assert_eq!(collective.start_ns, Some(kernel.ts_ns));
        assert_eq!(collective.end_ns, Some(kernel.ts_ns + kernel.dur_ns));
        assert_eq!((kernel.dur_ns, kernel.is_comm), (dur_ns, Some(true)));
        assert_eq!((collective.stream_id, collective.device_id), (Some(9), Some(0)));
        assert!(collective.enqueue_ns.unwrap() < kernel.ts_ns);
    }
}

fn check_small_tables(run: &Path) {
    let devices = rows::<DeviceRow>(run);
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    assert_eq!(device.name.as_deref(), Some("NVIDIA Stand-in"));
    assert_eq!(device.uuid.as_deref(), Some("GPU-a0010203-0405-0607-0809-0a0b0c0d0eff"));
    assert_eq!((device.sm_count, device.clock_khz), (Some(132), Some(1_980_000)));
    assert_eq!(device.peak_bytes_per_s, Some(4.814e12));
    let memory: Vec<_> =
        rows::<MemoryRow>(run).into_iter().map(|row| (row.device_id, row.delta_bytes, row.allocated_bytes)).collect();
    assert_eq!(memory, [(Some(0), 1 << 20, Some(1 << 20)), (Some(0), -(1 << 20), Some(0))]);
    let samples = rows::<ClockSampleRow>(run);
    assert!(samples.iter().all(|sample| &*sample.kind == "gpu"));
    // CUPTI reads the recorder's clock between two reads of it.
    assert!(samples.len() >= 2 && samples.iter().all(|sample| 2 * sample.offset_ns.abs() <= sample.rtt_ns));
}

#[test]
fn a_clock_that_cupti_refuses_is_mapped_from_utc() {
    let (run, done) = play("no_clock", "train", "version=28,no_clock");
    let done = done.expect_code(0);
    assert_eq!((word(&done, "own_clock"), word(&done, "failure")), ("false", "None"));
    check_links_of_mapped_times(&run);
    let samples = rows::<ClockSampleRow>(&run);
    assert!(samples.iter().all(|sample| sample.remote_ns > 1_577_836_800_000_000_000), "UTC");
    analyze(&run, &[], 3);
}

/// A mapped time is as accurate as the comparison of the clocks: microseconds, more on a busy machine, but not
/// milliseconds.
fn check_links_of_mapped_times(run: &Path) {
    const LATE_NS: i64 = 5_000_000;
    let events = rows::<EventRow>(run);
    assert_eq!(kind(&events, "kernel").len(), 12);
    let host = kind(&events, "cpu_op");
    for call in kind(&events, "cuda_runtime").into_iter().filter(|call| call.external_id.is_some()) {
        let operator = host.iter().find(|host| host.external_id == call.external_id).unwrap();
        let (start_ns, end_ns) = (operator.ts_ns - LATE_NS, operator.ts_ns + operator.dur_ns + LATE_NS);
        assert!(start_ns <= call.ts_ns && call.ts_ns <= end_ns, "{call:?} {operator:?}");
    }
}

#[test]
fn without_the_iterator_records_are_read_by_their_sizes() {
    let (run, done) = play("no_iterator", "train", "version=130101,no_iterator");
    assert_eq!(word(&done.expect_code(0), "failure"), "None");
    assert_eq!(kind(&rows::<EventRow>(&run), "kernel").len(), 12);
    // The record of unknown size precedes the last record: the records after it are lost and counted.
    let (_, dropped, _) = counted(&run, "cupti:unknown_kinds");
    assert_eq!(dropped, 1);
}

#[test]
fn calls_that_say_nothing_are_left_out_if_cupti_records_them() {
    let (run, done) = play("all_calls", "train", "version=22,no_driver_calls,no_runtime_calls");
    done.expect_code(0);
    let events = rows::<EventRow>(&run);
    assert_eq!(kind(&events, "cuda_driver").len(), 2, "launches alone");
    assert_eq!(counted(&run, "cupti:cuda_driver"), (2, 0, 4));
    assert!(kind(&events, "cuda_runtime").iter().all(|call| &*call.name != "cudaGetDevice"));
    assert_eq!(counted(&run, "cupti:cuda_runtime").2, 4, "one in each step");
}

#[test]
fn a_truncated_buffer_is_counted_and_its_other_records_are_read() {
    let (run, done) = play("truncated", "train", "version=130001,truncate");
    let done = done.expect_code(0);
    assert!(word(&done, "summary").contains("buffers cut short"), "{}", done.said());
    let (_, lost, _) = counted(&run, "cupti:truncated");
    assert!(lost > 0 && kind(&rows::<EventRow>(&run), "kernel").len() > 6);
    // The run has losses, and the analysis reports them.
    analyze(&run, &[], 3);
}

/// Invariant (recorder): Records for which CUPTI had no buffer are counted.
#[test]
fn records_without_a_buffer_are_dropped_and_counted() {
    // Before 12.9 CUPTI must receive a buffer: the source counts and discards the records of that buffer. From 12.9 on
    // CUPTI counts the records without a buffer. There is one buffer of 64 KiB, for 4000 records.
    for (version, source) in [(26, "cupti:overflow"), (28, "cupti:buffers"), (130_401, "cupti:buffers")] {
        let (run, done) = play(&format!("few_buffers_{version}"), "few_buffers", &format!("version={version},hold"));
        let done = done.expect_code(0);
        let (_, dropped, _) = counted(&run, source);
        let events = rows::<EventRow>(&run);
        let (kernels, calls) = (kind(&events, "kernel").len(), kind(&events, "cuda_runtime").len());
        assert!(kernels > 200 && calls > 200, "{kernels} and {calls} fit");
        assert_eq!(kernels as i64 + calls as i64 + dropped, 4000, "{source} of {version}");
        assert_eq!(word(&done, "dropped").parse(), Ok(dropped));
        assert_eq!(word(&done, "closed"), "true", "counted losses are no failure");
    }
}

/// Invariant (recorder): If another profiler holds CUPTI, it keeps CUPTI, and the host is still recorded.
#[test]
fn another_profiler_keeps_cupti_and_the_host_is_recorded() {
    let (run, done) = play("busy", "train", "version=130001,busy");
    let done = done.expect_code(0);
    let expected = "another profiler (CUPTI for somebody) holds CUPTI (Nsight, torch.profiler, cuda-gdb, …): the \
                    devices are not recorded";
    assert_eq!(word(&done, "error"), expected);
    assert_eq!(word(&done, "closed"), "true");
    assert_eq!(kind(&rows::<EventRow>(&run), "cpu_op").len(), 1);
}

#[test]
fn a_library_that_is_missing_or_too_old_is_named() {
    let (_, done) = play("too_old", "train", "version=21");
    let done = done.expect_code(0);
    let error = word(&done, "error");
    assert!(error.contains("libstand_in_cupti.so is too old: cuptiGetVersion says 21"), "{error}");
    let run = scratch("cupti_missing");
    let mut command = Command::new(DRIVER);
    let done = finish(command.arg(&run).arg("train").env("RANKSCOPE_CUPTI", "/nowhere/libcupti.so.13"));
    let error = word(&done, "error").to_string();
    assert!(error.starts_with("libcupti was not found; looked for /nowhere/libcupti.so.13;"), "{error}");
    if Path::new("/dev/nvidia0").exists() {
        return skipped("a search for libcupti that finds none", "there is a GPU");
    }
    // Without the variable, all candidate paths.
    let run = scratch("cupti_nowhere");
    let mut command = Command::new(DRIVER);
    command.arg(&run).arg("train").env_remove("RANKSCOPE_CUPTI").env_remove("VIRTUAL_ENV");
    let said = finish(command.env("CUDA_HOME", "/nowhere/cuda")).expect_code(0).said();
    if !said.contains("needs the NVIDIA driver") {
        assert!(said.contains("looked for libcupti.so.13, libcupti.so.12, ") && said.contains("/nowhere/cuda/extras"));
    }
}

#[test]
fn a_second_session_is_refused() {
    let (_, done) = play("twice", "context", "version=130001");
    assert_eq!(
        word(&done.expect_code(0), "twice"),
        "this process has already started a CUPTI session; a process can have only one"
    );
}

/// Invariant (recorder): A forked child does not call CUPTI.
#[test]
fn a_forked_child_does_not_call_cupti() {
    let (run, done) = play("fork", "fork", "version=130001");
    let done = done.expect_code(0);
    assert_eq!((word(&done, "child"), word(&done, "closed")), ("0", "true"));
    let events = rows::<EventRow>(&run);
    let names: Vec<&str> = kind(&events, "cpu_op").iter().map(|event| &*event.name).collect();
    assert_eq!(names, ["parent", "parent again"]);
}

#[test]
fn a_context_is_flushed_before_it_is_destroyed() {
    let (run, done) = play("context", "context", "version=130001");
    assert_eq!(word(&done.expect_code(0), "flushed"), "true");
    assert_eq!(kind(&rows::<EventRow>(&run), "kernel").len(), 1);
}

#[test]
fn nothing_is_recorded_while_the_session_is_paused() {
    let (run, done) = play("pause", "pause", "version=130001");
    done.expect_code(0);
    let events = rows::<EventRow>(&run);
    let launched_in =
        |id: Option<i64>| kind(&events, "cpu_op").into_iter().find(|event| event.external_id == id).unwrap();
    let names: Vec<&str> = kind(&events, "kernel").iter().map(|k| &*launched_in(k.external_id).name).collect();
    assert_eq!(names, ["before", "after"]);
    let paused = events.iter().find(|event| &*event.name == "paused").unwrap();
    assert_eq!(paused.external_id, None);
    assert!(rows::<CollectiveRow>(&run).is_empty());
}

/// The run `name_VERSION`, the number of kernels of graphs whose launch is known, and the output.
fn windows(name: &str, scenario: &str, version: u32) -> (PathBuf, usize, Finished) {
    let (run, done) = play(&format!("{name}_{version}"), scenario, &format!("version={version}"));
    let events = rows::<EventRow>(&run);
    let launches = kind(&events, "cuda_runtime");
    let kernels = kind(&events, "kernel");
    assert_eq!(kernels.len(), 3, "one in each window");
    let joins = |kernel: &&&EventRow| launches.iter().any(|launch| launch.correlation_id == kernel.correlation_id);
    // The context was made before the first window.
    assert!(kind(&events, "cuda_sync").iter().all(|sync| sync.device_id == Some(0)));
    (run, kernels.iter().filter(joins).count(), done.expect_code(0))
}

#[test]
fn a_cupti_that_confuses_graphs_after_a_pause_stays_enabled_or_its_ids_are_left_out() {
    // 13.1 U1 mended it.
    for (version, joined, disabled) in [(28, 3, "0"), (130_001, 3, "0"), (130_101, 3, "3")] {
        let (_, found, done) = windows("graphs", "windows_of_graphs", version);
        assert_eq!((found, word(&done, "disabled")), (joined, disabled), "{version}");
    }
    let (run, joined, done) = windows("no_graphs", "windows", 130_001);
    assert_eq!((joined, word(&done, "disabled")), (1, "3"), "the first window");
    let (_, _, left_out) = counted(&run, "cupti:graph_launches");
    assert_eq!(left_out, 2);
}

#[test]
fn driver_calls_in_a_context_that_was_made_in_a_pause_are_recorded() {
    for version in [28, 130_001, 130_500] {
        let (run, done) =
            play(&format!("driver_calls_{version}"), "windows_of_driver_calls", &format!("version={version}"));
        done.expect_code(0);
        let events = rows::<EventRow>(&run);
        let launches: Vec<_> = kind(&events, "cuda_driver").iter().map(|call| call.correlation_id).collect();
        let kernels: Vec<_> = kind(&events, "kernel").iter().map(|kernel| kernel.correlation_id).collect();
        assert_eq!((launches.len(), &launches), (3, &kernels), "{version}");
    }
}

#[test]
fn a_cupti_that_may_hang_is_not_switched_while_the_program_runs() {
    for (version, asks) in [(28, false), (130_001, true)] {
        let (_, _, done) = windows("may_hang", "windows", version);
        let asked = word(&done, "flushes_in_window") != "0";
        assert_eq!((asked, word(&done, "disabled") != "0"), (asks, asks), "{version}");
    }
}

#[test]
fn a_profiler_that_takes_cupti_is_noticed_and_a_new_start_takes_it_back() {
    let (run, done) = play("taken", "taken", "version=130001");
    let done = done.expect_code(0);
    assert_eq!(done.stderr.matches("CUPTI has handed over no record").count(), 1, "{}", done.said());
    assert_eq!(counted(&run, "cupti:silence").1, 1);
    let events = rows::<EventRow>(&run);
    let steps: Vec<_> = kind(&events, "kernel").iter().map(|kernel| kernel.step).collect();
    assert!(steps.first() == Some(&Some(0)) && steps.last() == Some(&Some(40)), "{steps:?}");
}

#[test]
fn a_part_of_a_device_has_its_own_uuid() {
    for version in [22, 130_001, 130_500] {
        let (run, done) = play(&format!("mig_{version}"), "mig", &format!("version={version}"));
        done.expect_code(0);
        let uuids: Vec<_> =
            rows::<DeviceRow>(&run).into_iter().map(|device| device.uuid.unwrap().to_string()).collect();
        assert_eq!(uuids, ["GPU-a0010203-0405-0607-0809-0a0b0c0d0eff", "MIG-b0010203-0405-0607-0809-0a0b0c0d0e0f"]);
    }
}

#[test]
fn an_exit_without_finish_keeps_the_rows() {
    let (run, done) = play("exit", "exit", "version=130001");
    done.expect_code(0);
    check_trained(&run, 130_001);
    analyze(&run, &[], 3);
}

/// CUPTI holds a buffer back until its last kernel has ended.
#[test]
fn a_killed_rank_loses_no_more_than_a_buffer_of_kernels() {
    const ALL: usize = 10_000;
    let run = scratch("cupti_killed");
    let mut command = Command::new(DRIVER);
    command.arg(&run).arg("killed").env("RANKSCOPE_CUPTI", stand_in()).stdout(Stdio::null());
    let mut program = command.env("STAND_IN_CUPTI", "version=130001,behind").spawn().unwrap();
    let kernels = || Run::open(&run).map_or(0, |run| kind(&run.rows::<EventRow>(0).0, "kernel").len());
    let since = Instant::now();
    while kernels() < ALL - 3000 && since.elapsed() < Duration::from_secs(120) {
        sleep(Duration::from_millis(100));
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let lost = ALL - kernels();
    assert!((1..3000).contains(&lost), "{lost} of {ALL} kernels are lost");
}
