//! The critical path in one line.

use trace::CriticalPathRow;

use super::{Look, sentence};
use crate::analysis::Analysis;

/// What the steps of all ranks are bound by.
pub(super) fn critical_path(text: &mut String, analysis: &Analysis, look: &Look) {
    let rows = &analysis.tables.critical_path;
    let wall: i64 = rows.iter().map(|r| r.wall_ns).sum();
    if wall == 0 {
        return;
    }
    let share = |of: fn(&CriticalPathRow) -> i64| 100.0 * rows.iter().map(of).sum::<i64>() as f64 / wall as f64;
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
    sentence(text, &format!("critical path: {cpu}, {}", words.join(", ")), look);
}
