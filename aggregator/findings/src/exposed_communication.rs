//! Communication that no compute hides.

use std::collections::BTreeMap;

use trace::{FindingRow, Severity};

use crate::finding::{finding, place, saving, share, step_rows};
use crate::registry::Context;
use model::units::ns;

kind! {
    /// Communication that no compute hides takes much of the steps.
    ///
    /// In each step the smallest exposed time of any device that communicates, mean over steps: without any communication, that
    /// device still needs the rest of its step. Waits for a late rank are long on all other ranks, so they do not count.
    EXPOSED_COMMUNICATION: "exposed-communication", by exposed
}

fn exposed(context: &Context<'_>) -> Option<FindingRow> {
    let (analysis, limits) = (context.analysis, context.limits());
    let mut lanes: BTreeMap<(i32, Option<i64>), (i64, i64)> = BTreeMap::new();
    // Waits are known for some steps only, so their share is that of these steps.
    let (mut waiting_ns, mut split_ns) = (0_i64, 0_i64);
    // A step needs the rest of its time on every device, so exposed communication costs the least of the devices at
    // most. Waits for late ranks are long on all others.
    let mut least_of_step: BTreeMap<Option<i32>, Option<i64>> = BTreeMap::new();
    for row in step_rows(analysis) {
        let (exposed, wall) = lanes.entry((row.rank, row.device_id)).or_default();
        *exposed = exposed.saturating_add(row.exposed_comm_ns);
        *wall = wall.saturating_add(row.wall_ns);
        if let Some(ns) = row.exposed_wait_ns {
            (waiting_ns, split_ns) = (waiting_ns.saturating_add(ns), split_ns.saturating_add(row.exposed_comm_ns));
        }
        let least = least_of_step.entry(row.step).or_default();
        if row.comm_total_ns > 0 {
            *least = Some(least.map_or(row.exposed_comm_ns, |least| least.min(row.exposed_comm_ns)));
        }
    }
    let (exposed, wall) = lanes
        .values()
        .fold((0_i64, 0_i64), |(e, w), (exposed, wall)| (e.saturating_add(*exposed), w.saturating_add(*wall)));
    let pct = share(&(exposed, wall));
    if pct <= limits.exposed_comm_pct {
        return None;
    }
    let by_share = |a: &(&_, &(i64, i64)), b: &(&_, &(i64, i64))| share(a.1).total_cmp(&share(b.1));
    let (most, least) = (lanes.iter().max_by(by_share)?, lanes.iter().min_by(by_share)?);
    let named = |((rank, device), sums): (&(i32, Option<i64>), &(i64, i64))| {
        format!("{} ({:.0} %)", place(*rank, *device), share(sums))
    };
    let (on, most_and_least) = match lanes.len() {
        1 => (format!(" on {}", place(most.0.0, most.0.1)), String::new()),
        _ => (String::new(), format!(": most on {}, least on {}", named(most), named(least))),
    };
    let waits = match split_ns {
        0 => ", including waits for late ranks".into(),
        all_ns => format!(", {:.0} % of it waiting for other ranks", share(&(waiting_ns, all_ns))),
    };
    let saving_ns = least_of_step.values().map(|least| least.unwrap_or(0)).fold(0_i64, i64::saturating_add)
        / least_of_step.len().max(1) as i64;
    let found = finding(
        Severity::Warning,
        format!("{pct:.0} % of the step is exposed communication{on}{waits}{most_and_least}"),
        (
            "step_breakdown",
            format!(
                "exposed_comm_ns / wall_ns over all steps, ranks and devices; threshold {} % (TensorBoard plugin); without any \
                 communication, a step still takes the rest of the device that has least: it saves {} at most",
                limits.exposed_comm_pct,
                ns(saving_ns)
            ),
        ),
        "fix stragglers first, because waits for them count here; then use smaller buckets, or more compute per step",
    );
    Some(saving(saving_ns, found))
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;
    use model::analysis::Analysis;

    /// Rank 1 is late: the other ranks wait for it, and their exposed communication is long.
    #[test]
    fn exposed_communication_saves_what_the_last_rank_exposes() {
        let mut analysis = Analysis::default();
        let row = |rank, step, exposed_comm_ns| StepBreakdownRow {
            rank,
            step: Some(step),
            wall_ns: 100,
            exposed_comm_ns,
            comm_total_ns: 70,
            ..Default::default()
        };
        analysis.tables.step_breakdown =
            vec![row(0, 1, 60), row(1, 1, 10), row(2, 1, 50), row(0, 2, 64), row(1, 2, 20)];
        let found = EXPOSED_COMMUNICATION.in_tables(&analysis).pop().unwrap();
        assert_eq!(
            &*found.title,
            "41 % of the step is exposed communication, including waits for late ranks: most on rank 0 (62 %), least on rank 1 (15 %)"
        );
        assert_eq!(found.saving_ns, Some(15));
        analysis.tables.step_breakdown = vec![row(0, 1, 10)];
        assert_eq!(EXPOSED_COMMUNICATION.in_tables(&analysis), []);
    }
}
