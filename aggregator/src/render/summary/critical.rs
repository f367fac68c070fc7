//! One line about the critical path.

use trace::CriticalPathRow;

use crate::model::analysis::Analysis;
use crate::render::summary::{TerminalStyle, sentence};

/// Prints the parts of the critical path, as the mean over the steps of all ranks.
pub(super) fn critical_path(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let rows = &analysis.tables.critical_path;
    let wall: i64 = rows.iter().map(|r| r.wall_ns).sum();
    if wall == 0 {
        return;
    }
    let share = |part: fn(&CriticalPathRow) -> i64| 100.0 * rows.iter().map(part).sum::<i64>() as f64 / wall as f64;
    let host_gap = share(|r| r.host_gap_ns);
    let cpu = match share(|r| r.cpu_ns) {
        cpu if host_gap >= 1.0 => format!("CPU {cpu:.0} % ({host_gap:.0} % outside operators)"),
        cpu => format!("CPU {cpu:.0} %"),
    };
    let parts = [
        ("data loading", share(|r| r.data_loading_ns), false),
        ("GPU", share(|r| r.gpu_compute_ns + r.gpu_memory_ns + r.kernel_gap_ns), true),
        ("communication", share(|r| r.communication_ns), true),
        ("launch", share(|r| r.launch_ns), true),
        ("unknown", share(|r| r.other_ns), false),
    ];
    let words = parts.iter().filter(|(_, share, always)| *always || *share >= 0.5);
    let words: Vec<String> = words.map(|(word, share, _)| format!("{word} {share:.0} %")).collect();
    sentence(text, &format!("critical path: {cpu}, {}", words.join(", ")), terminal);
}
