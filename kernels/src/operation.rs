//! The operations as values: name, shapes, cost.
//!
//! Matrices are dense and row-major. Costs are the minimum of the algorithm, not measurements: every operand is read once
//! and every result written once; a multiplication, an addition, a comparison and an exponential count one each. `e` below is the size of a stored element in bytes ([`Dtype::size_bytes`]).

use crate::Dtype;
use crate::error::{Error, Result};

/// Arithmetic and memory traffic of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: i64,
    /// Bytes read and written, each operand and result once.
    pub bytes: i64,
}

impl Cost {
    /// A cost of `flops` operations on `elements` stored elements; saturates instead of overflowing.
    fn new(flops: usize, elements: usize, dtype: Dtype) -> Self {
        let bytes = elements.saturating_mul(dtype.size_bytes());
        Self { flops: saturating_i64(flops), bytes: saturating_i64(bytes) }
    }
}

fn saturating_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn product(factors: &[usize]) -> usize {
    factors.iter().fold(1, |acc, &n| acc.saturating_mul(n))
}

/// The description of an operation.
pub trait Operation {
    /// Name of its rows.
    fn name(&self) -> &'static str;

    /// Shapes of its inputs, outermost dimension first.
    fn input_shapes(&self) -> Vec<Vec<usize>>;

    /// Its cost if elements are stored as `dtype`.
    fn cost(&self, dtype: Dtype) -> Cost;

    /// [`Self::input_shapes`] as torch.profiler prints them: `[[64, 1024], [1024]]`.
    fn input_dims(&self) -> String {
        format!("{:?}", self.input_shapes())
    }
}

/// Whether a stored matrix is used as it is or transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transpose {
    /// As stored.
    No,
    /// Transposed.
    Yes,
}

impl Transpose {
    /// The stored shape of an operand whose used shape is `rows` × `cols`.
    fn stored(self, rows: usize, cols: usize) -> Vec<usize> {
        match self {
            Self::No => vec![rows, cols],
            Self::Yes => vec![cols, rows],
        }
    }

    /// Row and column stride, in elements, of an operand whose used shape is `rows` × `cols`.
    pub(crate) fn strides(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Self::No => (cols, 1),
            Self::Yes => (1, rows),
        }
    }
}

/// C ← alpha · op(A) · op(B) + beta · C, with op(A) m × k, op(B) k × n, C m × n. C is not read if beta is 0.
///
/// FLOPs 2·m·n·k, as is usual for a matrix product; bytes e·(m·k + k·n + m·n), plus e·m·n if beta is not 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Columns of op(A), rows of op(B).
    pub k: usize,
    /// op of A; transposed, A is stored k × m.
    pub a: Transpose,
    /// op of B; transposed, B is stored n × k.
    pub b: Transpose,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the old C.
    pub beta: f32,
}

impl Gemm {
    pub(crate) fn check(&self, a: usize, b: usize, c: usize) -> Result<()> {
        expect_len(self, "A", product(&[self.m, self.k]), a)?;
        expect_len(self, "B", product(&[self.k, self.n]), b)?;
        expect_len(self, "C", product(&[self.m, self.n]), c)
    }
}

impl Operation for Gemm {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![self.a.stored(self.m, self.k), self.b.stored(self.k, self.n)]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        let Self { m, n, k, .. } = *self;
        let passes_over_c = if self.beta == 0.0 { 1 } else { 2 };
        let elements = [product(&[m, k]), product(&[k, n]), product(&[m, n, passes_over_c])];
        Cost::new(product(&[2, m, n, k]), elements.iter().fold(0, |sum, &n| sum.saturating_add(n)), dtype)
    }
}

/// Declares an operation on a `rows` × `cols` matrix and a vector of one element per column.
macro_rules! matrix_operation {
    ($(#[$doc:meta])* $type:ident, $name:literal, $flops:expr, $passes:expr, shapes $shapes:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type {
            /// Rows of the matrix: samples of the batch.
            pub rows: usize,
            /// Columns of the matrix: features.
            pub cols: usize,
        }

        impl $type {
            pub(crate) fn check(&self, operands: &[(&'static str, usize)], bias: usize) -> Result<()> {
                for &(operand, len) in operands {
                    expect_len(self, operand, product(&[self.rows, self.cols]), len)?;
                }
                expect_len(self, "bias", self.cols, bias)
            }
        }

        impl Operation for $type {
            fn name(&self) -> &'static str {
                $name
            }

            fn input_shapes(&self) -> Vec<Vec<usize>> {
                let shapes: fn(usize, usize) -> Vec<Vec<usize>> = $shapes;
                shapes(self.rows, self.cols)
            }

            fn cost(&self, dtype: Dtype) -> Cost {
                let Self { rows, cols } = *self;
                let elements = product(&[$passes, rows, cols]).saturating_add(cols);
                Cost::new(product(&[$flops, rows, cols]), elements, dtype)
            }
        }
    };
}

matrix_operation! {
    /// X ← max(0, X + bias), the bias added to every row.
    ///
    /// FLOPs 2·rows·cols; bytes e·(2·rows·cols + cols).
    BiasRelu, "bias_relu", 2, 2, shapes |rows, cols| vec![vec![rows, cols], vec![cols]]
}

matrix_operation! {
    /// X ← X + bias, the bias added to every row: a last layer, which has no ReLU.
    ///
    /// FLOPs rows·cols; bytes e·(2·rows·cols + cols).
    BiasAdd, "bias_add", 1, 2, shapes |rows, cols| vec![vec![rows, cols], vec![cols]]
}

matrix_operation! {
    /// G ← G where Y > 0, else 0; and bias gradient ← the sums of G's columns, in the same pass. Y is the output of the
    /// forward operation, G the gradient with respect to it on entry and to its pre-activation on return.
    ///
    /// FLOPs 2·rows·cols; bytes e·(3·rows·cols + cols).
    BiasReluBackward, "bias_relu_backward", 2, 3, shapes |rows, cols| vec![vec![rows, cols], vec![rows, cols]]
}

matrix_operation! {
    /// Bias gradient ← the sums of G's columns.
    ///
    /// FLOPs rows·cols; bytes e·(rows·cols + cols).
    BiasGrad, "bias_grad", 1, 1, shapes |rows, cols| vec![vec![rows, cols]]
}

/// loss ← mean over rows of −log softmax(logits)\[label\]; gradient ← (softmax(logits) − one-hot(label)) / rows.
///
/// The largest logit of a row is subtracted first, so that no exponential overflows.
/// FLOPs 5·rows·classes (compare, subtract, exponential, sum, scale); bytes e·(2·rows·classes + 1) + 4·rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftmaxCrossEntropy {
    /// Samples.
    pub rows: usize,
    /// Classes, one logit each.
    pub classes: usize,
}

impl SoftmaxCrossEntropy {
    pub(crate) fn check(&self, logits: usize, labels: usize, loss: usize, gradient: usize) -> Result<()> {
        expect_len(self, "logits", product(&[self.rows, self.classes]), logits)?;
        expect_len(self, "labels", self.rows, labels)?;
        expect_len(self, "loss", 1, loss)?;
        expect_len(self, "gradient", product(&[self.rows, self.classes]), gradient)
    }
}

impl Operation for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "softmax_cross_entropy"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.rows, self.classes], vec![self.rows]]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        let elements = product(&[2, self.rows, self.classes]).saturating_add(1);
        let Cost { flops, bytes } = Cost::new(product(&[5, self.rows, self.classes]), elements, dtype);
        Cost { flops, bytes: bytes.saturating_add(saturating_i64(product(&[4, self.rows]))) }
    }
}

/// velocity ← momentum · velocity + gradient; parameter ← parameter − learning_rate · velocity: torch.optim.SGD without
/// dampening, weight decay or Nesterov's variant.
///
/// FLOPs 4·len; bytes 5·e·len (three read, two written).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdMomentum {
    /// Elements of the parameter.
    pub len: usize,
    /// Step size.
    pub learning_rate: f32,
    /// Factor of the old velocity.
    pub momentum: f32,
}

impl SgdMomentum {
    pub(crate) fn check(&self, parameter: usize, gradient: usize, velocity: usize) -> Result<()> {
        expect_len(self, "parameter", self.len, parameter)?;
        expect_len(self, "gradient", self.len, gradient)?;
        expect_len(self, "velocity", self.len, velocity)
    }
}

impl Operation for SgdMomentum {
    fn name(&self) -> &'static str {
        "sgd_momentum"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.len]; 3]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        Cost::new(product(&[4, self.len]), product(&[5, self.len]), dtype)
    }
}

/// bucket\[offset..offset+len\] ← scale · tensor.
///
/// FLOPs len, or 0 if scale is 1; bytes 2·e·len.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPack {
    /// Elements of the tensor.
    pub len: usize,
    /// Offset in the bucket, in elements.
    pub offset: usize,
    /// Factor: 1 / world size turns a sum over ranks into their mean, before the sum so that it cannot overflow.
    pub scale: f32,
}

impl BucketPack {
    pub(crate) fn check(&self, tensor: usize, bucket: usize) -> Result<()> {
        expect_len(self, "tensor", self.len, tensor)?;
        expect_inside(self, self.offset, self.len, bucket)
    }
}

impl Operation for BucketPack {
    fn name(&self) -> &'static str {
        "bucket_pack"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.len]]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        let flops = if self.scale == 1.0 { 0 } else { self.len };
        Cost::new(flops, product(&[2, self.len]), dtype)
    }
}

/// tensor ← bucket\[offset..offset+len\].
///
/// FLOPs 0; bytes 2·e·len.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketUnpack {
    /// Elements of the tensor.
    pub len: usize,
    /// Offset in the bucket, in elements.
    pub offset: usize,
}

impl BucketUnpack {
    pub(crate) fn check(&self, bucket: usize, tensor: usize) -> Result<()> {
        expect_len(self, "tensor", self.len, tensor)?;
        expect_inside(self, self.offset, self.len, bucket)
    }
}

impl Operation for BucketUnpack {
    fn name(&self) -> &'static str {
        "bucket_unpack"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.len]]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        Cost::new(0, product(&[2, self.len]), dtype)
    }
}

/// Every element ← value.
///
/// FLOPs 0; bytes e·len.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    /// Number of elements.
    pub len: usize,
    /// The value.
    pub value: f32,
}

impl Fill {
    pub(crate) fn check(&self, buffer: usize) -> Result<()> {
        expect_len(self, "buffer", self.len, buffer)
    }
}

impl Operation for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn input_shapes(&self) -> Vec<Vec<usize>> {
        vec![vec![self.len]]
    }

    fn cost(&self, dtype: Dtype) -> Cost {
        Cost::new(0, self.len, dtype)
    }
}

fn expect_len(operation: &impl Operation, operand: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(Error::Length { operation: operation.name(), operand, expected, found })
    }
}

fn expect_inside(operation: &impl Operation, offset: usize, len: usize, bucket_len: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= bucket_len => Ok(()),
        _ => Err(Error::OutsideBucket { operation: operation.name(), offset, len, bucket_len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(operation: &impl Operation, dims: &str, flops: i64, bytes: i64) {
        assert_eq!(operation.input_dims(), dims);
        assert_eq!(operation.cost(Dtype::F32), Cost { flops, bytes });
    }

    #[test]
    fn names_shapes_and_costs_follow_the_documented_formulas() {
        let gemm = Gemm { m: 2, n: 3, k: 5, a: Transpose::No, b: Transpose::Yes, alpha: 1.0, beta: 0.0 };
        check(&gemm, "[[2, 5], [3, 5]]", 60, 4 * (10 + 15 + 6));
        let gemm = Gemm { a: Transpose::Yes, b: Transpose::No, beta: 1.0, ..gemm };
        check(&gemm, "[[5, 2], [5, 3]]", 60, 4 * (10 + 15 + 12));
        check(&BiasRelu { rows: 4, cols: 3 }, "[[4, 3], [3]]", 24, 4 * 27);
        check(&BiasAdd { rows: 4, cols: 3 }, "[[4, 3], [3]]", 12, 4 * 27);
        check(&BiasReluBackward { rows: 4, cols: 3 }, "[[4, 3], [4, 3]]", 24, 4 * 39);
        check(&BiasGrad { rows: 4, cols: 3 }, "[[4, 3]]", 12, 4 * 15);
        check(&SoftmaxCrossEntropy { rows: 4, classes: 3 }, "[[4, 3], [4]]", 60, 4 * 25 + 16);
        check(&SgdMomentum { len: 7, learning_rate: 0.1, momentum: 0.9 }, "[[7], [7], [7]]", 28, 140);
        check(&BucketPack { len: 7, offset: 1, scale: 0.5 }, "[[7]]", 7, 56);
        check(&BucketPack { len: 7, offset: 1, scale: 1.0 }, "[[7]]", 0, 56);
        check(&BucketUnpack { len: 7, offset: 1 }, "[[7]]", 0, 56);
        check(&Fill { len: 7, value: 1.0 }, "[[7]]", 0, 28);
    }

    #[test]
    fn a_smaller_type_moves_fewer_bytes() {
        assert_eq!(Fill { len: 7, value: 0.0 }.cost(Dtype::Bf16).bytes, 14);
        assert_eq!(Fill { len: 7, value: 0.0 }.cost(Dtype::Tf32).bytes, 28);
    }

    #[test]
    fn costs_of_huge_shapes_saturate() {
        let huge = usize::MAX / 2;
        let gemm = Gemm { m: huge, n: huge, k: huge, a: Transpose::No, b: Transpose::No, alpha: 1.0, beta: 1.0 };
        assert_eq!(gemm.cost(Dtype::F32), Cost { flops: i64::MAX, bytes: i64::MAX });
        assert!(matches!(gemm.check(1, 1, 1), Err(Error::Length { operand: "A", .. })));
    }

    #[test]
    fn an_offset_that_overflows_lies_outside_the_bucket() {
        let error = BucketPack { len: 2, offset: usize::MAX, scale: 1.0 }.check(2, 100).unwrap_err();
        assert!(matches!(error, Error::OutsideBucket { bucket_len: 100, .. }));
        assert!(BucketUnpack { len: 2, offset: 98 }.check(100, 2).is_ok());
        assert!(BucketUnpack { len: 2, offset: 99 }.check(100, 2).is_err());
    }
}
