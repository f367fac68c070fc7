//! Findings: the problems that an engineer should look at first, as sentences. Each has its evidence, its threshold and
//! the source of the threshold. `docs/method/findings.md` lists them, with the bound of each predicted saving.

pub(crate) mod communication;
mod devices;
mod first_steps;
pub(crate) mod hang;
mod input;
mod kernels;
mod memory;
mod occupancy;
pub(crate) mod overhead;
pub(crate) mod stages;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::{FindingRow, Severity, StepBreakdownRow};

use crate::base::units::{plural, ranks_named, shorten};
use crate::judge::headline::{SCATTERED_WAITS_PCT, is_without_cost};
use crate::model::analysis::{Analysis, VerdictKind};
use crate::model::limits::Limits;
use crate::model::options::Options;

/// All findings. Those that make numbers invalid come first, then those with a predicted saving, the largest first, then
/// the others by severity. `memory` holds the capacity of each device in bytes, by rank and device; `of_ranks` the
/// findings that need more of the ranks than the tables have.
pub(crate) fn findings(
    analysis: &Analysis,
    options: &Options,
    memory: &BTreeMap<(i32, i64), i64>,
    of_ranks: Vec<FindingRow>,
) -> Vec<FindingRow> {
    let limits = &options.limits;
    let mut findings: Vec<FindingRow> =
        [hang::hang(analysis), lost_rows(analysis), invalid_clock(analysis)].into_iter().flatten().collect();
    findings.sort_by_key(severity);
    let mut others = of_ranks;
    others.extend(straggler(analysis));
    others.extend(scattered_waits(analysis));
    others.extend(not_recorded(analysis));
    others.extend(coarse_clock(analysis));
    others.extend(communication::exposed(analysis, limits));
    others.extend(communication::late_gathers(analysis));
    others.extend(stages::imbalance(analysis));
    others.extend(stages::bubble(analysis));
    others.extend(input::findings(analysis, limits));
    others.extend(memory::findings(analysis, limits, memory));
    others.extend(kernels::slow_device(analysis, limits));
    others.extend(occupancy::findings(analysis, limits));
    others.extend(devices::findings(analysis, limits));
    others.extend(first_steps::first_steps(analysis).filter(|_| options.takes_whole_ranks()));
    for finding in &mut others {
        // The named device may have longer steps than the median one.
        finding.saving_ns = finding.saving_ns.map(|ns| ns.min(analysis.verdict.step_ns.unwrap_or(ns)));
    }
    others.sort_by_key(|finding| (Reverse(finding.saving_ns), severity(finding)));
    findings.extend(others);
    findings
}

fn severity(finding: &FindingRow) -> Severity {
    finding.severity.known().unwrap_or(Severity::Info)
}

/// Makes a finding; `table` names the table that holds the numbers in `evidence`.
fn finding(severity: Severity, title: String, (table, evidence): (&str, String), suggestion: &str) -> FindingRow {
    FindingRow {
        severity: severity.into(),
        saving_ns: None,
        title: title.into(),
        evidence: evidence.into(),
        evidence_table: table.into(),
        suggestion: suggestion.into(),
    }
}

/// Adds the prediction: a step becomes shorter by at most `saving_ns`.
fn saving(saving_ns: i64, finding: FindingRow) -> FindingRow {
    FindingRow { saving_ns: Some(saving_ns.max(0)), ..finding }
}

fn straggler(analysis: &Analysis) -> Option<FindingRow> {
    let verdict = &analysis.verdict;
    let severity = match verdict.kind {
        VerdictKind::Cause => Severity::Critical,
        VerdictKind::Undecided if verdict.within_variation => Severity::Info,
        VerdictKind::Undecided => Severity::Warning,
        VerdictKind::Balanced | VerdictKind::Nothing | VerdictKind::Hung => Severity::Info,
    };
    let row = analysis.tables.stragglers.iter().find(|s| Some(s.rank) == verdict.rank)?;
    if verdict.kind == VerdictKind::Balanced && !is_without_cost(row) {
        return None;
    }
    let evidence = row.evidence.clone().unwrap_or_else(|| verdict.sentence.as_str().into());
    let suggestion = match verdict.kind {
        VerdictKind::Balanced => "nothing to do: the step would not be shorter without it",
        _ => verdict.action.as_deref().unwrap_or("record more steps"),
    };
    let found = finding(severity, verdict.sentence.clone(), ("stragglers", evidence.to_string()), suggestion);
    Some(saving(row.step_delay_ns, found))
}

/// Ranks wait, but for different ranks in different steps, so the verdict names none.
fn scattered_waits(analysis: &Analysis) -> Option<FindingRow> {
    let verdict = &analysis.verdict;
    let wait_ns = verdict.exposed_wait_ns.unwrap_or(0) as f64;
    let is_long = 100.0 * wait_ns >= SCATTERED_WAITS_PCT * verdict.step_ns.unwrap_or(i64::MAX) as f64;
    (verdict.kind == VerdictKind::Undecided && verdict.rank.is_none() && is_long).then(|| {
        let evidence = format!(
            "collective_waits.exposed_wait_ns less the clocks' error, by rank; threshold {SCATTERED_WAITS_PCT} % of a step (this \
             program's)"
        );
        // Without any wait, the rank that waits most needs its step less its waits.
        let most_ns = analysis.tables.stragglers.iter().map(|row| row.suffered_wait_ns).max().unwrap_or(0);
        let found = finding(
            Severity::Warning,
            verdict.sentence.clone(),
            ("stragglers", evidence),
            verdict.action.as_deref().unwrap_or("record more steps"),
        );
        saving(most_ns, found)
    })
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
            "counts and totals cover the recorded part only; --paused, --delay, --duration and rankscope ctl choose that part",
        )
    })
}

/// The clocks contradict themselves, or their error is unknown.
fn invalid_clock(analysis: &Analysis) -> Option<FindingRow> {
    let fits = &analysis.tables.clock_fit;
    let violations: i64 = fits.iter().map(|c| c.violations).sum();
    if violations > 0 {
        let mut of_ranks: Vec<i32> = fits.iter().filter(|c| c.violations > 0).map(|c| c.rank).collect();
        of_ranks.dedup();
        return Some(finding(
            Severity::Warning,
            format!("the clocks of {} contradict the order of events in {violations} collectives", ranks_named(&of_ranks)),
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
    (unknown > 0).then(|| {
        finding(
            Severity::Warning,
            format!("the error of the clocks is unknown for {unknown} of {}", plural(instances.len(), "collective")),
            (
                "collective_instances",
                "collective_instances.error_ns is null: the clocks of these ranks were never compared, and no barrier joins them"
                    .into(),
            ),
            "skew and waits there may be clock offsets only; own_excess_ns needs no common clock and stays valid",
        )
    })
}

/// The clocks are right, but not as accurate as the ranks are close.
fn coarse_clock(analysis: &Analysis) -> Option<FindingRow> {
    if invalid_clock(analysis).is_some() {
        return None;
    }
    let with_error = analysis.tables.collective_instances.iter().filter_map(|i| Some((i.skew_ns, i.error_ns?)));
    let (inside, total) =
        with_error.fold((0, 0), |(inside, total), (skew, error)| (inside + i64::from(skew <= error), total + 1));
    (total > 0 && 2 * inside > total).then(|| {
        finding(
            Severity::Info,
            format!("in {inside} of {total} collectives, the ranks arrive closer together than the clock error"),
            ("collective_instances", "skew_ns ≤ error_ns; threshold: half of the collectives".into()),
            "ignore the waits and the order of arrival in those collectives; own_excess_ns needs no common clock and stays valid",
        )
    })
}

/// The breakdown rows of single steps. The total over all steps and empty steps are excluded.
fn step_rows(analysis: &Analysis) -> impl Iterator<Item = &StepBreakdownRow> {
    analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0) && r.wall_ns > 0)
}

/// The time of one device in its steps.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceTime {
    steps: i64,
    wall_ns: i64,
    compute_ns: i64,
    idle_ns: i64,
    overhead_ns: i64,
}

impl DeviceTime {
    /// The share of the time in which the device computes, in percent. Time of the profiler does not count.
    fn compute_pct(&self) -> f64 {
        share(&(self.compute_ns, self.wall_ns - self.overhead_ns))
    }

    /// The mean idle time in a step, without that of the profiler.
    fn own_idle_ns(&self) -> i64 {
        (self.idle_ns - self.overhead_ns) / self.steps.max(1)
    }
}

/// Devices by rank and number.
type Devices = BTreeMap<(i32, i64), DeviceTime>;

/// The time of each device, summed over its steps.
fn devices_of(analysis: &Analysis) -> Devices {
    let mut devices = Devices::new();
    for row in step_rows(analysis) {
        if let Some(device) = row.device_id {
            let sum = devices.entry((row.rank, device)).or_default();
            sum.steps += 1;
            sum.wall_ns = sum.wall_ns.saturating_add(row.wall_ns);
            sum.compute_ns = sum.compute_ns.saturating_add(row.compute_ns + row.overlap_ns);
            sum.idle_ns = sum.idle_ns.saturating_add(row.idle_ns);
            sum.overhead_ns = sum.overhead_ns.saturating_add(row.overhead_ns);
        }
    }
    devices
}

/// The share of `part` in `whole`, in percent.
fn share((part, whole): &(i64, i64)) -> f64 {
    100.0 * *part as f64 / (*whole).max(1) as f64
}

/// `device 0 of rank 3`, or `rank 3` for its CPU.
fn place(rank: i32, device: Option<i64>) -> String {
    device.map_or(format!("rank {rank}"), |device| format!("device {device} of rank {rank}"))
}

/// The device that is idle most, and its time. Ranks that the verdict names as a cause count only if there are no others:
/// their idle time is the saving of the verdict.
fn most_idle<'a>(
    analysis: &Analysis,
    devices: impl Iterator<Item = (&'a (i32, i64), &'a DeviceTime)>,
) -> Option<(&'a (i32, i64), &'a DeviceTime)> {
    let causes: BTreeSet<i32> = analysis.verdict.causes.iter().copied().collect();
    devices.max_by_key(|((rank, device), time)| (!causes.contains(rank), time.own_idle_ns(), Reverse((*rank, *device))))
}

/// A kernel's name in a title: names of templates may have thousands of letters.
fn short_name(name: &str) -> String {
    shorten(name, 80)
}

/// Some of `all` devices in words: `the devices of ranks 0–3`, `device 1 of rank 0 and 2 more`.
fn devices_named(chosen: &[(i32, i64)], all: &Devices) -> String {
    let by_rank = |keys: &mut dyn Iterator<Item = &(i32, i64)>| {
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        keys.for_each(|(rank, _)| *counts.entry(*rank).or_default() += 1);
        counts
    };
    let (of_chosen, of_all) = (by_rank(&mut chosen.iter()), by_rank(&mut all.keys()));
    let mut whole = of_chosen.iter().map(|(rank, devices)| of_all.get(rank) == Some(devices));
    match chosen {
        [] => "no device".into(),
        [(rank, device)] => place(*rank, Some(*device)),
        many if whole.all(|is_whole| is_whole) => {
            let mut of_ranks: Vec<i32> = many.iter().map(|(rank, _)| *rank).collect();
            of_ranks.dedup();
            format!("the devices of {}", ranks_named(&of_ranks))
        }
        [(rank, device), rest @ ..] => format!("{} and {} more", place(*rank, Some(*device)), rest.len()),
    }
}
