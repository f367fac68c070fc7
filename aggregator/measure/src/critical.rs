//! The per-rank critical path of each step: the chain of work that determines the length of the step. If any work on it had been
//! shorter, the step would have ended earlier.
//!
//! The walk goes backwards, from the end of the step to its start. At each row it asks for the work that this row
//! waited for last, and continues there.
//!
//! ```text
//! host     [op [launch a]] [op [launch b]]        [cudaStreamSynchronize······]──┐ python [op]
//! stream             [ a ]···[  b  ···························]                 │
//!
//! path     ───────host───────┘launch└──────────── b ──────────┘└host────────────────────────── end of the step
//! ```
//!
//! - A device row waits for the last of three: the previous row on its stream, a row on another stream, or its launch.
//!   The launch counts from the start of the launching call.
//! - A blocking call of the host waits for device work that ended during the call ([`waits`]).
//! - An idle host thread waits for another thread whose operator ended during the pause (such as autograd's thread in a
//!   backward pass), or for a host collective that ended during it. Otherwise the thread ran code that is not recorded,
//!   mostly Python.
//!
//! Every nanosecond of the step is on the path exactly once, so the parts sum to its length. HTA's critical path
//! (`critical_path_analysis.CPGraph`) has the same kinds of edges, but with two differences. HTA takes the path of the
//! largest weight in a graph where gaps between operators weigh nothing. And without `cuda_sync` rows, HTA's graph has
//! no edge from a device back to its host, so the whole path is on the CPU. This module infers such waits from the
//! kinds of the calls and the ends of device work, and counts them in `inferred_waits`.

mod device;
mod host;
mod waits;
mod walk;

#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;
use trace::name_rules::is_step;
use trace::{CriticalPathRow, Text};

use device::Device;
use host::Host;
use model::RankData;
use model::intervals::Interval;
use model::scope::Scope;
use model::steps::{StepWindow, rank_windows};
use trace::rank::Launches;
use walk::Walk;

/// The most names on the path that a row lists.
const TOP: usize = 5;

/// The per-rank critical path of every active step of a rank in `scope`. A step has the same window as in `step_breakdown`, over
/// all devices of the rank.
pub(crate) fn critical_path(data: &RankData, launches: &Launches, scope: &Scope) -> Vec<CriticalPathRow> {
    if data.events.is_empty() || data.outline.steps.is_empty() {
        return Vec::new();
    }
    let device = Device::of(data, launches);
    let host = Host::of(data, &device);
    let mut steps = scope.chosen(rank_windows(data));
    steps.retain(|step| !step.window.is_empty());
    let windows: Vec<Interval> = steps.iter().map(|step| step.window).collect();
    let main_threads = host.main_threads(data, &windows);
    let path = |(StepWindow { step, window }, main_thread): (StepWindow, Option<usize>)| {
        row(data, step, window, &Walk::over(data, &host, &device, (window, main_thread)))
    };
    steps.into_iter().zip(main_threads).map(path).collect()
}

fn row(data: &RankData, step: i32, window: Interval, walk: &Walk<'_>) -> CriticalPathRow {
    let parts = walk.parts;
    CriticalPathRow {
        rank: data.outline.info.rank,
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

/// The names with the most time on the path, `name=ns`, separated by `; `. The range of a step is left out, because
/// `host_gap_ns` already says how long nothing else ran.
fn longest(by_name: &FxHashMap<u32, i64>, names: &[Text]) -> Text {
    let sums = by_name.iter().filter(|(_, ns)| **ns > 0).map(|(name, ns)| (*ns, &names[*name as usize]));
    let mut sums: Vec<(i64, &Text)> = sums.filter(|(_, name)| !is_step(name)).collect();
    sums.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    let texts: Vec<String> = sums.iter().take(TOP).map(|(ns, name)| format!("{name}={ns}")).collect();
    texts.join("; ").into()
}
