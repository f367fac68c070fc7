//! Signs that CUPTI does not record as it should: another profiler has taken it, or its cost grows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use recorder::report;

use super::capture::Capture;
use super::known_faults;
use super::layout::Version;

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
        let version = capture.library.version();
        if self.costs_more(version, since) {
            report(format_args!(
                "CUPTI {version} costs more the longer it records (NVIDIA mended that in CUDA 13.4 Update 1): a part of the \
                 program is recorded with --duration, --schedule or ctl"
            ));
        }
        if self.is_taken(capture.exchanged.load(Ordering::Relaxed), state.step()) {
            capture.lost.silences.fetch_add(1, Ordering::Relaxed);
            report(
                "CUPTI has handed over no record for half a minute of steps: another profiler in this process, such as \
                 torch.profiler, may have taken it. `ctl stop` and `ctl start` take it back",
            );
        }
    }

    /// Whether a CUPTI whose cost grows has recorded for long.
    fn costs_more(&mut self, version: Version, since: Duration) -> bool {
        self.recorded += since;
        let is_long = self.recorded >= known_faults::LONG && !version.costs_the_same();
        is_long && !std::mem::replace(&mut self.says_long, true)
    }

    /// Whether steps go on without records, by the buffers that CUPTI has asked for or handed over, and the step.
    fn is_taken(&mut self, exchanged: u64, step: i32) -> bool {
        let is_silent = exchanged == self.exchanged && exchanged > 0;
        let new_step = step != self.step;
        (self.exchanged, self.step) = (exchanged, step);
        if !is_silent {
            (self.silent_flushes, self.says_silent) = (0, false);
            return false;
        }
        self.silent_flushes += u32::from(new_step);
        self.silent_flushes >= SILENT_FLUSHES && !std::mem::replace(&mut self.says_silent, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_cost_that_grows_is_said_once_after_ten_minutes_of_recording() {
        let said = |version| {
            let mut watch = Watch::default();
            (1..2000).filter(|_| watch.costs_more(Version(version), SECOND)).count()
        };
        let mut watch = Watch::default();
        assert_eq!((1..2000).find(|_| watch.costs_more(Version(130_001), SECOND)), Some(600));
        assert_eq!((said(130_401), said(130_402)), (1, 0));
    }

    #[test]
    fn silence_is_said_once_and_only_while_steps_go_on() {
        let mut watch = Watch::default();
        let silent = |watch: &mut Watch, steps: i32| (0..steps).filter(|step| watch.is_taken(5, *step)).count();
        assert_eq!(silent(&mut watch, 29), 0);
        assert_eq!((0..100).filter(|_| watch.is_taken(5, 28)).count(), 0, "the program waits for something");
        assert_eq!(silent(&mut watch, 100), 1);
        assert!(!watch.is_taken(6, 0), "records came");
        assert_eq!(silent(&mut watch, 100), 1, "and stopped again");
    }
}
