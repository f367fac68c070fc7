//! The back end on the CPU: f32, and one thread, because ranks are the parallelism.

#[expect(unsafe_code, reason = "matrixmultiply's entry point takes raw pointers")]
mod ffi;

use crate::error::{Error, Result};
use crate::operation::{
    BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Fill, Gemm, Operation, SgdMomentum,
    SoftmaxCrossEntropy,
};
use crate::{Backend, Dtype};

/// The CPU back end; its operations are complete when they return.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    _private: (),
}

/// Numbers in host memory.
#[derive(Debug, Default)]
pub struct CpuBuffer(Vec<f32>);

/// Class numbers in host memory.
#[derive(Debug, Default)]
pub struct CpuLabels(Vec<u32>);

impl From<Vec<f32>> for CpuBuffer {
    fn from(numbers: Vec<f32>) -> Self {
        Self(numbers)
    }
}

impl From<CpuBuffer> for Vec<f32> {
    fn from(buffer: CpuBuffer) -> Self {
        buffer.0
    }
}

impl Cpu {
    /// The back end, which computes in f32 only.
    pub fn new(dtype: Dtype) -> Result<Self> {
        match dtype {
            Dtype::F32 => Ok(Self { _private: () }),
            Dtype::Tf32 | Dtype::Bf16 => {
                Err(Error::UnsupportedDtype { backend: "cpu", dtype: dtype.as_str(), supported: Dtype::F32.as_str() })
            }
        }
    }
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Labels = CpuLabels;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn alloc(&self, name: &str, len: usize) -> Result<CpuBuffer> {
        zeros(name, len, 0.0).map(CpuBuffer)
    }

    fn alloc_labels(&self, name: &str, len: usize) -> Result<CpuLabels> {
        zeros(name, len, 0).map(CpuLabels)
    }

    fn len(&self, buffer: &CpuBuffer) -> usize {
        buffer.0.len()
    }

    fn size_bytes(&self, buffer: &CpuBuffer) -> usize {
        size_of_val(buffer.0.as_slice())
    }

    fn labels_size_bytes(&self, labels: &CpuLabels) -> usize {
        size_of_val(labels.0.as_slice())
    }

    fn upload(&self, host: &[f32], buffer: &mut CpuBuffer) -> Result<()> {
        copy("upload", host, &mut buffer.0)
    }

    fn upload_labels(&self, host: &[u32], labels: &mut CpuLabels) -> Result<()> {
        copy("upload_labels", host, &mut labels.0)
    }

    fn download(&self, buffer: &CpuBuffer, host: &mut [f32]) -> Result<()> {
        copy("download", &buffer.0, host)
    }

    fn host<'a>(&self, buffer: &'a CpuBuffer) -> Option<&'a [f32]> {
        Some(&buffer.0)
    }

    fn host_mut<'a>(&self, buffer: &'a mut CpuBuffer) -> Option<&'a mut [f32]> {
        Some(&mut buffer.0)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn gemm(&self, op: &Gemm, a: &CpuBuffer, b: &CpuBuffer, c: &mut CpuBuffer) -> Result<()> {
        op.check(a.0.len(), b.0.len(), c.0.len())?;
        let view = |rows, cols, (row_stride, col_stride)| ffi::View { rows, cols, row_stride, col_stride };
        let a_view = view(op.m, op.k, op.a.strides(op.m, op.k));
        let b_view = view(op.k, op.n, op.b.strides(op.k, op.n));
        if ffi::sgemm(op.alpha, (a_view, &a.0), (b_view, &b.0), op.beta, &mut c.0) {
            Ok(())
        } else {
            Err(Error::Shape { operation: op.name(), shapes: op.input_dims(), reason: "pass the address space" })
        }
    }

    fn bias_relu(&self, op: &BiasRelu, x: &mut CpuBuffer, bias: &CpuBuffer) -> Result<()> {
        op.check(&[("x", x.0.len())], bias.0.len())?;
        for row in rows_mut(&mut x.0, op.cols) {
            for (x, b) in row.iter_mut().zip(&bias.0) {
                *x = relu(*x + b);
            }
        }
        Ok(())
    }

    fn bias_add(&self, op: &BiasAdd, x: &mut CpuBuffer, bias: &CpuBuffer) -> Result<()> {
        op.check(&[("x", x.0.len())], bias.0.len())?;
        for row in rows_mut(&mut x.0, op.cols) {
            for (x, b) in row.iter_mut().zip(&bias.0) {
                *x += b;
            }
        }
        Ok(())
    }

    fn bias_relu_backward(
        &self,
        op: &BiasReluBackward,
        y: &CpuBuffer,
        gradient: &mut CpuBuffer,
        bias_gradient: &mut CpuBuffer,
    ) -> Result<()> {
        op.check(&[("y", y.0.len()), ("gradient", gradient.0.len())], bias_gradient.0.len())?;
        bias_gradient.0.fill(0.0);
        for (y, gradient) in rows(&y.0, op.cols).zip(rows_mut(&mut gradient.0, op.cols)) {
            for ((y, g), sum) in y.iter().zip(gradient).zip(&mut bias_gradient.0) {
                *g = if *y > 0.0 { *g } else { 0.0 };
                *sum += *g;
            }
        }
        Ok(())
    }

    fn bias_grad(&self, op: &BiasGrad, gradient: &CpuBuffer, bias_gradient: &mut CpuBuffer) -> Result<()> {
        op.check(&[("gradient", gradient.0.len())], bias_gradient.0.len())?;
        bias_gradient.0.fill(0.0);
        for gradient in rows(&gradient.0, op.cols) {
            for (g, sum) in gradient.iter().zip(&mut bias_gradient.0) {
                *sum += g;
            }
        }
        Ok(())
    }

    fn softmax_cross_entropy(
        &self,
        op: &SoftmaxCrossEntropy,
        logits: &CpuBuffer,
        labels: &CpuLabels,
        loss: &mut CpuBuffer,
        gradient: &mut CpuBuffer,
    ) -> Result<()> {
        op.check(logits.0.len(), labels.0.len(), loss.0.len(), gradient.0.len())?;
        let classes = op.classes;
        if let Some((row, &label)) = labels.0.iter().enumerate().find(|&(_, &label)| label as usize >= classes) {
            return Err(Error::Label { row, label, classes });
        }
        let share = 1.0 / op.rows.max(1) as f64;
        let matrices = rows(&logits.0, classes).zip(rows_mut(&mut gradient.0, classes));
        let total: f64 =
            matrices.zip(&labels.0).map(|((z, g), &label)| cross_entropy_row(z, label as usize, share, g)).sum();
        loss.0.fill((total * share) as f32);
        Ok(())
    }

    fn sgd_momentum(
        &self,
        op: &SgdMomentum,
        parameter: &mut CpuBuffer,
        gradient: &CpuBuffer,
        velocity: &mut CpuBuffer,
    ) -> Result<()> {
        op.check(parameter.0.len(), gradient.0.len(), velocity.0.len())?;
        for ((w, g), v) in parameter.0.iter_mut().zip(&gradient.0).zip(&mut velocity.0) {
            *v = op.momentum * *v + g;
            *w -= op.learning_rate * *v;
        }
        Ok(())
    }

    fn bucket_pack(&self, op: &BucketPack, tensor: &CpuBuffer, bucket: &mut CpuBuffer) -> Result<()> {
        op.check(tensor.0.len(), bucket.0.len())?;
        for (slot, value) in bucket.0[op.offset..op.offset + op.len].iter_mut().zip(&tensor.0) {
            *slot = op.scale * value;
        }
        Ok(())
    }

    fn bucket_unpack(&self, op: &BucketUnpack, bucket: &CpuBuffer, tensor: &mut CpuBuffer) -> Result<()> {
        op.check(bucket.0.len(), tensor.0.len())?;
        tensor.0.copy_from_slice(&bucket.0[op.offset..op.offset + op.len]);
        Ok(())
    }

    fn fill(&self, op: &Fill, buffer: &mut CpuBuffer) -> Result<()> {
        op.check(buffer.0.len())?;
        buffer.0.fill(op.value);
        Ok(())
    }
}

/// NaN stays NaN, so that a diverged model is visible.
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Loss of one row, and `share` times its gradient; in f64, because a row is short and its sum decides the loss.
fn cross_entropy_row(logits: &[f32], label: usize, share: f64, gradient: &mut [f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = |z: f32| f64::from(z) - f64::from(largest);
    let sum: f64 = logits.iter().map(|&z| shifted(z).exp()).sum();
    for (class, (g, &z)) in gradient.iter_mut().zip(logits).enumerate() {
        let one_hot = if class == label { 1.0 } else { 0.0 };
        *g = ((shifted(z).exp() / sum - one_hot) * share) as f32;
    }
    sum.ln() - shifted(logits[label])
}

/// The rows of a matrix; none if it has no columns.
fn rows(matrix: &[f32], cols: usize) -> impl Iterator<Item = &[f32]> {
    matrix.chunks_exact(cols.max(1))
}

fn rows_mut(matrix: &mut [f32], cols: usize) -> impl Iterator<Item = &mut [f32]> {
    matrix.chunks_exact_mut(cols.max(1))
}

fn zeros<T: Copy>(name: &str, len: usize, zero: T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    if values.try_reserve_exact(len).is_err() {
        return Err(Error::OutOfMemory { name: name.to_owned(), bytes: len.saturating_mul(size_of::<T>()) });
    }
    values.resize(len, zero);
    Ok(values)
}

fn copy<T: Copy>(operation: &'static str, from: &[T], to: &mut [T]) -> Result<()> {
    if from.len() != to.len() {
        return Err(Error::Length { operation, operand: "destination", expected: from.len(), found: to.len() });
    }
    to.copy_from_slice(from);
    Ok(())
}
