//! What every back end must satisfy: each operation against the same formula in f64, over odd shapes.
//!
//! Bounds are relative. With `u` the unit roundoff of the back end's arithmetic (2⁻²⁴ for f32):
//!
//! | operation | error of an element is at most |
//! |---|---|
//! | gemm | `(k + 4) · u` times `|alpha| · |A| · |B| + |beta| · |C|` (Higham 2002, §3.5) |
//! | bias_add, bias_relu, bucket_pack | `u` times the exact element: one rounding |
//! | bias_relu_backward, bias_grad | the masked gradient is exact; sums: `rows · u` times the sum of absolute values |
//! | softmax_cross_entropy | gradient: `8 · u / rows`; loss: `8 · u · (1 + loss)` |
//! | sgd_momentum | `3 · u` times the sum of the terms' absolute values |
//! | bucket_unpack, fill | exact |

use proptest::prelude::*;

use crate::{
    Backend, BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Cpu, Dtype, Error, Fill, Gemm,
    Result, SgdMomentum, SoftmaxCrossEntropy, Transpose,
};

/// Unit roundoff of f32.
const F32_UNIT: f64 = 1.0 / (1_u64 << 24) as f64;

fn cpu() -> Cpu {
    Cpu::new(Dtype::F32).unwrap()
}

fn buffer<B: Backend>(backend: &B, values: &[f32]) -> B::Buffer {
    let mut buffer = backend.alloc("operand", values.len()).unwrap();
    backend.upload(values, &mut buffer).unwrap();
    buffer
}

fn host<B: Backend>(backend: &B, buffer: &B::Buffer) -> Vec<f32> {
    let mut values = vec![f32::NAN; backend.len(buffer)];
    backend.download(buffer, &mut values).unwrap();
    values
}

/// Every element of `found` is within its own bound of `exact`.
#[track_caller]
fn check_close(what: &str, found: &[f32], exact: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(found.len(), exact.len(), "{what}");
    for (i, (&found, &exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(found) - exact).abs();
        assert!(error <= bound(i), "{what}[{i}]: {found} for {exact}: error {error:e}, bound {:e}", bound(i));
    }
}

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// op(M)\[row\]\[col\] of a stored matrix whose used shape is `rows` × `cols`.
fn at(matrix: &[f32], op: Transpose, rows: usize, cols: usize, row: usize, col: usize) -> f64 {
    let index = match op {
        Transpose::No => row * cols + col,
        Transpose::Yes => col * rows + row,
    };
    f64::from(matrix[index])
}

fn check_gemm<B: Backend>(backend: &B, unit: f64, op: &Gemm, a: &[f32], b: &[f32], before: &[f32]) {
    let mut c = buffer(backend, before);
    backend.gemm(op, &buffer(backend, a), &buffer(backend, b), &mut c).unwrap();
    let (mut exact, mut magnitude) = (Vec::new(), Vec::new());
    for row in 0..op.m {
        for col in 0..op.n {
            let terms = (0..op.k).map(|i| at(a, op.a, op.m, op.k, row, i) * at(b, op.b, op.k, op.n, i, col));
            let (sum, sum_abs) = terms.fold((0.0, 0.0), |(sum, abs), term| (sum + term, abs + f64::abs(term)));
            // C is not read where beta is 0, so that what it held, even NaN, does not matter.
            let kept = if op.beta == 0.0 { 0.0 } else { f64::from(op.beta) * f64::from(before[row * op.n + col]) };
            exact.push(f64::from(op.alpha) * sum + kept);
            magnitude.push(f64::from(op.alpha).abs() * sum_abs + kept.abs());
        }
    }
    check_close("gemm", &host(backend, &c), &exact, |i| (op.k as f64 + 4.0) * unit * magnitude[i]);
}

fn check_bias<B: Backend>(backend: &B, unit: f64, cols: usize, x: &[f32], bias: &[f32]) {
    let (rows, bias_buffer) = (x.len() / cols, buffer(backend, bias));
    let sums: Vec<f64> = x.iter().enumerate().map(|(i, &x)| f64::from(x) + f64::from(bias[i % cols])).collect();
    let mut added = buffer(backend, x);
    backend.bias_add(&BiasAdd { rows, cols }, &mut added, &bias_buffer).unwrap();
    check_close("bias_add", &host(backend, &added), &sums, |i| unit * sums[i].abs());
    let mut activated = buffer(backend, x);
    backend.bias_relu(&BiasRelu { rows, cols }, &mut activated, &bias_buffer).unwrap();
    let positive: Vec<f64> = sums.iter().map(|sum| sum.max(0.0)).collect();
    check_close("bias_relu", &host(backend, &activated), &positive, |i| unit * sums[i].abs());
}

fn check_bias_backward<B: Backend>(backend: &B, unit: f64, cols: usize, y: &[f32], gradient: &[f32]) {
    let rows = y.len() / cols;
    let masked: Vec<f64> = y.iter().zip(gradient).map(|(&y, &g)| if y > 0.0 { f64::from(g) } else { 0.0 }).collect();
    let columns = |values: &[f64], of: fn(f64) -> f64| -> Vec<f64> {
        (0..cols).map(|col| values.iter().skip(col).step_by(cols).map(|&g| of(g)).sum()).collect()
    };
    let check_sums = |what: &str, found: &B::Buffer, values: &[f64]| {
        let magnitude = columns(values, f64::abs);
        check_close(what, &host(backend, found), &columns(values, |g| g), |i| rows as f64 * unit * magnitude[i]);
    };
    let (mut through, mut bias_gradient) = (buffer(backend, gradient), buffer(backend, &vec![f32::NAN; cols]));
    let op = BiasReluBackward { rows, cols };
    backend.bias_relu_backward(&op, &buffer(backend, y), &mut through, &mut bias_gradient).unwrap();
    check_close("bias_relu_backward", &host(backend, &through), &masked, |_| 0.0);
    check_sums("bias_relu_backward: bias gradient", &bias_gradient, &masked);

    let mut bias_gradient = buffer(backend, &vec![f32::NAN; cols]);
    backend.bias_grad(&BiasGrad { rows, cols }, &buffer(backend, gradient), &mut bias_gradient).unwrap();
    check_sums("bias_grad", &bias_gradient, &f64s(gradient));
}

fn run_cross_entropy<B: Backend>(backend: &B, classes: usize, z: &[f32], labels: &[u32]) -> Result<(f32, Vec<f32>)> {
    let op = SoftmaxCrossEntropy { rows: labels.len(), classes };
    let mut label_buffer = backend.alloc_labels("labels", labels.len())?;
    backend.upload_labels(labels, &mut label_buffer)?;
    let (mut loss, mut gradient) = (buffer(backend, &[f32::NAN]), buffer(backend, &vec![f32::NAN; z.len()]));
    backend.softmax_cross_entropy(&op, &buffer(backend, z), &label_buffer, &mut loss, &mut gradient)?;
    Ok((host(backend, &loss)[0], host(backend, &gradient)))
}

fn check_cross_entropy<B: Backend>(backend: &B, unit: f64, classes: usize, z: &[f32], labels: &[u32]) {
    let (loss, gradient) = run_cross_entropy(backend, classes, z, labels).unwrap();
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
    check_close("loss", &[loss], &[exact_loss], |_| 8.0 * unit * (1.0 + exact_loss));
    check_close("softmax gradient", &gradient, &exact, |_| 8.0 * unit / rows);
}

fn check_sgd<B: Backend>(backend: &B, unit: f64, op: &SgdMomentum, w: &[f32], g: &[f32], v: &[f32]) {
    let (mut parameter, mut velocity) = (buffer(backend, w), buffer(backend, v));
    backend.sgd_momentum(op, &mut parameter, &buffer(backend, g), &mut velocity).unwrap();
    let (rate, momentum) = (f64::from(op.learning_rate), f64::from(op.momentum));
    let (w, g, v) = (f64s(w), f64s(g), f64s(v));
    let exact_v: Vec<f64> = v.iter().zip(&g).map(|(v, g)| momentum * v + g).collect();
    let magnitude: Vec<f64> = v.iter().zip(&g).map(|(v, g)| (momentum * v).abs() + g.abs()).collect();
    let exact_w: Vec<f64> = w.iter().zip(&exact_v).map(|(w, v)| w - rate * v).collect();
    check_close("velocity", &host(backend, &velocity), &exact_v, |i| 3.0 * unit * magnitude[i]);
    check_close("parameter", &host(backend, &parameter), &exact_w, |i| 3.0 * unit * (w[i].abs() + rate * magnitude[i]));
}

fn check_bucket<B: Backend>(backend: &B, unit: f64, offset: usize, scale: f32, tensor: &[f32], before: &[f32]) {
    let (len, mut bucket) = (tensor.len(), buffer(backend, before));
    backend.bucket_pack(&BucketPack { len, offset, scale }, &buffer(backend, tensor), &mut bucket).unwrap();
    let mut exact = f64s(before);
    for (slot, value) in exact[offset..].iter_mut().zip(tensor) {
        *slot = f64::from(scale) * f64::from(*value);
    }
    let packed = host(backend, &bucket);
    let inside = offset..offset + len;
    check_close("bucket_pack", &packed, &exact, |i| if inside.contains(&i) { unit * exact[i].abs() } else { 0.0 });

    let mut out = buffer(backend, &vec![f32::NAN; len]);
    backend.bucket_unpack(&BucketUnpack { len, offset }, &bucket, &mut out).unwrap();
    assert_eq!(host(backend, &out), packed[inside]);
    backend.fill(&Fill { len, value: scale }, &mut out).unwrap();
    assert_eq!(host(backend, &out), vec![scale; len]);
}

/// Sides on both sides of every tile of the product's kernel, and 1.
fn side() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1_usize), 2..12_usize, 15..18_usize, 31..34_usize, Just(65), Just(131)]
}

/// Numbers of very different size, zero among them.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0..1.0_f32,
        1 => Just(0.0_f32),
        1 => (-1.0..1.0_f32, -20..20_i32).prop_map(|(x, e)| x * 2.0_f32.powi(e)),
    ]
}

fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(number(), len)
}

fn transpose() -> impl Strategy<Value = Transpose> {
    prop_oneof![Just(Transpose::No), Just(Transpose::Yes)]
}

fn gemm_case() -> impl Strategy<Value = (Gemm, Vec<f32>, Vec<f32>, Vec<f32>)> {
    let factor = || prop_oneof![Just(0.0_f32), Just(1.0_f32), -2.0..2.0_f32];
    (side(), side(), side(), transpose(), transpose(), factor(), factor()).prop_flat_map(
        |(m, n, k, a, b, alpha, beta)| {
            (Just(Gemm { m, n, k, a, b, alpha, beta }), numbers(m * k), numbers(k * n), numbers(m * n))
        },
    )
}

/// A width, a matrix of that width, a second one, and a row.
fn matrices() -> impl Strategy<Value = (usize, Vec<f32>, Vec<f32>, Vec<f32>)> {
    (side(), side())
        .prop_flat_map(|(rows, cols)| (Just(cols), numbers(rows * cols), numbers(rows * cols), numbers(cols)))
}

fn logits_case() -> impl Strategy<Value = (usize, Vec<f32>, Vec<u32>)> {
    (side(), side()).prop_flat_map(|(rows, classes)| {
        let logit = prop_oneof![4 => -5.0..5.0_f32, 1 => -300.0..300.0_f32];
        let labels = prop::collection::vec(0..classes as u32, rows);
        (Just(classes), prop::collection::vec(logit, rows * classes), labels)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn gemm_is_exact_within_its_bound((op, a, b, c) in gemm_case()) {
        check_gemm(&cpu(), F32_UNIT, &op, &a, &b, &c);
    }

    #[test]
    fn bias_operations_round_once((cols, x, gradient, bias) in matrices()) {
        check_bias(&cpu(), F32_UNIT, cols, &x, &bias);
        check_bias_backward(&cpu(), F32_UNIT, cols, &x, &gradient);
    }

    #[test]
    fn cross_entropy_is_stable((classes, logits, labels) in logits_case()) {
        check_cross_entropy(&cpu(), F32_UNIT, classes, &logits, &labels);
    }

    #[test]
    fn sgd_is_exact_within_its_bound(
        (w, g, v) in side().prop_flat_map(|len| (numbers(len), numbers(len), numbers(len))),
        learning_rate in 0.0..1.0_f32,
        momentum in 0.0..1.0_f32,
    ) {
        check_sgd(&cpu(), F32_UNIT, &SgdMomentum { len: w.len(), learning_rate, momentum }, &w, &g, &v);
    }

    #[test]
    fn buckets_hold_what_was_packed_and_nothing_else_moves(
        (tensor, bucket, offset) in (side(), 0..50_usize, 0..50_usize).prop_flat_map(|(len, before, after)| {
            (numbers(len), numbers(before + len + after), Just(before))
        }),
        scale in prop_oneof![Just(1.0_f32), 0.0..1.0_f32],
    ) {
        check_bucket(&cpu(), F32_UNIT, offset, scale, &tensor, &bucket);
    }
}

#[test]
fn a_product_does_not_read_what_it_overwrites() {
    let op = Gemm { m: 3, n: 5, k: 2, a: Transpose::No, b: Transpose::No, alpha: 1.0, beta: 0.0 };
    check_gemm(&cpu(), F32_UNIT, &op, &[1.0; 6], &[2.0; 10], &[f32::NAN; 15]);
}

#[test]
fn huge_logits_neither_overflow_nor_vanish() {
    let (loss, gradient) = run_cross_entropy(&cpu(), 3, &[3e38, 0.0, -3e38], &[0]).unwrap();
    assert_eq!((loss, gradient), (0.0, vec![0.0; 3]));
    let (loss, gradient) = run_cross_entropy(&cpu(), 2, &[1e4, 0.0], &[1]).unwrap();
    assert_eq!((loss, gradient), (1e4, vec![1.0, -1.0]));
}

#[test]
fn a_model_that_diverged_shows_it() {
    let cpu = cpu();
    let (loss, _) = run_cross_entropy(&cpu, 2, &[f32::NAN, 0.0], &[1]).unwrap();
    assert!(loss.is_nan());
    let mut x = buffer(&cpu, &[f32::NAN, -1.0]);
    cpu.bias_relu(&BiasRelu { rows: 1, cols: 2 }, &mut x, &buffer(&cpu, &[0.0, 0.0])).unwrap();
    assert!(host(&cpu, &x)[0].is_nan());
}

#[test]
fn a_label_without_a_class_is_refused() {
    let error = run_cross_entropy(&cpu(), 2, &[0.0; 6], &[1, 2, 0]).unwrap_err();
    assert_eq!(error, Error::Label { row: 1, label: 2, classes: 2 });
    let error = run_cross_entropy(&cpu(), 0, &[], &[0]).unwrap_err();
    assert_eq!(error, Error::Label { row: 0, label: 0, classes: 0 });
}

#[test]
fn only_f32_is_computed_here() {
    let message = Cpu::new(Dtype::Bf16).unwrap_err().to_string();
    assert_eq!(message, "the cpu back end computes in f32 only, not in bf16: use --dtype f32");
    assert_eq!(Cpu::new(Dtype::Tf32).unwrap_err().to_string(), message.replace("bf16", "tf32"));
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let error = cpu().alloc("everything", usize::MAX / 8).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot allocate {} bytes for `everything`", usize::MAX / 8 * 4));
    assert!(matches!(cpu().alloc_labels("labels", usize::MAX), Err(Error::OutOfMemory { .. })));
}

/// One operation after another with one operand too long; everything else fits.
#[test]
fn a_length_that_does_not_fit_is_refused_and_nothing_is_written() {
    let cpu = cpu();
    let ones = |len: usize| buffer(&cpu, &vec![1.0; len]);
    let product = Gemm { m: 2, n: 3, k: 4, a: Transpose::No, b: Transpose::No, alpha: 1.0, beta: 0.0 };
    let sgd = SgdMomentum { len: 4, learning_rate: 1.0, momentum: 1.0 };
    let (rows, cols) = (2, 3);
    let mut out = ones(6);
    let mut labels = cpu.alloc_labels("labels", 2).unwrap();
    let results = [
        (cpu.gemm(&product, &ones(9), &ones(12), &mut out), "A"),
        (cpu.gemm(&product, &ones(8), &ones(13), &mut out), "B"),
        (cpu.gemm(&product, &ones(8), &ones(12), &mut ones(7)), "C"),
        (cpu.bias_relu(&BiasRelu { rows, cols }, &mut out, &ones(2)), "bias"),
        (cpu.bias_relu(&BiasRelu { rows: 3, cols }, &mut out, &ones(3)), "x"),
        (cpu.bias_add(&BiasAdd { rows, cols }, &mut out, &ones(4)), "bias"),
        (cpu.bias_relu_backward(&BiasReluBackward { rows, cols }, &ones(5), &mut out, &mut ones(3)), "y"),
        (cpu.bias_relu_backward(&BiasReluBackward { rows, cols }, &ones(6), &mut ones(5), &mut ones(3)), "gradient"),
        (cpu.bias_grad(&BiasGrad { rows, cols }, &ones(6), &mut ones(4)), "bias"),
        (cpu.sgd_momentum(&sgd, &mut ones(4), &ones(5), &mut ones(4)), "gradient"),
        (cpu.sgd_momentum(&sgd, &mut ones(5), &ones(4), &mut ones(4)), "parameter"),
        (cpu.sgd_momentum(&sgd, &mut ones(4), &ones(4), &mut ones(3)), "velocity"),
        (cpu.bucket_pack(&BucketPack { len: 2, offset: 0, scale: 2.0 }, &ones(3), &mut out), "tensor"),
        (cpu.bucket_unpack(&BucketUnpack { len: 6, offset: 0 }, &ones(7), &mut ones(5)), "tensor"),
        (cpu.fill(&Fill { len: 5, value: 2.0 }, &mut out), "buffer"),
        (cpu.upload(&[2.0; 5], &mut out), "destination"),
        (cpu.upload_labels(&[0; 3], &mut labels), "destination"),
        (cpu.download(&out, &mut [0.0; 5]), "destination"),
    ];
    for (i, (result, expected)) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Length { operand, .. }) if operand == expected), "{i}: {result:?}");
    }
    let pack = BucketPack { len: 2, offset: 5, scale: 2.0 };
    assert!(matches!(cpu.bucket_pack(&pack, &ones(2), &mut out), Err(Error::OutsideBucket { offset: 5, .. })));
    assert_eq!(host(&cpu, &out), [1.0; 6]);
}
