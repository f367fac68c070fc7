//! The work of devices, and the work of the host that keeps them busy. Each module holds one analysis of HTA or of the
//! TensorBoard plugin.

mod bandwidth;
mod idle_causes;
mod input_gaps;
mod kernel_types;
mod launch_stats;
mod loading;
mod metrics;
mod queue;
mod sequences;
mod stalls;
#[cfg(test)]
mod tests;
mod utilization;
mod view;

use trace::Tables;
use trace::name_rules::is_step;

pub use kernel_types::work_type;
pub use launch_stats::{LAUNCH_DELAY_CUTOFF_NS, RUNTIME_CUTOFF_NS};
pub use queue::FULL_QUEUE_LENGTH;
pub(crate) use view::View;

use crate::breakdown::{Activity, Parts};
use model::Kind;
use model::intervals::{Coverage, IntervalSet};
use model::steps::recorded;

/// Fills the tables of one rank about its devices. Their size depends on the numbers of names, streams and steps, not of
/// rows.
pub(crate) fn device_tables(view: &View<'_>) -> Tables {
    let busy = any_device_busy(view.parts);
    let launched = view.launches.joined(&view.data.events, view.keep);
    let places = launch_stats::places(&launched, view.data.events.len());
    let operators = outermost_operators(view, busy.is_some());
    let recorded: IntervalSet = recorded(view.data).into_iter().collect();
    // The utilization takes about as long as all other tables, so two threads share the work evenly.
    let (gpu_utilization, others) = rayon::join(
        || utilization::gpu_utilization(view),
        || Tables {
            kernel_breakdown: kernel_types::kernel_breakdown(view.data.outline.info.rank, view.chosen),
            launch_stats: launch_stats::launch_stats(view.data, &launched, &places),
            queue_length: queue::queue_length(view.data, &launched, &recorded),
            memcpy_bandwidth: bandwidth::memcpy_bandwidth(view.data, view.keep),
            kernel_sequences: sequences::kernel_sequences(view, &launched, &operators),
            idle_causes: idle_causes::idle_causes(view, busy.as_ref(), &operators),
            sync_stalls: stalls::sync_stalls(view, busy.as_ref(), &operators),
            data_loading: loading::data_loading(view, busy.as_ref()),
            input_gaps: input_gaps::input_gaps(view, busy.as_ref(), &launched),
            gpu_metrics: metrics::gpu_metrics(view),
            ..Tables::default()
        },
    );
    Tables { gpu_utilization, ..others }
}

/// The outermost operator around each row; empty without devices. Older traces have steps as operators, which are none.
fn outermost_operators(view: &View<'_>, has_devices: bool) -> Vec<u32> {
    let events = &view.data.events;
    let steps: Vec<bool> = view.data.names.iter().map(|name| is_step(name)).collect();
    let is_operator = |row: usize| events.kind[row] == Kind::CpuOp && !steps[events.name[row] as usize];
    if has_devices { trace::rank::outermost(events, &is_operator) } else { Vec::new() }
}

/// The time in which any device of the rank worked; `None` without devices.
fn any_device_busy(parts: &[(Activity, Parts)]) -> Option<Coverage> {
    let mut devices = parts.iter().filter(|(activity, _)| activity.device.is_some()).peekable();
    devices.peek()?;
    Some(Coverage::new(IntervalSet::union_of(devices.map(|(_, parts)| parts.busy.set()))))
}
