//! Prints `key_averages` as torch.profiler's `table()` does: the same columns, units and last lines, within the width
//! of the terminal.

use std::fmt::Write as _;

use crate::grid::Grid;
use key_averages::table::{Average, GroupBy, KeyAverages, SortKey};
use model::units::shorten;

/// Width, colour and number of rows.
#[derive(Clone, Debug)]
pub struct TableStyle {
    /// Maximum width in columns; `None` is unlimited.
    pub width: Option<usize>,
    /// Whether to use colour.
    pub colour: bool,
    /// Maximum number of rows; the rest is counted. `None` prints all.
    pub rows: Option<usize>,
}

/// torch's longest name, input shapes and source location.
const MAX_NAME: usize = 55;
const MAX_SHAPES: usize = 80;
const MAX_SOURCE: usize = 75;
/// Lines may exceed the width of terminals that are narrower than this.
const MIN_WIDTH: usize = 60;

/// Renders the table of one rank. Its rows are sorted already; `sorted_by` is only printed above it.
pub fn render(table: &KeyAverages, sorted_by: Option<(&str, SortKey)>, style: &TableStyle) -> String {
    let shown = style.rows.map_or(table.rows.len(), |rows| rows.min(table.rows.len()));
    let width = style.width.map_or(usize::MAX, |width| width.max(MIN_WIDTH));
    let mut text = String::new();
    for line in model::units::wrap(&heading(table, sorted_by.map(|(word, _)| word), shown), width) {
        let _ = writeln!(text, "{line}");
    }
    if table.rows.is_empty() {
        text.push_str("  nothing was recorded\n");
        return text;
    }
    let grid = columns(table, &table.rows[..shown]);
    let (lines, left_out) = grid.render_with_left_out(width, style.colour);
    text.push_str(&lines);
    let _ = writeln!(text, "Self CPU time total: {}", time(table.self_cpu_time_total_ns as f64));
    if let Some(device) = table.device {
        let _ = writeln!(text, "Self {device} time total: {}", time(table.self_device_time_total_ns as f64));
    }
    if !left_out.is_empty() {
        let note =
            format!("Left out, because the terminal is too narrow: {}; use COLUMNS=250 or --json", left_out.join(", "));
        for line in model::units::wrap(&note, width) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

fn heading(table: &KeyAverages, sorted_by: Option<&str>, shown: usize) -> String {
    let mut text = format!("rank {}", table.rank);
    if let Some((from, to)) = table.steps {
        let _ = match to {
            i32::MAX => write!(text, ", steps {from}.."),
            to => write!(text, ", steps {from}..{to}"),
        };
    }
    let by = match table.group_by {
        GroupBy::Name => "name",
        GroupBy::InputShape => "name and input shapes",
        GroupBy::Module => "name and module",
        GroupBy::Stack => "name and stack",
    };
    let _ = write!(text, ": by {by}");
    if let Some(key) = sorted_by {
        let _ = write!(text, ", sorted by {key}");
    }
    if shown < table.rows.len() {
        let _ = write!(text, ", {shown} of {} rows", table.rows.len());
    }
    text
}

fn columns(table: &KeyAverages, rows: &[Average]) -> Grid {
    let cells = |cell: &dyn Fn(&Average) -> String| rows.iter().map(cell).collect::<Vec<String>>();
    let cpu = table.self_cpu_time_total_ns;
    let mean = |total_ns: i64, row: &Average| time(total_ns as f64 / row.calls.max(1) as f64);
    let mut grid = Grid::new()
        .text("Name", 0, cells(&|r| shorten(&r.name, MAX_NAME)))
        .number("Self CPU %", 3, cells(&|r| share(r.self_cpu_time_total_ns, cpu)))
        .number("Self CPU", 0, cells(&|r| time(r.self_cpu_time_total_ns as f64)))
        .number("CPU total %", 6, cells(&|r| if r.is_async { "0".into() } else { share(r.cpu_time_total_ns, cpu) }))
        .number("CPU total", 2, cells(&|r| time(r.cpu_time_total_ns as f64)))
        .number("CPU time avg", 5, cells(&|r| mean(r.cpu_time_total_ns, r)));
    if let Some(device) = table.device {
        let all = table.self_device_time_total_ns;
        grid = grid
            .number(&format!("Self {device}"), 0, cells(&|r| time(r.self_device_time_total_ns as f64)))
            .number(&format!("Self {device} %"), 3, cells(&|r| share(r.self_device_time_total_ns, all)))
            .number(&format!("{device} total"), 2, cells(&|r| time(r.device_time_total_ns as f64)))
            .number(&format!("{device} time avg"), 5, cells(&|r| mean(r.device_time_total_ns, r)));
    }
    grid = memory(grid, table, rows);
    grid = grid.number("# of Calls", 1, cells(&|r| r.calls.to_string()));
    grid = group(grid, table, rows);
    flops(grid, table, rows)
}

/// Adds columns of memory if any was recorded; those of a device only if it used some, as in torch.
fn memory(mut grid: Grid, table: &KeyAverages, rows: &[Average]) -> Grid {
    let cells = |value: fn(&Average) -> Option<i64>| rows.iter().map(|r| value(r).map_or("–".into(), bytes)).collect();
    if table.rows.iter().any(|r| r.cpu_memory_usage_bytes.is_some()) {
        grid = grid.number("CPU Mem", 7, cells(|r| r.cpu_memory_usage_bytes)).number(
            "Self CPU Mem",
            4,
            cells(|r| r.self_cpu_memory_usage_bytes),
        );
    }
    let word = table.device.unwrap_or("CUDA");
    if table.rows.iter().any(|r| r.self_device_memory_usage_bytes.is_some_and(|bytes| bytes > 0)) {
        grid = grid.number(&format!("{word} Mem"), 7, cells(|r| r.device_memory_usage_bytes)).number(
            &format!("Self {word} Mem"),
            4,
            cells(|r| r.self_device_memory_usage_bytes),
        );
    }
    grid
}

fn group(grid: Grid, table: &KeyAverages, rows: &[Average]) -> Grid {
    let cells = |most: usize, text: fn(&str) -> String| -> Vec<String> {
        rows.iter().map(|r| shorten(&text(&r.group), most)).collect()
    };
    match table.group_by {
        GroupBy::Name => grid,
        GroupBy::InputShape => grid.text("Input Shapes", 1, cells(MAX_SHAPES, |text| text.into())),
        GroupBy::Module => grid.text("Module", 1, cells(MAX_SOURCE, |text| text.into())),
        GroupBy::Stack => grid.text("Source Location", 1, cells(MAX_SOURCE, |stack| stack.replace(';', " < "))),
    }
}

/// Adds a column of FLOPs in the unit of the smallest value, as in torch.
fn flops(grid: Grid, table: &KeyAverages, rows: &[Average]) -> Grid {
    const UNITS: [&str; 6] = ["FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"];
    let positive = table.rows.iter().filter_map(|r| r.flops).filter(|flops| *flops > 0);
    let Some(least) = positive.min() else { return grid };
    let unit = ((least as f64).log10() / 3.0).floor().clamp(0.0, (UNITS.len() - 1) as f64);
    let scale = 1000_f64.powf(unit);
    let cell = |r: &Average| match r.flops {
        Some(flops) if flops > 0 => format!("{:.3}", flops as f64 / scale),
        _ => "--".into(),
    };
    let title = format!("Total {}", UNITS.get(unit as usize).unwrap_or(&UNITS[0]));
    grid.number(&title, 4, rows.iter().map(cell).collect())
}

/// torch's `_format_time`.
fn time(ns: f64) -> String {
    let us = ns / 1e3;
    if us >= 1e6 {
        format!("{:.3}s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.3}ms", us / 1e3)
    } else {
        format!("{us:.3}us")
    }
}

/// torch's `_format_time_share`.
fn share(ns: i64, all_ns: i64) -> String {
    if all_ns == 0 { "NaN".into() } else { format!("{:.2}%", ns as f64 * 100.0 / all_ns as f64) }
}

/// torch's `_format_memory`.
fn bytes(bytes: i64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    match UNITS.iter().find(|(scale, _)| bytes.unsigned_abs() >= *scale) {
        Some((scale, unit)) => format!("{:.2} {unit}", bytes as f64 / *scale as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests;
