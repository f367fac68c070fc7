//! The workload on CUDA devices: chooses back end, device and collectives, and trains.
//!
//! [`choose`] decides for all ranks together, before anything is created on disk. A rank computes on one stream and
//! communicates on another. The host only enqueues; it reads results where recording pauses anyway.

mod comm;
mod groups;
mod job;
mod nccl;
mod plan;
mod selftest;
mod share;
mod timing;
mod trainer;

use agent::fabric::agree::{agree_on_success as agree, hash, host_hash};
use agent::fabric::{Fabric, Lane};
use kernels::cuda::device::{self, DeviceInfo, Driver};
use kernels::cuda::libraries;
use launch::Identity;

pub(crate) use self::groups::NcclGroups;
pub(crate) use self::job::train;
pub(crate) use self::plan::Carrier;
pub use self::plan::{CudaPlan, Plan};
pub use self::selftest::{Selftest, selftest};

use self::nccl::Nccl;
use crate::Error;
use crate::options::{BackendChoice, Collectives, Options};

/// The libraries and the device of a rank that has them.
struct LocalDevice {
    driver: Driver,
    info: DeviceInfo,
    nccl: Result<(Nccl, i32), kernels::Error>,
}

/// Sets the variables that NCCL reads from the environment. Call it first: the environment can be changed only while the
/// process has one thread.
///
/// # Errors
/// [`Error::Unavailable`] for a way of sharing that this NCCL does not have.
pub fn prepare(options: &Options, identity: &Identity) -> Result<(), Error> {
    let Some(wanted) = options.share_gpu else { return Ok(()) };
    if options.backend == BackendChoice::Cpu || options.collectives == Collectives::Mpi {
        return Ok(());
    }
    // Without NCCL there is nothing to prepare; `choose` reports a missing NCCL.
    let Ok(version) = Nccl::open().and_then(|nccl| nccl.version()) else { return Ok(()) };
    let own = format!("{}-{}", identity.rank, std::process::id());
    let ranks = usize::try_from(identity.world_size).unwrap_or(1);
    let sharing = share::decide(wanted, version, &own, ranks).map_err(Error::Unavailable)?;
    for (name, value) in &sharing.variables {
        nccl::set_default_environment(name, value);
    }
    Ok(())
}

/// The sentence on shared devices: how they are shared, and the variables that the user has set differently.
fn sharing_note(options: &Options, carrier: &Carrier) -> Option<String> {
    let wanted = options.share_gpu?;
    let Carrier::Nccl(_, version) = carrier else {
        return Some("ranks share a GPU: it runs one process's kernels at a time".into());
    };
    let sharing = share::decide(wanted, *version, "", 1).ok()?;
    // The values of two variables depend on the rank and the number of ranks.
    let fixed = |name: &str| name != "NCCL_HOSTID" && name != "NCCL_MAX_CTAS";
    let other: Vec<&str> = sharing
        .variables
        .iter()
        .filter(|(name, value)| fixed(name) && std::env::var(name).ok().as_ref() != Some(value))
        .map(|(name, _)| *name)
        .collect();
    let but = if other.is_empty() { String::new() } else { format!("; left as they were: {}", other.join(", ")) };
    Some(sharing.note + &but)
}

/// Chooses device and carrier, the same on all ranks. Collective.
///
/// # Errors
/// [`Error::Unavailable`] if all ranks lack the same thing; this rank's own error, or `Error::Peer` for another rank's.
pub fn choose(fabric: &dyn Fabric, options: &Options, identity: &Identity) -> Result<Plan, Error> {
    if options.backend == BackendChoice::Cpu {
        return Ok(Plan::Cpu(None));
    }
    let mine = local_rank(fabric, identity).and_then(|local_rank| Ok(find(fabric.size(), local_rank, options)?));
    let found = mine.as_ref().ok();
    let nccl_version = found.and_then(|found| found.nccl.as_ref().ok()).map_or(0, |(_, version)| *version);
    let words = [
        u64::from(found.is_some()),
        // NCCL refuses two ranks of one device even if each has a part of it, by MIG.
        found.map_or(0, |found| hash(&[found.info.bus_id.as_bytes(), &host_hash().to_ne_bytes()])),
        u64::from(nccl_version.unsigned_abs()),
    ];
    let all = fabric.all_gather(Lane::Control, &words)?;
    let column = |index: usize| all.iter().skip(index).step_by(words.len()).copied().collect::<Vec<u64>>();
    let is_auto = options.backend == BackendChoice::Auto;
    let missing: Vec<usize> = (0..fabric.size()).filter(|rank| column(0).get(*rank) != Some(&1)).collect();
    let found = match mine {
        Ok(found) if missing.is_empty() => found,
        Ok(_) if is_auto => return Ok(Plan::Cpu(Some(format!("rank {} has no CUDA device", missing[0])))),
        Err(error) if is_auto => return Ok(Plan::Cpu(Some(brief(&error)))),
        Err(error) if missing.len() == fabric.size() => {
            let (what, instead) = match options.works_on_host() {
                true => ("--collectives nccl", "--collectives mpi"),
                false => ("--backend cuda", "--backend cpu"),
            };
            return Err(Error::Unavailable(format!("{what}: {error}; or use {instead}")));
        }
        mine => agree(fabric, mine)?,
    };
    if let Some((first, second)) = shared(&column(1))
        && options.share_gpu.is_none()
    {
        let why = format!(
            "ranks {first} and {second} would compute on the same device: start one rank per device, or share it with \
             --share-gpu"
        );
        return if is_auto { Ok(Plan::Cpu(Some(why))) } else { Err(Error::Unavailable(why)) };
    }
    let mut notes = Vec::new();
    let carrier = carrier(fabric.size(), options, &found.nccl, &column(2), &mut notes)?;
    if fabric.size() > 1 {
        notes.extend(sharing_note(options, &carrier));
    }
    if options.cuda_graph && matches!(carrier, Carrier::Host) {
        return Err(Error::Unavailable(
            "--cuda-graph: gradients that go through the host cannot be part of a CUDA graph; use --collectives nccl"
                .into(),
        ));
    }
    Ok(Plan::Cuda(Box::new(CudaPlan { driver: found.driver, info: found.info, carrier, notes })))
}

/// The rank's number on its host, from the launcher; else the ranks agree on it, which is collective.
fn local_rank(fabric: &dyn Fabric, identity: &Identity) -> Result<usize, Error> {
    // All ranks take the same branch, because they have the same launcher.
    if let Some(local_rank) = identity.local_rank {
        return Ok(usize::try_from(local_rank).unwrap_or(0));
    }
    let host = host_hash();
    let hosts = fabric.all_gather(Lane::Control, &[host])?;
    Ok(hosts.iter().take(fabric.rank()).filter(|other| **other == host).count())
}

fn find(size: usize, local_rank: usize, options: &Options) -> Result<LocalDevice, kernels::Error> {
    let driver = Driver::open()?;
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices = driver.devices()?;
    let ordinal = device::choose(local_rank, devices.len(), variable.as_deref())?;
    let no_device = || kernels::Error::NoDevice { why: format!("device {ordinal} is gone") };
    let info = devices.into_iter().nth(ordinal).ok_or_else(no_device)?;
    libraries::open(&libraries::CUBLAS)?;
    libraries::open(&libraries::NVRTC)?;
    let wanted = size > 1 && options.collectives != Collectives::Mpi;
    let nccl = if wanted {
        Nccl::open().and_then(|nccl| Ok((nccl, nccl.version()?)))
    } else {
        Err(kernels::Error::NoDevice { why: "NCCL is not needed".into() })
    };
    Ok(LocalDevice { driver, info, nccl })
}

/// Chooses the carrier of the gradients; `versions` are the NCCL versions of all ranks, 0 for none.
fn carrier(
    size: usize,
    options: &Options,
    nccl: &Result<(Nccl, i32), kernels::Error>,
    versions: &[u64],
    notes: &mut Vec<String>,
) -> Result<Carrier, Error> {
    if size == 1 {
        return Ok(Carrier::None);
    }
    if options.collectives == Collectives::Mpi {
        return Ok(Carrier::Host);
    }
    let problem = match (versions.iter().position(|version| *version == 0), nccl) {
        (None, Ok((nccl, version))) if versions.iter().all(|other| other == &versions[0]) => {
            return Ok(Carrier::Nccl(*nccl, *version));
        }
        (None, _) => {
            let texts: Vec<String> =
                versions.iter().map(|v| nccl::version_text(i32::try_from(*v).unwrap_or(0))).collect();
            format!("the ranks have different NCCLs: {}", texts.join(", "))
        }
        (Some(_), Err(error)) => error.to_string(),
        (Some(rank), Ok(_)) => format!("rank {rank} has no NCCL"),
    };
    if options.collectives == Collectives::Nccl {
        return Err(Error::Unavailable(format!("--collectives nccl: {problem}")));
    }
    notes.push(format!("gradients travel by MPI through pinned host memory, because {problem}"));
    Ok(Carrier::Host)
}

/// The first two ranks with the same device.
fn shared(devices: &[u64]) -> Option<(usize, usize)> {
    devices
        .iter()
        .enumerate()
        .find_map(|(second, device)| Some((devices[..second].iter().position(|other| other == device)?, second)))
}

/// A short form of an error, for the reason of an automatic choice.
fn brief(error: &Error) -> String {
    match error {
        Error::Kernel(kernels::Error::Library { name, files, problem, .. }) => format!("{name} ({files}) {problem}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_on_one_device_are_found() {
        assert_eq!(shared(&[5, 6, 7]), None);
        assert_eq!(shared(&[5, 6, 5, 6]), Some((0, 2)));
        assert_eq!(shared(&[]), None);
    }

    #[test]
    fn the_reason_of_an_automatic_choice_is_short() {
        let error = kernels::Error::Library {
            name: "the CUDA driver",
            files: "libcuda.so.1".into(),
            problem: "was not found".into(),
            searched: "everywhere".into(),
            install: "a driver",
        };
        assert_eq!(brief(&error.into()), "the CUDA driver (libcuda.so.1) was not found");
    }
}
