//! A collective is known by what its rows say, not by the name of its kernel or by the correlation.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::path::Path;

use kineto::{PlanOptions, load, plan};
use simulator::{Job, Shape, simulate, write};
use trace::rank::Collective;

/// What two traces must say alike of a collective. The launch of a kernel without correlation is unknown, and the algorithm
/// is known by the name only.
fn comparable(collective: &Collective) -> impl PartialEq + std::fmt::Debug + use<> {
    let c = collective;
    let identity = (c.comm_id, c.seq(), c.op.clone(), c.step(), c.peer());
    (identity, (c.start_ns(), c.end_ns(), c.ready_ns()), (c.bytes, c.bucket(), c.event_id()))
}

/// The collectives of a trace, and the rows that communicate with their steps.
fn read(path: &Path, trace: &str) -> (Vec<impl PartialEq + std::fmt::Debug + use<>>, Vec<(usize, i32)>) {
    std::fs::write(path, trace).unwrap();
    let rank = load(&plan(&[path.to_path_buf()], PlanOptions::default()).unwrap().files[0]).unwrap();
    let events = &rank.events;
    let communicating = (0..events.len()).filter(|row| events.is_comm[*row]).map(|row| (row, events.step[row]));
    (rank.outline.collectives.iter().map(comparable).collect(), communicating.collect())
}

/// The text between `from` and the next of `to`, replaced. The simulator writes one event on a line.
fn replace(line: &str, from: &str, to: [char; 2], text: &str) -> String {
    let (before, rest) = line.split_once(from).unwrap();
    format!("{before}{from}{text}{}", &rest[rest.find(to).unwrap()..])
}

fn rename(line: &str) -> String {
    replace(line, "\"name\": \"", ['"', '"'], "k0")
}

fn forget_launch(line: &str) -> String {
    replace(line, "\"correlation\": ", [',', '}'], "0")
}

fn forget_arguments(line: &str) -> String {
    replace(line, ", \"Collective name\"", ['}', '}'], ": 0").replace(", \"Collective name\": 0", "")
}

/// Checks that every rank of a job has the same collectives after its communication kernels have changed.
#[track_caller]
fn check(shape: Shape, changes: &[fn(&str) -> String]) {
    let directory = tempfile::tempdir().unwrap();
    let job = Job { steps: 3, layers: 4, ..Job::new(shape, 4) };
    write(&job, &simulate(&job, 1).unwrap(), directory.path()).unwrap();
    for rank in 0..job.ranks {
        let path = directory.path().join(format!("rank{rank}.json"));
        let trace = std::fs::read_to_string(&path).unwrap();
        let is_collective = |line: &str| line.contains("\"kernel\"") && line.contains("\"nccl");
        let change = |line: &str| changes.iter().fold(line.to_string(), |line, change| change(&line));
        // The simulator writes the inner one of two equal rows first, torch the outer one.
        let events = || trace.lines().rev().filter(|line| line.starts_with("{\"ph\"")).map(|l| l.trim_end_matches(','));
        let document = |events: Vec<String>| format!("{}\n{}\n]}}", trace.lines().next().unwrap(), events.join(",\n"));
        let changed =
            document(events().map(|line| if is_collective(line) { change(line) } else { line.into() }).collect());
        let trace = document(events().map(Into::into).collect());
        let before = read(&path, &trace);
        assert!(changed != trace && !before.0.is_empty());
        assert_eq!(read(&path, &changed), before, "rank {rank} of {shape:?}");
    }
}

const SHAPES: [Shape; 7] = [
    Shape::Ddp,
    Shape::Fsdp { two_streams: false },
    Shape::Fsdp { two_streams: true },
    Shape::Tensor(2),
    Shape::Pipeline { stages: 2, tensor: 1 },
    Shape::Experts,
    Shape::Rooted,
];

/// Invariant (numbers): A collective is known by its arguments, its launch or its order, whatever its kernel is called.
#[test]
fn names_and_correlations_of_kernels_change_no_collective() {
    for shape in SHAPES {
        check(shape, &[rename]);
        check(shape, &[forget_launch]);
        check(shape, &[rename, forget_launch]);
        check(shape, &[rename, forget_arguments]);
    }
}

/// Nothing but their order joins these kernels with their records.
#[test]
fn kernels_without_launch_and_arguments_take_their_records_in_order() {
    for shape in [Shape::Ddp, Shape::Fsdp { two_streams: false }, Shape::Experts, Shape::Rooted] {
        check(shape, &[forget_launch, forget_arguments]);
    }
}
