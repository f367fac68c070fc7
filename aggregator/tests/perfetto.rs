//! Perfetto exports of planted runs. `tests/perfetto_check.py` checks exports against Perfetto's own schema.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use aggregator::render::perfetto as export;
use fixtures::planted::{Plan, write};
use formats::run_source::RunSource;
use model::options::Options;
use report_timeline::perfetto::Exported;

fn exported(plan: &Plan, options: &Options) -> (Exported, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    write(plan, dir.path()).unwrap();
    let mut bytes = Vec::new();
    let exported = export(&RunSource::open(dir.path()).unwrap(), options, &mut bytes, &|_, _| ()).unwrap();
    (exported, bytes)
}

#[test]
fn every_row_collective_and_step_is_drawn_once() {
    let plan = Plan { offset_ns: vec![0, 250_000_000, -40_000, 7], ..Plan::default() };
    let (exported, bytes) = exported(&plan, &Options::default());
    let (steps, ranks) = (plan.steps as u64, plan.ranks as u64);
    let counts = exported.counts;
    assert_eq!((counts.ranks, counts.marks), (ranks, steps * ranks));
    assert_eq!(counts.collectives, steps * ranks * plan.buckets as u64);
    assert_eq!(counts.flow_ends, counts.collectives, "an arrow goes through all ranks of a collective");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(counts.events, write(&plan, dir.path()).unwrap().events);
    assert_eq!((exported.bytes, exported.shift_ns), (bytes.len() as u64, 0));
    assert_eq!(exported.omissions, []);
}

#[test]
fn a_cut_draws_rows_that_begin_in_it_and_exports_are_reproducible() {
    let plan = Plan { offset_ns: vec![0, 250_000_000, -40_000, 7], ..Plan::default() };
    let all = exported(&plan, &Options::default());
    assert!(all == exported(&plan, &Options::default()), "an export depends on nothing but the run");
    let options = Options { steps: Some(1..3), ranks: Some([0, 3].into()), ..Options::default() };
    let (cut, bytes) = exported(&plan, &options);
    assert_eq!((cut.counts.ranks, cut.counts.marks), (2, 4));
    assert_eq!(cut.counts.collectives, 4 * plan.buckets as u64);
    assert!(bytes.len() < all.1.len() / 3);
}

/// Perfetto has no times before 0. Global time has, if a rank began before the reference clock's origin.
#[test]
fn times_before_zero_are_shifted_and_reported() {
    let plan = Plan { offset_ns: vec![60_000_000_000; 4], ..Plan::default() };
    let (exported, _) = exported(&plan, &Options::default());
    assert!(exported.shift_ns > 0, "{}", exported.shift_ns);
}
