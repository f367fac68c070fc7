//! Device memory, and pinned host memory that the device can access.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::driver::{Context, Stream, check};
use super::event::Event;
use crate::error::{Error, Result};

/// Bytes on a device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: sys::CUdeviceptr,
    bytes: usize,
    context: Context,
}

// SAFETY: an address on a device; freeing binds the context first.
unsafe impl Send for DeviceMemory {}

impl DeviceMemory {
    /// `bytes` bytes, not initialized; errors contain `name`.
    pub(crate) fn new(context: &Context, name: &str, bytes: usize) -> Result<Self> {
        context.bind()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: a context is current; `address` is written.
            let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
            if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Err(Error::OutOfMemory { name: name.to_owned(), bytes });
            }
            check("cuMemAlloc", code)?;
        }
        Ok(Self { address, bytes, context: context.clone() })
    }

    /// Address on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets every 32-bit word to `word`, on `stream`.
    pub(crate) fn set_words(&mut self, stream: &Stream, word: u32) -> Result<()> {
        if self.bytes < 4 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: the memory holds `bytes / 4` whole words.
        unsafe { check("cuMemsetD32Async", sys::cuMemsetD32Async(self.address, word, self.bytes / 4, stream.raw())) }
    }

    /// Copies from the host after the present work of `stream`, and waits for the copy.
    pub(crate) fn write(&mut self, stream: &Stream, host: &[u8]) -> Result<()> {
        assert!(host.len() <= self.bytes, "the caller checks the lengths");
        if host.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: `host` is as long as the copy, and the wait keeps it borrowed until the copy is done.
        unsafe {
            let code = sys::cuMemcpyHtoDAsync_v2(self.address, host.as_ptr().cast(), host.len(), stream.raw());
            check("cuMemcpyHtoDAsync", code)?;
        }
        stream.synchronize()
    }

    /// Copies to the host after the present work of `stream`, and waits for the copy.
    pub(crate) fn read(&self, stream: &Stream, host: &mut [u8]) -> Result<()> {
        assert!(host.len() <= self.bytes, "the caller checks the lengths");
        if host.is_empty() {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: as in `write`.
        unsafe {
            let code = sys::cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), self.address, host.len(), stream.raw());
            check("cuMemcpyDtoHAsync", code)?;
        }
        stream.synchronize()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.bind().is_ok() {
            // SAFETY: allocated once, freed once; the driver waits for work that still uses it.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Numbers in pinned host memory, which the device copies asynchronously.
#[derive(Debug)]
pub struct Pinned {
    numbers: *mut f32,
    len: usize,
    /// A copy that may still run.
    pending: Option<Event>,
    context: Context,
}

// SAFETY: the memory belongs to this value alone; freeing binds the context first.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `len` zeros; errors contain `name`.
    pub fn new(context: &Context, name: &str, len: usize) -> Result<Self> {
        context.bind()?;
        let bytes = len.saturating_mul(size_of::<f32>());
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: a context is current; `memory` is written. A length of zero asks for one byte.
        let code = unsafe { sys::cuMemHostAlloc(&mut memory, bytes.max(1), 0) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { name: name.to_owned(), bytes });
        }
        check("cuMemHostAlloc", code)?;
        // SAFETY: the driver has given `bytes` bytes, aligned to pages; zeros are numbers.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(Self { numbers: memory.cast(), len, pending: None, context: context.clone() })
    }

    /// Enqueues a copy of a device buffer's first elements that fills this memory.
    pub(in crate::cuda) fn copy_from(&mut self, stream: &Stream, from: &DeviceMemory) -> Result<()> {
        self.wait()?;
        let bytes = self.len * size_of::<f32>();
        assert!(from.bytes() >= bytes, "the caller checks the lengths");
        if bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: both hold `bytes`; this memory is neither read nor freed before `pending` has passed.
        unsafe {
            let code = sys::cuMemcpyDtoHAsync_v2(self.numbers.cast(), from.address(), bytes, stream.raw());
            check("cuMemcpyDtoHAsync", code)?;
        }
        self.pending = Some(Event::after(stream)?);
        Ok(())
    }

    /// Enqueues a copy of this memory into a device buffer.
    pub(in crate::cuda) fn copy_to(&mut self, stream: &Stream, to: &mut DeviceMemory) -> Result<()> {
        self.wait()?;
        let bytes = self.len * size_of::<f32>();
        assert!(to.bytes() >= bytes, "the caller checks the lengths");
        if bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        // SAFETY: both hold `bytes`; this memory is neither written nor freed before `pending` has passed.
        unsafe {
            let code = sys::cuMemcpyHtoDAsync_v2(to.address(), self.numbers.cast(), bytes, stream.raw());
            check("cuMemcpyHtoDAsync", code)?;
        }
        self.pending = Some(Event::after(stream)?);
        Ok(())
    }

    /// Whether the last copy is complete, so that [`numbers`](Self::numbers) does not wait.
    pub fn is_ready(&self) -> Result<bool> {
        self.pending.as_ref().map_or(Ok(true), Event::is_over)
    }

    fn wait(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |event| event.synchronize())
    }

    /// Waits for the last copy and returns the numbers.
    pub fn numbers(&mut self) -> Result<&mut [f32]> {
        self.wait()?;
        // SAFETY: `len` numbers that belong to this value; no copy is running.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.numbers, self.len) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the wait fails, the device is lost, and its copies with it.
        let _ = self.wait();
        if self.context.bind().is_ok() {
            // SAFETY: allocated once, freed once, and no copy is running.
            unsafe { sys::cuMemFreeHost(self.numbers.cast()) };
        }
    }
}
