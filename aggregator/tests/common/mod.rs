//! Checks that several crossing tests share.

use std::collections::BTreeMap;

use model::analysis::Analysis;
use trace::PathKind;

/// Of all ranks, this one works most on the critical path of the job, and at most 5 % of the path are not explained.
#[track_caller]
pub(crate) fn the_critical_path_leads_into(analysis: &Analysis, rank: i32) {
    let path = || analysis.tables.job_critical_path.iter();
    let mut work: BTreeMap<i32, i64> = BTreeMap::new();
    path().filter(|row| row.kind == PathKind::Work).for_each(|row| *work.entry(row.rank).or_default() += row.dur_ns);
    let most = work.iter().max_by_key(|(_, ns)| **ns);
    assert_eq!(most.map(|(rank, _)| *rank), Some(rank), "{work:?}");
    let all_ns: i64 = path().map(|row| row.dur_ns).sum();
    let unexplained_ns: i64 = path().map(|row| row.unexplained_ns).sum();
    assert!(20 * unexplained_ns <= all_ns, "{unexplained_ns} of {all_ns} ns");
}
