//! Numbers of the host on their way to a device, or back.

use super::ffi::driver::{Context, Stream};
use super::ffi::memory::{DeviceMemory, Pinned};
use crate::error::Result;

/// Pinned memory of the host, and memory of a device of the same length.
#[derive(Debug)]
pub struct Staging {
    host: Pinned,
    device: DeviceMemory,
}

impl Staging {
    /// Memory for `len` numbers; errors contain `name`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); the driver's error.
    pub fn new(context: &Context, name: &str, len: usize) -> Result<Self> {
        let device = DeviceMemory::new(context, name, len.saturating_mul(size_of::<f32>()))?;
        Ok(Self { host: Pinned::new(context, name, len)?, device })
    }

    /// Waits for the last copy and returns the numbers of the host.
    ///
    /// # Errors
    /// The driver's error.
    pub fn numbers(&mut self) -> Result<&mut [f32]> {
        self.host.numbers()
    }

    /// The address on the device, for libraries that take addresses; valid as long as this value.
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// Enqueues on `stream` a copy to the device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        self.host.copy_to(stream, &mut self.device)
    }

    /// Enqueues on `stream` a copy to the host.
    ///
    /// # Errors
    /// The driver's error.
    pub fn download(&mut self, stream: &Stream) -> Result<()> {
        self.host.copy_from(stream, &self.device)
    }
}
