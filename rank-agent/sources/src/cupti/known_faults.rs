//! Faults of CUPTI that its release notes name, and what the session does instead.
//!
//! | mended in | fault | the session before |
//! |---|---|---|
//! | 13.0 U1 | a deadlock while kernels are disabled, a crash in `cuptiActivityFlushAll` | disables nothing, and flushes only where a context or the recording ends |
//! | 13.1 U1 | wrong correlation ids of `cudaGraphLaunch` in each session after the first | does not end its first session where the program says that it uses graphs; else leaves the ids out |
//! | 13.4 U1 | CPU time grows without bound in long recordings | says so after ten minutes |
//!
//! Sources: docs.nvidia.com/cupti/release-notes, and NVIDIA's announcements of CUPTI 13.0 and 13.4
//! (forums.developer.nvidia.com/t/341320, …/383026).

use std::time::Duration;

use super::layout::Version;

/// First version that can disable kernels and flush at any time.
const SWITCHES_SAFELY: Version = Version(130_001);
/// First version with right correlation ids of graphs in every session.
const JOINS_GRAPHS: Version = Version(130_101);
/// First version whose cost stays the same.
const COSTS_THE_SAME: Version = Version(130_402);
/// Recording time after which the growing cost is said.
pub(super) const LONG: Duration = Duration::from_secs(600);

impl Version {
    /// Whether activity kinds may be disabled while the program runs, and records be asked for at any time.
    pub(super) fn switches_safely(self) -> bool {
        self >= SWITCHES_SAFELY
    }

    /// Whether launches of graphs join their kernels after a pause.
    pub(super) fn joins_graphs_again(self) -> bool {
        self >= JOINS_GRAPHS
    }

    /// Whether a long recording costs as much a second as a short one.
    pub(super) fn costs_the_same(self) -> bool {
        self >= COSTS_THE_SAME
    }
}
