//! Which back end: what a build without CUDA answers, and a build with it decides.

use std::collections::BTreeMap;

use launch::Identity;

use crate::Error;
use crate::cli::Options;
use crate::fabric::Fabric;
use crate::job::{Job, Trained};

#[cfg(feature = "cuda")]
pub use crate::device::{Plan, ShareGpu};
#[cfg(not(feature = "cuda"))]
pub use without::{Plan, ShareGpu};

/// The words of a build without CUDA.
#[cfg(not(feature = "cuda"))]
mod without {
    /// Where the model is computed.
    #[derive(Debug)]
    pub enum Plan {
        /// On the processor; if `--backend auto` chose it, why.
        Cpu(Option<String>),
    }

    /// How ranks may share a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum ShareGpu {
        /// As it can.
        Auto,
    }
}

/// Sets what libraries read from the environment, while this is the only thread.
///
/// # Errors
/// [`Error::Unavailable`].
pub fn prepare(options: &Options, identity: &Identity) -> Result<(), Error> {
    #[cfg(feature = "cuda")]
    crate::device::prepare(options, identity)?;
    #[cfg(not(feature = "cuda"))]
    let _ = (options, identity);
    Ok(())
}

/// Decides for all ranks together. Collective.
///
/// # Errors
/// What is missing, if it was asked for.
pub fn choose(fabric: &dyn Fabric, options: &Options, identity: &Identity) -> Result<Plan, Error> {
    #[cfg(feature = "cuda")]
    return crate::device::choose(fabric, options, identity);
    #[cfg(not(feature = "cuda"))]
    {
        use crate::cli::BackendChoice;
        let _ = (fabric, identity);
        match options.backend {
            BackendChoice::Cuda => Err(Error::Unavailable(
                "--backend cuda: this rank-agent was built without CUDA; build it with --features cuda".into(),
            )),
            BackendChoice::Auto => Ok(Plan::Cpu(Some("built without CUDA".into()))),
            BackendChoice::Cpu => Ok(Plan::Cpu(None)),
        }
    }
}

/// Trains where the plan says, if that is not the processor.
pub(crate) fn train_on_device(job: &Job<'_>, plan: &Plan) -> Result<Trained, Error> {
    match plan {
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => job.train_on_device(plan),
        Plan::Cpu(_) => {
            let _ = job;
            Err(Error::Unavailable("there is no device".into()))
        }
    }
}

/// What the `ranks` row says of the back end.
pub fn versions(plan: &Plan) -> BTreeMap<String, String> {
    match plan {
        Plan::Cpu(_) => BTreeMap::from([("backend".into(), "cpu".into())]),
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => plan.versions(),
    }
}

/// Name and uuid of the device.
pub fn device(plan: &Plan) -> Option<(String, String)> {
    match plan {
        Plan::Cpu(_) => None,
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => Some((plan.info.name.clone(), plan.info.uuid.clone())),
    }
}
