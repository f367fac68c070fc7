//! The device that computes, and the carrier between devices.

use std::collections::BTreeMap;

use kernels::cuda::device::{DeviceInfo, Driver};

use super::nccl::{self, Nccl};

/// The device that computes the model.
#[derive(Debug)]
pub enum Plan {
    /// The CPU; with the reason if `--backend auto` chose it.
    Cpu(Option<String>),
    /// A CUDA device.
    Cuda(Box<CudaPlan>),
}

/// The device and libraries of a rank.
#[derive(Debug)]
pub struct CudaPlan {
    pub(crate) driver: Driver,
    pub(crate) info: DeviceInfo,
    pub(crate) carrier: Carrier,
    /// Sentences for rank 0's report.
    pub(crate) notes: Vec<String>,
}

impl CudaPlan {
    /// Versions of the back end, for the `ranks` row.
    pub(crate) fn versions(&self) -> BTreeMap<String, String> {
        let mut versions =
            BTreeMap::from([("backend".into(), "cuda".into()), ("cuda_driver".into(), self.driver.version())]);
        if let Carrier::Nccl(_, version) = self.carrier {
            versions.insert("nccl".into(), nccl::version_text(version));
        }
        versions
    }
}

/// The carrier of gradients between devices.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carrier {
    /// No carrier: there is one rank.
    None,
    /// NCCL, of this version.
    Nccl(Nccl, i32),
    /// MPI, through pinned host memory.
    Host,
}
