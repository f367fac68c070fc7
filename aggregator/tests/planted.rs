//! Analyses planted runs. The analysis must find the planted facts.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use fixtures::planted::{Plan, Truth, write};
use formats::run_source::RunSource;
use model::analysis::Analysis;
use model::options::Options;
use model::options::TimeBound;
use pipeline::analyze;
use trace::StepBreakdownRow;

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

/// Buckets are reduced during backward, so a late rank is late for every bucket of the step. The step is longer by the
/// delay once, not once per bucket.
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

/// A run with distant clocks: a span of global time is a different span on each rank's clock.
fn shifted() -> (Truth, tempfile::TempDir) {
    let plan = Plan { offset_ns: vec![0, 250_000_000, -3_000_000_000, 7], ..Plan::default() };
    let dir = tempfile::tempdir().unwrap();
    (write(&plan, dir.path()).unwrap(), dir)
}

/// Ranks and steps in the breakdown, without its totals.
fn rows_of_breakdown(analysis: &Analysis) -> Vec<(i32, i32)> {
    let steps = analysis.tables.step_breakdown.iter();
    steps.filter_map(|r| Some((r.rank, r.step.filter(|s| *s >= 0)?))).collect()
}

#[test]
fn only_selected_steps_and_ranks_are_reported_unchanged() {
    let (_, dir) = shifted();
    let all = analyzed(dir.path(), &Options::default());
    let options = Options { steps: Some(1..3), ranks: Some([0, 2].into()), ..Options::default() };
    let part = analyzed(dir.path(), &options);
    assert_eq!(rows_of_breakdown(&part), [(0, 1), (0, 2), (2, 1), (2, 2)]);
    // Two of four ranks: an unselected rank may have come last, so waits are unknown.
    let without_waits = |row: &StepBreakdownRow| StepBreakdownRow { exposed_wait_ns: None, ..row.clone() };
    let of_all: Vec<StepBreakdownRow> = all.tables.step_breakdown.iter().map(without_waits).collect();
    for row in part.tables.step_breakdown.iter().filter(|r| r.step.is_some_and(|s| s >= 0)) {
        assert!(of_all.contains(row), "{row:?}");
    }
    assert!(part.tables.collective_instances.iter().all(|i| !i.complete && i.ranks_seen == 2));
    assert_eq!(options.selection().as_deref(), Some("--steps 1..3 --ranks 0,2"));
}

#[test]
fn a_time_span_selects_the_same_moments_on_every_clock() {
    let (truth, dir) = shifted();
    let all = analyzed(dir.path(), &Options::default());
    // The span starts shortly after the second step began and ends shortly after the fourth began. On every rank the
    // third and fourth step begin in it.
    let wall_ns = truth.steps[0].wall_ns;
    let begins_ns: Vec<i64> = all.tables.bucket_timing.iter().filter(|b| b.bucket == 0).map(|b| b.start_ns).collect();
    let first_ns = *begins_ns.iter().min().unwrap();
    let options = Options {
        from: Some(TimeBound::GlobalNs(first_ns + wall_ns)),
        to: Some(TimeBound::GlobalNs(first_ns + 3 * wall_ns)),
        ..Options::default()
    };
    let part = analyzed(dir.path(), &options);
    assert_eq!(rows_of_breakdown(&part), [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 2), (3, 3)]);
    assert_eq!(part.tables.clock_fit, all.tables.clock_fit, "clocks are fitted by all data, not only the selection");

    // The same span, relative to the start of the recording.
    let since_start = Options {
        from: Some(TimeBound::SinceStartNs(wall_ns + wall_ns / 2)),
        to: Some(TimeBound::SinceStartNs(3 * wall_ns + wall_ns / 2)),
        ..Options::default()
    };
    assert_eq!(rows_of_breakdown(&analyzed(dir.path(), &since_start)), rows_of_breakdown(&part));
}

#[test]
fn a_range_is_a_window_of_its_own() {
    let (truth, dir) = shifted();
    let mut options = Options { range: Some(regex::Regex::new("^backward$").unwrap()), ..Options::default() };
    let part = analyzed(dir.path(), &options);
    let plan = Plan::default();
    let pass_ns = i64::from(plan.ops) * (plan.op_ns + plan.gap_ns);
    let sums: Vec<i64> =
        part.tables.step_breakdown.iter().filter(|r| r.step.is_none()).map(|r| r.compute_ns + r.overlap_ns).collect();
    // Backward of five steps consists of operators with gaps between them, and the operators are all the compute.
    assert_eq!(sums, vec![5 * i64::from(plan.ops) * plan.op_ns; 4]);
    assert!(pass_ns < truth.steps[0].wall_ns);
    options.range = Some(regex::Regex::new("^no such range$").unwrap());
    let source = RunSource::open(dir.path()).unwrap();
    let error = analyze(&source, &options, &|_, _| ()).unwrap_err().to_string();
    assert!(error.ends_with("--range ^no such range$ selects nothing: no host range in that time matches"), "{error}");
}
