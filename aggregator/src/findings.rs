//! Sentences with evidence: what an engineer would point at, each with its threshold and where that comes from.

mod devices;

use std::collections::BTreeMap;

use trace::{FindingRow, StepBreakdownRow};

use crate::analysis::{Analysis, VerdictKind};
use crate::render::text::{bytes, ns, plural, ranks};

/// When something is worth a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Exposed communication, as a share of the step. The TensorBoard plugin's limit.
    pub exposed_comm_pct: f64,
    /// Use of a device below which it is called idle. The TensorBoard plugin's limit.
    pub device_busy_pct: f64,
    /// Input ranges, as a share of the step. The TensorBoard plugin's limit for data loading.
    pub input_pct: f64,
    /// Peak memory, as a share of the device's. The TensorBoard plugin's limit.
    pub memory_pct: f64,
    /// A kernel's mean on one device over the median device's. 1.1: FALCON's smallest change that counts (10 %).
    pub slow_device_ratio: f64,
    /// Kernels shorter than the call that launched them, as a share of all. This program's: when they are most.
    pub short_kernels_pct: f64,
    /// Calls that wait for a device, as a share of everything recorded. This program's: as for exposed communication.
    pub sync_stall_pct: f64,
    /// Estimated SM efficiency, as a share of utilization. This program's: when most of a busy device is idle.
    pub sm_share_pct: f64,
    /// Time with a full launch queue, as a share of everything recorded. This program's.
    pub full_queue_pct: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            exposed_comm_pct: 10.0,
            device_busy_pct: 50.0,
            input_pct: 5.0,
            memory_pct: 90.0,
            slow_device_ratio: 1.1,
            short_kernels_pct: 50.0,
            sync_stall_pct: 10.0,
            sm_share_pct: 50.0,
            full_queue_pct: 1.0,
        }
    }
}

/// A kernel must take this share of its device's kernel time before its slowness is worth a sentence.
const SLOW_KERNEL_SHARE: f64 = 0.05;

/// All findings, the most severe first. `memory` is each device's memory, by rank and device.
pub(crate) fn findings(analysis: &Analysis, limits: &Limits, memory: &BTreeMap<(i32, i64), i64>) -> Vec<FindingRow> {
    let mut findings = Vec::new();
    findings.extend(straggler(analysis));
    findings.extend(hang(analysis));
    findings.extend(lost_rows(analysis));
    findings.extend(not_recorded(analysis));
    findings.extend(clock(analysis));
    findings.extend(exposed(analysis, limits));
    findings.extend(idle_device(analysis, limits));
    findings.extend(input(analysis, limits));
    findings.extend(memory_peak(analysis, limits, memory));
    findings.extend(slow_device(analysis, limits));
    findings.extend(devices::findings(analysis, limits));
    findings.sort_by_key(|f| match &*f.severity {
        "critical" => 0,
        "warning" => 1,
        _ => 2,
    });
    findings
}

/// `table` is the one that holds the numbers of `evidence`.
fn finding(severity: &str, title: String, (table, evidence): (&str, String), suggestion: &str) -> FindingRow {
    FindingRow {
        severity: severity.into(),
        title: title.into(),
        evidence: evidence.into(),
        evidence_table: table.into(),
        suggestion: suggestion.into(),
    }
}

fn straggler(analysis: &Analysis) -> Option<FindingRow> {
    let verdict = &analysis.verdict;
    let severity = match verdict.kind {
        VerdictKind::Cause => "critical",
        VerdictKind::Undecided => "warning",
        VerdictKind::Balanced | VerdictKind::Nothing => return None,
    };
    let Some(row) = analysis.tables.stragglers.iter().find(|s| Some(s.rank) == verdict.rank) else {
        // Waits without one rank that they are for.
        return (verdict.kind == VerdictKind::Undecided).then(|| {
            finding(
                severity,
                verdict.sentence.clone(),
                (
                    "stragglers",
                    "stragglers.suffered_wait_ns and caused_wait_ns; threshold 10 % of a step (this program's)".into(),
                ),
                "look at collective_waits, step by step: who was last, and whether that rank or step has more to do",
            )
        });
    };
    let evidence = row.evidence.clone().unwrap_or_else(|| verdict.sentence.as_str().into());
    let suggestion = match verdict.reason.as_deref() {
        Some("input") => "look at the data loader of that rank: its storage, its workers, the size of its samples",
        Some("communication") => "look at the network of that rank's host, and at the algorithm and channels it uses",
        Some("host") => {
            "the device waits for its host: look for other processes, frequency limits and Python work there"
        }
        _ => "look at the named range on that rank: more work, a slower device, or a noisy neighbour",
    };
    Some(finding(severity, verdict.sentence.clone(), ("stragglers", evidence.to_string()), suggestion))
}

/// The first collective that somebody waits in and somebody else never called. Without one, the first in which all
/// wait.
fn hang(analysis: &Analysis) -> Option<FindingRow> {
    let rows = &analysis.tables.unfinished_collectives;
    let row = rows.first()?;
    let of = |ranks: &Option<Vec<i32>>| ranks.clone().unwrap_or_default();
    let (done, started, enqueued, missing) = (of(&row.done), of(&row.started), of(&row.enqueued), of(&row.missing));
    let seq = row.seq.map_or(String::new(), |seq| format!(" {seq}"));
    let comm = row.comm_name.as_deref().map_or_else(|| format!("{:#x}", row.comm_id), |name| format!("{name:?}"));
    let name = format!("{}{seq} of communicator {comm}", row.op);
    let (waiting, verb) = if started.is_empty() { (&enqueued, "called") } else { (&started, "entered") };
    let who = |ranks: &[i32]| format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks));
    let title = match missing.is_empty() {
        true => format!("{name} did not end: {} {verb} it", who(waiting)),
        false => {
            let is = if missing.len() == 1 { "is" } else { "are" };
            format!("{} {is} missing from {name}: {} {verb} it and did not leave", who(&missing), who(waiting))
        }
    };
    let mut evidence = format!(
        "unfinished_collectives: done on {}, started on {}, enqueued on {}; {} in all",
        list(&done),
        list(&started),
        list(&enqueued),
        plural(rows.len(), "unfinished collective")
    );
    if row.rows_lost {
        evidence.push_str("; some rank lost rows, so that a missing one may have called it");
    }
    if row.unknown > 0 {
        evidence.push_str(&format!("; of {} nothing was read, or not all", plural(row.unknown as usize, "rank")));
    }
    let (severity, suggestion) = match (missing.is_empty(), row.unknown) {
        (true, 0) => {
            ("warning", "every rank came: look for a link or a device that stopped, or a recording that was cut")
        }
        (true, _) => ("warning", "analyse all ranks, and all of their time: one that is not read may not have come"),
        (false, _) => (
            "critical",
            "look at what those ranks did instead: an exception, another branch, an endless loop, a dead process",
        ),
    };
    Some(finding(severity, title, ("unfinished_collectives", evidence), suggestion))
}

fn list(of: &[i32]) -> String {
    if of.is_empty() { "none".into() } else { ranks(of) }
}

fn lost_rows(analysis: &Analysis) -> Option<FindingRow> {
    let facts = &analysis.facts;
    (facts.dropped > 0).then(|| {
        let total = facts.recorded.saturating_add(facts.dropped).max(1);
        let pct = 100.0 * facts.dropped as f64 / total as f64;
        finding(
            "warning",
            format!("{} rows were lost while recording ({pct:.2} %)", facts.dropped),
            ("counters", "counters.dropped, summed over ranks; threshold: any".into()),
            "counts and totals are lower bounds; record fewer steps, or give the recorder larger queues",
        )
    })
}

/// Part of the program ran unrecorded. Where all of it did, the verdict says so.
fn not_recorded(analysis: &Analysis) -> Option<FindingRow> {
    const NAMED: usize = 4;
    let facts = &analysis.facts;
    let said = &facts.recording_was_off;
    (facts.nothing_because.is_empty() && !said.is_empty()).then(|| {
        let rest = said.len().saturating_sub(NAMED);
        let rest = if rest > 0 { format!("; and so on for {rest} more") } else { String::new() };
        finding(
            "info",
            "part of the program was not recorded: recording was switched off meanwhile".into(),
            ("counters", format!("{}{rest}", said[..said.len().min(NAMED)].join("; "))),
            "counts and totals are those of the recorded part; --delay, --duration and rank-agent ctl choose it",
        )
    })
}

fn clock(analysis: &Analysis) -> Option<FindingRow> {
    let violations: i64 = analysis.tables.clock_fit.iter().map(|c| c.violations).sum();
    if violations > 0 {
        return Some(finding(
            "warning",
            format!("the clocks contradict {violations} collectives"),
            (
                "clock_fit",
                "clock_fit.violations: a rank left a collective before another had entered it, by more than both bounds"
                    .into(),
            ),
            "do not trust differences between those ranks; look at clock_fit, and for steps of the system clock",
        ));
    }
    let instances = &analysis.tables.collective_instances;
    let unknown = instances.iter().filter(|i| i.error_ns.is_none()).count();
    if unknown > 0 {
        return Some(finding(
            "warning",
            format!("how far the clocks are off is unknown for {unknown} of {}", plural(instances.len(), "collective")),
            (
                "collective_instances",
                "collective_instances.error_ns is null: their ranks' clocks were never compared, nor met at a barrier"
                    .into(),
            ),
            "skew and waits there may be nothing but the clocks' offsets; own_excess_ns needs no common clock and stands",
        ));
    }
    let with_error = instances.iter().filter_map(|i| Some((i.skew_ns, i.error_ns?)));
    let (inside, total) =
        with_error.fold((0, 0), |(inside, total), (skew, error)| (inside + i64::from(skew <= error), total + 1));
    (total > 0 && 2 * inside > total).then(|| {
        finding(
            "info",
            "most arrivals lie closer together than the clocks can tell apart".into(),
            (
                "collective_instances",
                format!("skew_ns ≤ error_ns in {inside} of {total} collectives; threshold: half"),
            ),
            "waits and arrival orders of those collectives mean nothing; own_excess_ns needs no common clock and stands",
        )
    })
}

/// Rows of single active steps.
fn step_rows(analysis: &Analysis) -> impl Iterator<Item = &StepBreakdownRow> {
    analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0) && r.wall_ns > 0)
}

fn exposed(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let (exposed, wall) = step_rows(analysis).fold((0_i64, 0_i64), |(e, w), r| (e + r.exposed_comm_ns, w + r.wall_ns));
    let pct = 100.0 * exposed as f64 / wall.max(1) as f64;
    (pct > limits.exposed_comm_pct).then(|| {
        finding(
            "warning",
            format!("{pct:.0} % of the step is communication that no compute hides"),
            ("step_breakdown", format!(
                "exposed_comm_ns / wall_ns over all steps and ranks; threshold {} % (TensorBoard plugin)",
                limits.exposed_comm_pct
            )),
            "waiting for a late rank counts here too: fix stragglers first; then smaller buckets, or more compute per step",
        )
    })
}

/// Time of compute, and all time, of each device over active steps.
fn compute_of_devices(analysis: &Analysis) -> BTreeMap<(i32, i64), (i64, i64)> {
    let mut by_device: BTreeMap<(i32, i64), (i64, i64)> = BTreeMap::new();
    for row in step_rows(analysis) {
        if let Some(device) = row.device_id {
            let (busy, wall) = by_device.entry((row.rank, device)).or_default();
            *busy += row.compute_ns + row.overlap_ns;
            *wall += row.wall_ns;
        }
    }
    by_device
}

/// `(part, whole)` in percent.
fn share((part, whole): &(i64, i64)) -> f64 {
    100.0 * *part as f64 / (*whole).max(1) as f64
}

fn idle_device(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let by_device = compute_of_devices(analysis);
    let idle: Vec<_> = by_device.iter().filter(|(_, sums)| share(sums) < limits.device_busy_pct).collect();
    let (worst, sums) = idle.iter().min_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)))?;
    Some(finding(
        "warning",
        format!("{} of {} devices compute less than half of the time", idle.len(), by_device.len()),
        (
            "idle_breakdown",
            format!(
                "least: rank {} device {} with {:.0} %; threshold {} % (TensorBoard plugin, GPU utilization)",
                worst.0,
                worst.1,
                share(sums),
                limits.device_busy_pct
            ),
        ),
        "see idle_breakdown: host_wait means that the host launches too slowly, other that streams wait for each other",
    ))
}

fn input(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let mut by_rank: BTreeMap<i32, (i64, i64)> = BTreeMap::new();
    for row in analysis.tables.data_loading.iter().filter(|r| r.step.is_some()) {
        let (total, wall) = by_rank.entry(row.rank).or_default();
        *total = total.saturating_add(row.total_ns);
        *wall = wall.saturating_add(row.wall_ns);
    }
    let sum = |(t, w): (i64, i64), (total, wall): &(i64, i64)| (t.saturating_add(*total), w.saturating_add(*wall));
    let (total, wall) = by_rank.values().fold((0, 0), sum);
    let (worst, sums) = by_rank.iter().max_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)))?;
    let pct = share(&(total, wall));
    (pct > limits.input_pct).then(|| {
        finding(
            "warning",
            format!("{pct:.0} % of the step is input"),
            ("data_loading", format!(
                "data_loading.total_ns / wall_ns over the steps of {} with such ranges; most: rank {worst} with {:.0} %; \
                 threshold {} % (TensorBoard plugin)",
                plural(by_rank.len(), "rank"),
                share(sums),
                limits.input_pct
            )),
            "load ahead: more workers, pinned memory, or batches prepared while the step runs",
        )
    })
}

fn memory_peak(analysis: &Analysis, limits: &Limits, memory: &BTreeMap<(i32, i64), i64>) -> Option<FindingRow> {
    let share = |row: &trace::MemoryPeakRow| {
        let capacity = *memory.get(&(row.rank, row.device_id?))?;
        (capacity > 0).then(|| 100.0 * row.peak_bytes as f64 / capacity as f64)
    };
    let peaks = analysis.tables.memory_peaks.iter().filter_map(|row| Some((row, share(row)?)));
    let (row, pct) = peaks.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (pct > limits.memory_pct).then(|| {
        finding(
            "warning",
            format!("rank {} uses {pct:.0} % of its device's memory", row.rank),
            (
                "memory_peaks",
                format!("peak {}; threshold {} % (TensorBoard plugin)", bytes(row.peak_bytes), limits.memory_pct),
            ),
            "a little more and it fails; see memory_peaks.alive for what holds it",
        )
    })
}

fn slow_device(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let kernels = &analysis.tables.kernel_stats;
    let mut totals: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
    for kernel in kernels {
        *totals.entry((kernel.rank, kernel.device_id)).or_default() += kernel.total_ns;
    }
    let communicates = |name: &str| crate::names::NameClass::of(name).device_comm;
    let weighty = kernels.iter().filter(|k| {
        let total = totals.get(&(k.rank, k.device_id)).copied().unwrap_or(0);
        !communicates(&k.name) && k.total_ns as f64 > SLOW_KERNEL_SHARE * total as f64
    });
    let (kernel, ratio) = weighty
        .filter_map(|k| Some((k, k.vs_median_device?)))
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .filter(|(_, ratio)| *ratio > limits.slow_device_ratio)?;
    Some(finding(
        "warning",
        format!("a kernel takes {ratio:.2} × as long on rank {} as on the median device", kernel.rank),
        (
            "kernel_stats",
            format!(
                "{} at {} a call; threshold {} × (FALCON: 10 %), kernels above {:.0} % of the device's time",
                kernel.name,
                ns(kernel.mean_ns as i64),
                limits.slow_device_ratio,
                100.0 * SLOW_KERNEL_SHARE
            ),
        ),
        "look at that device's clocks, power and temperature, and at whether its shapes are the same",
    ))
}
