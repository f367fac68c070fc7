//! Conformance checks for back ends: each operation against the same formula in f64.
//!
//! Bounds are relative. With `u` the unit roundoff of f32 (2⁻²⁴):
//!
//! | operation | error of an element is at most |
//! |---|---|
//! | gemm, f32 | `(k + 4) · u` times `|alpha| · |A| · |B| + |beta| · |C|` (Higham 2002, §3.5) |
//! | gemm, tf32 | `(2⁻⁹ + 2⁻²⁰ + 2 · (k + 4) · u)` times the same: operands are cut to 10 bits, sums may be cut, too |
//! | gemm, bf16 | `(2⁻⁷ + 2⁻¹⁶ + 2 · (k + 4) · u)` times the same: operands are rounded to 8 bits |
//! | bias_add, bias_relu, bucket_pack | `u` times the exact element: one rounding |
//! | bias_relu_backward, bias_grad | the masked gradient is exact; sums: `rows · u` times the sum of absolute values |
//! | softmax_cross_entropy | gradient: `8 · u / rows`; loss: `8 · u · (1 + loss)` |
//! | sgd_momentum | `5 · u` times the sum of the terms' absolute values: four roundings of the last one, and terms of second order |
//! | bucket_unpack, fill | exact |
//!
//! A check returns the largest error in units of its bound, or the element that lies outside. [`cases()`] runs all checks
//! over shapes that are awkward for tiles and blocks; the CPU's tests draw many more.

#[cfg(test)]
mod tests;

use crate::{
    Backend, BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Dtype, Fill, Gemm, Result,
    SgdMomentum, SoftmaxCrossEntropy, SplitMix64, Transpose,
};

/// Unit roundoff of f32.
const UNIT: f64 = 1.0 / (1_u64 << 24) as f64;

/// The largest error in units of its bound, at most 1; or the failure.
pub type Check = std::result::Result<f64, String>;

fn buffer<B: Backend>(backend: &B, values: &[f32]) -> Result<B::Buffer> {
    let mut buffer = backend.alloc("operand", values.len())?;
    backend.upload(values, &mut buffer)?;
    Ok(buffer)
}

fn host<B: Backend>(backend: &B, buffer: &B::Buffer) -> Result<Vec<f32>> {
    let mut values = vec![f32::NAN; backend.len(buffer)];
    backend.download(buffer, &mut values)?;
    Ok(values)
}

/// Checks that every element of `found` is within its bound of `exact`.
fn close(what: &str, found: &[f32], exact: &[f64], bound: impl Fn(usize) -> f64) -> Check {
    if found.len() != exact.len() {
        return Err(format!("{what}: {} elements for {}", found.len(), exact.len()));
    }
    let mut worst = 0.0_f64;
    for (i, (&found, &exact)) in found.iter().zip(exact).enumerate() {
        let (error, bound) = ((f64::from(found) - exact).abs(), bound(i));
        // A NaN fails this comparison.
        if !matches!(error.partial_cmp(&bound), Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal)) {
            return Err(format!("{what}[{i}]: {found} for {exact}: error {error:e}, bound {bound:e}"));
        }
        if bound > 0.0 {
            worst = worst.max(error / bound);
        }
    }
    Ok(worst)
}

/// The larger of two checks, or the first that failed.
fn both(a: Check, b: Check) -> Check {
    Ok(a?.max(b?))
}

fn said(error: crate::Error) -> String {
    error.to_string()
}

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// op(M)\[row\]\[col\] of a stored matrix whose used shape is `rows` × `cols`.
fn at(matrix: &[f32], op: Transpose, rows: usize, cols: usize, row: usize, col: usize) -> f64 {
    let (row_stride, col_stride) = op.strides(rows, cols);
    f64::from(matrix[row * row_stride + col * col_stride])
}

/// Error of an element of a product, in units of the magnitude of its terms.
fn gemm_unit(dtype: Dtype, k: usize) -> f64 {
    let sums = (k as f64 + 4.0) * UNIT;
    match dtype {
        Dtype::F32 => sums,
        Dtype::Tf32 => 2.0_f64.powi(-9) + 2.0_f64.powi(-20) + 2.0 * sums,
        Dtype::Bf16 => 2.0_f64.powi(-7) + 2.0_f64.powi(-16) + 2.0 * sums,
    }
}

/// A product, at every element or at `sample` of them spread over C.
pub fn gemm<B: Backend>(backend: &B, op: &Gemm, (a, b, before): (&[f32], &[f32], &[f32]), sample: usize) -> Check {
    let run = || {
        let mut c = buffer(backend, before)?;
        backend.gemm(op, &buffer(backend, a)?, &buffer(backend, b)?, &mut c)?;
        host(backend, &c)
    };
    let found = run().map_err(said)?;
    // A stride that is coprime to most widths visits all rows and columns.
    let stride = (found.len() / sample.max(1)).max(1) | 1;
    let (mut chosen, mut exact, mut magnitude) = (Vec::new(), Vec::new(), Vec::new());
    for index in (0..found.len()).step_by(if found.len() <= sample { 1 } else { stride }) {
        let (row, col) = (index / op.n, index % op.n);
        let terms = (0..op.k).map(|i| at(a, op.a, op.m, op.k, row, i) * at(b, op.b, op.k, op.n, i, col));
        let (sum, sum_abs) = terms.fold((0.0, 0.0), |(sum, abs), term| (sum + term, abs + f64::abs(term)));
        // C is not read if beta is 0, so its old content, even NaN, does not matter.
        let kept = if op.beta == 0.0 { 0.0 } else { f64::from(op.beta) * f64::from(before[index]) };
        chosen.push(found[index]);
        exact.push(f64::from(op.alpha) * sum + kept);
        magnitude.push(f64::from(op.alpha).abs() * sum_abs + kept.abs());
    }
    let unit = gemm_unit(backend.dtype(), op.k);
    close("gemm", &chosen, &exact, |i| unit * magnitude[i])
}

/// Both operations that add a bias.
pub fn bias<B: Backend>(backend: &B, cols: usize, x: &[f32], bias: &[f32]) -> Check {
    let rows = x.len() / cols;
    let run = || {
        let bias = buffer(backend, bias)?;
        let (mut added, mut activated) = (buffer(backend, x)?, buffer(backend, x)?);
        backend.bias_add(&BiasAdd { rows, cols }, &mut added, &bias)?;
        backend.bias_relu(&BiasRelu { rows, cols }, &mut activated, &bias)?;
        Ok((host(backend, &added)?, host(backend, &activated)?))
    };
    let (added, activated) = run().map_err(said)?;
    let sums: Vec<f64> = x.iter().enumerate().map(|(i, &x)| f64::from(x) + f64::from(bias[i % cols])).collect();
    let positive: Vec<f64> = sums.iter().map(|sum| sum.max(0.0)).collect();
    let bound = |i: usize| UNIT * sums[i].abs();
    both(close("bias_add", &added, &sums, bound), close("bias_relu", &activated, &positive, bound))
}

/// Both operations that compute a bias gradient.
pub fn bias_backward<B: Backend>(backend: &B, cols: usize, y: &[f32], gradient: &[f32]) -> Check {
    let rows = y.len() / cols;
    let run = || {
        let nothing = vec![f32::NAN; cols];
        let (mut through, mut masked_sums) = (buffer(backend, gradient)?, buffer(backend, &nothing)?);
        let op = BiasReluBackward { rows, cols };
        backend.bias_relu_backward(&op, &buffer(backend, y)?, &mut through, &mut masked_sums)?;
        let mut sums = buffer(backend, &nothing)?;
        backend.bias_grad(&BiasGrad { rows, cols }, &buffer(backend, gradient)?, &mut sums)?;
        Ok((host(backend, &through)?, host(backend, &masked_sums)?, host(backend, &sums)?))
    };
    let (through, masked_sums, sums) = run().map_err(said)?;
    let masked: Vec<f64> = y.iter().zip(gradient).map(|(&y, &g)| if y > 0.0 { f64::from(g) } else { 0.0 }).collect();
    let columns = |values: &[f64], of: fn(f64) -> f64| -> Vec<f64> {
        (0..cols).map(|col| values.iter().skip(col).step_by(cols).map(|&g| of(g)).sum()).collect()
    };
    let close_sums = |what: &str, found: &[f32], values: &[f64]| {
        let magnitude = columns(values, f64::abs);
        close(what, found, &columns(values, |g| g), |i| rows as f64 * UNIT * magnitude[i])
    };
    let exact = close("bias_relu_backward", &through, &masked, |_| 0.0);
    let masked = close_sums("bias_relu_backward: bias gradient", &masked_sums, &masked);
    both(exact, both(masked, close_sums("bias_grad", &sums, &f64s(gradient))))
}

/// Loss and gradient from the back end.
///
/// # Errors
/// The back end's error.
pub fn run_cross_entropy<B: Backend>(
    backend: &B,
    classes: usize,
    z: &[f32],
    labels: &[u32],
) -> Result<(f32, Vec<f32>)> {
    let op = SoftmaxCrossEntropy { rows: labels.len(), classes };
    let mut label_buffer = backend.alloc_labels("labels", labels.len())?;
    backend.upload_labels(labels, &mut label_buffer)?;
    let (mut loss, mut gradient) = (buffer(backend, &[f32::NAN])?, buffer(backend, &vec![f32::NAN; z.len()])?);
    backend.softmax_cross_entropy(&op, &buffer(backend, z)?, &label_buffer, &mut loss, &mut gradient)?;
    Ok((host(backend, &loss)?[0], host(backend, &gradient)?))
}

/// Loss and gradient; every label is below `classes`.
pub fn cross_entropy<B: Backend>(backend: &B, classes: usize, z: &[f32], labels: &[u32]) -> Check {
    let (loss, gradient) = run_cross_entropy(backend, classes, z, labels).map_err(said)?;
    let rows = labels.len() as f64;
    let (mut exact_loss, mut exact) = (0.0, Vec::new());
    for (z, &label) in f64s(z).chunks(classes).zip(labels) {
        let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = z.iter().map(|z| (z - largest).exp()).sum();
        exact_loss += (sum.ln() + largest - z[label as usize]) / rows;
        exact.extend(z.iter().enumerate().map(|(class, z)| {
            let one_hot = f64::from(u8::from(class == label as usize));
            ((z - largest).exp() / sum - one_hot) / rows
        }));
    }
    both(
        close("loss", &[loss], &[exact_loss], |_| 8.0 * UNIT * (1.0 + exact_loss)),
        close("softmax gradient", &gradient, &exact, |_| 8.0 * UNIT / rows),
    )
}

/// An update of parameter `w` with gradient `g` and velocity `v`.
pub fn sgd<B: Backend>(backend: &B, op: &SgdMomentum, (w, g, v): (&[f32], &[f32], &[f32])) -> Check {
    let run = || {
        let (mut parameter, mut velocity) = (buffer(backend, w)?, buffer(backend, v)?);
        backend.sgd_momentum(op, &mut parameter, &buffer(backend, g)?, &mut velocity)?;
        Ok((host(backend, &parameter)?, host(backend, &velocity)?))
    };
    let (parameter, velocity) = run().map_err(said)?;
    let (rate, momentum) = (f64::from(op.learning_rate), f64::from(op.momentum));
    let (w, g, v) = (f64s(w), f64s(g), f64s(v));
    let exact_v: Vec<f64> = v.iter().zip(&g).map(|(v, g)| momentum * v + g).collect();
    let magnitude: Vec<f64> = v.iter().zip(&g).map(|(v, g)| (momentum * v).abs() + g.abs()).collect();
    let exact_w: Vec<f64> = w.iter().zip(&exact_v).map(|(w, v)| w - rate * v).collect();
    both(
        close("velocity", &velocity, &exact_v, |i| 3.0 * UNIT * magnitude[i]),
        close("parameter", &parameter, &exact_w, |i| 5.0 * UNIT * (w[i].abs() + rate * magnitude[i])),
    )
}

/// A tensor into a bucket that held `before`, out of it, and a fill.
pub fn bucket<B: Backend>(backend: &B, (offset, scale): (usize, f32), tensor: &[f32], before: &[f32]) -> Check {
    let len = tensor.len();
    let run = || {
        let mut bucket = buffer(backend, before)?;
        backend.bucket_pack(&BucketPack { len, offset, scale }, &buffer(backend, tensor)?, &mut bucket)?;
        let mut out = buffer(backend, &vec![f32::NAN; len])?;
        backend.bucket_unpack(&BucketUnpack { len, offset }, &bucket, &mut out)?;
        let unpacked = host(backend, &out)?;
        backend.fill(&Fill { len, value: scale }, &mut out)?;
        Ok((host(backend, &bucket)?, unpacked, host(backend, &out)?))
    };
    let (packed, unpacked, filled) = run().map_err(said)?;
    let mut exact = f64s(before);
    for (slot, value) in exact[offset..].iter_mut().zip(tensor) {
        *slot = f64::from(scale) * f64::from(*value);
    }
    let inside = offset..offset + len;
    let check =
        close("bucket_pack", &packed, &exact, |i| if inside.contains(&i) { UNIT * exact[i].abs() } else { 0.0 });
    let copy = close("bucket_unpack", &unpacked, &f64s(&packed[inside]), |_| 0.0);
    both(check, both(copy, close("fill", &filled, &vec![f64::from(scale); len], |_| 0.0)))
}

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The operation and its shape.
    pub what: String,
    /// The result.
    pub check: Check,
}

/// Side lengths below and above every tile size, and 1.
const SIDES: [usize; 6] = [1, 7, 32, 33, 129, 300];

/// Runs every check on a back end, and a product with `large` rows and columns, which is checked at 1000 positions. Calls
/// `report` with every outcome.
pub fn cases<B: Backend>(backend: &B, large: usize, mut report: impl FnMut(Outcome)) {
    let mut numbers = Operands(SplitMix64::new(1));
    let mut note = |what: String, check: Check| report(Outcome { what, check });
    for (i, &m) in SIDES.iter().enumerate() {
        let (n, k) = (SIDES[(i + 2) % SIDES.len()], SIDES[(i * 5 + 3) % SIDES.len()]);
        for (a, b) in [(Transpose::No, Transpose::No), (Transpose::No, Transpose::Yes), (Transpose::Yes, Transpose::No)]
        {
            for (alpha, beta) in [(1.0, 0.0), (-0.5, 2.0)] {
                let op = Gemm { m, n, k, a, b, alpha, beta };
                let before = if beta == 0.0 { vec![f32::NAN; m * n] } else { numbers.many(m * n) };
                let operands = (&*numbers.many(m * k), &*numbers.many(k * n), &*before);
                note(format!("gemm {m}×{n}×{k} {a:?} {b:?} beta {beta}"), gemm(backend, &op, operands, usize::MAX));
            }
        }
    }
    for rows in SIDES {
        for cols in SIDES {
            let (x, y) = (numbers.many(rows * cols), numbers.many(rows * cols));
            note(format!("bias {rows}×{cols}"), bias(backend, cols, &x, &numbers.many(cols)));
            note(format!("bias backward {rows}×{cols}"), bias_backward(backend, cols, &y, &x));
            let logits: Vec<f32> = numbers.many(rows * cols).iter().map(|x| x * 30.0).collect();
            let labels: Vec<u32> = (0..rows).map(|_| numbers.0.below(cols as u32)).collect();
            note(format!("cross entropy {rows}×{cols}"), cross_entropy(backend, cols, &logits, &labels));
        }
    }
    for len in [1, 255, 256, 257, 70_001] {
        let op = SgdMomentum { len, learning_rate: 0.03, momentum: 0.9 };
        let operands = (&*numbers.many(len), &*numbers.many(len), &*numbers.many(len));
        note(format!("sgd {len}"), sgd(backend, &op, operands));
        let (tensor, before) = (numbers.many(len), numbers.many(len + 50));
        note(format!("bucket {len}"), bucket(backend, (17, 0.25), &tensor, &before));
    }
    let op = Gemm { m: large, n: large, k: large, a: Transpose::No, b: Transpose::Yes, alpha: 1.0, beta: 0.0 };
    let operands = (&*numbers.many(large * large), &*numbers.many(large * large), &*vec![f32::NAN; large * large]);
    note(format!("gemm {large}×{large}×{large}"), gemm(backend, &op, operands, 1000));
}

/// Random operands.
struct Operands(SplitMix64);

impl Operands {
    /// A number that is mostly within ±1; one in sixteen has a very different size, and one in sixteen is zero.
    fn one(&mut self) -> f32 {
        let bits = self.0.next_u64();
        let x = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match bits & 15 {
            0 => 0.0,
            1 => x * 2.0_f32.powi((bits >> 4 & 31) as i32 - 16),
            _ => x,
        }
    }

    fn many(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.one()).collect()
    }
}
