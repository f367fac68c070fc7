//! The export for Perfetto over planted runs. What its own schema makes of an export is checked by
//! `tests/perfetto_check.py`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../tests/src/planted.rs"]
#[expect(dead_code, unreachable_pub, reason = "each user of the builder needs a part of it")]
mod planted;

use aggregator::Options;
use aggregator::render::perfetto::{Exported, export};
use aggregator::source::RunSource;
use planted::{Plan, write};

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
fn a_cut_draws_what_begins_in_it_and_two_exports_are_the_same() {
    let plan = Plan { offset_ns: vec![0, 250_000_000, -40_000, 7], ..Plan::default() };
    let all = exported(&plan, &Options::default());
    assert!(all == exported(&plan, &Options::default()), "an export depends on nothing but the run");
    let mut options = Options::default();
    options.steps = Some(1..3);
    options.ranks = Some([0, 3].into());
    let (cut, bytes) = exported(&plan, &options);
    assert_eq!((cut.counts.ranks, cut.counts.marks), (2, 4));
    assert_eq!(cut.counts.collectives, 4 * plan.buckets as u64);
    assert!(bytes.len() < all.1.len() / 3);
}

/// A trace has no times before 0, but global time has, where the reference began before its clock's origin.
#[test]
fn times_before_zero_are_shifted_and_that_is_said() {
    let plan = Plan { offset_ns: vec![60_000_000_000; 4], ..Plan::default() };
    let (exported, _) = exported(&plan, &Options::default());
    assert!(exported.shift_ns > 0, "{}", exported.shift_ns);
}
