//! Devices that compute most of the time, but with kernels that are too small to fill them.

use trace::{GpuUtilizationRow, KernelStatsRow, Severity};

use crate::devices::devices_named;
use crate::finding::{Found, finding, place, saving};
use crate::registry::Context;
use model::claim::{Claim, Part, Quantity, Relation, Value};

kind! {
    /// Kernels leave most of a device idle.
    ///
    /// Its compute time in a step × (1 − SM efficiency / utilization).
    NARROW_KERNELS: "narrow-kernels", by narrow_kernels
}

fn narrow_kernels(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits, devices) = (context.analysis, context.limits(), &context.devices);
    let busy = |row: &GpuUtilizationRow| {
        devices.get(&(row.rank, row.device_id)).filter(|time| time.compute_pct() >= limits.device_busy_pct)
    };
    let rows = analysis.tables.gpu_utilization.iter().filter(|r| r.step.is_none());
    let narrow: Vec<_> = rows
        .filter_map(|row| Some((row, busy(row)?, row.sm_efficiency_pct?)))
        .filter(|(row, _, efficiency)| *efficiency < limits.sm_share_pct / 100.0 * row.utilization_pct)
        .collect();
    let (worst, time, efficiency) = narrow.iter().min_by(|(_, _, a), (_, _, b)| a.total_cmp(b))?;
    let keys: Vec<(i32, i64)> = narrow.iter().map(|(row, ..)| (row.rank, row.device_id)).collect();
    let of_worst = |k: &&KernelStatsRow| k.rank == worst.rank && k.device_id == Some(worst.device_id);
    let kernel = analysis.tables.kernel_stats.iter().filter(of_worst).max_by_key(|kernel| kernel.total_ns);
    let kernel = kernel.map_or(String::new(), |kernel| {
        let blocks = kernel.mean_blocks.map_or(String::new(), |blocks| format!(" with {blocks:.0} blocks"));
        format!("; of its kernels, `{}`{blocks} takes most time", kernel.name)
    });
    let full = efficiency / worst.utilization_pct.max(f64::MIN_POSITIVE);
    let saving_ns = (time.compute_ns / time.steps.max(1)) as f64 * (1.0 - full);
    let what = match keys.len() {
        1 => "runs kernels that leave most of it idle".into(),
        _ => format!("run kernels that leave most of them idle, most so {}", place(worst.rank, Some(worst.device_id))),
    };
    let claim = Claim::new(Quantity::SmEfficiency, Relation::Below, "gpu_utilization");
    let claim = claim.of(worst.rank, Some(worst.device_id)).coverage(worst.sm_known_pct.unwrap_or(0.0));
    let found = finding(
        claim.value(Value::Pct(*efficiency)).explains(Part::Work, saving_ns.round() as i64),
        Severity::Info,
        format!("{} {what}", devices_named(&keys, devices)),
        format!(
            "{}: a kernel runs {:.0} % of the time, but estimated SM efficiency is {efficiency:.0} % (the TensorBoard plugin's \
             definitions){kernel}; threshold {} % of the busy time (this program's)",
            place(worst.rank, Some(worst.device_id)),
            worst.utilization_pct,
            limits.sm_share_pct
        ),
        "larger batches or fused kernels fill the device",
    );
    Some(saving(saving_ns.round() as i64, found))
}
