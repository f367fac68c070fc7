//! The section on memory: the peaks by category, and the largest blocks at the highest peak.

use trace::{MemoryAtPeakRow, MemoryPeakRow};

use crate::base::units::{bytes, plain};
use crate::model::analysis::Analysis;
use crate::render::grid::Grid;
use crate::render::summary::sections::{choose, not_shown};
use crate::render::summary::{TerminalStyle, heading, sentence};

/// Blocks that are listed.
const BLOCKS: usize = 3;
/// Innermost frames of a stack that are shown.
const FRAMES: usize = 2;

/// Prints the peaks of memory by rank and device; nothing without recorded memory.
pub(super) fn memory(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let peaks = &analysis.tables.memory_peaks;
    let Some(highest) = peaks.iter().max_by_key(|row| row.peak_bytes) else { return };
    heading(text, "Memory", "in use at the peak, by category (docs/method/memory.md)", terminal);
    let key = |row: &MemoryPeakRow| (row.rank, row.device_id);
    let row_of = |at: &(i32, Option<i64>)| peaks.iter().find(|row| key(row) == *at);
    let shown = choose(peaks.iter().map(key).collect(), terminal.top, |at| {
        std::cmp::Reverse(row_of(at).map_or(0, |row| row.peak_bytes))
    });
    let rows: Vec<&MemoryPeakRow> = shown.iter().filter_map(row_of).collect();
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
    for row in at_peak.filter(|row| row.blocks == Some(1) && row.operator.is_some()).take(BLOCKS) {
        sentence(text, &block(row), terminal);
    }
}

/// One block, as in `rank 0: 1.00 MiB of activations by aten::linear in main > forward`.
fn block(row: &MemoryAtPeakRow) -> String {
    let frames: Vec<&str> = row.stack.iter().flat_map(|stack| stack.split(';')).collect();
    let frames = frames[frames.len().saturating_sub(FRAMES)..].join(" > ");
    let stack = if frames.is_empty() { String::new() } else { format!(" in {}", plain(&frames)) };
    let operator = plain(row.operator.as_deref().unwrap_or_default());
    let category = row.category.replace('_', " ");
    let category = if category == "unknown" { "unknown purpose" } else { &*category };
    format!("at the peak of rank {}: {} of {category} by {operator}{stack}", row.rank, bytes(row.bytes))
}
