//! The kernels with the most time and how they fill their device, and what limits the operators with FLOPs.

use std::collections::BTreeMap;

use trace::{KernelStatsRow, OpStatsRow};

use crate::grid::Grid;
use crate::summary::style::{TerminalStyle, heading, not_shown, sentence};
use model::analysis::Analysis;
use model::stats::covered_mean;
use model::units::{count, ranks};

/// The rows of one name over all ranks, and the sum of their times.
struct OfName<'a, R> {
    name: &'a str,
    rows: Vec<&'a R>,
    total_ns: i64,
}

/// Groups rows by name, the longest first.
fn by_name<'a, R>(rows: impl Iterator<Item = (&'a str, &'a R, i64)>) -> Vec<OfName<'a, R>> {
    let mut groups: BTreeMap<&str, OfName<'a, R>> = BTreeMap::new();
    for (name, row, total_ns) in rows {
        let group = groups.entry(name).or_insert(OfName { name, rows: Vec::new(), total_ns: 0 });
        group.rows.push(row);
        group.total_ns = group.total_ns.saturating_add(total_ns);
    }
    let mut all: Vec<_> = groups.into_values().collect();
    all.sort_by_key(|group| (std::cmp::Reverse(group.total_ns), group.name));
    all
}

/// The mean of a value, weighted by time.
fn mean<R>(rows: &[&R], value: impl Fn(&R) -> Option<f64>, total_ns: impl Fn(&R) -> i64) -> Option<f64> {
    covered_mean(rows.iter().map(|row| (value(row), total_ns(row).max(1) as f64)))
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map_or("–".into(), |value| value.to_string())
}

/// Prints the kernels with the most time.
pub(super) fn kernels(out: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let kernels =
        || analysis.tables.kernel_stats.iter().filter(|row| row.mean_blocks.is_some() || row.occupancy_pct.is_some());
    let all = by_name(kernels().map(|row| (&*row.name, row, row.total_ns)));
    if all.is_empty() {
        return;
    }
    let meaning =
        "over all ranks; blocks per SM and occupancy are means by time, the launch is that of the longest call";
    heading(out, "Kernels", meaning, terminal);
    let shown = &all[..all.len().min(terminal.rows())];
    let share = |group: &OfName<'_, KernelStatsRow>| {
        let total: i64 = analysis.tables.kernel_stats.iter().map(|row| row.total_ns).fold(0, i64::saturating_add);
        Some(100.0 * group.total_ns as f64 / total.max(1) as f64)
    };
    let weighted = |value: fn(&KernelStatsRow) -> Option<f64>| {
        shown.iter().map(|group| mean(&group.rows, value, |row| row.total_ns)).collect::<Vec<_>>()
    };
    let longest: Vec<&KernelStatsRow> =
        shown.iter().filter_map(|group| group.rows.iter().copied().max_by_key(|row| row.max_ns)).collect();
    let of_longest = |cell: fn(&KernelStatsRow) -> String| longest.iter().map(|row| cell(row)).collect::<Vec<_>>();
    let blocks = weighted(|row| row.blocks_per_sm);
    let grid = Grid::new()
        .text("kernel", 0, shown.iter().map(|group| group.name.to_string()).collect())
        .number("calls", 3, shown.iter().map(|g| count(g.rows.iter().map(|row| row.calls as u64).sum())).collect())
        .time("total", 0, shown.iter().map(|group| Some(group.total_ns)).collect())
        .percent("share", 1, shown.iter().map(share).collect())
        .percent("occupancy", 0, weighted(|row| row.occupancy_pct))
        .text("limit", 1, of_longest(|row| text(row.occupancy_limit.as_deref())))
        .number("blocks/SM", 1, blocks.into_iter().map(|n| text(n.map(|n| format!("{n:.2}")))).collect())
        .number("threads", 2, of_longest(|row| text(row.block_threads)))
        .number("registers", 2, of_longest(|row| text(row.registers)))
        .number("shared B", 2, of_longest(|row| text(row.shared_mem_bytes)));
    out.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(out, all.len() - shown.len(), "kernel", terminal);
}

/// Prints the operators with FLOPs, their rates, and what limits them.
pub(super) fn roofline(out: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let operators = analysis.tables.op_stats.iter().filter(|row| row.bound.is_some());
    let all = by_name(operators.map(|row| (&*row.name, row, row.flops_ns.unwrap_or(0))));
    if all.is_empty() {
        return;
    }
    let meaning = "over all ranks; bytes are the least that a call must move, so the intensity is an upper bound: memory is certain \
                   with cold caches, compute is likely";
    heading(out, "Roofline", meaning, terminal);
    let shown = &all[..all.len().min(terminal.rows())];
    let weighted = |value: fn(&OpStatsRow) -> Option<f64>| {
        let time = |row: &OpStatsRow| row.flops_ns.unwrap_or(0);
        shown.iter().map(|group| mean(&group.rows, value, time)).collect::<Vec<_>>()
    };
    let number = |value: fn(&OpStatsRow) -> Option<f64>, scale: f64| {
        weighted(value).into_iter().map(|n| text(n.map(|n| format!("{:.1}", n * scale)))).collect::<Vec<_>>()
    };
    let bound = |group: &OfName<'_, OpStatsRow>| {
        let mut words: Vec<String> = group.rows.iter().map(|row| text(row.bound.as_deref())).collect();
        words.sort();
        words.dedup();
        words.join(" or ")
    };
    let grid = Grid::new()
        .text("operator", 0, shown.iter().map(|group| group.name.to_string()).collect())
        .time("device time", 0, shown.iter().map(|group| Some(group.total_ns)).collect())
        .number("TFLOP/s", 0, number(|row| row.flops_per_s, 1e-12))
        .percent("of peak", 0, weighted(|row| row.peak_flops_pct))
        .percent("of bandwidth ≥", 1, weighted(|row| row.peak_bandwidth_pct))
        .number("FLOP/byte ≤", 1, number(|row| row.max_flops_per_byte, 1.0))
        .number("ridge", 2, number(|row| row.ridge_flops_per_byte, 1.0))
        .text("bound", 0, shown.iter().map(bound).collect());
    out.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(out, all.len() - shown.len(), "operator", terminal);
    unknown(out, &all, terminal);
}

/// Says why the limit of some operators is unknown.
fn unknown(out: &mut String, all: &[OfName<'_, OpStatsRow>], terminal: &TerminalStyle) {
    let lacking = |value: fn(&OpStatsRow) -> bool| {
        let rows = all.iter().flat_map(|group| &group.rows).filter(|row| value(row));
        let mut of: Vec<i32> = rows.map(|row| row.rank).collect();
        of.sort_unstable();
        of.dedup();
        of
    };
    let no_peak = lacking(|row| row.ridge_flops_per_byte.is_none());
    let no_bytes = lacking(|row| row.min_bytes.is_none());
    if !no_peak.is_empty() {
        let words = format!("no device with known peak rates for the type: ranks {}", ranks(&no_peak));
        sentence(out, &words, terminal);
    }
    if !no_bytes.is_empty() {
        let words = format!(
            "bytes of some calls are unknown, because shapes or types do not tell them: ranks {}",
            ranks(&no_bytes)
        );
        sentence(out, &words, terminal);
    }
}
