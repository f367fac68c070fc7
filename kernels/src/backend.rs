//! What a processor that runs the workload has to offer.

use crate::Dtype;
use crate::error::Result;
use crate::operation::{
    BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Fill, Gemm, SgdMomentum,
    SoftmaxCrossEntropy,
};

/// Executes operations on buffers of its own.
///
/// Buffers hold f32 numbers as far as a caller can see; how and where they are stored is the back end's affair, so they
/// may be device memory, and a bf16 back end may keep a rounded copy beside each. An operation may be asynchronous: it
/// is enqueued in call order, and only [`Backend::download`] and [`Backend::synchronize`] wait. So an operation's own
/// error may be a shape that does not fit (at once, nothing done) while a fault of the device appears at the next wait.
///
/// Every operation checks the lengths of its buffers against its shape.
pub trait Backend {
    /// Numbers in the back end's memory; `Send`, so that a communication thread can own one for a while.
    type Buffer: Send;
    /// Class numbers in the back end's memory.
    type Labels: Send;

    /// Its word on the command line.
    fn name(&self) -> &'static str;

    /// The arithmetic it was made for.
    fn dtype(&self) -> Dtype;

    /// A buffer of `len` zeros; `name` says in an error what it was for.
    fn alloc(&self, name: &str, len: usize) -> Result<Self::Buffer>;

    /// A buffer of `len` labels, all 0.
    fn alloc_labels(&self, name: &str, len: usize) -> Result<Self::Labels>;

    /// Elements of a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Bytes that a buffer occupies.
    fn size_bytes(&self, buffer: &Self::Buffer) -> usize;

    /// Bytes that labels occupy.
    fn labels_size_bytes(&self, labels: &Self::Labels) -> usize;

    /// Copies numbers of the same count into a buffer.
    fn upload(&self, host: &[f32], buffer: &mut Self::Buffer) -> Result<()>;

    /// Copies labels of the same count into a buffer.
    fn upload_labels(&self, host: &[u32], labels: &mut Self::Labels) -> Result<()>;

    /// Waits for what was enqueued, then copies a buffer out.
    fn download(&self, buffer: &Self::Buffer, host: &mut [f32]) -> Result<()>;

    /// The buffer itself where it lies in host memory as plain f32, so that nothing need be copied.
    fn host<'a>(&self, buffer: &'a Self::Buffer) -> Option<&'a [f32]>;

    /// As [`Backend::host`], to write.
    fn host_mut<'a>(&self, buffer: &'a mut Self::Buffer) -> Option<&'a mut [f32]>;

    /// Waits until everything enqueued is done.
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

    /// See [`SoftmaxCrossEntropy`]; `loss` has one element. A label that names no class is an error.
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
