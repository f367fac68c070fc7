//! State of a training loop on the device, so that steps never wait for the host: the step's number, its batch, and a ring
//! of losses and checksums that the host reads from time to time.

use std::time::Duration;

use super::backend::Cuda;
use super::buffer::{CudaBuffer, CudaLabels, KnownLabels};
use super::ffi::memory::DeviceMemory;
use super::kernels::{matrix, vector};
use crate::error::{Error, Result};

/// The step's number, its checksum so far, and the ring.
#[derive(Debug)]
pub struct Journal {
    step: DeviceMemory,
    checksum: DeviceMemory,
    losses: DeviceMemory,
    checksums: DeviceMemory,
    capacity: u32,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Loss of the step.
    pub loss: f32,
    /// Checksum of the parameters after the step. Comparable only with checksums of a device.
    pub checksum: u64,
}

/// A batch of samples from Gaussian clusters, one cluster per class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterBatch {
    /// Samples.
    pub rows: usize,
    /// Numbers per sample.
    pub features: usize,
    /// Clusters.
    pub classes: u32,
    /// Key of the stream of numbers, without the step.
    pub key: u64,
}

impl Journal {
    /// Steps that the ring holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
}

impl Cuda {
    /// A journal that starts with step 0 and holds the last `capacity` steps, at least 1.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the driver's error.
    pub fn journal(&self, capacity: u32) -> Result<Journal> {
        let capacity = capacity.max(1);
        let zeros = |name: &str, bytes: usize| {
            let mut memory = DeviceMemory::new(&self.context, name, bytes)?;
            memory.set_words(&self.compute, 0)?;
            Ok::<_, Error>(memory)
        };
        Ok(Journal {
            step: zeros("journal.step", size_of::<u32>())?,
            checksum: zeros("journal.checksum", size_of::<u64>())?,
            losses: zeros("journal.losses", capacity as usize * size_of::<f32>())?,
            checksums: zeros("journal.checksums", capacity as usize * size_of::<u64>())?,
            capacity,
        })
    }

    /// Generates the batch of the journal's step, with the same bits as on a CPU.
    ///
    /// # Errors
    /// [`Error::Length`]; the driver's error.
    pub fn cluster_batch(
        &self,
        op: &ClusterBatch,
        journal: &Journal,
        centres: &CudaBuffer,
        inputs: &mut CudaBuffer,
        labels: &mut CudaLabels,
    ) -> Result<()> {
        let ClusterBatch { rows, features, classes, key } = *op;
        let lengths = [
            ("centres", features.saturating_mul(classes as usize), centres.len()),
            ("inputs", rows.saturating_mul(features), inputs.len()),
            ("labels", rows, labels.len),
        ];
        let operation = "cluster_batch";
        for (operand, expected, found) in lengths {
            if expected != found {
                return Err(Error::Length { operation, operand, expected, found });
            }
        }
        let reason = "have a side that a kernel cannot count";
        let side = |n: usize| {
            u32::try_from(n).map_err(|_| Error::Shape { operation, shapes: format!("[[{rows}, {features}]]"), reason })
        };
        let rounded = inputs.rounded_along();
        labels.known = KnownLabels::Below(classes);
        let arguments = &mut [
            journal.step.address().into(),
            key.into(),
            centres.address().into(),
            inputs.address().into(),
            rounded.into(),
            labels.memory.address().into(),
            side(rows)?.into(),
            side(features)?.into(),
            classes.into(),
        ];
        self.launch("cluster_batch", matrix(rows, features), arguments)
    }

    /// Adds tensor number `index` to the checksum of the journal's step.
    ///
    /// # Errors
    /// The driver's error.
    pub fn add_checksum(&self, journal: &Journal, index: u64, tensor: &CudaBuffer) -> Result<()> {
        let n = tensor.len();
        let arguments =
            &mut [tensor.address().into(), index.into(), journal.checksum.address().into(), (n as u64).into()];
        self.launch("add_checksum", vector(n), arguments)
    }

    /// Occupies the compute stream for `time`, as planted work.
    ///
    /// # Errors
    /// The driver's error.
    pub fn delay(&self, time: Duration) -> Result<()> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.launch("injected_delay", ((1, 1), (1, 1)), &mut [ns.into()])
    }

    /// Ends the journal's step with this loss and starts the next.
    ///
    /// # Errors
    /// The driver's error.
    pub fn end_step(&self, journal: &Journal, loss: &CudaBuffer) -> Result<()> {
        let arguments = &mut [
            journal.step.address().into(),
            loss.address().into(),
            journal.checksum.address().into(),
            journal.losses.address().into(),
            journal.checksums.address().into(),
            journal.capacity.into(),
        ];
        self.launch("end_step", ((1, 1), (1, 1)), arguments)
    }

    /// Waits for all enqueued work and reads the entries of `steps`, at most the capacity of the ring.
    ///
    /// # Errors
    /// [`Error::Length`]; the driver's error.
    pub fn read_journal(&self, journal: &Journal, steps: std::ops::Range<u32>) -> Result<Vec<Entry>> {
        let (operation, operand, expected) = ("read_journal", "steps", journal.capacity as usize);
        if steps.len() > expected {
            return Err(Error::Length { operation, operand, expected, found: steps.len() });
        }
        let (mut losses, mut checksums) = (vec![0; journal.losses.bytes()], vec![0; journal.checksums.bytes()]);
        journal.losses.read(&self.compute, &mut losses)?;
        journal.checksums.read(&self.compute, &mut checksums)?;
        let (losses, checksums) = (losses.as_chunks::<4>().0, checksums.as_chunks::<8>().0);
        let entry = |step: u32| {
            let place = (step % journal.capacity) as usize;
            let (loss, checksum) = (losses.get(place)?, checksums.get(place)?);
            Some(Entry { loss: f32::from_ne_bytes(*loss), checksum: u64::from_ne_bytes(*checksum) })
        };
        Ok(steps.filter_map(entry).collect())
    }
}
