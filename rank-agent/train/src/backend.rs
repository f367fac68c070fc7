//! Chooses the back end, in a build with CUDA or without.

use std::collections::BTreeMap;

use agent::fabric::Fabric;
use launch::Identity;

use crate::Error;
use crate::options::Options;

#[cfg(feature = "cuda")]
pub use crate::cuda::Plan;

/// The device that computes the model.
#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
pub enum Plan {
    /// The CPU; with the reason if `--backend auto` chose it.
    Cpu(Option<String>),
}

/// Sets variables that libraries read from the environment. Call it while the process has one thread.
///
/// # Errors
/// [`Error::Unavailable`].
pub fn prepare(options: &Options, identity: &Identity) -> Result<(), Error> {
    #[cfg(feature = "cuda")]
    crate::cuda::prepare(options, identity)?;
    #[cfg(not(feature = "cuda"))]
    let _ = (options, identity);
    Ok(())
}

/// Chooses the same back end on all ranks. Collective.
///
/// # Errors
/// [`Error::Unavailable`] if the requested back end lacks something.
pub fn choose(fabric: &dyn Fabric, options: &Options, identity: &Identity) -> Result<Plan, Error> {
    #[cfg(feature = "cuda")]
    return crate::cuda::choose(fabric, options, identity);
    #[cfg(not(feature = "cuda"))]
    {
        use crate::options::BackendChoice;
        let _ = (fabric, identity);
        match options.backend {
            BackendChoice::Cuda => Err(Error::Unavailable(
                "a device is asked for, but this rank-agent was built without CUDA; build it with --features cuda"
                    .into(),
            )),
            BackendChoice::Auto => Ok(Plan::Cpu(Some("built without CUDA".into()))),
            BackendChoice::Cpu => Ok(Plan::Cpu(None)),
        }
    }
}

/// Versions of the back end, for the `ranks` row.
pub fn versions(plan: &Plan) -> BTreeMap<String, String> {
    match plan {
        Plan::Cpu(_) => BTreeMap::from([("backend".into(), "cpu".into())]),
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => plan.versions(),
    }
}

/// Name and UUID of the device.
pub fn device(plan: &Plan) -> Option<(String, String)> {
    match plan {
        Plan::Cpu(_) => None,
        #[cfg(feature = "cuda")]
        Plan::Cuda(plan) => Some((plan.info.name.clone(), plan.info.uuid.clone())),
    }
}
