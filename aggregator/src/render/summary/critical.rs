//! Lines about the critical paths.

use trace::CriticalPathRow;

use crate::model::analysis::{Analysis, VerdictKind};
use crate::render::summary::{TerminalStyle, sentence};

/// Prints the parts of each rank's own critical path, as the mean over steps and ranks. The path of a cause is printed by
/// itself: it is what the other ranks wait for in their communication.
pub(super) fn critical_path(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let rows = &analysis.tables.critical_path;
    let slow = analysis.verdict.rank.filter(|_| analysis.verdict.kind == VerdictKind::Cause);
    let (of_slow, of_others): (Vec<&CriticalPathRow>, _) = rows.iter().partition(|row| Some(row.rank) == slow);
    if let Some(parts) = parts(&of_slow) {
        let rank = slow.unwrap_or_default();
        sentence(text, &format!("critical path of rank {rank}, the cause: {parts}"), terminal);
    }
    let Some(parts) = parts(&of_others) else { return };
    let whose = if slow.is_some() { "each other rank" } else { "each rank" };
    let waits = match slow {
        Some(rank) => format!(", waits for rank {rank} included"),
        None if analysis.facts.ranks.len() > 1 => ", waits for other ranks included".into(),
        None => String::new(),
    };
    sentence(text, &format!("critical path of {whose} by itself, mean: {parts}{waits}"), terminal);
}

/// The parts of the paths in words; `None` without any.
fn parts(rows: &[&CriticalPathRow]) -> Option<String> {
    let wall: i64 = rows.iter().map(|r| r.wall_ns).sum();
    if wall == 0 {
        return None;
    }
    let share =
        |part: fn(&CriticalPathRow) -> i64| 100.0 * rows.iter().map(|row| part(row)).sum::<i64>() as f64 / wall as f64;
    let host_gap = share(|r| r.host_gap_ns);
    let cpu = match share(|r| r.cpu_ns) {
        cpu if host_gap >= 1.0 => format!("CPU {cpu:.0} % ({host_gap:.0} % outside operators)"),
        cpu => format!("CPU {cpu:.0} %"),
    };
    let parts = [
        ("data loading", share(|r| r.data_loading_ns), false),
        ("GPU", share(|r| r.gpu_compute_ns + r.gpu_memory_ns + r.kernel_gap_ns), true),
        ("launch", share(|r| r.launch_ns), true),
        ("unknown", share(|r| r.other_ns), false),
        ("communication", share(|r| r.communication_ns), true),
    ];
    let words = parts.iter().filter(|(_, share, always)| *always || *share >= 0.5);
    let words: Vec<String> = words.map(|(word, share, _)| format!("{word} {share:.0} %")).collect();
    Some(format!("{cpu}, {}", words.join(", ")))
}
