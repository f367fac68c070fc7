//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use kernels::Dtype;
use recorder::Schedule;

use crate::Error;
use crate::backend::ShareGpu;
use crate::ctl::CtlArguments;
use crate::engine::Progress;
use crate::exec::cli::ExecArguments;
use crate::inject::Injection;
use crate::model::ModelConfig;

/// Trains a multi-layer perceptron data-parallel on all ranks and records every rank.
///
/// Start one process per rank with your MPI's launcher; alone it is a world of one rank. Then look at the run with
/// `aggregator analyze RUN`.
#[derive(Debug, Parser)]
#[command(name = "rank-agent", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// Directory for the run; it must be new or empty [default: a new name from the time of day]
    #[arg(long, value_name = "RUN")]
    out: Option<PathBuf>,

    /// Training steps
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    steps: u32,

    /// Which steps are recorded, as in torch.profiler.schedule; repeat=0 repeats to the end
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
    /// communication begins early
    #[arg(long, default_value_t = 25, value_name = "MIB", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    bucket_mb: u32,

    /// Learning rate of SGD with momentum 0.9
    #[arg(long, default_value_t = ModelConfig::default().learning_rate)]
    lr: f32,

    /// Seed of parameters and data
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Arithmetic of matrix products: f32, tf32 or bf16 (the CPU has f32 only)
    #[arg(long, default_value = "f32")]
    dtype: String,

    /// Where the model is computed; auto: on CUDA devices if every rank has one, else on the CPU
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    backend: BackendChoice,

    /// What carries the gradients; auto: NCCL between devices if every rank has it, else MPI
    #[arg(long, value_enum, default_value_t = Collectives::Auto)]
    collectives: Collectives,

    /// Let several ranks share one GPU, which NCCL refuses by itself: by a switch of NCCL 2.30.3 and newer, or by a
    /// host id for every rank [default of the option: auto]
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "auto")]
    share_gpu: Option<ShareGpu>,

    /// Launch each step as one CUDA graph, captured in the third step
    #[arg(long)]
    cuda_graph: bool,

    /// Fault to inject; may be repeated: slow:rank=R,ms=M[,phase=forward|backward|input] or
    /// clock:rank=R[,offset_ms=O][,drift_ppm=D]
    #[arg(long, value_name = "FAULT")]
    inject: Vec<String>,

    /// Who drives MPI while the main thread computes
    #[arg(long, value_enum, default_value_t = Progress::Thread)]
    progress: Progress,

    /// Whether to record; `off` trains the same way, to measure what recording costs
    #[arg(long, value_enum, default_value_t = Switch::On)]
    record: Switch,

    /// Print completions for a shell, and do nothing else
    #[arg(long, value_enum, value_name = "SHELL", hide_possible_values = true)]
    completions: Option<clap_complete::Shell>,

    /// Print the man page, and do nothing else
    #[arg(long, hide = true)]
    man: bool,
}

const EXAMPLES: &str = "\
Examples:
  rank-agent --out run
  mpirun -n 8 --oversubscribe rank-agent --out run
  mpirun -n 8 --oversubscribe rank-agent --out slow --inject slow:rank=5,ms=30
  aggregator analyze run

Exit codes: 0 done; 1 the input or the environment is wrong; 2 usage; 3 done, but some rows were lost;
128 + n stopped by signal n.";

/// What to do instead of training.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Record an unmodified CUDA/NCCL program on every rank
    Exec(ExecArguments),
    /// Switch the recording of such a program, or say how it stands
    Ctl(CtlArguments),
    /// Checks a back end's operations against f64, and times its matrix products
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    Selftest(crate::device::Selftest),
}

/// Where the model is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// CUDA if every rank has a device and the libraries, else the CPU.
    Auto,
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// What carries the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Collectives {
    /// NCCL between devices, MPI where there is none; nothing for a rank that is alone.
    Auto,
    /// MPI, even for a rank that is alone.
    Mpi,
    /// NCCL.
    Nccl,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// What to do: the command line, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The run's directory; `None`: a new one.
    pub out: Option<PathBuf>,
    /// Training steps, at least 1.
    pub steps: u32,
    /// Which of them are recorded.
    pub schedule: Schedule,
    /// The model.
    pub model: ModelConfig,
    /// Limit of a gradient bucket in bytes.
    pub bucket_bytes: usize,
    /// Arithmetic.
    pub dtype: Dtype,
    /// What carries the gradients.
    pub collectives: Collectives,
    /// Where to compute.
    pub backend: BackendChoice,
    /// Whether ranks may share a device, and how.
    pub share_gpu: Option<ShareGpu>,
    /// Whether a step is launched as a CUDA graph.
    pub cuda_graph: bool,
    /// Faults.
    pub injections: Vec<Injection>,
    /// Who drives all-reduces.
    pub progress: Progress,
    /// Whether to record.
    pub record: bool,
}

impl Cli {
    /// What to do instead of training, if that is asked for.
    pub fn take_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    /// The completions or man page, if that is all that was asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] if the page cannot be made.
    pub fn about_itself(&self) -> Result<Option<Vec<u8>>, Error> {
        use clap::CommandFactory;
        let mut text = Vec::new();
        if let Some(shell) = self.completions {
            clap_complete::generate(shell, &mut Self::command(), "rank-agent", &mut text);
        } else if self.man {
            clap_mangen::Man::new(Self::command())
                .render(&mut text)
                .map_err(|error| Error::Usage(format!("--man: {error}")))?;
        }
        Ok((!text.is_empty()).then_some(text))
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// [`Error::Usage`] or [`Error::Unavailable`].
    pub fn into_options(self) -> Result<Options, Error> {
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
            return Err(Error::Usage("--collectives nccl carries device memory: it needs --backend cuda".into()));
        }
        if self.backend == BackendChoice::Cpu && (self.cuda_graph || self.share_gpu.is_some()) {
            return Err(Error::Usage("--cuda-graph and --share-gpu are for --backend cuda".into()));
        }
        let dtype: Dtype =
            self.dtype.parse().map_err(|error: kernels::Error| Error::Usage(format!("--dtype: {error}")))?;
        let injections: Result<Vec<Injection>, Error> = self.inject.iter().map(|text| Injection::parse(text)).collect();
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
            dtype,
            collectives: self.collectives,
            backend: self.backend,
            share_gpu: self.share_gpu,
            cuda_graph: self.cuda_graph,
            injections: injections?,
            progress: self.progress,
            record: self.record == Switch::On,
        })
    }
}

impl Options {
    /// What the run's manifest says of them.
    pub fn manifest_config(&self, launcher: &str) -> serde_json::Map<String, serde_json::Value> {
        let Options { steps, schedule, model, bucket_bytes, dtype, progress, .. } = self;
        let value = serde_json::json!({
            "steps": steps,
            "schedule": {
                "wait": schedule.wait,
                "warmup": schedule.warmup,
                "active": schedule.active,
                "repeat": schedule.repeat,
                "skip_first": schedule.skip_first,
            },
            "layers": model.layers,
            "hidden": model.hidden,
            "batch": model.batch,
            "seed": model.seed,
            "learning_rate": model.learning_rate,
            "bucket_bytes": bucket_bytes,
            "dtype": dtype.as_str(),
            "progress": format!("{progress:?}").to_lowercase(),
            "cuda_graph": self.cuda_graph,
            "inject": self.injections.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "launcher": launcher,
        });
        match value {
            serde_json::Value::Object(map) => map,
            _ => serde_json::Map::new(),
        }
    }
}

/// Reads `wait=1,warmup=2,active=5,repeat=1`.
fn parse_schedule(text: &str) -> Result<Schedule, Error> {
    text.parse().map_err(|problem| Error::Usage(format!("--schedule: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &str) -> Result<Options, Error> {
        Cli::try_parse_from(format!("rank-agent {arguments}").split_whitespace()).unwrap().into_options()
    }

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
        assert_eq!(options.injections.len(), 2);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (arguments, code, part) in [
            ("--backend cpu --collectives nccl", 2, "needs --backend cuda"),
            ("--backend cpu --cuda-graph", 2, "for --backend cuda"),
            ("--backend cpu --share-gpu", 2, "for --backend cuda"),
            ("--schedule wait=1,warmup=2", 2, "active must be at least 1"),
            ("--schedule active=-1", 2, "no whole number"),
            ("--schedule active", 2, "not name=number"),
            ("--schedule actve=1", 2, "none of wait, warmup"),
            ("--steps 3", 2, "no active step within --steps 3"),
            ("--lr nan", 2, "not a learning rate"),
            ("--dtype fp8", 2, "fp8"),
            ("--inject slow:rank=1", 2, "ms is missing"),
        ] {
            let error = options(arguments).unwrap_err();
            assert_eq!(error.exit_code(), code, "{arguments}");
            assert!(error.to_string().contains(part), "{arguments}: {error}");
        }
        // Nothing is recorded anyway.
        assert!(options("--steps 3 --record off").is_ok());
    }
}
