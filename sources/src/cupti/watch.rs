//! Signs that CUPTI does not record as it should: another profiler has taken it, or its cost grows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use recorder::report;

use super::capture::Capture;
use super::known_faults;

/// Flushes without a buffer, each with a new step, after which CUPTI counts as taken. Fewer may be normal: a device that is always
/// behind returns a buffer when it is full.
const SILENT_FLUSHES: u32 = 30;

/// Watches a session from flush to flush.
#[derive(Debug, Default)]
pub(super) struct Watch {
    exchanged: u64,
    step: i32,
    silent_flushes: u32,
    says_silent: bool,
    recorded: Duration,
    says_long: bool,
}

impl Watch {
    /// Looks once a flush, `since` the last one. Each sign is said once.
    pub(super) fn look(&mut self, capture: &Capture, since: Duration) {
        let state = capture.recorder.shared().state();
        if !state.is_active() {
            return;
        }
        self.recorded += since;
        if self.recorded >= known_faults::LONG && !capture.library.version().costs_the_same() && !self.says_long {
            self.says_long = true;
            report(format_args!(
                "CUPTI {} costs more the longer it records (NVIDIA mended that in CUDA 13.4 Update 1): a part of the program \
                 is recorded with --duration, --schedule or ctl",
                capture.library.version()
            ));
        }
        let exchanged = capture.exchanged.load(Ordering::Relaxed);
        let is_silent = exchanged == self.exchanged && exchanged > 0;
        let new_step = state.step() != self.step;
        (self.exchanged, self.step) = (exchanged, state.step());
        if !is_silent {
            (self.silent_flushes, self.says_silent) = (0, false);
            return;
        }
        self.silent_flushes += u32::from(new_step);
        if self.silent_flushes >= SILENT_FLUSHES && !self.says_silent {
            self.says_silent = true;
            capture.lost.silences.fetch_add(1, Ordering::Relaxed);
            report(
                "CUPTI has handed over no record for half a minute of steps: another profiler in this process, such as \
                 torch.profiler, may have taken it. `ctl stop` and `ctl start` take it back",
            );
        }
    }
}
