//! Simulated ranks that are made without a trace are those that the reader gives of the trace.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use kineto::{PlanOptions, load, plan};
use simulator::{Job, MS, Schedule, Shape, all, ranks, simulate, write};
use trace::Text;
use trace::rank::RankData;

/// The numbers of names depend on the order in which the reader's threads met them.
fn named(mut data: RankData) -> (RankData, Vec<Text>) {
    let names = data.events.name.iter().map(|id| data.names[*id as usize].clone()).collect();
    data.events.name.clear();
    data.names.clear();
    (data, names)
}

#[track_caller]
fn check(name: &str, job: &Job) {
    let simulated = simulate(job, 1).unwrap();
    let directory = tempfile::tempdir().unwrap();
    write(job, &simulated, directory.path()).unwrap();
    let plan = plan(&[directory.path().to_path_buf()], PlanOptions::default()).unwrap();
    let made = ranks(job, &simulated).unwrap();
    assert_eq!(made.len(), plan.files.len(), "{name}");
    for (made, file) in made.into_iter().zip(&plan.files) {
        let (made, read) = (named(made), named(load(file).unwrap()));
        assert!(!made.0.outline.collectives.is_empty(), "{name}");
        let rank = file.rank;
        assert_eq!(made.0.outline, read.0.outline, "{name}, rank {rank}");
        assert!(made.0.events == read.0.events && made.1 == read.1, "{name}, rank {rank}: the rows differ");
        assert_eq!(RankData { events: read.0.events.clone(), ..made.0 }, read.0, "{name}, rank {rank}");
    }
}

#[test]
fn ranks_in_memory_are_those_of_the_traces() {
    let pipeline = Shape::Pipeline { stages: 4, tensor: 1 };
    for (shape, schedule) in [
        (Shape::Ddp, Schedule::ForwardFirst),
        (Shape::Gloo, Schedule::ForwardFirst),
        (Shape::Hsdp, Schedule::ForwardFirst),
        (Shape::ContextRing(2), Schedule::ForwardFirst),
        (Shape::TwoCommunicators, Schedule::ForwardFirst),
        (pipeline, Schedule::Interleaved(2)),
        (Shape::Experts, Schedule::ForwardFirst),
        (Shape::Rooted, Schedule::ForwardFirst),
    ] {
        let job = Job { steps: 2, host_ranks: 2, schedule, has_uneven_splits: true, ..Job::new(shape, 4) };
        check(&format!("{shape:?}"), &job);
    }
    check("40 ranks", &Job { steps: 1, layers: 2, buckets: 1, input_ns: MS, ..Job::new(Shape::Ddp, 40) });
}

#[test]
fn clocks_and_gaps_are_as_in_the_traces() {
    for scenario in all().into_iter().filter(|scenario| ["gaps", "clocks"].contains(&scenario.kind)) {
        let job = scenario.job(1);
        let steps = if scenario.kind == "gaps" { job.steps } else { 13 };
        check(scenario.name, &Job { steps, ..job });
    }
}
