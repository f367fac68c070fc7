//! Numbers and labels in device memory.

use std::cell::RefCell;

use super::ffi::memory::DeviceMemory;

/// Numbers in device memory: f32, and a rounded copy once a bf16 product has read them.
#[derive(Debug)]
pub struct CudaBuffer {
    pub(super) memory: DeviceMemory,
    len: usize,
    rounded: RefCell<Option<Rounded>>,
}

/// The rounded copy.
#[derive(Debug)]
pub(super) struct Rounded {
    pub(super) memory: DeviceMemory,
    /// Whether the copy matches the buffer's present content, in the order of the stream.
    pub(super) is_fresh: bool,
}

impl CudaBuffer {
    pub(super) fn new(memory: DeviceMemory, len: usize) -> Self {
        Self { memory, len, rounded: RefCell::new(None) }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address on the device, for libraries that take addresses; valid as long as the buffer.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Bytes on the device, the rounded copy included.
    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.rounded.borrow().as_ref().map_or(0, |rounded| rounded.memory.bytes())
    }

    pub(super) fn rounded(&self) -> std::cell::RefMut<'_, Option<Rounded>> {
        self.rounded.borrow_mut()
    }

    /// Notes that the buffer gets new numbers and its copy does not.
    pub(super) fn mark_stale(&mut self) {
        if let Some(rounded) = self.rounded.get_mut() {
            rounded.is_fresh = false;
        }
    }

    /// Notes that a kernel writes the buffer and its copy; returns the copy's address, or 0 without a copy.
    pub(super) fn rounded_along(&mut self) -> u64 {
        self.rounded.get_mut().as_mut().map_or(0, |rounded| {
            rounded.is_fresh = true;
            rounded.memory.address()
        })
    }
}

/// Class numbers in device memory.
#[derive(Debug)]
pub struct CudaLabels {
    pub(super) memory: DeviceMemory,
    pub(super) len: usize,
    /// The host's knowledge of the labels, so that a label without a class is an error at once.
    pub(super) known: KnownLabels,
}

/// The host's knowledge of labels on a device.
#[derive(Debug)]
pub(super) enum KnownLabels {
    /// All labels.
    Values(Vec<u32>),
    /// The device made them, all below this number.
    Below(u32),
}

impl CudaLabels {
    /// The first row with a label of `classes` or more.
    pub(super) fn outside(&self, classes: usize) -> Option<(usize, u32)> {
        match &self.known {
            KnownLabels::Values(values) => {
                values.iter().copied().enumerate().find(|(_, label)| *label as usize >= classes)
            }
            KnownLabels::Below(limit) => (*limit as usize > classes).then_some((0, limit.saturating_sub(1))),
        }
    }
}
