//! The checks over fixed shapes, for back ends that are too slow for thousands of random cases.

use super::{Check, bias, bias_backward, bucket, cross_entropy, gemm, sgd};
use crate::{Backend, Gemm, SgdMomentum, SplitMix64, Transpose};

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
