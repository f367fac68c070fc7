//! Devices that compute less than half of the time.

use std::collections::BTreeMap;

use trace::{FindingRow, IdleCategory, Severity};

use crate::devices::{DeviceTime, devices_named, most_idle};
use crate::finding::{finding, place, saving};
use crate::registry::Context;
use model::analysis::Analysis;
use model::units::{ns, plural};

kind! {
    /// A device computes less than half of the time.
    ///
    /// The mean idle time of the named device in a step, without overhead. A rank that the verdict calls a cause is named only
    /// if there is no other, because its idle time is the saving of the verdict.
    IDLE_DEVICES: "idle-devices", by idle_devices
}

fn idle_devices(context: &Context<'_>) -> Option<FindingRow> {
    let (analysis, limits, devices) = (context.analysis, context.limits(), &context.devices);
    let slack: Vec<(&(i32, i64), &DeviceTime)> =
        devices.iter().filter(|(_, time)| time.compute_pct() < limits.device_busy_pct).collect();
    let (least, _) = slack.iter().min_by(|(_, a), (_, b)| a.compute_pct().total_cmp(&b.compute_pct()))?;
    let ((rank, device), time) = most_idle(analysis, slack.iter().copied())?;
    let keys: Vec<(i32, i64)> = slack.iter().map(|(key, _)| **key).collect();
    let (verb, most) = match keys.len() {
        1 => ("computes", "it is idle for".into()),
        _ => ("compute", format!("{} is idle most,", place(*rank, Some(*device)))),
    };
    let overhead_ns: i64 = slack.iter().map(|(_, time)| time.overhead_ns).sum();
    let overhead = if overhead_ns > 0 {
        format!("; {} of overhead of the profiler and the driver is not counted as idle", ns(overhead_ns))
    } else {
        String::new()
    };
    let found = finding(
        Severity::Warning,
        format!(
            "{} {verb} less than half of the time: {most} {} of a {} step",
            devices_named(&keys, devices),
            ns(time.own_idle_ns()),
            ns(time.wall_ns / time.steps.max(1))
        ),
        (
            "idle_breakdown",
            format!(
                "{} of {}; least: {} with {:.0} %; threshold {} % (TensorBoard plugin, GPU utilization){overhead}",
                keys.len(),
                plural(devices.len(), "device"),
                place(least.0, Some(least.1)),
                devices.get(*least).map_or(0.0, DeviceTime::compute_pct),
                limits.device_busy_pct
            ),
        ),
        idle_advice(analysis, *rank, *device),
    );
    Some(saving(time.own_idle_ns(), found))
}

/// The advice on the idle time of a device: it depends on the most frequent reason that its streams wait.
fn idle_advice(analysis: &Analysis, rank: i32, device: i64) -> &'static str {
    let rows = analysis.tables.idle_breakdown.iter().filter(|r| r.rank == rank && r.device_id == Some(device));
    let mut of_category: BTreeMap<&str, i64> = BTreeMap::new();
    rows.for_each(|row| *of_category.entry(&row.category).or_default() += row.idle_ns);
    let most = of_category.into_iter().max_by_key(|(_, ns)| *ns);
    match most.and_then(|(word, _)| IdleCategory::ALL.iter().find(|category| category.as_str() == word)) {
        Some(IdleCategory::HostWait) => {
            "its streams wait mostly for the host to launch work: profile the host's code, and launch fewer, larger kernels"
        }
        Some(IdleCategory::KernelWait) => {
            "its streams have mostly short gaps between kernels: fewer, larger kernels or CUDA graphs shorten them"
        }
        Some(IdleCategory::Other) => {
            "its streams wait mostly for other streams: look in the timeline for the stream that they wait for"
        }
        None => "look in the timeline at what its host does while the device idles",
    }
}
