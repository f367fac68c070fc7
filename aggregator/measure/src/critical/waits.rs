//! Host calls that waited for a device, and the device row that each call waited for.
//!
//! The calls are HTA's `BLOCKING_SYNC_CALLS`, the calls that free memory, which synchronise too, and their HIP and
//! driver counterparts. A `cuda_sync` row names the stream that a call waited for. Older traces have no such rows. Then
//! the wait is inferred: of the device rows that were launched before the call, it is the one that ended last before
//! the call returned. Inferred waits are marked.

use rustc_hash::FxHashMap;

use crate::critical::device::Device;
use model::{Events, Kind, NONE, RankData};

/// Synchronising calls, without their prefix `cuda`, `hip` or `cu`.
const SYNC_CALLS: [&str; 8] = [
    "DeviceSynchronize",
    "StreamSynchronize",
    "EventSynchronize",
    "CtxSynchronize",
    "EventQuery",
    "Free",
    "FreeHost",
    "HostFree",
];
/// Copy calls, without their prefix. A copy call may wait for its own copy.
const COPY_CALLS: [&str; 8] = [
    "Memcpy",
    "MemcpyAsync",
    "MemcpyWithStream",
    "MemcpyDtoH_v2",
    "MemcpyDtoHAsync_v2",
    "MemcpyHtoD_v2",
    "MemcpyHtoDAsync_v2",
    "Memcpy2DAsync",
];
/// CUPTI converts device times to host times with an error of some microseconds, so a row may seem to end after the
/// call that waited for it.
const SLACK_NS: i64 = 5_000;
/// The most rows that are searched for one that was launched before the call. Rows of other calls may end at the same
/// time.
const MAX_LOOK_BACK: usize = 64;

/// A call that waited for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// The time at which the call returned.
    pub(super) end_ns: i64,
    /// The device row that the call waited for.
    pub(super) row: u32,
    /// Whether the wait is inferred, because the call has no `cuda_sync` row.
    pub(super) inferred: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Sync,
    Copy,
}

fn call(name: &str) -> Option<Call> {
    let rest = ["cuda", "hip", "cu"].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let is_in = |names: &[&str]| names.contains(&rest);
    if is_in(&SYNC_CALLS) {
        Some(Call::Sync)
    } else if is_in(&COPY_CALLS) {
        Some(Call::Copy)
    } else {
        None
    }
}

/// The waits of every thread, ordered by end.
pub(super) fn waits(data: &RankData, device: &Device<'_>) -> FxHashMap<i64, Vec<Wait>> {
    let mut by_thread: FxHashMap<i64, Vec<Wait>> = FxHashMap::default();
    if device.is_empty() {
        return by_thread;
    }
    let calls: Vec<Option<Call>> = data.names.iter().map(|name| call(name)).collect();
    let syncs = sync_rows(&data.events);
    let events = &data.events;
    for row in 0..events.len() {
        let is_call = matches!(events.kind[row], Kind::Runtime | Kind::Driver);
        let Some(call) = calls[events.name[row] as usize].filter(|_| is_call) else { continue };
        if let Some(wait) = wait_of(data, device, &syncs, row, call) {
            by_thread.entry(events.thread[row]).or_default().push(wait);
        }
    }
    by_thread.values_mut().for_each(|waits| waits.sort_by_key(|wait| wait.end_ns));
    by_thread
}

/// The `cuda_sync` row of each correlation.
fn sync_rows(events: &Events) -> FxHashMap<i64, u32> {
    let rows = (0..events.len()).filter(|row| events.kind[*row] == Kind::Sync && events.correlation[*row] != NONE);
    rows.map(|row| (events.correlation[row], row as u32)).collect()
}

fn wait_of(data: &RankData, device: &Device<'_>, syncs: &FxHashMap<i64, u32>, row: usize, call: Call) -> Option<Wait> {
    let events = &data.events;
    let (start, end) = (events.ts_ns[row], events.end_ns(row));
    let until = end.saturating_add(SLACK_NS);
    if call == Call::Copy {
        let own = device.row_of(events.correlation[row])?;
        let waited = events.end_ns(own as usize) <= until;
        return waited.then_some(Wait { end_ns: end, row: own, inferred: true });
    }
    let sync = syncs.get(&events.correlation[row]).copied();
    // A `Stream Sync` row is on the stream that the call waited for. Rows of contexts and events match any stream.
    let stream = sync
        .filter(|sync| &*data.names[events.name[*sync as usize] as usize] == "Stream Sync")
        .map(|sync| (events.device[sync as usize], events.stream[sync as usize]));
    let was_awaited = |other: &u32| {
        let at = *other as usize;
        let on_stream = stream.is_none_or(|stream| stream == (events.device[at], events.stream[at]));
        let launched = device.launch_of(data, *other).map_or(events.ts_ns[at], |launch| events.ts_ns[launch as usize]);
        on_stream && launched < start
    };
    let found = device.ended(start, until).take(MAX_LOOK_BACK).find(was_awaited)?;
    Some(Wait { end_ns: end, row: found, inferred: sync.is_none() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_calls_are_recognised_with_any_prefix() {
        for name in ["cudaStreamSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "cudaFree"] {
            assert_eq!(call(name), Some(Call::Sync), "{name}");
        }
        for name in ["cudaMemcpyAsync", "hipMemcpyWithStream", "cuMemcpyDtoH_v2"] {
            assert_eq!(call(name), Some(Call::Copy), "{name}");
        }
        for name in ["cudaLaunchKernel", "Synchronize", "aten::copy_", "custom"] {
            assert_eq!(call(name), None, "{name}");
        }
    }
}
