//! The critical path of each step: the chain of work that, had any of it been shorter, would have ended the step
//! earlier.
//!
//! It is found backwards, from the end of the step to its start: whatever is running, what did it wait for last?
//!
//! ```text
//! host     [op [launch a]] [op [launch b]]        [cudaStreamSynchronize······]──┐ python [op]
//! stream             [ a ]···[  b  ···························]                 │
//!
//! path     ───────host───────┘launch└──────────── b ──────────┘└host────────────────────────── end of the step
//! ```
//!
//! - A device row waited for the row before it on its stream, for a row of another stream, or for its launch: for the
//!   last of these. Its launch counts from the start of the launching call.
//! - A blocking call of the host waited for device work that ended while it ran ([`waits`]).
//! - A host thread that does nothing waited for another thread whose operator ended meanwhile (autograd's thread in a
//!   backward pass), or for a collective of the host that did; else it ran code that is not recorded: Python, mostly.
//!
//! So every nanosecond of the step is on the path once, and the parts sum to its length. HTA's critical path (HTA,
//! `critical_path_analysis.CPGraph`) has the same kinds of edges, but its path is the one of the largest weight in a
//! graph in which gaps between operators weigh nothing; and without `cuda_sync` rows its graph has no edge from a
//! device back to its host, so that all is the CPU's. Here such waits are inferred from what the calls are and when
//! device work ended, and counted in `inferred_waits`.

mod device;
mod host;
mod waits;
mod walk;

#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;
use trace::{CriticalPathRow, Text};

use crate::device::Launches;
use crate::intervals::Interval;
use crate::model::{Events, NO_STEP, RankData};
use crate::select::Scope;
use crate::steps::{StepWindow, host_windows};
use device::Device;
use host::Host;
use walk::Walk;

/// Names on the path that a row lists.
const TOP: usize = 5;

/// The critical path of every active step of a rank that is in `scope`. The window of a step is that of
/// `step_breakdown`, over all its devices.
pub(crate) fn critical_path(data: &RankData, launches: &Launches, scope: &Scope) -> Vec<CriticalPathRow> {
    if data.events.is_empty() || data.steps.is_empty() {
        return Vec::new();
    }
    let device = Device::of(data, launches);
    let host = Host::of(data, &device);
    let windows = scope.chosen(windows(data));
    let mut rows = Vec::with_capacity(windows.len());
    for StepWindow { step, window } in windows.into_iter().filter(|step| !step.window.is_empty()) {
        let walk = Walk::over(data, &host, &device, window);
        rows.push(row(data, step, window, &walk));
    }
    rows
}

/// The windows of the active steps: each ends with the last device work that was launched in it, and they do not
/// overlap.
fn windows(data: &RankData) -> Vec<StepWindow> {
    let last_end = last_device_end(&data.events);
    let mut previous_end = i64::MIN;
    host_windows(&data.steps)
        .into_iter()
        .map(|step| {
            let start = step.window.start_ns.max(previous_end);
            let device_end = last_end.get(&step.step).copied().unwrap_or(i64::MIN);
            let end = step.window.end_ns.max(device_end).max(start);
            previous_end = end;
            StepWindow { step: step.step, window: Interval::new(start, end) }
        })
        .collect()
}

fn last_device_end(events: &Events) -> FxHashMap<i32, i64> {
    let mut ends: FxHashMap<i32, i64> = FxHashMap::default();
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
        let step = events.step[row];
        if step >= 0 && step != NO_STEP {
            let end = ends.entry(step).or_insert(i64::MIN);
            *end = (*end).max(events.end_ns(row));
        }
    }
    ends
}

/// Where the time of a path went, in ns. They sum to the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) cpu: i64,
    /// Of `cpu`: outside any operator.
    pub(crate) host_gap: i64,
    pub(crate) data_loading: i64,
    pub(crate) gpu_compute: i64,
    pub(crate) gpu_memory: i64,
    pub(crate) communication: i64,
    pub(crate) launch: i64,
    pub(crate) kernel_gap: i64,
    pub(crate) other: i64,
}

impl Parts {
    /// What the path is bound by: the largest of these.
    fn bound_by(&self) -> &'static str {
        let parts = [
            ("cpu", self.cpu),
            ("data_loading", self.data_loading),
            ("gpu", self.gpu_compute + self.gpu_memory + self.kernel_gap),
            ("communication", self.communication),
            ("launch", self.launch),
            ("other", self.other),
        ];
        // The first of equals.
        parts.iter().rev().max_by_key(|(_, ns)| *ns).map_or("other", |(word, _)| word)
    }
}

fn row(data: &RankData, step: i32, window: Interval, walk: &Walk<'_>) -> CriticalPathRow {
    let parts = walk.parts;
    CriticalPathRow {
        rank: data.info.rank,
        step,
        wall_ns: window.len_ns(),
        bound_by: parts.bound_by().into(),
        cpu_ns: parts.cpu,
        host_gap_ns: parts.host_gap,
        data_loading_ns: parts.data_loading,
        gpu_compute_ns: parts.gpu_compute,
        gpu_memory_ns: parts.gpu_memory,
        communication_ns: parts.communication,
        launch_ns: parts.launch,
        kernel_gap_ns: parts.kernel_gap,
        other_ns: parts.other,
        device_rows: walk.device_rows,
        inferred_waits: walk.inferred_waits,
        longest: longest(&walk.by_name, &data.names),
    }
}

/// The names with the most time on the path, `name=ns`, separated by `; `.
fn longest(by_name: &FxHashMap<u32, i64>, names: &[Text]) -> Text {
    let mut sums: Vec<(i64, &Text)> =
        by_name.iter().filter(|(_, ns)| **ns > 0).map(|(name, ns)| (*ns, &names[*name as usize])).collect();
    sums.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    let texts: Vec<String> = sums.iter().take(TOP).map(|(ns, name)| format!("{name}={ns}")).collect();
    texts.join("; ").into()
}
