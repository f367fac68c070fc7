//! A rank's job from its first barrier to its last row.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{Backend, Cpu};
use launch::Identity;
use recorder::{Kind, Phase, Recorder, Summary, ThreadRecorder};
use rustix::time::{ClockId, clock_gettime};
use trace::CommRow;
use twox_hash::XxHash3_64;

use crate::Error;
use crate::backend::{self, Plan};
use crate::cli::Options;
use crate::engine::{Engine, WORLD_NAME, World};
use crate::fabric::{Fabric, Lane, Stop};
use crate::inject;
use crate::observer::OpTable;
use crate::ping::PingTree;
use crate::recording::Recording;
use crate::report::Report;
use crate::setup::{RunPlace, RunRequest, agree_on_run, agree_on_success, host_hash};
use crate::trainer::{HostMemory, StepResult, Trainer};

/// What became of the job, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Checksum of the parameters after the last step.
    pub checksum: u64,
    /// Mean loss of the first and the last step.
    pub losses: (f64, f64),
    /// Rows lost on all ranks.
    pub dropped: u64,
    /// Ranks whose recording did not end in order.
    pub unclosed: u64,
}

impl Outcome {
    /// Exit code: 0, or 3 when rows were left out.
    pub fn exit_code(&self) -> u8 {
        if self.dropped == 0 && self.unclosed == 0 { 0 } else { 3 }
    }
}

/// Trains and records. Collective.
///
/// # Errors
/// Whatever stopped it; the recording is closed by then.
pub fn run(fabric: Arc<dyn Fabric>, options: &Options, identity: &Identity, stop: &Stop) -> Result<Outcome, Error> {
    for injection in &options.injections {
        if injection.rank() >= fabric.size() {
            let size = fabric.size();
            return Err(Error::Usage(format!("--inject {injection}: the job has ranks 0 to {} only", size - 1)));
        }
    }
    let plan = backend::choose(&*fabric, options, identity)?;
    let cpu = if matches!(plan, Plan::Cpu(_)) { Some(Cpu::new(options.dtype)?) } else { None };
    let launcher = identity.launcher.as_str();
    let request =
        RunRequest { out: options.out.clone(), launcher: launcher.into(), config: options.manifest_config(launcher) };
    let place = if options.record { Some(agree_on_run(&*fabric, &request)?) } else { None };
    let recorder = start_recorder(&*fabric, options, identity, place.as_ref(), &plan);
    let recorder = agree_on_success(&*fabric, recorder)?;
    let job = Job { fabric: &fabric, options, recorder: &recorder, stop, place: place.as_ref() };
    let trained = match (&plan, cpu) {
        (Plan::Cpu(why), Some(cpu)) => job.train(cpu, why.as_deref()),
        (plan, _) => backend::train_on_device(&job, plan),
    };
    // Whatever happened, what was recorded is kept; the last barrier comes after it, so that no rank is killed while it
    // writes.
    let summary = recorder.finish();
    let Trained { first, last, time, mut report } = trained?;
    let all = fabric.all_gather(Lane::Control, &summary_words(&summary))?;
    let sum = |index: usize| all.iter().skip(index).step_by(SUMMARY_WORDS).sum::<u64>();
    let outcome = Outcome {
        checksum: last.checksum,
        losses: (first.mean_loss, last.mean_loss),
        dropped: sum(1),
        unclosed: if options.record { sum(4) } else { 0 },
    };
    let totals = Totals { rows: sum(0), bytes: sum(2), failed_parts: sum(3), writer_cpu_ns: sum(5), cpu_ns: sum(6) };
    report.end(&outcome, time, totals, place.as_ref(), &summary);
    Ok(outcome)
}

/// Sums over all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Rows on disk.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Writes that failed.
    pub failed_parts: u64,
    /// CPU time of the threads that write the run, in ns.
    pub writer_cpu_ns: u64,
    /// CPU time of the ranks, all threads, in ns.
    pub cpu_ns: u64,
}

/// Rows, rows lost, bytes, failed writes, not closed, CPU time of the writer, CPU time of the process.
const SUMMARY_WORDS: usize = 7;

fn summary_words(summary: &Summary) -> [u64; SUMMARY_WORDS] {
    let Summary { recorded, dropped, bytes, failed_parts, closed_cleanly, writer_cpu_ns, .. } = summary;
    [*recorded, *dropped, *bytes, *failed_parts, u64::from(!closed_cleanly), *writer_cpu_ns, process_cpu_ns()]
}

fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn start_recorder(
    fabric: &dyn Fabric,
    options: &Options,
    identity: &Identity,
    place: Option<&RunPlace>,
    plan: &Plan,
) -> Result<Recorder, Error> {
    let rank = fabric.rank();
    let clock = inject::clock_for(&options.injections, rank);
    let Some(place) = place else { return Ok(Recorder::disabled(clock)) };
    let mut recording =
        recorder::Options::new(&place.path, &place.run_id, rank_number(rank), rank_number(fabric.size()));
    recording.clock = clock;
    recording.local_rank = identity.local_rank;
    recording.launcher = Some(identity.launcher.as_str().into());
    recording.versions =
        BTreeMap::from([("rank-agent".into(), env!("CARGO_PKG_VERSION").into()), ("fabric".into(), fabric.version())]);
    recording.versions.extend(backend::versions(plan));
    recording.device = backend::device(plan);
    Ok(Recorder::start(recording)?)
}

pub(crate) fn rank_number(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// What a rank trains with.
pub(crate) struct Job<'a> {
    pub(crate) fabric: &'a Arc<dyn Fabric>,
    pub(crate) options: &'a Options,
    pub(crate) recorder: &'a Recorder,
    pub(crate) stop: &'a Stop,
    pub(crate) place: Option<&'a RunPlace>,
}

/// What training came to.
pub(crate) struct Trained {
    pub(crate) first: StepResult,
    pub(crate) last: StepResult,
    pub(crate) time: Option<StepTime>,
    pub(crate) report: Report,
}

/// How long an active step took.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// The time.
    pub time: Duration,
    /// Of how many steps.
    pub steps: usize,
    /// `median`, or `mean` where single steps cannot be told apart.
    pub what: &'static str,
}

impl Job<'_> {
    fn train<B: Backend>(&self, backend: B, why: Option<&str>) -> Result<Trained, Error>
    where
        B::Buffer: HostMemory,
    {
        let Self { fabric, options, recorder, stop, place } = *self;
        let (rank, size) = (fabric.rank(), fabric.size());
        let backend_name = backend.name();
        let mut ops = OpTable::new(options.dtype);
        let trainer =
            Trainer::new(backend, &options.model, options.bucket_bytes, (rank, size), &options.injections, &mut ops);
        let mut trainer = agree_on_success(&**fabric, trainer)?;
        let (tree, hosts) = self.ping_tree()?;
        let main = recorder.thread("main");
        let world = self.world();
        let engine = Engine::start(fabric.clone(), options.progress, recorder, world, stop.clone(), trainer.buckets());
        let engine = RefCell::new(agree_on_success(&**fabric, engine)?);
        self.record_setup(&trainer, &world, hosts)?;
        let observer = Recording::new(recorder, &main, Some(&engine), &ops);
        let mut report = Report::new(rank, size, options);
        report.because(why);
        report.begin(backend_name, (trainer.gradient_bytes(), trainer.buckets()), hosts, place, &[]);
        self.ping(&tree)?;

        let mut results: Option<(StepResult, StepResult)> = None;
        let mut times: Vec<Duration> = Vec::new();
        let mut memory_is_recorded = false;
        for step in 0..options.steps {
            stop.check()?;
            let phase = options.schedule.phase(step);
            let begin = Instant::now();
            recorder.begin_step(rank_number(step as usize), phase);
            if phase == Phase::Active && !memory_is_recorded {
                trainer.record_memory(recorder, &main);
                memory_is_recorded = true;
            }
            let result = self.step(&mut trainer, &observer, &engine, &main, step)?;
            recorder.end_step(Some(result.loss));
            if phase == Phase::Active {
                times.push(begin.elapsed());
            }
            report.step(step, &result, begin.elapsed());
            results = Some((results.map_or(result, |(first, _)| first), result));
            let ends_window = phase == Phase::Active && options.schedule.phase(step + 1) != Phase::Active;
            if ends_window && step + 1 < options.steps {
                recorder.set_active(false);
                self.ping(&tree)?;
            }
        }
        recorder.set_active(false);
        self.ping(&tree)?;
        // --steps is at least 1.
        let (first, last) = results.ok_or_else(|| Error::Usage("--steps 0".into()))?;
        let steps = times.len();
        let time = median(times).map(|time| StepTime { time, steps, what: "median" });
        Ok(Trained { first, last, time, report })
    }

    fn step<B: Backend>(
        &self,
        trainer: &mut Trainer<B>,
        observer: &Recording<'_>,
        engine: &RefCell<Engine>,
        main: &ThreadRecorder,
        step: u32,
    ) -> Result<StepResult, Error>
    where
        B::Buffer: HostMemory,
    {
        // Interned for recorded steps only: every name is kept until the end.
        let _scope = main.active_step().map(|_| {
            let name = self.recorder.intern(&format!("ProfilerStep#{step}"));
            main.scope(Kind::UserAnnotation, name)
        });
        trainer.step(observer, engine, main, step)
    }

    /// The rows of the small tables that are known before the first step.
    fn record_setup<B: Backend>(&self, trainer: &Trainer<B>, world: &World, hosts: usize) -> Result<(), Error>
    where
        B::Buffer: HostMemory,
    {
        self.record_comm(world, hosts)?;
        Ok(self.recorder.rows(trainer.bucket_rows())?)
    }

    /// The row of the workload's communicator.
    pub(crate) fn record_comm(&self, world: &World, hosts: usize) -> Result<(), Error> {
        let size = rank_number(self.fabric.size());
        Ok(self.recorder.rows(vec![CommRow {
            rank: rank_number(self.fabric.rank()),
            comm_id: world.comm_id,
            name: Some(WORLD_NAME.into()),
            size: Some(size),
            ranks: Some((0..size).collect()),
            comm_rank: Some(rank_number(self.fabric.rank())),
            nodes: Some(rank_number(hosts)),
            created_ns: Some(self.recorder.clock().now_ns()),
            destroyed_ns: None,
        }])?)
    }

    /// Who pings whom, and on how many hosts the ranks are. Collective.
    pub(crate) fn ping_tree(&self) -> Result<(PingTree, usize), Error> {
        PingTree::for_fabric(&**self.fabric, host_hash())
    }

    /// What rows say of the workload's communicator.
    pub(crate) fn world(&self) -> World {
        let size = self.fabric.size();
        World::new(self.recorder, comm_id(size), size)
    }

    pub(crate) fn ping(&self, tree: &PingTree) -> Result<(), Error> {
        let samples = tree.burst(&**self.fabric, self.recorder.clock())?;
        Ok(self.recorder.rows(samples)?)
    }
}

/// The same number on all ranks, from what they all know of the communicator.
fn comm_id(size: usize) -> i64 {
    hash(&[WORLD_NAME.as_bytes(), &(size as u64).to_le_bytes()]).cast_signed()
}

pub(crate) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::default();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

/// The lower median.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}
