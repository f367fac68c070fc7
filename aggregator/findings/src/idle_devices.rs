//! Devices that are idle for more than half of the time.

use std::collections::BTreeMap;

use trace::{IdleCategory, Severity};

use crate::devices::{DeviceTime, devices_named, most_idle};
use crate::finding::{Found, finding, place, saving};
use crate::registry::Context;
use model::analysis::Analysis;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};
use model::units::{ns, plural};

kind! {
    /// A device is idle for more than half of the time.
    ///
    /// The mean idle time of the named device in a step, without overhead. A rank that the verdict calls a cause is named only
    /// if there is no other, because its idle time is the saving of the verdict.
    IDLE_DEVICES: "idle-devices", by idle_devices
}

fn idle_devices(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits, devices) = (context.analysis, context.limits(), &context.devices);
    let slack: Vec<(&(i32, i64), &DeviceTime)> =
        devices.iter().filter(|(_, time)| time.idle_pct() > 100.0 - limits.device_busy_pct).collect();
    let ((rank, device), time) = most_idle(analysis, slack.iter().copied())?;
    let keys: Vec<(i32, i64)> = slack.iter().map(|(key, _)| **key).collect();
    let (verb, most) = match keys.len() {
        1 => ("is", String::new()),
        _ => ("are", format!("{} most, for ", place(*rank, Some(*device)))),
    };
    let overhead_ns: i64 = slack.iter().map(|(_, time)| time.overhead_ns).sum();
    let overhead = if overhead_ns > 0 {
        format!("; {} of overhead of the profiler and the driver is not counted as idle", ns(overhead_ns))
    } else {
        String::new()
    };
    // A device without rows has no gaps between them.
    let gaps = &analysis.tables.idle_breakdown;
    let has_gaps = gaps.iter().any(|row| row.rank == *rank && row.device_id == Some(*device));
    let table = if has_gaps { "idle_breakdown" } else { "step_breakdown" };
    let claim = Claim::new(Quantity::Idle, Relation::Exceeds, table).of(*rank, Some(*device));
    let (advice, suggestion) = idle_advice(analysis, *rank, *device);
    let found = finding(
        claim.value(Value::Ns(time.own_idle_ns())).explains(Part::Idle, time.own_idle_ns()).advises(advice),
        Severity::Warning,
        format!(
            "{} {verb} idle for more than half of the time: {most}{} of a {} step",
            devices_named(&keys, devices),
            ns(time.own_idle_ns()),
            ns(time.wall_ns / time.steps.max(1))
        ),
        format!(
            "{} of {}; threshold {} % (TensorBoard plugin, GPU utilization){overhead}",
            keys.len(),
            plural(devices.len(), "device"),
            100.0 - limits.device_busy_pct
        ),
        suggestion,
    );
    Some(saving(time.own_idle_ns(), found))
}

/// The advice on the idle time of a device: it depends on the most frequent reason that its streams wait.
fn idle_advice(analysis: &Analysis, rank: i32, device: i64) -> (Advice, &'static str) {
    let rows = analysis.tables.idle_breakdown.iter().filter(|r| r.rank == rank && r.device_id == Some(device));
    let mut of_category: BTreeMap<&str, i64> = BTreeMap::new();
    rows.for_each(|row| *of_category.entry(&row.category).or_default() += row.idle_ns);
    let most = of_category.into_iter().max_by_key(|(_, ns)| *ns);
    match most.and_then(|(word, _)| IdleCategory::ALL.iter().find(|category| category.as_str() == word)) {
        Some(IdleCategory::HostWait) => (
            Advice::LaunchFewer,
            "its streams wait mostly for the host to launch work: profile the host's code, and launch fewer, larger kernels",
        ),
        Some(IdleCategory::KernelWait) => (
            Advice::LaunchFewer,
            "its streams have mostly short gaps between kernels: fewer, larger kernels or CUDA graphs shorten them",
        ),
        Some(IdleCategory::Other) => (
            Advice::Other,
            "its streams wait mostly for other streams: look in the timeline for the stream that they wait for",
        ),
        None => (Advice::Other, "look in the timeline at what its host does while the device idles"),
    }
}
