//! Kernels that CUPTI timed, and the GPU's stamps of the channels inside them, paired by their launch.
//!
//! ```text
//!  CUPTI, in the host's clock      [ncclDevKernel…             ]
//!  globaltimer                       [channel 0              ]
//!                                     [channel 1            ]
//! ```
//!
//! No channel begins before its kernel or ends after it, so that every pair bounds the GPU's clock from both sides.
//! Kernels come up to a flush of CUPTI after their channels: a pair serves the stamps of the next second, and at the end
//! all.

use super::recent::Recent;
use crate::device::CommKernel;

/// From the first channel's start to the last one's end in one launch, by the GPU's stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// The communicator's handle.
    pub(super) comm: u64,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
}

/// What waits for its counterpart, by the launch's row.
#[derive(Debug)]
pub(super) struct Fit {
    kernels: Recent<i64, CommKernel>,
    stamps: Recent<i64, Stamps>,
}

impl Fit {
    pub(super) fn new() -> Self {
        Self { kernels: Recent::new(), stamps: Recent::new() }
    }

    /// A kernel has come. Returns the stamps inside it, if they are known.
    pub(super) fn kernel(&mut self, kernel: CommKernel) -> Option<Stamps> {
        // More than one kernel of a launch says of neither which channels were in it.
        if self.kernels.get(kernel.launch).is_some_and(|known| *known != kernel) {
            self.kernels.insert(kernel.launch, CommKernel { end_ns: i64::MIN, ..kernel });
            return None;
        }
        self.kernels.insert(kernel.launch, kernel);
        self.stamps.get(kernel.launch).copied()
    }

    /// A channel of a launch has ended. Returns its kernel, if that is known.
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
    fn whatever_comes_later_finds_the_other() {
        let mut fit = Fit::new();
        assert_eq!(fit.kernel(kernel(7, 100, 200)), None);
        assert_eq!(fit.channel(7, stamps(1105, 1190)), Some(kernel(7, 100, 200)));
        assert_eq!(fit.channel(8, stamps(1305, 1380)), None);
        assert_eq!(fit.channel(8, stamps(1303, 1370)), None);
        assert_eq!(fit.kernel(kernel(8, 300, 400)), Some(stamps(1303, 1380)), "both channels");
    }

    #[test]
    fn two_kernels_of_one_launch_are_none() {
        let mut fit = Fit::new();
        assert_eq!(fit.kernel(kernel(7, 100, 200)), None);
        assert_eq!(fit.channel(7, stamps(1105, 1190)), Some(kernel(7, 100, 200)));
        assert_eq!(fit.kernel(kernel(7, 210, 300)), None);
        let found = fit.channel(7, stamps(1211, 1290));
        assert!(found.is_some_and(|kernel| kernel.end_ns < kernel.start_ns), "{found:?}");
    }
}
