//! Lines about the critical paths.

use std::collections::BTreeMap;

use trace::{CriticalPathRow, JobPathRow, PathKind, Unexplained};

use crate::summary::style::{TerminalStyle, sentence};
use model::analysis::Analysis;
use model::units::{ns, plural};

/// The most ranks that the line about the job names.
const NAMED: usize = 3;
/// A rank is named from this share of the path on, in percent.
const NAMED_PCT: f64 = 1.0;

/// Prints the critical path of the job: the ranks that work on it, and the kinds of their work. Without collectives, each rank has
/// only a path of its own.
pub(super) fn critical_path(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let rows: Vec<&JobPathRow> = analysis.tables.job_critical_path.iter().filter(|row| row.step >= 0).collect();
    let ranks_see_each_other = analysis.facts.ranks.len() > 1 && !rows.is_empty();
    if ranks_see_each_other {
        for words in of_job(&rows) {
            sentence(text, &words, terminal);
        }
    } else {
        per_rank(text, analysis, terminal);
    }
}

/// The ranks on the path of the job, and the kinds of their work.
fn of_job(rows: &[&JobPathRow]) -> [String; 2] {
    let sum = |part: fn(&JobPathRow) -> i64| rows.iter().map(|row| part(row)).sum::<i64>();
    let mut steps: Vec<i32> = rows.iter().map(|row| row.step).collect();
    steps.dedup();
    let all_ns = sum(|row| row.dur_ns).max(1);
    let pct = |ns: i64| 100.0 * ns as f64 / all_ns as f64;
    let mut work: BTreeMap<i32, i64> = BTreeMap::new();
    rows.iter()
        .filter(|row| row.kind == PathKind::Work)
        .for_each(|row| *work.entry(row.rank).or_default() += row.dur_ns);
    let mut work: Vec<(i32, i64)> = work.into_iter().collect();
    work.sort_by_key(|(rank, ns)| (std::cmp::Reverse(*ns), *rank));
    let named = work.iter().take(NAMED).filter(|(_, ns)| pct(*ns) >= NAMED_PCT).count();
    let mut parts: Vec<String> =
        work[..named].iter().map(|(rank, ns)| format!("rank {rank} works {:.0} %", pct(*ns))).collect();
    let others_ns: i64 = work[named..].iter().map(|(_, ns)| ns).sum();
    if others_ns > 0 {
        parts.push(format!("{} {:.0} %", plural(work.len() - named, "other rank"), pct(others_ns)));
    }
    parts.push(format!("transfers {:.0} %", pct(sum(|row| row.transfer_ns))));
    let mean_ns = all_ns / steps.len().max(1) as i64;
    let of_ranks = format!("critical path of the job, {} a step: {}", ns(mean_ns), parts.join(", "));
    let kinds = [
        ("operators of the host", sum(|row| row.cpu_ns)),
        ("host outside operators", sum(|row| row.host_gap_ns)),
        ("data loading", sum(|row| row.data_loading_ns)),
        ("GPU", sum(|row| row.gpu_compute_ns + row.gpu_memory_ns)),
    ];
    let mut kinds: Vec<String> = kinds
        .into_iter()
        .filter(|(_, ns)| pct(*ns) >= 0.5)
        .map(|(kind, ns)| format!("{kind} {:.0} %", pct(ns)))
        .collect();
    kinds.extend(unexplained(rows, all_ns));
    [of_ranks, format!("kinds of work on it: {}", kinds.join(", "))]
}

/// What of the path is not explained, and why.
fn unexplained(rows: &[&JobPathRow], all_ns: i64) -> Option<String> {
    let mut reasons: BTreeMap<&str, i64> = BTreeMap::new();
    for (row, why) in rows.iter().filter_map(|row| Some((row, row.unexplained.as_ref()?))) {
        let reason = match why.known() {
            Some(Unexplained::Unmatched) => "communication without its match in other ranks",
            Some(Unexplained::Clock) => "clocks with an unknown error",
            Some(Unexplained::NotRecorded) | None => "nothing recorded",
        };
        *reasons.entry(reason).or_default() += row.unexplained_ns;
    }
    let (reason, _) = reasons.iter().max_by_key(|(_, ns)| **ns)?;
    let pct = 100.0 * reasons.values().sum::<i64>() as f64 / all_ns as f64;
    (pct >= 0.5).then(|| format!("not explained {pct:.0} % ({reason})"))
}

/// Prints the parts of each rank's own critical path, as the mean over steps and ranks.
fn per_rank(text: &mut String, analysis: &Analysis, terminal: &TerminalStyle) {
    let rows: Vec<&CriticalPathRow> = analysis.tables.critical_path.iter().collect();
    if let Some(parts) = parts(&rows) {
        sentence(text, &format!("per-rank critical path, mean: {parts}"), terminal);
    }
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
