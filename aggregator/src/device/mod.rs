//! What devices did, and what the host did to keep them busy: HTA's analyses and the TensorBoard plugin's, one module
//! each.

mod bandwidth;
mod describe;
mod kernel_types;
mod launch_stats;
mod launches;
mod loading;
mod queue;
mod sequences;
mod stalls;
#[cfg(test)]
mod tests;
mod utilization;

use trace::{
    DataLoadingRow, GpuUtilizationRow, KernelBreakdownRow, KernelSequenceRow, LaunchStatsRow, MemcpyBandwidthRow,
    QueueLengthRow, SyncStallRow,
};

use regex::Regex;

pub use kernel_types::work_type;
pub use launch_stats::{LAUNCH_DELAY_CUTOFF_NS, RUNTIME_CUTOFF_NS};
pub(crate) use launches::RowsByCorrelation;
pub use launches::{Launch, Launches};
pub use queue::FULL_QUEUE_LENGTH;

use crate::breakdown::{Activity, Parts};
use crate::intervals::Coverage;
use crate::model::{Kind, RankData};
use crate::select::Scope;
use crate::steps::recorded;

/// The tables of one rank about its devices. Each grows with names, streams and steps, not with rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceTables {
    /// Which types of work ran at the same time.
    pub kernel_breakdown: Vec<KernelBreakdownRow>,
    /// From launch to kernel.
    pub launch_stats: Vec<LaunchStatsRow>,
    /// Work that waited on streams.
    pub queue_length: Vec<QueueLengthRow>,
    /// Copies and fills.
    pub memcpy_bandwidth: Vec<MemcpyBandwidthRow>,
    /// How full the devices were.
    pub gpu_utilization: Vec<GpuUtilizationRow>,
    /// Sequences of kernels that repeat.
    pub kernel_sequences: Vec<KernelSequenceRow>,
    /// The host waiting for devices.
    pub sync_stalls: Vec<SyncStallRow>,
    /// Steps waiting for input.
    pub data_loading: Vec<DataLoadingRow>,
}

/// A rank, and what of it is looked at.
pub(crate) struct View<'a> {
    pub(crate) data: &'a RankData,
    /// Which rows.
    pub(crate) keep: &'a (dyn Fn(usize) -> bool + Sync),
    /// Which time and steps.
    pub(crate) scope: &'a Scope,
    /// Which host call launched what.
    pub(crate) launches: &'a Launches,
    /// Which operators sequences of kernels are looked for in; `None`: the outermost.
    pub(crate) sequences_of: Option<&'a Regex>,
    /// What each device did, in steps that were not chosen, too.
    pub(crate) parts: &'a [(Activity, Parts)],
    /// As `parts`, in the chosen steps alone.
    pub(crate) chosen: &'a [(Activity, Parts)],
}

/// All tables of a rank.
pub(crate) fn device_tables(view: &View<'_>) -> DeviceTables {
    let busy = any_device_busy(view.parts);
    let launched = view.launches.joined(&view.data.events, view.keep);
    let operators = outermost_operators(view, busy.is_some());
    let recorded_ns = recorded(view.data).map_or(0, |all| all.len_ns());
    // The utilization takes about as long as all others.
    let (gpu_utilization, others) = rayon::join(
        || utilization::gpu_utilization(view),
        || DeviceTables {
            kernel_breakdown: kernel_types::kernel_breakdown(view.data.info.rank, view.chosen),
            launch_stats: launch_stats::launch_stats(view.data, &launched),
            queue_length: queue::queue_length(view.data, &launched, recorded_ns),
            memcpy_bandwidth: bandwidth::memcpy_bandwidth(view.data, view.keep),
            kernel_sequences: sequences::kernel_sequences(view, &launched, &operators),
            sync_stalls: stalls::sync_stalls(view, busy.as_ref(), &operators),
            data_loading: loading::data_loading(view, busy.as_ref()),
            ..DeviceTables::default()
        },
    );
    DeviceTables { gpu_utilization, ..others }
}

/// The outermost operator around each row; empty without devices.
fn outermost_operators(view: &View<'_>, has_devices: bool) -> Vec<u32> {
    let events = &view.data.events;
    if has_devices { launches::outermost(events, &|row| events.kind[row] == Kind::CpuOp) } else { Vec::new() }
}

/// When any device of the rank worked; `None` without devices.
fn any_device_busy(parts: &[(Activity, Parts)]) -> Option<Coverage> {
    let devices = parts.iter().filter(|(activity, _)| activity.device.is_some());
    devices.map(|(_, parts)| parts.busy.set().clone()).reduce(|a, b| a.union(&b)).map(Coverage::new)
}
