//! Kernels that are shorter than their launch calls.

use std::collections::BTreeMap;

use trace::Severity;

use crate::devices::{devices_named, most_idle};
use crate::finding::{Found, finding, saving, share, short_name};
use crate::registry::Context;
use model::claim::{Advice, Claim, Part, Quantity, Relation, Value};
use model::units::ns;

kind! {
    /// Many kernels are shorter than the calls that launch them.
    ///
    /// The mean idle time in a step, without overhead, of the device that is idle most.
    LAUNCH_BOUND: "launch-bound", by launch_bound
}

/// Short kernels cost nothing where the device is idle for less than this share of the time, in percent.
const LEAST_IDLE_PCT: f64 = 10.0;

/// Only devices that are idle most of the time count: there the host sets the pace.
fn launch_bound(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits, all) = (context.analysis, context.limits(), &context.devices);
    let idle = |rank: i32, device: Option<i64>| {
        all.get_key_value(&(rank, device?)).filter(|(_, time)| time.compute_pct() < limits.device_busy_pct)
    };
    let rows = analysis.tables.launch_stats.iter().filter_map(|row| Some((row, idle(row.rank, row.device_id)?)));
    let (total, named): (Vec<_>, Vec<_>) = rows.partition(|(row, _)| row.name.is_none());
    let (short, launches) = total.iter().fold((0, 0), |(s, n), (row, _)| (s + row.short_kernels, n + row.launches));
    let short_pct = share(&(short, launches));
    if short_pct <= limits.short_kernels_pct {
        return None;
    }
    let calls: i64 = total.iter().map(|(row, _)| row.cpu_total_ns).sum();
    let work: i64 = total.iter().map(|(row, _)| row.gpu_total_ns).sum();
    let keys: Vec<(i32, i64)> = total.iter().map(|(_, (key, _))| **key).collect();
    let (key, time) = most_idle(analysis, total.iter().map(|(_, device)| *device))?;
    if time.idle_pct() < LEAST_IDLE_PCT {
        return None;
    }
    let ((rank, device), most_ns) = (*key, time.own_idle_ns());
    let mut by_name: BTreeMap<&str, i64> = BTreeMap::new();
    for (row, _) in &named {
        *by_name.entry(row.name.as_deref().unwrap_or_default()).or_default() += row.short_kernels;
    }
    let most = by_name.iter().max_by_key(|(_, short)| **short).filter(|(_, short)| **short > 0);
    let most = most
        .map_or(String::new(), |(name, short)| format!(", most often `{}` ({short} of {launches})", short_name(name)));
    let claim = Claim::new(Quantity::LaunchTime, Relation::Exceeds, "launch_stats").of(rank, Some(device));
    let found = finding(
        claim.value(Value::Pct(short_pct)).explains(Part::Idle, most_ns).advises(Advice::LaunchFewer),
        Severity::Info,
        format!(
            "on {}, which mostly {}, {short_pct:.0} % of the kernels are shorter than the calls that launch \
             them{most}",
            devices_named(&keys, all),
            if keys.len() == 1 { "is idle or communicates" } else { "are idle or communicate" }
        ),
        format!(
            "launch_stats.short_kernels: {short} of {launches} (HTA's definition, which excludes graphs) where compute takes less than \
             {} % of the time; launch calls take {}, kernels {}; threshold {} % (this program's)",
            limits.device_busy_pct,
            ns(calls),
            ns(work),
            limits.short_kernels_pct
        ),
        "the host may set the pace: CUDA graphs, fused operators or a compiler make fewer and longer kernels",
    );
    Some(saving(most_ns, found))
}
