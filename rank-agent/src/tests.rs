//! Whole jobs whose ranks are threads, and the rows of their runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agent::Failure;
use agent::fabric::solo::Solo;
use agent::fabric::{Buffers, Control, Fabric, Group, InFlight, Lane, Stop, Transfer, threads};
use launch::Identity;
use trace::{
    BucketRow, CUT_SOURCE, ClockSampleRow, CollectiveRow, CommRow, CounterRow, EventRow, MemoryRow, RankRow, Run,
    StepRow,
};
use train::options::Options;
use train::report::Outcome;
use train::{Error, job};

use crate::cli;

/// A model of a few thousand parameters in several buckets.
const SMALL: &str = "--backend cpu --layers 4 --hidden 48 --batch 16 --bucket-mb 0 --steps 9 --lr 0.05";

fn options(run: Option<&Path>, arguments: &str) -> Options {
    let out = run.map_or("--record off".into(), |run| format!("--out {}", run.display()));
    cli::options(&format!("{SMALL} {out} {arguments}")).unwrap()
}

fn run_on(size: usize, run: Option<&Path>, arguments: &str) -> Vec<Result<Outcome, Error>> {
    let options = options(run, arguments);
    threads::run(size, |fabric| job::run(fabric, &options, &Identity::ALONE, &Stop::default()))
}

fn learns(outcome: &Outcome) -> bool {
    outcome.losses.is_some_and(|(first, last)| last < 0.8 * first)
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn rows<R: trace::Row>(run: &Run, rank: i32) -> Vec<R> {
    let (rows, problems) = run.rows::<R>(rank);
    assert_eq!(problems, []);
    rows
}

/// Invariant (recorder): All ranks hold the same bits after every step.
#[test]
fn four_ranks_learn_and_hold_the_same_bits_however_mpi_is_driven() {
    let mut checksums = BTreeSet::new();
    for progress in ["thread", "poll", "none"] {
        for outcome in run_on(4, None, &format!("--progress {progress}")) {
            let outcome = outcome.unwrap();
            checksums.insert(outcome.checksum);
            assert!(learns(&outcome), "the loss falls: {:?}", outcome.losses);
            assert_eq!(outcome.exit_code(), 0);
        }
    }
    assert_eq!(checksums.len(), 1, "the result does not depend on --progress");
}

#[test]
fn a_run_holds_every_operation_and_collective() {
    for progress in ["thread", "poll", "none"] {
        let dir = temporary();
        for outcome in run_on(3, Some(dir.path()), &format!("--progress {progress}")) {
            assert_eq!(outcome.unwrap().dropped, 0);
        }
        let run = Run::open(dir.path()).unwrap();
        assert_eq!((run.problems.len(), run.ranks()), (0, vec![0, 1, 2]));
        for rank in 0..3 {
            check_collectives(&run, rank);
            check_events(&run, rank);
            check_small_tables(&run, rank);
        }
    }
}

/// Steps 3 to 7 are active; each has one all-reduce per bucket and one comparison of checksums.
fn check_collectives(run: &Run, rank: i32) {
    let buckets: Vec<BucketRow> = rows(run, rank);
    assert_eq!((buckets[0].first_parameter.as_ref(), buckets.len()), ("layer3.bias", 8));
    let events: BTreeMap<i64, EventRow> = rows(run, rank).into_iter().map(|row: EventRow| (row.id, row)).collect();
    let mut collectives: Vec<CollectiveRow> = rows(run, rank);
    collectives.retain(|row| &*row.state == "done");
    // The rows of the two threads are not ordered.
    collectives.sort_by_key(|row| row.seq);
    let per_step = buckets.len() + 1;
    assert_eq!(collectives.len(), 5 * per_step);
    for (index, row) in collectives.iter().enumerate() {
        let (step, place) = (3 + index / per_step, index % per_step);
        assert_eq!(row.step, Some(step as i32));
        assert_eq!(row.seq, Some((step * per_step + place) as i64), "seq also counts unrecorded collectives");
        assert!(row.enqueue_ns <= row.start_ns && row.start_ns <= row.end_ns, "{row:?}");
        let event = &events[&row.event_id.unwrap()];
        assert_eq!((Some(event.ts_ns), event.step, event.is_comm), (row.start_ns, row.step, Some(true)));
        if place < buckets.len() {
            assert_eq!((row.bucket, &*row.op, &*event.name), (Some(place as i32), "allreduce", "mpi:all_reduce"));
            assert_eq!(row.bytes, Some(buckets[place].bytes));
            assert!(row.ready_ns <= row.enqueue_ns);
        } else {
            assert_eq!((row.bucket, &*row.op, &*event.name), (None, "allgather", "mpi:all_gather"));
        }
        if let Some(next) = collectives.get(index + 1) {
            assert!(row.end_ns <= next.start_ns, "one after the other");
        }
    }
}

/// A step is a tree: ProfilerStep ⊃ phases ⊃ operations.
fn check_events(run: &Run, rank: i32) {
    let events: Vec<EventRow> = rows(run, rank);
    let names: BTreeMap<i64, &str> = events.iter().map(|row| (row.id, &*row.name)).collect();
    let mut parents: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in &events {
        assert_ne!(row.open, Some(true));
        let parent = row.parent_id.map_or("", |id| names[&id]);
        let parent = if parent.starts_with("ProfilerStep#") { "step" } else { parent };
        let name = if row.name.starts_with("ProfilerStep#") { "step" } else { &*row.name };
        *parents.entry((name, parent)).or_default() += 1;
    }
    // 4 layers, 8 parameters, 8 buckets, 5 steps.
    for (name, parent, per_step) in [
        ("step", "", 1),
        ("input", "step", 1),
        ("forward", "step", 1),
        ("backward", "step", 1),
        ("optimizer", "step", 1),
        ("make_batch", "input", 1),
        ("gemm", "forward", 4),
        ("gemm", "backward", 7),
        ("softmax_cross_entropy", "forward", 1),
        ("bucket_pack", "backward", 8),
        ("mpi:all_reduce_enqueue", "backward", 8),
        ("wait_all_reduce", "optimizer", 1),
        ("bucket_unpack", "optimizer", 8),
        ("sgd_momentum", "optimizer", 8),
        ("checksum", "optimizer", 1),
        ("mpi:all_gather", "optimizer", 1),
    ] {
        assert_eq!(parents.get(&(name, parent)), Some(&(5 * per_step)), "{name} in {parent}: {parents:?}");
    }
    let gemm = events.iter().find(|row| &*row.name == "gemm").unwrap();
    assert_eq!((&*gemm.kind, gemm.flops), ("cpu_op", Some(2 * 16 * 48 * 48)));
    assert_eq!(gemm.input_dims.as_deref(), Some("[[16, 48], [48, 48]]"));
}

fn check_small_tables(run: &Run, rank: i32) {
    let steps: Vec<StepRow> = rows(run, rank);
    let phases: Vec<(i32, &str)> = steps.iter().map(|row| (row.step, &*row.phase)).collect();
    assert_eq!(phases[..3], [(1, "warmup"), (2, "warmup"), (3, "active")]);
    assert!(phases.len() == 7 && steps.iter().all(|row| row.loss.is_some_and(f64::is_finite)));
    let comms: Vec<CommRow> = rows(run, rank);
    assert_eq!((comms[0].size, comms[0].ranks.as_deref(), comms[0].nodes), (Some(3), Some(&[0, 1, 2][..]), Some(1)));
    let memory: Vec<MemoryRow> = rows(run, rank);
    let window = steps.iter().find(|row| &*row.phase == "active").unwrap();
    assert!(memory.iter().all(|row| row.ts_ns >= window.start_ns && row.ts_ns <= window.end_ns));
    assert_eq!(memory.last().unwrap().allocated_bytes, Some(memory.iter().map(|row| row.delta_bytes).sum()));
    // Bursts at begin, after the window and at the end; rank 0 is the root of the tree.
    let samples: Vec<ClockSampleRow> = rows(run, rank);
    let pings = samples.iter().filter(|row| &*row.kind == "ping").count();
    assert_eq!(pings, if rank == 0 { 0 } else { 3 * 16 });
    assert_eq!(samples.len() - pings, 3 * 4);
    let ranks: Vec<RankRow> = rows(run, rank);
    assert!(ranks.last().unwrap().closed_cleanly);
}

#[test]
fn a_single_rank_trains_without_collectives() {
    let dir = temporary();
    let options = options(Some(dir.path()), "");
    let outcome = job::run(Arc::new(Solo), &options, &Identity::ALONE, &Stop::default()).unwrap();
    assert!(learns(&outcome));
    let run = Run::open(dir.path()).unwrap();
    assert_eq!(rows::<CollectiveRow>(&run, 0), []);
    assert_eq!(rows::<BucketRow>(&run, 0).len(), 8);
    assert!(rows::<EventRow>(&run, 0).iter().any(|row| &*row.name == "bucket_unpack"));
}

#[test]
fn a_long_training_compares_clocks_between_its_steps() {
    for progress in ["thread", "none"] {
        let dir = temporary();
        let arguments = format!("--progress {progress} --schedule wait=0,warmup=0,active=6,repeat=1");
        let options = Options { ping_interval: Duration::ZERO, ..options(Some(dir.path()), &arguments) };
        let outcomes = threads::run(3, |fabric| job::run(fabric, &options, &Identity::ALONE, &Stop::default()));
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().dropped == 0));
        let run = Run::open(dir.path()).unwrap();
        for rank in 0..3 {
            let steps: Vec<StepRow> = rows(&run, rank);
            let samples: Vec<ClockSampleRow> = rows(&run, rank);
            assert_eq!((samples.len(), steps.len()), (10 * (4 + if rank == 0 { 0 } else { 16 }), 6));
            let is_inside = |t| steps.iter().any(|step| (step.start_ns..step.end_ns).contains(&t));
            assert!(!samples.iter().any(|sample| is_inside(sample.local_ns)), "no step is longer for a comparison");
            // One before the first of 9 steps, and one after each of them.
            let gaps = steps.windows(2).map(|pair| pair[0].end_ns..pair[1].start_ns);
            for gap in gaps {
                let in_gap = samples.iter().filter(|sample| gap.contains(&sample.local_ns)).count();
                assert_eq!(in_gap, samples.len() / 10, "{gap:?}");
            }
        }
    }
}

/// A fabric whose all-reduces fail on rank 2 after some sums.
struct Faulty {
    inner: Arc<dyn Fabric>,
    sums_until_wrong: AtomicU32,
    fault: SumFault,
}

#[derive(Clone, Copy, PartialEq)]
enum SumFault {
    /// The last bit of the sum is wrong.
    WrongBit,
    /// The call fails.
    Error,
}

struct FaultySum(Box<dyn InFlight>, bool);

impl InFlight for FaultySum {
    fn test(&mut self) -> Result<bool, agent::Error> {
        self.0.test()
    }

    fn into_buffers(self: Box<Self>) -> Buffers {
        let mut buffers = self.0.into_buffers();
        if let Some(first) = buffers.recv.first_mut().filter(|_| self.1) {
            *first = first.next_up();
        }
        buffers
    }
}

impl Control for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn version(&self) -> String {
        self.inner.version()
    }
    fn barrier(&self) -> Result<(), agent::Error> {
        self.inner.barrier()
    }
    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, agent::Error> {
        self.inner.broadcast(bytes)
    }
    fn all_gather(&self, lane: Lane, mine: &[u64]) -> Result<Vec<u64>, agent::Error> {
        self.inner.all_gather(lane, mine)
    }
    fn send_word(&self, peer: usize, word: i64) -> Result<(), agent::Error> {
        self.inner.send_word(peer, word)
    }
    fn receive_word(&self, peer: usize) -> Result<i64, agent::Error> {
        self.inner.receive_word(peer)
    }
    fn abandon(&self, exit_code: u8) {
        self.inner.abandon(exit_code);
    }
}

impl Fabric for Faulty {
    fn split(&self, color: usize) -> Result<Arc<dyn Group>, agent::Error> {
        self.inner.split(color)
    }
}

impl Group for Faulty {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, agent::Error> {
        let left = self.sums_until_wrong.load(Ordering::Relaxed);
        self.sums_until_wrong.store(left.saturating_sub(1), Ordering::Relaxed);
        let is_wrong = left == 0 && self.rank() == 2;
        if is_wrong && self.fault == SumFault::Error {
            return Err(agent::Error::Fabric("the network is gone".into()));
        }
        Ok(Box::new(FaultySum(self.inner.start(transfer, buffers)?, is_wrong)))
    }
}

#[test]
fn a_wrong_sum_ends_the_job_on_every_rank_and_closes_the_run() {
    let dir = temporary();
    let options = options(Some(dir.path()), "");
    let errors = threads::run(3, |inner| {
        // 8 buckets per step: the sums are wrong from step 4 on.
        let faulty = Faulty { inner, sums_until_wrong: AtomicU32::new(32), fault: SumFault::WrongBit };
        job::run(Arc::new(faulty), &options, &Identity::ALONE, &Stop::default()).unwrap_err()
    });
    for error in errors {
        let message = error.to_string();
        assert!(message.contains("after step 4: 2 of 3 ranks") && message.contains("rank 2 has"), "{message}");
        assert_eq!((error.exit_code(), error.is_collective()), (1, true));
    }
    let run = Run::open(dir.path()).unwrap();
    assert_eq!(run.problems, []);
    for rank in 0..3 {
        assert!(rows::<RankRow>(&run, rank).last().unwrap().closed_cleanly);
        assert!(rows::<EventRow>(&run, rank).iter().any(|row| row.step == Some(4)));
    }
}

#[test]
fn an_mpi_error_on_one_rank_ends_the_waits_of_the_others() {
    for progress in ["thread", "poll", "none"] {
        let dir = temporary();
        let options = options(Some(dir.path()), &format!("--progress {progress}"));
        let errors = threads::run(3, |inner| {
            let faulty = Faulty { inner: inner.clone(), sums_until_wrong: AtomicU32::new(36), fault: SumFault::Error };
            let error = job::run(Arc::new(faulty), &options, &Identity::ALONE, &Stop::default()).unwrap_err();
            inner.abandon(error.exit_code());
            error
        });
        for (rank, error) in errors.iter().enumerate() {
            match error {
                Error::Agent(agent::Error::Fabric(_)) if rank == 2 => {
                    assert_eq!((error.exit_code(), error.is_collective()), (1, false))
                }
                Error::Agent(agent::Error::Abandoned) if rank != 2 => assert!(error.is_aftermath()),
                _ => panic!("--progress {progress}, rank {rank}: {error}"),
            }
        }
        let run = Run::open(dir.path()).unwrap();
        assert_eq!(run.problems, []);
        // The run shows the unfinished all-reduce of the other ranks.
        let rows: Vec<CollectiveRow> = rows(&run, 0);
        assert!(rows.iter().any(|row| &*row.state == "started" && row.step == Some(4)), "--progress {progress}");
    }
}

#[test]
fn a_directory_that_is_not_empty_is_refused_on_every_rank() {
    let dir = temporary();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    for result in run_on(3, Some(dir.path()), "") {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Agent(agent::Error::RunExists(path)) if path == dir.path()), "{error}");
        assert_eq!((error.exit_code(), error.is_collective()), (1, true));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // A file is refused, too.
    let error = run_on(1, Some(&dir.path().join("notes.txt")), "").remove(0).unwrap_err();
    assert!(matches!(error, Error::Agent(agent::Error::RunExists(_))));
}

#[test]
fn a_fault_for_a_rank_that_does_not_exist_is_refused() {
    for result in run_on(2, None, "--inject slow:rank=2,ms=1") {
        let error = result.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("ranks 0 to 1 only"), "{error}");
    }
}

#[test]
fn a_slow_rank_shows_as_self_time_of_the_phase() {
    for phase in ["input", "forward", "backward"] {
        let dir = temporary();
        for outcome in run_on(2, Some(dir.path()), &format!("--inject slow:rank=1,ms=7,phase={phase}")) {
            outcome.unwrap();
        }
        let run = Run::open(dir.path()).unwrap();
        let events: Vec<EventRow> = rows(&run, 1);
        let phases: Vec<&EventRow> = events.iter().filter(|row| &*row.name == phase).collect();
        assert_eq!(phases.len(), 5);
        for row in phases {
            let children = events.iter().filter(|child| child.parent_id == Some(row.id));
            let self_ns = row.dur_ns - children.map(|child| child.dur_ns).sum::<i64>();
            assert!(self_ns >= 7_000_000, "{phase}: {self_ns} ns");
        }
    }
}

#[test]
fn a_stopped_rank_closes_its_run() {
    let dir = temporary();
    let options = options(Some(dir.path()), "");
    let stop = Stop::default();
    stop.raise(15);
    let error = job::run(Arc::new(Solo), &options, &Identity::ALONE, &stop).unwrap_err();
    assert_eq!((error.exit_code(), error.is_aftermath()), (143, true));
    let message = error.to_string();
    assert!(message.starts_with("signal 15 (SIGTERM) stopped the training in step 0 of "), "{message}");
    assert!(message.contains(&dir.path().display().to_string()), "{message}");
    let run = Run::open(dir.path()).unwrap();
    assert!(rows::<RankRow>(&run, 0).last().unwrap().closed_cleanly);
    let counters = rows::<CounterRow>(&run, 0);
    assert!(counters.iter().all(|row| row.dropped == 0));
    assert!(counters.iter().any(|row| &*row.source == CUT_SOURCE && row.why.is_some()), "{counters:?}");
}

/// The rows of all ranks, matched by communicator, number, and pair of a message; each group has all members.
fn check_matching(run: &Run, ranks: i32) {
    let mut groups: BTreeMap<(i64, String, i64), (i32, i32)> = BTreeMap::new();
    for rank in 0..ranks {
        let comms: Vec<CommRow> = rows(run, rank);
        for row in rows::<CollectiveRow>(run, rank).iter().filter(|row| &*row.state == "done") {
            let comm = comms.iter().find(|comm| comm.comm_id == row.comm_id).unwrap();
            let global = |place: i32| comm.ranks.as_ref().unwrap()[place as usize];
            let (what, expected) = match (&*row.op, row.peer) {
                ("send", Some(peer)) => (format!("{rank}-{}", global(peer)), 2),
                ("recv", Some(peer)) => (format!("{}-{rank}", global(peer)), 2),
                (op, None) => (op.to_string(), comm.size.unwrap()),
                (op, Some(_)) => panic!("{op} has no peer"),
            };
            let group = groups.entry((row.comm_id, what, row.seq.unwrap())).or_insert((0, expected));
            group.0 += 1;
            assert!(row.start_ns <= row.end_ns && row.bytes.unwrap() > 0);
        }
    }
    assert!(groups.len() > 20);
    for (key, (found, expected)) in groups {
        assert_eq!(found, expected, "{key:?}");
    }
}

#[test]
fn parallel_jobs_transfer_what_their_parallelism_needs() {
    for (arguments, ops) in [
        ("--parallel dp=2,tp=2", ["allgather", "allreduce"].as_slice()),
        ("--parallel pp=4 --microbatches 3 --compute sleep", &["allgather", "recv", "send"]),
        ("--parallel dp=2,pp=2", &["allgather", "allreduce", "recv", "send"]),
        ("--fsdp", &["allgather", "reducescatter"]),
        ("--fsdp --parallel dp=2,tp=2 --microbatches 2", &["allgather", "allreduce", "reducescatter"]),
        ("--compute spin", &["allgather", "allreduce"]),
    ] {
        let dir = temporary();
        for outcome in run_on(4, Some(dir.path()), arguments) {
            let outcome = outcome.unwrap();
            assert_eq!((outcome.dropped, outcome.losses, outcome.checksum), (0, None, None), "{arguments}");
        }
        let run = Run::open(dir.path()).unwrap();
        assert_eq!(run.problems, [], "{arguments}");
        check_matching(&run, 4);
        let found: BTreeSet<String> =
            (0..4).flat_map(|rank| rows::<CollectiveRow>(&run, rank)).map(|row| row.op.to_string()).collect();
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ops, "{arguments}");
    }
}

#[test]
fn a_mesh_that_does_not_fit_is_refused() {
    for (size, arguments, part) in [
        (4, "--parallel dp=2,pp=4", "needs 8 ranks, the job has 4"),
        (3, "--parallel pp=3", "cannot be divided among 3 stages"),
        (5, "--parallel tp=5", "cannot be divided into 5 parts"),
        (4, "--parallel dp=2,pp=2 --fsdp", "--fsdp has no pipeline"),
        (4, "--parallel dp=2,pp=2 --inject slow:stage=2,ms=1", "stages 0 to 1 only"),
    ] {
        for result in run_on(size, None, arguments) {
            let error = result.unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(part), "{arguments}: {error}");
        }
    }
}

#[test]
fn a_slow_link_and_a_slow_stage_show_where_they_are() {
    let dir = temporary();
    let faults = "--inject link:ranks=0-1,ms=6 --inject slow:stage=1,ms=8,phase=backward";
    let arguments = format!("--parallel dp=2,pp=2 --microbatches 2 --compute sleep {faults}");
    for outcome in run_on(4, Some(dir.path()), &arguments) {
        outcome.unwrap();
    }
    let run = Run::open(dir.path()).unwrap();
    let shortest_ns = |rank| {
        let rows: Vec<CollectiveRow> = rows(&run, rank);
        let reduced = rows.iter().filter(|row| &*row.op == "allreduce" && &*row.state == "done");
        reduced.map(|row| row.end_ns.unwrap() - row.start_ns.unwrap()).min().unwrap()
    };
    assert!(shortest_ns(0) >= 6_000_000 && shortest_ns(2) < 6_000_000, "{} {}", shortest_ns(0), shortest_ns(2));
    for rank in [2, 3] {
        let events: Vec<EventRow> = rows(&run, rank);
        let passes: Vec<&EventRow> = events.iter().filter(|row| &*row.name == "backward").collect();
        assert!(
            passes.len() == 10 && passes.iter().all(|row| row.dur_ns >= 4_000_000),
            "half of it in each microbatch"
        );
    }
}
