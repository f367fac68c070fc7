//! Devices of one process that compute longer than its other devices.
//!
//! A rank with several devices, as DataParallel and JAX have them, is one rank: no verdict compares its devices.

use std::collections::BTreeMap;

use trace::Severity;

use crate::devices::DeviceTime;
use crate::finding::{Found, finding, place, saving};
use crate::registry::Context;
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::stats::lower_median;
use model::units::{ns, plural};

kind! {
    /// A device computes longer in a step than the other devices of its process.
    ///
    /// Its compute in a step, less the lower median of the devices of its process.
    SLOW_DEVICE: "slow-device", by slow_device
}

/// Smallest excess that matters, in percent of a step.
const LEAST_PCT: f64 = 1.0;

/// The device with the largest excess.
fn slow_device(context: &Context<'_>) -> Option<Found> {
    let limits = context.limits();
    let mut of_rank: BTreeMap<i32, Vec<(i64, &DeviceTime)>> = BTreeMap::new();
    for ((rank, device), time) in context.devices.iter().filter(|(_, time)| time.compute_ns > 0) {
        of_rank.entry(*rank).or_default().push((*device, time));
    }
    let slow = of_rank.iter().filter_map(|(rank, devices)| {
        let usual_ns = lower_median(devices.iter().map(|(_, time)| time.compute_ns_per_step()))?;
        let (device, time) = devices.iter().max_by_key(|(_, time)| time.compute_ns_per_step())?;
        let compute_ns = time.compute_ns_per_step();
        let step_ns = time.wall_ns / time.steps.max(1);
        let is_long = compute_ns as f64 > limits.slow_device_ratio * usual_ns as f64;
        let matters = (compute_ns - usual_ns) as f64 >= LEAST_PCT / 100.0 * step_ns as f64;
        (devices.len() > 1 && is_long && matters).then_some((*rank, *device, compute_ns, usual_ns, devices.len()))
    });
    let (rank, device, compute_ns, usual_ns, of) = slow.max_by_key(|(_, _, compute, usual, _)| compute - usual)?;
    let excess_ns = compute_ns - usual_ns;
    let claim = Claim::new(Quantity::Compute, Relation::Exceeds, "step_breakdown").of(rank, Some(device));
    let found = finding(
        claim.value(Value::Ns(excess_ns)).explains(Part::Work, excess_ns),
        Severity::Warning,
        format!(
            "{} computes {} longer in a step than the median of its {}: {} instead of {}",
            place(rank, Some(device)),
            ns(excess_ns),
            plural(of, "device"),
            ns(compute_ns),
            ns(usual_ns)
        ),
        format!(
            "compute_ns + overlap_ns of the devices of that rank, mean over the steps; thresholds {} × (FALCON: 10 %) and {LEAST_PCT} \
             % of a step (this program's)",
            limits.slow_device_ratio
        ),
        "check that device's clocks, power and temperature, and whether it gets more work than the others",
    );
    Some(saving(excess_ns, found))
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;
    use model::analysis::Analysis;

    /// A process whose devices compute for these times of each of two steps of 100 ns.
    fn found(rank_of: fn(i64) -> i32, compute_ns: &[i64]) -> Option<(String, Option<i64>)> {
        let mut analysis = Analysis::default();
        for (device, compute_ns) in (0..).zip(compute_ns) {
            analysis.tables.step_breakdown.extend([1, 2].map(|step| StepBreakdownRow {
                rank: rank_of(device),
                device_id: Some(device),
                step: Some(step),
                wall_ns: 100,
                compute_ns: *compute_ns,
                ..Default::default()
            }));
        }
        SLOW_DEVICE.in_tables(&analysis).pop().map(|row| (row.title.to_string(), row.saving_ns))
    }

    #[test]
    fn a_device_is_compared_with_those_of_its_process() {
        let title = "device 2 of rank 0 computes 20 ns longer in a step than the median of its 4 devices: 80 ns instead of 60 ns";
        assert_eq!(found(|_| 0, &[60, 60, 80, 60]), Some((title.into(), Some(20))));
        assert_eq!(found(|device| device as i32, &[60, 60, 80, 60]), None, "ranks have a verdict");
        assert_eq!(found(|_| 0, &[60, 60, 65, 60]), None, "less than a tenth");
        assert_eq!(found(|_| 0, &[0, 0, 80]), None, "one device works");
    }
}
