//! The modules of a rank as a tree.

use std::collections::BTreeSet;

use trace::ModuleStatsRow;

use crate::grid::Grid;
use crate::summary::style::{TerminalStyle, heading, not_shown};
use model::analysis::Analysis;
use model::units::count;

/// Prints the modules of the rank of the verdict; of the lowest rank, if that one has none.
pub(super) fn modules(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let all = &analysis.tables.module_stats;
    let ranks: BTreeSet<i32> = all.iter().map(|row| row.rank).collect();
    let named = analysis.verdict.rank.filter(|rank| ranks.contains(rank));
    let Some(rank) = named.or(ranks.first().copied()) else { return };
    let of_rank: Vec<&ModuleStatsRow> = all.iter().filter(|row| row.rank == rank).collect();
    let meaning = "totals of all calls; own is the total without the modules inside; backward by the forward operators";
    heading(text, &format!("Modules of rank {rank}"), meaning, terminal);
    let has_device = of_rank.iter().any(|row| row.device_total_ns > 0 || row.backward_device_total_ns > 0);
    let time_ns = |row: &ModuleStatsRow| match has_device {
        true => row.device_total_ns.saturating_add(row.backward_device_total_ns),
        false => row.host_total_ns.saturating_add(row.backward_host_total_ns),
    };
    // A module takes at least the time of each module inside it, so its parents are among the longest too.
    let mut longest: Vec<usize> = (0..of_rank.len()).collect();
    longest.sort_by_key(|at| (std::cmp::Reverse(time_ns(of_rank[*at])), of_rank[*at].depth, *at));
    longest.truncate(terminal.rows());
    longest.sort_unstable();
    let rows: Vec<&ModuleStatsRow> = longest.iter().map(|at| of_rank[*at]).collect();
    let times = |f: fn(&ModuleStatsRow) -> i64| rows.iter().map(|row| Some(f(row))).collect::<Vec<_>>();
    let largest = rows.iter().map(|row| time_ns(row).max(row.host_total_ns).unsigned_abs()).max().unwrap_or(0);
    // A module without a call in the recorded forward pass has backward operators only.
    let calls = |row: &ModuleStatsRow| if row.calls > 0 { row.calls } else { row.backward_calls } as u64;
    let name = |row: &&ModuleStatsRow| format!("{}{}", "  ".repeat(row.depth.max(0) as usize), row.module);
    let mut grid = Grid::new()
        .text("module", 0, rows.iter().map(name).collect())
        .number("calls", 2, rows.iter().map(|row| count(calls(row))).collect())
        .time_beside("host", 0, times(|row| row.host_total_ns), largest)
        .time_beside("own", 1, times(|row| row.host_self_ns), largest)
        .time_beside("backward", 1, times(|row| row.backward_host_total_ns), largest);
    if has_device {
        grid = grid
            .time_beside("device", 0, times(|row| row.device_total_ns), largest)
            .time_beside("own", 1, times(|row| row.device_self_ns), largest)
            .time_beside("backward", 0, times(|row| row.backward_device_total_ns), largest);
    }
    text.push_str(&grid.render(terminal.width, terminal.colour));
    not_shown(text, of_rank.len() - rows.len(), "module", terminal);
}
