//! Communication that no compute hides.

use std::collections::BTreeMap;

use trace::Severity;

use crate::finding::{Found, finding, place, saving, share, step_rows};
use crate::registry::Context;
use model::analysis::{Analysis, VerdictKind};
use model::claim::{Claim, Part, Quantity, Relation, Value};
use model::stats::is_covered;
use model::units::ns;

kind! {
    /// Communication that no compute hides takes much of the steps.
    ///
    /// In each step the smallest exposed time of any device that communicates, mean over steps: without any communication, that
    /// device still needs the rest of its step. Waits for a late rank are long on all other ranks, so they do not count.
    EXPOSED_COMMUNICATION: "exposed-communication", by exposed
}

fn exposed(context: &Context<'_>) -> Option<Found> {
    let (analysis, limits) = (context.analysis, context.limits());
    let all = Exposed::of(analysis);
    let (counted_ns, wall_ns) = all.lanes.values().fold((0_i64, 0_i64), |(counted, wall), (of_lane, of_wall)| {
        (counted.saturating_add(*of_lane), wall.saturating_add(*of_wall))
    });
    let pct = share(&(counted_ns, wall_ns));
    if pct <= limits.exposed_comm_pct {
        return None;
    }
    let by_share = |a: &(&_, &(i64, i64)), b: &(&_, &(i64, i64))| share(a.1).total_cmp(&share(b.1));
    let (most, least) = (all.lanes.iter().max_by(by_share)?, all.lanes.iter().min_by(by_share)?);
    let named = |((rank, device), sums): (&(i32, Option<i64>), &(i64, i64))| {
        format!("{} ({:.0} %)", place(*rank, *device), share(sums))
    };
    let (on, most_and_least) = match all.lanes.len() {
        1 => (format!(" on {}", place(most.0.0, most.0.1)), String::new()),
        _ => (String::new(), format!(": most on {}, least on {}", named(most), named(least))),
    };
    let (besides, split) = match &all.waits {
        Waits::Explained => (" besides waits for other ranks", String::new()),
        Waits::Share(pct) => ("", format!("; {pct:.0} % of it is waiting for other ranks")),
        Waits::Unknown => ("", "; how much of it is waiting for other ranks is unknown".into()),
    };
    let saving_ns = all.least_ns_per_step();
    let claim = Claim::new(Quantity::Exposed, Relation::Exceeds, "step_breakdown").value(Value::Pct(pct));
    let found = finding(
        claim.explains(Part::Transfer, saving_ns),
        Severity::Warning,
        format!("{pct:.0} % of the step is exposed communication{besides}{on}{most_and_least}{split}"),
        format!(
            "exposed_comm_ns / wall_ns over all steps, ranks and devices; threshold {} % (TensorBoard plugin); without any \
             communication, a step still takes the rest of the device that has least: it saves {} at most",
            limits.exposed_comm_pct,
            ns(saving_ns)
        ),
        match (all.waits, analysis.facts.missing_ranks.is_empty()) {
            (Waits::Unknown, false) => {
                "analyze all ranks of the job, to tell waits for them from transfers, which smaller buckets or more compute per step hide"
            }
            _ => "use smaller buckets, or more compute per step",
        },
    );
    Some(saving(saving_ns, found))
}

/// The part of exposed communication that is waiting for other ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waits {
    /// The verdict says whom the ranks wait for, so waits are not counted here.
    Explained,
    /// Its share, in percent.
    Share(f64),
    /// It is known for too little of the communication.
    Unknown,
}

/// The exposed communication of all devices.
struct Exposed {
    /// The time that counts and the time of the steps, by rank and device.
    lanes: BTreeMap<(i32, Option<i64>), (i64, i64)>,
    waits: Waits,
    /// In each step, the exposed time of the device that has least; `None` if no device communicates.
    least_of_step: BTreeMap<Option<i32>, Option<i64>>,
}

impl Exposed {
    fn of(analysis: &Analysis) -> Self {
        let (mut waiting_ns, mut split_ns, mut exposed_ns) = (0_i64, 0_i64, 0_i64);
        for row in step_rows(analysis) {
            exposed_ns = exposed_ns.saturating_add(row.exposed_comm_ns);
            if let Some(ns) = row.exposed_wait_ns {
                (waiting_ns, split_ns) = (waiting_ns.saturating_add(ns), split_ns.saturating_add(row.exposed_comm_ns));
            }
        }
        let has_cause = matches!(analysis.verdict.kind, VerdictKind::Cause | VerdictKind::Undecided);
        let waits = match () {
            () if !is_covered(split_ns as f64, exposed_ns as f64) => Waits::Unknown,
            () if has_cause => Waits::Explained,
            () => Waits::Share(share(&(waiting_ns, split_ns))),
        };
        let (mut lanes, mut least_of_step) = (BTreeMap::new(), BTreeMap::new());
        for row in step_rows(analysis) {
            let waiting_ns = row.exposed_wait_ns.filter(|_| waits == Waits::Explained).unwrap_or(0);
            let (counted, wall): &mut (i64, i64) = lanes.entry((row.rank, row.device_id)).or_default();
            *counted = counted.saturating_add(row.exposed_comm_ns - waiting_ns);
            *wall = wall.saturating_add(row.wall_ns);
            let least: &mut Option<i64> = least_of_step.entry(row.step).or_default();
            if row.comm_total_ns > 0 {
                *least = Some(least.map_or(row.exposed_comm_ns, |least| least.min(row.exposed_comm_ns)));
            }
        }
        Self { lanes, waits, least_of_step }
    }

    /// A step needs the rest of its time on every device, so exposed communication costs the least of the devices at most. Waits for
    /// late ranks are long on all others.
    fn least_ns_per_step(&self) -> i64 {
        let sum = self.least_of_step.values().map(|least| least.unwrap_or(0)).fold(0_i64, i64::saturating_add);
        sum / self.least_of_step.len().max(1) as i64
    }
}

#[cfg(test)]
mod tests {
    use trace::StepBreakdownRow;

    use super::*;

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
            "41 % of the step is exposed communication: most on rank 0 (62 %), least on rank 1 (15 %); how much of it is waiting for other \
             ranks is unknown"
        );
        assert_eq!(found.saving_ns, Some(15));
        // Ranks 0 and 2 wait for all of their exposed time but 10 ns, and the verdict says for whom.
        analysis.verdict.kind = VerdictKind::Cause;
        let waits = [Some(50), Some(0), Some(40), Some(54), Some(10)];
        for (row, wait) in analysis.tables.step_breakdown.iter_mut().zip(waits) {
            row.exposed_wait_ns = wait;
        }
        assert_eq!(EXPOSED_COMMUNICATION.in_tables(&analysis), [], "10 % of the step are transfers");
        analysis.tables.step_breakdown = vec![row(0, 1, 10)];
        assert_eq!(EXPOSED_COMMUNICATION.in_tables(&analysis), []);
    }
}
