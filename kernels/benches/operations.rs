//! Speed of the CPU back end compared with simple code on the same machine: `cargo bench -p rankscope-kernels`.
//!
//! Products are compared with a plain triple loop, everything else with a copy of the same number of bytes. Shapes are
//! those of the default workload. The best of several runs counts, because other work only ever slows a run down.

use std::hint::black_box;

use fixtures::bench::best_of;
use kernels::{
    Backend, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Cpu, CpuBuffer, Dtype, Error, Gemm,
    Operation, SgdMomentum, SoftmaxCrossEntropy, Transpose,
};

const BATCH: usize = 64;
const HIDDEN: usize = 1024;
const CLASSES: usize = 10;
/// Runs of which the best counts.
const RUNS: usize = 15;

fn main() -> Result<(), Error> {
    let cpu = Cpu::new(Dtype::F32)?;
    let naive = naive_gflops();
    println!("triple loop {naive:.1} GFLOP/s\n");
    println!("{:<24}{:>12}{:>20}", "gemm", "GFLOP/s", "x triple loop");
    for (name, op) in products() {
        let (a, b, mut c) = (filled(&cpu, op.m * op.k)?, filled(&cpu, op.k * op.n)?, filled(&cpu, op.m * op.n)?);
        let seconds = best(|| cpu.gemm(&op, &a, &b, &mut c))?;
        let gflops = op.cost(Dtype::F32).flops as f64 / seconds * 1e-9;
        println!("{name:<24}{gflops:>12.1}{:>20.1}", gflops / naive);
    }
    println!("\n{:<24}{:>12}{:>20}", "", "GB/s", "x copy of its bytes");
    small_operations(&cpu)?;
    large_operations(&cpu)
}

fn products() -> [(&'static str, Gemm); 3] {
    let gemm = |m, n, k, a, b| Gemm { m, n, k, a, b, alpha: 1.0, beta: 0.0 };
    [
        ("forward", gemm(BATCH, HIDDEN, HIDDEN, Transpose::No, Transpose::Yes)),
        ("weight gradient", gemm(HIDDEN, HIDDEN, BATCH, Transpose::Yes, Transpose::No)),
        ("input gradient", gemm(BATCH, HIDDEN, HIDDEN, Transpose::No, Transpose::No)),
    ]
}

/// Operations on activations, which fit a cache.
fn small_operations(cpu: &Cpu) -> Result<(), Error> {
    let (rows, cols) = (BATCH, HIDDEN);
    let (y, mut x, mut row) = (filled(cpu, rows * cols)?, filled(cpu, rows * cols)?, filled(cpu, cols)?);
    let op = BiasRelu { rows, cols };
    report(&op, best(|| cpu.bias_relu(&op, &mut x, &row))?);
    let op = BiasReluBackward { rows, cols };
    report(&op, best(|| cpu.bias_relu_backward(&op, &y, &mut x, &mut row))?);
    let op = BiasGrad { rows, cols };
    report(&op, best(|| cpu.bias_grad(&op, &y, &mut row))?);
    let op = SoftmaxCrossEntropy { rows, classes: CLASSES };
    let (logits, labels) = (filled(cpu, rows * CLASSES)?, cpu.alloc_labels("labels", rows)?);
    let (mut loss, mut gradient) = (filled(cpu, 1)?, filled(cpu, rows * CLASSES)?);
    report(&op, best(|| cpu.softmax_cross_entropy(&op, &logits, &labels, &mut loss, &mut gradient))?);
    Ok(())
}

/// Operations on parameters, which do not.
fn large_operations(cpu: &Cpu) -> Result<(), Error> {
    let len = 8 * HIDDEN * HIDDEN;
    let (mut w, mut g, mut v) = (filled(cpu, len)?, filled(cpu, len)?, filled(cpu, len)?);
    let op = SgdMomentum { len, learning_rate: 0.02, momentum: 0.9 };
    report(&op, best(|| cpu.sgd_momentum(&op, &mut w, &g, &mut v))?);
    let op = BucketPack { len, offset: 0, scale: 0.125 };
    report(&op, best(|| cpu.bucket_pack(&op, &g, &mut v))?);
    let op = BucketUnpack { len, offset: 0 };
    report(&op, best(|| cpu.bucket_unpack(&op, &v, &mut g))?);
    Ok(())
}

fn report(op: &impl Operation, seconds: f64) {
    let bytes = op.cost(Dtype::F32).bytes;
    let rate = bytes as f64 / seconds * 1e-9;
    println!("{:<24}{rate:>12.1}{:>20.2}", op.name(), rate / copy_gbs(bytes as usize));
}

/// Rate of a copy that reads and writes `bytes` in all.
fn copy_gbs(bytes: usize) -> f64 {
    let from = vec![1_u8; bytes / 2];
    let mut to = vec![0_u8; bytes / 2];
    let seconds = best_of(RUNS, || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    });
    bytes as f64 / seconds * 1e-9
}

/// The naive product with an inner loop over a row of B.
fn naive_gflops() -> f64 {
    let (m, n, k) = (BATCH, HIDDEN, HIDDEN);
    let (a, b, mut c) = (vec![1.0_f32; m * k], vec![1.0_f32; k * n], vec![0.0_f32; m * n]);
    let seconds = best_of(RUNS, || {
        c.fill(0.0);
        for (a, c) in a.chunks(k).zip(c.chunks_mut(n)) {
            for (a, b) in a.iter().zip(b.chunks(n)) {
                for (c, b) in c.iter_mut().zip(b) {
                    *c += a * b;
                }
            }
        }
        black_box(&mut c);
    });
    (2 * m * n * k) as f64 / seconds * 1e-9
}

fn filled(cpu: &Cpu, len: usize) -> Result<CpuBuffer, Error> {
    let mut buffer = cpu.alloc("operand", len)?;
    let numbers: Vec<f32> = (0..len).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
    cpu.upload(&numbers, &mut buffer)?;
    Ok(buffer)
}

/// Seconds of the best of some fallible runs.
fn best(mut run: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    run()?;
    let mut outcome = Ok(());
    let seconds = best_of(RUNS, || {
        if let Err(error) = run() {
            outcome = Err(error);
        }
    });
    outcome.map(|()| seconds)
}
