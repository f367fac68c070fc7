//! cuBLAS: one matrix product.

use cudarc::cublas::sys;

use super::driver::Stream;
use super::memory::DeviceMemory;
use crate::error::{Error, Result};
use crate::{Dtype, Gemm, Transpose};

/// Size of cuBLAS's workspace: the documented size for Hopper (32 MiB). With a given workspace cuBLAS allocates none, which
/// it could not do while a graph is captured.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A cuBLAS handle on one stream.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    stream: *mut std::ffi::c_void,
    _workspace: DeviceMemory,
}

fn check(call: &'static str, code: sys::cublasStatus_t) -> Result<()> {
    match code as u32 {
        0 => Ok(()),
        number => Err(Error::Cuda { call, code: number.cast_signed(), message: format!("{code:?}") }),
    }
}

impl Blas {
    /// A handle on `stream`, which must outlive it.
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        stream.context().bind()?;
        let workspace = DeviceMemory::new(stream.context(), "cuBLAS workspace", WORKSPACE_BYTES)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a context is current; `handle` is written; stream and workspace live as long as the handle.
        unsafe {
            check("cublasCreate", sys::cublasCreate_v2(&mut handle))?;
            let made = Self { handle, stream: stream.handle(), _workspace: workspace };
            check("cublasSetStream", sys::cublasSetStream_v2(handle, stream.handle().cast()))?;
            let memory = made._workspace.address() as *mut std::ffi::c_void;
            check("cublasSetWorkspace", sys::cublasSetWorkspace_v2(handle, memory, WORKSPACE_BYTES))?;
            Ok(made)
        }
    }

    /// cuBLAS's version, as 10000 · major + 100 · minor + patch.
    pub(crate) fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the handle is alive; `version` is written.
        unsafe { check("cublasGetVersion", sys::cublasGetVersion_v2(self.handle, &mut version))? };
        Ok(version)
    }

    /// C ← alpha · op(A) · op(B) + beta · C at three device addresses, whose lengths the caller has checked. A and B
    /// hold bf16 if that is the dtype, else f32; C is f32, and so are all sums.
    ///
    /// cuBLAS is column-major and sees a row-major matrix as its transpose, so this computes Cᵀ = op(B)ᵀ · op(A)ᵀ with the
    /// operands exchanged.
    pub(crate) fn gemm(&self, stream: &Stream, op: &Gemm, dtype: Dtype, a: u64, b: u64, c: u64) -> Result<()> {
        use sys::{cublasComputeType_t as Compute, cudaDataType_t as Type};
        debug_assert_eq!(stream.handle(), self.stream, "the handle was made for another stream");
        stream.context().bind()?;
        let (operands, compute) = match dtype {
            Dtype::F32 => (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            Dtype::Tf32 => (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32),
            Dtype::Bf16 => (Type::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
        };
        let algorithm = sys::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT;
        let (m, n, k) = (dimension(op, op.m)?, dimension(op, op.n)?, dimension(op, op.k)?);
        let (b_op, b_stride) = if op.b == Transpose::No { (NO, n) } else { (YES, k) };
        let (a_op, a_stride) = if op.a == Transpose::No { (NO, k) } else { (YES, m) };
        let (alpha, beta) = (std::ptr::from_ref(&op.alpha).cast(), std::ptr::from_ref(&op.beta).cast());
        let (a, b, c) = (a as *const std::ffi::c_void, b as *const std::ffi::c_void, c as *mut std::ffi::c_void);
        // SAFETY: the addresses hold as many elements as the shape needs, checked by the caller; the leading dimensions
        // are those of dense matrices; the factors are on the host and read before the call returns.
        unsafe {
            let code = sys::cublasGemmEx(
                self.handle,
                b_op,
                a_op,
                n,
                m,
                k,
                alpha,
                b,
                operands,
                b_stride,
                a,
                operands,
                a_stride,
                beta,
                c,
                Type::CUDA_R_32F,
                n,
                compute,
                algorithm,
            );
            check("cublasGemmEx", code)
        }
    }
}

const NO: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_N;
const YES: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_T;

fn dimension(op: &Gemm, n: usize) -> Result<i32> {
    use crate::Operation;
    let reason = "have a side that cuBLAS cannot count";
    i32::try_from(n).map_err(|_| Error::Shape { operation: "gemm", shapes: op.input_dims(), reason })
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the context lives in the workspace.
        unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}
