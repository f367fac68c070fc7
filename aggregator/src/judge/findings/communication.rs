//! Communication that no compute hides, how communication was recognised, and which kernels may communicate without being
//! counted.

use std::collections::BTreeMap;

use trace::name_rules::function_of;
use trace::{FindingRow, Severity, Text};

use crate::base::units::{ns, plural, ranks_named};
use crate::judge::findings::{finding, place, saving, share, step_rows};
use crate::measure::communication::{CommunicationEvidence, SUSPECT_OVERLAP_PCT, SUSPECT_TIME_PCT, Suspect};
use crate::model::analysis::Analysis;
use crate::model::limits::Limits;

/// Names in one sentence. The others are counted.
const NAMED: usize = 3;

/// Much of the steps is communication that no compute hides.
pub(super) fn exposed(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
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

/// The least share of the steps that all-gathers which are called late must cost, in percent.
const LATE_PCT: f64 = 2.0;

/// All-gathers of FSDP are called too late to be hidden.
pub(super) fn late_gathers(analysis: &Analysis) -> Option<FindingRow> {
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
    let saving_ns = late_ns / steps.max(1);
    let title = format!(
        "all-gathers of FSDP are called too late to be hidden: {} of a step ({pct:.0} %), most for `{unit}`",
        ns(saving_ns)
    );
    let evidence = format!(
        "late_ns of all-gathers, on {}, which has least; threshold {LATE_PCT} % (this program's); each counts at most the compute since \
         the collective before it, and includes waits for late ranks",
        place(lane.0, lane.1)
    );
    let suggestion = "prefetch: FSDP2's set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, FSDP1's forward_prefetch \
                      and backward_prefetch";
    Some(saving(saving_ns, finding(Severity::Warning, title, ("exposed_communication", evidence), suggestion)))
}

/// A sentence about the communication that only the names of kernels tell; `None` if there is none.
pub(crate) fn by_name_alone<'a>(ranks: impl Iterator<Item = &'a CommunicationEvidence>) -> Option<String> {
    let (mut total_ns, mut by_function) = (0_i64, BTreeMap::<String, i64>::new());
    for rank in ranks {
        total_ns = total_ns.saturating_add(rank.total_ns);
        for (name, ns) in &rank.by_name_ns {
            let sum = by_function.entry(function_of(name)).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    let by_name_ns = by_function.values().copied().fold(0, i64::saturating_add);
    (!by_function.is_empty()).then(|| {
        format!(
            "communication by kernel name alone: {}, {:.0} % of communication time: {}",
            plural(by_function.len(), "kernel"),
            100.0 * by_name_ns as f64 / total_ns.max(1) as f64,
            longest(by_function)
        )
    })
}

/// The finding about kernels that may communicate.
pub(crate) fn suspects<'a>(ranks: impl Iterator<Item = (i32, &'a CommunicationEvidence)>) -> Option<FindingRow> {
    let mut by_name: BTreeMap<&Text, Suspect> = BTreeMap::new();
    let mut on_ranks: Vec<i32> = Vec::new();
    for (rank, (name, suspect)) in ranks.flat_map(|(rank, found)| found.suspects.iter().map(move |s| (rank, s))) {
        on_ranks.push(rank);
        let sum = by_name.entry(name).or_default();
        sum.total_ns = sum.total_ns.saturating_add(suspect.total_ns);
        sum.overlap_ns = sum.overlap_ns.saturating_add(suspect.overlap_ns);
        sum.device_ns = sum.device_ns.saturating_add(suspect.device_ns);
    }
    on_ranks.dedup();
    let (name, most) = by_name.iter().max_by_key(|(_, suspect)| suspect.total_ns)?;
    let evidence = format!(
        "{}: {}, {:.0} % of its devices' time, {:.0} % of it while other streams compute, on streams without much known \
         computation; thresholds {SUSPECT_TIME_PCT} % and {SUSPECT_OVERLAP_PCT} % (this program's)",
        function_of(name),
        ns(most.total_ns),
        share(&(most.total_ns, most.device_ns)),
        share(&(most.overlap_ns, most.total_ns))
    );
    let by_function = by_name.iter().map(|(name, suspect)| (function_of(name), suspect.total_ns));
    let functions: BTreeMap<String, i64> = by_function.fold(BTreeMap::new(), |mut sums, (function, ns)| {
        let sum: &mut i64 = sums.entry(function).or_default();
        *sum = sum.saturating_add(ns);
        sums
    });
    let these = if functions.len() == 1 { "this kernel" } else { "these kernels" };
    Some(finding(
        Severity::Info,
        format!(
            "{these} may communicate, and {} counted as compute: {} on {}",
            be(functions.len()),
            longest(functions),
            ranks_named(&on_ranks)
        ),
        ("kernel_stats", evidence),
        "if it communicates, --comm REGEX counts the kernels whose name matches as communication",
    ))
}

fn be(kernels: usize) -> &'static str {
    if kernels == 1 { "is" } else { "are" }
}

/// The names with the most time.
fn longest(by_function: BTreeMap<String, i64>) -> String {
    let mut sorted: Vec<(String, i64)> = by_function.into_iter().collect();
    sorted.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let rest = sorted.len().saturating_sub(NAMED);
    let names: Vec<String> = sorted.into_iter().take(NAMED).map(|(function, _)| function).collect();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use trace::{ExposedCommRow, StepBreakdownRow};

    use super::*;

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
        let found = late_gathers(&analysis).unwrap();
        let title = "all-gathers of FSDP are called too late to be hidden: 10 ns of a step (5 %), most for `layers.0`";
        assert_eq!((&*found.title, found.saving_ns), (title, Some(10)));
        analysis.tables.step_breakdown.iter_mut().for_each(|row| row.wall_ns = 600);
        assert_eq!(late_gathers(&analysis), None, "below the threshold");
        analysis.tables.exposed_communication.iter_mut().for_each(|row| row.late_ns = None);
        assert_eq!(late_gathers(&analysis), None);
    }

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
        let found = exposed(&analysis, &Limits::default()).unwrap();
        assert_eq!(
            &*found.title,
            "41 % of the step is exposed communication, including waits for late ranks: most on rank 0 (62 %), least on rank 1 (15 %)"
        );
        assert_eq!(found.saving_ns, Some(15));
        analysis.tables.step_breakdown = vec![row(0, 1, 10)];
        assert_eq!(exposed(&analysis, &Limits::default()), None);
    }

    fn rank(total_ns: i64, by_name: &[(&str, i64)], suspects: &[(&str, i64)]) -> CommunicationEvidence {
        let suspect = |ns: i64| Suspect { total_ns: ns, overlap_ns: ns / 2, device_ns: 1_000 };
        CommunicationEvidence {
            total_ns,
            by_name_ns: by_name.iter().map(|(name, ns)| ((*name).into(), *ns)).collect(),
            suspects: suspects.iter().map(|(name, ns)| ((*name).into(), suspect(*ns))).collect(),
        }
    }

    #[test]
    fn names_alone_are_said_once_for_all_ranks() {
        assert_eq!(by_name_alone([rank(100, &[], &[])].iter()), None);
        let names = [("void ep::combine<1>(int)", 30), ("void ep::combine<2>(int)", 10)];
        let more = [("b", 5), ("c", 4), ("d", 3)];
        assert_eq!(
            by_name_alone([rank(100, &names, &[]), rank(100, &more, &[])].iter()).unwrap(),
            "communication by kernel name alone: 4 kernels, 26 % of communication time: ep::combine, b, c and 1 more"
        );
    }

    #[test]
    fn suspects_are_offered_with_their_evidence() {
        assert_eq!(suspects([(0, &rank(100, &[("a", 1)], &[]))].into_iter()), None);
        let ranks = [
            rank(0, &[], &[("void my::exchange<2>()", 200)]),
            rank(0, &[], &[("void my::exchange<2>()", 400), ("b", 10)]),
        ];
        let found = suspects((0..).zip(&ranks)).unwrap();
        assert_eq!(
            &*found.title,
            "these kernels may communicate, and are counted as compute: my::exchange, b on ranks 0–1"
        );
        assert!(
            found.evidence.starts_with("my::exchange: 600 ns, 30 % of its devices' time, 50 % of it"),
            "{}",
            found.evidence
        );
        let found = suspects((0..).zip(&ranks[..1])).unwrap();
        assert_eq!(&*found.title, "this kernel may communicate, and is counted as compute: my::exchange on rank 0");
        assert!(found.suggestion.contains("--comm REGEX"));
    }
}
