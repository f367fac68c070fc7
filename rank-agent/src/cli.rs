//! The command line of `rank-agent`: parse, run, exit code.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agent::console;
use agent::exec::{self, CtlArguments, ExecArguments, ctl};
use agent::fabric::Stop;
use agent::fabric::ping::INTERVAL;
use agent::fabric::solo::Solo;
#[cfg(feature = "cuda")]
use clap::Args;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use kernels::Dtype;
use launch::{Identity, Launcher};
use recorder::Schedule;
use trace::terminal::Form;
use train::engine::Progress;
use train::faults::Fault;
use train::model::ModelConfig;
use train::options::{BackendChoice, Collectives, Options, ShareGpu};
use train::parallel::compute::Compute;
use train::parallel::mesh::Mesh;
use train::{Error, backend, job};

/// Train a multi-layer perceptron data-parallel on all ranks and record every rank
///
/// Start one process per rank with your MPI's launcher; without a launcher the job has one rank. Then look at the run
/// with `rankscope analyze RUN`.
#[derive(Debug, Parser)]
#[command(name = "rank-agent", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Directory for the run; it must be new or empty [default: a new name from the time of day]
    #[arg(short, long, value_name = "RUN")]
    out: Option<PathBuf>,

    /// Training steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    steps: u32,

    /// Steps to record, as in torch.profiler.schedule; repeat=0 repeats to the end
    #[arg(long, default_value = "wait=1,warmup=2,active=5,repeat=1", value_name = "SCHEDULE")]
    schedule: String,

    /// Linear layers, the output layer included
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    layers: u32,

    /// Width of the input and of every hidden layer
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hidden: u32,

    /// Samples per rank and step
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    batch: u32,

    /// Gradient bucket size in MiB, as in DistributedDataParallel; the first bucket closes at 1 MiB, so that
    /// communication starts early
    #[arg(long, default_value_t = 25, value_name = "MIB", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    bucket_mb: u32,

    /// Ranks along each kind of parallelism, as in dp=4,tp=2,pp=2; without it all ranks are data-parallel. Jobs with tp or
    /// pp have the products and the traffic of the training, but train nothing
    #[arg(long, value_name = "MESH")]
    parallel: Option<Mesh>,

    /// Shard the layers over the data-parallel ranks, as FullyShardedDataParallel does
    #[arg(long)]
    fsdp: bool,

    /// Work of a layer; a job that sleeps or spins trains nothing, and has the same length on any number of cores
    #[arg(long, value_enum, default_value_t = Compute::Gemm)]
    compute: Compute,

    /// Microbatches of a step [default: twice the stages, or 1 without a pipeline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    microbatches: Option<u32>,

    /// Learning rate of SGD with momentum 0.9
    #[arg(long, default_value_t = ModelConfig::default().learning_rate)]
    lr: f32,

    /// Seed of parameters and data
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Arithmetic of matrix products: f32, tf32 or bf16 (the CPU has f32 only)
    #[arg(long, default_value = "f32")]
    dtype: String,

    /// Device that computes the model; auto: CUDA if every rank has a device, else the CPU
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    backend: BackendChoice,

    /// Library that carries the gradients; auto: NCCL between devices if every rank has it, else MPI
    #[arg(long, value_enum, default_value_t = Collectives::Auto)]
    collectives: Collectives,

    /// Let several ranks share one GPU, which NCCL refuses by default: by a switch of NCCL 2.30.3 and newer, or by a
    /// separate host id for every rank [default of the option: auto]
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto")]
    share_gpu: Option<ShareGpu>,

    /// Launch each step as one CUDA graph, captured in the third step
    #[arg(long)]
    cuda_graph: bool,

    /// Fault to inject; may be repeated:
    /// slow:rank=R|stage=S|host=H,ms=M[,phase=forward|backward|input|optimizer][,every=K][,from=STEP][,to=STEP],
    /// link:ranks=A-B,ms=M or clock:rank=R[,offset_ms=O][,drift_ppm=D]. The step of `to` is not slow
    #[arg(long, value_name = "FAULT")]
    inject: Vec<String>,

    /// Thread that drives MPI while the main thread computes
    #[arg(long, value_enum, default_value_t = Progress::Thread)]
    progress: Progress,

    /// Record the training; `off` trains the same way, to measure the cost of recording
    #[arg(long, value_enum, default_value_t = Switch::On)]
    record: Switch,

    /// Same as `rank-agent completions SHELL`
    #[arg(long, value_enum, value_name = "SHELL", hide = true)]
    completions: Option<Shell>,

    /// Same as `rank-agent man`
    #[arg(long, hide = true)]
    man: bool,
}

const EXAMPLES: &str = "\
Examples:
  rank-agent --out run
  mpirun -n 8 --oversubscribe rank-agent --out run
  mpirun -n 8 --oversubscribe rank-agent --out slow --inject slow:rank=5,ms=30
  rankscope analyze run

Exit codes: 0 done; 1 the input or the environment is wrong; 2 usage; 3 done, but some rows were lost; \
128 + n stopped by signal n.";

/// A command other than training.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    Exec(ExecArguments),
    Ctl(CtlArguments),
    /// Print completions for a shell
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write man pages: one for the command and one for each subcommand
    Man {
        /// Directory for the pages; without it print the command's own page
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    Selftest(Selftest),
}

/// Check a back end's operations against f64, and time its matrix products
#[cfg(feature = "cuda")]
#[derive(Args, Clone, Debug)]
struct Selftest {
    /// Back end to check
    #[arg(long, value_enum, default_value_t = BackendChoice::Cuda)]
    backend: BackendChoice,

    /// Rows and columns of the largest product, which is checked at 1000 positions
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65536))]
    large: u32,

    /// Rows and columns of the products to time; none: time nothing
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65536))]
    gemm: Vec<u32>,

    /// Products that are timed together
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// The command's name in messages.
const NAME: &str = "rank-agent";

/// Runs the command and returns its exit code.
pub fn main_impl() -> ExitCode {
    let identity = match Identity::from_env(&|name| std::env::var(name).ok()) {
        Ok(identity) => identity,
        Err(error) => return console::fail(NAME, &agent::Error::from(error), None),
    };
    let speaks = console::speaks(&identity);
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return console::print_usage(&error),
    };
    let command = match (cli.command.take(), cli.completions, cli.man) {
        (None, Some(shell), _) => Some(Command::Completions { shell }),
        (None, None, true) => Some(Command::Man { directory: None }),
        (command, ..) => command,
    };
    let result = match command {
        Some(Command::Exec(arguments)) => return exec::main(&arguments, NAME),
        Some(Command::Ctl(arguments)) => return ctl::main(&arguments, NAME),
        Some(Command::Completions { .. } | Command::Man { .. }) if !speaks => Ok(0),
        Some(Command::Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), NAME, &mut text);
            console::print_output(&text, Form::Bytes).map(|()| 0).map_err(Error::from)
        }
        Some(Command::Man { directory }) => man(directory).map(|()| 0),
        #[cfg(feature = "cuda")]
        Some(Command::Selftest(Selftest { backend, large, gemm, repeat })) => {
            train::cuda::selftest(&train::cuda::Selftest { backend, large, gemm, repeat })
        }
        None => cli.into_options().and_then(|options| start(&options, identity)),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => console::fail(NAME, &error, Some(&identity)),
    }
}

fn man(directory: Option<PathBuf>) -> Result<(), Error> {
    let Some(directory) = directory else {
        let mut text = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut text);
        rendered.map_err(|source| agent::Error::Io { path: "the man page".into(), source })?;
        return Ok(console::print_output(&text, Form::Bytes)?);
    };
    let written: Result<(), agent::Error> = trace::files::replace_files(&directory, |fresh| {
        let generated = clap_mangen::generate_to(Cli::command(), fresh);
        generated.map_err(|source| agent::Error::Io { path: directory.clone(), source })
    });
    Ok(written?)
}

/// Finds the other ranks and runs the job with them.
fn start(options: &Options, identity: Identity) -> Result<u8, Error> {
    // The environment can be changed only while the process has one thread.
    backend::prepare(options, &identity)?;
    let stop = Stop::on_signals().map_err(agent::Error::Signals)?;
    let is_single = identity.launcher == Launcher::None && options.collectives == Collectives::Auto;
    if is_single {
        let outcome = job::run(Arc::new(Solo), options, &identity, &stop)?;
        return Ok(outcome.exit_code());
    }
    start_with_mpi(options, identity, stop)
}

#[cfg(feature = "mpi")]
fn start_with_mpi(options: &Options, identity: Identity, stop: Stop) -> Result<u8, Error> {
    use agent::Failure;
    use agent::fabric::Control;
    use mpi_fabric::Mpi;

    let mpi = Arc::new(Mpi::enter(stop.clone()).map_err(agent::Error::from)?);
    let library = mpi.version();
    let world = launch::World { rank: mpi.rank() as i32, size: mpi.size() as i32, library: &library };
    let identity = launch::check_world(&identity, &world).map_err(agent::Error::from)?;
    let result = job::run(mpi.clone(), options, &identity, &stop);
    match result {
        Ok(outcome) => {
            mpi.leave();
            Ok(outcome.exit_code())
        }
        // All ranks end here with the same error.
        Err(error) if error.is_collective() => {
            mpi.leave();
            Err(error)
        }
        // The launcher ends the other ranks when it sees this rank's exit code.
        Err(error) if error.is_aftermath() => Err(error),
        Err(error) => {
            // Printed first, because `abandon` may end this process together with the others.
            let code = error.exit_code();
            console::fail(NAME, &error, Some(&identity));
            mpi.abandon(code);
            Ok(code)
        }
    }
}

#[cfg(not(feature = "mpi"))]
fn start_with_mpi(options: &Options, identity: Identity, stop: Stop) -> Result<u8, Error> {
    if identity.world_size > 1 || options.collectives == Collectives::Mpi {
        return Err(Error::Unavailable(format!(
            "{} ranks were started, but this rank-agent was built without MPI; build it with --features mpi",
            identity.world_size
        )));
    }
    Ok(job::run(Arc::new(Solo), options, &identity, &stop)?.exit_code())
}

impl Cli {
    /// Checks the arguments together, which clap cannot, and makes the library's options of them.
    fn into_options(self) -> Result<Options, Error> {
        let schedule = parse_schedule(&self.schedule)?;
        if self.record == Switch::On && !(0..self.steps).any(|step| schedule.phase(step) == recorder::Phase::Active) {
            return Err(Error::Usage(format!(
                "--schedule {} has no active step within --steps {}: nothing would be recorded",
                self.schedule, self.steps
            )));
        }
        if !self.lr.is_finite() || self.lr < 0.0 {
            return Err(Error::Usage(format!("--lr {} is not a learning rate", self.lr)));
        }
        if self.backend == BackendChoice::Cpu && self.collectives == Collectives::Nccl {
            return Err(Error::Usage(
                "--collectives nccl needs --backend cuda, because NCCL carries device memory".into(),
            ));
        }
        if self.backend == BackendChoice::Cpu && (self.cuda_graph || self.share_gpu.is_some()) {
            return Err(Error::Usage("--cuda-graph and --share-gpu need --backend cuda".into()));
        }
        let dtype: Dtype =
            self.dtype.parse().map_err(|error: kernels::Error| Error::Usage(format!("--dtype: {error}")))?;
        let faults: Result<Vec<Fault>, Error> = self.inject.iter().map(|text| Fault::parse(text)).collect();
        let model = ModelConfig {
            layers: self.layers as usize,
            hidden: self.hidden as usize,
            batch: self.batch as usize,
            seed: self.seed,
            learning_rate: self.lr,
            ..ModelConfig::default()
        };
        Ok(Options {
            out: self.out,
            steps: self.steps,
            schedule,
            model,
            bucket_bytes: self.bucket_mb as usize * (1 << 20),
            parallel: self.parallel,
            fsdp: self.fsdp,
            compute: self.compute,
            microbatches: self.microbatches.map(|microbatches| microbatches as usize),
            dtype,
            collectives: self.collectives,
            backend: self.backend,
            share_gpu: self.share_gpu,
            cuda_graph: self.cuda_graph,
            faults: faults?,
            progress: self.progress,
            record: self.record == Switch::On,
            ping_interval: INTERVAL,
        })
    }
}

/// Parses `wait=1,warmup=2,active=5,repeat=1`.
fn parse_schedule(text: &str) -> Result<Schedule, Error> {
    text.parse().map_err(|problem| Error::Usage(format!("--schedule: {problem}")))
}

/// The options of a command line, for tests.
#[cfg(test)]
pub(crate) fn options(arguments: &str) -> Result<Options, Error> {
    Cli::try_parse_from(format!("rank-agent {arguments}").split_whitespace()).unwrap().into_options()
}

#[cfg(test)]
mod tests {
    use agent::Failure;

    use super::*;

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let options = options("").unwrap();
        assert_eq!(options.schedule, Schedule::default());
        assert_eq!((options.steps, options.model.layers, options.model.hidden, options.model.batch), (20, 8, 1024, 64));
        assert_eq!((options.bucket_bytes, options.record, options.progress), (25 << 20, true, Progress::Thread));
    }

    #[test]
    fn faults_may_be_repeated() {
        let options = options("--inject slow:rank=5,ms=20 --inject clock:rank=3,offset_ms=250,drift_ppm=40").unwrap();
        assert_eq!(options.faults.len(), 2);
    }

    #[test]
    fn contradictory_options_are_refused() {
        for (arguments, code, part) in [
            ("--backend cpu --collectives nccl", 2, "needs --backend cuda"),
            ("--backend cpu --cuda-graph", 2, "need --backend cuda"),
            ("--backend cpu --share-gpu", 2, "need --backend cuda"),
            ("--schedule wait=1,warmup=2", 2, "active must be at least 1"),
            ("--schedule active=-1", 2, "needs a whole number"),
            ("--schedule active", 2, "not name=number"),
            ("--schedule actve=1", 2, "not one of wait, warmup"),
            ("--steps 3", 2, "no active step within --steps 3"),
            ("--lr nan", 2, "not a learning rate"),
            ("--dtype fp8", 2, "fp8"),
            ("--inject slow:rank=1", 2, "ms is missing"),
        ] {
            let error = options(arguments).unwrap_err();
            assert_eq!(error.exit_code(), code, "{arguments}");
            assert!(error.to_string().contains(part), "{arguments}: {error}");
        }
        // Without recording the schedule does not matter.
        assert!(options("--steps 3 --record off").is_ok());
    }
}
