//! A rank's training on a device, from its first allocation to the last loss.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use agent::console;
use agent::fabric::Lane;
use agent::fabric::agree::agree_on_success as agree;
use kernels::cuda::{Cuda, DeviceInfo, program};
use recorder::{Kind, Phase, Recorder};
use sources::cupti::{Cupti, KnownDevice, Settings};
use trace::{DeviceRow, StepRow};

use super::comm::{Comm, HostComm, NcclComm, StepContext};
use super::nccl;
use super::plan::{Carrier, CudaPlan};
use super::trainer::DeviceTrainer;
use crate::Error;
use crate::checksum;
use crate::context::{ClockComparison, JobContext, Trained, rank_number};
use crate::engine::Engine;
use crate::op_observer::OpTable;
use crate::op_recording::OpRecording;
use crate::report::{Report, StepTime};
use crate::stream::CommNames;
use crate::training::{Gradients, Learned, StepResult};

/// Results of the steps that were enqueued on the device.
#[derive(Default)]
struct Ledger {
    /// Number of steps whose results are known.
    settled: u32,
    /// Rows of steps that wait for their loss.
    rows: Vec<(u32, StepRow)>,
    first: Option<StepResult>,
    last: Option<StepResult>,
    /// Begin of the window being recorded, and the number of its steps.
    window: Option<(Instant, u32)>,
    active: (Duration, u32),
}

/// The pieces of a running job.
struct Running<'a> {
    job: &'a JobContext<'a>,
    trainer: DeviceTrainer,
    comm: Comm<'a>,
    cuda: Rc<Cuda>,
    clocks: ClockComparison<'a>,
    ledger: Ledger,
}

/// Trains and records on the device of `plan`. Collective.
pub(crate) fn train(job: &JobContext<'_>, plan: &CudaPlan) -> Result<Trained, Error> {
    let training = Training { job, plan };
    // CUPTI starts before the device's context, so that it records the creation of the context.
    let (cupti, mut notes) = (training.start_cupti(), plan.notes.clone());
    let cupti = cupti.map_err(|error| notes.push(format!("the device's activity is not recorded: {error}"))).ok();
    let cupti = cupti.flatten();
    let trained = training.run(cupti.as_ref(), &notes);
    if let Some(cupti) = &cupti {
        // The recorder, which takes CUPTI's rows, ends later.
        let summary = cupti.finish();
        if job.fabric.rank() == 0 {
            console::print("rank-agent", &format!("rank 0: {summary}"));
        }
    }
    trained
}

/// A training before its first step.
struct Training<'a> {
    job: &'a JobContext<'a>,
    plan: &'a CudaPlan,
}

impl Training<'_> {
    fn start_cupti(&self) -> Result<Option<Cupti>, sources::Error> {
        if self.job.place.is_none() {
            return Ok(None);
        }
        // The workload records its allocations itself, with names.
        let settings = Settings {
            paused: true,
            graphs: self.job.options.cuda_graph,
            memory: false,
            devices: vec![known_device(&self.plan.info)],
            ..Settings::default()
        };
        let start = |library| Cupti::start(self.job.recorder, Settings { library, ..settings.clone() });
        let mut started = start(None);
        if matches!(started, Err(sources::Error::CuptiNotFound { .. }))
            && std::env::var_os(sources::cupti::LIBRARY_VARIABLE).is_none()
        {
            // Searches beside the other CUDA libraries, such as those of the `python3` on the path.
            if let Some(library) =
                kernels::cuda::libraries::find(&["libcupti.so.13", "libcupti.so.12"]).into_iter().next()
            {
                started = start(Some(library));
            }
        }
        started.map(Some)
    }

    fn run(&self, cupti: Option<&Cupti>, notes: &[String]) -> Result<Trained, Error> {
        let Self { job, plan } = *self;
        let JobContext { fabric, options, recorder, stop, .. } = *job;
        let (rank, size) = (fabric.rank(), fabric.size());
        let cache = program::cache_directory(&|name| std::env::var_os(name));
        let cuda = Cuda::open(&plan.driver, plan.info.ordinal, options.dtype, cache.as_deref());
        let cuda = Rc::new(agree(&**fabric, cuda.map_err(Error::from))?);
        let mut ops = OpTable::new(options.dtype);
        let shape = (&options.model, options.bucket_bytes, options.cuda_graph);
        let trainer = DeviceTrainer::new(cuda.clone(), shape, (rank, size), &options.faults, (&mut ops, recorder));
        let trainer = agree(&**fabric, trainer)?;
        let (clocks, hosts) = job.clock_comparison()?;
        let main = recorder.thread("main");
        let world = job.world();
        let engine = job.world_engine(world, trainer.bucket_lens().len());
        let engine = RefCell::new(agree(&**fabric, engine)?);
        let comm = self.connect(&cuda, &trainer, &engine, world)?;
        job.record_comm(&world, hosts)?;
        recorder.rows(trainer.bucket_rows())?;
        recorder.rows(vec![device_row(rank, plan)])?;
        let observer = OpRecording::new(recorder, &main, Some(&engine), &ops);
        let mut report = Report::new(rank, size, options);
        let backend = format!("cuda ({}, collectives: {})", plan.info.name, comm.name());
        let gradients = Gradients { bytes: trainer.gradient_bytes(), buckets: trainer.bucket_lens().len() };
        report.begin(&backend, gradients, hosts, job.place, notes);
        let mut running = Running { job, trainer, comm, cuda, clocks, ledger: Ledger::default() };
        let context = StepContext { thread: &main, cupti, stop, is_capture: false };
        running.clocks.run()?;
        let trained = running.steps(&observer, &context, &mut report);
        if trained.is_err() {
            // Without this, the next free of device memory would wait for kernels that wait for other ranks.
            running.trainer.drop_graph();
            running.comm.give_up();
            // Keeps the rows of the steps; their losses are unknown.
            running.write_steps(recorder)?;
        }
        trained?;
        let Ledger { first, last, active: (time, steps), .. } = running.ledger;
        let (Some(first), Some(last)) = (first, last) else { return Err(Error::Usage("--steps 0".into())) };
        let time = (steps > 0).then(|| StepTime { time: time / steps, steps: steps as usize, what: "mean" });
        Ok(Trained { first, last, time, report })
    }

    fn connect<'e>(
        &self,
        cuda: &Cuda,
        trainer: &DeviceTrainer,
        engine: &'e RefCell<Engine>,
        world: CommNames,
    ) -> Result<Comm<'e>, Error> {
        let lens = trainer.bucket_lens();
        let comm = match self.plan.carrier {
            Carrier::None => Ok(Comm::SingleRank),
            Carrier::Host => HostComm::new(engine, cuda, &lens).map(Comm::Host),
            Carrier::Nccl(library, _) => {
                let communicator = nccl::join_all(library, cuda, &**self.job.fabric)?;
                let made = NcclComm::new(communicator, cuda, self.job.recorder, world, lens.len());
                made.map(|nccl| Comm::Nccl(Box::new(nccl)))
            }
        };
        agree(&**self.job.fabric, comm)
    }
}

impl Running<'_> {
    fn steps(
        &mut self,
        observer: &OpRecording<'_>,
        context: &StepContext<'_>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let JobContext { options, recorder, .. } = *self.job;
        let mut memory_is_recorded = false;
        for step in 0..options.steps {
            self.job.begun.store(step, Ordering::Relaxed);
            context.stop.check()?;
            let phase = options.schedule.phase(step);
            if phase == Phase::Warmup
                && let Some(cupti) = context.cupti
            {
                cupti.resume();
            }
            if phase == Phase::Active && self.ledger.window.is_none() {
                self.begin_window(context)?;
            }
            recorder.begin_step(rank_number(step as usize), phase);
            if phase == Phase::Active && !memory_is_recorded {
                self.trainer.record_memory(recorder, context);
                memory_is_recorded = true;
            }
            {
                // Names are interned for recorded steps only, because the recorder keeps every name until the end.
                let _scope = context.thread.active_step().map(|_| {
                    let name = recorder.intern(&format!("ProfilerStep#{step}"));
                    context.thread.scope(Kind::UserAnnotation, name)
                });
                self.trainer.step(observer, &mut self.comm, context)?;
            }
            self.ledger.rows.extend(recorder.close_step().map(|row| (step, row)));
            if let Some((_, steps)) = &mut self.ledger.window {
                *steps += 1;
            }
            let ends_window = phase == Phase::Active && options.schedule.phase(step + 1) != Phase::Active;
            let mut compares_clocks = false;
            if ends_window || self.trainer.journal_is_full(self.ledger.settled) || step + 1 == options.steps {
                compares_clocks = self.settle(context, report)?;
            }
            if ends_window || step + 1 == options.steps {
                self.end_window(context)?;
            } else if compares_clocks {
                self.clocks.run()?;
            }
        }
        Ok(())
    }

    /// Waits until the device is idle, so that the window holds nothing enqueued before, and anchors device times.
    fn begin_window(&mut self, context: &StepContext<'_>) -> Result<(), Error> {
        if let Some(cupti) = context.cupti {
            cupti.resume();
        }
        self.comm.wait_idle(&self.cuda, context.stop)?;
        self.comm.anchor(&self.cuda, context.thread)?;
        self.ledger.window = Some((Instant::now(), 0));
        Ok(())
    }

    fn end_window(&mut self, context: &StepContext<'_>) -> Result<(), Error> {
        if let Some((begin, steps)) = self.ledger.window.take() {
            self.ledger.active.0 += begin.elapsed();
            self.ledger.active.1 += steps;
        }
        self.job.recorder.set_active(false);
        if let Some(cupti) = context.cupti {
            cupti.flush();
            cupti.pause();
        }
        self.clocks.run()
    }

    /// Waits for the device, reads the results of its steps, and compares the ranks. Returns whether they must compare their
    /// clocks now. Collective.
    fn settle(&mut self, context: &StepContext<'_>, report: &mut Report) -> Result<bool, Error> {
        let begin = self.ledger.settled;
        self.comm.wait_idle(&self.cuda, context.stop)?;
        self.comm.settle(&self.cuda, context.thread)?;
        let entries = self.trainer.read_journal(begin)?;
        self.ledger.settled += entries.len() as u32;
        for (step, row) in &mut self.ledger.rows {
            let entry = step.checked_sub(begin).and_then(|place| entries.get(place as usize));
            row.loss = entry.map(|entry| f64::from(entry.loss));
        }
        self.write_steps(self.job.recorder)?;
        let results = entries.iter().flat_map(|entry| [f64::from(entry.loss).to_bits(), entry.checksum]);
        let mine: Vec<u64> = results.chain([u64::from(self.clocks.is_due())]).collect();
        let all = self.job.fabric.all_gather(Lane::Control, &mine)?;
        let compares_clocks = all.get(mine.len() - 1) == Some(&1);
        for (place, entry) in entries.iter().enumerate() {
            let step = begin + place as u32;
            let of_step = |which: usize| all.iter().skip(2 * place + which).step_by(mine.len()).copied();
            checksum::compare(i64::from(step), &of_step(1).collect::<Vec<u64>>())?;
            let losses: f64 = of_step(0).map(f64::from_bits).sum();
            let mean_loss = losses / self.job.fabric.size() as f64;
            let loss = f64::from(entry.loss);
            let learned = Some(Learned { loss, mean_loss, checksum: entry.checksum });
            let result = StepResult { learned, compares_clocks };
            self.ledger.first.get_or_insert(result);
            self.ledger.last = Some(result);
        }
        if let (Some(last), Some((begin, steps))) = (&self.ledger.last, self.ledger.window) {
            report.step(self.ledger.settled.saturating_sub(1), last, begin.elapsed() / steps.max(1));
        }
        Ok(compares_clocks)
    }

    fn write_steps(&mut self, recorder: &Recorder) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.ledger.rows);
        Ok(recorder.rows(rows.into_iter().map(|(_, row)| row).collect())?)
    }
}

/// The device's properties. CUPTI reports them only while CUDA initializes, which has happened by now.
fn known_device(info: &DeviceInfo) -> KnownDevice {
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    KnownDevice {
        device_id: u32::try_from(info.ordinal).unwrap_or(u32::MAX),
        capability_major: info.capability / 10,
        multiprocessors: number(info.multiprocessors),
        threads_per_warp: number(info.warp_threads),
        threads_per_multiprocessor: number(info.sm_threads),
        blocks_per_multiprocessor: number(info.sm_blocks),
        registers_per_multiprocessor: number(info.sm_registers),
        shared_bytes_per_multiprocessor: number(info.sm_shared_bytes),
    }
}

/// The device's row.
fn device_row(rank: usize, plan: &CudaPlan) -> DeviceRow {
    let info = &plan.info;
    // Twice the clock: memory transfers on both edges.
    let bytes_per_s = 2.0 * f64::from(info.memory_clock_khz) * 1e3 * f64::from(info.bus_bits) / 8.0;
    DeviceRow {
        rank: rank_number(rank),
        device_id: i64::try_from(info.ordinal).unwrap_or(-1),
        name: Some(info.name.as_str().into()),
        uuid: Some(info.uuid.as_str().into()),
        sm_count: Some(info.multiprocessors),
        max_threads_per_sm: Some(info.sm_threads),
        registers_per_sm: Some(info.sm_registers),
        shared_mem_per_sm_bytes: Some(info.sm_shared_bytes.into()),
        clock_khz: Some(i64::from(info.clock_khz)),
        memory_clock_khz: Some(i64::from(info.memory_clock_khz)),
        memory_bytes: i64::try_from(info.memory_bytes).ok(),
        // The arithmetic rate needs a table by type and architecture, which is not here.
        peak_flops: None,
        peak_bytes_per_s: Some(bytes_per_s),
    }
}
