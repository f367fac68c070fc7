//! `rank-agent selftest`: compares a back end with the same formulas in f64, and times its matrix products.
//!
//! It is part of the binary, so that a machine with a GPU but without Rust can be tested.

use agent::console;
use kernels::conformance::{self, Outcome};
use kernels::cuda::device::{self, Driver};
use kernels::cuda::{Cuda, program};
use kernels::{Backend, Cpu, Dtype, Gemm, Transpose};
use trace::terminal::Form;

use crate::Error;
use crate::options::BackendChoice;

/// Options of the self-test.
#[derive(Clone, Debug)]
pub struct Selftest {
    /// The back end to check.
    pub backend: BackendChoice,
    /// Rows and columns of the largest product, which is checked at 1000 positions.
    pub large: u32,
    /// Rows and columns of the products to time.
    pub gemm: Vec<u32>,
    /// Products that are timed together.
    pub repeat: u32,
}

/// Runs the checks and prints a line for each type and each timed product.
///
/// # Errors
/// The back end's error; [`Error::Selftest`] if a result lies outside its bound.
pub fn selftest(options: &Selftest) -> Result<u8, Error> {
    if options.backend == BackendChoice::Cpu {
        let cpu = Cpu::new(Dtype::F32)?;
        check(&cpu, options)?;
        return Ok(0);
    }
    let driver = Driver::open()?;
    let devices = driver.devices()?;
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let ordinal = device::choose(0, devices.len(), variable.as_deref())?;
    let cache = program::cache_directory(&|name| std::env::var_os(name));
    for dtype in [Dtype::F32, Dtype::Tf32, Dtype::Bf16] {
        let cuda = Cuda::open(&driver, ordinal, dtype, cache.as_deref())?;
        if dtype == Dtype::F32 {
            let versions: Vec<String> = cuda.versions().iter().map(|(name, text)| format!("{name} {text}")).collect();
            say(&format!("device: {} ({}), {}", cuda.info().name, cuda.info().uuid, versions.join(", ")))?;
        }
        check(&cuda, options)?;
        for &side in &options.gemm {
            let tflops = speed(&cuda, side as usize, options.repeat)?;
            say(&format!("gemm {dtype} {side}: {tflops:.1} TFLOP/s"))?;
        }
    }
    Ok(0)
}

fn check<B: Backend>(backend: &B, options: &Selftest) -> Result<(), Error> {
    let (mut count, mut worst, mut failed) = (0_u32, (0.0, String::new()), Vec::new());
    conformance::cases(backend, options.large as usize, |Outcome { what, check }| {
        count += 1;
        match check {
            Ok(error) if error > worst.0 => worst = (error, what),
            Ok(_) => {}
            Err(why) => failed.push(format!("{what}: {why}")),
        }
    });
    let dtype = backend.dtype();
    for failure in &failed {
        say(&format!("check {} {dtype}: FAILED {failure}", backend.name()))?;
    }
    if !failed.is_empty() {
        return Err(Error::Selftest { failed: failed.len(), count: count as usize });
    }
    let (error, what) = worst;
    say(&format!(
        "check {} {dtype}: {count} of {count} within bounds, the worst at {error:.3} of its bound ({what})",
        backend.name()
    ))
}

/// Rate of square products of random numbers in TFLOP/s, over `repeat` products after a warm-up.
fn speed(cuda: &Cuda, side: usize, repeat: u32) -> Result<f64, Error> {
    let op = Gemm { m: side, n: side, k: side, a: Transpose::No, b: Transpose::Yes, alpha: 1.0, beta: 0.0 };
    let mut numbers = vec![0.0; side * side];
    let mut filled = |seed: u64| {
        crate::dataset::normal(seed, 0, 1.0, &mut numbers);
        let mut buffer = cuda.alloc("operand", side * side)?;
        cuda.upload(&numbers, &mut buffer)?;
        Ok::<_, Error>(buffer)
    };
    let (a, b, mut c) = (filled(1)?, filled(2)?, cuda.alloc("product", side * side)?);
    for _ in 0..5 {
        cuda.gemm(&op, &a, &b, &mut c)?;
    }
    let (begin, end) = (cuda.event(true)?, cuda.event(true)?);
    begin.record(cuda.compute())?;
    for _ in 0..repeat {
        cuda.gemm(&op, &a, &b, &mut c)?;
    }
    end.record(cuda.compute())?;
    end.synchronize()?;
    let seconds = end.ns_since(&begin)? as f64 / 1e9;
    Ok(2.0 * (side as f64).powi(3) * f64::from(repeat) / seconds / 1e12)
}

/// Prints a line.
fn say(text: &str) -> Result<(), Error> {
    Ok(console::print_output(format!("{text}\n").as_bytes(), Form::Text)?)
}
