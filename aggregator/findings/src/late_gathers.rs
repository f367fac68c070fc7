//! All-gathers of FSDP that could be called earlier.

use std::collections::BTreeMap;

use trace::{Severity, Text};

use crate::finding::{Found, finding, place, saving, share, step_rows};
use crate::registry::Context;
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::units::ns;

kind! {
    /// All-gathers of FSDP are called too late to be hidden.
    ///
    /// In each step, of the device with least: the exposed time of each all-gather, at most the compute since the collective
    /// before it (`late_ns`). A unit's parameters are known before, so the call could have come with the unit before it. What that
    /// saves is replayed where the ranks can be.
    LATE_GATHERS: "late-all-gathers", by late_gathers
}

/// The least share of the steps that all-gathers which are called late must cost, in percent.
const LATE_PCT: f64 = 2.0;

fn late_gathers(context: &Context<'_>) -> Option<Found> {
    let analysis = context.analysis;
    let mut lanes: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
    let mut units: BTreeMap<&Text, i64> = BTreeMap::new();
    for row in &analysis.tables.exposed_communication {
        let (Some(late_ns), Some(unit)) = (row.late_ns, &row.module) else { continue };
        let lane = lanes.entry((row.rank, row.device_id)).or_default();
        *lane = lane.saturating_add(late_ns);
        let unit = units.entry(unit).or_default();
        *unit = unit.saturating_add(late_ns);
    }
    let mut walls: BTreeMap<(i32, Option<i64>), (i64, i64)> = BTreeMap::new();
    for row in step_rows(analysis) {
        let (wall_ns, steps) = walls.entry((row.rank, row.device_id)).or_default();
        (*wall_ns, *steps) = (wall_ns.saturating_add(row.wall_ns), *steps + 1);
    }
    // Each device needs the rest of its step, so that the one with least decides.
    let (lane, late_ns) = lanes.iter().min_by_key(|(_, late_ns)| **late_ns)?;
    let (wall_ns, steps) = *walls.get(lane)?;
    let pct = share(&(*late_ns, wall_ns));
    let (unit, _) = units.iter().max_by_key(|(_, ns)| **ns)?;
    if pct < LATE_PCT {
        return None;
    }
    // The replay knows what else the work waits for.
    let replayed_ns = analysis.facts.early_gathers_ns;
    let saving_ns = replayed_ns.unwrap_or(late_ns / steps.max(1));
    let pct = replayed_ns.map_or(pct, |ns| 100.0 * ns as f64 * steps.max(1) as f64 / wall_ns.max(1) as f64);
    if pct < LATE_PCT {
        return None;
    }
    let title = format!(
        "all-gathers of FSDP are called too late to be hidden: {} of a step ({pct:.0} %), most for `{unit}`",
        ns(saving_ns)
    );
    let evidence = match replayed_ns {
        Some(_) => format!(
            "a replay in which each all-gather is called with the one before it; threshold {LATE_PCT} % (this program's)"
        ),
        None => format!(
            "late_ns of all-gathers, on {}, which has least; threshold {LATE_PCT} % (this program's); each counts at most the compute \
             since the collective before it, and includes waits for late ranks",
            place(lane.0, lane.1)
        ),
    };
    let suggestion = "prefetch: FSDP2's set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, FSDP1's forward_prefetch \
                      and backward_prefetch";
    let claim = Claim::new(Quantity::LateGathers, Relation::Exceeds, "exposed_communication");
    let claim = claim.value(Value::Ns(saving_ns)).explains(Part::Transfer, saving_ns);
    Some(saving(saving_ns, finding(claim, Severity::Warning, title, evidence, suggestion)))
}

#[cfg(test)]
mod tests {
    use trace::{ExposedCommRow, StepBreakdownRow};

    use super::*;
    use model::analysis::Analysis;

    #[test]
    fn late_gathers_save_what_the_device_with_least_could_hide() {
        let mut analysis = Analysis::default();
        for (rank, late_ns) in [(0, 40), (1, 10)] {
            let breakdown = StepBreakdownRow { rank, step: Some(0), wall_ns: 200, ..Default::default() };
            analysis.tables.step_breakdown.push(breakdown);
            let of_unit = |module: &str, late_ns| ExposedCommRow {
                rank,
                module: Some(module.into()),
                late_ns: Some(late_ns),
                ..ExposedCommRow::default()
            };
            analysis.tables.exposed_communication.extend([of_unit("layers.0", late_ns - 2), of_unit("layers.1", 2)]);
        }
        let found = LATE_GATHERS.in_tables(&analysis).pop().unwrap();
        let title = "all-gathers of FSDP are called too late to be hidden: 10 ns of a step (5 %), most for `layers.0`";
        assert_eq!((&*found.title, found.saving_ns), (title, Some(10)));
        analysis.tables.step_breakdown.iter_mut().for_each(|row| row.wall_ns = 600);
        assert_eq!(LATE_GATHERS.in_tables(&analysis), [], "below the threshold");
        analysis.tables.exposed_communication.iter_mut().for_each(|row| row.late_ns = None);
        assert_eq!(LATE_GATHERS.in_tables(&analysis), []);
    }
}
