//! The activity kinds that CUPTI records for this session.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use recorder::{lock, report};

use super::enum_names::LAUNCH_CALLS;
use super::ffi::Library;
use super::settings::Settings;
use crate::error::Error;

/// `CUpti_ActivityKind`.
const DRIVER: u32 = 4;
const RUNTIME: u32 = 5;
const CONCURRENT_KERNEL: u32 = 10;
/// Copies, memsets, copies between devices, external correlation ids, devices, contexts, streams.
const ALWAYS: [u32; 7] = [1, 2, 22, 39, 8, 9, 37];

/// The kinds to enable while the session runs.
#[derive(Debug, Default)]
pub(super) struct Activities {
    kinds: Mutex<BTreeSet<u32>>,
    /// Whether CUPTI enables driver calls one by one.
    single_driver_calls: AtomicBool,
}

impl Activities {
    /// Enables the kinds of `settings`. Kernels are required; if CUPTI refuses another kind, its rows are missing, and
    /// one line on stderr says so.
    pub(super) fn enable_all(&self, library: &Library, settings: &Settings) -> Result<(), Error> {
        let Settings { runtime, driver, synchronization, overhead, memory, nvtx, .. } = *settings;
        self.enable(library, CONCURRENT_KERNEL)?;
        let chosen = [(runtime, RUNTIME), (synchronization, 38), (overhead, 17), (memory, 49), (nvtx, 12), (nvtx, 13)];
        let chosen = chosen.into_iter().filter(|(wanted, _)| *wanted).map(|(_, kind)| kind);
        for kind in ALWAYS.into_iter().chain(chosen) {
            if let Err(error) = self.enable(library, kind) {
                report(format_args!("{error}: activity kind {kind} is not recorded"));
            }
        }
        if driver {
            self.enable_driver_calls(library);
        }
        Ok(())
    }

    fn enable(&self, library: &Library, kind: u32) -> Result<(), Error> {
        library.enable(kind)?;
        lock(&self.kinds).insert(kind);
        Ok(())
    }

    /// Enables the launches only, if CUPTI can select calls; otherwise all driver calls, of which the worker keeps the
    /// launches.
    fn enable_driver_calls(&self, library: &Library) {
        let single = library.can_choose_driver_calls() && set_driver_calls(library, true);
        self.single_driver_calls.store(single, Ordering::Relaxed);
        if !single && let Err(error) = self.enable(library, DRIVER) {
            report(format_args!("{error}: calls of the driver are not recorded"));
        }
    }

    /// Whether CUPTI records calls, which device work then waits for.
    pub(super) fn has_calls(&self) -> bool {
        let kinds = lock(&self.kinds);
        kinds.contains(&RUNTIME) || kinds.contains(&DRIVER) || self.single_driver_calls.load(Ordering::Relaxed)
    }

    /// Enables the kinds again after [`disable`](Self::disable).
    pub(super) fn resume(&self, library: &Library) {
        for kind in lock(&self.kinds).iter() {
            if let Err(error) = library.enable(*kind) {
                report(format_args!("{error}: activity kind {kind} is no longer recorded"));
            }
        }
        if self.single_driver_calls.load(Ordering::Relaxed) && !set_driver_calls(library, true) {
            report("calls of the driver are no longer recorded");
        }
    }

    /// Disables all kinds.
    pub(super) fn disable(&self, library: &Library) {
        for kind in lock(&self.kinds).iter() {
            // A kind that CUPTI goes on recording costs the program time, but no row: its launches are inactive.
            let _ = library.disable(*kind);
        }
        if self.single_driver_calls.load(Ordering::Relaxed) {
            set_driver_calls(library, false);
        }
    }
}

fn set_driver_calls(library: &Library, enable: bool) -> bool {
    LAUNCH_CALLS.iter().all(|id| library.enable_driver_call(*id, enable).is_ok())
}
