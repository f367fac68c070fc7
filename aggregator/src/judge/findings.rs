//! Findings: the problems that an engineer should look at first, as sentences. Each has its evidence, its threshold and
//! the source of the threshold.

pub(crate) mod communication;
mod devices;

use std::collections::BTreeMap;

use trace::{FindingRow, Reason, Severity, StepBreakdownRow, Word, WorkType};

use crate::base::units::{bytes, ns, plural, ranks};
use crate::judge::headline::SCATTERED_WAITS_PCT;
use crate::model::analysis::{Analysis, VerdictKind};
use crate::model::limits::Limits;

/// A kernel is reported as slow only above this share of its device's kernel time, because smaller kernels cost too
/// little.
const SLOW_KERNEL_SHARE: f64 = 0.05;

/// All findings, the most severe first. `memory` holds the capacity of each device in bytes, by rank and device.
pub(crate) fn findings(analysis: &Analysis, limits: &Limits, memory: &BTreeMap<(i32, i64), i64>) -> Vec<FindingRow> {
    let mut findings = Vec::new();
    findings.extend(straggler(analysis));
    findings.extend(scattered_waits(analysis));
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
    findings.sort_by_key(|f| f.severity.known().unwrap_or(Severity::Info));
    findings
}

/// Makes a finding; `table` names the table that holds the numbers in `evidence`.
fn finding(severity: Severity, title: String, (table, evidence): (&str, String), suggestion: &str) -> FindingRow {
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
        VerdictKind::Cause => Severity::Critical,
        VerdictKind::Undecided => Severity::Warning,
        VerdictKind::Balanced | VerdictKind::Nothing => return None,
    };
    let row = analysis.tables.stragglers.iter().find(|s| Some(s.rank) == verdict.rank)?;
    let evidence = row.evidence.clone().unwrap_or_else(|| verdict.sentence.as_str().into());
    let suggestion = match verdict.reason.as_ref().and_then(Word::known) {
        Some(Reason::Input) => {
            "look at the data loader of that rank: its storage, its workers, the size of its samples"
        }
        Some(Reason::Communication) => {
            "look at the network of that rank's host, and at the algorithm and channels it uses"
        }
        Some(Reason::Host) => {
            "the device waits for its host: look for other processes, frequency limits and Python work there"
        }
        _ => "look at the named range on that rank: more work, a slower device, or a noisy neighbour",
    };
    Some(finding(severity, verdict.sentence.clone(), ("stragglers", evidence.to_string()), suggestion))
}

/// Ranks wait, but for different ranks in different steps, so the verdict names none.
fn scattered_waits(analysis: &Analysis) -> Option<FindingRow> {
    let verdict = &analysis.verdict;
    (verdict.kind == VerdictKind::Undecided && verdict.rank.is_none()).then(|| {
        let evidence = format!(
            "stragglers.suffered_wait_ns and caused_wait_ns; threshold {SCATTERED_WAITS_PCT} % of a step (this program's)"
        );
        finding(
            Severity::Warning,
            verdict.sentence.clone(),
            ("stragglers", evidence),
            "see collective_waits step by step: which rank was last, and whether that rank or step has more work",
        )
    })
}

/// The first collective in which some ranks wait and another rank is missing; without such a collective, the first in
/// which all ranks wait.
fn hang(analysis: &Analysis) -> Option<FindingRow> {
    let rows = &analysis.tables.unfinished_collectives;
    let row = rows.first()?;
    let or_empty = |ranks: &Option<Vec<i32>>| ranks.clone().unwrap_or_default();
    let (done, started) = (or_empty(&row.done), or_empty(&row.started));
    let (enqueued, missing) = (or_empty(&row.enqueued), or_empty(&row.missing));
    let seq = row.seq.map_or(String::new(), |seq| format!(" {seq}"));
    let comm = row.comm_name.as_deref().map_or_else(|| format!("{:#x}", row.comm_id), |name| format!("{name:?}"));
    let name = format!("{}{seq} of communicator {comm}", row.op);
    let (waiting, verb) = if started.is_empty() { (&enqueued, "called") } else { (&started, "entered") };
    let named = |ranks: &[i32]| format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks));
    let title = match missing.is_empty() {
        true => format!("{name} did not end: {} {verb} it", named(waiting)),
        false => {
            let is = if missing.len() == 1 { "is" } else { "are" };
            format!("{} {is} missing from {name}: {} {verb} it and did not leave", named(&missing), named(waiting))
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
        evidence.push_str("; rows were lost, so a missing rank may have called it");
    }
    if row.unknown > 0 {
        evidence.push_str(&format!("; {} not read, or only in part", plural(row.unknown as usize, "rank")));
    }
    let (severity, suggestion) = match (missing.is_empty(), row.unknown) {
        (true, 0) => (
            Severity::Warning,
            "every rank called it: look for a link or a device that stopped, or a recording that was cut",
        ),
        (true, _) => {
            (Severity::Warning, "analyse all ranks over their whole time: a rank that was not read may be missing")
        }
        (false, _) => (
            Severity::Critical,
            "look at what those ranks did instead: an exception, another branch, an endless loop, a dead process",
        ),
    };
    Some(finding(severity, title, ("unfinished_collectives", evidence), suggestion))
}

fn list(numbers: &[i32]) -> String {
    if numbers.is_empty() { "none".into() } else { ranks(numbers) }
}

fn lost_rows(analysis: &Analysis) -> Option<FindingRow> {
    let facts = &analysis.facts;
    (facts.dropped > 0).then(|| {
        let total = facts.recorded.saturating_add(facts.dropped).max(1);
        let pct = 100.0 * facts.dropped as f64 / total as f64;
        finding(
            Severity::Warning,
            format!("{} rows were lost while recording ({pct:.2} %)", facts.dropped),
            ("counters", "counters.dropped, summed over ranks; threshold: any".into()),
            "counts and totals are lower bounds; record fewer steps, or give the recorder larger queues",
        )
    })
}

/// Recording was off during a part of the program. If it was off all the time, the verdict has that as its reason.
fn not_recorded(analysis: &Analysis) -> Option<FindingRow> {
    const NAMED: usize = 4;
    let facts = &analysis.facts;
    let pauses = &facts.recording_was_off;
    (facts.nothing_because.is_empty() && !pauses.is_empty()).then(|| {
        let rest = pauses.len().saturating_sub(NAMED);
        let rest = if rest > 0 { format!("; and {rest} more like these") } else { String::new() };
        finding(
            Severity::Info,
            "part of the program was not recorded: recording was off for some of the time".into(),
            ("counters", format!("{}{rest}", pauses[..pauses.len().min(NAMED)].join("; "))),
            "counts and totals cover the recorded part only; --delay, --duration and rank-agent ctl choose that part",
        )
    })
}

fn clock(analysis: &Analysis) -> Option<FindingRow> {
    let violations: i64 = analysis.tables.clock_fit.iter().map(|c| c.violations).sum();
    if violations > 0 {
        return Some(finding(
            Severity::Warning,
            format!("the clocks contradict the order of events in {violations} collectives"),
            (
                "clock_fit",
                "clock_fit.violations: a rank left a collective before another rank entered it, by more than both bounds"
                    .into(),
            ),
            "do not trust time differences between those ranks; see clock_fit, and check whether a system clock was set",
        ));
    }
    let instances = &analysis.tables.collective_instances;
    let unknown = instances.iter().filter(|i| i.error_ns.is_none()).count();
    if unknown > 0 {
        return Some(finding(
            Severity::Warning,
            format!("the error of the clocks is unknown for {unknown} of {}", plural(instances.len(), "collective")),
            (
                "collective_instances",
                "collective_instances.error_ns is null: the clocks of these ranks were never compared, and no barrier joins them"
                    .into(),
            ),
            "skew and waits there may be clock offsets only; own_excess_ns needs no common clock and stays valid",
        ));
    }
    let with_error = instances.iter().filter_map(|i| Some((i.skew_ns, i.error_ns?)));
    let (inside, total) =
        with_error.fold((0, 0), |(inside, total), (skew, error)| (inside + i64::from(skew <= error), total + 1));
    (total > 0 && 2 * inside > total).then(|| {
        finding(
            Severity::Info,
            "in most collectives the ranks arrive closer together than the clock error".into(),
            (
                "collective_instances",
                format!("skew_ns ≤ error_ns in {inside} of {total} collectives; threshold: half"),
            ),
            "ignore the waits and the order of arrival in those collectives; own_excess_ns needs no common clock and stays valid",
        )
    })
}

/// The breakdown rows of single steps. The total over all steps and empty steps are excluded.
fn step_rows(analysis: &Analysis) -> impl Iterator<Item = &StepBreakdownRow> {
    analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0) && r.wall_ns > 0)
}

fn exposed(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let (exposed, wall) = step_rows(analysis).fold((0_i64, 0_i64), |(e, w), r| (e + r.exposed_comm_ns, w + r.wall_ns));
    let pct = 100.0 * exposed as f64 / wall.max(1) as f64;
    (pct > limits.exposed_comm_pct).then(|| {
        finding(
            Severity::Warning,
            format!("{pct:.0} % of the step is exposed communication, including waits for late ranks"),
            ("step_breakdown", format!(
                "exposed_comm_ns / wall_ns over all steps and ranks; threshold {} % (TensorBoard plugin)",
                limits.exposed_comm_pct
            )),
            "fix stragglers first, because waits for them count here; then use smaller buckets, or more compute per step",
        )
    })
}

/// Compute time and wall time of each device, summed over its steps; by rank and device.
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

/// The share of `part` in `whole`, in percent.
fn share((part, whole): &(i64, i64)) -> f64 {
    100.0 * *part as f64 / (*whole).max(1) as f64
}

fn idle_device(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let by_device = compute_of_devices(analysis);
    let idle: Vec<_> = by_device.iter().filter(|(_, sums)| share(sums) < limits.device_busy_pct).collect();
    let (worst, sums) = idle.iter().min_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)))?;
    Some(finding(
        Severity::Warning,
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
        "see idle_breakdown: host_wait means that the host launches too slowly, other means that streams wait for each other",
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
            Severity::Warning,
            format!("{pct:.0} % of the step is spent on input"),
            ("data_loading", format!(
                "data_loading.total_ns / wall_ns over the steps of {} with input ranges; most: rank {worst} with {:.0} %; \
                 threshold {} % (TensorBoard plugin)",
                plural(by_rank.len(), "rank"),
                share(sums),
                limits.input_pct
            )),
            "load ahead: use more workers, pinned memory, or batches that are prepared while the step runs",
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
            Severity::Warning,
            format!("rank {} uses {pct:.0} % of its device's memory", row.rank),
            (
                "memory_peaks",
                format!("peak {}; threshold {} % (TensorBoard plugin)", bytes(row.peak_bytes), limits.memory_pct),
            ),
            "the next allocation may fail; memory_peaks.alive lists the largest holders",
        )
    })
}

fn slow_device(analysis: &Analysis, limits: &Limits) -> Option<FindingRow> {
    let kernels = &analysis.tables.kernel_stats;
    let mut totals: BTreeMap<(i32, Option<i64>), i64> = BTreeMap::new();
    for kernel in kernels {
        *totals.entry((kernel.rank, kernel.device_id)).or_default() += kernel.total_ns;
    }
    let weighty = kernels.iter().filter(|k| {
        let total = totals.get(&(k.rank, k.device_id)).copied().unwrap_or(0);
        k.work != WorkType::Communication && k.total_ns as f64 > SLOW_KERNEL_SHARE * total as f64
    });
    let (kernel, ratio) = weighty
        .filter_map(|k| Some((k, k.vs_median_device?)))
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .filter(|(_, ratio)| *ratio > limits.slow_device_ratio)?;
    Some(finding(
        Severity::Warning,
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
        "check that device's clocks, power and temperature, and whether the kernel's shapes are the same as on other ranks",
    ))
}
