//! The back end's operations: each checks lengths, then enqueues a kernel or a product.

use super::backend::{Cuda, expect_len};
use super::buffer::{CudaBuffer, CudaLabels, KnownLabels, Rounded};
use super::ffi::driver::Argument;
use super::ffi::memory::DeviceMemory;
use super::kernels::{Shape, matrix, vector};
use crate::error::{Error, Result};
use crate::operation::{
    BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Fill, Gemm, Operation, SgdMomentum,
    SoftmaxCrossEntropy,
};
use crate::{Backend, Dtype};

/// Columns and rows that a block of `column_sums` handles at a time; as in reduce.cu.
const COLUMNS: u32 = 32;
const LANES: u32 = 8;
/// Threads of a block of the loss's kernels; as in reduce.cu.
const LOSS_THREADS: u32 = 128;
/// Fewest rows of one block of `column_sums`, and most blocks over the rows.
const ROWS_PER_SHARE_MIN: usize = 64;
const SHARES_MAX: usize = 64;

/// A side of a matrix as the kernels' integer type.
fn side(operation: &impl Operation, n: usize) -> Result<u32> {
    let reason = "have a side that a kernel cannot count";
    u32::try_from(n).map_err(|_| Error::Shape { operation: operation.name(), shapes: operation.input_dims(), reason })
}

impl Cuda {
    pub(super) fn launch(&self, name: &'static str, shape: Shape, arguments: &mut [Argument]) -> Result<()> {
        self.kernels.launch(&self.compute, name, shape, arguments)
    }

    /// The address at which a product reads an operand.
    fn operand(&self, buffer: &CudaBuffer) -> Result<u64> {
        if self.dtype != Dtype::Bf16 {
            return Ok(buffer.address());
        }
        let mut slot = buffer.rounded();
        if slot.is_none() {
            let memory = DeviceMemory::new(&self.context, "rounded copy", buffer.len() * size_of::<u16>())?;
            *slot = Some(Rounded { memory, is_fresh: false });
        }
        let Some(rounded) = slot.as_mut() else { return Ok(buffer.address()) };
        let address = rounded.memory.address();
        if !rounded.is_fresh {
            let n = buffer.len();
            let arguments = &mut [buffer.address().into(), address.into(), (n as u64).into()];
            self.launch("to_bf16", vector(n), arguments)?;
            rounded.is_fresh = true;
        }
        Ok(address)
    }

    /// Runs `kernel` on `x` and `bias` in place.
    fn with_bias(
        &self,
        kernel: &'static str,
        operation: &impl Operation,
        (rows, cols): (usize, usize),
        x: &mut CudaBuffer,
        bias: &CudaBuffer,
    ) -> Result<()> {
        let (r, c) = (side(operation, rows)?, side(operation, cols)?);
        let rounded = x.rounded_along();
        let arguments = &mut [x.address().into(), bias.address().into(), rounded.into(), r.into(), c.into()];
        self.launch(kernel, matrix(rows, cols), arguments)
    }

    /// Sums columns; masks the gradient by `y` first if given. `gradient` and `rounded` are addresses.
    fn column_sums(
        &self,
        operation: &impl Operation,
        (rows, cols): (usize, usize),
        (y, gradient, rounded): (u64, u64, u64),
        sums: &mut CudaBuffer,
    ) -> Result<()> {
        let (r, c) = (side(operation, rows)?, side(operation, cols)?);
        let shares = rows.div_ceil(ROWS_PER_SHARE_MIN).clamp(1, SHARES_MAX);
        let per_share = side(operation, rows.div_ceil(shares))?;
        let partial = self.scratch(shares * cols * size_of::<f32>())?;
        let grid = (c.div_ceil(COLUMNS), side(operation, shares)?);
        let arguments =
            &mut [y.into(), gradient.into(), rounded.into(), partial.into(), r.into(), c.into(), per_share.into()];
        self.launch("column_sums", (grid, (COLUMNS, LANES)), arguments)?;
        sums.mark_stale();
        let arguments = &mut [partial.into(), sums.address().into(), grid.1.into(), c.into()];
        self.launch("sum_partials", ((c.div_ceil(256), 1), (256, 1)), arguments)
    }
}

impl Backend for Cuda {
    type Buffer = CudaBuffer;
    type Labels = CudaLabels;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn alloc(&self, name: &str, len: usize) -> Result<CudaBuffer> {
        let mut memory = DeviceMemory::new(&self.context, name, bytes_of(name, len)?)?;
        memory.set_words(&self.compute, 0)?;
        Ok(CudaBuffer::new(memory, len))
    }

    fn alloc_labels(&self, name: &str, len: usize) -> Result<CudaLabels> {
        let mut memory = DeviceMemory::new(&self.context, name, bytes_of(name, len)?)?;
        memory.set_words(&self.compute, 0)?;
        Ok(CudaLabels { memory, len, known: KnownLabels::Values(vec![0; len]) })
    }

    fn len(&self, buffer: &CudaBuffer) -> usize {
        buffer.len()
    }

    fn size_bytes(&self, buffer: &CudaBuffer) -> usize {
        buffer.bytes()
    }

    fn labels_size_bytes(&self, labels: &CudaLabels) -> usize {
        labels.memory.bytes()
    }

    fn upload(&self, host: &[f32], buffer: &mut CudaBuffer) -> Result<()> {
        expect_len("upload", host.len(), buffer.len())?;
        buffer.mark_stale();
        let bytes: Vec<u8> = host.iter().flat_map(|x| x.to_ne_bytes()).collect();
        buffer.memory.write(&self.compute, &bytes)
    }

    fn upload_labels(&self, host: &[u32], labels: &mut CudaLabels) -> Result<()> {
        expect_len("upload_labels", host.len(), labels.len)?;
        labels.known = KnownLabels::Values(host.to_vec());
        let bytes: Vec<u8> = host.iter().flat_map(|x| x.to_ne_bytes()).collect();
        labels.memory.write(&self.compute, &bytes)
    }

    fn download(&self, buffer: &CudaBuffer, host: &mut [f32]) -> Result<()> {
        expect_len("download", buffer.len(), host.len())?;
        let mut bytes = vec![0; size_of_val(host)];
        buffer.memory.read(&self.compute, &mut bytes)?;
        for (number, bytes) in host.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *number = f32::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    fn host<'a>(&self, _buffer: &'a CudaBuffer) -> Option<&'a [f32]> {
        None
    }

    fn host_mut<'a>(&self, _buffer: &'a mut CudaBuffer) -> Option<&'a mut [f32]> {
        None
    }

    fn synchronize(&self) -> Result<()> {
        self.context.synchronize()
    }

    fn gemm(&self, op: &Gemm, a: &CudaBuffer, b: &CudaBuffer, c: &mut CudaBuffer) -> Result<()> {
        op.check(a.len(), b.len(), c.len())?;
        let (a, b) = (self.operand(a)?, self.operand(b)?);
        c.mark_stale();
        self.blas.gemm(&self.compute, op, self.dtype, a, b, c.address())
    }

    fn bias_relu(&self, op: &BiasRelu, x: &mut CudaBuffer, bias: &CudaBuffer) -> Result<()> {
        op.check(&[("x", x.len())], bias.len())?;
        self.with_bias("bias_relu", op, (op.rows, op.cols), x, bias)
    }

    fn bias_add(&self, op: &BiasAdd, x: &mut CudaBuffer, bias: &CudaBuffer) -> Result<()> {
        op.check(&[("x", x.len())], bias.len())?;
        self.with_bias("bias_add", op, (op.rows, op.cols), x, bias)
    }

    fn bias_relu_backward(
        &self,
        op: &BiasReluBackward,
        y: &CudaBuffer,
        gradient: &mut CudaBuffer,
        bias_gradient: &mut CudaBuffer,
    ) -> Result<()> {
        op.check(&[("y", y.len()), ("gradient", gradient.len())], bias_gradient.len())?;
        let rounded = gradient.rounded_along();
        self.column_sums(op, (op.rows, op.cols), (y.address(), gradient.address(), rounded), bias_gradient)
    }

    fn bias_grad(&self, op: &BiasGrad, gradient: &CudaBuffer, bias_gradient: &mut CudaBuffer) -> Result<()> {
        op.check(&[("gradient", gradient.len())], bias_gradient.len())?;
        self.column_sums(op, (op.rows, op.cols), (0, gradient.address(), 0), bias_gradient)
    }

    fn softmax_cross_entropy(
        &self,
        op: &SoftmaxCrossEntropy,
        logits: &CudaBuffer,
        labels: &CudaLabels,
        loss: &mut CudaBuffer,
        gradient: &mut CudaBuffer,
    ) -> Result<()> {
        op.check(logits.len(), labels.len, loss.len(), gradient.len())?;
        let classes = op.classes;
        if let Some((row, label)) = labels.outside(classes) {
            return Err(Error::Label { row, label, classes });
        }
        let (rows, count) = (side(op, op.rows)?, side(op, classes)?);
        let losses = self.scratch(op.rows * size_of::<f64>())?;
        let rounded = gradient.rounded_along();
        let arguments = &mut [
            logits.address().into(),
            labels.memory.address().into(),
            losses.into(),
            gradient.address().into(),
            rounded.into(),
            rows.into(),
            count.into(),
        ];
        self.launch("cross_entropy_rows", ((rows, 1), (LOSS_THREADS, 1)), arguments)?;
        loss.mark_stale();
        let arguments = &mut [losses.into(), loss.address().into(), rows.into()];
        self.launch("mean_loss", ((1, 1), (LOSS_THREADS, 1)), arguments)
    }

    fn sgd_momentum(
        &self,
        op: &SgdMomentum,
        parameter: &mut CudaBuffer,
        gradient: &CudaBuffer,
        velocity: &mut CudaBuffer,
    ) -> Result<()> {
        op.check(parameter.len(), gradient.len(), velocity.len())?;
        velocity.mark_stale();
        let rounded = parameter.rounded_along();
        let arguments = &mut [
            parameter.address().into(),
            gradient.address().into(),
            velocity.address().into(),
            rounded.into(),
            op.learning_rate.into(),
            op.momentum.into(),
            (op.len as u64).into(),
        ];
        self.launch("sgd_momentum", vector(op.len), arguments)
    }

    fn bucket_pack(&self, op: &BucketPack, tensor: &CudaBuffer, bucket: &mut CudaBuffer) -> Result<()> {
        op.check(tensor.len(), bucket.len())?;
        bucket.mark_stale();
        let (offset, len) = (op.offset as u64, op.len as u64);
        let arguments =
            &mut [tensor.address().into(), bucket.address().into(), offset.into(), op.scale.into(), len.into()];
        self.launch("bucket_pack", vector(op.len), arguments)
    }

    fn bucket_unpack(&self, op: &BucketUnpack, bucket: &CudaBuffer, tensor: &mut CudaBuffer) -> Result<()> {
        op.check(bucket.len(), tensor.len())?;
        tensor.mark_stale();
        let (offset, len) = (op.offset as u64, op.len as u64);
        let arguments = &mut [bucket.address().into(), tensor.address().into(), offset.into(), len.into()];
        self.launch("bucket_unpack", vector(op.len), arguments)
    }

    fn fill(&self, op: &Fill, buffer: &mut CudaBuffer) -> Result<()> {
        op.check(buffer.len())?;
        buffer.mark_stale();
        let arguments = &mut [buffer.address().into(), op.value.into(), (op.len as u64).into()];
        self.launch("fill", vector(op.len), arguments)
    }
}

/// Bytes of `len` words; a size beyond the address space is out of memory, as on the host.
fn bytes_of(name: &str, len: usize) -> Result<usize> {
    let bytes = len.saturating_mul(4);
    if isize::try_from(bytes).is_err() {
        return Err(Error::OutOfMemory { name: name.to_owned(), bytes });
    }
    Ok(bytes)
}
