//! The CPU back end against the checks over random shapes and numbers, and its errors.

use proptest::prelude::*;

use super::{bias, bias_backward, bucket, cases, cross_entropy, gemm, run_cross_entropy, sgd};
use crate::{
    Backend, BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Cpu, Dtype, Error, Fill, Gemm,
    SgdMomentum, Transpose,
};

fn cpu() -> Cpu {
    Cpu::new(Dtype::F32).unwrap()
}

fn buffer(cpu: &Cpu, values: &[f32]) -> <Cpu as Backend>::Buffer {
    super::buffer(cpu, values).unwrap()
}

fn host(cpu: &Cpu, buffer: &<Cpu as Backend>::Buffer) -> Vec<f32> {
    super::host(cpu, buffer).unwrap()
}

/// Side lengths below and above every tile size of the product's kernel, and 1.
fn side() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1_usize), 2..12_usize, 15..18_usize, 31..34_usize, Just(65), Just(131)]
}

/// Numbers of very different sizes, including zero.
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
        gemm(&cpu(), &op, (&a, &b, &c), usize::MAX).unwrap();
    }

    #[test]
    fn bias_operations_round_once((cols, x, gradient, row) in matrices()) {
        bias(&cpu(), cols, &x, &row).unwrap();
        bias_backward(&cpu(), cols, &x, &gradient).unwrap();
    }

    #[test]
    fn cross_entropy_is_stable((classes, logits, labels) in logits_case()) {
        cross_entropy(&cpu(), classes, &logits, &labels).unwrap();
    }

    #[test]
    fn sgd_is_exact_within_its_bound(
        (w, g, v) in side().prop_flat_map(|len| (numbers(len), numbers(len), numbers(len))),
        learning_rate in 0.0..1.0_f32,
        momentum in 0.0..1.0_f32,
    ) {
        sgd(&cpu(), &SgdMomentum { len: w.len(), learning_rate, momentum }, (&w, &g, &v)).unwrap();
    }

    #[test]
    fn buckets_hold_what_was_packed_and_nothing_else_moves(
        (tensor, before, offset) in (side(), 0..50_usize, 0..50_usize).prop_flat_map(|(len, before, after)| {
            (numbers(len), numbers(before + len + after), Just(before))
        }),
        scale in prop_oneof![Just(1.0_f32), 0.0..1.0_f32],
    ) {
        bucket(&cpu(), (offset, scale), &tensor, &before).unwrap();
    }
}

#[test]
fn a_product_does_not_read_its_output_if_beta_is_zero() {
    let op = Gemm { m: 3, n: 5, k: 2, a: Transpose::No, b: Transpose::No, alpha: 1.0, beta: 0.0 };
    gemm(&cpu(), &op, (&[1.0; 6], &[2.0; 10], &[f32::NAN; 15]), usize::MAX).unwrap();
}

#[test]
fn huge_logits_neither_overflow_nor_vanish() {
    let (loss, gradient) = run_cross_entropy(&cpu(), 3, &[3e38, 0.0, -3e38], &[0]).unwrap();
    assert_eq!((loss, gradient), (0.0, vec![0.0; 3]));
    let (loss, gradient) = run_cross_entropy(&cpu(), 2, &[1e4, 0.0], &[1]).unwrap();
    assert_eq!((loss, gradient), (1e4, vec![1.0, -1.0]));
}

#[test]
fn nan_is_propagated() {
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
fn other_types_than_f32_are_refused() {
    let message = Cpu::new(Dtype::Bf16).unwrap_err().to_string();
    assert_eq!(message, "the cpu back end computes in f32 only, not in bf16: use --dtype f32");
    assert_eq!(Cpu::new(Dtype::Tf32).unwrap_err().to_string(), message.replace("bf16", "tf32"));
}

#[test]
fn out_of_memory_is_an_error() {
    let error = cpu().alloc("everything", usize::MAX / 8).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot allocate {} bytes for `everything`", usize::MAX / 8 * 4));
    assert!(matches!(cpu().alloc_labels("labels", usize::MAX), Err(Error::OutOfMemory { .. })));
}

/// One operation after another with one operand too long; everything else fits.
#[test]
fn a_wrong_length_is_refused_and_nothing_is_written() {
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

#[test]
fn the_fixed_cases_pass_and_a_wrong_number_is_found() {
    let mut count = 0;
    cases(&cpu(), 64, |outcome| {
        count += 1;
        assert!(outcome.check.is_ok_and(|worst| worst <= 1.0), "{}", outcome.what);
    });
    assert!(count > 100);
    let found = super::close("sum", &[1.0, 1.5, 2.0], &[1.0, 1.0, 2.0], |_| 0.25).unwrap_err();
    assert_eq!(found, "sum[1]: 1.5 for 1: error 5e-1, bound 2.5e-1");
    assert!(super::close("sum", &[f32::NAN], &[1.0], |_| f64::INFINITY).is_err());
    assert!(super::close("sum", &[1.0], &[1.0, 1.0], |_| 1.0).is_err());
}
