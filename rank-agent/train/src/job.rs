//! A rank's job from its first barrier to its last row.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agent::fabric::agree::{RunPlace, RunRequest, agree_on_run, agree_on_success, host_hash};
use agent::fabric::{Fabric, Lane, Stop};
use kernels::Cpu;
use launch::Identity;
use recorder::{Kind, Phase, Recorder, Summary, ThreadRecorder};
use rustix::time::{ClockId, clock_gettime};
use trace::{CUT_SOURCE, CounterRow};

use crate::Error;
use crate::backend::{self, Plan};
use crate::context::{ClockComparison, JobContext, Trained, rank_number};
use crate::engine::Engine;
use crate::faults::{self, Fault};
use crate::op_observer::OpTable;
use crate::op_recording::OpRecording;
use crate::options::{BackendChoice, Collectives, Options};
use crate::parallel::mesh::Mesh;
use crate::parallel::{ParallelTrainer, Wires};
use crate::report::{Outcome, Report, StepTime, Totals};
use crate::trainer::Trainer;
use crate::training::{StepResult, Training};

/// Trains and records. Collective.
///
/// # Errors
/// The error that stopped the job; the recording is closed by then.
pub fn run(fabric: Arc<dyn Fabric>, options: &Options, identity: &Identity, stop: &Stop) -> Result<Outcome, Error> {
    let mesh = options.mesh(fabric.size())?;
    let request_config = options.manifest_config(identity.launcher.as_str());
    let faults = faults_of_rank(&*fabric, options, mesh)?;
    // The work of a job with several communicators is the CPU's; NCCL needs the device nevertheless.
    let backend = match mesh {
        Some(_) if options.collectives == Collectives::Nccl => BackendChoice::Cuda,
        Some(_) => BackendChoice::Cpu,
        None => options.backend,
    };
    let options = &Options { faults, backend, ..options.clone() };
    let plan = backend::choose(&*fabric, options, identity)?;
    let cpu = if matches!(plan, Plan::Cpu(_)) || mesh.is_some() { Some(Cpu::new(options.dtype)?) } else { None };
    let request = RunRequest {
        out: options.out.clone(),
        command: trace::command_line::texts(),
        launcher: identity.launcher.as_str().into(),
        config: request_config,
        world_size: fabric.size(),
    };
    let place = if options.record { Some(agree_on_run(&*fabric, &request)?) } else { None };
    let recorder = start_recorder(&*fabric, options, identity, place.as_ref(), &plan);
    let recorder = agree_on_success(&*fabric, recorder)?;
    let begun = AtomicU32::new(0);
    let context =
        JobContext { fabric: &fabric, options, recorder: &recorder, stop, place: place.as_ref(), begun: &begun };
    let trained = match (&plan, cpu, mesh) {
        (Plan::Cpu(why), Some(cpu), None) => {
            let Options { model, bucket_bytes, faults, .. } = options;
            let make = |ops: &mut OpTable| Trainer::new(cpu, model, *bucket_bytes, &fabric, faults, ops);
            train(&context, make, (why.as_deref(), &[]))
        }
        (Plan::Cpu(why), Some(cpu), Some(mesh)) => {
            let wires = Wires { name: "mpi", split: &|color| Ok(fabric.split(color)?) };
            let make = |ops: &mut OpTable| ParallelTrainer::new(context, cpu, (mesh, wires), ops);
            train(&context, make, (why.as_deref(), &[]))
        }
        #[cfg(feature = "cuda")]
        (Plan::Cuda(plan), Some(cpu), Some(mesh)) => {
            let make = |ops: &mut OpTable| {
                let groups = crate::cuda::NcclGroups::open(plan, &*fabric)?;
                let wires = Wires { name: "nccl", split: &|color| groups.split(color) };
                ParallelTrainer::new(context, cpu, (mesh, wires), ops)
            };
            train(&context, make, (None, &plan.notes))
        }
        (plan, ..) => train_on_device(&context, plan),
    };
    // The recording is closed even after an error. The last barrier comes after it, so that the launcher kills no rank
    // that still writes.
    if let Err(error) = &trained {
        note_cut(&recorder, error, &begun);
    }
    let summary = recorder.finish();
    let Trained { first, last, time, mut report } = trained.map_err(|error| match error {
        Error::Agent(agent::Error::Stopped(signal)) => interrupted(signal, options, &begun, place.as_ref()),
        error => error,
    })?;
    let all = fabric.all_gather(Lane::Control, &summary_words(&summary))?;
    let sum = |index: usize| all.iter().skip(index).step_by(SUMMARY_WORDS).sum::<u64>();
    let outcome = Outcome {
        checksum: last.learned.map(|learned| learned.checksum),
        losses: first.learned.zip(last.learned).map(|(first, last)| (first.mean_loss, last.mean_loss)),
        dropped: sum(1),
        unclosed: if options.record { sum(4) } else { 0 },
    };
    let totals = Totals { rows: sum(0), bytes: sum(2), failed_parts: sum(3), writer_cpu_ns: sum(5), cpu_ns: sum(6) };
    report.end(&outcome, time, totals, place.as_ref(), &summary);
    Ok(outcome)
}

/// Notes in the run that the training did not end, so that collectives without an end are no sign of a hang.
fn note_cut(recorder: &Recorder, error: &Error, begun: &AtomicU32) {
    let why = format!("the training stopped in step {}: {error}", begun.load(Ordering::Relaxed));
    let row =
        CounterRow { rank: recorder.rank(), source: CUT_SOURCE.into(), why: Some(why.into()), ..CounterRow::default() };
    // The error that stopped the training is the one to report.
    let _ = recorder.rows(vec![row]);
}

fn interrupted(signal: i32, options: &Options, begun: &AtomicU32, place: Option<&RunPlace>) -> Error {
    let step = begun.load(Ordering::Relaxed);
    let last = (0..=step).rev().find(|step| options.schedule.phase(*step) == Phase::Active);
    Error::Interrupted { signal, step, steps: options.steps, run: place.map(|place| place.shown.clone()), last }
}

/// Trains on the device of the plan.
fn train_on_device(context: &JobContext<'_>, plan: &Plan) -> Result<Trained, Error> {
    match plan {
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => crate::cuda::train(context, plan),
        Plan::Cpu(_) => {
            let _ = context;
            Err(Error::Unavailable("the plan has no device".into()))
        }
    }
}

/// Rows, lost rows, bytes, failed writes, not closed in order, CPU time of the writer, CPU time of the process.
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
    let clock = faults::clock_for(&options.faults, rank);
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

/// The faults as they meet this rank. Collective.
fn faults_of_rank(fabric: &dyn Fabric, options: &Options, mesh: Option<Mesh>) -> Result<Vec<Fault>, Error> {
    if options.faults.is_empty() {
        return Ok(Vec::new());
    }
    let (rank, hashes) = (fabric.rank(), fabric.all_gather(Lane::Control, &[host_hash()])?);
    let mut hosts: Vec<u64> = Vec::new();
    for hash in &hashes {
        if !hosts.contains(hash) {
            hosts.push(*hash);
        }
    }
    let host = hosts.iter().position(|hash| hashes.get(rank) == Some(hash)).unwrap_or(0);
    let stages = mesh.map_or(1, |mesh| mesh.pp);
    options.faults.iter().try_for_each(|fault| fault.check(fabric.size(), stages, hosts.len()))?;
    Ok(faults::at_rank(&options.faults, rank, mesh.map_or(0, |mesh| mesh.stage(rank)), host))
}

/// Trains on the CPU. The reason for that, and sentences for the report.
fn train<T: Training>(
    context: &JobContext<'_>,
    make: impl FnOnce(&mut OpTable) -> Result<T, Error>,
    (why, notes): (Option<&str>, &[String]),
) -> Result<Trained, Error> {
    let JobContext { fabric, options, recorder, stop, place, begun } = *context;
    let (rank, size) = (fabric.rank(), fabric.size());
    let mut ops = OpTable::new(options.dtype);
    let trainer = make(&mut ops);
    let mut trainer = agree_on_success(&**fabric, trainer)?;
    let (clocks, hosts) = context.clock_comparison()?;
    let main = recorder.thread("main");
    let world = context.world();
    let engine = context.world_engine(world, trainer.buckets());
    let engine = RefCell::new(agree_on_success(&**fabric, engine)?);
    context.record_comm(&world, hosts)?;
    recorder.rows(trainer.comm_rows())?;
    recorder.rows(trainer.bucket_rows())?;
    let observer = OpRecording::new(recorder, &main, Some(&engine), &ops);
    let mut report = Report::new(rank, size, options);
    report.set_reason(why);
    report.begin(&trainer.name(), trainer.gradients(), hosts, place, notes);
    clocks.run()?;

    let mut results: Option<(StepResult, StepResult)> = None;
    let mut times: Vec<Duration> = Vec::new();
    let mut memory_is_recorded = false;
    for step in 0..options.steps {
        begun.store(step, Ordering::Relaxed);
        stop.check()?;
        let phase = options.schedule.phase(step);
        let begin = Instant::now();
        recorder.begin_step(rank_number(step as usize), phase);
        if phase == Phase::Active && !memory_is_recorded {
            trainer.record_memory(recorder, &main);
            memory_is_recorded = true;
        }
        let result = step_once(context, &clocks, &mut trainer, &observer, &engine, &main, step)?;
        recorder.end_step(result.learned.map(|learned| learned.loss));
        if phase == Phase::Active {
            times.push(begin.elapsed());
        }
        report.step(step, &result, begin.elapsed());
        results = Some((results.map_or(result, |(first, _)| first), result));
        let ends_window = phase == Phase::Active && options.schedule.phase(step + 1) != Phase::Active;
        if ends_window {
            recorder.set_active(false);
        }
        if (ends_window || result.compares_clocks) && step + 1 < options.steps {
            clocks.run()?;
        }
    }
    recorder.set_active(false);
    clocks.run()?;
    // --steps is at least 1, so there is a result.
    let (first, last) = results.ok_or_else(|| Error::Usage("--steps 0".into()))?;
    let steps = times.len();
    let time = median(times).map(|time| StepTime { time, steps, what: "median" });
    Ok(Trained { first, last, time, report })
}

fn step_once(
    context: &JobContext<'_>,
    clocks: &ClockComparison<'_>,
    trainer: &mut impl Training,
    observer: &OpRecording<'_>,
    engine: &RefCell<Engine>,
    main: &ThreadRecorder,
    step: u32,
) -> Result<StepResult, Error> {
    // Names are interned for recorded steps only, because the recorder keeps every name until the end.
    let _scope = main.active_step().map(|_| {
        let name = context.recorder.intern(&format!("ProfilerStep#{step}"));
        main.scope(Kind::UserAnnotation, name)
    });
    trainer.step(observer, engine, main, step, clocks.is_due())
}

/// The lower median.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}
