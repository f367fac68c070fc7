//! The activity kinds that CUPTI records for this session.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use recorder::{lock, report};

use super::enum_names::{LAUNCH_CALLS, QUIET_CALLS};
use super::ffi::Library;
use super::settings::Settings;
use crate::error::Error;

/// `CUpti_ActivityKind`.
const DRIVER: u32 = 4;
const RUNTIME: u32 = 5;
const CONCURRENT_KERNEL: u32 = 10;
/// Devices and contexts.
const PLACES: [u32; 2] = [8, 9];
/// Copies, memsets, copies between devices, external correlation ids, streams.
const ALWAYS: [u32; 5] = [1, 2, 22, 39, 37];
/// The driver call that stays enabled for the whole session: `cuGraphLaunch`, which programs call rarely. CUPTI records
/// driver calls in a context only if at least one of them was enabled when the context was made. Enabling them later
/// returns success and has no effect, until a context is made. Measured with CUPTI 13.0 U1 on an H200.
const STAYS_ENABLED: u32 = 514;

/// The kinds to enable while the session runs.
#[derive(Debug, Default)]
pub(super) struct Activities {
    kinds: Mutex<BTreeSet<u32>>,
    /// Whether CUPTI enables driver calls one by one.
    single_driver_calls: AtomicBool,
    /// Whether they are enabled now.
    enabled: AtomicBool,
    /// How often they were enabled.
    sessions: AtomicU64,
}

impl Activities {
    /// Enables what must be enabled before the program makes a context, and stays so in pauses: the records of devices
    /// and contexts, which CUPTI reports once, and one driver call.
    pub(super) fn prepare(library: &Library, settings: &Settings) {
        for kind in PLACES {
            if let Err(error) = library.enable(kind) {
                report(format_args!("{error}: activity kind {kind} is not recorded"));
            }
        }
        if settings.driver && library.can_choose_driver_calls() {
            // If CUPTI refuses it, `enable_driver_calls` enables all driver calls instead.
            let _ = library.enable_driver_call(STAYS_ENABLED, true);
        }
    }

    /// Enables the kinds of `settings` at the first call, and the same kinds again after [`disable`](Self::disable).
    /// Kernels are required; if CUPTI refuses another kind, its rows are missing, and one line on stderr says so.
    pub(super) fn enable_all(&self, library: &Library, settings: &Settings) -> Result<(), Error> {
        let was_enabled = self.enabled.swap(true, Ordering::AcqRel);
        if !was_enabled && self.sessions.fetch_add(1, Ordering::AcqRel) == 0 {
            return self.choose(library, settings).inspect_err(|_| self.enabled.store(false, Ordering::Release));
        }
        // Even if they are enabled: another profiler may have disabled them.
        self.enable_again(library);
        Ok(())
    }

    fn choose(&self, library: &Library, settings: &Settings) -> Result<(), Error> {
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
        enable_kind(library, kind)?;
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

    /// Whether the kinds were enabled again after they were disabled.
    pub(super) fn are_enabled_again(&self) -> bool {
        self.sessions.load(Ordering::Acquire) > 1
    }

    fn enable_again(&self, library: &Library) {
        for kind in lock(&self.kinds).iter() {
            if let Err(error) = enable_kind(library, *kind) {
                report(format_args!("{error}: activity kind {kind} is no longer recorded"));
            }
        }
        if self.single_driver_calls.load(Ordering::Relaxed) && !set_driver_calls(library, true) {
            report("calls of the driver are no longer recorded");
        }
    }

    /// Disables all that [`enable_all`](Self::enable_all) enabled.
    pub(super) fn disable(&self, library: &Library) {
        if !self.enabled.swap(false, Ordering::AcqRel) {
            return;
        }
        for kind in lock(&self.kinds).iter() {
            // A kind that CUPTI goes on recording costs the program time, but no row: its launches are inactive.
            let _ = library.disable(*kind);
        }
        if self.single_driver_calls.load(Ordering::Relaxed) {
            set_driver_calls(library, false);
        }
    }

    /// Disables them at the end of the session, and the driver call that was enabled in pauses.
    pub(super) fn end(&self, library: &Library) {
        self.disable(library);
        let _ = library.enable_driver_call(STAYS_ENABLED, false);
    }
}

fn enable_kind(library: &Library, kind: u32) -> Result<(), Error> {
    library.enable(kind)?;
    if kind == RUNTIME {
        QUIET_CALLS.iter().for_each(|id| library.leave_out_runtime_call(*id));
    }
    Ok(())
}

/// All but the call that stays enabled.
fn set_driver_calls(library: &Library, enable: bool) -> bool {
    let calls = LAUNCH_CALLS.iter().filter(|id| **id != STAYS_ENABLED);
    calls.copied().all(|id| library.enable_driver_call(id, enable).is_ok())
}
