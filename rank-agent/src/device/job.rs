//! A rank's training on a device, from its first allocation to the last loss.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kernels::cuda::{Cuda, DeviceInfo, program};
use recorder::cupti::{Cupti, KnownDevice, Settings};
use recorder::{Kind, Phase, Recorder};
use trace::{DeviceRow, StepRow};

use super::comm::{Comm, HostComm, NcclComm, Side};
use super::trainer::DeviceTrainer;
use super::{Carrier, CudaPlan, nccl};
use crate::Error;
use crate::checksum;
use crate::engine::{Engine, World};
use crate::fabric::Lane;
use crate::job::{Job, StepTime, Trained, rank_number};
use crate::observer::OpTable;
use crate::ping::PingTree;
use crate::recording::Recording;
use crate::report::Report;
use crate::setup::agree_on_success as agree;
use crate::trainer::StepResult;

/// What is known of the steps that the device has been given.
#[derive(Default)]
struct Ledger {
    /// Steps whose results are known.
    settled: u32,
    /// Rows of steps that wait for their loss.
    rows: Vec<(u32, StepRow)>,
    first: Option<StepResult>,
    last: Option<StepResult>,
    /// When the window began that is being recorded, and its steps.
    window: Option<(Instant, u32)>,
    active: (Duration, u32),
}

/// The pieces of a running job.
struct Running<'a> {
    job: &'a Job<'a>,
    trainer: DeviceTrainer,
    comm: Comm<'a>,
    cuda: Rc<Cuda>,
    tree: PingTree,
    ledger: Ledger,
}

impl Job<'_> {
    /// Trains and records on the device of `plan`. Collective.
    pub(crate) fn train_on_device(&self, plan: &CudaPlan) -> Result<Trained, Error> {
        // Before the device's context, which is then seen being made.
        let (cupti, mut notes) = (self.start_cupti(plan), plan.notes.clone());
        let cupti = cupti.map_err(|error| notes.push(format!("what the device does is not recorded: {error}"))).ok();
        let cupti = cupti.flatten();
        let trained = self.train_beside(plan, cupti.as_ref(), notes);
        if let Some(cupti) = &cupti {
            // Before the recorder ends, which takes its rows.
            let summary = cupti.finish();
            if self.fabric.rank() == 0 {
                crate::report::tell(&format!("rank 0: {summary}"));
            }
        }
        trained
    }

    fn start_cupti(&self, plan: &CudaPlan) -> Result<Option<Cupti>, recorder::Error> {
        if self.place.is_none() {
            return Ok(None);
        }
        // What the workload allocates it names itself.
        let settings = Settings { memory: false, devices: vec![known_device(&plan.info)], ..Settings::default() };
        let start = |library| Cupti::start(self.recorder, Settings { library, ..settings.clone() });
        let mut started = start(None);
        if matches!(started, Err(recorder::Error::CuptiNotFound { .. }))
            && std::env::var_os(recorder::cupti::LIBRARY_VARIABLE).is_none()
        {
            // Beside the libraries that the workload uses: those of the `python3` on the path, and others.
            if let Some(library) =
                kernels::cuda::libraries::find(&["libcupti.so.13", "libcupti.so.12"]).into_iter().next()
            {
                started = start(Some(library));
            }
        }
        let cupti = started?;
        cupti.pause();
        Ok(Some(cupti))
    }

    fn train_beside(&self, plan: &CudaPlan, cupti: Option<&Cupti>, notes: Vec<String>) -> Result<Trained, Error> {
        let Self { fabric, options, recorder, stop, .. } = *self;
        let (rank, size) = (fabric.rank(), fabric.size());
        let cache = program::cache_directory(&|name| std::env::var_os(name));
        let cuda = Cuda::open(&plan.driver, plan.info.ordinal, options.dtype, cache.as_deref());
        let cuda = Rc::new(agree(&**fabric, cuda.map_err(Error::from))?);
        let mut ops = OpTable::new(options.dtype);
        let shape = (&options.model, options.bucket_bytes, options.cuda_graph);
        let trainer = DeviceTrainer::new(cuda.clone(), shape, (rank, size), &options.injections, (&mut ops, recorder));
        let trainer = agree(&**fabric, trainer)?;
        let (tree, hosts) = self.ping_tree()?;
        let main = recorder.thread("main");
        let world = self.world();
        let engine =
            Engine::start(fabric.clone(), options.progress, recorder, world, stop.clone(), trainer.bucket_lens().len());
        let engine = RefCell::new(agree(&**fabric, engine)?);
        let comm = self.connect(plan, &cuda, &trainer, &engine, world)?;
        self.record_comm(&world, hosts)?;
        recorder.rows(trainer.bucket_rows())?;
        recorder.rows(vec![device_row(rank, plan)])?;
        let observer = Recording::new(recorder, &main, Some(&engine), &ops);
        let mut report = Report::new(rank, size, options);
        let backend = format!("cuda ({}, collectives: {})", plan.info.name, comm.name());
        let gradients = (trainer.gradient_bytes(), trainer.bucket_lens().len());
        report.begin(&backend, gradients, hosts, self.place, &notes);
        let mut running = Running { job: self, trainer, comm, cuda, tree, ledger: Ledger::default() };
        let side = Side { thread: &main, cupti, stop, is_capture: false };
        self.ping(&running.tree)?;
        let trained = running.steps(&observer, &side, &mut report);
        if trained.is_err() {
            // Or whoever frees memory next waits for kernels that wait for other ranks.
            running.trainer.drop_graph();
            running.comm.give_up();
            // What is known of the steps is kept, their loss is not.
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
        plan: &CudaPlan,
        cuda: &Cuda,
        trainer: &DeviceTrainer,
        engine: &'e RefCell<Engine>,
        world: World,
    ) -> Result<Comm<'e>, Error> {
        let lens = trainer.bucket_lens();
        let comm = match plan.carrier {
            Carrier::Nobody => Ok(Comm::Nobody),
            Carrier::Host => HostComm::new(engine, cuda, &lens).map(Comm::Host),
            Carrier::Nccl(library, _) => {
                let communicator = nccl::join_all(library, cuda, &**self.fabric)?;
                let made = NcclComm::new(communicator, cuda, self.recorder, world, lens.len());
                made.map(|nccl| Comm::Nccl(Box::new(nccl)))
            }
        };
        agree(&**self.fabric, comm)
    }
}

impl Running<'_> {
    fn steps(&mut self, observer: &Recording<'_>, side: &Side<'_>, report: &mut Report) -> Result<(), Error> {
        let Job { options, recorder, .. } = *self.job;
        let mut memory_is_recorded = false;
        for step in 0..options.steps {
            side.stop.check()?;
            let phase = options.schedule.phase(step);
            if phase == Phase::Warmup
                && let Some(cupti) = side.cupti
            {
                cupti.resume();
            }
            if phase == Phase::Active && self.ledger.window.is_none() {
                self.begin_window(side)?;
            }
            recorder.begin_step(rank_number(step as usize), phase);
            if phase == Phase::Active && !memory_is_recorded {
                self.trainer.record_memory(recorder, side);
                memory_is_recorded = true;
            }
            {
                // Interned for recorded steps only: every name is kept until the end.
                let _scope = side.thread.active_step().map(|_| {
                    let name = recorder.intern(&format!("ProfilerStep#{step}"));
                    side.thread.scope(Kind::UserAnnotation, name)
                });
                self.trainer.step(observer, &mut self.comm, side)?;
            }
            self.ledger.rows.extend(recorder.close_step().map(|row| (step, row)));
            if let Some((_, steps)) = &mut self.ledger.window {
                *steps += 1;
            }
            let ends_window = phase == Phase::Active && options.schedule.phase(step + 1) != Phase::Active;
            if ends_window || self.trainer.journal_is_full(self.ledger.settled) || step + 1 == options.steps {
                self.settle(side, report)?;
            }
            if ends_window || step + 1 == options.steps {
                self.end_window(side)?;
            }
        }
        Ok(())
    }

    /// Nothing that was enqueued before is seen in the window, and the clocks are compared.
    fn begin_window(&mut self, side: &Side<'_>) -> Result<(), Error> {
        if let Some(cupti) = side.cupti {
            cupti.resume();
        }
        self.comm.wait_idle(&self.cuda, side.stop)?;
        self.comm.anchor(&self.cuda, side.thread)?;
        self.ledger.window = Some((Instant::now(), 0));
        Ok(())
    }

    fn end_window(&mut self, side: &Side<'_>) -> Result<(), Error> {
        if let Some((begin, steps)) = self.ledger.window.take() {
            self.ledger.active.0 += begin.elapsed();
            self.ledger.active.1 += steps;
        }
        self.job.recorder.set_active(false);
        if let Some(cupti) = side.cupti {
            cupti.flush();
            cupti.pause();
        }
        self.job.ping(&self.tree)
    }

    /// Waits for the device, learns what its steps came to, and compares the ranks. Collective.
    fn settle(&mut self, side: &Side<'_>, report: &mut Report) -> Result<(), Error> {
        let begin = self.ledger.settled;
        self.comm.wait_idle(&self.cuda, side.stop)?;
        self.comm.settle(side.thread)?;
        let entries = self.trainer.read_journal(begin)?;
        self.ledger.settled += entries.len() as u32;
        for (step, row) in &mut self.ledger.rows {
            let entry = step.checked_sub(begin).and_then(|place| entries.get(place as usize));
            row.loss = entry.map(|entry| f64::from(entry.loss));
        }
        self.write_steps(self.job.recorder)?;
        let mine: Vec<u64> =
            entries.iter().flat_map(|entry| [f64::from(entry.loss).to_bits(), entry.checksum]).collect();
        let all = self.job.fabric.all_gather(Lane::Control, &mine)?;
        for (place, entry) in entries.iter().enumerate() {
            let step = begin + place as u32;
            let of_step = |which: usize| all.iter().skip(2 * place + which).step_by(mine.len()).copied();
            checksum::compare(i64::from(step), &of_step(1).collect::<Vec<u64>>())?;
            let losses: f64 = of_step(0).map(f64::from_bits).sum();
            let mean_loss = losses / self.job.fabric.size() as f64;
            let result = StepResult { loss: f64::from(entry.loss), mean_loss, checksum: entry.checksum };
            self.ledger.first.get_or_insert(result);
            self.ledger.last = Some(result);
        }
        if let (Some(last), Some((begin, steps))) = (&self.ledger.last, self.ledger.window) {
            report.step(self.ledger.settled.saturating_sub(1), last, begin.elapsed() / steps.max(1));
        }
        Ok(())
    }

    fn write_steps(&mut self, recorder: &Recorder) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.ledger.rows);
        Ok(recorder.rows(rows.into_iter().map(|(_, row)| row).collect())?)
    }
}

/// What CUPTI tells of a device only while CUDA initialises, which it has by now.
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
    // Twice the clock: memory that transfers on both edges.
    let bytes_per_s = 2.0 * f64::from(info.memory_clock_khz) * 1e3 * f64::from(info.bus_bits) / 8.0;
    DeviceRow {
        rank: rank_number(rank),
        device_id: i64::try_from(info.ordinal).unwrap_or(-1),
        name: Some(info.name.as_str().into()),
        uuid: Some(info.uuid.as_str().into()),
        sm_count: Some(info.multiprocessors),
        clock_khz: Some(i64::from(info.clock_khz)),
        memory_clock_khz: Some(i64::from(info.memory_clock_khz)),
        memory_bytes: i64::try_from(info.memory_bytes).ok(),
        // The arithmetic rate depends on the type and the architecture's tables; it is not guessed here.
        peak_flops: None,
        peak_bytes_per_s: Some(bytes_per_s),
    }
}
