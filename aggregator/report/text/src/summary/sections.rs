//! The sections of the summary. Each section prints one table of the analysis.

use std::collections::{BTreeMap, BTreeSet};

use trace::{BucketTimingRow, OmissionRow, StandsOn, StragglerRow};

use crate::grid::Grid;
use crate::summary::brief::sums;
use crate::summary::exposed::{bandwidths, by_origin};
use crate::summary::style::{TerminalStyle, bias, choose, heading, not_shown, sentence, verdict_style};
use model::analysis::Analysis;
use model::rank_order::by_prominence;
use model::stats::lower_median;
use model::units::{bytes, count, ns, omission as omission_line, omission_kind, plural};

/// Prints the hidden share of communication, and the cost of collectives by operation and size.
pub(super) fn overlap(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let instances = &analysis.tables.collective_instances;
    if instances.is_empty() {
        return;
    }
    let (overlap, exposed) = sums(analysis).values().fold((0, 0), |(o, e), m| (o + m.overlap, e + m.exposed));
    let hidden = 100.0 * overlap as f64 / (overlap + exposed).max(1) as f64;
    heading(
        text,
        "Communication",
        "medians over collectives; a skew far above the transfer (the time after the last arrival) is waiting for late ranks",
        terminal,
    );
    sentence(text, &format!("{hidden:.1} % of the communication time is hidden under compute"), terminal);
    by_origin(text, analysis, terminal);
    let mut groups: BTreeMap<(&str, Option<i64>), Vec<&trace::InstanceRow>> = BTreeMap::new();
    for row in instances {
        groups.entry((&row.op, row.bytes)).or_default().push(row);
    }
    let total = groups.len();
    let weight = |rows: &Vec<&trace::InstanceRow>| rows.iter().map(|r| r.end_ns - r.first_start_ns).sum::<i64>();
    let shown = choose(groups.keys().copied().collect(), terminal.rows(), |key| {
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
    bandwidths(text, analysis, terminal);
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
    heading(
        text,
        "Buckets",
        "medians over steps and ranks, in launch order; a step pays for the exposed time",
        terminal,
    );
    let rows: Vec<_> = groups.iter().take(terminal.rows()).collect();
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
    rows.truncate(terminal.rows());
    let by = |basis: StandsOn| rows.first().is_some_and(|s| s.stands_on.as_ref().is_some_and(|word| *word == basis));
    let (by_range, by_transfers) = (by(StandsOn::Range), by(StandsOn::Transfers));
    let what = match rows.first().and_then(|s| s.evidence_range.as_deref()) {
        _ if by_transfers => "time in collectives beyond the other ranks (excess)".to_string(),
        _ if !by_range => "own work beyond the other ranks".to_string(),
        Some(range) => format!("time in `{range}` beyond the other ranks (excess)"),
        None => "time outside of all recorded ranges beyond the other ranks (excess)".to_string(),
    };
    heading(
        text,
        "Ranks",
        &format!(
            "the rank of the verdict first; a delay is what the rank costs. Per step: {what}, the delay, waits caused and suffered"
        ),
        terminal,
    );
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
    heading(
        text,
        "Clocks",
        &format!(
            "waits shorter than the error are not certain; global time is the clock of rank {}",
            first.reference_rank
        ),
        terminal,
    );
    let mut by_method: BTreeMap<(&str, &str), Vec<&trace::ClockFitRow>> = BTreeMap::new();
    for fit in fits {
        by_method.entry((&fit.clock, &fit.method)).or_default().push(fit);
    }
    for ((clock, method), fits) in by_method {
        let worst = |f: fn(&trace::ClockFitRow) -> Option<i64>| {
            let all: Option<Vec<i64>> = fits.iter().map(|r| f(r)).collect();
            all.and_then(|all| all.into_iter().max()).map(ns)
        };
        let offset = fits.iter().map(|f| f.offset_ns.saturating_abs()).max().unwrap_or(0);
        // The reference has no drift by definition, so it is excluded.
        let others = fits.iter().filter(|f| fits.len() == 1 || f.rank != f.reference_rank);
        let drift = others.filter_map(|f| f.drift_ppb).map(f64::abs).reduce(f64::max);
        let drift = drift.map_or(", drift not measured".into(), |d| format!(" and {:.3} ppm", d / 1000.0));
        let bias = bias(fits.iter().copied(), 0);
        let clocks = plural(fits.iter().map(|f| f.rank).collect::<BTreeSet<_>>().len(), &format!("{clock} clock"));
        let error = match (worst(|f| f.error_ns), worst(|f| f.bound_ns)) {
            (None, _) => "error unknown".to_string(),
            (Some(error), None) => format!("error {error} (95 %){bias}, without a guaranteed bound"),
            (Some(error), Some(bound)) => format!("error {error} (95 %){bias}, guaranteed within {bound}"),
        };
        let words = format!("{clocks} by {method}: {error}; corrected by up to {}{drift}", ns(offset));
        sentence(text, &words, terminal);
    }
    let violations: i64 = fits.iter().map(|f| f.violations).sum();
    let disagree = analysis.tables.collective_instances.iter().filter(|i| i.clocks_disagree).count();
    let check = match violations.max(0) as usize {
        0 => "clock check passed: no rank leaves a collective before all ranks have entered it".to_string(),
        n => format!("clock check failed: in {}, a rank leaves before another enters", plural(n, "collective")),
    };
    sentence(text, &check, terminal);
    if disagree > 0 {
        let words = format!(
            "ranks left {disagree} of {} at different times, so the waits there are approximate",
            plural(analysis.tables.collective_instances.len(), "collective")
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
        omissions.iter().take(terminal.rows()).for_each(|row| sentence(text, &omission_line(row), terminal));
        not_shown(text, omissions.len().saturating_sub(terminal.rows()), "omission", terminal);
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
    heading(text, "Findings", "the largest saving first, each with what to do; --json prints the evidence", terminal);
    for finding in findings.iter().take(terminal.rows()) {
        sentence(text, &format!("{}: {} → {}", finding.severity, finding.title, finding.suggestion), terminal);
    }
    not_shown(text, findings.len().saturating_sub(terminal.rows()), "finding", terminal);
}
