//! The interface between a job and the training of a rank on the CPU.

use std::cell::RefCell;

use recorder::{Recorder, ThreadRecorder};
use trace::{BucketRow, CommRow};

use crate::Error;
use crate::engine::Engine;
use crate::op_observer::Observer;

/// Size of the gradients.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// Bytes.
    pub bytes: usize,
    /// Buckets that carry them.
    pub buckets: usize,
}

/// What a step has taught the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// Loss on this rank's batch, before the update.
    pub loss: f64,
    /// Mean of all ranks' losses.
    pub mean_loss: f64,
    /// Checksum of the parameters after the update, equal on all ranks.
    pub checksum: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// `None` if the job trains nothing.
    pub learned: Option<Learned>,
    /// Whether rank 0 wants all ranks to compare their clocks now.
    pub compares_clocks: bool,
}

/// A rank's part of a job on the CPU.
pub(crate) trait Training {
    /// The name of the back end in rank 0's report.
    fn name(&self) -> String;
    /// Number of buckets that the communicator of all ranks carries.
    fn buckets(&self) -> usize;
    /// The size of the gradients.
    fn gradients(&self) -> Gradients;
    /// The rows of the table `buckets`.
    fn bucket_rows(&self) -> Vec<BucketRow>;
    /// The rows of further communicators.
    fn comm_rows(&self) -> Vec<CommRow> {
        Vec::new()
    }
    /// Records all allocations of this rank with the present time, because they were made before recording was active.
    fn record_memory(&self, _recorder: &Recorder, _thread: &ThreadRecorder) {}
    /// Runs one step. On rank 0, `wants_comparison` becomes [`StepResult::compares_clocks`] of all ranks. Collective.
    ///
    /// # Errors
    /// [`Error::Diverged`] if the ranks' parameters differ afterwards; [`Error::WrongNumbers`]; the fabric's error.
    fn step(
        &mut self,
        observer: &impl Observer,
        engine: &RefCell<Engine>,
        thread: &ThreadRecorder,
        step: u32,
        wants_comparison: bool,
    ) -> Result<StepResult, Error>;
}
