//! A program under `rank-agent exec` whose CUDA and NCCL load the recorder's library: kernels from a stand-in for CUPTI,
//! collectives from the calls that NCCL makes, and the kernel of every collective found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use trace::{CollectiveRow, CounterRow, EventRow, NcclChannelRow, RankRow, Row, Run};

use crate::exec_control::{CHANNELS, COLL};
use crate::support::{Finished, RANK_AGENT, analyze, finish, inject_library, scratch};

const DRIVER: &str = env!("CARGO_BIN_EXE_cupti-driver");
const COLLECTIVES: usize = 10;
/// The first version of the interface whose NCCL (2.29) reports only the calls of broadcasts.
const BROADCASTS: u8 = 6;

fn stand_in() -> PathBuf {
    inject_library().with_file_name("libstand_in_cupti.so")
}

fn record(name: &str, arguments: &[&str], behaviour: &str) -> (PathBuf, Finished) {
    record_nccl(5, name, arguments, behaviour)
}

/// Records with a version of NCCL's interface.
fn record_nccl(version: u8, name: &str, arguments: &[&str], behaviour: &str) -> (PathBuf, Finished) {
    let run = scratch(name).join("run");
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--out"]).arg(&run).args(arguments).args(["--", DRIVER, "injected"]);
    command.env("RANKSCOPE_INJECT_LIB", inject_library());
    command.env("RANKSCOPE_CUPTI", stand_in()).env("STAND_IN_CUPTI", behaviour);
    command.env("PLUGIN_VERSION", version.to_string());
    if version == BROADCASTS {
        command.env("BROADCAST", "1");
    }
    (run, finish(&mut command).expect_code(0))
}

fn rows<R: Row>(run: &Path) -> Vec<R> {
    let (rows, problems) = Run::open(run).unwrap().rows::<R>(0);
    assert_eq!(problems, []);
    rows
}

fn of_kind<'e>(events: &'e [EventRow], kind: &str, name: &str) -> Vec<&'e EventRow> {
    events.iter().filter(|event| &*event.kind == kind && event.name.starts_with(name)).collect()
}

/// Every collective has its own kernel, and the times of it.
fn check_joined(run: &Path) {
    let opened = Run::open(run).unwrap();
    let data = formats::run::load_rank(&opened, 0);
    let kernels: BTreeMap<i64, (i64, i64)> = rows::<EventRow>(run)
        .iter()
        .filter(|event| event.name.starts_with("ncclDevKernel"))
        .map(|event| (event.id, (event.ts_ns, event.ts_ns + event.dur_ns)))
        .collect();
    assert_eq!((kernels.len(), data.outline.collectives.len()), (COLLECTIVES, COLLECTIVES));
    let mut found = BTreeMap::new();
    for row in &data.outline.collectives {
        let (start_ns, end_ns) = kernels[&row.event_id().unwrap()];
        assert_eq!((row.start_ns(), row.end_ns()), (Some(start_ns), Some(end_ns)), "{row:?}");
        assert_eq!((&*row.timing_source, row.stream_id, row.channels), ("cupti", Some(9), Some(1)));
        found.insert(row.event_id(), row.seq());
    }
    assert_eq!(found.len(), COLLECTIVES, "one each");
    assert!(found.values().is_sorted(), "in their order: {found:?}");
    assert!(!data.omissions.iter().any(|omission| &*omission.what == "kernels of collectives"));
    // Exports know collectives before they look at rows: they must have the same times in the same order.
    assert_eq!(formats::run::outline_rank(&opened, 0).0.collectives, data.outline.collectives);
    println!("kernels of collectives: {} of {COLLECTIVES} found", found.len());
}

/// Channels fill their kernels in this program, and their stamps are those of another clock: how far their times are off,
/// and what error is stated.
#[track_caller]
fn check_channels(run: &Path, holds: impl Fn(i64, i64) -> bool) {
    let kernels: Vec<EventRow> = rows(run);
    let kernels = of_kind(&kernels, "kernel", "ncclDevKernel");
    let channels: Vec<NcclChannelRow> = rows(run);
    assert_eq!((kernels.len(), channels.len()), (COLLECTIVES, COLLECTIVES));
    for channel in channels {
        let gpu_to_host = channel.start_ns.unwrap() - channel.gpu_start_ns.unwrap();
        let kernel = kernels.iter().min_by_key(|kernel| (kernel.ts_ns - channel.start_ns.unwrap()).abs()).unwrap();
        let off_ns = (channel.start_ns.unwrap() - kernel.ts_ns).abs();
        assert!(holds(off_ns, channel.clock_error_ns.unwrap()), "off {off_ns} ({gpu_to_host}): {channel:?}");
    }
}

/// Invariant (numbers): Every collective finds its own kernel, by id or by its launch.
#[test]
fn an_unmodified_program_is_recorded_by_what_cuda_and_nccl_load() {
    let (run, done) = record("exec_cuda", &[], "version=130001");
    assert!(done.stdout.contains("injected 1"), "{}", done.said());
    assert!(done.stdout.contains(&format!("pushes {COLLECTIVES}")), "{}", done.said());
    let events = rows::<EventRow>(&run);
    let launches = of_kind(&events, "cpu_op", "nccl:launch");
    assert_eq!((launches.len(), of_kind(&events, "kernel", "void ours::gemm").len()), (COLLECTIVES, COLLECTIVES));
    for launch in &launches {
        let inside = |event: &&EventRow| event.external_id == Some(launch.id) && event.id != launch.id;
        let made: Vec<&EventRow> = events.iter().filter(inside).collect();
        let kinds: Vec<&str> = made.iter().map(|event| &*event.kind).collect();
        assert!(kinds.contains(&"cuda_driver") && kinds.contains(&"kernel") && kinds.len() == 2, "{made:?}");
        assert!(made.iter().all(|event| event.thread_id.is_none() || event.thread_id == launch.thread_id));
    }
    let ids: Vec<Option<i64>> = rows::<CollectiveRow>(&run).iter().map(|row| row.event_id).collect();
    assert!(ids.iter().all(|id| launches.iter().any(|launch| Some(launch.id) == *id)), "{ids:?}");
    check_joined(&run);
    // A step of the GPU's timer, and the drift of 100 ms, at most.
    check_channels(&run, |off_ns, error_ns| off_ns == 0 && error_ns <= 1024 + 10_000);
    let said = analyze(&run, &["--json"], 0).stdout;
    assert!(said.contains(&format!("\"collectives\": {COLLECTIVES}")), "{said}");
    // The agent, and the program that nobody ended.
    let ranks = rows::<RankRow>(&run);
    let last: BTreeMap<i64, bool> = ranks.iter().map(|row| (row.pid, row.closed_cleanly)).collect();
    assert_eq!((last.len(), last.values().all(|closed| *closed)), (2, true), "{ranks:?}");
}

/// NCCL 2.26 and 2.27 report a collective only when its kernel has been launched.
#[test]
fn an_nccl_that_reports_no_launches_has_the_kernels_of_its_collectives() {
    for version in [3, 4] {
        let (run, done) = record_nccl(version, &format!("exec_cuda_v{version}"), &[], "version=130001");
        assert!(done.stdout.contains("pushes 0"), "{}", done.said());
        check_joined(&run);
        let calls: Vec<EventRow> = rows(&run);
        let calls: Vec<Option<i64>> = of_kind(&calls, "cuda_driver", "").iter().map(|call| Some(call.ts_ns)).collect();
        let data = formats::run::load_rank(&Run::open(&run).unwrap(), 0);
        for row in &data.outline.collectives {
            assert!(calls.contains(&row.enqueue_ns()), "v{version}: not the start of a call: {row:?}");
        }
    }
}

#[test]
fn a_broadcast_of_which_nccl_reports_the_call_only_has_the_times_of_its_kernel() {
    let (run, _) = record_nccl(BROADCASTS, "exec_cuda_broadcast", &[], "version=130001");
    let events: Vec<EventRow> = rows(&run);
    let kernels: Vec<_> = of_kind(&events, "kernel", "ncclDevKernel_Broadcast")
        .iter()
        .map(|kernel| (Some(kernel.id), Some(kernel.ts_ns), Some(kernel.ts_ns + kernel.dur_ns)))
        .collect();
    let data = formats::run::load_rank(&Run::open(&run).unwrap(), 0);
    let found: Vec<_> = data.outline.collectives.iter().filter(|row| &*row.op == "broadcast").collect();
    let times: Vec<_> = found.iter().map(|row| (row.event_id(), row.start_ns(), row.end_ns())).collect();
    assert_eq!((times, found.len()), (kernels, COLLECTIVES));
    assert!(found.iter().all(|row| &*row.state == "done" && &*row.timing_source == "cupti"), "{found:?}");
    let seqs: Vec<_> = found.iter().filter_map(|row| row.seq()).collect();
    assert_eq!(seqs, (0..COLLECTIVES as i64).collect::<Vec<_>>());
    let said: Vec<CounterRow> = rows(&run);
    let said = said.iter().filter_map(|row| row.why.as_deref());
    assert!(
        said.clone().any(|why| why.contains("NCCL 2.29 and later reports the call only")),
        "{:?}",
        said.collect::<Vec<_>>()
    );
}

/// CUPTI's and the driver's locks are taken in the other order while CUDA initialises.
#[test]
fn no_thread_of_the_recorder_calls_cupti_while_cuda_initialises() {
    let run = scratch("exec_cuda_init").join("run");
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--out"]).arg(&run).args(["--", DRIVER, "injected"]).env("SLOW_INIT", "1");
    command.env("RANKSCOPE_INJECT_LIB", inject_library()).env("RANKSCOPE_CUPTI", stand_in());
    let done = finish(command.env("STAND_IN_CUPTI", "version=130001")).expect_code(0);
    assert!(done.stdout.contains("intruders 0\n"), "{}", done.said());
    // The records that CUPTI held at the exit, whose handler of the driver was registered in the initialisation.
    assert_eq!(of_kind(&rows::<EventRow>(&run), "kernel", "void ours::gemm").len(), COLLECTIVES);
}

/// NCCL 2.28 has read its event mask before it reports a captured call, so that the call itself comes too late.
#[test]
fn nccl_is_asked_for_no_channels_before_a_graph_is_captured() {
    let run = scratch("exec_cuda_capture").join("run");
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--out"]).arg(&run).args(["--", DRIVER, "injected"]).env("CAPTURE", "1");
    command.env("RANKSCOPE_INJECT_LIB", inject_library()).env("RANKSCOPE_CUPTI", stand_in());
    let done = finish(command.env("STAND_IN_CUPTI", "version=130001")).expect_code(0);
    let masks = done.stdout.lines().find_map(|line| line.strip_prefix("masks ")).unwrap();
    let masks: Vec<u64> = masks.split(' ').map(|mask| mask.parse().unwrap()).collect();
    assert_eq!((masks[0] & CHANNELS, masks[1] & CHANNELS, masks[1] & COLL), (CHANNELS, 0, COLL), "{masks:?}");
    assert!(done.stderr.contains("a CUDA graph was captured"), "{}", done.said());
}

/// Invariant (numbers): Every collective finds its own kernel, by id or by its launch.
#[test]
fn without_external_ids_the_launch_says_which_kernel_it_was() {
    let (run, done) = record("exec_cuda_launch", &[], "version=130001,no_external");
    assert!(done.stdout.contains("pushes 0"), "{}", done.said());
    let events = rows::<EventRow>(&run);
    assert!(of_kind(&events, "kernel", "").iter().all(|kernel| kernel.external_id.is_none()));
    check_joined(&run);
    // Only callbacks and launches bound the GPU's clock.
    check_channels(&run, |off_ns, error_ns| off_ns <= error_ns && error_ns > 0);
}

#[test]
fn nothing_of_a_device_is_recorded_while_recording_is_off() {
    let (run, _) = record("exec_cuda_off", &["--delay", "3600"], "version=130001");
    assert!(rows::<EventRow>(&run).is_empty() && rows::<CollectiveRow>(&run).is_empty());
    let counters = rows::<CounterRow>(&run);
    assert!(counters.iter().any(|row| &*row.source == "schedule"), "{counters:?}");
    let said: String = analyze(&run, &[], 0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("nothing was recorded") && said.contains("recording was off for"), "{said}");
}
