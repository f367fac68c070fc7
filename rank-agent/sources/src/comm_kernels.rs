//! NCCL's kernels on their way from CUPTI, which times them, to the NCCL source, which bounds the GPU's clock by them.

use std::sync::OnceLock;

use crossbeam_queue::ArrayQueue;

/// The most kernels that wait: those of one second. Further kernels only refine the clock's mapping and are left out.
const CAPACITY: usize = 16_384;

/// A kernel of NCCL, in the recorder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommKernel {
    /// Id of the row of the launch.
    pub(crate) launch: i64,
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
}

/// A bounded queue from the CUPTI source to the NCCL source of one process. Start both sources with the same queue.
#[derive(Debug, Default)]
pub struct CommKernels(OnceLock<ArrayQueue<CommKernel>>);

impl CommKernels {
    /// Begins to take kernels. Until the NCCL source calls this, they are discarded.
    pub(crate) fn open(&self) {
        self.0.get_or_init(|| ArrayQueue::new(CAPACITY));
    }

    /// Adds a kernel, unless the queue is full or closed.
    pub(crate) fn push(&self, kernel: CommKernel) {
        if let Some(queue) = self.0.get() {
            // A full queue already holds enough kernels to map the clock.
            let _ = queue.push(kernel);
        }
    }

    /// Removes the oldest kernel.
    pub(crate) fn pop(&self) -> Option<CommKernel> {
        self.0.get()?.pop()
    }
}
