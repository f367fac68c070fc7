//! The sections of the summary. Each section prints one table of the analysis.

use std::collections::{BTreeMap, BTreeSet};

use anstyle::{AnsiColor, Style};
use trace::{BucketTimingRow, OmissionRow, StandsOn, StragglerRow, Verdict};

use crate::base::stats::lower_median;
use crate::base::units::{bytes, count, ns, omission as omission_line, omission_kind, plural};
use crate::model::analysis::Analysis;
use crate::render::grid::Grid;
use crate::render::rank_order::by_prominence;
use crate::render::summary::exposed::by_origin;
use crate::render::summary::{TerminalStyle, heading, sentence};

/// Means over the steps of one rank and device.
#[derive(Clone, Copy, Default)]
struct Means {
    steps: i64,
    wall: i64,
    compute: i64,
    overlap: i64,
    exposed: i64,
    memory: i64,
    idle: i64,
    /// Part of `idle`.
    overhead: i64,
}

impl Means {
    fn percent(&self, part: i64) -> Option<f64> {
        (self.wall > 0).then(|| 100.0 * part as f64 / self.wall as f64)
    }
}

fn means(analysis: &Analysis) -> BTreeMap<(i32, Option<i64>), Means> {
    let mut means: BTreeMap<(i32, Option<i64>), Means> = BTreeMap::new();
    for row in analysis.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0)) {
        let m = means.entry((row.rank, row.device_id)).or_default();
        m.steps += 1;
        m.wall += row.wall_ns;
        m.compute += row.compute_ns;
        m.overlap += row.overlap_ns;
        m.exposed += row.exposed_comm_ns;
        m.memory += row.memory_ns;
        m.idle += row.idle_ns;
        m.overhead += row.overhead_ns;
    }
    means
}

/// Prints the parts of a step by rank.
pub(super) fn step_breakdown(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let means = means(analysis);
    if means.is_empty() {
        return;
    }
    heading(text, "Step", "mean over steps; the parts sum to 100 %", terminal);
    let interesting = interesting(analysis);
    let shown = choose(means.keys().copied().collect(), terminal.top, |(rank, _)| {
        (!interesting.contains(rank), std::cmp::Reverse(means.get(&(*rank, None)).map_or(0, |m| m.wall)))
    });
    let rows: Vec<_> = shown.iter().filter_map(|key| Some((*key, *means.get(key)?))).collect();
    let percent = |f: fn(&Means) -> i64| rows.iter().map(|(_, m)| m.percent(f(m))).collect::<Vec<_>>();
    let mut grid = Grid::new().number("rank", 0, rows.iter().map(|((rank, _), _)| rank.to_string()).collect());
    if rows.iter().any(|((_, device), _)| device.is_some()) {
        let device = |d: Option<i64>| d.map_or("–".into(), |d| d.to_string());
        grid = grid.number("device", 3, rows.iter().map(|((_, d), _)| device(*d)).collect());
    }
    let wall = rows.iter().map(|(_, m)| m.wall.checked_div(m.steps)).collect();
    let has_memory = rows.iter().any(|(_, m)| m.memory > 0);
    grid = grid
        .time("step", 0, wall)
        .percent("compute", 0, percent(|m| m.compute))
        .percent("overlap", 0, percent(|m| m.overlap))
        .percent("exposed", 0, percent(|m| m.exposed));
    if has_memory {
        grid = grid.percent("copies", 0, percent(|m| m.memory));
    }
    grid = grid.percent("idle", 0, percent(|m| m.idle));
    let letters = if has_memory { "c=compute o=overlap x=exposed m=copies" } else { "c=compute o=overlap x=exposed" };
    // The bar is left out unless the whole bar fits.
    if terminal.width >= grid.width() + 2 + BAR.max(letters.len()) {
        grid = grid.text(letters, 1, rows.iter().map(|(_, m)| bar(m)).collect());
    }
    let styles = rows.iter().map(|((rank, _), _)| verdict_style(analysis, *rank)).collect();
    text.push_str(&grid.styled(styles).render(terminal.width, terminal.colour));
    not_shown(text, means.len() - rows.len(), "rank", terminal);
    let overhead = means.values().filter_map(|m| m.percent(m.overhead)).fold(0.0, f64::max);
    if overhead >= LEAST_OVERHEAD_PCT {
        let words = format!(
            "idle includes overhead of the profiler and the driver, up to {overhead:.1} % of the steps of a device"
        );
        sentence(text, &words, terminal);
    }
}

/// Overhead below this share of the steps, in percent, would be printed as 0.0 %.
const LEAST_OVERHEAD_PCT: f64 = 0.05;

const BAR: usize = 32;

/// Draws the parts of a step as a bar.
fn bar(m: &Means) -> String {
    let parts = [('c', m.compute), ('o', m.overlap), ('x', m.exposed), ('m', m.memory), ('.', m.idle)];
    let mut text = String::new();
    let mut sum = 0_i64;
    for (letter, part) in parts {
        sum += part;
        let end = if m.wall > 0 { (BAR as f64 * sum as f64 / m.wall as f64).round() as usize } else { 0 };
        while text.len() < end.min(BAR) {
            text.push(letter);
        }
    }
    text
}

/// Ranks that are always shown: those with a verdict.
fn interesting(analysis: &Analysis) -> BTreeSet<i32> {
    let named = analysis
        .tables
        .stragglers
        .iter()
        .filter(|s| matches!(s.verdict.known(), Some(Verdict::Cause | Verdict::Undecided)));
    named.map(|s| s.rank).chain(analysis.verdict.rank).collect()
}

fn verdict_style(analysis: &Analysis, rank: i32) -> Style {
    let rows = &analysis.tables.stragglers;
    let row = rows.binary_search_by_key(&rank, |s| s.rank).ok().map(|at| &rows[at]);
    match row.and_then(|s| s.verdict.known()) {
        Some(Verdict::Cause) => Style::new().fg_color(Some(AnsiColor::Red.into())),
        Some(Verdict::Undecided) => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        _ => Style::new(),
    }
}

/// Returns the `top` most important keys, sorted.
pub(super) fn choose<K: Ord + Copy, I: Ord>(keys: Vec<K>, top: usize, importance: impl Fn(&K) -> I) -> Vec<K> {
    let mut chosen = keys;
    chosen.sort_by_cached_key(|k| (importance(k), *k));
    chosen.truncate(top);
    chosen.sort_unstable();
    chosen
}

pub(super) fn not_shown(text: &mut String, n: usize, noun: &str, terminal: &TerminalStyle) {
    if n > 0 {
        sentence(text, &format!("{} not shown (--top)", plural(n, &format!("more {noun}"))), terminal);
    }
}

/// Prints the hidden share of communication, and the cost of collectives by operation and size.
pub(super) fn overlap(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let instances = &analysis.tables.collective_instances;
    if instances.is_empty() {
        return;
    }
    let (overlap, exposed) = means(analysis).values().fold((0, 0), |(o, e), m| (o + m.overlap, e + m.exposed));
    let hidden = 100.0 * overlap as f64 / (overlap + exposed).max(1) as f64;
    heading(text, "Communication", "medians over collectives; transfer is the time after the last arrival", terminal);
    sentence(text, &format!("{hidden:.1} % of the communication time is hidden under compute"), terminal);
    by_origin(text, analysis, terminal);
    let mut groups: BTreeMap<(&str, Option<i64>), Vec<&trace::InstanceRow>> = BTreeMap::new();
    for row in instances {
        groups.entry((&row.op, row.bytes)).or_default().push(row);
    }
    let total = groups.len();
    let weight = |rows: &Vec<&trace::InstanceRow>| rows.iter().map(|r| r.end_ns - r.first_start_ns).sum::<i64>();
    let shown = choose(groups.keys().copied().collect(), terminal.top, |key| {
        std::cmp::Reverse(groups.get(key).map_or(0, weight))
    });
    let rows: Vec<_> = shown.iter().filter_map(|key| Some((*key, groups.get(key)?))).collect();
    let median = |f: &dyn Fn(&trace::InstanceRow) -> Option<i64>| {
        rows.iter().map(|(_, g)| lower_median(g.iter().filter_map(|r| f(r)))).collect::<Vec<_>>()
    };
    let rate = |f: &dyn Fn(&trace::InstanceRow) -> Option<f64>| {
        let of_group = |g: &[&trace::InstanceRow]| {
            let mut rates: Vec<f64> = g.iter().filter_map(|r| f(r)).collect();
            rates.sort_by(f64::total_cmp);
            rates.get(rates.len().saturating_sub(1) / 2).map_or("–".into(), |r| format!("{r:.2}"))
        };
        rows.iter().map(|(_, g)| of_group(g)).collect::<Vec<String>>()
    };
    let grid = Grid::new()
        .text("operation", 0, rows.iter().map(|((op, _), _)| op.to_string()).collect())
        .number("size", 0, rows.iter().map(|((_, b), _)| b.map_or("–".into(), bytes)).collect())
        .number("count", 1, rows.iter().map(|(_, g)| count(g.len() as u64)).collect())
        .time("skew", 0, median(&|r| (r.ranks_seen > 1).then_some(r.skew_ns)))
        .time("transfer", 0, median(&|r| r.transfer_ns))
        .number("algbw GB/s", 3, rate(&|r| r.algbw_gbs))
        .number("busbw GB/s", 0, rate(&|r| r.busbw_gbs))
        .number("with waits GB/s", 2, rate(&|r| r.busbw_incl_wait_gbs));
    text.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(text, total - rows.len(), "kind", terminal);
    let incomplete = instances.iter().filter(|i| !i.complete).count();
    if incomplete > 0 {
        let words =
            format!("{} incomplete: skew is a lower bound, transfer time is unknown", plural(incomplete, "collective"));
        sentence(text, &words, terminal);
    }
}

/// Prints the times of each gradient bucket.
pub(super) fn buckets(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let mut groups: BTreeMap<i32, Vec<&BucketTimingRow>> = BTreeMap::new();
    for row in &analysis.tables.bucket_timing {
        groups.entry(row.bucket).or_default().push(row);
    }
    if groups.is_empty() {
        return;
    }
    heading(text, "Buckets", "medians over steps and ranks, in launch order", terminal);
    let rows: Vec<_> = groups.iter().take(terminal.top).collect();
    let median = |f: fn(&BucketTimingRow) -> Option<i64>| {
        rows.iter().map(|(_, g)| lower_median(g.iter().filter_map(|r| f(r)))).collect::<Vec<_>>()
    };
    let hidden = rows.iter().map(|(_, g)| {
        let (exposed, total) = g.iter().fold((0, 0), |(e, t), r| (e + r.exposed_ns, t + r.end_ns - r.start_ns));
        (total > 0).then(|| 100.0 * (1.0 - exposed as f64 / total as f64))
    });
    let size = |g: &[&BucketTimingRow]| g.iter().find_map(|r| r.bytes).map_or("–".into(), bytes);
    let grid = Grid::new()
        .number("bucket", 0, rows.iter().map(|(b, _)| b.to_string()).collect())
        .number("size", 0, rows.iter().map(|(_, g)| size(g)).collect())
        .time("queue", 1, median(|r| r.queue_ns))
        .time("wait", 0, median(|r| r.wait_ns))
        .time("transfer", 2, median(|r| r.transfer_ns))
        .time("exposed", 0, median(|r| Some(r.exposed_ns)))
        .percent("hidden", 0, hidden.collect());
    text.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(text, groups.len() - rows.len(), "bucket", terminal);
}

/// Prints own work, delays and waits by rank, the cause first. The first column of times is what the verdict stands on.
pub(super) fn stragglers(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let all = &analysis.tables.stragglers;
    if all.len() < 2 {
        return;
    }
    let mut rows = by_prominence(all);
    rows.truncate(terminal.top);
    let by = |basis: StandsOn| rows.first().is_some_and(|s| s.stands_on.as_ref().is_some_and(|word| *word == basis));
    let (by_range, by_transfers) = (by(StandsOn::Range), by(StandsOn::Transfers));
    let what = match rows.first().and_then(|s| s.evidence_range.as_deref()) {
        _ if by_transfers => "time in collectives beyond the other ranks (excess)".to_string(),
        _ if !by_range => "own work beyond the other ranks".to_string(),
        Some(range) => format!("time in `{range}` beyond the other ranks (excess)"),
        None => "time outside of all recorded ranges beyond the other ranks (excess)".to_string(),
    };
    heading(text, "Ranks", &format!("per step: {what}, step delay, waits caused and suffered"), terminal);
    let times = |f: &dyn Fn(&StragglerRow) -> Option<i64>| rows.iter().map(|s| f(s)).collect::<Vec<_>>();
    let excess = |s: &StragglerRow| if by_range || by_transfers { s.evidence_excess_ns } else { Some(s.own_excess_ns) };
    let is_shown = |s: &&StragglerRow| !by_transfers || s.evidence_excess_ns.is_some();
    let z = |s: &&StragglerRow| if by_range { s.evidence_z } else { s.z.filter(|_| is_shown(s)) };
    let persistence =
        |s: &&StragglerRow| if by_range { s.evidence_persistence } else { s.persistence.filter(|_| is_shown(s)) };
    let why = |s: &&StragglerRow| {
        let parts = [s.reason.as_deref(), s.evidence_range.as_deref()];
        let shown = parts.into_iter().flatten().filter(|_| s.stands_on.is_some());
        shown.collect::<Vec<_>>().join(" in ")
    };
    // The columns are compared with each other, so they have the same unit.
    let times_of_row =
        |s: &&StragglerRow| [excess(s).unwrap_or(0), s.step_delay_ns, s.caused_wait_ns, s.suffered_wait_ns];
    let largest = rows.iter().flat_map(times_of_row).map(i64::unsigned_abs).max().unwrap_or(0);
    let grid = Grid::new()
        .number("rank", 0, rows.iter().map(|s| s.rank.to_string()).collect())
        .text("verdict", 0, rows.iter().map(|s| s.verdict.to_string()).collect())
        .time_beside(if by_range || by_transfers { "excess" } else { "own excess" }, 0, times(&excess), largest)
        .time_beside("delay", 0, times(&|s| Some(s.step_delay_ns)), largest)
        .time_beside("caused", 3, times(&|s| Some(s.caused_wait_ns)), largest)
        .time_beside("suffered", 1, times(&|s| Some(s.suffered_wait_ns)), largest)
        .number("z", 2, rows.iter().map(|s| z(s).map_or("–".into(), short_z)).collect())
        .percent("of steps", 4, rows.iter().map(|s| persistence(s).map(|p| 100.0 * p)).collect())
        .text("why", 0, rows.iter().map(why).collect());
    let styles = rows.iter().map(|s| verdict_style(analysis, s.rank)).collect();
    text.push_str(&grid.styled(styles).render(terminal.width, terminal.colour));
    not_shown(text, all.len() - rows.len(), "rank", terminal);
}

fn short_z(z: f64) -> String {
    if z.abs() <= 100.0 { format!("{z:.1}") } else { format!("{} 100", if z > 0.0 { ">" } else { "<−" }) }
}

/// Prints the accuracy of the clocks.
pub(super) fn clocks(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let fits = &analysis.tables.clock_fit;
    let Some(first) = fits.first().filter(|_| analysis.facts.ranks.len() > 1) else { return };
    heading(text, "Clocks", &format!("global time is the clock of rank {}", first.reference_rank), terminal);
    let mut by_method: BTreeMap<(&str, &str), Vec<&trace::ClockFitRow>> = BTreeMap::new();
    for fit in fits {
        by_method.entry((&fit.clock, &fit.method)).or_default().push(fit);
    }
    for ((clock, method), fits) in by_method {
        let worst = |f: fn(&trace::ClockFitRow) -> Option<i64>| {
            let all: Option<Vec<i64>> = fits.iter().map(|r| f(r)).collect();
            all.and_then(|all| all.into_iter().max()).map_or("unknown".into(), ns)
        };
        let offset = fits.iter().map(|f| f.offset_ns.saturating_abs()).max().unwrap_or(0);
        // The reference has no drift by definition, so it is excluded.
        let others = fits.iter().filter(|f| fits.len() == 1 || f.rank != f.reference_rank);
        let drift = others.filter_map(|f| f.drift_ppb).map(f64::abs).reduce(f64::max);
        let drift = drift.map_or(", drift not measured".into(), |d| format!(" and {:.3} ppm", d / 1000.0));
        let bias = fits.iter().filter_map(|f| f.bias_ns).max().filter(|bias| *bias > 0);
        let bias = bias.map_or(String::new(), |bias| format!(", up to {} more if a rank always leaves late", ns(bias)));
        let words = format!(
            "{} by {method}: error {} (95 %){bias}, guaranteed within {}; corrected by up to {}{drift}",
            plural(fits.iter().map(|f| f.rank).collect::<BTreeSet<_>>().len(), &format!("{clock} clock")),
            worst(|f| f.error_ns),
            worst(|f| f.bound_ns),
            ns(offset),
        );
        sentence(text, &words, terminal);
    }
    let violations: i64 = fits.iter().map(|f| f.violations).sum();
    let disagree = analysis.tables.collective_instances.iter().filter(|i| i.clocks_disagree).count();
    sentence(
        text,
        &format!(
            "{} of the rule that no rank leaves before all ranks have entered",
            plural(violations.max(0) as usize, "violation")
        ),
        terminal,
    );
    if disagree > 0 {
        let words = format!(
            "in {}, waits by clocks and waits by durations alone differ by more than the clock error: ranks did not leave together",
            plural(disagree, "collective")
        );
        sentence(text, &words, terminal);
    }
}

/// Prints the data that the numbers do not cover, and remarks on the input.
pub(super) fn left_out(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let of = |kind: &str| -> Vec<&OmissionRow> {
        analysis.tables.omissions.iter().filter(|omission| omission_kind(omission) == kind).collect()
    };
    let (lost, left_out, notes) = (of("lost"), of("left out"), of("note"));
    if lost.is_empty() && left_out.is_empty() {
        heading(text, "Left out", "nothing", terminal);
    }
    let mut list = |title, subtitle, omissions: &[&OmissionRow]| {
        if omissions.is_empty() {
            return;
        }
        heading(text, title, subtitle, terminal);
        omissions.iter().take(terminal.top).for_each(|row| sentence(text, &omission_line(row), terminal));
        not_shown(text, omissions.len().saturating_sub(terminal.top), "omission", terminal);
    };
    list("Input", "how it was read", &notes);
    list("Lost", "recorded, but not in the numbers above", &lost);
    list("Left out", "not in the numbers above; nothing recorded was lost", &left_out);
}

/// Prints the findings, each with a suggestion.
pub(super) fn findings(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let findings = &analysis.tables.findings;
    if findings.is_empty() {
        return;
    }
    heading(text, "Findings", "with suggestions; --json prints the evidence", terminal);
    for finding in findings.iter().take(terminal.top) {
        let saving = analysis.saving(finding).map_or(String::new(), |words| format!(" ({words})"));
        sentence(text, &format!("{}{saving}: {} → {}", finding.severity, finding.title, finding.suggestion), terminal);
    }
    not_shown(text, findings.len().saturating_sub(terminal.top), "finding", terminal);
}
