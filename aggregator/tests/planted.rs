//! Planted runs through the whole analysis: what was planted must be found.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../tests/src/planted.rs"]
#[expect(dead_code, unreachable_pub, reason = "each user of the builder needs a part of it")]
mod planted;

use std::path::Path;

use aggregator::source::RunSource;
use aggregator::{Analysis, Options, analyze};
use planted::{Plan, Truth, write};

fn analysis(plan: &Plan) -> (Analysis, Truth, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let truth = write(plan, dir.path()).unwrap();
    (analyzed(dir.path(), &Options::default()), truth, dir)
}

fn analyzed(run: &Path, options: &Options) -> Analysis {
    analyze(&RunSource::open(run).unwrap(), options, &|_, _| ()).unwrap()
}

#[test]
fn every_part_of_every_step_is_found_exactly() {
    let plan = Plan {
        slow: vec![(2, 700_000)],
        offset_ns: vec![0, 250_000_000, -40_000, 7],
        part_rows: 50,
        ..Plan::default()
    };
    let (analysis, truth, _dir) = analysis(&plan);
    assert_eq!(analysis.tables.omissions, []);
    assert_eq!(analysis.facts.events, truth.events);
    for step in &truth.steps {
        let row =
            analysis.tables.step_breakdown.iter().find(|r| r.rank == step.rank && r.step == Some(step.step)).unwrap();
        let found = [row.wall_ns, row.compute_ns, row.overlap_ns, row.exposed_comm_ns, row.memory_ns, row.idle_ns];
        let planted = [step.wall_ns, step.compute_ns, step.overlap_ns, step.exposed_ns, 0, step.idle_ns];
        assert_eq!(found, planted, "rank {} step {}", step.rank, step.step);
    }
}

#[test]
fn every_bucket_is_found_exactly() {
    let plan = Plan { slow: vec![(1, 900_000)], offset_ns: vec![0, 5_000_000, -1_000_000_000, 123], ..Plan::default() };
    let (analysis, truth, _dir) = analysis(&plan);
    assert_eq!(analysis.tables.bucket_timing.len(), truth.buckets.len());
    for (row, b) in analysis.tables.bucket_timing.iter().zip(&truth.buckets) {
        assert_eq!((row.step, row.bucket, row.rank), (b.step, b.bucket, b.rank));
        assert_eq!(row.ready_ns, Some(b.ready_ns));
        assert_eq!(row.enqueue_ns, Some(b.enqueue_ns));
        assert_eq!((row.start_ns, row.end_ns), (b.start_ns, b.end_ns));
        assert_eq!(row.wait_ns, Some(b.wait_ns));
        assert_eq!(row.exposed_ns, b.exposed_ns);
        assert_eq!(row.transfer_ns, Some(plan.transfer_ns));
    }
}

/// Buckets are reduced while backward goes on, so a rank that is late once is late at every bucket of the step. The step is longer by the
/// delay once, not once a bucket.
#[test]
fn a_late_rank_is_the_cause_of_exactly_its_delay() {
    let delay = 900_000;
    let plan = Plan { slow: vec![(1, delay)], offset_ns: vec![0, 5_000_000, -1_000_000_000, 123], ..Plan::default() };
    let (analysis, _, _dir) = analysis(&plan);
    let straight = self::analysis(&Plan::default()).0;
    let step_ns = |a: &Analysis| a.verdict.step_ns.unwrap();
    assert_eq!(step_ns(&analysis) - step_ns(&straight), delay);
    let row = &analysis.tables.stragglers[1];
    assert_eq!((row.rank, &*row.verdict), (1, "cause"));
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("forward"), Some(delay)));
    assert_eq!(row.step_delay_ns, delay);
    assert_eq!(row.own_excess_ns, delay);
    assert_eq!(analysis.verdict.causes, [1]);
}
