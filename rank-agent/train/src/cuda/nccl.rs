//! NCCL: the library, and one communicator of all ranks.

#[expect(unsafe_code, reason = "NCCL's C interface")]
mod ffi;

use agent::fabric::Fabric;
use agent::fabric::agree::agree_on_success as agree;
use kernels::cuda::Cuda;

pub(crate) use self::ffi::Nccl;
pub(super) use self::ffi::{Communicator, UNIQUE_ID_BYTES, set_default_environment};
use crate::Error;

/// Formats a version: `2.28.9` for 22809.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Joins all ranks of `fabric`, which carries rank 0's id to the others. Collective.
pub(super) fn join_all(nccl: Nccl, cuda: &Cuda, fabric: &dyn Fabric) -> Result<Communicator, Error> {
    let id = if fabric.rank() == 0 { nccl.unique_id().map_err(Error::from) } else { Ok(Vec::new()) };
    let id = fabric.broadcast(agree(fabric, id)?)?;
    cuda.context().bind()?;
    let joined = Communicator::join(nccl, &id, fabric.rank(), fabric.size());
    agree(fabric, joined.map_err(Error::from))
}
