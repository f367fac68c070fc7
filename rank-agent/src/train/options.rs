//! The options of a training, checked.

use std::path::PathBuf;
use std::time::Duration;

use kernels::Dtype;
use recorder::Schedule;

use crate::train::engine::Progress;
use crate::train::faults::Fault;
use crate::train::model::ModelConfig;

/// The device that computes the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// CUDA if every rank has a device and the libraries, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// The library that carries the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collectives {
    /// NCCL between devices if every rank has it, else MPI; none for a single rank.
    Auto,
    /// MPI, even for a single rank.
    Mpi,
    /// NCCL.
    Nccl,
}

/// The way in which several ranks share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareGpu {
    /// `MultiRank` if this NCCL has it, else `HostId`.
    Auto,
    /// `NCCL_MULTI_RANK_GPU_ENABLE`, of NCCL 2.30.3 and newer.
    MultiRank,
    /// A separate host id (`NCCL_HOSTID`) for every rank, and sockets between them; any NCCL.
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
