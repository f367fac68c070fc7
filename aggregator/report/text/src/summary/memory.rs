//! The section on memory: the peaks by category, and the places that hold most at the highest one.

use std::collections::BTreeMap;

use trace::MemoryPeakRow;

use crate::grid::Grid;
use crate::summary::style::{TerminalStyle, choose, heading, not_shown, sentence};
use model::analysis::Analysis;
use model::units::{bytes, plural};

/// Places that are listed.
const HOLDERS: usize = 3;
/// Innermost frames of a stack that are shown.
const FRAMES: usize = 2;

/// Prints the peaks of memory by rank and device; nothing without recorded memory.
pub(super) fn memory(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let peaks = &analysis.tables.memory_peaks;
    let Some(highest) = peaks.iter().max_by_key(|row| row.peak_bytes) else { return };
    heading(
        text,
        "Memory",
        "the largest peak decides whether a job fits; in use at that time, by category (docs/method/memory.md)",
        terminal,
    );
    let key = |row: &MemoryPeakRow| (row.rank, row.device_id);
    let by_device: BTreeMap<(i32, Option<i64>), &MemoryPeakRow> = peaks.iter().map(|row| (key(row), row)).collect();
    let shown = choose(by_device.keys().copied().collect(), terminal.rows(), |at| {
        std::cmp::Reverse(by_device.get(at).map_or(0, |row| row.peak_bytes))
    });
    let rows: Vec<&MemoryPeakRow> = shown.iter().filter_map(|at| by_device.get(at).copied()).collect();
    let size = |of: fn(&MemoryPeakRow) -> i64| rows.iter().map(|row| bytes(of(row))).collect::<Vec<String>>();
    let mut grid = Grid::new()
        .number("rank", 0, rows.iter().map(|row| row.rank.to_string()).collect())
        .text("device", 1, rows.iter().map(|row| row.device_id.map_or("host".into(), |id| id.to_string())).collect())
        .number("peak", 0, size(|row| row.peak_bytes));
    if rows.iter().any(|row| row.reserved_bytes.is_some()) {
        let reserved = |row: &&MemoryPeakRow| row.reserved_bytes.map_or("–".into(), bytes);
        grid = grid.number("reserved", 1, rows.iter().map(reserved).collect());
    }
    if rows.iter().any(|row| row.unknown_bytes != row.peak_bytes) {
        grid = grid
            .number("parameters", 2, size(|row| row.parameters_bytes))
            .number("gradients", 2, size(|row| row.gradients_bytes))
            .number("optimizer", 2, size(|row| row.optimizer_state_bytes))
            .number("activations", 2, size(|row| row.activations_bytes))
            .number("temporary", 3, size(|row| row.temporary_bytes))
            .number("unknown", 2, size(|row| row.unknown_bytes));
    }
    text.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(text, peaks.len() - rows.len(), "peak", terminal);
    let at_peak = analysis.tables.memory_at_peak.iter().filter(|row| (row.rank, row.device_id) == key(highest));
    let mut holders: BTreeMap<Holder<'_>, (i64, i64)> = BTreeMap::new();
    for (row, blocks) in at_peak.filter(|row| row.operator.is_some()).filter_map(|row| Some((row, row.blocks?))) {
        let sum = holders.entry((&row.category, row.operator.as_deref(), row.stack.as_deref())).or_default();
        *sum = (sum.0.saturating_add(row.bytes), sum.1.saturating_add(blocks));
    }
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    for (holder, sums) in holders.into_iter().take(HOLDERS) {
        sentence(text, &format!("at the peak of rank {}: {}", highest.rank, held(holder, sums)), terminal);
    }
}

/// Category, operator and stack of blocks.
type Holder<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

/// Blocks of one place, as in `2.00 MiB of activations in 2 blocks by aten::linear in main > forward`.
fn held((category, operator, stack): Holder<'_>, (size, blocks): (i64, i64)) -> String {
    let frames: Vec<&str> = stack.into_iter().flat_map(|stack| stack.split(';')).collect();
    let frames = frames[frames.len().saturating_sub(FRAMES)..].join(" > ");
    let stack = if frames.is_empty() { String::new() } else { format!(" in {}", frames) };
    let category = if category == "unknown" { "unknown purpose".into() } else { category.replace('_', " ") };
    let blocks = plural(usize::try_from(blocks).unwrap_or(0), "block");
    format!("{} of {category} in {blocks} by {}{stack}", bytes(size), operator.unwrap_or_default())
}
