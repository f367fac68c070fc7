//! Replays NCCL's calls to the built library: every version of the interface, several threads, hostile calls; and checks the
//! rows on disk. No GPU and no NCCL is involved, and no run on them has confirmed the rows.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap, as tests do")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use trace::{
    CollectiveRow, CommRow, CounterRow, Manifest, NcclChannelRow, NcclProxyRow, RankRow, Row, Run, SCHEMA_VERSION,
};

const VERSIONS: std::ops::RangeInclusive<u8> = 3..=7;
/// Equal to the constant of the replay.
const GPU_OFFSET_NS: i64 = 1_756_000_000_000_000_000;

/// `target/debug`, beside this test.
fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// The library that was built for this test. The one in the parent folder may be of an older `cargo build`.
fn library() -> PathBuf {
    let library = target().join("deps/librankscope_inject.so");
    assert!(library.is_file(), "{} is missing: cargo builds it for its tests", library.display());
    library
}

fn run_directory(world_size: i32) -> tempfile::TempDir {
    let run = tempfile::tempdir().unwrap();
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: "replay".into(),
        world_size,
        created_utc_ns: 1,
        tool: "test".into(),
        command: vec![],
        config: Default::default(),
    };
    manifest.write(run.path()).unwrap();
    run
}

fn command(run: &Path, rank: i32, world_size: i32, arguments: &[&str]) -> Command {
    let mut command = Command::new(target().join("examples/nccl_replay"));
    command.arg(library()).args(arguments).env("RANKSCOPE_RUN", run).env("RANKSCOPE_RUN_ID", "replay");
    command.env("RANKSCOPE_RANK", rank.to_string()).env("RANKSCOPE_WORLD_SIZE", world_size.to_string());
    command.env("RANKSCOPE_AGENT_PID", std::process::id().to_string()).env("RANKSCOPE_NCCL_DETAIL", "proxy");
    command
}

/// Runs a scenario to its end. Returns its printed values by name.
fn replay(run: &Path, arguments: &[&str]) -> BTreeMap<String, Vec<String>> {
    finished(command(run, 0, 2, arguments), arguments)
}

fn finished(mut command: Command, arguments: &[&str]) -> BTreeMap<String, Vec<String>> {
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}\n{stdout}\n{stderr}", output.status);
    assert!(!stderr.contains("rankscope"), "{arguments:?} says: {stderr}");
    let mut values = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in stdout.lines().filter_map(|line| line.split_once('=')) {
        values.entry(name.into()).or_default().push(value.into());
    }
    values
}

fn number(values: &BTreeMap<String, Vec<String>>, name: &str) -> i64 {
    values.get(name).map_or(0, |values| values.iter().map(|value| value.parse::<i64>().unwrap()).sum())
}

fn rows<R: Row>(run: &Path, rank: i32) -> Vec<R> {
    let run = Run::open(run).unwrap();
    let (rows, problems) = run.rows::<R>(rank);
    assert_eq!(problems, []);
    rows
}

/// Rows of finished operations. On a busy machine an operation may also have a row from when it was in flight.
fn done(run: &Path) -> Vec<CollectiveRow> {
    rows::<CollectiveRow>(run, 0).into_iter().filter(|row| &*row.state == "done").collect()
}

/// Numbers of rows dropped and of rows left out.
fn losses(run: &Path) -> (i64, i64) {
    let rows = rows::<CounterRow>(run, 0);
    (rows.iter().map(|row| row.dropped).sum(), rows.iter().map(|row| row.omitted).sum())
}

#[test]
fn every_version_is_replayed_and_nothing_is_lost() {
    for version in VERSIONS {
        let run = run_directory(2);
        let operations = 200;
        let values = replay(run.path(), &["sequence", &version.to_string(), &operations.to_string()]);
        let collectives = done(run.path());
        let channels = rows::<NcclChannelRow>(run.path(), 0);
        let proxies = rows::<NcclProxyRow>(run.path(), 0);
        let (dropped, omitted) = losses(run.path());
        println!(
            "replayed v{version}: {} calls, {} collectives, {} channels, {} proxy operations stored, {dropped} dropped, \
             {omitted} left out",
            number(&values, "calls"),
            collectives.len(),
            channels.len(),
            proxies.len()
        );
        assert_eq!((dropped, omitted), (0, 0), "v{version}");
        assert_eq!(collectives.len() as i64, number(&values, "operations"), "v{version}");
        check_collectives(version, &collectives);
        check_channels(version, &channels, &collectives);
        check_proxies(version, &proxies);
        check_comms(version, &rows::<CommRow>(run.path(), 0));
        assert!(rows::<RankRow>(run.path(), 0).last().unwrap().closed_cleanly, "v{version}: closed at exit");
    }
}

fn check_collectives(version: u8, rows: &[CollectiveRow]) {
    for row in rows {
        let what = format!("v{version}: {row:?}");
        let expected = match (&*row.op, row.algo.as_deref(), version) {
            (_, Some("CE"), _) => "host",
            (_, _, 3) => "host",
            _ => "gpu_timer",
        };
        assert_eq!(&*row.timing_source, expected, "{what}");
        assert!(row.start_ns <= row.end_ns && row.enqueue_ns.is_some(), "{what}");
        assert_eq!(row.comm_id as u64 >> 32, 0xfeed_beef, "{what}");
        assert_eq!(row.comm_size, (version > 3).then_some(2), "{what}");
    }
    let reduces: Vec<&CollectiveRow> = rows.iter().filter(|row| &*row.op == "allreduce").collect();
    let gathers: Vec<&CollectiveRow> =
        rows.iter().filter(|row| &*row.op == "allgather" && row.algo.as_deref() != Some("CE")).collect();
    assert_eq!((reduces.len(), gathers.len()), (300, 100), "v{version}");
    for row in reduces.iter().chain(&gathers) {
        assert_eq!((row.algo.as_deref(), row.proto.as_deref()), (Some("RING"), Some("LL128")), "v{version}");
        assert_eq!(row.channels, Some(4), "v{version}");
    }
    for row in &reduces {
        assert_eq!(row.dtype.as_deref(), Some("float32"), "v{version}");
        assert_eq!(row.bytes, row.count.map(|count| 4 * count), "v{version}");
        assert!(row.count.is_some_and(|count| (1000..1200).contains(&count)), "v{version}: {row:?}");
    }
    // The whole array: both ranks' pieces, in the user's type if NCCL reports the call (v5).
    let dtypes: Vec<_> = gathers.iter().map(|row| row.dtype.as_deref()).collect();
    let dtype = if version >= 5 { "float32" } else { "int8" };
    assert!(dtypes.iter().all(|found| *found == Some(dtype)), "v{version}: {dtypes:?}");
    if version > 3 {
        assert!(gathers.iter().all(|row| row.bytes.is_some_and(|bytes| bytes >= 2 * 4 * 1000)), "v{version}");
    }
    let mut numbers: Vec<(i64, Option<i64>)> = reduces.iter().map(|row| (row.comm_id, row.seq)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), reduces.len(), "v{version}: numbers are unique per communicator and function");
    let sends = rows.iter().filter(|row| &*row.op == "send" && row.peer == Some(1) && row.seq == Some(0)).count();
    assert_eq!(sends, 2, "v{version}: one on each communicator");
}

fn check_channels(version: u8, rows: &[NcclChannelRow], collectives: &[CollectiveRow]) {
    let kernels: Vec<&NcclChannelRow> = rows.iter().filter(|row| row.phase.is_none()).collect();
    assert_eq!(kernels.len(), 2 * (200 * 4 + 2 * 2), "v{version}");
    let phases = rows.iter().filter(|row| row.phase.as_deref() == Some("compute")).count();
    assert_eq!(phases, if version >= 7 { 2 * 202 } else { 0 }, "v{version}");
    let engine = rows.iter().filter(|row| row.phase.as_deref().is_some_and(|phase| phase.starts_with("ce_"))).count();
    assert_eq!(engine, if version >= 6 { 4 } else { 0 }, "v{version}");
    assert!(rows.iter().all(|row| !row.suspect && row.seen_end_ns.is_some()), "v{version}");
    if version == 3 {
        assert!(kernels.iter().all(|row| row.gpu_start_ns.is_none() && row.start_ns.is_none()));
        return;
    }
    // The simulated GPU's clock is the host's plus a constant, so that the true time is known.
    let mut worst = 0;
    for row in &kernels {
        let off = (row.start_ns.unwrap() - (row.gpu_start_ns.unwrap() - GPU_OFFSET_NS)).abs();
        worst = worst.max(off);
        match row.clock_error_ns {
            Some(error) => assert!(off <= error, "v{version}: off by {off} ns, says {error} ns"),
            None => assert_eq!(version, 4, "from v5 on, launches bound the error"),
        }
        assert!(row.end_ns.unwrap() <= row.seen_end_ns.unwrap(), "v{version}: seen before it happened");
    }
    println!("  v{version}: GPU times on the host's clock are off by at most {worst} ns");
    let firsts: BTreeMap<_, _> = kernels.iter().fold(BTreeMap::new(), |mut firsts, row| {
        let first = firsts.entry((row.comm_id, row.op.clone(), row.seq)).or_insert(row.start_ns);
        *first = (*first).min(row.start_ns);
        firsts
    });
    for row in collectives.iter().filter(|row| &*row.timing_source == "gpu_timer") {
        assert_eq!(firsts.get(&(row.comm_id, row.op.clone(), row.seq)), Some(&row.start_ns), "v{version}");
    }
}

fn check_proxies(version: u8, rows: &[NcclProxyRow]) {
    assert_eq!(rows.len(), 2 * 202, "v{version}");
    for row in rows {
        let what = format!("v{version}: {row:?}");
        assert_eq!((row.steps, row.steps_seen, row.chunk_bytes, row.peer), (2, 2, 131_072, 1), "{what}");
        assert_eq!(row.bytes, (version >= 4).then_some(131_072), "{what}");
        assert!(row.is_send && row.seq.is_some() && row.op.is_some() && row.end_ns.is_some(), "{what}");
        assert!(row.gpu_wait_ns > 0 && row.net_wait_ns > 0 && row.flush_wait_ns == 0, "{what}");
        assert_eq!(row.peer_wait_ns > 0, version >= 4, "{what}");
        let waits = row.gpu_wait_ns + row.peer_wait_ns + row.net_wait_ns;
        assert!(waits <= row.end_ns.unwrap() - row.start_ns, "{what}");
    }
}

fn check_comms(version: u8, rows: &[CommRow]) {
    let last: BTreeMap<i64, &CommRow> = rows.iter().map(|row| (row.comm_id, row)).collect();
    assert_eq!(last.len(), 2, "v{version}: {rows:?}");
    for row in last.values() {
        assert!(row.created_ns < row.destroyed_ns, "v{version}: {row:?}");
        if version > 3 {
            assert_eq!((row.size, row.comm_rank, row.nodes), (Some(2), Some(0), Some(2)), "v{version}");
            assert!(row.name.as_ref().is_some_and(|name| name.starts_with("dp_group_")), "v{version}");
        }
    }
}

/// All-reduces, printed values by name, and what the recorder says.
type Confused = (Vec<CollectiveRow>, BTreeMap<String, Vec<String>>, String);

/// A case in which NCCL confuses the times of operations, by the interface of a version. No all-reduce may have a wrong time or look
/// hung.
fn confused(run: &Path, case: &str, version: u8) -> Confused {
    confused_with(run, case, version, ("RANKSCOPE_NCCL_DETAIL", "channels"))
}

/// The same with a variable.
fn confused_with(run: &Path, case: &str, version: u8, (name, value): (&str, &str)) -> Confused {
    let mut command = command(run, 0, 2, &[case, &version.to_string()]);
    let output = command.env("RANKSCOPE_NCCL_DETAIL", "channels").env(name, value).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{case}: {}\n{stdout}\n{stderr}", output.status);
    let mut values = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in stdout.lines().filter_map(|line| line.split_once('=')) {
        values.entry(name.into()).or_default().push(value.into());
    }
    let collectives = rows::<CollectiveRow>(run, 0);
    let hung: Vec<_> = collectives.iter().filter(|row| matches!(&*row.state, "started" | "enqueued")).collect();
    assert_eq!(hung, Vec::<&CollectiveRow>::new(), "{case}: nothing hangs");
    let errors: BTreeMap<_, _> =
        rows::<NcclChannelRow>(run, 0).into_iter().map(|row| ((row.op, row.seq), row.clock_error_ns)).collect();
    let mut reduces: Vec<CollectiveRow> = collectives.into_iter().filter(|row| &*row.op == "allreduce").collect();
    reduces.sort_by_key(|row| row.seq);
    for times in &values["times"] {
        let [seq, start_ns, end_ns] = *times.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<i64>>() else {
            panic!()
        };
        let row = reduces.iter().find(|row| row.seq == Some(seq)).unwrap();
        let slack_ns = errors.get(&(row.op.clone(), row.seq)).copied().flatten().unwrap_or(0) + 200_000;
        let near = |stated: Option<i64>, true_ns: i64| stated.is_none_or(|ns| (ns - true_ns).abs() <= slack_ns);
        assert!(near(row.start_ns, start_ns) && near(row.end_ns, end_ns), "{case}: true are {times}: {row:?}");
    }
    (reduces, values, stderr.into_owned())
}

/// How many rows have times of the GPU.
fn timed(rows: &[CollectiveRow]) -> usize {
    rows.iter().filter(|row| &*row.timing_source == "gpu_timer" && row.end_ns.is_some()).count()
}

#[test]
fn the_collectives_of_a_group_have_the_times_of_their_batch() {
    let run = run_directory(2);
    let (reduces, values, said) = confused(run.path(), "batch", 5);
    assert_eq!((reduces.len(), timed(&reduces), values["stuck"][0].as_str(), &*said), (41, 41, "0", ""));
    let fused: Vec<bool> = reduces.iter().map(|row| row.fused.unwrap()).collect();
    assert_eq!(fused, [vec![false], vec![true; 40]].concat());
    // A batch takes 2 ms.
    assert!(reduces.iter().all(|row| row.end_ns.unwrap() - row.start_ns.unwrap() >= 2_000_000), "{reduces:?}");
    assert!(rows::<NcclChannelRow>(run.path(), 0).iter().all(|row| !row.suspect));
}

#[test]
fn times_after_a_send_to_oneself_are_suspect_and_it_does_not_look_hung() {
    let run = run_directory(2);
    let (reduces, values, _) = confused(run.path(), "self_send", 5);
    assert_eq!((reduces.len(), timed(&reduces), values["stuck"][0].as_str()), (11, 1, "0"));
    let pairs = rows::<CollectiveRow>(run.path(), 0).into_iter().filter(|row| row.peer.is_some());
    assert!(pairs.clone().count() == 20 && pairs.into_iter().all(|row| &*row.state == "unreported"));
    let left_out: Vec<_> = rows::<CounterRow>(run.path(), 0).into_iter().map(|row| (row.omitted, row.why)).collect();
    let why = "of sends to oneself NCCL reports neither times nor the end";
    assert!(left_out.contains(&(20, Some(why.into()))), "{left_out:?}");
}

/// Without CUPTI, the call is the first sign of a capture, and NCCL has read its mask by then.
#[test]
fn from_the_first_captured_call_on_nccl_reports_no_channels() {
    for version in [5, 7] {
        let run = run_directory(2);
        let (reduces, values, said) = confused(run.path(), "graph", version);
        println!("graph: {} all-reduces, {} with times, stuck {}", reduces.len(), timed(&reduces), values["stuck"][0]);
        assert_eq!(timed(&reduces), 1, "v{version}: the one before the capture");
        assert!(said.contains("NCCL's channels are not recorded: a CUDA graph was captured"), "v{version}: {said}");
        let why: Vec<_> = rows::<CounterRow>(run.path(), 0).into_iter().filter_map(|row| row.why).collect();
        assert!(why.iter().any(|why| why.starts_with("a CUDA graph was captured")), "v{version}: {why:?}");
    }
}

/// One all-reduce at first, and one after each group of broadcasts: of roots 1, 0, 1 and 1, 0 and 1, and 0.
#[test]
fn from_the_first_combined_broadcasts_on_nccl_reports_no_channels() {
    for (version, combining, before) in [(6, "1", 4), (7, "1", 1), (7, "0", 6)] {
        let run = run_directory(2);
        let variable = ("NCCL_ALLGATHERV_ENABLE", combining);
        let (reduces, values, said) = confused_with(run.path(), "broadcasts", version, variable);
        assert_eq!((reduces.len(), timed(&reduces), &*values["stuck"][0]), (6, before, "0"), "v{version}");
        let why = "NCCL's channels are not recorded: NCCL combined broadcasts";
        assert_eq!(said.contains(why), combining == "1", "v{version}: {said}");
    }
}

/// Invariant (recorder): NCCL's callbacks never block or panic, and never follow a bad pointer.
#[test]
fn hostile_calls_are_survived() {
    for version in VERSIONS {
        let run = run_directory(2);
        let values = replay(run.path(), &["hostile", &version.to_string()]);
        let survived = values.get("survived").map_or(0, Vec::len);
        let (dropped, omitted) = losses(run.path());
        println!(
            "hostile v{version}: {} calls, {survived} cases survived, {dropped} dropped, {omitted} left out",
            number(&values, "calls")
        );
        assert_eq!(survived, 12, "v{version}: {values:?}");
        assert!(omitted > 0, "v{version}: invalid events are counted");
        assert!(rows::<RankRow>(run.path(), 0).last().unwrap().closed_cleanly);
    }
}

#[test]
fn an_exhausted_pool_refuses_and_counts() {
    let run = run_directory(2);
    let values = replay(run.path(), &["exhaust", "5"]);
    let (asked, taken) = (number(&values, "asked"), number(&values, "taken"));
    assert!(taken >= 16_384 / 2 && taken < asked, "{taken} of {asked}");
    let refused: i64 = rows::<CounterRow>(run.path(), 0)
        .iter()
        .filter(|row| &*row.source == "nccl:events")
        .map(|row| row.dropped)
        .sum();
    assert_eq!(refused, asked - taken);
    println!("pool: {asked} events asked for, {taken} taken, {refused} refused and counted");
}

#[test]
fn a_million_events_are_taken_or_counted() {
    let run = run_directory(2);
    let values = replay(run.path(), &["flood", "5", "1000000"]);
    let (events, refused) = (number(&values, "events"), number(&values, "refused"));
    let counters = rows::<CounterRow>(run.path(), 0);
    let dropped: i64 = counters.iter().filter(|row| &*row.source == "nccl:events").map(|row| row.dropped).sum();
    assert_eq!((events, dropped), (1_000_000, refused));
    let orphans: i64 = counters.iter().filter(|row| &*row.source == "nccl:channels").map(|row| row.omitted).sum();
    assert_eq!(orphans, events - refused, "channels without an operation are counted, each once");
    println!(
        "flood: {events} events from 4 threads, {} calls, {refused} refused and counted",
        number(&values, "calls")
    );
}

#[test]
fn the_library_survives_dlclose() {
    let run = run_directory(2);
    let values = replay(run.path(), &["dlclose", "5", "20"]);
    assert!(values.contains_key("survived"));
    assert_eq!(done(run.path()).len(), 2 * 2 * 22, "before and after");
}

/// Invariant (recorder): Forks, signals and closed descriptors of the program do no harm.
#[test]
fn forks_signals_and_closed_descriptors_are_survived() {
    let run = run_directory(2);
    let mut command = command(run.path(), 0, 2, &["processes", "5"]);
    // The abort of the forked child must not leave a core file in the tree.
    command.current_dir(run.path()).stderr(Stdio::piped());
    let values = finished(command, &["processes"]);
    assert_eq!(values["survived"].len(), 4);
    assert_eq!(done(run.path()).len() as i64, number(&values, "operations"));
    assert_eq!(rows::<RankRow>(run.path(), 0).len(), 2, "the forks wrote nothing");
    println!("processes: {} cases survived", values["survived"].len());
}

/// Invariant (recorder): A process that ends by `_exit` loses no operation of its communicators, if they have ended.
#[test]
fn a_process_that_ends_without_handlers_keeps_its_operations() {
    for version in VERSIONS {
        let run = run_directory(2);
        let values = replay(run.path(), &["ends_at_once", &version.to_string(), "200"]);
        assert_eq!(done(run.path()).len() as i64, number(&values, "operations"), "v{version}");
        assert!(!rows::<RankRow>(run.path(), 0).last().unwrap().closed_cleanly, "v{version}: no handler ran");
    }
}

/// Two programs of one session run at the same time and record one rank.
#[test]
fn two_processes_of_a_rank_are_recorded_together() {
    let run = run_directory(2);
    let both: Vec<_> = (0..2)
        .map(|_| command(run.path(), 0, 2, &["sequence", "5", "50"]).stdout(Stdio::null()).spawn().unwrap())
        .collect();
    for mut process in both {
        assert!(process.wait().unwrap().success());
    }
    let opened = Run::open(run.path()).unwrap();
    let of_rank: Vec<_> = opened.problems.iter().filter(|problem| problem.rank == Some(0)).collect();
    assert_eq!(of_rank, Vec::<&trace::Problem>::new());
    assert_eq!(done(run.path()).len(), 2 * 2 * 52);
}

#[test]
fn without_its_variables_the_library_is_inert() {
    for version in VERSIONS {
        let run = tempfile::tempdir().unwrap();
        let mut command = command(run.path(), 0, 2, &["inert", &version.to_string()]);
        command.env_remove("RANKSCOPE_RUN");
        finished(command, &["inert"]);
        assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_hang_is_on_disk_when_the_process_is_killed() {
    let run = run_directory(2);
    let mut process = command(run.path(), 0, 2, &["hang", "5", "1"]).stdout(Stdio::null()).spawn().unwrap();
    let in_flight = || {
        // The newest row of each: an earlier one may be from before its kernel began.
        let newest = |row: CollectiveRow| ((row.comm_id, row.op.clone(), row.seq), row);
        let rows: BTreeMap<_, _> = rows::<CollectiveRow>(run.path(), 0).into_iter().map(newest).collect();
        let mut rows: Vec<_> = rows.into_values().filter(|row| &*row.state != "done").collect();
        rows.sort_by_key(|row| row.enqueue_ns);
        rows
    };
    let start = std::time::Instant::now();
    let is_written = |rows: &[CollectiveRow]| {
        let states: Vec<(&str, bool)> = rows.iter().map(|row| (&*row.state, row.start_ns.is_some())).collect();
        states == [("started", true), ("enqueued", false)]
    };
    while !is_written(&in_flight()) {
        assert!(start.elapsed() < Duration::from_secs(60), "never on disk: {:?}", in_flight());
        std::thread::sleep(Duration::from_millis(50));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let rows = in_flight();
    assert!(is_written(&rows), "{rows:?}");
    assert!(rows.iter().all(|row| row.end_ns.is_none() && row.comm_size == Some(2)));
}
