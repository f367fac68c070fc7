//! Pairs kernels that CUPTI timed with the GPU's stamps of their channels, by the launch.
//!
//! ```text
//!  CUPTI, in the host's clock      [ncclDevKernel…             ]
//!  globaltimer                       [channel 0              ]
//!                                     [channel 1            ]
//! ```
//!
//! No channel begins before its kernel or ends after it, so that every pair bounds the GPU's clock from both sides. A
//! kernel may arrive one flush of CUPTI after its channels. A pair therefore serves the stamps of the next second, and at
//! the end all stamps.

use super::bounded_map::BoundedMap;
use crate::comm_kernels::CommKernel;

/// GPU stamps of one launch: start of the first channel, end of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// Handle of the communicator.
    pub(super) comm: u64,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
}

/// Kernels and stamps by the row of their launch.
#[derive(Debug)]
pub(super) struct KernelPairs {
    kernels: BoundedMap<i64, CommKernel>,
    stamps: BoundedMap<i64, Stamps>,
}

impl KernelPairs {
    pub(super) fn new() -> Self {
        Self { kernels: BoundedMap::new(), stamps: BoundedMap::new() }
    }

    /// Adds a kernel. Returns the stamps of its channels, if they are known.
    pub(super) fn kernel(&mut self, kernel: CommKernel) -> Option<Stamps> {
        // With several kernels in a launch, the channels of each are unknown.
        if self.kernels.get(kernel.launch).is_some_and(|known| *known != kernel) {
            self.kernels.insert(kernel.launch, CommKernel { end_ns: i64::MIN, ..kernel });
            return None;
        }
        self.kernels.insert(kernel.launch, kernel);
        self.stamps.get(kernel.launch).copied()
    }

    /// Adds a channel that has ended. Returns its kernel, if it is known.
    pub(super) fn channel(&mut self, launch: i64, channel: Stamps) -> Option<CommKernel> {
        let known = self.stamps.get(launch).copied().filter(|known| known.comm == channel.comm).unwrap_or(channel);
        let (start_ns, end_ns) = (known.start_ns.min(channel.start_ns), known.end_ns.max(channel.end_ns));
        self.stamps.insert(launch, Stamps { start_ns, end_ns, ..channel });
        self.kernels.get(launch).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn kernel(launch: i64, start_ns: i64, end_ns: i64) -> CommKernel {
        CommKernel { launch, start_ns, end_ns }
    }

    const fn stamps(start_ns: i64, end_ns: i64) -> Stamps {
        Stamps { comm: 1, start_ns, end_ns }
    }

    #[test]
    fn kernel_and_channels_pair_in_any_order() {
        let mut pairs = KernelPairs::new();
        assert_eq!(pairs.kernel(kernel(7, 100, 200)), None);
        assert_eq!(pairs.channel(7, stamps(1105, 1190)), Some(kernel(7, 100, 200)));
        assert_eq!(pairs.channel(8, stamps(1305, 1380)), None);
        assert_eq!(pairs.channel(8, stamps(1303, 1370)), None);
        assert_eq!(pairs.kernel(kernel(8, 300, 400)), Some(stamps(1303, 1380)), "both channels");
    }

    #[test]
    fn several_kernels_of_one_launch_give_no_pair() {
        let mut pairs = KernelPairs::new();
        assert_eq!(pairs.kernel(kernel(7, 100, 200)), None);
        assert_eq!(pairs.channel(7, stamps(1105, 1190)), Some(kernel(7, 100, 200)));
        assert_eq!(pairs.kernel(kernel(7, 210, 300)), None);
        let found = pairs.channel(7, stamps(1211, 1290));
        assert!(found.is_some_and(|kernel| kernel.end_ns < kernel.start_ns), "{found:?}");
    }
}
