//! Kernels that take longer on one device than on the others.

use std::collections::BTreeMap;

use trace::{KernelStatsRow, Severity, WorkType};

use crate::finding::{Found, finding, place, saving, short_name};
use crate::registry::Context;
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::units::{ns, plural};

kind! {
    /// A kernel takes longer on one device than on the others.
    ///
    /// The time of its calls × (1 − 1 / ratio), per step.
    SLOW_KERNEL: "slow-kernel", by slow_device
}

/// A kernel is reported as slow only above this share of its device's kernel time, because smaller kernels cost too
/// little.
pub(super) const SLOW_KERNEL_SHARE: f64 = 0.05;
/// Smallest excess that matters, as a share of the step.
const LEAST_EXCESS_SHARE: f64 = 0.01;

/// A kernel and the time of all its calls beyond that of the devices to compare with, per step.
struct Slow<'a> {
    kernel: &'a KernelStatsRow,
    ratio: f64,
    excess_ns: f64,
}

/// The kernel that costs one device most time beyond the other devices.
fn slow_device(context: &Context<'_>) -> Option<Found> {
    let (limits, devices) = (context.limits(), &context.devices);
    let kernels = &context.analysis.tables.kernel_stats;
    let mut totals: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
    for kernel in kernels {
        let total = totals.entry((kernel.rank, kernel.device_id)).or_default();
        *total = total.saturating_add(kernel.total_ns);
    }
    let slow = |kernel: &'_ KernelStatsRow| {
        let ratio = kernel.vs_median_device.filter(|ratio| *ratio > limits.slow_device_ratio)?;
        let total_ns = totals.get(&(kernel.rank, kernel.device_id)).copied()?;
        let is_weighty = kernel.total_ns as f64 > SLOW_KERNEL_SHARE * total_ns as f64;
        let device = devices.get(&(kernel.rank, kernel.device_id.unwrap_or(0)))?;
        let excess_ns = kernel.total_ns as f64 * (1.0 - 1.0 / ratio) / device.steps.max(1) as f64;
        let step_ns = device.wall_ns as f64 / device.steps.max(1) as f64;
        (kernel.work != WorkType::Communication && is_weighty && excess_ns >= LEAST_EXCESS_SHARE * step_ns)
            .then_some((ratio, excess_ns))
    };
    let all = kernels.iter().filter_map(|kernel| {
        let (ratio, excess_ns) = slow(kernel)?;
        Some(Slow { kernel, ratio, excess_ns })
    });
    let Slow { kernel, ratio, excess_ns } = all.max_by(|a, b| a.excess_ns.total_cmp(&b.excess_ns))?;
    let excess = excess_ns.round() as i64;
    let claim = Claim::new(Quantity::KernelTime, Relation::Exceeds, "kernel_stats");
    let claim = claim.of(kernel.rank, kernel.device_id).named(&kernel.name);
    let found = finding(
        claim.value(Value::Ratio(ratio)).explains(Part::Work, excess),
        Severity::Warning,
        format!(
            "`{}` takes {ratio:.2} × as long on {} as on {}: {} instead of {} a call",
            short_name(&kernel.name),
            place(kernel.rank, kernel.device_id),
            compared_with(kernel, kernels),
            ns(kernel.mean_ns.round() as i64),
            ns((kernel.mean_ns / ratio).round() as i64)
        ),
        format!(
            "kernel_stats.vs_median_device of {}; {} more in a step; thresholds {} × (FALCON: 10 %), {:.0} % of the device's kernel \
             time and {:.0} % of a step (this program's)",
            kernel.name,
            ns(excess),
            limits.slow_device_ratio,
            100.0 * SLOW_KERNEL_SHARE,
            100.0 * LEAST_EXCESS_SHARE
        ),
        "check that device's clocks, power and temperature, and whether the kernel's shapes are the same as on other ranks",
    );
    Some(saving(excess, found))
}

/// The devices that a kernel is compared with.
fn compared_with(kernel: &KernelStatsRow, kernels: &[KernelStatsRow]) -> String {
    let same: Vec<&KernelStatsRow> = kernels.iter().filter(|other| other.name == kernel.name).collect();
    let is_other = |other: &&&KernelStatsRow| (other.rank, other.device_id) != (kernel.rank, kernel.device_id);
    match same.iter().find(is_other) {
        Some(other) if same.len() == 2 => place(other.rank, other.device_id),
        _ => format!("the median of {}", plural(same.len(), "device")),
    }
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;
    use measure::by_name::compare_kernels;
    use model::analysis::Analysis;

    const MS: i64 = 1_000_000;

    /// Each device runs `gemm` 10 times in one step of 100 ms; the means are in ms.
    fn analysis(means: &[i64], step_ms: i64) -> Analysis {
        let mut analysis = Analysis::default();
        for (rank, mean) in (0..).zip(means) {
            analysis.tables.step_breakdown.push(StepBreakdownRow {
                rank,
                device_id: Some(0),
                step: Some(1),
                wall_ns: step_ms * MS,
                ..Default::default()
            });
            analysis.tables.kernel_stats.push(KernelStatsRow {
                rank,
                device_id: Some(0),
                name: "gemm".into(),
                total_ns: 10 * mean * MS,
                mean_ns: (mean * MS) as f64,
                ..Default::default()
            });
        }
        compare_kernels(&mut analysis.tables.kernel_stats);
        analysis
    }

    #[test]
    fn the_kernel_and_both_devices_are_named() {
        let found = |means: &[i64]| SLOW_KERNEL.in_tables(&analysis(means, 100)).pop();
        let two = found(&[6, 5]).unwrap();
        assert_eq!(
            &*two.title,
            "`gemm` takes 1.20 × as long on device 0 of rank 0 as on device 0 of rank 1: 6.00 ms instead of 5.00 ms a call"
        );
        assert_eq!(two.saving_ns, Some(10 * MS));
        let three = found(&[5, 5, 8]).unwrap();
        assert!(
            three.title.contains("1.60 × as long on device 0 of rank 2 as on the median of 3 devices"),
            "{three:?}"
        );
        assert_eq!(found(&[5, 5, 5]), None);
    }

    #[test]
    fn an_excess_that_costs_nothing_is_no_finding() {
        assert_eq!(SLOW_KERNEL.in_tables(&analysis(&[6, 5], 2_000)), []);
    }
}
