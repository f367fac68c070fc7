//! What a row's name says about it: communication, or waiting for it.

use crate::model::Kind;

/// What a name means; computed once a name, not once a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameClass {
    /// As a kernel: it communicates (HTA's rule, any case: names starting with `nccl` or `rccl`).
    pub device_comm: bool,
    /// As an operator of the host: it communicates or waits for communication.
    pub host_comm: bool,
}

/// Prefixes of the operators that PyTorch, gloo and MPI programs record around communication.
const HOST_COMM_PREFIXES: [&str; 5] = ["c10d::", "nccl:", "gloo:", "mpi:", "record_param_comms"];

impl NameClass {
    /// The class of `name`.
    pub fn of(name: &str) -> Self {
        let starts = |prefix: &str| name.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
        let device_comm = starts("nccl") || starts("rccl");
        let host_comm = HOST_COMM_PREFIXES.iter().any(|p| name.starts_with(p)) || contains_wait(name);
        Self { device_comm, host_comm }
    }

    /// Whether a row of this name and `kind` is communication, or waiting for it.
    pub fn is_comm(self, kind: Kind) -> bool {
        match kind {
            Kind::Kernel => self.device_comm,
            Kind::CpuOp => self.host_comm,
            _ => false,
        }
    }
}

/// Calls that return only when a device is done: `cudaStreamSynchronize`, `hipDeviceSynchronize`, `cuCtxSynchronize`, …
/// and copies that are not `Async`.
pub(crate) fn synchronizes(name: &str) -> bool {
    let name = name.strip_suffix("_v2").unwrap_or(name);
    let copy = ["cudaMemcpy", "hipMemcpy", "cuMemcpy"].iter().any(|prefix| name.starts_with(prefix));
    name.ends_with("Synchronize") || (copy && !name.contains("Async"))
}

fn contains_wait(name: &str) -> bool {
    name.as_bytes().windows(4).any(|w| w.eq_ignore_ascii_case(b"wait"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_field() {
        let check = |name: &str, kind: Kind, expected: bool| {
            assert_eq!(NameClass::of(name).is_comm(kind), expected, "{name} as {kind:?}");
        };
        check("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", Kind::Kernel, true);
        check("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Kind::Kernel, true);
        check("rcclGenericKernel", Kind::Kernel, true);
        check("RCCL_AllReduce", Kind::Kernel, true);
        check("void gemm<nccl>(float*)", Kind::Kernel, false);
        check("c10d::allreduce_", Kind::CpuOp, true);
        check("nccl:all_reduce", Kind::CpuOp, true);
        check("gloo:all_reduce", Kind::CpuOp, true);
        check("mpi:all_reduce", Kind::CpuOp, true);
        check("record_param_comms", Kind::CpuOp, true);
        check("wait_all_reduce", Kind::CpuOp, true);
        check("c10d::WaitTensor", Kind::CpuOp, true);
        check("aten::addmm", Kind::CpuOp, false);
        check("forward", Kind::UserAnnotation, false);
        check("é", Kind::Kernel, false);
    }
}
