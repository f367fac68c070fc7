//! The back end: a context, a stream for its operations, and the compiled kernels.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use super::buffer::CudaBuffer;
use super::device::{DeviceInfo, Driver};
use super::ffi::blas::Blas;
use super::ffi::driver::{Context, Stream};
use super::ffi::event::Event;
use super::ffi::memory::{DeviceMemory, Pinned};
use super::kernels::Kernels;
use super::{ffi, libraries};
use crate::Dtype;
use crate::error::{Error, Result};

/// The CUDA back end on one device.
#[derive(Debug)]
pub struct Cuda {
    pub(super) dtype: Dtype,
    pub(super) info: DeviceInfo,
    pub(super) kernels: Kernels,
    pub(super) blas: Blas,
    /// Partial sums between two kernels; grows to the size that the largest operation needs.
    pub(super) scratch: RefCell<Option<DeviceMemory>>,
    pub(super) compute: Stream,
    pub(super) context: Context,
    pub(super) versions: BTreeMap<&'static str, String>,
}

impl Cuda {
    /// Opens a visible device: finds cuBLAS and NVRTC, and compiles the kernels or loads them from `cache`.
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Cuda`], [`Error::Compile`].
    pub fn open(driver: &Driver, ordinal: usize, dtype: Dtype, cache: Option<&Path>) -> Result<Self> {
        libraries::open(&libraries::CUBLAS)?;
        libraries::open(&libraries::NVRTC)?;
        let info = ffi::driver::device_info(ordinal)?;
        let context = Context::retain(ordinal)?;
        let compute = Stream::new(&context, false)?;
        let kernels = Kernels::load(&context, info.capability, cache)?;
        let blas = Blas::new(&compute)?;
        let (major, minor) = ffi::nvrtc::version()?;
        let cublas = blas.version()?;
        let versions = BTreeMap::from([
            ("cuda_driver", driver.version()),
            ("cublas", format!("{}.{}.{}", cublas / 10_000, cublas / 100 % 100, cublas % 100)),
            ("nvrtc", format!("{major}.{minor}")),
        ]);
        Ok(Self { dtype, info, kernels, blas, scratch: RefCell::new(None), compute, context, versions })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Versions of the libraries.
    pub fn versions(&self) -> &BTreeMap<&'static str, String> {
        &self.versions
    }

    /// The stream of the operations.
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// The device's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Creates another stream. With `urgent`, its kernels are scheduled before those of the operations.
    ///
    /// # Errors
    /// The driver's error.
    pub fn stream(&self, urgent: bool) -> Result<Stream> {
        Stream::new(&self.context, urgent)
    }

    /// Creates an event that orders streams and, with timing, also measures time.
    ///
    /// # Errors
    /// The driver's error.
    pub fn event(&self, keeps_time: bool) -> Result<Event> {
        Event::new(&self.context, keeps_time)
    }

    /// Enqueues on `stream` a copy of a buffer into pinned host memory of the same length.
    ///
    /// # Errors
    /// [`Error::Length`]; the driver's error.
    pub fn copy_out(&self, stream: &Stream, from: &CudaBuffer, to: &mut Pinned) -> Result<()> {
        expect_len("copy_out", from.len(), to.numbers()?.len())?;
        to.copy_from(stream, &from.memory)
    }

    /// Enqueues on `stream` a copy of pinned host memory into a buffer of the same length.
    ///
    /// # Errors
    /// [`Error::Length`]; the driver's error.
    pub fn copy_in(&self, stream: &Stream, from: &mut Pinned, to: &mut CudaBuffer) -> Result<()> {
        expect_len("copy_in", to.len(), from.numbers()?.len())?;
        to.mark_stale();
        from.copy_to(stream, &mut to.memory)
    }

    /// The address of `bytes` bytes for sums between two kernels of one operation. The next operation reuses the memory.
    pub(super) fn scratch(&self, bytes: usize) -> Result<u64> {
        let mut scratch = self.scratch.borrow_mut();
        if let Some(memory) = scratch.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.address());
        }
        let memory = DeviceMemory::new(&self.context, "partial sums", bytes)?;
        Ok(scratch.insert(memory).address())
    }
}

pub(super) fn expect_len(operation: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Length { operation, operand: "destination", expected, found })
}
