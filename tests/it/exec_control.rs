//! Recording that is switched while the program runs: by a schedule, and by `rank-agent ctl`. The program plays NCCL.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use trace::{CollectiveRow, CounterRow, NcclChannelRow, NcclProxyRow, Row, Run};

use crate::support::{Finished, RANK_AGENT, analyze, finish, inject_library, master_port, scratch};

/// Bits of NCCL's event mask.
pub(crate) const COLL: u64 = 2;
const PROXY: u64 = 8;
pub(crate) const CHANNELS: u64 = 64;

const REPLAY: &str = env!("CARGO_BIN_EXE_nccl-replay-under-test");

/// A directory for sockets, with a name short enough for one.
pub(crate) fn runtime() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("rankscope-").tempdir_in("/tmp").unwrap()
}

fn rows<R: Row>(run: &Path, rank: i32) -> Vec<R> {
    Run::open(run).unwrap().rows::<R>(rank).0
}

/// What the run says of the time without recording.
fn schedule_said(run: &Path, rank: i32) -> String {
    let counters = rows::<CounterRow>(run, rank);
    let row = counters.iter().find(|row| &*row.source == "schedule");
    row.and_then(|row| row.why.as_deref()).unwrap_or_default().to_string()
}

/// A program under `exec` that makes collectives until recording was switched `switches` times.
pub(crate) struct Recorded {
    agent: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Recorded {
    pub(crate) fn start(
        run: &Path,
        runtime: &Path,
        arguments: &[&str],
        switches: u32,
        rank_of: Option<(i32, u16)>,
    ) -> Self {
        let mut command = Command::new(RANK_AGENT);
        command.args(["exec", "--out"]).arg(run).args(arguments).arg("--").arg(REPLAY).arg(inject_library());
        command.args(["steady", "5"]).arg(switches.to_string());
        command.env("RANKSCOPE_INJECT_LIB", inject_library()).env("XDG_RUNTIME_DIR", runtime);
        if let Some((rank, port)) = rank_of {
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank.to_string());
            command.env("LOCAL_WORLD_SIZE", "2").env("TORCHELASTIC_RUN_ID", "a test");
            command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", port.to_string());
        }
        let mut agent = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
        Self { agent, lines }
    }

    /// The next number that the program says of `name`.
    #[track_caller]
    pub(crate) fn next(&mut self, name: &str) -> u64 {
        for line in &mut self.lines {
            if let Some(value) = line.unwrap().strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
                return value.parse().unwrap();
            }
        }
        panic!("the program ended without {name}");
    }

    #[track_caller]
    pub(crate) fn end(mut self) {
        assert_eq!(self.agent.wait().unwrap().code(), Some(0));
    }
}

pub(crate) fn ctl(runtime: &Path, arguments: &[&str]) -> Finished {
    finish(Command::new(RANK_AGENT).arg("ctl").args(arguments).env("XDG_RUNTIME_DIR", runtime))
}

/// Invariant (recorder): Recording can be started and stopped on all ranks while the program runs, and the run lists
/// what was left out.
#[test]
fn a_schedule_of_time_records_its_part_and_says_so() {
    let (run, runtime) = (scratch("exec_schedule").join("run"), runtime());
    // Long enough for a slow machine to start the program meanwhile, and for the program to see that it is recorded.
    let mut program = Recorded::start(&run, runtime.path(), &["--delay", "5", "--duration", "2"], 2, None);
    let masks = [program.next("mask"), program.next("mask"), program.next("mask")];
    assert_eq!(masks.map(|mask| mask & COLL), [0, COLL, 0], "nothing is asked for before the delay is over");
    assert_eq!(masks.map(|mask| mask & CHANNELS), [CHANNELS; 3], "NCCL must count from the start what it times later");
    let [told, taken, last_taken] = ["told", "taken", "last_taken"].map(|name| program.next(name));
    program.end();
    let collectives = rows::<CollectiveRow>(&run, 0);
    let done = collectives.iter().filter(|row| &*row.state == "done").count() as u64;
    // Recording ends a moment before the program hears of it: what it tells in between is refused, and nothing before.
    assert_eq!((done, taken), (taken, last_taken), "done and taken of {told}");
    assert!(0 < taken && taken <= told, "{taken} of {told}");
    let said = schedule_said(&run, 0);
    let delay = said.split_once("0.000 to ").and_then(|(_, rest)| rest.split_once(" s (--delay)"));
    let delay_s: f64 = delay.and_then(|(seconds, _)| seconds.parse().ok()).unwrap_or_default();
    assert!(delay_s >= 5.0 && said.contains("(--duration)"), "{said}");
    let analysis = analyze(&run, &[], 0).stdout;
    assert!(analysis.contains("part of the program was not recorded"), "{analysis}");
}

#[test]
fn a_paused_program_is_recorded_from_ctl_start_on() {
    let (run, runtime) = (scratch("exec_paused").join("run"), runtime());
    let mut program = Recorded::start(&run, runtime.path(), &["--paused"], 1, None);
    assert_eq!(program.next("mask") & COLL, 0);
    // Programs of other tests run at the same time.
    let said = ctl(runtime.path(), &["status", "--out", &run.display().to_string()]).expect_code(0).stdout;
    assert!(said.contains(": not recording") && !said.contains("starts in"), "{said}");
    ctl(runtime.path(), &["start", "--out", &run.display().to_string()]).expect_code(0);
    assert_eq!(program.next("mask") & COLL, COLL);
    program.end();
    let said = schedule_said(&run, 0);
    assert!(said.contains("0.000 to ") && said.contains("(--paused)"), "{said}");
    let mut both = Command::new(RANK_AGENT);
    finish(both.args(["exec", "--paused", "--delay", "3", "--", "true"])).expect_code(2);
}

#[test]
fn a_program_that_ends_before_its_delay_leaves_an_empty_run_that_says_why() {
    let run = scratch("exec_never").join("run");
    let mut command = Command::new(RANK_AGENT);
    command.args(["exec", "--delay", "3600", "--out"]).arg(&run).arg("--").arg(REPLAY).arg(inject_library());
    command.args(["sequence", "5", "10"]).env("RANKSCOPE_INJECT_LIB", inject_library());
    // The harness insists on being asked; that it ends so is its own affair.
    finish(&mut command);
    let said: String = analyze(&run, &[], 0).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("nothing was recorded: recording was off for"), "{said}");
    assert!(rows::<CollectiveRow>(&run, 0).is_empty() && !said.contains("neither CUDA nor NCCL"), "{said}");
}

/// Invariant (recorder): Recording can be started and stopped on all ranks while the program runs, and the run lists
/// what was left out.
#[test]
fn ctl_switches_a_running_program_and_its_detail() {
    let (run, runtime) = (scratch("exec_ctl").join("run"), runtime());
    let out = run.display().to_string();
    let mut program = Recorded::start(&run, runtime.path(), &["--nccl-detail", "coll"], 3, None);
    let coll = program.next("mask");
    assert_eq!((coll & COLL, coll & CHANNELS, coll & PROXY), (COLL, 0, 0));
    let said = ctl(runtime.path(), &["status", "--out", &out]).expect_code(0).stdout;
    assert!(said.contains(&out) && said.contains("rank 0") && said.contains(": recording, NCCL coll"), "{said}");
    let said = ctl(runtime.path(), &["stop", "--out", &out]).expect_code(0).stdout;
    assert!(said.contains("not recording"), "{said}");
    assert_eq!(program.next("mask") & COLL, 0);
    let pid = program.agent.id().to_string();
    ctl(runtime.path(), &["start", "--pid", &pid, "--nccl-detail", "proxy"]).expect_code(0);
    let proxy = program.next("mask");
    assert_eq!((proxy & COLL, proxy & CHANNELS, proxy & PROXY), (COLL, 0, PROXY), "channels begin with the program");
    let said = ctl(runtime.path(), &["status", "--json", "--out", &out]).expect_code(0).stdout;
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&status[0]["recording"], &status[0]["nccl_detail"]), (&true.into(), &"proxy".into()), "{said}");
    assert!(status[0]["off_s"].as_f64().unwrap() > 0.0, "{said}");
    ctl(runtime.path(), &["stop", "--out", &out]).expect_code(0);
    assert_eq!(program.next("mask") & COLL, 0);
    program.end();

    let sources: Vec<String> = rows::<CollectiveRow>(&run, 0).iter().map(|row| row.timing_source.to_string()).collect();
    assert!(sources.iter().any(|source| source == "enqueue"), "coll: only the hand-over");
    assert!(rows::<NcclChannelRow>(&run, 0).is_empty() && !rows::<NcclProxyRow>(&run, 0).is_empty());
    let why: Vec<_> = rows::<CounterRow>(&run, 0).into_iter().filter_map(|row| row.why).collect();
    assert!(why.iter().any(|why| why.contains("start it with --nccl-detail channels")), "{why:?}");
    let said = schedule_said(&run, 0);
    assert!(said.matches("(rankscope ctl)").count() == 2, "{said}");
    // It has gone, and left nothing.
    let done = ctl(runtime.path(), &["status", "--out", &out]).expect_code(1);
    assert!(done.stderr.contains("no running exec on this host that records to"), "{}", done.stderr);
    assert_eq!(std::fs::read_dir(runtime.path().join("rankscope")).unwrap().count(), 0);
    ctl(runtime.path(), &["stop", "--duration", "1"]).expect_code(2);
    ctl(runtime.path(), &["start", "--duration", "-1"]).expect_code(2);
}

/// Invariant (recorder): Recording can be started and stopped on all ranks while the program runs, and the run lists
/// what was left out.
#[test]
fn a_ctl_command_to_one_rank_reaches_all_ranks() {
    let (run, runtime) = (scratch("exec_ctl_ranks").join("run"), runtime());
    let port = master_port();
    let start = |rank| Recorded::start(&run, runtime.path(), &[], 2, Some((rank, port)));
    let (mut a, mut b) = (start(0), start(1));
    assert_eq!((a.next("mask") & COLL, b.next("mask") & COLL), (COLL, COLL));
    let pid = b.agent.id().to_string();
    // As if the other were on another host.
    ctl(runtime.path(), &["stop", "--pid", &pid]).expect_code(0);
    assert_eq!((a.next("mask") & COLL, b.next("mask") & COLL), (0, 0));
    // Both at once, for a while.
    let said = ctl(runtime.path(), &["start", "--duration", "3600", "--out", &run.display().to_string()])
        .expect_code(0)
        .stdout;
    assert!(said.contains("rank 0") && said.contains("rank 1") && said.contains("; stops in 3"), "{said}");
    assert_eq!((a.next("mask") & COLL, b.next("mask") & COLL), (COLL, COLL));
    a.end();
    b.end();
    for rank in 0..2 {
        assert!(schedule_said(&run, rank).contains("(rankscope ctl)"), "rank {rank}");
        assert!(!rows::<CollectiveRow>(&run, rank).is_empty());
    }
}
