//! The mathematics of the reference workload: the operations of a multi-layer perceptron and of its gradient buckets.
//!
//! A value ([`Gemm`], [`BiasRelu`], …) describes an operation: its name, the shapes of its inputs and its [`Cost`]. A
//! [`Backend`] executes it on buffers that only the back end can access, so that they may lie in device memory. [`Cpu`] is
//! the back end for the processor: one thread, f32.
//!
//! ```
//! use kernels::{Backend, Cpu, Dtype, Gemm, Operation, Transpose};
//!
//! let cpu = Cpu::new(Dtype::F32)?;
//! let (mut a, mut b, mut c) = (cpu.alloc("a", 2)?, cpu.alloc("b", 2)?, cpu.alloc("c", 4)?);
//! cpu.upload(&[1.0, 2.0], &mut a)?;
//! cpu.upload(&[10.0, 100.0], &mut b)?;
//! let outer = Gemm { m: 2, n: 2, k: 1, a: Transpose::No, b: Transpose::No, alpha: 1.0, beta: 0.0 };
//! cpu.gemm(&outer, &a, &b, &mut c)?;
//! let mut host = [0.0; 4];
//! cpu.download(&c, &mut host)?;
//! assert_eq!(host, [10.0, 100.0, 20.0, 200.0]);
//! assert_eq!(outer.cost(Dtype::F32).flops, 8);
//! # Ok::<(), kernels::Error>(())
//! ```

#![warn(missing_docs)]

mod backend;
pub mod conformance;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod operation;
mod random;

pub use backend::Backend;
pub use cpu::{Cpu, CpuBuffer, CpuLabels};
pub use dtype::Dtype;
pub use error::{Error, Result};
pub use operation::{
    BiasAdd, BiasGrad, BiasRelu, BiasReluBackward, BucketPack, BucketUnpack, Cost, Fill, Gemm, Operation, SgdMomentum,
    SoftmaxCrossEntropy, Transpose,
};
pub use random::SplitMix64;
