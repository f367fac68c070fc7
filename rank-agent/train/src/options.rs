//! The options of a training, checked.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use kernels::Dtype;
use recorder::Schedule;

use crate::Error;
use crate::engine::Progress;
use crate::faults::Fault;
use crate::model::ModelConfig;
use crate::parallel::compute::Compute;
use crate::parallel::mesh::Mesh;

/// The device that computes the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// CUDA if every rank has a device and the libraries, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// The library that carries the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Collectives {
    /// NCCL between devices if every rank has it, else MPI; none for a single rank.
    Auto,
    /// MPI, even for a single rank.
    Mpi,
    /// NCCL.
    Nccl,
}

/// The way in which several ranks share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShareGpu {
    /// multi-rank if this NCCL has it, else host-id.
    Auto,
    /// NCCL_MULTI_RANK_GPU_ENABLE, of NCCL 2.30.3 and newer.
    MultiRank,
    /// A separate host id (NCCL_HOSTID) for every rank, and sockets between them; any NCCL.
    HostId,
}

/// The options of a training.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the run; `None`: a new one.
    pub out: Option<PathBuf>,
    /// Training steps, at least 1.
    pub steps: u32,
    /// The steps to record.
    pub schedule: Schedule,
    /// The model.
    pub model: ModelConfig,
    /// Limit of a gradient bucket in bytes.
    pub bucket_bytes: usize,
    /// The grid of a job with several communicators; `None`: plain data parallelism.
    pub parallel: Option<Mesh>,
    /// Shard the layers over data-parallel ranks.
    pub fsdp: bool,
    /// The work of a layer.
    pub compute: Compute,
    /// Microbatches of a step; `None`: twice the number of stages, or 1 without a pipeline.
    pub microbatches: Option<usize>,
    /// Arithmetic of the matrix products.
    pub dtype: Dtype,
    /// The library that carries the gradients.
    pub collectives: Collectives,
    /// The device that computes the model.
    pub backend: BackendChoice,
    /// The way in which ranks may share a device; `None`: they may not.
    pub share_gpu: Option<ShareGpu>,
    /// Launch each step as one CUDA graph.
    pub cuda_graph: bool,
    /// Faults to inject.
    pub faults: Vec<Fault>,
    /// The thread that drives all-reduces.
    pub progress: Progress,
    /// Record the training.
    pub record: bool,
    /// Interval of the clock comparisons between steps.
    pub ping_interval: Duration,
}

impl Options {
    /// The grid of a job of `size` ranks with several communicators; `None` if it trains by plain data parallelism.
    ///
    /// # Errors
    /// [`Error::Usage`] if the ranks or the layers do not fit.
    pub fn mesh(&self, size: usize) -> Result<Option<Mesh>, Error> {
        let mesh = self.parallel.unwrap_or(Mesh { dp: size, tp: 1, pp: 1 });
        if mesh.size() != size {
            let wanted = mesh.size();
            return Err(Error::Usage(format!("--parallel {mesh} needs {wanted} ranks, the job has {size}")));
        }
        if !self.works_on_host() {
            return Ok(None);
        }
        let (layers, hidden) = (self.model.layers, self.model.hidden);
        if !layers.is_multiple_of(mesh.pp) {
            let stages = mesh.pp;
            return Err(Error::Usage(format!("--layers {layers} cannot be divided among {stages} stages")));
        }
        if !hidden.is_multiple_of(mesh.tp) {
            let parts = mesh.tp;
            return Err(Error::Usage(format!("--hidden {hidden} cannot be divided into {parts} parts")));
        }
        if self.fsdp && mesh.pp > 1 {
            return Err(Error::Usage("--fsdp has no pipeline: give --parallel pp=1".into()));
        }
        if self.backend == BackendChoice::Cuda {
            let what = "the work of tensor and pipeline parallelism, --fsdp and --compute runs on the CPU";
            return Err(Error::Usage(format!(
                "{what}: leave --backend out; --collectives nccl carries its transfers by NCCL"
            )));
        }
        Ok(Some(mesh))
    }

    /// Whether the job has several communicators, or work that is no training. The CPU does such work.
    pub(crate) fn works_on_host(&self) -> bool {
        let is_grid = self.parallel.is_some_and(|mesh| mesh.tp > 1 || mesh.pp > 1);
        is_grid || self.fsdp || self.compute != Compute::Gemm
    }

    /// Microbatches of a step.
    pub fn microbatches(&self, mesh: &Mesh) -> usize {
        self.microbatches.unwrap_or(if mesh.pp == 1 { 1 } else { 2 * mesh.pp }).max(1)
    }

    /// The options as the run's manifest holds them.
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
            "parallel": self.parallel.map(|mesh| mesh.to_string()),
            "fsdp": self.fsdp,
            "compute": self.compute.name(),
            "microbatches": self.microbatches,
            "dtype": dtype.as_str(),
            "progress": format!("{progress:?}").to_lowercase(),
            "cuda_graph": self.cuda_graph,
            "inject": self.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "launcher": launcher,
        });
        match value {
            serde_json::Value::Object(map) => map,
            _ => serde_json::Map::new(),
        }
    }
}
