//! The interface of a device that runs the workload.

use crate::Dtype;
use crate::error::Result;
use crate::operation::{
    BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Fill, Gemm, SgdMomentum,
    SoftmaxCrossEntropy,
};

/// Executes operations on its own buffers.
///
/// For the caller, buffers hold f32 numbers. The back end decides how and where to store them: they may be device memory,
/// and a bf16 back end may keep a rounded copy of each. Operations may be asynchronous: they are enqueued in call order, and
/// only [`Backend::download`] and [`Backend::synchronize`] wait. An operation returns errors in its shapes at once and writes
/// nothing then; a device error appears at the next wait.
///
/// Every operation checks the lengths of its buffers against its shape.
pub trait Backend {
    /// Numbers in the back end's memory; `Send`, so that a communication thread can own one for a while.
    type Buffer: Send;
    /// Class numbers in the back end's memory.
    type Labels: Send;

    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Its arithmetic.
    fn dtype(&self) -> Dtype;

    /// A buffer of `len` zeros; errors contain `name`.
    fn alloc(&self, name: &str, len: usize) -> Result<Self::Buffer>;

    /// A buffer of `len` labels, all 0.
    fn alloc_labels(&self, name: &str, len: usize) -> Result<Self::Labels>;

    /// Number of elements of a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Bytes that a buffer occupies.
    fn size_bytes(&self, buffer: &Self::Buffer) -> usize;

    /// Bytes that labels occupy.
    fn labels_size_bytes(&self, labels: &Self::Labels) -> usize;

    /// Copies numbers of the same count into a buffer.
    fn upload(&self, host: &[f32], buffer: &mut Self::Buffer) -> Result<()>;

    /// Copies labels of the same count into a buffer.
    fn upload_labels(&self, host: &[u32], labels: &mut Self::Labels) -> Result<()>;

    /// Waits for the enqueued work, then copies a buffer to the host.
    fn download(&self, buffer: &Self::Buffer, host: &mut [f32]) -> Result<()>;

    /// The buffer's memory, if it is host memory of plain f32, which saves a copy.
    fn host<'a>(&self, buffer: &'a Self::Buffer) -> Option<&'a [f32]>;

    /// Mutable [`Backend::host`].
    fn host_mut<'a>(&self, buffer: &'a mut Self::Buffer) -> Option<&'a mut [f32]>;

    /// Waits for all enqueued work.
    fn synchronize(&self) -> Result<()>;

    /// See [`Gemm`].
    fn gemm(&self, op: &Gemm, a: &Self::Buffer, b: &Self::Buffer, c: &mut Self::Buffer) -> Result<()>;

    /// See [`BiasRelu`].
    fn bias_relu(&self, op: &BiasRelu, x: &mut Self::Buffer, bias: &Self::Buffer) -> Result<()>;

    /// See [`BiasAdd`].
    fn bias_add(&self, op: &BiasAdd, x: &mut Self::Buffer, bias: &Self::Buffer) -> Result<()>;

    /// See [`BiasReluBackward`].
    fn bias_relu_backward(
        &self,
        op: &BiasReluBackward,
        y: &Self::Buffer,
        gradient: &mut Self::Buffer,
        bias_gradient: &mut Self::Buffer,
    ) -> Result<()>;

    /// See [`BiasGrad`].
    fn bias_grad(&self, op: &BiasGrad, gradient: &Self::Buffer, bias_gradient: &mut Self::Buffer) -> Result<()>;

    /// See [`SoftmaxCrossEntropy`]; `loss` has one element. A label without a class is an error.
    fn softmax_cross_entropy(
        &self,
        op: &SoftmaxCrossEntropy,
        logits: &Self::Buffer,
        labels: &Self::Labels,
        loss: &mut Self::Buffer,
        gradient: &mut Self::Buffer,
    ) -> Result<()>;

    /// See [`SgdMomentum`].
    fn sgd_momentum(
        &self,
        op: &SgdMomentum,
        parameter: &mut Self::Buffer,
        gradient: &Self::Buffer,
        velocity: &mut Self::Buffer,
    ) -> Result<()>;

    /// See [`BucketPack`].
    fn bucket_pack(&self, op: &BucketPack, tensor: &Self::Buffer, bucket: &mut Self::Buffer) -> Result<()>;

    /// See [`BucketUnpack`].
    fn bucket_unpack(&self, op: &BucketUnpack, bucket: &Self::Buffer, tensor: &mut Self::Buffer) -> Result<()>;

    /// See [`Fill`].
    fn fill(&self, op: &Fill, buffer: &mut Self::Buffer) -> Result<()>;
}
