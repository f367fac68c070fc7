//! The reference workload over a real `mpirun`: what it leaves behind, and what an analysis of it says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use trace::{
    BucketRow, BucketTimingRow, ClockFitRow, CollectiveRow, CounterRow, EventRow, InstanceRow, MemoryRow, OmissionRow,
    RankRow, Run, StepBreakdownRow, StepRow, StragglerRow, WaitRow,
};

use crate::support::{analyze, have_mpirun, scratch, sound_run, train};
use crate::tables::{analysis, open, rows};

const WARMUP: usize = 2;
/// Of the schedule that nobody asked for: `wait=1,warmup=2,active=5,repeat=1`.
const ACTIVE: usize = 5;

/// Facts that hold in every run of the reference workload with so many active steps.
fn check_run(run: &Run, ranks: i32, active: usize) {
    assert_eq!(run.manifest.world_size, ranks);
    assert_eq!(run.ranks(), (0..ranks).collect::<Vec<_>>());
    for rank in 0..ranks {
        let processes = rows::<RankRow>(run, rank);
        assert!(processes.last().unwrap().closed_cleanly, "rank {rank}");
        check_steps(&rows::<StepRow>(run, rank), active);
        check_events(&rows::<EventRow>(run, rank), &rows::<StepRow>(run, rank));
        check_collectives(run, rank, active);
        assert!(!rows::<MemoryRow>(run, rank).is_empty());
        for counter in rows::<CounterRow>(run, rank) {
            assert_eq!(counter.dropped, 0, "{counter:?}");
        }
    }
}

fn check_steps(steps: &[StepRow], active: usize) {
    let of = |phase: &str| steps.iter().filter(|s| &*s.phase == phase).count();
    assert_eq!((of("warmup"), of("active"), steps.len()), (WARMUP, active, WARMUP + active));
    assert!(steps.windows(2).all(|w| w[0].end_ns <= w[1].start_ns && w[0].step < w[1].step), "steps overlap");
    let (first, last) = (steps[0].loss.unwrap(), steps[steps.len() - 1].loss.unwrap());
    assert!(last < first, "the loss rises from {first} to {last}");
}

/// Rows exist for active steps only, nest in their parents, and every range of a step is there.
fn check_events(events: &[EventRow], steps: &[StepRow]) {
    let active: BTreeSet<i32> = steps.iter().filter(|s| &*s.phase == "active").map(|s| s.step).collect();
    let by_id: BTreeMap<i64, &EventRow> = events.iter().filter(|e| e.open != Some(true)).map(|e| (e.id, e)).collect();
    for event in events {
        let step = event.step.unwrap();
        assert!(active.contains(&step), "a row of step {step}: {event:?}");
        let Some(parent) = event.parent_id else { continue };
        let parent = by_id[&parent];
        assert_eq!((event.thread_id, event.pid), (parent.thread_id, parent.pid));
        assert!(parent.ts_ns <= event.ts_ns && event.ts_ns + event.dur_ns <= parent.ts_ns + parent.dur_ns);
    }
    for step in active {
        let names: BTreeSet<&str> = events.iter().filter(|e| e.step == Some(step)).map(|e| &*e.name).collect();
        for range in ["input", "forward", "backward", "optimizer", "gemm", "wait_all_reduce", "mpi:all_reduce"] {
            assert!(names.contains(range), "step {step} has no {range}: {names:?}");
        }
        assert!(names.contains(format!("ProfilerStep#{step}").as_str()), "{names:?}");
    }
    assert!(events.iter().any(|e| e.flops.is_some_and(|f| f > 0)) && events.iter().any(|e| e.bytes.is_some()));
}

/// A bucket is ready before it is handed over, handed over before it starts, and starts before it ends.
fn check_collectives(run: &Run, rank: i32, active: usize) {
    let buckets = rows::<BucketRow>(run, rank);
    assert!(buckets.len() > 1, "the model must fill several buckets");
    let collectives = rows::<CollectiveRow>(run, rank);
    let events: BTreeMap<i64, EventRow> = rows::<EventRow>(run, rank).into_iter().map(|e| (e.id, e)).collect();
    let reduced = collectives.iter().filter(|c| c.bucket.is_some());
    assert_eq!(reduced.count(), buckets.len() * active);
    for c in &collectives {
        assert_eq!(&*c.state, "done", "{c:?}");
        let (start, end) = (c.start_ns.unwrap(), c.end_ns.unwrap());
        assert!(c.ready_ns.unwrap_or(start) <= c.enqueue_ns.unwrap() && c.enqueue_ns.unwrap() <= start && start <= end);
        if let Some(bucket) = c.bucket {
            assert_eq!(c.bytes, Some(buckets[bucket as usize].bytes));
        }
        let event = &events[&c.event_id.unwrap()];
        assert_eq!((event.ts_ns, event.dur_ns, event.is_comm), (start, end - start, Some(true)));
    }
}

/// Facts that hold in every analysis of such a run.
fn check_analysis(path: &Path, ranks: i32, active: usize) {
    let breakdown = analysis::<StepBreakdownRow>(path);
    let steps = breakdown.iter().filter(|b| b.step.is_some_and(|s| s >= 0));
    assert_eq!(steps.count(), ranks as usize * active);
    for b in &breakdown {
        let parts = b.compute_ns + b.overlap_ns + b.exposed_comm_ns + b.memory_ns + b.idle_ns;
        assert_eq!(parts, b.wall_ns, "{b:?}");
    }
    let instances = analysis::<InstanceRow>(path);
    assert!(instances.iter().all(|i| i.complete && i.ranks_seen == ranks && &*i.r#match == "seq"));
    assert!(instances.iter().all(|i| i.skew_ns >= 0 && i.transfer_ns.is_none_or(|t| t > 0)));
    assert_eq!(analysis::<WaitRow>(path).len(), instances.len() * ranks as usize);
    let reduced = instances.iter().filter(|i| i.bucket.is_some()).count();
    assert_eq!(analysis::<BucketTimingRow>(path).len(), reduced * ranks as usize);
    for fit in analysis::<ClockFitRow>(path) {
        assert_eq!(fit.violations, 0, "{fit:?}");
        assert_ne!(&*fit.method, "none");
        // One host, one clock: the true offset is 0, and the bound is a promise.
        assert!(fit.offset_ns.abs() <= fit.bound_ns.unwrap(), "{fit:?}");
        assert!(fit.error_ns.unwrap() <= fit.bound_ns.unwrap(), "{fit:?}");
    }
    // Other programs may keep a thread from its CPU, so that it begins late for no recorded reason, and steps are not alike.
    let mut omissions = analysis::<OmissionRow>(path);
    omissions.retain(|row| !row.what.ends_with("in the account of lost time"));
    assert_eq!(omissions, vec![]);
}

/// Invariant (recorder): Rows exist only for active steps, and they nest.
#[test]
fn two_ranks_train_and_are_analyzed() {
    let Some(path) = sound_run("two_ranks") else { return };
    check_run(&open(&path), 2, ACTIVE);
    analyze(&path, &[], 0);
    check_analysis(&path, 2, ACTIVE);
}

#[test]
fn the_slowed_rank_of_four_is_named() {
    if !have_mpirun("the_slowed_rank_of_four_is_named") {
        return;
    }
    let path = scratch("slowed").join("run");
    // Long beside the few ms that four ranks on few cores take from each other, and often enough that a step of which
    // the machine took more does not matter.
    let schedule = ["--schedule", "wait=1,warmup=2,active=15,repeat=1"];
    train(4, &path, &[schedule, ["--inject", "slow:rank=2,ms=120,phase=backward"]].concat()).expect_code(0);
    check_run(&open(&path), 4, 15);
    let said = analyze(&path, &[], 0).stdout;
    check_analysis(&path, 4, 15);
    let stragglers = analysis::<StragglerRow>(&path);
    let causes: Vec<i32> = stragglers.iter().filter(|s| &*s.verdict == "cause").map(|s| s.rank).collect();
    assert_eq!(causes, [2], "{stragglers:#?}");
    let cause = &stragglers[2];
    assert_eq!(cause.evidence_range.as_deref(), Some("backward"), "{cause:?}");
    let excess_ms = cause.evidence_excess_ns.unwrap() as f64 / 1e6;
    assert!((excess_ms - 120.0).abs() < 12.0, "{excess_ms} ms of 120 ms");
    let verdict = said.lines().find(|l| !l.trim().is_empty()).unwrap();
    assert!(verdict.starts_with("SLOW RANK 2 — "), "the first line is not the verdict: {verdict}");
}

#[test]
fn a_world_of_one_is_a_run_too() {
    let path = scratch("one").join("run");
    let agent = std::process::Command::new(crate::support::RANK_AGENT)
        .arg("--out")
        .arg(&path)
        .args(crate::support::SMALL_MODEL)
        .output()
        .unwrap();
    assert_eq!(agent.status.code(), Some(0), "{}", String::from_utf8_lossy(&agent.stderr));
    let run = open(&path);
    assert_eq!((run.manifest.world_size, run.ranks()), (1, vec![0]));
    check_steps(&rows::<StepRow>(&run, 0), ACTIVE);
    analyze(&path, &[], 0);
    // Nobody to wait for, nobody to blame.
    assert!(analysis::<StragglerRow>(&path).iter().all(|s| &*s.verdict == "ok" || &*s.verdict == "undecided"));
    assert!(analysis::<WaitRow>(&path).iter().all(|w| w.wait_ns == 0));
}
